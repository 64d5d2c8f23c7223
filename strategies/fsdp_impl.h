/* fsdp_impl.h -- a cr_fsdp from inside (strategies/ only). */
#ifndef CR_FSDP_IMPL_H
#define CR_FSDP_IMPL_H

#include "strategies/strategies.h"
#include "ulysses/ulysses.h"

typedef enum cri_state { CRI_SHARDED, CRI_PUBLISHED, CRI_UNSHARDED } cri_state;

/* One flat buffer of one unit while the model runs. */
typedef struct cri_flat {
    const cr_flat *flat;
    bool is_trained;
    int slot; /* of its gather object, -1: none */
} cri_flat;

typedef struct cri_unit {
    cr_unit *unit;
    cri_flat flat[2]; /* trained, frozen */
    cri_state state;
    size_t index;
    int reduce_slot; /* -1: none */
    struct cr_fsdp *f;
} cri_unit;

/* The order in which a kind of pass gathers units, and where the pass under way is in it. */
typedef struct cri_order {
    cri_unit **units;
    size_t num, capacity, at;
} cri_order;

struct cr_fsdp {
    cr_model *model;
    cr_device *dev;
    cr_mesh *mesh;
    cr_fsdp_args args;
    cr_units units;
    cri_unit *state; /* [units.num] */
    /* own shards of all trained flats, one after another; infer has values instead of the four */
    float *master, *grad, *m, *v;
    void *values; /* trained flats in param_dtype (infer) */
    void *frozen; /* frozen flats in param_dtype */
    cr_gather *root_gather, *gather;
    cr_reduce *root_reduce, *reduce;
    int *free_slots, num_free, *free_reduces, num_free_reduces;
    cri_unit *pending;           /* published a reduce that is not finished */
    cri_order orders[2], *order; /* without and with backward; that of the pass under way */
    cr_stack *tape, *scratch;
    cr_hooks hooks;
    cr_ulysses *ulysses; /* NULL: ulysses_size 1 */
    float *host;         /* log_prob, entropy and their gradients, [4, host_rows] */
    size_t host_rows;
    int64_t num_updates;
    cr_fsdp_stats stats;
    struct cri_save *save; /* under way, or NULL */
};

static inline int cri_rank(const cr_fsdp *f)
{
    return cr_group_rank(f->mesh->group[CR_AXIS_FSDP]);
}

/* This rank's elements of a flat that belong to parameter i: [*begin, *end) of the parameter, and
 * where they lie in the shard. False: none. */
bool cri_shard_range(const cr_flat *flat, size_t i, int shard, int64_t *begin, int64_t *end,
                     int64_t *at);

void cri_reshard(cri_unit *u); /* drop the gathered copy, if there is one */
/* Wait for the writer and forget its result. */
void cri_save_abandon(struct cr_fsdp *f);

#endif
