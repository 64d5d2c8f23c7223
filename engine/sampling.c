/* sampling.c -- see sampling.h. */
#include "engine/sampling.h"

cr_draw_row cr_draw_row_of(const cr_generating *how, float u, const int32_t *prompt,
                           size_t num_prompt, const int32_t *output, size_t num_output)
{
    return (cr_draw_row){.temperature = how->temperature,
                         .penalty = how->repetition_penalty,
                         .top_p = how->top_p,
                         .min_p = how->min_p,
                         .top_k = how->top_k,
                         .is_raw = how->log_probs == CR_LOG_PROBS_RAW,
                         .u = u,
                         .history = {prompt, output},
                         .num_history = {num_prompt, num_output}};
}
