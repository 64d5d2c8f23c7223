/* pairs.c -- see pairs.h. */
#include "rl/pairs.h"

#include <math.h>

const char *const cr_pair_loss_names[CR_NUM_PAIR_LOSSES + 1] = {
    "sigmoid", "ipo", "hinge", "robust", "apo_zero", "ipo_sum", NULL};

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double log_sigmoid(double x)
{
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* A pair's loss and its derivatives with respect to c and r. */
typedef struct pair {
    double loss, by_chosen, by_rejected;
} pair;

/* Of a function of l = c - r. */
static pair of_difference(double loss, double by_l)
{
    return (pair){loss, by_l, -by_l};
}

static pair squared(double difference, double target, double by_chosen, double by_rejected)
{
    double d = difference - target;

    return (pair){d * d, 2 * d * by_chosen, -2 * d * by_rejected};
}

/* c, r: sums; nc, nr: numbers of tokens, at least 1. */
static pair loss_of(const cr_pair_config *f, double c, double r, double nc, double nr)
{
    double b = f->beta, e = f->label_smoothing, l = c - r, up = sigmoid(b * l),
           down = sigmoid(-b * l), win = -log_sigmoid(b * l), lose = -log_sigmoid(-b * l);

    switch (f->loss_type) {
    case CR_PAIR_IPO:
        return squared(c / nc - r / nr, 1 / (2 * b), 1 / nc, 1 / nr);
    case CR_PAIR_IPO_SUM:
        return squared(l, 1 / (2 * b), 1, 1);
    case CR_PAIR_HINGE:
        return b * l < 1 ? of_difference(1 - b * l, -b) : of_difference(0, 0);
    case CR_PAIR_ROBUST:
        return of_difference(((1 - e) * win - e * lose) / (1 - 2 * e),
                             b * (-(1 - e) * down - e * up) / (1 - 2 * e));
    case CR_PAIR_APO_ZERO:
        return (pair){sigmoid(-b * c) + sigmoid(b * r), -b * sigmoid(b * c) * sigmoid(-b * c),
                      b * sigmoid(b * r) * sigmoid(-b * r)};
    default:
        return of_difference((1 - e) * win + e * lose, b * (-(1 - e) * down + e * up));
    }
}

typedef struct answer {
    size_t first, end;
    double log_prob, ref, num; /* sums; tokens */
} answer;

static answer sum_answer(const cr_pair_args *a, size_t sample)
{
    answer x = {.first = a->rows.start[sample], .end = a->rows.start[sample + 1]};

    for (size_t t = x.first; t < x.end; t++) {
        x.log_prob += a->log_probs[t];
        x.ref += a->ref[t];
    }
    x.num = x.end > x.first ? (double)(x.end - x.first) : 1;
    return x;
}

void cr_pair_losses(const cr_pair_config *f, cr_pair_args *a)
{
    double pairs = a->num_pairs > 0 ? a->num_pairs : 1,
           tokens = a->num_chosen_tokens > 0 ? a->num_chosen_tokens : 1;
    cr_pair_metrics *m = &a->metrics;

    *m = (cr_pair_metrics){0};
    for (size_t k = 0; k + 1 < a->rows.num_samples; k += 2) {
        answer chosen = sum_answer(a, k), rejected = sum_answer(a, k + 1);
        double c = chosen.log_prob - chosen.ref, r = rejected.log_prob - rejected.ref;
        pair x = loss_of(f, c, r, chosen.num, rejected.num);
        m->loss += x.loss;
        m->nll -= chosen.log_prob;
        m->chosen += c;
        m->rejected += r;
        m->accuracies += c > r;
        m->chosen_log_probs += chosen.log_prob;
        m->rejected_log_probs += rejected.log_prob;
        for (size_t t = chosen.first; t < chosen.end && a->grad; t++)
            a->grad[t] = x.by_chosen / pairs - f->rpo_alpha / tokens;
        for (size_t t = rejected.first; t < rejected.end && a->grad; t++)
            a->grad[t] = x.by_rejected / pairs;
    }
    m->nll /= tokens;
    m->loss = m->loss / pairs + f->rpo_alpha * m->nll;
    m->chosen *= f->beta / pairs;
    m->rejected *= f->beta / pairs;
    m->margins = m->chosen - m->rejected;
    m->accuracies /= pairs;
    m->chosen_log_probs /= pairs;
    m->rejected_log_probs /= pairs;
}
