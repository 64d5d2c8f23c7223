/* adapters.h -- LoRA of Linears (cr_adapter). Inside models/ only.
 *
 * Products are cr_adapted_linears (kernels/adapters.h), one for Linears of the same rows. The numbers of a pass are those of a model that has
 * its adapter alone, or none.
 */
#ifndef CR_MODELS_PARTS_ADAPTERS_H
#define CR_MODELS_PARTS_ADAPTERS_H

#include "kernels/adapters.h"
#include "models/pass_impl.h"

/* Adds o, o->next, .. to a tree, and freezes what is not is_added. CR_ECONFIG, CR_EABSENT: no Linear, or one that cannot have one. */
CR_MUST cr_status cri_adapters_add(cr_model *model, const cr_adapter_options *o, cr_err *err);

/* One more child of a module may be added. */
void cri_make_room(cr_module *parent);

/* saved.c: what own->saved names is trained in full, and is no target. Its names, if the tree has a tower that PEFT would look into. */
CR_MUST cr_status cri_saved_add(cr_model *model, cr_adapter_options *own, cr_err *err);

/* The module whose parameters this pass has in the place of m's. */
static inline const cr_module *cri_now(const cr_module *m, const cr_pass *p)
{
    return p->adapter < 0 && m->original ? m->original : m;
}

/* That of the pass; NULL: none. */
static inline const cr_adapter *cri_adapter_of(const cr_module *m, const cr_pass *p)
{
    const cr_adapter *own = m->adapters && p->adapter >= 0 ? &m->adapters[p->adapter] : NULL;

    return own && own->a ? own : NULL;
}
static inline bool cri_is_adapted(const cr_module *m, const cr_pass *p)
{
    return cri_adapter_of(m, p) != NULL;
}
/* Is one of them? */
static inline bool cri_are_adapted(const cr_module *const *m, int num, const cr_pass *p)
{
    bool is_any = false;

    for (int i = 0; i < num; i++)
        is_any = is_any || cri_is_adapted(m[i], p);
    return is_any;
}

/* What base says, with their adapters; add, is_base_made: as in cr_adapted_linears_args. */
CR_MUST cr_status cri_adapted_linears(const cr_module *const *m, const cr_linears_args *base,
                                      const cr_mem *add, bool is_base_made, cr_pass *p,
                                      cr_err *err);
/* Backward of what cri_linears made, whether they have adapters or not: dx is that of all. */
CR_MUST cr_status cri_linears_back(const cr_module *const *m, int num, cr_pass *p, const cr_mem *x,
                                   const cr_mem *const *dy, cr_mem *dx, cri_dx how, cr_err *err);
/* From the gradients of their outputs: those of A and B, where they are wanted, and dx, which may be NULL. */
CR_MUST cr_status cri_adapted_linears_back(const cr_module *const *m, int num, cr_pass *p,
                                           const cr_mem *x, const cr_mem *const *dy, cr_mem *dx,
                                           cri_dx how, bool is_base_made, cr_err *err);

#endif
