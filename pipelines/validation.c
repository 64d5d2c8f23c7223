/* validation.c -- see validation.h. */
#include "pipelines/validation.h"
#include "reports/metrics.h"
#include "rewards/rules.h"

#include <stdio.h>
#include <string.h>

double cr_pass_at_k(size_t n, size_t c, size_t k)
{
    double none = 1;

    if (n - c < k) return 1;
    for (size_t i = n - c + 1; i <= n; i++)
        none *= 1 - (double)k / (double)i;
    return 1 - none;
}

/* Of one block. */
static double majority(const char *const *answer, const bool *is_right, size_t k)
{
    size_t max = 0;
    double right = 0, num = 0;

    for (int pass = 0; pass < 2; pass++) /* find the most votes, then who has them */
        for (size_t i = 0; i < k; i++) {
            size_t votes = 0;
            for (size_t j = 0; answer[i] && j < k; j++)
                votes += answer[j] && strcmp(answer[i], answer[j]) == 0;
            if (pass == 0 && votes > max) max = votes;
            if (pass == 0 || votes < max || !answer[i]) continue;
            right += is_right[i];
            num++;
        }
    return num > 0 ? right / num : 0;
}

double cr_maj_at_k(const char *const *answer, const bool *is_right, size_t n, size_t k)
{
    double sum = 0;
    size_t num = n / k;

    for (size_t b = 0; b < num; b++)
        sum += majority(answer + b * k, is_right + b * k, k);
    return sum / (double)num;
}

/* ---- sums of all prompts, of a tag, of a domain ---- */

static cr_validation_label *find_label(cr_validation *v, const char *name, bool is_domain)
{
    char cut[sizeof v->labels->name];

    snprintf(cut, sizeof cut, "%s", name);
    for (size_t i = 0; i < v->num; i++)
        if (v->labels[i].is_domain == is_domain && strcmp(v->labels[i].name, cut) == 0)
            return &v->labels[i];
    v->labels = cr_grow(v->labels, v->num, &v->capacity, sizeof *v->labels);
    v->labels[v->num] = (cr_validation_label){.is_domain = is_domain};
    memcpy(v->labels[v->num].name, cut, sizeof cut);
    return &v->labels[v->num++];
}

static void count_group(cr_validation_label *l, size_t n, size_t right)
{
    size_t i = 0;

    while (i < l->num_counts && (l->counts[i].n != n || l->counts[i].c != right))
        i++;
    if (i == l->num_counts) {
        l->counts = cr_grow(l->counts, l->num_counts, &l->counts_capacity, sizeof *l->counts);
        l->counts[l->num_counts++] = (cr_pass_count){n, right, 0};
    }
    l->counts[i].num++;
}

static void add_group(cr_validation_label *l, const cr_validated *g, const bool *is_right,
                      size_t right)
{
    double score = 0;

    for (size_t i = 0; i < g->n; i++)
        score += g->score[i];
    l->num_prompts++;
    l->num_without += g->num_without;
    l->num += (double)g->n;
    l->right += (double)right;
    l->score += score;
    count_group(l, g->n, right);
    for (size_t e = 0; e <= CR_MAX_K && (size_t)1 << e <= g->n; e++) {
        l->groups[e]++;
        l->pass[e] += cr_pass_at_k(g->n, right, (size_t)1 << e);
        l->maj[e] += cr_maj_at_k(g->answer, is_right, g->n, (size_t)1 << e);
    }
}

void cr_validation_add(cr_validation *v, const cr_validated *g)
{
    bool *is_right = CR_NEW_ARRAY(bool, g->n + 1);
    size_t right = 0;

    for (size_t i = 0; i < g->n; i++)
        right += is_right[i] = g->score[i] == 1;
    add_group(find_label(v, "all", false), g, is_right, right);
    if (g->tag && strcmp(g->tag, "all") != 0)
        add_group(find_label(v, g->tag, false), g, is_right, right);
    add_group(find_label(v, g->domain, true), g, is_right, right);
    cr_free(is_right);
}

void cr_validation_free(cr_validation *v)
{
    for (size_t i = 0; i < v->num; i++)
        cr_free(v->labels[i].counts);
    cr_free(v->labels);
    *v = (cr_validation){0};
}

/* head and the name. */
static void CR_PRINTF(4, 5) put(cr_metrics *m, const char *head, double value, const char *fmt, ...)
{
    char name[120];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    cr_metrics_set(m, value, "%s%s", head, name);
}

static void set_metrics(const cr_validation_label *l, const char *head, cr_metrics *m)
{
    if (l->num == 0) return;
    if (l->is_domain) {
        put(m, head, l->right / l->num, "%s/val_correct/mean", l->name);
        put(m, head, l->score / l->num, "%s/val_score/mean", l->name);
    } else {
        put(m, head, l->right / l->num, "val_correct/%s/mean", l->name);
        put(m, head, l->score / l->num, "val_score/%s/mean", l->name);
    }
    for (int e = 1; e <= CR_MAX_K && l->groups[e] > 0; e++) {
        double pass = l->pass[e] / l->groups[e], maj = l->maj[e] / l->groups[e];
        if (l->is_domain) {
            put(m, head, pass, "%s/val_pass@%d", l->name, 1 << e);
            put(m, head, maj, "%s/val_maj@%d", l->name, 1 << e);
        } else {
            put(m, head, pass, "val_pass@%d/%s", 1 << e, l->name);
            put(m, head, maj, "val_maj@%d/%s", 1 << e, l->name);
        }
    }
}

char *cr_sample_answer(const cr_config *c, const cr_sample *s, const cr_row *row)
{
    const cr_rule_args a = {.row = row->json,
                            .response = s->response ? s->response : "",
                            .response_bytes = s->response_bytes,
                            .deadline_s = cr_now_s() + c->reward_timeout};

    return cr_rule_answer(c->rewards[s->domain].rule, &a);
}

static void add_samples(cr_validation *v, const cr_config *c, const cr_sample *samples, size_t num,
                        const cr_row *row, const char *tag)
{
    char **answer = CR_NEW_ARRAY(char *, num);
    double *score = CR_NEW_ARRAY(double, num);
    cr_validated g = {.tag = tag,
                      .domain = c->rewards[samples->domain].domain,
                      .score = score,
                      .answer = (const char *const *)answer};

    for (size_t i = 0; i < num; i++) {
        if (!cr_sample_has_verdict(&samples[i])) {
            g.num_without++;
            continue;
        }
        score[g.n] = samples[i].score;
        answer[g.n++] = num > 1 ? cr_sample_answer(c, &samples[i], row) : NULL;
    }
    cr_validation_add(v, &g);
    for (size_t i = 0; i < g.n; i++)
        cr_free(answer[i]);
    cr_free(answer);
    cr_free(score);
}

const char *cr_row_tag(const cr_config *c, const cr_row *row)
{
    return json_string_value(
        json_object_get(row->json, c->validation.data.tag ? c->validation.data.tag : "tag"));
}

void cr_validation_metrics(const cr_config *config, const cr_rollout *rollout,
                           const cr_dataset *data, const char *head, cr_metrics *m)
{
    cr_validation v = {0};

    for (size_t first = 0; first < rollout->num_samples; first += rollout->group_size) {
        const cr_sample *samples = rollout->samples + first;
        const cr_row *row = &data->rows[samples->row];
        add_samples(&v, config, samples, rollout->group_size, row, cr_row_tag(config, row));
    }
    for (size_t i = 0; i < v.num; i++)
        set_metrics(&v.labels[i], head, m);
    cr_validation_free(&v);
}
