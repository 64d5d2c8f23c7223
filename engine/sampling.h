/* sampling.h -- one token from one row of logits, in the order of Hugging Face's processors:
 * repetition penalty, temperature, top_k, top_p, min_p, then one draw. Its log-prob has the bits that
 * cr_head computes for the same row with the same edits.
 */
#ifndef CR_SAMPLING_H
#define CR_SAMPLING_H

#include "engine/engine.h"

/* Scratch of a caller, grown as needed; {0} is empty. */
typedef struct cr_sampler {
    float *z;       /* a row of logits on the host: penalised, filtered */
    cr_mem *edited; /* and back on the device, memory of dev */
    cr_device *dev; /* of the first call; borrowed until cr_sampler_free */
    uint8_t *seen;  /* a bit for each id */
    int32_t *kept;
    struct cr_candidate {
        float z;
        int32_t id;
    } * candidates, *sorted;
    size_t capacity;
} cr_sampler;
void cr_sampler_free(cr_sampler *s);

typedef struct cr_sample_args {
    const cr_mem *logits; /* [vocab_size] float32 */
    int64_t vocab_size;
    const cr_generating *how;
    const int32_t *prompt, *output; /* the history (repetition penalty) */
    size_t num_prompt, num_output;
    float u; /* in [0, 1) */
} cr_sample_args;

typedef struct cr_drawn {
    int32_t id;              /* -1: the logits are not finite */
    float log_prob;          /* of how->log_probs */
    float log_mass;          /* log of what the kept words had before the filters */
    const int32_t *kept_ids; /* ascending, the sampler's until its next call */
    size_t num_kept;         /* 0: all words; as is log_mass with CR_LOG_PROBS_RAW */
} cr_drawn;

CR_MUST cr_status cr_sample_token(cr_sampler *s, cr_device *dev, const cr_sample_args *a,
                                  cr_drawn *out, cr_err *err);

#endif
