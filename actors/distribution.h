/* distribution.h -- the distribution that a run's log-probs are of (docs/sampling.md), and the rows of a
 * micro-batch in it.
 *
 * Generation stores with each sample which ids its filters kept (cr_generated). Training, and the
 * reference, compute log-probs over the same ids with the same temperature and repetition penalty: the
 * processors that cr_distribution_processors hands to the head through cr_batch.
 *
 * Ownership: a cr_processor_arrays owns its arrays, grown as needed; {0} is empty. Kept ids stay in the record that the
 * samples borrow from. One thread.
 */
#ifndef CR_DISTRIBUTION_H
#define CR_DISTRIBUTION_H

#include "configs/configs.h"
#include "engine/engine.h"
#include "kernels/attention.h"
#include "samples/train.h"

typedef struct cr_distribution {
    float temperature,
        repetition_penalty; /* 1: off; a sample may have its own temperature (cr_samples) */
    bool has_filter;        /* samples come with their kept ids, */
    bool is_mixed;          /* or some do: domains differ */
} cr_distribution;

/* How an engine generates by the file. */
cr_generating cr_generating_of(const cr_config *config, const cr_generating_args *args);
/* Of actor_infer's samples of a domain (index into config->rewards). The model's softmax with logprobs_mode raw and for
 * greedy samples. */
cr_distribution cr_distribution_of(const cr_config *config, int domain);
/* Of those of all domains together: the temperature is that of generating_args. */
cr_distribution cr_distribution_of_all(const cr_config *config);
/* CR_EFORMAT: samples do not have the kept ids that the file's filters ask for. */
CR_MUST cr_status cr_distribution_check(const cr_distribution *d, bool has_kept, cr_err *err);

typedef struct cr_processor_arrays {
    cr_row_processors rows;
    cr_buf temperatures, kept_first, kept_num, seen_list, seen_until, seen_first, seen_ids,
        seen_place, order;
} cr_processor_arrays;

/* Of the response tokens of samples order[0 .. num - 1], one after the other: valid until the next call.
 * NULL: the model's softmax. */
const cr_row_processors *cr_distribution_processors(const cr_distribution *d, const cr_samples *s,
                                                    const size_t *order, size_t num,
                                                    cr_processor_arrays *processors);
size_t cr_processor_arrays_bytes(const cr_processor_arrays *processors);
void cr_processor_arrays_free(cr_processor_arrays *processors);

#endif
