/* advantages.c -- masks, rewards and advantages of one domain (see assemble_impl.h). */
#include "pipelines/assemble_impl.h"
#include "pipelines/why/terms.h"
#include "reports/metrics.h"
#include "samples/messages.h"

#include <string.h>

/* Of a sample; owned. */
static float *floats_of(const cri_learn_batch *b, cr_batch_column column, size_t i)
{
    size_t first = b->batch.start[i], num = b->batch.start[i + 1] - first;
    float *out = CR_NEW_ARRAY(float, num);

    for (size_t t = 0; t < num; t++)
        out[t] = (float)b->batch.of[column][first + t];
    return out;
}

/* What lines of rollouts/ have; returns only beside the values that they train. */
static void keep_columns(cri_learn_batch *b, size_t first, size_t end)
{
    const size_t at = offsetof(cr_sample_line, of);

    for (size_t k = 0; k < cr_sample_lines.num_fields; k++) {
        const cr_field *f = &cr_sample_lines.fields[k];
        const cr_batch_column c = (cr_batch_column)((f->at - at) / sizeof(cr_field_array));
        if (f->at < at || !b->batch.of[c]) continue;
        if (c == CR_COLUMN_RETURNS && !b->batch.of[CR_COLUMN_VALUES]) continue;
        for (size_t i = first; i < end; i++)
            b->r->samples[i].of[c] = floats_of(b, c, i);
    }
}

/* Rewards of single tokens, for cr_advantage; NULL: no sample of these has any. Owned. */
static double *token_scores(const cri_learn_batch *b, size_t first, size_t end)
{
    double *out = NULL;

    for (size_t i = first; i < end; i++) {
        const cr_sample *s = &b->r->samples[i];
        if (!s->token_rewards) continue;
        if (!out) out = CR_NEW_ARRAY(double, b->batch.start[end] - b->batch.start[first]);
        for (size_t t = 0; t < s->num_ids; t++)
            out[b->batch.start[i] - b->batch.start[first] + t] = s->token_rewards[t];
    }
    return out;
}

/* The rewards of each block by itself, in *memory (owned). */
static cr_reward_kinds kinds_of(const cr_config *c, const cri_learn_batch *b, size_t first,
                                size_t n, double **memory)
{
    size_t num = c->num_rewards;
    double *values = CR_NEW_ARRAY(double, num *(2 * n + 1)), *has = values + num * n,
           *weights = has + num * n;

    *memory = values;
    for (size_t k = 0; k < num; k++)
        weights[k] = c->rewards[k].weight;
    for (size_t i = 0; i < n; i++) {
        const cr_sample *s = &b->r->samples[first + i];
        for (size_t k = 0; k < s->num_rewards; k++) {
            const cr_sample_reward *x = &s->rewards[k];
            values[(size_t)x->block * n + i] = x->reward;
            has[(size_t)x->block * n + i] = x->outcome == CR_OUTCOME_OK;
        }
    }
    return (cr_reward_kinds){num, values, has, weights};
}

/* ---- teachers ---- */

bool cri_has_teacher(const cr_config *c, int k)
{
    const cr_worker_config *w = k ? &c->more_teachers[k - 1] : &c->teacher;

    return w->is_given && w->is_needed;
}

bool cri_is_one_teacher(const cr_config *c)
{
    return !cri_has_teacher(c, 1) && !cri_has_teacher(c, 2) && !cri_has_teacher(c, 3) &&
           !c->teachers[0].num_tags;
}

static bool has_tag(char *const *tags, size_t num, const char *tag)
{
    for (size_t i = 0; i < num; i++)
        if (strcmp(tags[i], tag) == 0) return true;
    return false;
}

bool cr_teacher_answers(const cr_config *c, int k, const cr_row *row)
{
    const cr_teacher_keys *t = &c->teachers[k];
    const char *column = c->train.data.tag ? c->train.data.tag : "tag",
               *tag = json_string_value(json_object_get(row->json, column));
    const cr_reward_config *domain = &c->rewards[row->domain];

    if (!cri_has_teacher(c, k)) return false;
    if (t->num_tags == 0) return true;
    if (tag) return has_tag(t->tags, t->num_tags, tag);
    for (size_t i = 0; i < domain->num_tags; i++)
        if (has_tag(t->tags, t->num_tags, domain->tags[i])) return true;
    return false;
}

/* Of samples first .. first + n - 1; coefs [CR_MAX_TEACHERS][n]. */
static size_t teachers_of(const cr_config *c, const cri_learn_batch *b, size_t first, size_t n,
                          double *coefs, cr_teacher_args *out)
{
    size_t num = 0;

    for (int k = 0; k < CR_MAX_TEACHERS; k++) {
        double *coef = coefs + (size_t)k * n;
        if (!cri_has_teacher(c, k)) continue;
        for (size_t i = 0; i < n; i++)
            coef[i] = cr_teacher_answers(c, k, &b->data->rows[b->r->samples[first + i].row])
                          ? c->teachers[k].opd_kl_coef
                          : -1;
        out[num++] =
            (cr_teacher_args){b->batch.of[CR_COLUMN_TEACHER + k] + b->batch.start[first], coef};
    }
    return num;
}

cr_status cri_domain_advantages(cr_learning *l, cri_learn_batch *b, size_t first, size_t end,
                                int domain, cr_metrics *m, cr_err *err)
{
    const cr_algorithm *alg = &l->config->algorithm;
    cr_advantage_config config = alg->advantage;
    size_t n = end - first, base = b->batch.start[first], *start = CR_NEW_ARRAY(size_t, n + 1);
    double *scores = CR_NEW_ARRAY(double, 5 * n), *lengths = scores + n, *keep = scores + 2 * n,
           *raw = scores + 3 * n, *verdict = scores + 4 * n, kept = 0, judged = 0,
           *tokens = token_scores(b, first, end);
    double *memory, *coefs = CR_NEW_ARRAY(double, CR_MAX_TEACHERS *n), *const *of = b->batch.of;
    cr_teacher_args teachers[CR_MAX_TEACHERS];
    const cr_reward_kinds kinds = kinds_of(l->config, b, first, n, &memory);
    const char *name = l->config->rewards[domain].domain;
    const bool has_teacher = config.opd != CR_OPD_NONE;
    const bool are_scores_used =
        config.opd != CR_OPD_PURE || alg->masks.difficulty_mask || alg->masks.error_max_len_clip;

    config.kl_coef = l->kl_coef;
    for (size_t i = 0; i < n; i++) {
        scores[i] = b->r->samples[first + i].score;
        raw[i] = b->r->samples[first + i].reward;
        lengths[i] = (double)b->r->samples[first + i].num_ids;
        verdict[i] = cr_sample_has_verdict(&b->r->samples[first + i]);
        judged += verdict[i];
        start[i] = b->batch.start[first + i] - base;
    }
    start[n] = b->batch.start[end] - base;
    cr_sample_mask(&alg->masks, n, b->r->group_size, lengths,
                   (double)(l->config->sequence_length - l->config->prompt_length), scores,
                   are_scores_used ? verdict : NULL, keep);
    for (size_t i = 0; i < n; i++) {
        kept += keep[i];
        for (size_t t = b->batch.start[first + i]; t < b->batch.start[first + i + 1]; t++)
            of[CR_COLUMN_FINAL][t] = of[CR_COLUMN_MASK][t] * keep[i];
    }
    cr_advantage_args args = {
        .rows = {n, start},
        .group = b->r->group_size,
        .scores = raw,
        .kinds = &kinds,
        .verdict = are_scores_used ? verdict : NULL,
        .token_scores = tokens,
        .old_log_probs = of[CR_COLUMN_REF] || has_teacher ? of[CR_COLUMN_OLD] + base : NULL,
        .ref_log_probs = of[CR_COLUMN_REF] ? of[CR_COLUMN_REF] + base : NULL,
        .teacher_log_probs = has_teacher ? of[CR_COLUMN_TEACHER] + base : NULL,
        .teachers = teachers,
        .num_teachers = has_teacher && !cri_is_one_teacher(l->config)
                            ? teachers_of(l->config, b, first, n, coefs, teachers)
                            : 0,
        .values = of[CR_COLUMN_VALUES] ? of[CR_COLUMN_VALUES] + base : NULL,
        .final_mask = of[CR_COLUMN_FINAL] + base,
        .moments = &l->moments[domain],
        .rewards = of[CR_COLUMN_REWARDS] + first,
        .token_rewards = of[CR_COLUMN_TOKEN_REWARDS] + base,
        .advantages = of[CR_COLUMN_ADVANTAGES] + base,
        .raw_advantages = of[CR_COLUMN_RAW_ADVANTAGES] + base,
        .returns = of[CR_COLUMN_RETURNS] + base,
        .kl = of[CR_COLUMN_KL] + base,
        .opd_kl = of[CR_COLUMN_OPD_KL] + base,
        .trace = cri_terms_trace(b->terms)};
    if (cr_advantage(&config, &args, err) == CR_OK) {
        keep_columns(b, first, end);
        if (b->terms) cri_terms_take_trace(b->terms, first, end);
        cr_metrics_set(m, kept / (double)n, "%s/actor/final_mask_ratio", name);
        if (of[CR_COLUMN_REF]) {
            cr_metrics_set(m, args.kl_mean, "%s/critic/kl", name);
            cr_metrics_set(m, config.add_token_level_kl ? l->kl_coef : 0, "%s/critic/kl_coef",
                           name);
            if (alg->has_target_kl && judged > 0)
                l->kl_coef = cr_kl_controller(l->kl_coef, alg->target_kl, alg->kl_horizon,
                                              args.kl_mean, judged);
        }
        if (has_teacher) cr_metrics_set(m, args.opd_kl_mean, "%s/critic/opd_kl", name);
        if (config.reward_clip > 0)
            cr_metrics_set(m, args.reward_clip_frac, "%s/critic/reward_clip_frac", name);
        if (config.advantage_clip > 0)
            cr_metrics_set(m, args.advantage_clip_frac, "%s/critic/advantage_clip_frac", name);
    }
    cr_free(coefs);
    cr_free(start);
    cr_free(scores);
    cr_free(tokens);
    cr_free(memory);
    return err->status;
}
