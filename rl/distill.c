/* distill.c -- see distill.h. */
#include "rl/distill.h"

#include <math.h>
#include <stdlib.h>

static const double JS_EPSILON = 1e-9;

const char *const cr_kd_names[CR_NUM_KDS + 1] = {
    "forward_kl",        "reverse_kl",    "adaptive_kl", "skewed_forward_kl",
    "skewed_reverse_kl", "js_divergence", NULL};

float cr_kd_teacher_temperature(const cr_kd_config *c)
{
    return (float)(c->kd_temperature * c->teacher_temperature);
}

/* ---- entries ---- */

/* A logarithm of a probability of 0 counts nothing where it is multiplied with that. */
static double times(double x, double log)
{
    return x > 0 ? x * log : 0;
}

typedef struct gap {
    double p, far; /* of the teacher; |p - q| */
} gap;

static int by_p(const void *a, const void *b)
{
    const gap *x = a, *y = b;

    return (x->p > y->p) - (x->p < y->p);
}

/* Weight of reverse_kl in adaptive_kl; equal distributions: any. */
static double share_of_tail(const cr_kd_config *c, size_t num, const double *log_p,
                            const double *log_q)
{
    gap *gaps = CR_NEW_ARRAY(gap, num);
    double tail = 0, all = 0, sum = 0;

    for (size_t i = 0; i < num; i++)
        gaps[i] = (gap){exp(log_p[i]), fabs(exp(log_p[i]) - exp(log_q[i]))};
    qsort(gaps, num, sizeof *gaps, by_p);
    for (size_t i = 0; i < num; i++) {
        sum += gaps[i].p;
        if (sum <= c->adaptive_kl_alpha) tail += gaps[i].far;
        all += gaps[i].far;
    }
    cr_free(gaps);
    return all > 0 ? tail / all : 0.5;
}

static double forward_kl(double p, double lp, double q, double lq, double *by_log_q)
{
    (void)q;
    *by_log_q = -p;
    return times(p, lp - lq);
}

static double reverse_kl(double p, double lp, double q, double lq, double *by_log_q)
{
    (void)p;
    *by_log_q = times(q, lq - lp + 1);
    return times(q, lq - lp);
}

double cr_kd_entries(const cr_kd_config *c, size_t num, const double *log_p, const double *log_q,
                     double *grad)
{
    const double l = c->skew_lambda, e = JS_EPSILON,
                 share =
                     c->kd_objective == CR_KD_ADAPTIVE_KL ? share_of_tail(c, num, log_p, log_q) : 0;
    double loss = 0;

    for (size_t i = 0; i < num; i++) {
        double lp = log_p[i], lq = log_q[i], p = exp(lp), q = exp(lq), m, by, other;
        switch (c->kd_objective) {
        case CR_KD_REVERSE_KL:
            loss += reverse_kl(p, lp, q, lq, &grad[i]);
            break;
        case CR_KD_ADAPTIVE_KL:
            loss += (1 - share) * forward_kl(p, lp, q, lq, &by);
            loss += share * reverse_kl(p, lp, q, lq, &other);
            grad[i] = (1 - share) * by + share * other;
            break;
        case CR_KD_SKEWED_FORWARD_KL:
            m = l * p + (1 - l) * q;
            loss += times(p, lp - log(m));
            grad[i] = q > 0 ? -q * p * (1 - l) / m : 0;
            break;
        case CR_KD_SKEWED_REVERSE_KL:
            m = (1 - l) * p + l * q;
            loss += times(q, lq - log(m));
            grad[i] = q > 0 ? q * (lq - log(m) + 1 - q * l / m) : 0;
            break;
        case CR_KD_JS_DIVERGENCE:
            m = (p + q) / 2;
            loss += (p * (log(p + e) - log(m + e)) + q * (log(q + e) - log(m + e))) / 2;
            grad[i] = q / 2 * (log(q + e) - log(m + e) + q / (q + e) - m / (m + e));
            break;
        default:
            loss += forward_kl(p, lp, q, lq, &grad[i]);
        }
    }
    return loss;
}

/* ---- a position ---- */

typedef struct ranked {
    double logit;
    size_t id;
} ranked;

static int by_logit(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* log of the sum of exp over the ids of list[num], all ids of the vocabulary with NULL. */
static double log_sum(const double *logits, double scale, const ranked *list, size_t num)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < num; i++)
        max = fmax(max, scale * logits[list ? list[i].id : i]);
    for (size_t i = 0; i < num; i++)
        sum += exp(scale * logits[list ? list[i].id : i] - max);
    return max + log(sum);
}

/* Entries of a distribution: the ids of list[k], and with a tail those of list[k .. vocab - 1] as one. */
static void entries_of(const double *logits, double scale, const ranked *list, size_t k,
                       size_t vocab, bool has_tail, double *out)
{
    double all = has_tail ? log_sum(logits, scale, NULL, vocab) : log_sum(logits, scale, list, k);

    for (size_t i = 0; i < k; i++)
        out[i] = scale * logits[list[i].id] - all;
    if (has_tail) out[k] = log_sum(logits, scale, list + k, vocab - k) - all;
}

double cr_kd_position(const cr_kd_config *c, size_t vocab, const double *teacher,
                      const double *student, double *grad)
{
    size_t k = c->logits_topk && c->logits_topk < vocab ? c->logits_topk : vocab;
    bool has_tail = c->is_tail && k < vocab;
    double *work = CR_NEW_ARRAY(double, 3 * (k + 1)), *log_p = work, *log_q = work + k + 1,
           *by = work + 2 * (k + 1), loss, sum = 0, tail = 0, scale = 1 / c->kd_temperature;
    ranked *list = CR_NEW_ARRAY(ranked, vocab);

    for (size_t i = 0; i < vocab; i++)
        list[i] = (ranked){teacher[i], i};
    qsort(list, vocab, sizeof *list, by_logit);
    entries_of(teacher, scale / c->teacher_temperature, list, k, vocab, has_tail, log_p);
    entries_of(student, scale, list, k, vocab, has_tail, log_q);
    loss = cr_kd_entries(c, k + has_tail, log_p, log_q, by);
    for (size_t i = 0; i < k + has_tail; i++)
        sum += by[i];
    if (has_tail) tail = log_sum(student, scale, list + k, vocab - k);
    for (size_t i = 0; i < vocab; i++) { /* an id is a share of its entry: all of one of the k */
        size_t entry = i < k ? i : k;
        double in_entry = i < k ? 1 : exp(scale * student[list[i].id] - tail);
        grad[list[i].id] =
            i < k || has_tail ? scale * in_entry * (by[entry] - sum * exp(log_q[entry])) : 0;
    }
    cr_free(list);
    cr_free(work);
    return loss;
}

/* ---- ids of a position ---- */

/* Entries of one distribution: the ids, and the tail, or the ids divided by their sum. */
static void entries_of_chosen(const float *log_probs, size_t num, bool has_tail, double *out)
{
    double sum = 0;

    for (size_t i = 0; i < num; i++)
        sum += exp((double)log_probs[i]);
    for (size_t i = 0; i < num; i++)
        out[i] = (double)log_probs[i] - (has_tail ? 0 : log(sum));
    if (has_tail) out[num] = log(fmax(1 - sum, CR_KD_MIN_TAIL));
}

double cr_kd_chosen(const cr_kd_config *c, size_t num, size_t vocab, const float *log_p,
                    const float *log_q, double *grad, double *rest)
{
    bool has_tail = c->is_tail && num < vocab;
    size_t all = num + has_tail;
    double *work = CR_NEW_ARRAY(double, 3 * (num + 1)), *lp = work, *lq = work + num + 1,
           *by = work + 2 * (num + 1), loss, sum = 0, mass = 0, scale = 1 / c->kd_temperature;

    entries_of_chosen(log_p, num, has_tail, lp);
    entries_of_chosen(log_q, num, has_tail, lq);
    loss = cr_kd_entries(c, all, lp, lq, by);
    for (size_t i = 0; i < all; i++) {
        sum += by[i];
        mass += exp(lq[i]);
    }
    for (size_t i = 0; i < num; i++) {
        double up = by[i] * mass, down = sum * exp(lq[i]); /* equal bits where p and q are equal */
        grad[i] = scale * (up - down);
    }
    *rest = has_tail ? scale * (by[num] * mass - sum * exp(lq[num])) / exp(lq[num]) : 0;
    cr_free(work);
    return loss;
}
