/* formula_loss.c -- train/infer correction, policy loss and value loss of `croll formula`. */
#include "formula/formula_impl.h"

#include <stdio.h>

/* ---- correction ---- */

static cr_status read_filter(cri_formula_request *r, const json_t *object, const char *where,
                             struct cr_correction_filter *f, cr_err *err)
{
    int grain = CR_GRAIN_TOKEN;
    const cri_formula_field fields[] = {
        {"enabled", CRI_F_FLAG, 0, &f->is_enabled, NULL},
        {"agg_type", CRI_F_CHOICE, 0, &grain, cr_grain_names},
        {"ratio_enabled", CRI_F_FLAG, 0, &f->is_ratio, NULL},
        {"ratio_low", CRI_F_NUMBER, 0, &f->ratio_low, NULL},
        {"ratio_high", CRI_F_NUMBER, 0, &f->ratio_high, NULL},
        {"diff_enabled", CRI_F_FLAG, 0, &f->is_diff, NULL},
        {"diff_low", CRI_F_NUMBER, 0, &f->diff_low, NULL},
        {"diff_high", CRI_F_NUMBER, 0, &f->diff_high, NULL},
    };

    *f = (struct cr_correction_filter){
        .is_ratio = true, .ratio_low = 0.8, .ratio_high = 1.2, .diff_low = -0.2, .diff_high = 0.2};
    CR_TRY(CRI_READ(r, object, where, fields, err));
    f->agg_type = (cr_grain)grain;
    return CR_OK;
}

/* where: "config." or "config.train_infer_correction.". */
static cr_status read_correction(cri_formula_request *r, const json_t *object, const char *where,
                                 cr_correction_config *c, cr_err *err)
{
    const json_t *weight = NULL, *filters = NULL, *filter;
    int grain = CR_GRAIN_TOKEN;
    bool is_detached = true; /* of log-probs that have no gradient here: no choice */
    char inner[80];
    size_t i;
    const cri_formula_field fields[] = {
        {"is_weight", CRI_F_VALUE, 0, &weight, NULL},
        {"filters", CRI_F_VALUE, 0, &filters, NULL},
    };
    const cri_formula_field settings[] = {
        {"enabled", CRI_F_FLAG, 0, &c->has_weight, NULL},
        {"weight_type", CRI_F_CHOICE, 0, &grain, cr_grain_names},
        {"upper_bound", CRI_F_NUMBER, CRI_F_NULLABLE | CRI_F_POSITIVE, &c->upper_bound, NULL},
        {"detach", CRI_F_FLAG, 0, &is_detached, NULL},
    };

    *c = (cr_correction_config){.upper_bound = 1.2};
    CR_TRY(CRI_READ(r, object, where, fields, err));
    snprintf(inner, sizeof inner, "%sis_weight.", where);
    CR_TRY(CRI_READ(r, weight, inner, settings, err));
    c->weight_type = (cr_grain)grain;
    if (!is_detached)
        return cr_fail(err, CR_EARG,
                       "%sdetach is false: a gradient through the weights is not available", inner);
    if (filters && !json_is_array(filters))
        return cr_fail(err, CR_EARG, "%sfilters must be a list of objects", where);
    if (json_array_size(filters) > CR_COUNT(c->filters))
        return cr_fail(err, CR_EARG, "%sfilters has %zu filters, at most %zu are possible", where,
                       json_array_size(filters), CR_COUNT(c->filters));
    json_array_foreach(filters, i, filter)
    {
        snprintf(inner, sizeof inner, "%sfilters[%zu].", where, i);
        CR_TRY(read_filter(r, filter, inner, &c->filters[i], err));
    }
    c->num_filters = json_array_size(filters);
    return CR_OK;
}

cr_status cri_formula_correction(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    const double *old = NULL, *infer = NULL, *mask = NULL;
    const json_t *config = NULL;
    double *ratio[CR_NUM_GRAINS], *diff[CR_NUM_GRAINS], *weight, *keep;
    cr_correction_config c;
    const cri_formula_field fields[] = {
        {"old_log_probs", CRI_F_ROWS, CRI_F_REQUIRED, &old, NULL},
        {"infer_log_probs", CRI_F_ROWS, CRI_F_REQUIRED, &infer, NULL},
        {"mask", CRI_F_MASK, CRI_F_REQUIRED, &mask, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    CR_TRY(read_correction(r, config, "config.", &c, a->err));
    for (size_t g = 0; g < CR_NUM_GRAINS; g++) {
        ratio[g] = cri_tokens(r);
        diff[g] = cri_tokens(r);
    }
    weight = cri_tokens(r);
    keep = cri_tokens(r);
    cr_correction(&c, &r->rows, old, infer, mask, ratio, diff, weight, keep);
    cri_put_rows(a, "is_weight", &r->rows, weight);
    cri_put_rows(a, "filter_mask", &r->rows, keep);
    for (size_t g = 0; g < CR_NUM_GRAINS; g++) {
        char key[32];
        snprintf(key, sizeof key, "ratio_%s", cr_grain_names[g]);
        cri_put_rows(a, key, &r->rows, ratio[g]);
        snprintf(key, sizeof key, "diff_%s", cr_grain_names[g]);
        cri_put_rows(a, key, &r->rows, diff[g]);
    }
    return a->err->status;
}

/* ---- policy loss ---- */

static const char *const ratios[] = {"token", "seq", NULL};

typedef struct loss_request {
    cr_loss_config config;
    bool has_correction;
    cr_correction_config correction;
    cr_loss_args args;
    double tokens, samples; /* of the whole mini-batch; -1: from the masks */
} loss_request;

static cr_status read_loss_config(cri_formula_request *r, const json_t *config, loss_request *q,
                                  cr_err *err)
{
    cr_loss_config *c = &q->config;
    int pg_variant = CR_PG_PPO, sampling = 0, mode = CR_AGG_SEQ_MEAN_TOKEN_MEAN;
    const json_t *correction = NULL;
    const cri_formula_field fields[] = {
        {"pg_variant", CRI_F_CHOICE, 0, &pg_variant, cr_variant_names},
        {"importance_sampling", CRI_F_CHOICE, 0, &sampling, ratios},
        {"loss_agg_mode", CRI_F_CHOICE, 0, &mode, cr_agg_names},
        {"pg_clip", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->pg_clip, NULL},
        {"use_pg_clip_range", CRI_F_FLAG, 0, &c->use_pg_clip_range, NULL},
        {"pg_clip_low", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->pg_clip_low, NULL},
        {"pg_clip_high", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->pg_clip_high, NULL},
        {"dual_clip_loss", CRI_F_FLAG, 0, &c->dual_clip_loss, NULL},
        {"use_kl_loss", CRI_F_FLAG, 0, &c->use_kl_loss, NULL},
        {"kl_loss_coef", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->kl_loss_coef, NULL},
        {"rl_loss_coef", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->rl_loss_coef, NULL},
        {"entropy_loss_coef", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->entropy_loss_coef, NULL},
        {"topr_positive_weight", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->topr_positive_weight, NULL},
        {"topr_negative_weight", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->topr_negative_weight, NULL},
        {"tis_lower_bound", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->tis_lower_bound, NULL},
        {"tis_upper_bound", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->tis_upper_bound, NULL},
        {"cispo_epsilon_low", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->cispo_epsilon_low, NULL},
        {"cispo_epsilon_high", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->cispo_epsilon_high, NULL},
        {"cispo_use_unified_mask", CRI_F_FLAG, 0, &c->cispo_use_unified_mask, NULL},
        {"kimi15_tau", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->kimi15_tau, NULL},
        {"dppo_mask_low", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->dppo_mask_low, NULL},
        {"dppo_mask_high", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->dppo_mask_high, NULL},
        {"dppo_clip_ratio_c", CRI_F_NUMBER, CRI_F_POSITIVE, &c->dppo_clip_ratio_c, NULL},
        {"sapo_temperature_pos", CRI_F_NUMBER, CRI_F_POSITIVE, &c->sapo_temperature_pos, NULL},
        {"sapo_temperature_neg", CRI_F_NUMBER, CRI_F_POSITIVE, &c->sapo_temperature_neg, NULL},
        {"train_infer_correction", CRI_F_VALUE, 0, &correction, NULL},
    };

    CR_TRY(CRI_READ(r, config, "config.", fields, err));
    c->pg_variant = (cr_variant)pg_variant;
    c->is_sequence_ratio = sampling == 1;
    c->loss_agg_mode = (cr_agg)mode;
    if (c->tis_lower_bound > c->tis_upper_bound)
        return cr_fail(err, CR_EARG,
                       "config.tis_lower_bound is %.9g, above config.tis_upper_bound %.9g",
                       c->tis_lower_bound, c->tis_upper_bound);
    q->has_correction = correction != NULL;
    return correction ? read_correction(r, correction, "config.train_infer_correction.",
                                        &q->correction, err)
                      : CR_OK;
}

/* What the settings need beyond the arrays of every loss. */
static cr_status check_needs(const loss_request *q, cr_err *err)
{
    const cr_loss_args *a = &q->args;
    const struct {
        bool is_needed;
        const double *array;
        const char *key, *why;
    } needs[] = {
        {q->config.use_kl_loss, a->of[CR_COLUMN_REF], "ref_log_probs", "config.use_kl_loss"},
        {q->config.entropy_loss_coef > 0, a->of[CR_COLUMN_ENTROPY], "entropy",
         "config.entropy_loss_coef"},
        {q->config.pg_variant == CR_PG_TOPR, a->of[CR_COLUMN_SCORES], "scores",
         "config.pg_variant topr"},
        {q->correction.has_weight || q->correction.num_filters, a->of[CR_COLUMN_INFER],
         "infer_log_probs", "config.train_infer_correction"},
    };

    for (size_t i = 0; i < CR_COUNT(needs); i++)
        if (needs[i].is_needed && !needs[i].array)
            return cr_fail(err, CR_EARG, "%s is missing: %s needs it", needs[i].key, needs[i].why);
    return CR_OK;
}

static cr_status read_loss(cri_formula_request *r, const json_t *body, loss_request *q, cr_err *err)
{
    cr_loss_args *a = &q->args;
    const json_t *config = NULL;
    const cri_formula_field fields[] = {
        {"log_probs", CRI_F_ROWS, CRI_F_REQUIRED, &a->of[CR_COLUMN_LOG_PROBS], NULL},
        {"old_log_probs", CRI_F_ROWS, CRI_F_REQUIRED, &a->of[CR_COLUMN_OLD], NULL},
        {"ref_log_probs", CRI_F_ROWS, 0, &a->of[CR_COLUMN_REF], NULL},
        {"infer_log_probs", CRI_F_ROWS, 0, &a->of[CR_COLUMN_INFER], NULL},
        {"entropy", CRI_F_ROWS, 0, &a->of[CR_COLUMN_ENTROPY], NULL},
        {"advantages", CRI_F_ROWS, CRI_F_REQUIRED, &a->of[CR_COLUMN_ADVANTAGES], NULL},
        {"mask", CRI_F_MASK, CRI_F_REQUIRED, &a->of[CR_COLUMN_MASK], NULL},
        {"final_mask", CRI_F_MASK, CRI_F_REQUIRED, &a->of[CR_COLUMN_FINAL], NULL},
        {"scores", CRI_F_SAMPLES, 0, &a->of[CR_COLUMN_SCORES], NULL},
        {"weights", CRI_F_SAMPLES, 0, &a->of[CR_COLUMN_WEIGHTS], NULL},
        {"batch_num_tokens", CRI_F_COUNT, 0, &q->tokens, NULL},
        {"global_valid_samples", CRI_F_COUNT, 0, &q->samples, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, err));
    CR_TRY(read_loss_config(r, config, q, err));
    CR_TRY(check_needs(q, err));
    a->rows = r->rows;
    return CR_OK;
}

/* Weights of tokens, and both masks without what the filters drop. */
static void correct(cri_formula_request *r, loss_request *q)
{
    cr_loss_args *a = &q->args;
    double *weight = cri_tokens(r), *keep = cri_tokens(r), *mask = cri_tokens(r),
           *final = cri_tokens(r);

    cr_correction(&q->correction, &r->rows, a->of[CR_COLUMN_OLD], a->of[CR_COLUMN_INFER],
                  a->of[CR_COLUMN_MASK], NULL, NULL, weight, keep);
    for (size_t t = 0; t < cri_num_tokens(r); t++) {
        mask[t] = a->of[CR_COLUMN_MASK][t] * keep[t];
        final[t] = a->of[CR_COLUMN_FINAL][t] * keep[t];
    }
    a->of[CR_COLUMN_ENTROPY_MASK] = a->of[CR_COLUMN_MASK];
    a->of[CR_COLUMN_MASK] = mask;
    a->of[CR_COLUMN_FINAL] = final;
    a->of[CR_COLUMN_IS_WEIGHT] = weight;
}

static void count_all(loss_request *q)
{
    cr_loss_args *a = &q->args;
    cr_denominators *all = &a->all;

    cr_count_masks(&a->rows, a->of[CR_COLUMN_FINAL], &all->final_tokens, &all->final_samples);
    cr_count_masks(&a->rows, a->of[CR_COLUMN_MASK], &all->tokens, &all->samples);
    if (a->of[CR_COLUMN_ENTROPY_MASK])
        cr_count_masks(&a->rows, a->of[CR_COLUMN_ENTROPY_MASK], &all->entropy_tokens,
                       &all->entropy_samples);
    if (q->tokens >= 0) all->final_tokens = all->tokens = all->entropy_tokens = q->tokens;
    if (q->samples >= 0) all->final_samples = all->samples = all->entropy_samples = q->samples;
    for (size_t i = 0; i < a->rows.num_samples; i++) {
        double width = (double)(a->rows.start[i + 1] - a->rows.start[i]);
        if (width > all->width) all->width = width;
    }
}

static void put_loss(cri_formula_request *r, const loss_request *q, cri_formula_answer *a)
{
    const cr_loss_metrics *m = &q->args.metrics;

    cri_put_number(a, "total_loss", m->total_loss);
    cri_put_number(a, "pg_loss", m->pg_loss);
    if (q->args.of[CR_COLUMN_REF]) cri_put_number(a, "kl_loss", m->kl_loss);
    if (q->args.of[CR_COLUMN_ENTROPY]) cri_put_number(a, "entropy_loss", m->entropy_loss);
    cri_put_rows(a, "grad_log_probs", &r->rows, q->args.grad_log_probs);
    if (q->args.of[CR_COLUMN_ENTROPY])
        cri_put_rows(a, "grad_entropy", &r->rows, q->args.grad_entropy);
    cri_put_rows(a, "ratio", &r->rows, q->args.ratio);
    cri_open(a, "metrics");
    cri_put_number(a, "actor/weighted_pg_loss", m->weighted_pg_loss);
    cri_put_number(a, "actor/approxkl", m->approxkl);
    cri_put_number(a, "actor/policykl", m->policykl);
    if (m->num_tokens > 0) {
        cri_put_number(a, "actor/ratio_mean", m->ratio_sum / m->num_tokens);
        cri_put_number(a, "actor/ratio_max", m->ratio_max);
        cri_put_number(a, "actor/ratio_min", m->ratio_min);
    }
    cri_put_number(a, "actor/clipfrac", m->clip_low + m->clip_high);
    cri_put_number(a, "actor/ppo_ratio_low_clipfrac", m->clip_low);
    cri_put_number(a, "actor/ppo_ratio_high_clipfrac", m->clip_high);
    if (q->args.of[CR_COLUMN_INFER])
        cri_put_number(a, "actor/train_infer_diff_max", m->infer_diff_max);
    cri_close(a);
}

cr_status cri_formula_loss(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    loss_request q = {.config = {.pg_clip = 0.2,
                                 .pg_clip_low = 0.2,
                                 .pg_clip_high = 0.2,
                                 .rl_loss_coef = 1,
                                 .topr_positive_weight = 1,
                                 .topr_negative_weight = 1,
                                 .tis_upper_bound = 1,
                                 .cispo_epsilon_low = 0.1,
                                 .cispo_epsilon_high = 0.1,
                                 .kimi15_tau = 0.1,
                                 .dppo_mask_low = 0.2,
                                 .dppo_mask_high = 0.2,
                                 .dppo_clip_ratio_c = 20,
                                 .sapo_temperature_pos = 1,
                                 .sapo_temperature_neg = 1.05},
                      .tokens = -1,
                      .samples = -1};

    CR_TRY(read_loss(r, body, &q, a->err));
    if (q.has_correction && q.args.of[CR_COLUMN_INFER]) correct(r, &q);
    count_all(&q);
    q.args.grad_log_probs = cri_tokens(r);
    q.args.grad_entropy = cri_tokens(r);
    q.args.ratio = cri_tokens(r);
    cr_policy_loss(&q.config, &q.args);
    put_loss(r, &q, a);
    return a->err->status;
}

/* ---- value loss ---- */

cr_status cri_formula_value_loss(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    cr_value_args args = {0};
    const json_t *config = NULL;
    const cri_formula_field fields[] = {
        {"values", CRI_F_ROWS, CRI_F_REQUIRED, &args.values, NULL},
        {"old_values", CRI_F_ROWS, 0, &args.old_values, NULL},
        {"returns", CRI_F_ROWS, CRI_F_REQUIRED, &args.returns, NULL},
        {"mask", CRI_F_MASK, CRI_F_REQUIRED, &args.mask, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };
    const cri_formula_field settings[] = {
        {"value_clip", CRI_F_NUMBER, CRI_F_NULLABLE | CRI_F_POSITIVE, &args.value_clip, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    CR_TRY(CRI_READ(r, config, "config.", settings, a->err));
    if (args.value_clip > 0 && !args.old_values)
        return cr_fail(a->err, CR_EARG, "old_values is missing: config.value_clip needs it");
    args.rows = r->rows;
    args.num_samples = (double)r->rows.num_samples;
    args.grad_values = cri_tokens(r);
    cr_value_loss(&args);
    cri_put_number(a, "vf_loss", args.metrics.loss);
    cri_put_rows(a, "grad_values", &r->rows, args.grad_values);
    cri_put_number(a, "vf_clipfrac", args.metrics.clipfrac);
    return a->err->status;
}
