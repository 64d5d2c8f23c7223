/* validation.c -- see validation.h. */
#include "pipelines/validation.h"
#include "reports/metrics.h"
#include "rewards/rules.h"

#include <stdio.h>
#include <string.h>

enum { MAX_K = 16 }; /* powers of two: k up to 2^16, as an index in a sample's id */

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

typedef struct label {
    char name[64];
    bool is_domain;
    double num, right, score;
    double groups[MAX_K + 1], pass[MAX_K + 1], maj[MAX_K + 1]; /* by log2 of k */
} label;

typedef struct labels {
    label *items;
    size_t num, capacity;
} labels;

static label *find_label(labels *l, const char *name, bool is_domain)
{
    char cut[sizeof l->items->name];

    snprintf(cut, sizeof cut, "%s", name);
    for (size_t i = 0; i < l->num; i++)
        if (l->items[i].is_domain == is_domain && strcmp(l->items[i].name, cut) == 0)
            return &l->items[i];
    l->items = cr_grow(l->items, l->num, &l->capacity, sizeof *l->items);
    l->items[l->num] = (label){.is_domain = is_domain};
    memcpy(l->items[l->num].name, cut, sizeof cut);
    return &l->items[l->num++];
}

/* The samples of a prompt that have a verdict. */
typedef struct group {
    size_t n;
    double right, score;
    char **answer; /* [n] (owned), NULL where it has none */
    bool *is_right;
} group;

static void add_group(label *l, const group *g)
{
    l->num += (double)g->n;
    l->right += g->right;
    l->score += g->score;
    for (size_t e = 1; e <= MAX_K && (size_t)1 << e <= g->n; e++) {
        l->groups[e]++;
        l->pass[e] += cr_pass_at_k(g->n, (size_t)g->right, (size_t)1 << e);
        l->maj[e] += cr_maj_at_k((const char *const *)g->answer, g->is_right, g->n, (size_t)1 << e);
    }
}

static void read_group(const cr_config *c, const cr_sample *samples, size_t num, const cr_row *row,
                       group *g)
{
    for (size_t i = 0; i < num; i++) {
        const cr_sample *x = &samples[i];
        cr_rule_args a = {.row = row->json,
                          .response = x->response ? x->response : "",
                          .response_bytes = x->response_bytes,
                          .deadline_s = cr_now_s() + c->reward_timeout};
        if (!cr_sample_has_verdict(x)) continue;
        g->is_right[g->n] = x->score == 1;
        g->right += x->score == 1;
        g->score += x->score;
        g->answer[g->n++] = num > 1 ? cr_rule_answer(c->rewards[x->domain].rule, &a) : NULL;
    }
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

static void set_metrics(const label *l, const char *head, cr_metrics *m)
{
    if (l->num == 0) return;
    if (l->is_domain) {
        put(m, head, l->right / l->num, "%s/val_correct/mean", l->name);
        put(m, head, l->score / l->num, "%s/val_score/mean", l->name);
    } else {
        put(m, head, l->right / l->num, "val_correct/%s/mean", l->name);
        put(m, head, l->score / l->num, "val_score/%s/mean", l->name);
    }
    for (int e = 1; e <= MAX_K && l->groups[e] > 0; e++) {
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

void cr_validation_metrics(const cr_config *config, const cr_rollout *rollout,
                           const cr_dataset *data, const char *head, cr_metrics *m)
{
    const char *column = config->validation.data.tag ? config->validation.data.tag : "tag";
    size_t n = rollout->group_size;
    labels all = {0};
    group g = {.answer = CR_NEW_ARRAY(char *, n), .is_right = CR_NEW_ARRAY(bool, n)};

    find_label(&all, "all", false);
    for (size_t first = 0; first < rollout->num_samples; first += n) {
        const cr_sample *samples = rollout->samples + first;
        const cr_row *row = &data->rows[samples->row];
        const char *tag = json_string_value(json_object_get(row->json, column));
        g.n = 0;
        g.right = g.score = 0;
        read_group(config, samples, n, row, &g);
        add_group(&all.items[0], &g);
        if (tag && strcmp(tag, "all") != 0) add_group(find_label(&all, tag, false), &g);
        add_group(find_label(&all, config->rewards[samples->domain].domain, true), &g);
        for (size_t i = 0; i < g.n; i++)
            cr_free(g.answer[i]);
    }
    for (size_t i = 0; i < all.num; i++)
        set_metrics(&all.items[i], head, m);
    cr_free(all.items);
    cr_free(g.answer);
    cr_free(g.is_right);
}
