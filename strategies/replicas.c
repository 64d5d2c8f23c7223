/* replicas.c -- the replicas of the ddp axis hold the same bits (see strategies.h). */
#include "strategies/fsdp_impl.h"

#include <string.h>

typedef struct state {
    const char *name;
    cri_kind kind;
} state;

static const state states[] = {{"masters", CRI_MASTER},
                               {"first moments", CRI_M},
                               {"second moments", CRI_V},
                               {"values", CRI_VALUES},
                               {"frozen parameters", CRI_FROZEN}};

/* Expert-parallel experts, whose shards are the last in each arena, have replicas of their own (eddp). */
typedef struct range {
    cr_mem *data;
    size_t num_bytes;
} range;

static range range_of(const cr_fsdp *f, cri_kind kind, cr_axis axis)
{
    const cr_units *u = &f->units;
    cr_mem *data = cri_arena_at(f, kind);
    bool is_frozen = kind == CRI_FROZEN;
    bool is_master = !is_frozen && kind != CRI_VALUES;
    cr_extent common = is_frozen ? u->common_frozen : u->common_trained;
    const int64_t masters = kind == CRI_V ? f->num_common_seconds : common.elems;
    size_t border = is_master ? (size_t)masters * cr_dtype_bytes(f->args.master_dtype)
                              : (size_t)cr_extent_bytes(common, f->args.param_dtype);

    if (!data) return (range){0};
    return axis == CR_AXIS_DDP
               ? (range){data, border}
               : (range){cr_mem_add(data, border), f->arena[kind].num_bytes - border};
}

/* The first replica whose bits are not those of replica 0, or -1; *which: of what. */
static cr_status find_odd(cr_fsdp *f, cr_axis axis, int *odd, const char **which, cr_err *err)
{
    cr_group *group = f->mesh->group[axis];
    int num = cr_group_num_ranks(group);
    size_t *offsets = CR_NEW_ARRAY(size_t, num + 1), bytes = CR_COUNT(states) * sizeof(uint64_t);
    uint64_t sums[CR_COUNT(states)];
    cr_buf all = {0};

    *odd = -1;
    for (size_t k = 0; k < CR_COUNT(states); k++) {
        range x = range_of(f, states[k].kind, axis);
        CR_TRY_GOTO(out, cr_checksum(cri_home(f),
                                     &(cr_checksum_args){x.data, x.num_bytes, k, &sums[k]}, err));
    }
    if (cr_all_gather_bytes(group, "checksums of replicas", sums, bytes, &all, offsets, err) ==
        CR_OK)
        for (int r = 1; r < num && *odd < 0; r++)
            for (size_t k = 0; k < CR_COUNT(states) && *odd < 0; k++)
                if (memcmp(all.data + (size_t)r * bytes + 8 * k, all.data + 8 * k, 8) != 0) {
                    *odd = cr_group_world_rank(group, r);
                    *which = states[k].name;
                }
out:
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}

/* The first replica's, through blocks on the host. */
static cr_status copy_first(cr_fsdp *f, cr_group *group, const char *name, range x, cr_err *err)
{
    enum { BLOCK = 1 << 20 };
    char *block = cr_alloc(BLOCK);

    for (size_t at = 0; at < x.num_bytes && err->status == CR_OK; at += BLOCK) {
        size_t num = x.num_bytes - at < BLOCK ? x.num_bytes - at : BLOCK;
        cr_mem *data = cr_mem_add(x.data, at);
        if (cr_download(cri_home(f), block, data, num, err) == CR_OK &&
            cr_broadcast(group, name, 0, block, num, err) == CR_OK)
            cr_note(cr_upload(cri_home(f), data, block, num, err));
    }
    cr_free(block);
    return err->status;
}

static cr_status check_axis(cr_fsdp *f, cr_axis axis, bool should_repair, cr_err *err)
{
    cr_group *group = f->mesh->group[axis];
    const char *which = NULL;
    int odd;

    if (cr_group_num_ranks(group) == 1) return CR_OK;
    for (size_t k = 0; should_repair && k < CR_COUNT(states); k++) {
        range x = range_of(f, states[k].kind, axis);
        CR_TRY(copy_first(f, group, states[k].name, x, err));
    }
    CR_TRY(find_odd(f, axis, &odd, &which, err));
    if (odd < 0) return CR_OK;
    return cr_fail(err, CR_EPEER,
                   "the %s of rank %d have other bits than those of rank %d, its replica", which,
                   odd, cr_group_world_rank(group, 0));
}

cr_status cr_fsdp_check_replicas(cr_fsdp *f, bool should_repair, cr_err *err)
{
    const cr_mesh_shape *shape = &f->mesh->shape;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_MOMENTS, "replicas", err));
    if ((shape->num_ddp == 1 && (shape->num_ep == 1 || shape->num_eddp == 1)) ||
        cr_device_is_meta(f->dev))
        return CR_OK;
    if (should_repair) {
        cri_states_changed(f);
        CR_TRY(cri_reshard_all(f, err));
    }
    cr_note(check_axis(f, CR_AXIS_DDP, should_repair, err));
    CR_TRY(cr_agree(f->mesh->group[CR_AXIS_ALL], "compare replicas", err));
    if (shape->num_ep == 1) return CR_OK;
    cr_note(check_axis(f, CR_AXIS_EDDP, should_repair, err));
    return cr_agree(f->mesh->group[CR_AXIS_ALL], "compare replicas of experts", err);
}
