/* adapters.h -- LoRA of Linears (cr_adapter). Inside models/ only.
 *
 * Products are those of a Linear: A x in float32, times the scale, rounded to the dtype of the pass, then B of that added
 * to what the Linear computed. So the base product does not depend on the adapter, and with adapters off the
 * numbers are those of a model without them.
 */
#ifndef CR_MODELS_PARTS_ADAPTERS_H
#define CR_MODELS_PARTS_ADAPTERS_H

#include "models/pass_impl.h"

/* Adds them to a tree, and freezes what is not is_added. CR_ECONFIG, CR_EABSENT: no Linear, or one that cannot have one. */
CR_MUST cr_status cri_adapters_add(cr_model *model, const cr_adapter_options *o, cr_err *err);

static inline bool cri_is_adapted(const cr_module *m, const cr_pass *p)
{
    return m->adapter && !p->has_adapters_off;
}
/* y += scale B (A x). */
CR_MUST cr_status cri_adapter_forward(const cr_module *m, cr_pass *p, const cr_mem *x, cr_mem *y,
                                      cr_err *err);
/* From the gradient of y: those of A and B, where they are wanted, and dx += its part; dx may be NULL. */
CR_MUST cr_status cri_adapter_backward(const cr_module *m, cr_pass *p, const cr_mem *x,
                                       const cr_mem *dy, cr_mem *dx, cr_err *err);

#endif
