/* comm_shared.c -- all ranks of the group on one host: data in shared windows.
 *
 * Collectives of private memory pass through the host's staging area in rounds of CRI_STAGE_BYTES a rank: write the next piece,
 * post and complete, read the others' pieces. Two staging slots alternate, so that one round of the control
 * plane is enough: a rank posts a round only after it has read the round before.
 * A gather's slot is the gathered buffer itself; a reduction's slot is one full-size buffer a rank, and the owner
 * of a part reads that part from each. */
#include "mesh/host.h"
#include "mesh/hosts/layout.h"

#include <string.h>

/* sums go from the stage to the vector in blocks that fit the first cache */
enum { BLOCK_BYTES = 1 << 14 };

cr_status cri_shared_open(cri_host *host, int num_slots, size_t num_bytes, cr_err *err)
{
    CR_TRY(cri_window_create(host, num_slots,
                             num_bytes + (size_t)host->num_places * sizeof(cri_member),
                             &host->stage, err));
    host->members = (cri_member *)(void *)(host->stage->data + num_bytes);
    return CR_OK;
}

void cri_shared_close(cr_group *group)
{
    if (group->host) {
        cri_window_destroy(group->host->channel);
        cri_window_destroy(group->host->stage);
    }
    cri_host_destroy(group->host);
}

/* The window with the entries is made here and not when first used, because making one cannot notice that ranks
 * do different things. */
static cr_status shared_open(cr_group *group, cr_err *err)
{
    int n = group->num_ranks, *rank = CR_NEW_ARRAY(int, n);

    for (int r = 0; r < n; r++)
        rank[r] = r;
    if (cri_open_mpi(group, err) == CR_OK) {
        group->host = cri_host_create(group, rank, n, n, group->mpi);
        cr_note(cri_shared_open(group->host, 0, 2 * (size_t)CRI_STAGE_BYTES * (size_t)n, err));
    }
    cr_free(rank);
    return err->status;
}

static void shared_close(cr_group *group)
{
    cri_shared_close(group);
    cri_close_mpi(group);
}

static cr_status post(cr_group *group, const cri_entry *entry, cr_err *err)
{
    return cri_host_post(group->host, entry, err);
}

static cr_status complete(cr_group *group, uint32_t sequence, cr_err *err)
{
    return cri_host_complete(group->host, sequence, err);
}

static bool is_done(const cr_group *group, uint32_t sequence)
{
    return cri_host_is_done(group->host, sequence);
}

static void abort_none(cr_group *group, const cr_err *failure) /* all ranks see this one's board */
{
    (void)group;
    (void)failure;
}

/* ---- small collectives ---- */

/* The staging slot of the next round. No rank reads it any more: this rank has completed a round since. */
static int stage_next(cri_host *h)
{
    return (int)(h->stage_uses++ % 2);
}

static char *stage_of(const cri_host *h, int slot, int rank)
{
    return h->stage->data + ((size_t)slot * (size_t)h->num + (size_t)rank) * CRI_STAGE_BYTES;
}

static size_t piece(size_t total, size_t at)
{
    if (at >= total) return 0;
    return total - at < CRI_STAGE_BYTES ? total - at : CRI_STAGE_BYTES;
}

/* A vector that fits a stage: one round, in which each rank sums all parts. */
static cr_status all_reduce_short(cri_call *call, const cri_vector *v, cr_err *err)
{
    cr_group *g = call->group;
    size_t num_bytes = v->num * v->elem_bytes;
    int slot = stage_next(g->host);

    if (num_bytes > 0) memcpy(stage_of(g->host, slot, g->rank), v->data, num_bytes);
    CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/true, err));
    for (int r = 0; r < g->num_ranks; r++)
        g->parts[r] = stage_of(g->host, slot, r);
    cri_combine(v, g->parts, g->merges, g->num_ranks, v->data, v->num);
    return CR_OK;
}

/* A long vector goes in chunks, and each rank sums one slice of a chunk. In a rank's stage slice q has its place, room for
 * `place` elements: there are this rank's parts of the others' slices, and the sum of its own. */
typedef struct chunk {
    size_t begin, num;   /* elements of the vector */
    size_t slice, place; /* elements; the last slices may be shorter or empty */
    int slot;
} chunk;

static chunk chunk_at(const cr_group *g, const cri_vector *v, int first_slot, size_t index)
{
    size_t n = (size_t)g->num_ranks;
    chunk c = {.slot = (int)(((size_t)first_slot + index) % 2)};

    c.place = CRI_STAGE_BYTES / v->elem_bytes / n / CRI_SLICE_ELEMS * CRI_SLICE_ELEMS;
    CR_CHECK(c.place > 0, "%zu ranks on one host", n);
    c.begin = index * c.place * n;
    if (c.begin < v->num) c.num = v->num - c.begin < c.place * n ? v->num - c.begin : c.place * n;
    c.slice = cri_slice_elems(c.num, g->num_ranks);
    return c;
}

typedef struct slice { /* of rank q */
    char *data;        /* in the vector */
    size_t at;         /* bytes, in a stage */
    size_t num, num_bytes;
} slice;

static slice slice_of(const cri_vector *v, const chunk *c, int q)
{
    slice s = {.at = c->place * (size_t)q * v->elem_bytes,
               .num = cri_slice_num(c->slice, c->num, q)};

    s.data = v->data + (c->begin + (s.num ? c->slice * (size_t)q : 0)) * v->elem_bytes;
    s.num_bytes = s.num * v->elem_bytes;
    return s;
}

static void put_parts(const cr_group *g, const cri_vector *v, chunk c)
{
    for (int q = 0; q < g->num_ranks; q++) {
        slice s = slice_of(v, &c, q);
        if (q != g->rank) memcpy(stage_of(g->host, c.slot, g->rank) + s.at, s.data, s.num_bytes);
    }
}

/* Block by block, so that a block of sums is still in the cache when it is copied to the vector. */
static void sum_slice(const cr_group *g, const cri_vector *v, chunk c)
{
    slice s = slice_of(v, &c, g->rank);
    char *sums = stage_of(g->host, c.slot, g->rank) + s.at;

    for (size_t at = 0; at < s.num_bytes; at += BLOCK_BYTES) {
        size_t num_bytes = s.num_bytes - at < BLOCK_BYTES ? s.num_bytes - at : BLOCK_BYTES;
        for (int r = 0; r < g->num_ranks; r++)
            g->parts[r] = (r == g->rank ? s.data : stage_of(g->host, c.slot, r) + s.at) + at;
        cri_combine(v, g->parts, g->merges, g->num_ranks, sums + at, num_bytes / v->elem_bytes);
        memcpy(s.data + at, sums + at, num_bytes);
    }
}

static void take_sums(const cr_group *g, const cri_vector *v, chunk c)
{
    for (int q = 0; q < g->num_ranks; q++) {
        slice s = slice_of(v, &c, q);
        if (q != g->rank) memcpy(s.data, stage_of(g->host, c.slot, q) + s.at, s.num_bytes);
    }
}

/* Three chunks are under way, and one round is enough for all of them: the sums of one are taken, the parts of the one
 * after the next are put in the same slot (in other places), the next one's are summed in the other slot. The slot of
 * the last chunk is read until its reader posts again, so the next collective begins with the other one. */
static cr_status all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    cr_group *g = call->group;
    size_t num_bytes = v->num * v->elem_bytes, num = 0;
    int first = (int)(g->host->stage_uses % 2);

    if (num_bytes <= CRI_STAGE_BYTES) return all_reduce_short(call, v, err);
    while (chunk_at(g, v, first, num).num > 0)
        num++;
    g->host->stage_uses += (uint32_t)(num % 2);
    for (size_t k = 0; k < num + 2; k++) {
        if (k >= 2) take_sums(g, v, chunk_at(g, v, first, k - 2));
        put_parts(g, v, chunk_at(g, v, first, k)); /* none after the last */
        if (k >= 1) sum_slice(g, v, chunk_at(g, v, first, k - 1));
        if (k <= num) CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/true, err));
    }
    return CR_OK;
}

static cr_status broadcast(cri_call *call, int root, char *data, size_t num_bytes, cr_err *err)
{
    cr_group *g = call->group;

    for (size_t at = 0; at < num_bytes || at == 0; at += CRI_STAGE_BYTES) {
        char *stage = stage_of(g->host, stage_next(g->host), root);
        size_t num = piece(num_bytes, at);
        if (g->rank == root && num > 0) memcpy(stage, data + at, num);
        CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/true, err));
        if (g->rank != root && num > 0) memcpy(data + at, stage, num);
    }
    return CR_OK;
}

/* After the first round every rank knows all lengths, and so the number of rounds. */
static void lay_out(const cr_group *g, cr_buf *out, size_t *offsets)
{
    offsets[0] = 0;
    for (int r = 0; r < g->num_ranks; r++)
        offsets[r + 1] = offsets[r] + g->host->members[r].ring[g->completed % CRI_RING].num_bytes;
    cr_buf_reserve(out, offsets[g->num_ranks] + 1);
    out->num_bytes = offsets[g->num_ranks];
    out->data[out->num_bytes] = 0;
}

static cr_status all_gather(cri_call *call, const char *data, size_t num_bytes, cr_buf *out,
                            size_t *offsets, cr_err *err)
{
    cr_group *g = call->group;
    size_t longest = 0;

    for (size_t at = 0; at == 0 || at < longest; at += CRI_STAGE_BYTES) {
        int slot = stage_next(g->host);
        if (piece(num_bytes, at) > 0)
            memcpy(stage_of(g->host, slot, g->rank), data + at, piece(num_bytes, at));
        CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/false, err));
        if (at == 0) lay_out(g, out, offsets);
        for (int r = 0; r < g->num_ranks; r++) {
            size_t total = offsets[r + 1] - offsets[r];
            if (total > longest) longest = total;
            memcpy(out->data + offsets[r] + (at < total ? at : 0), stage_of(g->host, slot, r),
                   piece(total, at));
        }
    }
    return CR_OK;
}

/* The stream of a rank is its num_ranks + 1 offsets, then its data; the offsets are in the first round. A receiver
 * copies the overlap of each round with its own piece. */
typedef struct streams {
    size_t head_bytes, longest;
    size_t *piece; /* [num_ranks][2] begin and end of this rank's piece in each stream */
} streams;

static void put_stream(const streams *s, const cri_exchange *x, size_t total, size_t at,
                       char *stage)
{
    size_t skip = at == 0 ? s->head_bytes : 0, num = piece(total, at);

    if (at == 0) memcpy(stage, x->send_offsets, s->head_bytes);
    if (num > skip) memcpy(stage + skip, x->send + at + skip - s->head_bytes, num - skip);
}

static cr_status read_head(const cri_call *call, streams *s, const cri_exchange *x, int r,
                           const char *stage, cr_err *err)
{
    cr_group *g = call->group;
    const size_t *offsets = (const size_t *)(const void *)stage;
    size_t begin = offsets[g->rank], end = offsets[g->rank + 1];
    size_t total = s->head_bytes + offsets[g->num_ranks];

    if (end - begin != x->recv_bytes[r])
        return cr_fail(err, CR_EPEER, "all_to_all %s: rank %d sends %zu bytes, rank %d expects %zu",
                       call->name, g->world_ranks[r], end - begin, g->world->rank,
                       x->recv_bytes[r]);
    s->piece[2 * r] = s->head_bytes + begin;
    s->piece[2 * r + 1] = s->head_bytes + end;
    if (total > s->longest) s->longest = total;
    return CR_OK;
}

static void take_stream(const streams *s, const cri_exchange *x, size_t at, const char *stage,
                        int r)
{
    size_t begin = s->piece[2 * r], end = s->piece[2 * r + 1], last = at + CRI_STAGE_BYTES;
    size_t from = begin > at ? begin : at, to = end < last ? end : last;

    if (from < to)
        memcpy(x->recv + x->recv_offsets[r] + (from - begin), stage + (from - at), to - from);
}

static cr_status all_to_all(cri_call *call, const cri_exchange *x, cr_err *err)
{
    cr_group *g = call->group;
    streams s = {.head_bytes = (size_t)(g->num_ranks + 1) * sizeof(size_t)};
    size_t total = s.head_bytes + x->send_offsets[g->num_ranks];

    CR_CHECK(s.head_bytes <= CRI_STAGE_BYTES, "%d ranks on one host", g->num_ranks);
    s.piece = CR_NEW_ARRAY(size_t, 2 * g->num_ranks);
    for (size_t at = 0; at == 0 || at < s.longest; at += CRI_STAGE_BYTES) {
        int slot = stage_next(g->host);
        put_stream(&s, x, total, at, stage_of(g->host, slot, g->rank));
        CR_TRY_GOTO(out, cri_call_round(call, total, /*is_equal=*/false, err));
        for (int r = 0; r < g->num_ranks; r++) {
            const char *stage = stage_of(g->host, slot, r);
            if (at == 0) CR_TRY_GOTO(out, read_head(call, &s, x, r, stage, err));
            take_stream(&s, x, at, stage, r);
        }
    }
out:
    cr_free(s.piece);
    return err->status;
}

static cr_status transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    cr_group *g = call->group;
    size_t *sent_bytes = CR_NEW_ARRAY(size_t, g->num_ranks * g->num_ranks);

    if (cri_transfer_begin(call, x, sent_bytes, err) == CR_OK)
        cr_note(cri_host_transfer(g->host, call, x, sent_bytes, err));
    cr_free(sent_bytes);
    return err->status;
}

/* ---- big buffers ---- */

cr_status cri_shared_gather_open(cr_gather *gather, cr_err *err)
{
    CR_TRY(cri_window_create(gather->group->host, gather->num_slots,
                             gather->slot_bytes * (size_t)gather->num_slots, &gather->window, err));
    gather->data = gather->window->data;
    return CR_OK;
}

void cri_shared_gather_close(cr_gather *gather)
{
    cri_window_destroy(gather->window);
}

bool cri_shared_gather_is_free(const cr_gather *gather, int slot)
{
    return cri_window_is_free(gather->window, slot);
}

static cr_status gather_begin(cr_gather *gather, int slot, cr_err *err)
{
    const cri_slot *s = &gather->slots[slot];

    return cri_window_begin(gather->window, slot, s->name, s->event, err);
}

static cr_status gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    (void)err;
    cri_window_write(gather->window, slot, gather->group->rank);
    return CR_OK;
}

static cr_status gather_wait(cr_gather *gather, int slot, cr_err *err)
{
    const cri_slot *s = &gather->slots[slot];

    for (int r = 0; r < gather->group->num_ranks; r++)
        CR_TRY(cri_window_wait_written(gather->window, slot, r, r, s->name, s->event, err));
    return CR_OK;
}

void cri_shared_gather_release(cr_gather *gather, int slot)
{
    cri_window_end(gather->window, slot);
}

static cr_status reduce_open(cr_reduce *reduce, cr_err *err)
{
    reduce->data_bytes = (size_t)reduce->num_slots * (size_t)reduce->group->num_ranks *
                         reduce->slot_elems * sizeof(float);
    CR_TRY(cri_window_create(reduce->group->host, reduce->num_slots, reduce->data_bytes,
                             &reduce->window, err));
    reduce->data = (float *)(void *)reduce->window->data;
    return CR_OK;
}

static void reduce_close(cr_reduce *reduce)
{
    cri_window_destroy(reduce->window);
}

static float *data_of(const cr_reduce *r, int slot, int rank)
{
    return r->data + ((size_t)slot * (size_t)r->group->num_ranks + (size_t)rank) * r->slot_elems;
}

static cr_status reduce_begin(cr_reduce *reduce, int slot, size_t *at, cr_err *err)
{
    *at = (size_t)(data_of(reduce, slot, reduce->group->rank) - reduce->data);
    return cri_window_begin(reduce->window, slot, "a reduction", reduce->slots[slot].event, err);
}

static cr_status reduce_publish(cr_reduce *reduce, int slot, cr_err *err)
{
    (void)reduce;
    (void)slot;
    (void)err;
    return CR_OK; /* the post has released it */
}

static bool reduce_is_ready(const cr_reduce *reduce, int slot)
{
    return cri_host_is_done(reduce->group->host, reduce->slots[slot].sequence);
}

static cr_status reduce_finish(cr_reduce *reduce, int slot, float *shard, bool is_added,
                               cr_err *err)
{
    cr_group *g = reduce->group;
    const cri_slot *s = &reduce->slots[slot];

    (void)err;
    for (int r = 0; r < g->num_ranks; r++)
        g->parts[r] = data_of(reduce, slot, r) + s->part_elems * (size_t)g->rank;
    cri_sum(s->dtype == CR_REDUCE_BF16 ? CRI_SUM_ROUNDED : CRI_SUM_F32, shard, g->parts, g->merges,
            g->num_ranks, s->part_elems, is_added);
    cri_window_end(reduce->window, slot);
    return CR_OK;
}

const cri_comm cri_comm_shared = {.name = "shared",
                                  .sum_order = CRI_SUM_BY_TREE,
                                  .max_posted = CRI_RING / 2,
                                  .open = shared_open,
                                  .close = shared_close,
                                  .post = post,
                                  .complete = complete,
                                  .is_done = is_done,
                                  .abort = abort_none,
                                  .all_reduce = all_reduce,
                                  .broadcast = broadcast,
                                  .all_gather = all_gather,
                                  .all_to_all = all_to_all,
                                  .transfer = transfer,
                                  .gather_open = cri_shared_gather_open,
                                  .gather_close = cri_shared_gather_close,
                                  .gather_is_free = cri_shared_gather_is_free,
                                  .gather_begin = gather_begin,
                                  .gather_publish = gather_publish,
                                  .gather_wait = gather_wait,
                                  .gather_release = cri_shared_gather_release,
                                  .reduce_open = reduce_open,
                                  .reduce_close = reduce_close,
                                  .reduce_begin = reduce_begin,
                                  .reduce_publish = reduce_publish,
                                  .reduce_is_ready = reduce_is_ready,
                                  .reduce_finish = reduce_finish};
