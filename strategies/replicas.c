/* replicas.c -- the replicas of the ddp axis hold the same bits (see strategies.h). */
#include "strategies/fsdp_impl.h"

#include <string.h>

/* Four lanes of multiply and mix over 8-byte words: order matters, every bit counts, 10 GB/s. */
uint64_t cri_checksum(const void *data, size_t num_bytes, uint64_t start)
{
    const unsigned char *p = data;
    uint64_t lane[4] = {start ^ 0x9E3779B97F4A7C15u, start + 1, start ^ 2, start + 3}, word;
    size_t i = 0;

    for (; i + 32 <= num_bytes; i += 32)
        for (int k = 0; k < 4; k++) {
            memcpy(&word, p + i + 8 * (size_t)k, 8);
            lane[k] = (lane[k] ^ word) * 0xFF51AFD7ED558CCDu;
            lane[k] ^= lane[k] >> 29;
        }
    for (; i < num_bytes; i++)
        lane[0] = (lane[0] ^ p[i]) * 0x100000001B3u;
    return ((lane[0] * 31 + lane[1]) * 31 + lane[2]) * 31 + lane[3];
}

typedef struct state {
    const char *name;
    cri_kind kind;
} state;

static const state states[] = {{"masters", CRI_MASTER},
                               {"first moments", CRI_M},
                               {"second moments", CRI_V},
                               {"values", CRI_VALUES},
                               {"frozen parameters", CRI_FROZEN}};

/* Dealt experts, whose shards are the last in each arena, have replicas of their own (eddp). */
typedef struct range {
    char *data;
    size_t num_bytes;
} range;

static range range_of(const cr_fsdp *f, cri_kind kind, cr_axis axis)
{
    const cri_arena *a = &f->arena[kind];
    const cr_units *u = &f->units;
    bool is_frozen = kind == CRI_FROZEN;
    bool is_master = !is_frozen && kind != CRI_VALUES;
    cr_extent undealt = is_frozen ? u->undealt_frozen : u->undealt_trained;
    size_t border = is_master ? (size_t)undealt.elems * cr_dtype_bytes(f->args.master_dtype)
                              : (size_t)cr_extent_bytes(undealt, f->args.param_dtype);

    if (!a->data) return (range){0};
    return axis == CR_AXIS_DDP ? (range){a->data, border}
                               : (range){(char *)a->data + border, a->num_bytes - border};
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
        sums[k] = cri_checksum(x.data, x.num_bytes, k);
    }
    if (cr_all_gather_bytes(group, "checksums of replicas", sums, bytes, &all, offsets, err) ==
        CR_OK)
        for (int r = 1; r < num && *odd < 0; r++)
            for (size_t k = 0; k < CR_COUNT(states) && *odd < 0; k++)
                if (memcmp(all.data + (size_t)r * bytes + 8 * k, all.data + 8 * k, 8) != 0) {
                    *odd = cr_group_world_rank(group, r);
                    *which = states[k].name;
                }
    cr_buf_free(&all);
    cr_free(offsets);
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
        if (x.num_bytes) CR_TRY(cr_broadcast(group, states[k].name, 0, x.data, x.num_bytes, err));
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
    if (should_repair) cri_reshard_all(f);
    cr_note(check_axis(f, CR_AXIS_DDP, should_repair, err));
    CR_TRY(cr_agree(f->mesh->group[CR_AXIS_ALL], "compare replicas", err));
    if (shape->num_ep == 1) return CR_OK;
    cr_note(check_axis(f, CR_AXIS_EDDP, should_repair, err));
    return cr_agree(f->mesh->group[CR_AXIS_ALL], "compare replicas of experts", err);
}
