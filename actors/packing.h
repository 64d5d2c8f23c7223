/* packing.h -- which sample goes to which rank, mini-batch and micro-batch.
 *
 * Flow 6 of 7. A step's groups are shuffled (keyed by seed and step), and their samples cut into
 * mini-batches of dp * per_device_train_batch_size * gradient_accumulation_steps (one optimizer update
 * each). A group's advantages sum to zero, so its samples stay in one update, where what they have in
 * common cancels; ROLL shuffles samples. Each mini-batch is distributed over the dp ranks so that their work
 * (work.h) balances. A rank's micro-batches have a number of samples each
 * (per_device_train_batch_size), or at most a number of tokens (use_dynamic_batching_in_train). Every
 * loss denominator is counted over the whole mini-batch, so the gradient does not depend on the cut.
 */
#ifndef CR_PACKING_H
#define CR_PACKING_H

#include "base/base.h"

/* Deal the samples of one mini-batch, order[num], to ranks: out_rank[sample], by work[sample]. order is
 * rearranged: a rank that takes its samples in this order, micro_size at a time, has the micro-batches
 * meant (if the samples fill them all; else only the ranks balance). micro_size 0: micro-batches are cut
 * by tokens, ranks need not have equally many samples. */
void cr_packing_deal_mini(const double *work, int num_dp, size_t micro_size, uint32_t *order,
                          size_t num, int32_t *out_rank);
/* Deal a step. Samples of a group, group_size of them, are adjacent. work[num_samples]; out_rank,
 * out_mini [num_samples]. out_order: a permutation of all samples, in which each rank has its own.
 * mini_size is the number of samples of one update; the last mini-batch may be smaller. */
void cr_packing_deal(const double *work, size_t num_samples, size_t group_size, int num_dp,
                     size_t micro_size, size_t mini_size, uint64_t seed, uint64_t epoch,
                     uint32_t *out_order, int32_t *out_mini, int32_t *out_rank);

/* Micro-batches of at most max_tokens each, as few as first-fit-decreasing finds, and at least
 * min_micros: out_micro[num] is the one of each sample, the result their number. Tokens are spread
 * evenly where that needs no further micro-batch. A sample above max_tokens has one of its own. */
size_t cr_packing_cut(const size_t *tokens, size_t num, size_t max_tokens, size_t min_micros,
                      size_t *out_micro);

#endif
