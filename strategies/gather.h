/* gather.h -- units while the model runs: gathered copies around modules, and gradients (strategies/ only).
 *
 * Streams (kernels/memory.h): model kernels, updates and all that comes between passes run on compute, gathered copies
 * are filled on gather, gradients are reduced on reduce; with is_offloaded they go to the host on copy, and shards come from there on
 * upload, piece after piece, while gather casts the piece before. Events at each hand-over:
 *     compute after gather   a unit's gathered copy is there before its modules run (cri_unit.ready)
 *     gather after compute   the modules that read a copy are over before its slot is released; weights are updated
 *                            before a pass gathers them
 *     gather after upload    (is_offloaded) a piece of a shard is there before it is cast
 *     upload after gather    (is_offloaded) a piece has been cast before another one takes its place
 *     reduce after compute   a unit's gradient is complete before it is published
 *     reduce after copy      (is_offloaded) what the shard has on the host is there before a sum is added
 *     copy after reduce      (is_offloaded) the sum is complete before it goes to the host
 *     compute after reduce   a slot's last reduction has ended before gradients are accumulated in it again
 *                            (cri_reduces.done); all are in the shards when a pass ends
 */
#ifndef CR_GATHER_H
#define CR_GATHER_H

#include "strategies/strategies.h"

/* Announced: the others know that it comes next; its own part may not be written yet. */
typedef enum cri_unit_state {
    CRI_SHARDED,
    CRI_ANNOUNCED,
    CRI_PUBLISHED,
    CRI_UNSHARDED
} cri_unit_state;

/* Free slots of a gather or reduce object. Every rank takes them in the same order because every rank meets
 * the same hooks in the same order. */
typedef struct cri_slots {
    int *free, num_free, num;
} cri_slots;

typedef struct cri_pool {
    cr_gather *gather;
    cri_slots slots;
} cri_pool;

typedef struct cri_reduces {
    cr_reduce *reduce;
    cri_slots slots;
    cr_event **done; /* [slots.num] on the reduce stream: the slot's last reduction has ended */
} cri_reduces;

/* One flat buffer of one unit while the model runs. */
typedef struct cri_flat {
    const cr_flat *flat;
    bool is_trained;
    cri_pool *pool; /* where its gathered copy is, or NULL */
    int slot;
    int64_t slice_at;    /* byte of f->slices; the slice is 1 / num_slices of the flat */
    int64_t first_whole; /* element of f->whole_grad (trained) */
    int64_t weight_at;   /* element of f->weights (trained); -1: none */
} cri_flat;

typedef struct cri_unit {
    cr_unit *unit;
    cri_flat flat[2]; /* trained, frozen */
    cri_unit_state state;
    bool is_sliced; /* its slices are those of the weights now, kept since forward */
    size_t index;
    int reduce_slot; /* -1: none */
    bool has_grad; /* its shard's gradient has a sum since the last update; else it is undefined */
    cr_event *ready; /* on the gather stream: what was published last is there */
    struct cr_fsdp *f;
} cri_unit;

/* The order in which a kind of pass gathers units, and where the pass under way is in it. */
typedef struct cri_order {
    cri_unit **units;
    size_t num, capacity, at;
} cri_order;

typedef enum cri_traffic { CRI_GATHERS, CRI_REDUCES, CRI_ALL_REDUCES } cri_traffic;

CR_MUST cr_status cri_buffers_create(struct cr_fsdp *f, cr_err *err);
void cri_buffers_destroy(struct cr_fsdp *f);
CR_MUST cr_status cri_begin_pass(struct cr_fsdp *f, bool is_with_backward, cr_err *err);
CR_MUST cr_status cri_begin_root_grads(struct cr_fsdp *f, cr_err *err);
CR_MUST cr_status cri_end_pass(struct cr_fsdp *f, bool is_with_backward, cr_err *err);
CR_MUST cr_status cri_before(void *ctx, const cr_module *module, cr_phase phase, cr_err *err);
CR_MUST cr_status cri_after(void *ctx, const cr_module *module, cr_phase phase, cr_err *err);
CR_MUST cr_status cri_reshard_all(struct cr_fsdp *f,
                                  cr_err *err); /* gathered copies are of old weights */
/* Where pieces of shards come to, with the buffers of an offloaded model. Destroy accepts none. */
CR_MUST cr_status cri_staging_create(struct cr_fsdp *f, cr_err *err);
void cri_staging_destroy(struct cr_fsdp *f);
/* num elements of a shard on the host, cast on the device, to `own`, on the gather stream. With staging. */
CR_MUST cr_status cri_fill_from_host(struct cr_fsdp *f, cr_dtype to, cr_mem *own, cr_dtype from,
                                     const cr_mem *shard, int64_t num, cr_err *err);
/* No unit is gathered: shards are whole (a mesh of one rank), in the dtype of compute and on the device. Then the weights of all can
 * be there at the same time, at no cost: until the end of the pass, or (reshard never) longer. */
bool cri_is_resident(const struct cr_fsdp *f);
CR_MUST cr_status cri_show_all(struct cr_fsdp *f, cr_err *err);
/* Reduce what is_reduced_once has kept back. */
CR_MUST cr_status cri_reduce_whole(struct cr_fsdp *f, cr_err *err);
void cri_count(struct cr_fsdp *f, cri_traffic kind, size_t num_bytes);

#endif
