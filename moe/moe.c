/* moe.c -- rows of tokens to the ranks that have their experts, and back (see moe.h). */
#include "moe/moe.h"

struct cr_moe {
    cr_group *group;
    cr_dispatch dispatch;
    size_t *leaving_bytes, *arriving_bytes; /* [num_ranks] of the call under way */
};

/* On a meta world nothing arrives: as if every rank had this one's tokens. */
static void mirror(const cr_moe *m, const cr_travel *t, int64_t num_here)
{
    for (int r = 0; r < m->dispatch.num_ranks; r++)
        for (int64_t e = 0; e < num_here; e++)
            t->arriving[r * num_here + e] = t->leaving[m->dispatch.rank * num_here + e];
}

static cr_status agree(void *ctx, const cr_travel *t, cr_err *err)
{
    cr_moe *m = ctx;
    int64_t num_here = t->num_experts / m->dispatch.num_ranks;

    CR_TRY(cr_all_to_all_i64(m->group, t->name, t->leaving, t->arriving, (size_t)num_here, err));
    if (cr_world_get_kind(cr_group_world(m->group)) == CR_WORLD_META) mirror(m, t, num_here);
    return CR_OK;
}

static void count_bytes(const cr_moe *m, const cr_travel *t, size_t row_bytes)
{
    int64_t num_here = t->num_experts / m->dispatch.num_ranks;

    for (int r = 0; r < m->dispatch.num_ranks; r++) {
        m->leaving_bytes[r] = m->arriving_bytes[r] = 0;
        for (int64_t e = r * num_here; e < (r + 1) * num_here; e++) {
            m->leaving_bytes[r] += (size_t)t->leaving[e] * row_bytes;
            m->arriving_bytes[r] += (size_t)t->arriving[e] * row_bytes;
        }
    }
}

static cr_status send(void *ctx, const cr_travel *t, const cr_mem *leaving, size_t row_bytes,
                      cr_mem *arriving, cr_err *err)
{
    cr_moe *m = ctx;

    count_bytes(m, t, row_bytes);
    return cr_all_to_all(m->group, t->name, leaving, m->leaving_bytes, arriving, m->arriving_bytes,
                         err);
}

static cr_status give_back(void *ctx, const cr_travel *t, const cr_mem *arriving, size_t row_bytes,
                           cr_mem *leaving, cr_err *err)
{
    cr_moe *m = ctx;

    count_bytes(m, t, row_bytes);
    return cr_all_to_all(m->group, t->name, arriving, m->arriving_bytes, leaving, m->leaving_bytes,
                         err);
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
                                .agree = agree,
                                .send = send,
                                .give_back = give_back,
                                .ctx = m};
    m->leaving_bytes = CR_NEW_ARRAY(size_t, num);
    m->arriving_bytes = CR_NEW_ARRAY(size_t, num);
    return CR_OK;
}

void cr_moe_destroy(cr_moe *m)
{
    if (!m) return;
    cr_free(m->leaving_bytes);
    cr_free(m->arriving_bytes);
    cr_free(m);
}

const cr_dispatch *cr_moe_dispatch(const cr_moe *m)
{
    return &m->dispatch;
}
