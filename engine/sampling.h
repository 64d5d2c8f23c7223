/* sampling.h -- what settings of generation mean for one row of logits (cr_draw, kernels/attention.h).
 */
#ifndef CR_SAMPLING_H
#define CR_SAMPLING_H

#include "engine/engine.h"
#include "kernels/attention.h"

/* u: in [0, 1). prompt and output are the history that the repetition penalty looks at; borrowed. */
cr_draw_row cr_draw_row_of(const cr_generating *how, float u, const int32_t *prompt,
                           size_t num_prompt, const int32_t *output, size_t num_output);

#endif
