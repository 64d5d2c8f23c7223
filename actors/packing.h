/* packing.h -- which sample goes to which rank, mini-batch and micro-batch, and the record that takes
 * it there.
 *
 * Flow 7 of 9. A step's groups are shuffled (keyed by seed and step), and their samples cut into
 * mini-batches of dp * per_device_train_batch_size * gradient_accumulation_steps (one optimizer update
 * each). A group's advantages sum to zero, so its samples stay in one update, where what they have in
 * common cancels; ROLL shuffles samples. Each mini-batch is dealt to the micro-batches of the dp ranks so that their tokens balance: ranks meet in
 * every unit of every micro-batch. Every loss denominator is counted over the whole mini-batch, so the
 * gradient does not depend on the dealing.
 *
 * A rank's record has, per sample, `prompt_lengths`, `lengths` (response tokens), `mini` (which
 * mini-batch), and ragged over all its samples `ids` (prompt and response joined) and, per response
 * token, what the caller adds in the same order.
 */
#ifndef CR_PACKING_H
#define CR_PACKING_H

#include "base/base.h"

/* Deal the samples of one mini-batch, order[num], to ranks: out_rank[sample], by tokens[sample]. order is
 * rearranged: a rank that takes its samples in this order, micro_size at a time, has the micro-batches
 * meant (if the samples fill them all; else only the ranks balance). */
void cr_packing_deal_mini(const size_t *tokens, int num_dp, size_t micro_size, uint32_t *order,
                          size_t num, int32_t *out_rank);
/* Deal a step. Samples of a group, group_size of them, are adjacent. tokens[num_samples]; out_rank, out_mini [num_samples]. out_order: a permutation of all
 * samples, in which each rank meets its own. mini_size is the number of samples of one update; the last
 * mini-batch may be smaller. */
void cr_packing_deal(const size_t *tokens, size_t num_samples, size_t group_size, int num_dp,
                     size_t micro_size, size_t mini_size, uint64_t seed, uint64_t epoch,
                     uint32_t *out_order, int32_t *out_mini, int32_t *out_rank);

#endif
