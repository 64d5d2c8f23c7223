/* terms.c -- see terms.h. */
#include "pipelines/why/terms.h"
#include "base/digest.h"
#include "pipelines/replay/recorded.h"
#include "reports/metrics.h"
#include "rl/loss.h"

#include <math.h>
#include <string.h>

/* Sums over the tokens and updates of a sample. */
typedef enum sum { SUM_PG, SUM_KL, SUM_ENTROPY, SUM_TOTAL, SUM_CRITIC, SUM_GRADIENT, NUM_SUMS } sum;
static const char *const sum_names[NUM_SUMS] = {"pg",    "kl",     "entropy",
                                                "total", "critic", "gradient"};

struct cri_terms {
    const cr_learning *l;
    const cri_learn_batch *b;
    struct of_sample {
        cr_buf advantage, updates, critic; /* JSON of members, between its brackets (owned) */
        double sums[NUM_SUMS];
    } * samples;            /* [num_samples] (owned) */
    int64_t num_updates[2]; /* of actor_train, of the critic */
    double *memory;         /* of the trace (owned) */
    cr_advantage_trace trace;
};

cri_terms *cri_terms_begin(const cr_learning *l, const cri_learn_batch *b)
{
    const size_t num = b->batch.num, kinds = l->config->num_rewards;
    cri_terms *t = CR_NEW(cri_terms);
    double *at;

    t->l = l;
    t->b = b;
    t->samples = CR_NEW_ARRAY(struct of_sample, num ? num : 1);
    at = t->memory =
        CR_NEW_ARRAY(double, 3 * kinds * num + CR_NUM_ADVANTAGE_STEPS * b->batch.num_tokens + 1);
    t->trace.mean = at;
    t->trace.std = at + kinds * num;
    t->trace.normalised = at + 2 * kinds * num;
    at += 3 * kinds * num;
    for (int s = 0; s < CR_NUM_ADVANTAGE_STEPS; s++)
        t->trace.after[s] = at + (size_t)s * b->batch.num_tokens;
    return t;
}

void cri_terms_free(cri_terms *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->b->batch.num; i++) {
        cr_buf_free(&t->samples[i].advantage);
        cr_buf_free(&t->samples[i].updates);
        cr_buf_free(&t->samples[i].critic);
    }
    cr_free(t->samples);
    cr_free(t->memory);
    cr_free(t);
}

/* ---- JSON ---- */

/* null: it is not finite, as a deviation of nothing. */
static void add_number(cr_buf *out, double x)
{
    cr_err ignored = {0};

    if (!isfinite(x) || cr_json_add_double(out, x + 0.0, &ignored) != CR_OK)
        cr_buf_adds(out, "null");
}

/* One number where all tokens have the same. */
static void add_numbers(cr_buf *out, const double *x, size_t num)
{
    size_t same = 1;

    while (same < num && memcmp(&x[same], &x[0], sizeof *x) == 0)
        same++;
    if (num && same >= num) {
        add_number(out, x[0]);
        return;
    }
    cr_buf_addc(out, '[');
    for (size_t i = 0; i < num; i++) {
        if (i) cr_buf_addc(out, ',');
        add_number(out, x[i]);
    }
    cr_buf_addc(out, ']');
}

static void add_column(cr_buf *out, const char *name, const double *x, size_t num)
{
    if (!x) return;
    cr_buf_addf(out, ",\"%s\":", name);
    add_numbers(out, x, num);
}

static void add_text(cr_buf *out, const char *name, const char *text)
{
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_string(out, text, strlen(text));
}

/* ---- advantages ---- */

cr_advantage_trace *cri_terms_trace(cri_terms *t)
{
    if (!t) return NULL;
    memset(t->trace.has, 0, sizeof t->trace.has);
    return &t->trace;
}

/* The rewards of a sample, and what normalisation made of each, or of their sum. */
static void add_rewards(const cri_terms *t, size_t first, size_t n, size_t i, cr_buf *out)
{
    const cr_config *c = t->l->config;
    const cr_sample *s = &t->b->r->samples[first + i];
    const bool are_single = c->algorithm.advantage.aggregation == CR_NORMALIZE_THEN_SUM;

    cr_buf_adds(out, "\"rewards\":[");
    for (size_t k = 0; k < s->num_rewards; k++) {
        const cr_sample_reward *x = &s->rewards[k];
        const size_t at = (size_t)x->block * n + i;
        cr_buf_addf(out, "%s{\"block\":", k ? "," : "");
        cr_json_add_string(out, c->rewards[x->block].domain, strlen(c->rewards[x->block].domain));
        add_text(out, "status", cr_outcome_name(x->outcome));
        add_column(out, "weight", &c->rewards[x->block].weight, 1);
        add_column(out, "reward", &x->reward, 1);
        add_column(out, "mean", are_single ? &t->trace.mean[at] : NULL, 1);
        add_column(out, "std", are_single ? &t->trace.std[at] : NULL, 1);
        add_column(out, "normalised", are_single ? &t->trace.normalised[at] : NULL, 1);
        cr_buf_addc(out, '}');
    }
    cr_buf_addc(out, ']');
    add_column(out, "reward", &s->reward, 1);
    add_column(out, "mean", are_single ? NULL : &t->trace.mean[i], 1);
    add_column(out, "std", are_single ? NULL : &t->trace.std[i], 1);
    add_column(out, "normalised", are_single ? NULL : &t->trace.normalised[i], 1);
    add_column(out, "used", &t->b->batch.of[CR_COLUMN_REWARDS][first + i], 1);
}

void cri_terms_take_trace(cri_terms *t, size_t first, size_t end)
{
    const size_t *start = t->b->batch.start, base = start[first];

    for (size_t i = first; i < end; i++) {
        cr_buf *out = &t->samples[i].advantage;
        bool is_next = false;
        add_rewards(t, first, end - first, i - first, out);
        cr_buf_adds(out, ",\"steps\":{");
        for (int s = 0; s < CR_NUM_ADVANTAGE_STEPS; s++) {
            if (!t->trace.has[s]) continue;
            cr_buf_addf(out, "%s\"%s\":", is_next ? "," : "", cr_advantage_step_names[s]);
            add_numbers(out, t->trace.after[s] + start[i] - base, start[i + 1] - start[i]);
            is_next = true;
        }
        cr_buf_addc(out, '}');
    }
}

/* ---- losses ---- */

/* Columns of a sample as a rank gets them: floats. */
typedef struct columns {
    double *memory, *at; /* memory is owned */
    const cr_sample_batch *batch;
    size_t sample, num;
} columns;

static columns columns_of(const cri_terms *t, size_t sample)
{
    const cr_sample_batch *b = &t->b->batch;
    const size_t num = b->start[sample + 1] - b->start[sample];
    double *memory = CR_NEW_ARRAY(double, (CR_NUM_COLUMNS + 12) * (num + 1));

    return (columns){memory, memory, b, sample, num};
}

static double *room(columns *c)
{
    double *out = c->at;

    c->at += c->num + 1;
    return out;
}

static const double *take(columns *c, cr_batch_column column)
{
    const bool is_per_sample = cr_batch_columns[column].is_per_sample;
    const double *from = c->batch->of[column];
    double *out;

    if (!from) return NULL;
    from += is_per_sample ? c->sample : c->batch->start[c->sample];
    out = room(c);
    for (size_t k = 0; k < (is_per_sample ? 1 : c->num); k++)
        out[k] = (float)from[k];
    return out;
}

static void add_up(struct of_sample *s, sum which, const double *x, size_t num)
{
    for (size_t k = 0; k < num; k++)
        s->sums[which] += x[k];
}

static void add_policy_numbers(cr_buf *out, const cr_loss_args *a, size_t num)
{
    static const cr_batch_column shown[] = {CR_COLUMN_LOG_PROBS, CR_COLUMN_OLD, CR_COLUMN_ENTROPY,
                                            CR_COLUMN_IS_WEIGHT};
    const cr_loss_terms *x = a->terms;

    for (size_t k = 0; k < CR_COUNT(shown); k++)
        add_column(out, cr_batch_columns[shown[k]].name, a->of[shown[k]], num);
    add_column(out, "sample_weight", a->of[CR_COLUMN_WEIGHTS], 1);
    add_column(out, "ratio", a->ratio, num);
    add_column(out, "cut", x->cut, num);
    add_column(out, "weight", x->weight, num);
    add_column(out, "pg", x->pg, num);
    add_column(out, "kl", x->kl, num);
    add_column(out, "entropy_term", x->entropy, num);
    add_column(out, "grad_log_probs", a->grad_log_probs, num);
    add_column(out, "grad_kl", x->grad_kl, num);
    add_column(out, "grad_entropy", a->grad_entropy, num);
}

static void add_policy(cri_terms *t, size_t i, const cr_denominators *all, cr_buf *out)
{
    static const cr_batch_column read[] = {
        CR_COLUMN_LOG_PROBS,    CR_COLUMN_ENTROPY,   CR_COLUMN_INFER,      CR_COLUMN_REF,
        CR_COLUMN_MASK,         CR_COLUMN_FINAL,     CR_COLUMN_ADVANTAGES, CR_COLUMN_SCORES,
        CR_COLUMN_ENTROPY_MASK, CR_COLUMN_IS_WEIGHT, CR_COLUMN_WEIGHTS};
    struct of_sample *s = &t->samples[i];
    columns c = columns_of(t, i);
    const size_t start[] = {0, c.num};
    const cr_loss_terms terms = {room(&c), room(&c), room(&c), room(&c), room(&c), room(&c)};
    cr_loss_args args = {.rows = {1, start},
                         .all = *all,
                         .grad_log_probs = room(&c),
                         .grad_entropy = room(&c),
                         .ratio = room(&c),
                         .terms = &terms};

    for (size_t k = 0; k < CR_COUNT(read); k++)
        args.of[read[k]] = take(&c, read[k]);
    args.of[CR_COLUMN_OLD] = take(&c, CR_COLUMN_USED_OLD);
    cr_policy_loss(&t->l->config->algorithm.loss, &args);
    add_policy_numbers(out, &args, c.num);
    add_up(s, SUM_PG, terms.pg, c.num);
    add_up(s, SUM_KL, terms.kl, c.num);
    add_up(s, SUM_ENTROPY, terms.entropy, c.num);
    s->sums[SUM_TOTAL] = s->sums[SUM_PG] + s->sums[SUM_KL] + s->sums[SUM_ENTROPY];
    for (size_t k = 0; k < c.num; k++)
        s->sums[SUM_GRADIENT] += fabs(args.grad_log_probs[k]);
    cr_free(c.memory);
}

static void add_values(cri_terms *t, size_t i, const cr_denominators *all, cr_buf *out)
{
    columns c = columns_of(t, i);
    const size_t start[] = {0, c.num};
    cr_value_args args = {.rows = {1, start},
                          .values = take(&c, CR_COLUMN_PASS_VALUES),
                          .returns = take(&c, CR_COLUMN_RETURNS),
                          .mask = take(&c, CR_COLUMN_FINAL),
                          .old_values = take(&c, CR_COLUMN_VALUES),
                          .value_clip = t->l->config->algorithm.value_clip,
                          .num_samples = all->final_samples,
                          .grad_values = room(&c),
                          .terms = room(&c)};

    cr_value_loss(&args);
    add_column(out, "values", args.values, c.num);
    add_column(out, "old_values", args.old_values, c.num);
    add_column(out, "returns", args.returns, c.num);
    add_column(out, "loss", args.terms, c.num);
    add_column(out, "grad_values", args.grad_values, c.num);
    add_up(&t->samples[i], SUM_CRITIC, args.terms, c.num);
    cr_free(c.memory);
}

void cri_terms_add(cri_terms *t, const cri_terms_epoch *e)
{
    const bool is_critic = e->is_critic;

    for (size_t i = 0; i < t->b->batch.num; i++) {
        const cr_denominators all = cr_mini_denominators(e->counts + CR_MINI_COUNTS * e->mini[i]);
        cr_buf *out = is_critic ? &t->samples[i].critic : &t->samples[i].updates;
        cr_buf_addf(out, "%s{\"update\":%lld", out->num_bytes ? "," : "",
                    (long long)(e->epoch * e->num_minis + e->mini[i]));
        is_critic ? add_values(t, i, &all, out) : add_policy(t, i, &all, out);
        cr_buf_addc(out, '}');
    }
    t->num_updates[is_critic] += e->num_minis;
}

/* ---- the file ---- */

/* Sums as they are in the metrics: means over the updates. */
static double mean_of(const cri_terms *t, sum which, double x)
{
    const int64_t num = t->num_updates[which == SUM_CRITIC];

    return num ? x / (double)num : 0;
}

static void add_sums(const cri_terms *t, const double sums[NUM_SUMS], cr_buf *out)
{
    cr_buf_adds(out, "{\"updates\":");
    cr_json_add_int(out, t->num_updates[0]);
    for (int k = 0; k < NUM_SUMS; k++) {
        double x = mean_of(t, (sum)k, sums[k]);
        if (k != SUM_CRITIC || t->l->critic.worker) add_column(out, sum_names[k], &x, 1);
    }
    cr_buf_addc(out, '}');
}

static void add_sample(const cri_terms *t, size_t i, cr_buf *out)
{
    static const cr_batch_column shown[] = {
        CR_COLUMN_INFER,   CR_COLUMN_REF,       CR_COLUMN_TEACHER, CR_COLUMN_KL,
        CR_COLUMN_OPD_KL,  CR_COLUMN_MASK,      CR_COLUMN_FINAL,   CR_COLUMN_VALUES,
        CR_COLUMN_RETURNS, CR_COLUMN_ADVANTAGES};
    const cri_learn_batch *b = t->b;
    const cr_sample *s = &b->r->samples[i];
    const struct of_sample *x = &t->samples[i];
    const bool has_critic = t->l->critic.worker;

    cr_buf_addf(out, "{\"id\":\"%016llx\",\"group\":%zu", (unsigned long long)s->id, s->group);
    add_text(out, "domain", t->l->config->rewards[s->domain].domain);
    add_text(out, "status", cr_outcome_name(s->outcome));
    cr_buf_adds(out, ",\"response\":");
    cr_json_add_string(out, s->response, s->response_bytes);
    cr_buf_adds(out, ",\"sums\":");
    add_sums(t, x->sums, out);
    cr_buf_addf(out, ",\"advantage\":{%s},\"tokens\":{\"ids\":", x->advantage.data);
    cr_json_add_ids(out, s->ids, s->num_ids);
    for (size_t k = 0; k < CR_COUNT(shown); k++) {
        const double *column = b->batch.of[shown[k]];
        if ((shown[k] == CR_COLUMN_TEACHER && !t->l->config->teacher.is_needed) ||
            (shown[k] == CR_COLUMN_KL && !b->batch.of[CR_COLUMN_REF]) ||
            (shown[k] == CR_COLUMN_OPD_KL && t->l->config->algorithm.advantage.opd == CR_OPD_NONE))
            continue;
        add_column(out, cr_batch_columns[shown[k]].name, column ? column + b->batch.start[i] : NULL,
                   s->num_ids);
    }
    cr_buf_addf(out, "},\"updates\":[%s]", x->updates.data ? x->updates.data : "");
    if (has_critic) cr_buf_addf(out, ",\"critic\":[%s]", x->critic.data ? x->critic.data : "");
    cr_buf_adds(out, "}\n");
}

/* The terms are what the metric says, but for the order of sums. */
static cr_status check_sum(const cri_terms *t, sum which, const char *name, double size,
                           const double total[NUM_SUMS], const cr_metrics *m, cr_err *err)
{
    const double *metric = cr_metrics_get(m, name), is = mean_of(t, which, total[which]);

    if (!metric || fabs(*metric - is) <= 1e-11 * mean_of(t, which, size)) return CR_OK;
    return cr_fail(
        err, CR_ENUMERIC,
        "%s is %.17g, and the terms of its samples add up to %.17g: a term is in it that "
        "croll why does not know (of no sample is the balance loss of experts' routers, "
        "moe_aux_loss_coef)",
        name, *metric, is);
}

/* Which samples: the digest of the file in the run that they are of. */
static cr_status add_origin(const cri_terms *t, int64_t step, cr_buf *out, cr_err *err)
{
    char *path, hex[CR_DIGEST_TEXT];

    if (!t->l->config->rollouts_from) return CR_OK;
    path = cr_recorded_path(t->l->config->rollouts_from, step);
    if (cr_digest_file(path, hex, NULL, err) == CR_OK) add_text(out, "samples_sha256", hex);
    cr_free(path);
    return err->status;
}

char *cri_terms_path(const char *folder, int64_t step)
{
    return cr_asprintf("%s/terms/step-%06lld.jsonl", folder, (long long)step);
}

cr_status cri_terms_write(const cri_terms *t, const char *folder, int64_t step, const cr_metrics *m,
                          cr_err *err)
{
    static const char *const losses[] = {"actor/total_loss", "critic/loss"};
    char *parent = cr_path_join(folder, "terms"), *path = cri_terms_path(folder, step);
    double total[NUM_SUMS] = {0}, size[NUM_SUMS] = {0};
    cr_buf out = {0};

    for (size_t i = 0; i < t->b->batch.num; i++)
        for (int k = 0; k < NUM_SUMS; k++) {
            total[k] += t->samples[i].sums[k];
            size[k] += fabs(t->samples[i].sums[k]);
        }
    size[SUM_TOTAL] = size[SUM_PG] + size[SUM_KL] + size[SUM_ENTROPY];
    cr_buf_addf(&out, "{\"step\":%lld,\"samples\":%zu", (long long)step, t->b->batch.num);
    cr_note(add_origin(t, step, &out, err));
    cr_buf_adds(&out, ",\"sums\":");
    add_sums(t, total, &out);
    for (size_t k = 0; k < CR_COUNT(losses); k++)
        add_column(&out, losses[k], cr_metrics_get(m, losses[k]), 1);
    cr_buf_adds(&out, "}\n");
    for (size_t i = 0; i < t->b->batch.num; i++)
        add_sample(t, i, &out);
    if (err->status == CR_OK)
        cr_note(check_sum(t, SUM_TOTAL, losses[0], size[SUM_TOTAL], total, m, err));
    if (err->status == CR_OK)
        cr_note(check_sum(t, SUM_CRITIC, losses[1], size[SUM_CRITIC], total, m, err));
    if (err->status == CR_OK) cr_note(cr_mkdirs(parent, err));
    if (err->status == CR_OK) cr_note(cr_file_write_atomic(path, out.data, out.num_bytes, err));
    cr_buf_free(&out);
    cr_free(parent);
    cr_free(path);
    return err->status;
}
