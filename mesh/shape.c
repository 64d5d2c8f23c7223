/* shape.c -- the arithmetic of meshes (see mesh.h). No ranks, no communication. */
#include "mesh/mesh.h"

typedef struct axis_layout {
    int num, stride;
} axis_layout;

cr_status cr_mesh_shape_init(cr_mesh_shape *shape, int num_ranks, int fsdp_size, int ulysses_size,
                             int ep_size, int efsdp_size, cr_err *err)
{
    cr_mesh_shape s = {0};
    int fsdp = fsdp_size <= 1 || fsdp_size >= num_ranks ? num_ranks : fsdp_size;

    if (num_ranks < 1)
        return cr_fail(err, CR_ECONFIG, "a mesh of %d ranks: give it at least one device",
                       num_ranks);
    if (num_ranks % fsdp != 0)
        return cr_fail(err, CR_ECONFIG,
                       "M1: fsdp_size %d does not divide the %d ranks (use a divisor of %d)", fsdp,
                       num_ranks, num_ranks);
    if (ulysses_size < 1 || ulysses_size > num_ranks || num_ranks % ulysses_size != 0)
        return cr_fail(err, CR_ECONFIG,
                       "M2: ulysses_size %d does not divide the %d ranks (use a divisor of %d)",
                       ulysses_size, num_ranks, num_ranks);
    if (fsdp < ulysses_size)
        return cr_fail(err, CR_ECONFIG,
                       "M3: fsdp_size %d is below ulysses_size %d (raise fsdp_size to a multiple "
                       "of it or lower ulysses_size)",
                       fsdp, ulysses_size);
    if (ep_size < 1 || ep_size > num_ranks || num_ranks % ep_size != 0)
        return cr_fail(err, CR_ECONFIG, "M7: ep_size %d does not divide the %d ranks", ep_size,
                       num_ranks);
    if (efsdp_size <= 0) efsdp_size = num_ranks / ep_size;
    if ((int64_t)efsdp_size * ep_size > num_ranks || num_ranks % (efsdp_size * ep_size) != 0)
        return cr_fail(err, CR_ECONFIG,
                       "M7: efsdp_size %d times ep_size %d does not divide the %d ranks",
                       efsdp_size, ep_size, num_ranks);
    s.num_ranks = num_ranks;
    s.num_fsdp = fsdp;
    s.num_ddp = num_ranks / fsdp;
    s.num_ulysses = ulysses_size;
    s.num_dp = num_ranks / ulysses_size;
    s.num_ep = ep_size;
    s.num_efsdp = efsdp_size;
    s.num_eddp = num_ranks / (efsdp_size * ep_size);
    s.has_straddle = fsdp % ulysses_size != 0;
    *shape = s;
    return CR_OK;
}

cr_status cr_mesh_check_heads(const cr_mesh_shape *shape, int num_heads, int num_kv_heads,
                              cr_err *err)
{
    int p = shape->num_ulysses;

    if (num_heads % p != 0)
        return cr_fail(err, CR_ECONFIG,
                       "M4: ulysses_size %d does not divide the model's %d attention heads", p,
                       num_heads);
    if (num_kv_heads < 1 || (num_kv_heads % p != 0 && p % num_kv_heads != 0))
        return cr_fail(err, CR_ECONFIG,
                       "M5: the model's %d key/value heads and ulysses_size %d: one must divide "
                       "the other",
                       num_kv_heads, p);
    return CR_OK;
}

cr_status cr_mesh_check_experts(const cr_mesh_shape *shape, int num_experts, cr_err *err)
{
    if (num_experts % shape->num_ep != 0)
        return cr_fail(err, CR_ECONFIG, "M8: ep_size %d does not divide the model's %d experts",
                       shape->num_ep, num_experts);
    return CR_OK;
}

const char *cr_axis_name(cr_axis axis)
{
    static const char *const names[CR_NUM_AXES] = {"all",     "ddp",  "fsdp",  "dp",
                                                   "ulysses", "eddp", "efsdp", "ep"};

    return names[axis];
}

static axis_layout layout(const cr_mesh_shape *s, cr_axis axis)
{
    switch (axis) {
    case CR_AXIS_DDP:
        return (axis_layout){s->num_ddp, s->num_fsdp};
    case CR_AXIS_FSDP:
        return (axis_layout){s->num_fsdp, 1};
    case CR_AXIS_DP:
        return (axis_layout){s->num_dp, s->num_ulysses};
    case CR_AXIS_ULYSSES:
        return (axis_layout){s->num_ulysses, 1};
    case CR_AXIS_EDDP:
        return (axis_layout){s->num_eddp, s->num_efsdp * s->num_ep};
    case CR_AXIS_EFSDP:
        return (axis_layout){s->num_efsdp, s->num_ep};
    case CR_AXIS_EP:
        return (axis_layout){s->num_ep, 1};
    case CR_AXIS_ALL:
    case CR_NUM_AXES:
        break;
    }
    return (axis_layout){s->num_ranks, 1};
}

int cr_mesh_axis_ranks(const cr_mesh_shape *shape, cr_axis axis)
{
    return layout(shape, axis).num;
}

int cr_mesh_axis_rank(const cr_mesh_shape *shape, cr_axis axis, int rank)
{
    axis_layout a = layout(shape, axis);

    return rank / a.stride % a.num;
}

int cr_mesh_members(const cr_mesh_shape *shape, cr_axis axis, int rank, int *members)
{
    axis_layout a = layout(shape, axis);
    int first = rank - rank / a.stride % a.num * a.stride;

    for (int i = 0; i < a.num; i++)
        members[i] = first + i * a.stride;
    return a.num;
}
