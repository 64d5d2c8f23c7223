/* advantage_trace.h -- of what an advantage was made: what cr_advantage keeps of each of its steps if it is asked to.
 *
 * Flow 6 of 7. The caller owns all arrays, and sets all of them.
 */
#ifndef CR_ADVANTAGE_TRACE_H
#define CR_ADVANTAGE_TRACE_H

#include "base/base.h"

/* X(value, name): steps in their order; the number of a token after it. */
#define CR_ADVANTAGE_STEPS(X)                                                                 \
    X(REWARD, "reward") /* the sample's at its last token, and what tokens got */             \
    X(KL, "kl")         /* less kl_coef times the KL to the reference */                      \
    X(CLIP_REWARD, "reward_clip")                                                             \
    X(WHITEN_REWARD, "whiten_rewards")                                                        \
    X(MASK_REWARD, "mask")  /* 0 where the final mask is */                                   \
    X(ESTIMATE, "estimate") /* discounted sums of rewards, or GAE: the raw advantage */       \
    X(DISTIL, "distil")     /* less opd_kl_coef times the KL to the teacher, or that alone */ \
    X(WHITEN, "whiten_advantages")                                                            \
    X(MASK, "advantage_mask")                                                                 \
    X(CLIP, "advantage_clip")

typedef enum cr_advantage_step {
#define X(value, name) CR_ADVANTAGE_##value,
    CR_ADVANTAGE_STEPS(X)
#undef X
        CR_NUM_ADVANTAGE_STEPS
} cr_advantage_step;
extern const char *const cr_advantage_step_names[CR_NUM_ADVANTAGE_STEPS];

typedef struct cr_advantage_trace {
    /* [N], or of each kind of rewards with CR_NORMALIZE_THEN_SUM: what was subtracted, what that was divided by, the result */
    double *mean, *std, *normalised;
    double *after[CR_NUM_ADVANTAGE_STEPS]; /* per token */
    bool has[CR_NUM_ADVANTAGE_STEPS];      /* out: the configuration has this step */
} cr_advantage_trace;

#endif
