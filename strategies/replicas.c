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

/* The first replica whose bits are not those of replica 0, or -1; *which: of what. */
static cr_status find_odd(cr_fsdp *f, int *odd, const char **which, cr_err *err)
{
    cr_group *ddp = f->mesh->group[CR_AXIS_DDP];
    int num = cr_group_num_ranks(ddp);
    size_t *offsets = CR_NEW_ARRAY(size_t, num + 1), bytes = CR_COUNT(states) * sizeof(uint64_t);
    uint64_t sums[CR_COUNT(states)];
    cr_buf all = {0};

    *odd = -1;
    for (size_t k = 0; k < CR_COUNT(states); k++)
        sums[k] =
            cri_checksum(f->arena[states[k].kind].data, f->arena[states[k].kind].num_bytes, k);
    if (cr_all_gather_bytes(ddp, "checksums of replicas", sums, bytes, &all, offsets, err) == CR_OK)
        for (int r = 1; r < num && *odd < 0; r++)
            for (size_t k = 0; k < CR_COUNT(states) && *odd < 0; k++)
                if (memcmp(all.data + (size_t)r * bytes + 8 * k, all.data + 8 * k, 8) != 0) {
                    *odd = cr_group_world_rank(ddp, r);
                    *which = states[k].name;
                }
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}

cr_status cr_fsdp_check_replicas(cr_fsdp *f, bool should_repair, cr_err *err)
{
    cr_group *ddp = f->mesh->group[CR_AXIS_DDP];
    const char *which = NULL;
    int odd;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_MOMENTS, "replicas", err));
    if (cr_group_num_ranks(ddp) == 1 || cr_device_is_meta(f->dev)) return CR_OK;
    if (should_repair) {
        for (size_t k = 0; k < CR_COUNT(states); k++) {
            const cri_arena *a = &f->arena[states[k].kind];
            if (a->num_bytes)
                CR_TRY(cr_broadcast(ddp, states[k].name, 0, a->data, a->num_bytes, err));
        }
        cri_reshard_all(f);
    }
    CR_TRY(find_odd(f, &odd, &which, err));
    if (odd >= 0)
        cr_fail(err, CR_EPEER,
                "the %s of rank %d have other bits than those of rank %d, its replica", which, odd,
                cr_group_world_rank(ddp, 0));
    return cr_agree(f->mesh->group[CR_AXIS_ALL], "compare replicas", err);
}
