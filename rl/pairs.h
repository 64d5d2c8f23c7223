/* pairs.h -- losses over pairs of a chosen and a rejected answer (DPO and its relatives): pure functions, in float64.
 *
 * Flow 6 of 7. Batches are ragged as in rl.h: samples 2k and 2k+1 are the chosen and the rejected answer of pair k. With
 * c and r, the sums over the tokens of an answer of log-prob minus the reference's, |c| and |r| their numbers of tokens,
 * l = c - r, s the sigmoid, b = beta, e = label_smoothing, a pair's loss is
 *   sigmoid    -(1 - e) log s(b l) - e log s(-b l)                        DPO, arXiv:2305.18290; with e > 0 cDPO
 *   ipo        (c / |c| - r / |r| - 1 / (2 b))^2                          IPO, arXiv:2310.12036, as TRL has it
 *   hinge      max(0, 1 - b l)                                            SLiC, arXiv:2305.10425
 *   robust     (-(1 - e) log s(b l) + e log s(-b l)) / (1 - 2 e)          arXiv:2403.00409
 *   apo_zero   (1 - s(b c)) + s(b r)                                      arXiv:2408.06266
 *   ipo_sum    (l - 1 / (2 b))^2                                          IPO as ROLL has it (ipo: true)
 * and the loss of a mini-batch their mean over its pairs, plus rpo_alpha times the mean over the tokens of its chosen answers
 * of -log-prob (RPO, arXiv:2404.19733, with TRL's mean). Both denominators are of the whole mini-batch, so parts of it add up.
 */
#ifndef CR_PAIRS_H
#define CR_PAIRS_H

#include "rl/rl.h"

typedef enum cr_pair_loss {
    CR_PAIR_SIGMOID, /* as the words of loss_type */
    CR_PAIR_IPO,
    CR_PAIR_HINGE,
    CR_PAIR_ROBUST,
    CR_PAIR_APO_ZERO,
    CR_PAIR_IPO_SUM,
    CR_NUM_PAIR_LOSSES
} cr_pair_loss;
extern const char *const cr_pair_loss_names[CR_NUM_PAIR_LOSSES + 1];

typedef struct cr_pair_config {
    cr_pair_loss loss_type;
    double beta, label_smoothing, rpo_alpha;
} cr_pair_config;

/* Means over the pairs of the mini-batch (nll: over the tokens of its chosen answers), which add up over parts. */
typedef struct cr_pair_metrics {
    double loss, nll;
    double chosen, rejected, margins; /* rewards: beta c, beta r, beta l */
    double accuracies;                /* share of pairs with c > r */
    double chosen_log_probs,
        rejected_log_probs; /* sums over an answer, under the weights that train */
} cr_pair_metrics;

typedef struct cr_pair_args {
    cr_ragged rows;                      /* 2 samples a pair */
    const double *log_probs, *ref;       /* per token */
    double num_pairs, num_chosen_tokens; /* of the mini-batch, over all ranks; 0 is taken as 1 */
    double *grad;                        /* out, per token; or NULL */
    cr_pair_metrics metrics;             /* out */
} cr_pair_args;
void cr_pair_losses(const cr_pair_config *c, cr_pair_args *a);

#endif
