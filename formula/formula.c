/* formula.c -- the table of formulas, and all but the losses (see formula_loss.c). */
#include "formula/formula_impl.h"
#include "kernels/attention.h"
#include "samples/protocol.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    cri_formula evaluate;
} formulas[] = {
    {"advantage", cri_formula_advantage},
    {"loss", cri_formula_loss},
    {"value_loss", cri_formula_value_loss},
    {"correction", cri_formula_correction},
    {"sample_mask", cri_formula_sample_mask},
    {"log_prob", cri_formula_log_prob},
    {"kl_controller", cri_formula_kl_controller},
    {"schedule", cri_formula_schedule},
    {"dpo", cri_formula_dpo},
    {"distill", cri_formula_distill},
};
const char *const cr_formula_names[] = {
    "advantage",     "loss",     "value_loss", "correction", "sample_mask", "log_prob",
    "kl_controller", "schedule", "dpo",        "distill",    NULL};

cr_status cr_formula(const char *name, const char *text, size_t num_bytes, cr_buf *out, cr_err *err)
{
    cri_formula_request r = {0};
    cr_buf answer = {0};
    cri_formula_answer a = {&answer, err};
    json_t *body = NULL;
    cri_formula evaluate = NULL;

    for (size_t i = 0; i < CR_COUNT(formulas); i++)
        if (strcmp(formulas[i].name, name) == 0) evaluate = formulas[i].evaluate;
    if (!evaluate) return cr_fail(err, CR_EUSAGE, "there is no formula %.60s", name);
    CR_TRY(cr_json_parse(text, num_bytes, "the request", &body, err));
    r.arena = cr_arena_create(65536);
    if (!json_is_object(body)) {
        cr_fail(err, CR_EFORMAT, "the request must be one JSON object");
    } else {
        cri_open(&a, NULL);
        cr_note(evaluate(&r, body, &a));
        cri_close(&a);
    }
    if (err->status == CR_OK) cr_buf_add(out, answer.data, answer.num_bytes);
    cr_buf_free(&answer);
    cr_arena_destroy(r.arena);
    json_decref(body);
    return err->status;
}

/* ---- rewards and advantages ---- */

static const char *const estimators[] = {"reinforce", "grpo",           "gae",
                                         "gigpo",     "step_reinforce", NULL};
static const char *const norms[] = {"", "batch", "group", "running", NULL};
static const char *const penalties[] = {"kl", "abs", "mse", NULL};
static const char *const aggregations[] = {"sum_then_normalize", "normalize_then_sum", NULL};

static cr_status read_advantage_config(cri_formula_request *r, const json_t *config,
                                       cr_advantage_config *c, cr_err *err)
{
    int estimator = CR_ADV_GAE, mean = 0, std = 0, penalty = 0, aggregation = 0;
    bool is_mixed = false, is_pure = false;
    const cri_formula_field fields[] = {
        {"adv_estimator", CRI_F_CHOICE, 0, &estimator, estimators},
        {"gamma", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->gamma, NULL},
        {"lambd", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->lambd, NULL},
        {"norm_mean_type", CRI_F_CHOICE, CRI_F_NULLABLE, &mean, norms},
        {"norm_std_type", CRI_F_CHOICE, CRI_F_NULLABLE, &std, norms},
        {"multi_objective_aggregation", CRI_F_CHOICE, 0, &aggregation, aggregations},
        {"reward_clip", CRI_F_NUMBER, CRI_F_NULLABLE | CRI_F_NONNEGATIVE, &c->reward_clip, NULL},
        {"advantage_clip", CRI_F_NUMBER, CRI_F_NULLABLE | CRI_F_POSITIVE, &c->advantage_clip, NULL},
        {"whiten_rewards", CRI_F_FLAG, 0, &c->whiten_rewards, NULL},
        {"whiten_advantages", CRI_F_FLAG, 0, &c->whiten_advantages, NULL},
        {"add_token_level_kl", CRI_F_FLAG, 0, &c->add_token_level_kl, NULL},
        {"kl_penalty", CRI_F_CHOICE, 0, &penalty, penalties},
        {"init_kl_coef", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->kl_coef, NULL},
        {"use_opd", CRI_F_FLAG, 0, &is_mixed, NULL},
        {"is_pure_opd", CRI_F_FLAG, 0, &is_pure, NULL},
        {"opd_kl_coef", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->opd_kl_coef, NULL},
    };
    static const cr_kl kinds[] = {CR_KL_K1, CR_KL_ABS, CR_KL_MSE};

    CR_TRY(CRI_READ(r, config, "config.", fields, err));
    /* gigpo and step_reinforce differ only where an episode has several turns */
    c->adv_estimator = estimator > CR_ADV_GAE ? CR_ADV_REINFORCE : (cr_estimator)estimator;
    c->norm_mean_type = (cr_norm)mean;
    c->norm_std_type = (cr_norm)std;
    c->aggregation = (cr_aggregation)aggregation;
    c->kl_penalty = kinds[penalty];
    c->opd = is_pure ? CR_OPD_PURE : is_mixed ? CR_OPD_MIXED : CR_OPD_NONE;
    if (is_pure) c->adv_estimator = CR_ADV_REINFORCE;
    return CR_OK;
}

static cr_status check_group(double group, size_t num_samples, cr_err *err)
{
    if (num_samples % (size_t)group)
        return cr_fail(err, CR_EARG, "group is %.0f, which does not divide the %zu samples", group,
                       num_samples);
    return CR_OK;
}

/* One kind of rewards: a number or null for each sample. */
static cr_status read_kind(const json_t *list, size_t kind, size_t num, double *values, double *has,
                           cr_err *err)
{
    const json_t *v;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) != num)
        return cr_fail(err, CR_EARG, "rewards[%zu] is not a list of %zu numbers", kind, num);
    json_array_foreach(list, i, v)
    {
        has[i] = !json_is_null(v);
        values[i] = json_number_value(v);
        if (has[i] != 0 && (!json_is_number(v) || !isfinite(values[i])))
            return cr_fail(err, CR_EARG, "rewards[%zu][%zu] is neither a number nor null", kind, i);
    }
    return CR_OK;
}

/* Several rewards of each sample, instead of scores: then their weighted sums are the scores, and a sample
 * without any has no verdict. */
static cr_status read_kinds(cri_formula_request *r, const json_t *rewards, const json_t *weights,
                            cr_reward_kinds *k, cr_advantage_args *args, cr_err *err)
{
    size_t n = r->num_samples, num = json_array_size(rewards);
    double *values, *has, *ws = NULL, *sums = cri_numbers(r, n), *any = cri_numbers(r, n);

    if (!rewards != !!args->scores)
        return cr_fail(err, CR_EARG, "give scores, or rewards: a list for each kind of reward");
    if (!rewards) return CR_OK;
    if (!json_is_array(rewards) || num == 0)
        return cr_fail(err, CR_EARG, "rewards must be a list of lists, one for each kind");
    values = cri_numbers(r, num * n);
    has = cri_numbers(r, num * n);
    for (size_t j = 0; j < num; j++)
        CR_TRY(read_kind(json_array_get(rewards, j), j, n, values + j * n, has + j * n, err));
    if (weights) {
        CR_TRY(cri_read_list(r, weights, "reward_weights", 0, &num, &ws, err));
    } else {
        ws = cri_numbers(r, num);
        for (size_t j = 0; j < num; j++)
            ws[j] = 1;
    }
    *k = (cr_reward_kinds){num, values, has, ws};
    cr_rewards_sum(k, n, sums, any);
    for (size_t i = 0; i < n && args->verdict; i++)
        any[i] *= args->verdict[i];
    args->scores = sums;
    args->verdict = any;
    args->kinds = k;
    return CR_OK;
}

static void open_outputs(cri_formula_request *r, cr_advantage_args *args)
{
    args->rows = r->rows;
    args->rewards = cri_numbers(r, r->num_samples);
    args->token_rewards = cri_tokens(r);
    args->advantages = cri_tokens(r);
    args->raw_advantages = cri_tokens(r);
    args->returns = cri_tokens(r);
    args->kl = cri_tokens(r);
    args->opd_kl = cri_tokens(r);
}

cr_status cri_formula_advantage(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    cr_advantage_config c = {.gamma = 1, .lambd = 0.95, .kl_coef = 0.2, .opd_kl_coef = 1};
    cr_moments moments = {0, 1, 1e-24};
    cr_advantage_args args = {.moments = &moments};
    cr_reward_kinds kinds;
    const json_t *config = NULL, *rewards = NULL, *weights = NULL;
    double group = 0;
    const cri_formula_field fields[] = {
        {"final_mask", CRI_F_MASK, CRI_F_REQUIRED, &args.final_mask, NULL},
        {"old_log_probs", CRI_F_ROWS, 0, &args.old_log_probs, NULL},
        {"ref_log_probs", CRI_F_ROWS, 0, &args.ref_log_probs, NULL},
        {"teacher_log_probs", CRI_F_ROWS, 0, &args.teacher_log_probs, NULL},
        {"values", CRI_F_ROWS, 0, &args.values, NULL},
        {CR_FIELD_TOKEN_REWARDS, CRI_F_ROWS, 0, &args.token_scores, NULL},
        {"scores", CRI_F_SAMPLES, 0, &args.scores, NULL},
        {"rewards", CRI_F_VALUE, 0, &rewards, NULL},
        {"reward_weights", CRI_F_VALUE, 0, &weights, NULL},
        {"verdict", CRI_F_FLAGS, 0, &args.verdict, NULL},
        {"group", CRI_F_COUNT, CRI_F_REQUIRED | CRI_F_POSITIVE, &group, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    CR_TRY(read_kinds(r, rewards, weights, &kinds, &args, a->err));
    CR_TRY(read_advantage_config(r, config, &c, a->err));
    CR_TRY(check_group(group, r->num_samples, a->err));
    if (!args.teacher_log_probs != (c.opd == CR_OPD_NONE))
        return cr_fail(a->err, CR_EARG,
                       "%s is missing: use_opd or is_pure_opd goes with teacher_log_probs",
                       args.teacher_log_probs ? "config.use_opd" : "teacher_log_probs");
    if (!args.old_log_probs != !(args.ref_log_probs || args.teacher_log_probs))
        return cr_fail(a->err, CR_EARG, "%s is missing: a KL needs old_log_probs and ref_log_probs",
                       args.old_log_probs ? "ref_log_probs" : "old_log_probs");
    if (c.add_token_level_kl && !args.ref_log_probs)
        return cr_fail(a->err, CR_EARG,
                       "ref_log_probs is missing: config.add_token_level_kl needs it");
    if (c.adv_estimator == CR_ADV_GAE && !args.values)
        return cr_fail(a->err, CR_EARG, "values is missing: config.adv_estimator gae needs it");
    args.group = (size_t)group;
    open_outputs(r, &args);
    CR_TRY(cr_advantage(&c, &args, a->err));
    cri_put_list(a, "rewards", args.rewards, r->num_samples);
    cri_put_rows(a, "token_level_rewards", &r->rows, args.token_rewards);
    cri_put_rows(a, "advantages", &r->rows, args.advantages);
    cri_put_rows(a, "raw_advantages", &r->rows, args.raw_advantages);
    cri_put_rows(a, "returns", &r->rows, args.returns);
    if (args.ref_log_probs) {
        cri_put_rows(a, "kl", &r->rows, args.kl);
        cri_put_number(a, "kl_mean", args.kl_mean);
    }
    if (args.teacher_log_probs) {
        cri_put_rows(a, "opd_kl", &r->rows, args.opd_kl);
        cri_put_number(a, "opd_kl_mean", args.opd_kl_mean);
    }
    cri_put_number(a, "reward_clip_frac", args.reward_clip_frac);
    cri_put_number(a, "advantage_clip_frac", args.advantage_clip_frac);
    return a->err->status;
}

cr_status cri_formula_sample_mask(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    cr_mask_config c = {.difficulty_high_threshold = 1, .error_max_len_threshold = 9999999999.0};
    const json_t *config = NULL;
    const double *lengths, *scores, *verdict = NULL;
    double group = 0, response_length = 0, *keep;
    const cri_formula_field fields[] = {
        {"lengths", CRI_F_SAMPLES, CRI_F_REQUIRED | CRI_F_WHOLE, &lengths, NULL},
        {"scores", CRI_F_SAMPLES, CRI_F_REQUIRED, &scores, NULL},
        {"verdict", CRI_F_FLAGS, 0, &verdict, NULL},
        {"group", CRI_F_COUNT, CRI_F_REQUIRED | CRI_F_POSITIVE, &group, NULL},
        {"response_length", CRI_F_COUNT, CRI_F_REQUIRED | CRI_F_POSITIVE, &response_length, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };
    const cri_formula_field settings[] = {
        {"max_len_mask", CRI_F_FLAG, 0, &c.max_len_mask, NULL},
        {"difficulty_mask", CRI_F_FLAG, 0, &c.difficulty_mask, NULL},
        {"difficulty_low_threshold", CRI_F_NUMBER, 0, &c.difficulty_low_threshold, NULL},
        {"difficulty_high_threshold", CRI_F_NUMBER, 0, &c.difficulty_high_threshold, NULL},
        {"error_max_len_clip", CRI_F_FLAG, 0, &c.error_max_len_clip, NULL},
        {"error_max_len_threshold", CRI_F_COUNT, 0, &c.error_max_len_threshold, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    CR_TRY(CRI_READ(r, config, "config.", settings, a->err));
    CR_TRY(check_group(group, r->num_samples, a->err));
    for (size_t i = 0; i < r->num_samples; i++)
        if (lengths[i] > response_length)
            return cr_fail(a->err, CR_EARG, "lengths[%zu] is %.0f, but response_length is %.0f", i,
                           lengths[i], response_length);
    keep = cri_numbers(r, r->num_samples);
    cr_sample_mask(&c, r->num_samples, (size_t)group, lengths, response_length, scores, verdict,
                   keep);
    cri_put_list(a, "keep", keep, r->num_samples);
    return a->err->status;
}

/* ---- log-probs and entropies of logits ---- */

typedef struct head_request {
    size_t num_rows, vocab_size;
    const json_t *logits;
    double *labels, *grad_log_probs, *grad_entropy;
    double *log_probs, *entropy, *grad_logits; /* out */
} head_request;

enum { HEAD_ROWS = 16 };

/* Rows [first, first + num) through the vocabulary head of the models: with the identity for x, the
 * products x W^T are the columns of W themselves, so W^T holds the logits, and the gradient of W is
 * theirs. */
static cr_status run_head(cr_device *dev, cri_formula_request *r, head_request *q, size_t first,
                          size_t num, cr_err *err)
{
    size_t V = q->vocab_size;
    size_t floats = 2 * V * num + num * num * 2 + 7 * num, num_bytes = floats * sizeof(float);
    float *f = (float *)(void *)cri_numbers(r, (num_bytes + 7) / 8);
    float *w = f, *dw = w + V * num, *x = dw + V * num, *dx = x + num * num, *g = dx + num * num,
          *log_prob = g + 2 * num, *labels = log_prob + 4 * num;
    cr_weight weight = {NULL, CR_F32, (int64_t)V, (int64_t)num, NULL};
    cr_head_grad_args back;
    cr_mem *mem;

    for (size_t i = 0; i < num; i++) {
        const json_t *row = json_array_get(q->logits, first + i);
        for (size_t v = 0; v < V; v++)
            w[v * num + i] = (float)json_number_value(json_array_get(row, v));
        x[i * num + i] = 1;
        memcpy((char *)labels + i * sizeof(int32_t), &(int32_t){(int32_t)q->labels[first + i]},
               sizeof(int32_t));
        g[i] = (float)q->grad_log_probs[first + i];
        g[num + i] = (float)q->grad_entropy[first + i];
    }
    CR_TRY(cr_device_alloc(dev, num_bytes, &mem, err)); /* the arrays of f, in the same order */
    weight.data = mem;
    back = (cr_head_grad_args){
        .fwd = {cr_at(CR_F32, mem, x - f), &weight, cr_at(CR_F32, mem, labels - f), (int64_t)num,
                cr_at(CR_F32, mem, log_prob - f), cr_at(CR_F32, mem, log_prob - f + (int64_t)num),
                cr_at(CR_F32, mem, log_prob - f + 2 * (int64_t)num),
                cr_at(CR_F32, mem, log_prob - f + 3 * (int64_t)num)},
        .grad_log_prob = cr_at(CR_F32, mem, g - f),
        .grad_entropy = cr_at(CR_F32, mem, g - f + (int64_t)num),
        .dx = cr_at(CR_F32, mem, dx - f),
        .dw = cr_at(CR_F32, mem, dw - f)};
    if (cr_upload(dev, mem, f, num_bytes, err) == CR_OK && cr_head(dev, &back.fwd, err) == CR_OK &&
        cr_head_grad(dev, &back, err) == CR_OK)
        cr_note(cr_download(dev, f, mem, num_bytes, err));
    cr_device_free(dev, mem, num_bytes);
    CR_TRY(err->status);
    for (size_t i = 0; i < num; i++) {
        q->log_probs[first + i] = (double)log_prob[i];
        q->entropy[first + i] = (double)log_prob[num + i];
        for (size_t v = 0; v < V; v++)
            q->grad_logits[(first + i) * V + v] = (double)dw[v * num + i];
    }
    return CR_OK;
}

static cr_status check_logits(cri_formula_request *r, const head_request *q, cr_err *err)
{
    for (size_t t = 0; t < q->num_rows; t++) {
        size_t num = q->vocab_size;
        char key[64];
        double *row;
        snprintf(key, sizeof key, "logits[%zu]", t);
        CR_TRY(cri_read_list(r, json_array_get(q->logits, t), key, 0, &num, &row, err));
        for (size_t v = 0; v < num; v++)
            if (fabs(row[v]) > (double)FLT_MAX)
                return cr_fail(err, CR_EARG, "%s[%zu] is %g, which float32 cannot hold", key, v,
                               row[v]);
        if (q->labels[t] >= (double)num)
            return cr_fail(err, CR_EARG, "labels[%zu] is %.0f, but there are %zu logits", t,
                           q->labels[t], num);
        if (fabs(q->grad_log_probs[t]) > (double)FLT_MAX ||
            fabs(q->grad_entropy[t]) > (double)FLT_MAX)
            return cr_fail(
                err, CR_EARG, "%s[%zu] is more than float32 can hold",
                fabs(q->grad_entropy[t]) > (double)FLT_MAX ? "grad_entropy" : "grad_log_probs", t);
    }
    return CR_OK;
}

static cr_status read_head(cri_formula_request *r, const json_t *body, head_request *q, cr_err *err)
{
    const json_t *labels = NULL, *g = NULL, *h = NULL;
    const cri_formula_field fields[] = {
        {"logits", CRI_F_VALUE, CRI_F_REQUIRED, &q->logits, NULL},
        {"labels", CRI_F_VALUE, CRI_F_REQUIRED, &labels, NULL},
        {"grad_log_probs", CRI_F_VALUE, 0, &g, NULL},
        {"grad_entropy", CRI_F_VALUE, 0, &h, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, err));
    if (!json_is_array(q->logits) || !json_is_array(json_array_get(q->logits, 0)) ||
        json_array_size(json_array_get(q->logits, 0)) == 0)
        return cr_fail(err, CR_EARG,
                       "logits must be a list of rows, each with a number for every word of the "
                       "vocabulary");
    q->num_rows = json_array_size(q->logits);
    q->vocab_size = json_array_size(json_array_get(q->logits, 0));
    q->grad_log_probs = cri_numbers(r, q->num_rows);
    q->grad_entropy = cri_numbers(r, q->num_rows);
    CR_TRY(cri_read_list(r, labels, "labels", CRI_F_WHOLE, &q->num_rows, &q->labels, err));
    if (g) CR_TRY(cri_read_list(r, g, "grad_log_probs", 0, &q->num_rows, &q->grad_log_probs, err));
    if (h) CR_TRY(cri_read_list(r, h, "grad_entropy", 0, &q->num_rows, &q->grad_entropy, err));
    return check_logits(r, q, err);
}

cr_status cri_formula_log_prob(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    head_request q = {0};
    cr_device *dev = NULL;
    size_t *start;

    CR_TRY(read_head(r, body, &q, a->err));
    q.log_probs = cri_numbers(r, q.num_rows);
    q.entropy = cri_numbers(r, q.num_rows);
    q.grad_logits = cri_numbers(r, q.num_rows * q.vocab_size);
    start = cr_arena_alloc(r->arena, (q.num_rows + 1) * sizeof *start);
    for (size_t t = 0; t <= q.num_rows; t++)
        start[t] = t * q.vocab_size;
    CR_TRY(cr_device_open("cpu", 1, &dev, a->err));
    for (size_t t = 0; t < q.num_rows && a->err->status == CR_OK; t += HEAD_ROWS)
        cr_note(run_head(dev, r, &q, t, q.num_rows - t < HEAD_ROWS ? q.num_rows - t : HEAD_ROWS,
                         a->err));
    cr_device_close(dev);
    CR_TRY(a->err->status);
    cri_put_list(a, "log_probs", q.log_probs, q.num_rows);
    cri_put_list(a, "entropy", q.entropy, q.num_rows);
    cri_put_rows(a, "grad_logits", &(cr_ragged){q.num_rows, start}, q.grad_logits);
    return a->err->status;
}

/* ---- small things ---- */

cr_status cri_formula_kl_controller(cri_formula_request *r, const json_t *body,
                                    cri_formula_answer *a)
{
    double value = 0.2, target = 0, horizon = 10000, *values;
    const json_t *steps = NULL, *step;
    size_t i;
    const cri_formula_field fields[] = {
        {"init_kl_coef", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &value, NULL},
        {"target_kl", CRI_F_NUMBER, CRI_F_NULLABLE | CRI_F_POSITIVE, &target, NULL},
        {"kl_horizon", CRI_F_NUMBER, CRI_F_POSITIVE, &horizon, NULL},
        {"steps", CRI_F_VALUE, CRI_F_REQUIRED, &steps, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    if (!json_is_array(steps))
        return cr_fail(a->err, CR_EARG, "steps must be a list of [current, rows]");
    values = cri_numbers(r, json_array_size(steps));
    json_array_foreach(steps, i, step)
    {
        size_t num = 2;
        double *x;
        char key[64];
        snprintf(key, sizeof key, "steps[%zu]", i);
        CR_TRY(cri_read_list(r, step, key, 0, &num, &x, a->err));
        if (x[1] < 0)
            return cr_fail(a->err, CR_EARG, "%s[1] is %.9g: a number of rows is needed", key, x[1]);
        if (target > 0) value = cr_kl_controller(value, target, horizon, x[0], x[1]);
        values[i] = value;
    }
    cri_put_list(a, "values", values, json_array_size(steps));
    return a->err->status;
}

static cr_status read_kwargs(json_t *kwargs, cr_schedule kind, cr_schedule_args *args, cr_err *err)
{
    const char *key;
    json_t *value;

    if (kwargs && !json_is_object(kwargs))
        return cr_fail(err, CR_EARG, "lr_scheduler_kwargs: an object is expected");
    json_object_foreach(kwargs, key, value)
    {
        if (json_is_null(value)) continue;
        CR_TRY(cr_schedule_set(kind, key, json_is_number(value) ? json_number_value(value) : NAN,
                               json_string_value(value), args, err));
    }
    return CR_OK;
}

cr_status cri_formula_schedule(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    enum { MAX_STEPS = 1000000 };
    const char *names[CR_NUM_SCHEDULES + 1];
    int kind = CR_LR_LINEAR;
    cr_lr_schedule schedule;
    double rate = 0, warmup = 0, steps = 0, *lr;
    const json_t *kwargs = NULL;
    const cri_formula_field fields[] = {
        {"lr_scheduler_type", CRI_F_CHOICE, CRI_F_REQUIRED, &kind, names},
        {"learning_rate", CRI_F_NUMBER, CRI_F_REQUIRED | CRI_F_NONNEGATIVE, &rate, NULL},
        {"warmup_steps", CRI_F_COUNT, 0, &warmup, NULL},
        {"max_steps", CRI_F_COUNT, CRI_F_REQUIRED | CRI_F_POSITIVE, &steps, NULL},
        {"lr_scheduler_kwargs", CRI_F_VALUE, 0, &kwargs, NULL},
    };

    memcpy(names, cr_schedule_names, sizeof cr_schedule_names);
    names[CR_NUM_SCHEDULES] = NULL;
    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    if (steps > MAX_STEPS)
        return cr_fail(a->err, CR_EARG, "max_steps is %.0f, but at most %d rates are listed", steps,
                       MAX_STEPS);
    schedule = (cr_lr_schedule){(cr_schedule)kind, rate, (int64_t)warmup, (int64_t)steps,
                                .args = {{0}, {0}}};
    CR_TRY(read_kwargs(json_object_get(body, "lr_scheduler_kwargs"), schedule.kind, &schedule.args,
                       a->err));
    CR_TRY(cr_schedule_check(&schedule, a->err));
    lr = cri_numbers(r, (size_t)steps + 1);
    for (int64_t k = 0; k <= schedule.max_steps; k++)
        lr[k] = cr_learning_rate(&schedule, k);
    cri_put_list(a, "lr", lr, (size_t)steps + 1);
    return a->err->status;
}
