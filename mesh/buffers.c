/* buffers.c -- the big buffers: all-gather in place and reduce-scatter (see collectives.h).
 *
 * SHARED: one window for all slots. A gather's slot is the gathered buffer itself; a reduce's slot is
 * one full-size buffer a rank, and the owner of a part reads that part from each, in rank order.
 * MPI: private buffers and MPI_Iallgather / MPI_Ialltoall; a part's contributions arrive in rank
 * order and are summed by the same loop, so the bits are the same. */
#include "mesh/collectives.h"
#include "mesh/flight.h"
#include "mesh/mesh_impl.h"

#include <stdio.h>
#include <string.h>

typedef enum progress { FREE, ANNOUNCED, BEGUN, PUBLISHED } progress;

typedef struct slot {
    progress progress;
    uint32_t sequence;
    uint64_t event;
    size_t part_bytes; /* gather */
    size_t part_elems; /* reduce */
    cr_reduce_dtype dtype;
    MPI_Request request;
    char name[CRI_NAME_BYTES];
} slot;

static size_t align_up(size_t x)
{
    return (x + 63) / 64 * 64;
}

static cr_status check_slot(const cr_group *g, const slot *slots, int num_slots, int index,
                            progress expected, cr_err *err)
{
    static const char *const words[] = {"free", "announced", "begun", "published"};

    if (index < 0 || index >= num_slots)
        return cr_fail(err, CR_EARG, "group %s: slot %d of %d", g->name, index, num_slots);
    if (slots[index].progress != expected)
        return cr_fail(err, CR_EARG, "group %s: slot %d (%s) is %s, not %s", g->name, index,
                       slots[index].name, words[slots[index].progress], words[expected]);
    return CR_OK;
}

/* ---- gather ---- */

struct cr_gather {
    cr_group *group;
    int num_slots;
    size_t slot_bytes;
    slot *slots;
    cri_window *window; /* SHARED */
    char *data;         /* [num_slots][slot_bytes] */
    size_t map_bytes;   /* of private data */
};

cr_status cr_gather_create(cr_group *group, int num_slots, size_t capacity_bytes, cr_gather **out,
                           cr_err *err)
{
    cr_gather *g = CR_NEW(cr_gather);

    *out = NULL;
    g->group = group;
    g->num_slots = num_slots;
    g->slot_bytes = align_up(capacity_bytes);
    g->slots = CR_NEW_ARRAY(slot, num_slots);
    if (group->transport == CRI_SHARED) {
        CR_TRY_GOTO(failed, cri_window_create(group, num_slots, g->slot_bytes * (size_t)num_slots,
                                              &g->window, err));
        g->data = g->window->data;
    } else {
        g->map_bytes = g->slot_bytes * (size_t)num_slots;
        g->data = cri_map(g->map_bytes, group->transport == CRI_META);
    }
    *out = g;
    return CR_OK;
failed:
    cr_gather_destroy(g);
    return err->status;
}

void cr_gather_destroy(cr_gather *gather)
{
    if (!gather) return;
    if (gather->map_bytes || gather->group->transport != CRI_SHARED)
        cri_unmap(gather->data, gather->map_bytes);
    cri_window_destroy(gather->window);
    cr_free(gather->slots);
    cr_free(gather);
}

cr_status cr_gather_announce(cr_gather *gather, int index, const char *name, size_t part_bytes,
                             cr_err *err)
{
    cr_group *g = gather->group;
    slot *s = &gather->slots[index];

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, index, FREE, err));
    if (part_bytes * (size_t)g->num_ranks > gather->slot_bytes)
        return cr_fail(err, CR_EARG, "%s: %d parts of %zu bytes do not fit the gather's %zu bytes",
                       name, g->num_ranks, part_bytes, gather->slot_bytes);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->event = cri_event_begin(g->world, CR_COLL_ALL_GATHER, g, name);
    s->part_bytes = part_bytes;
    CR_TRY(cri_enter(g, CR_COLL_ALL_GATHER, name, part_bytes, /*is_equal=*/true,
                     gather->window ? index : 0, &s->sequence, err));
    cri_event_entered(g->world, s->event, s->sequence, part_bytes * (size_t)g->num_ranks);
    s->progress = ANNOUNCED;
    return CR_OK;
}

bool cr_gather_is_free(const cr_gather *gather, int index)
{
    return !gather->window || cri_window_is_free(gather->window, index);
}

cr_status cr_gather_begin(cr_gather *gather, int index, void **own_part, cr_err *err)
{
    cr_group *g = gather->group;
    slot *s = &gather->slots[index];

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, index, ANNOUNCED, err));
    if (gather->window) CR_TRY(cri_window_begin(gather->window, index, s->name, s->event, err));
    s->progress = BEGUN;
    *own_part = gather->data + gather->slot_bytes * (size_t)index + s->part_bytes * (size_t)g->rank;
    return CR_OK;
}

cr_status cr_gather_publish(cr_gather *gather, int index, cr_err *err)
{
    cr_group *g = gather->group;
    slot *s = &gather->slots[index];
    MPI_Datatype type;
    int count;

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, index, BEGUN, err));
    s->progress = PUBLISHED;
    if (gather->window) cri_window_write(gather->window, index);
    if (g->transport != CRI_MPI) return CR_OK;
    CR_TRY(cri_mpi_count(s->part_bytes, &count, &type, err));
    return cri_mpi(g->world,
                   MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL,
                                  gather->data + gather->slot_bytes * (size_t)index, count, type,
                                  g->comm, &s->request),
                   s->name, err);
}

cr_status cr_gather_wait(cr_gather *gather, int index, const void **whole, cr_err *err)
{
    cr_group *g = gather->group;
    slot *s = &gather->slots[index];

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, index, PUBLISHED, err));
    CR_TRY(cri_meet(g, s->sequence, s->event, err));
    if (gather->window)
        CR_TRY(cri_window_wait_written(gather->window, index, s->name, s->event, err));
    if (g->transport == CRI_MPI)
        CR_TRY(cri_wait_requests(g, &s->request, 1, s->name, s->event, err));
    cri_event_end(g->world, s->event);
    *whole = gather->data + gather->slot_bytes * (size_t)index;
    return CR_OK;
}

void cr_gather_release(cr_gather *gather, int index)
{
    slot *s = &gather->slots[index];

    CR_CHECK(s->progress == PUBLISHED, "released %s before it was published", s->name);
    s->progress = FREE;
    if (gather->window) cri_window_end(gather->window, index);
}

/* ---- reduce ---- */

struct cr_reduce {
    cr_group *group;
    int num_slots;
    size_t slot_elems; /* of one rank's buffer */
    slot *slots;
    cri_window *window; /* SHARED: [num_slots][num_ranks][slot_elems] */
    float *data;        /* else: [num_slots][slot_elems] */
    size_t map_bytes;
    float *wire, *arrived; /* MPI: [num_slots][slot_elems] each; bfloat16 uses half */
};

cr_status cr_reduce_create(cr_group *group, int num_slots, size_t capacity_elems, cr_reduce **out,
                           cr_err *err)
{
    cr_reduce *r = CR_NEW(cr_reduce);
    size_t slot_bytes = align_up(capacity_elems * sizeof(float));

    *out = NULL;
    r->group = group;
    r->num_slots = num_slots;
    r->slot_elems = slot_bytes / sizeof(float);
    r->slots = CR_NEW_ARRAY(slot, num_slots);
    if (group->transport == CRI_SHARED) {
        CR_TRY_GOTO(failed,
                    cri_window_create(group, num_slots,
                                      slot_bytes * (size_t)num_slots * (size_t)group->num_ranks,
                                      &r->window, err));
        r->data = (float *)(void *)r->window->data;
    } else {
        bool is_meta = group->transport == CRI_META;
        r->map_bytes = slot_bytes * (size_t)num_slots;
        r->data = cri_map(r->map_bytes, is_meta);
        if (group->transport == CRI_MPI) {
            r->wire = cri_map(r->map_bytes, is_meta);
            r->arrived = cri_map(r->map_bytes, is_meta);
        }
    }
    *out = r;
    return CR_OK;
failed:
    cr_reduce_destroy(r);
    return err->status;
}

void cr_reduce_destroy(cr_reduce *reduce)
{
    if (!reduce) return;
    if (reduce->group->transport != CRI_SHARED) cri_unmap(reduce->data, reduce->map_bytes);
    cri_unmap(reduce->wire, reduce->map_bytes);
    cri_unmap(reduce->arrived, reduce->map_bytes);
    cri_window_destroy(reduce->window);
    cr_free(reduce->slots);
    cr_free(reduce);
}

static float *reduce_data(const cr_reduce *r, int index, int rank)
{
    size_t at =
        r->window ? (size_t)index * (size_t)r->group->num_ranks + (size_t)rank : (size_t)index;

    return r->data + at * r->slot_elems;
}

cr_status cr_reduce_begin(cr_reduce *reduce, int index, float **data, cr_err *err)
{
    slot *s = &reduce->slots[index];

    CR_TRY(check_slot(reduce->group, reduce->slots, reduce->num_slots, index, FREE, err));
    s->event =
        cri_event_begin(reduce->group->world, CR_COLL_REDUCE_SCATTER, reduce->group, "a reduction");
    if (reduce->window)
        CR_TRY(cri_window_begin(reduce->window, index, "a reduction", s->event, err));
    s->progress = BEGUN;
    *data = reduce_data(reduce, index, reduce->group->rank);
    return CR_OK;
}

/* ---- sums ---- */

static uint16_t bf16_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* shard (=, +=) sum of the contributions. */
static void sum_parts(cr_reduce *r, int index, const slot *s, float *shard, cr_reduce_mode mode)
{
    cr_group *g = r->group;
    size_t n = (size_t)g->num_ranks, own = s->part_elems * (size_t)g->rank;
    bool is_bf16 = s->dtype == CR_REDUCE_BF16;
    const char *arrived =
        (const char *)(r->arrived ? r->arrived + (size_t)index * r->slot_elems : NULL);

    for (size_t p = 0; p < n; p++)
        g->parts[p] = arrived ? arrived + p * s->part_elems * (is_bf16 ? 2 : 4)
                              : (const void *)(reduce_data(r, index, (int)p) + own);
    cri_sum(!is_bf16  ? CRI_SUM_F32
            : arrived ? CRI_SUM_BF16
                      : CRI_SUM_ROUNDED,
            shard, g->parts, (int)n, s->part_elems, mode == CR_REDUCE_ADD);
}

cr_status cr_reduce_publish(cr_reduce *reduce, int index, const char *name, size_t part_elems,
                            cr_reduce_dtype dtype, cr_err *err)
{
    cr_group *g = reduce->group;
    slot *s = &reduce->slots[index];
    size_t elem_bytes = dtype == CR_REDUCE_BF16 ? 2 : 4, num = part_elems * (size_t)g->num_ranks;
    const float *data = reduce_data(reduce, index, g->rank);
    float *wire;
    MPI_Datatype type;
    int count;

    CR_TRY(check_slot(g, reduce->slots, reduce->num_slots, index, BEGUN, err));
    if (num > reduce->slot_elems)
        return cr_fail(err, CR_EARG, "%s: %d parts of %zu floats do not fit the reduction's %zu",
                       name, g->num_ranks, part_elems, reduce->slot_elems);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->part_elems = part_elems;
    s->dtype = dtype;
    CR_TRY(cri_enter(g, CR_COLL_REDUCE_SCATTER, name, part_elems * elem_bytes, /*is_equal=*/true,
                     reduce->window ? index : 0, &s->sequence, err));
    cri_event_named(g->world, s->event, name);
    cri_event_entered(g->world, s->event, s->sequence, num * elem_bytes);
    s->progress = PUBLISHED;
    if (g->transport != CRI_MPI) return CR_OK;
    wire = reduce->wire + (size_t)index * reduce->slot_elems;
    if (dtype == CR_REDUCE_BF16) {
        uint16_t *half = (uint16_t *)(void *)wire;
        for (size_t i = 0; i < num; i++)
            half[i] = bf16_of(data[i]);
    }
    CR_TRY(cri_mpi_count(part_elems * elem_bytes, &count, &type, err));
    return cri_mpi(g->world,
                   MPI_Ialltoall(dtype == CR_REDUCE_BF16 ? wire : data, count, type,
                                 reduce->arrived + (size_t)index * reduce->slot_elems, count, type,
                                 g->comm, &s->request),
                   name, err);
}

bool cr_reduce_is_ready(const cr_reduce *reduce, int index)
{
    const cr_group *g = reduce->group;
    const slot *s = &reduce->slots[index];

    for (int r = 0; reduce->window && r < g->num_ranks; r++)
        if (!cri_flag_reached(&g->members[r].entered, s->sequence)) return false;
    return reduce->window && s->progress == PUBLISHED;
}

cr_status cr_reduce_finish(cr_reduce *reduce, int index, float *shard, cr_reduce_mode mode,
                           cr_err *err)
{
    cr_group *g = reduce->group;
    slot *s = &reduce->slots[index];

    CR_TRY(check_slot(g, reduce->slots, reduce->num_slots, index, PUBLISHED, err));
    CR_TRY(cri_meet(g, s->sequence, s->event, err));
    if (g->transport == CRI_MPI)
        CR_TRY(cri_wait_requests(g, &s->request, 1, s->name, s->event, err));
    if (g->transport != CRI_META) sum_parts(reduce, index, s, shard, mode);
    if (reduce->window) cri_window_end(reduce->window, index);
    s->progress = FREE;
    cri_event_end(g->world, s->event);
    return CR_OK;
}
