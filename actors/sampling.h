/* sampling.h -- one token from one row of logits, in the order of Hugging Face's processors:
 * repetition penalty, temperature, top_k, top_p, min_p, then one draw.
 */
#ifndef CR_SAMPLING_H
#define CR_SAMPLING_H

#include "actors/engine.h"

/* Scratch of a caller, grown as needed; {0} is empty. */
typedef struct cr_sampler {
    float *z;
    struct cr_candidate {
        float z;
        int32_t id;
    } * candidates, *sorted;
    size_t capacity;
} cr_sampler;
void cr_sampler_free(cr_sampler *s);

/* logits[vocab_size] is not changed. history: prompt and output so far (repetition penalty). u in
 * [0, 1). */
CR_MUST cr_status cr_sample_token(cr_sampler *s, cr_device *dev, const float *logits,
                                  int64_t vocab_size, const cr_generating *how,
                                  const int32_t *prompt, size_t num_prompt, const int32_t *output,
                                  size_t num_output, float u, int32_t *id, cr_err *err);

#endif
