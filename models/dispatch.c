/* dispatch.c -- rows of a block of experts to the ranks that have the experts and back (see
 * dispatch.h). They are received by rank, then expert, and are put in the order of experts, so that an expert's
 * rows are one range; within it the ranks keep their order. */
#include "models/pass_impl.h"

#include <string.h>

cr_status cri_push_numbers(cr_stack *stack, int64_t num, cr_mem **out, cr_err *err)
{
    return cr_stack_push(stack, (size_t)num * sizeof(float), out, err);
}

static cr_dispatch_counts counts_of(const cr_module *m, const cri_routing *r)
{
    return (cr_dispatch_counts){.name = m->name,
                                .num_experts = r->num_experts,
                                .send_counts = r->count,
                                .recv_counts = r->recv_counts};
}

void cri_count_here(const cr_pass *p, cri_routing *r)
{
    const cr_dispatch *d = p->experts;
    int64_t num_ranks = d ? d->num_ranks : 1, num = r->num_experts / num_ranks,
            first = d ? d->rank * num : 0;

    memset(r->here, 0, (size_t)r->num_experts * sizeof *r->here);
    r->num_here = 0;
    for (int64_t s = 0; s < num_ranks; s++)
        for (int64_t e = 0; e < num; e++) {
            int64_t n = d ? r->recv_counts[s * num + e] : r->count[e];
            r->here[first + e] += n;
            r->num_here += n;
        }
}

/* The rows of rank s for expert e begin where those of lower ranks for e end. */
static void find_places(const cr_dispatch *d, const cri_routing *r, int32_t *places)
{
    int64_t num = r->num_experts / d->num_ranks, at = 0, i = 0;

    for (int64_t s = 0; s < d->num_ranks; s++) {
        at = 0;
        for (int64_t e = 0; e < num; e++) {
            int64_t before = 0;
            for (int64_t lower = 0; lower < s; lower++)
                before += r->recv_counts[lower * num + e];
            for (int64_t k = 0; k < r->recv_counts[s * num + e]; k++)
                places[i++] = (int32_t)(at + before + k);
            at += r->here[d->rank * num + e];
        }
    }
}

cr_status cri_exchange_counts(const cr_module *m, cr_pass *p, cri_routing *r, cr_err *err)
{
    cr_dispatch_counts t = counts_of(m, r);
    cri_routers *all = &p->state->routers;
    size_t num;

    CR_TRY(p->experts->exchange_counts(p->experts->ctx, &t, err));
    cri_count_here(p, r);
    num = (size_t)r->num_here;
    all->places = cr_reserve(all->places, &all->capacity_places, num, sizeof *all->places);
    find_places(p->experts, r, all->places);
    return cr_stack_push_copy(cri_keep(p), all->places, num * sizeof *all->places, &r->place, err);
}

cr_status cri_dispatch_rows(const cr_module *m, cr_pass *p, const cri_routing *r, cr_dtype dtype,
                            int64_t num_cols, const cr_mem *slots, cr_mem *here, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch), row_bytes = (size_t)num_cols * cr_dtype_bytes(dtype);
    cr_dispatch_counts t = counts_of(m, r);
    cr_mem *recv;

    CR_TRY(cr_stack_push(p->scratch, (size_t)r->num_here * row_bytes, &recv, err));
    CR_TRY(p->experts->dispatch(p->experts->ctx, &t, slots, row_bytes, recv, err));
    CR_TRY(cr_rows_scatter(
        p->dev, &(cr_rows_move_args){dtype, recv, r->place, r->num_here, num_cols, here}, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

cr_status cri_combine_rows(const cr_module *m, cr_pass *p, const cri_routing *r, cr_dtype dtype,
                           int64_t num_cols, const cr_mem *here, cr_mem *slots, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch), row_bytes = (size_t)num_cols * cr_dtype_bytes(dtype);
    cr_dispatch_counts t = counts_of(m, r);
    cr_mem *recv;

    CR_TRY(cr_stack_push(p->scratch, (size_t)r->num_here * row_bytes, &recv, err));
    CR_TRY(cr_rows_gather(
        p->dev, &(cr_rows_move_args){dtype, here, r->place, r->num_here, num_cols, recv}, err));
    CR_TRY(p->experts->combine(p->experts->ctx, &t, recv, row_bytes, slots, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}
