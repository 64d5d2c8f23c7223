/* head.h -- what a model says of a row that has gone through the last norm: the vocabulary (log-probs of labels, logits),
 * or a value. Inside models/ only.
 */
#ifndef CR_MODELS_PARTS_HEAD_H
#define CR_MODELS_PARTS_HEAD_H

#include "models/pass_impl.h"

/* What a forward is to compute: outputs, or logits. */
typedef struct cri_head_want {
    const cr_outputs *out;
    cr_mem *logits;
} cri_head_want;

/* The rows of the pass's head, at least one; called between the hooks of the module. */
typedef struct cri_head_ops {
    bool gives[CR_NUM_OUTPUTS];
    bool has_logits; /* logits, ranks, largest logits and drawn ids, too */
    cr_status (*forward)(const cr_module *m, cr_pass *p, const cr_mem *normed,
                         const cri_head_want *want, cr_err *err);
    /* From gradients of outputs to dx [num_rows, hidden_size], overwritten. */
    cr_status (*backward)(const cr_module *m, cr_pass *p, const cr_mem *normed,
                          const cr_outputs *grad, cr_mem *dx, cr_err *err);
} cri_head_ops;

extern const cri_head_ops cri_vocab_head_ops, cri_value_head_ops;

#endif
