/* moe.c -- rows of tokens to the ranks that have their experts, and back (see moe.h). */
#include "moe/moe.h"

struct cr_moe {
    cr_group *group;
    cr_dispatch dispatch;
    size_t *send_bytes,
        *recv_bytes; /* [num_ranks] of a dispatch; the other way round of a combine */
};

/* On a meta world nothing is received: as if every rank had this one's tokens. */
static void mirror(const cr_moe *m, const cr_dispatch_counts *t, int64_t num_here)
{
    for (int r = 0; r < m->dispatch.num_ranks; r++)
        for (int64_t e = 0; e < num_here; e++)
            t->recv_counts[r * num_here + e] = t->send_counts[m->dispatch.rank * num_here + e];
}

static cr_status exchange_counts(void *ctx, const cr_dispatch_counts *t, cr_err *err)
{
    cr_moe *m = ctx;
    int64_t num_here = t->num_experts / m->dispatch.num_ranks;

    CR_TRY(cr_all_to_all_i64(m->group, t->name, t->send_counts, t->recv_counts, (size_t)num_here,
                             err));
    if (cr_world_get_kind(cr_group_world(m->group)) == CR_WORLD_META) mirror(m, t, num_here);
    return CR_OK;
}

static void count_bytes(const cr_moe *m, const cr_dispatch_counts *t, size_t row_bytes)
{
    int64_t num_here = t->num_experts / m->dispatch.num_ranks;

    for (int r = 0; r < m->dispatch.num_ranks; r++) {
        m->send_bytes[r] = m->recv_bytes[r] = 0;
        for (int64_t e = r * num_here; e < (r + 1) * num_here; e++) {
            m->send_bytes[r] += (size_t)t->send_counts[e] * row_bytes;
            m->recv_bytes[r] += (size_t)t->recv_counts[e] * row_bytes;
        }
    }
}

static cr_status dispatch(void *ctx, const cr_dispatch_counts *t, const cr_mem *send,
                          size_t row_bytes, cr_mem *recv, cr_err *err)
{
    cr_moe *m = ctx;

    count_bytes(m, t, row_bytes);
    return cr_all_to_all(m->group, t->name, send, m->send_bytes, recv, m->recv_bytes, err);
}

static cr_status combine(void *ctx, const cr_dispatch_counts *t, const cr_mem *send,
                         size_t row_bytes, cr_mem *recv, cr_err *err)
{
    cr_moe *m = ctx;

    count_bytes(m, t, row_bytes);
    return cr_all_to_all(m->group, t->name, send, m->recv_bytes, recv, m->send_bytes, err);
}

cr_status cr_moe_create(const cr_mesh *mesh, const cr_model *model, cr_moe **out, cr_err *err)
{
    cr_group *group = mesh->group[CR_AXIS_EP];
    int num = cr_group_num_ranks(group);
    cr_moe *m;

    *out = NULL;
    CR_TRY(cr_mesh_check_experts(&mesh->shape, (int)model->config.num_experts, err));
    m = *out = CR_NEW(cr_moe);
    m->group = group;
    m->dispatch = (cr_dispatch){.rank = cr_group_rank(group),
                                .num_ranks = num,
                                .exchange_counts = exchange_counts,
                                .dispatch = dispatch,
                                .combine = combine,
                                .ctx = m};
    m->send_bytes = CR_NEW_ARRAY(size_t, num);
    m->recv_bytes = CR_NEW_ARRAY(size_t, num);
    return CR_OK;
}

void cr_moe_destroy(cr_moe *m)
{
    if (!m) return;
    cr_free(m->send_bytes);
    cr_free(m->recv_bytes);
    cr_free(m);
}

const cr_dispatch *cr_moe_dispatch(const cr_moe *m)
{
    return &m->dispatch;
}
