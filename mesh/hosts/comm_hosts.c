/* comm_hosts.c -- a group whose ranks are not all on one host.
 *
 * Control plane: two levels. The ranks of a host compare their entries in shared memory; when all of them have posted
 * a number, the host's first rank exchanges that entry with the first ranks of the other hosts, h (h - 1) messages for
 * h hosts. When those agree it raises `agreed`, for which the other ranks of its host wait. A failure is passed on
 * the same way, so that every rank names the ranks that differ. Each level waits a quarter of the deadline longer than
 * the one below, so that it is informed who is missing before it gives up itself; ranks that began to wait more than that
 * before the others name the rank that they wait for instead.
 *
 * Data (between.h): a gather has one buffer a host, which each part enters once. A reduction has a buffer a rank in the
 * host's memory; when the ranks of a host have posted it, they send the sums of their leaves to the ranks of the other hosts
 * that want them, at the next call of this reduction's functions. What is small is in small.c. Where every rank has a host
 * of its own (transport "mpi") nothing is shared and contributions travel as they are. */
#include "mesh/hosts/between.h"

#include <stdio.h>

static const double leaders_patience = 1.25, members_patience = 1.5;

static bool is_leader(const cr_group *g)
{
    return g->host->own == 0;
}

/* ---- opening ---- */

static cri_hosts *hosts_create(const cr_group *g)
{
    cri_hosts *h = CR_NEW(cri_hosts);
    int n = g->num_ranks, *host_of = CR_NEW_ARRAY(int, n);
    bool *is_leaf = CR_NEW_ARRAY(bool, n);

    for (int r = 0; r < n; r++)
        host_of[r] = g->world->host_of[g->world_ranks[r]];
    h->layout = cri_layout_create(host_of, n);
    for (int r = 0; r < n; r++)
        is_leaf[r] = h->layout->leaf[r] == r;
    h->of_leaves = CR_NEW_ARRAY(uint8_t, n);
    h->merges = CR_NEW_ARRAY(uint8_t, n);
    cri_tree(n, is_leaf, h->of_leaves);
    h->offset = CR_NEW_ARRAY(size_t, n + 1);
    h->requests = CR_NEW_ARRAY(MPI_Request, 2 * n);
    cr_free(is_leaf);
    cr_free(host_of);
    return h;
}

static void hosts_destroy(cri_hosts *h)
{
    if (!h) return;
    cri_layout_destroy(h->layout);
    cri_pages_unmap(h->sums, h->sums_bytes);
    cri_pages_unmap(h->came, h->came_bytes);
    cr_free(h->of_leaves);
    cr_free(h->merges);
    cr_free(h->offset);
    cr_free(h->requests);
    cr_free(h);
}

static cr_status open_ranks(cr_group *g, const int *here, cr_err *err)
{
    const cri_layout *l = g->hosts->layout;
    int host = l->host_of[g->rank];
    MPI_Comm mpi;

    CR_TRY(cri_open_mpi(g, err));
    CR_TRY(cri_mpi(g->world, MPI_Comm_split(g->mpi, host, g->rank, &mpi),
                   "finding the group's ranks of this host", err));
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    g->host = cri_host_create(g, here, l->on_host[host], l->max_on_host, mpi);
    return cri_shared_open(g->host, CRI_SMALL_SLOTS,
                           2 * ((size_t)l->max_on_host + 1) * CRI_STAGE_BYTES, err);
}

/* Does this rank exchange parts, sums or entries with rank r? */
static bool is_peer(const cri_layout *l, int me, int r)
{
    bool are_leaders = l->place[me] == 0 && l->place[r] == 0 && r != me;

    return are_leaders || cri_layout_receives(l, me, r) || cri_layout_receives(l, r, me);
}

/* Connections are made now, while every rank is inside MPI: a message that waits for one would need its sender's help
 * later. A synchronous send is complete when it was received. */
static cr_status connect_peers(cr_group *g, cr_err *err)
{
    MPI_Request *requests = g->hosts->requests;
    int num = 0, code = MPI_SUCCESS;

    for (int r = 0; r < g->num_ranks && code == MPI_SUCCESS; r++) {
        if (!is_peer(g->hosts->layout, g->rank, r)) continue;
        code = MPI_Irecv(NULL, 0, MPI_BYTE, r, CRI_HELLO_TAG, g->mpi, &requests[num++]);
        if (code == MPI_SUCCESS)
            code = MPI_Issend(NULL, 0, MPI_BYTE, r, CRI_HELLO_TAG, g->mpi, &requests[num++]);
    }
    if (code == MPI_SUCCESS) code = MPI_Waitall(num, requests, MPI_STATUSES_IGNORE);
    return cri_mpi(g->world, code, "connecting the ranks of a group", err);
}

static cr_status hosts_open(cr_group *g, cr_err *err)
{
    cri_hosts *h = g->hosts = hosts_create(g);
    const cri_layout *l = h->layout;
    bool is_pair = l->max_on_host > 1;
    int *here = CR_NEW_ARRAY(int, g->num_ranks);

    for (int r = 0; r < g->num_ranks; r++)
        if (l->host_of[r] == l->host_of[g->rank]) here[l->place[r]] = r;
    if (l->place[g->rank] == 0)
        g->rounds = cri_rounds_create(g, l->leader, l->num_hosts, is_pair ? leaders_patience : 1);
    g->world->has_links = true;
    if (open_ranks(g, here, err) == CR_OK) cr_note(connect_peers(g, err));
    cr_free(here);
    return err->status;
}

static void hosts_close(cr_group *g)
{
    MPI_Comm mpi = g->host ? g->host->mpi : MPI_COMM_NULL;

    cri_shared_close(g);
    if (mpi != MPI_COMM_NULL && !g->world->is_broken) MPI_Comm_free(&mpi);
    cri_close_mpi(g);
    cri_rounds_destroy(g->rounds);
    hosts_destroy(g->hosts);
}

/* ---- control plane ---- */

/* Leader, without waiting: post to the other hosts what all ranks of this one have posted, up to `sequence`. */
static cr_status post_further(cr_group *g, uint32_t sequence, cr_err *err)
{
    cri_rounds *x = g->rounds;

    while ((int32_t)(sequence - x->posted) > 0 && cri_host_is_done(g->host, x->posted + 1)) {
        CR_TRY(cri_host_complete(g->host, x->posted + 1, err));
        if (x->posted - x->verified == CRI_ROUNDS)
            CR_TRY(cri_rounds_complete(x, x->verified + 1, err));
        CR_TRY(cri_rounds_post(x, cri_host_entry(g->host, x->posted + 1), err));
    }
    return CR_OK;
}

static cr_status post(cr_group *group, const cri_entry *entry, cr_err *err)
{
    CR_TRY(cri_host_post(group->host, entry, err));
    return is_leader(group) ? post_further(group, entry->sequence, err) : CR_OK;
}

static cr_status wait_for_leader(cr_group *g, uint32_t sequence, cr_err *err)
{
    cri_member *leader = &g->host->members[0];
    bool is_reached;
    char what[160];

    CR_TRY(cri_host_wait_flag(g->host, 0, &leader->agreed, sequence,
                              cr_now_s() + g->world->deadline_s * members_patience, &is_reached,
                              err));
    if (is_reached) return CR_OK;
    cri_entry_text(g, cri_host_entry(g->host, sequence), what, sizeof what);
    return cri_fail_late(g, what, g->host->rank[0], err);
}

static cr_status complete(cr_group *group, uint32_t sequence, cr_err *err)
{
    cri_host *h = group->host;

    CR_TRY(cri_host_complete(h, sequence, err));
    if (!is_leader(group)) return wait_for_leader(group, sequence, err);
    CR_TRY(post_further(group, sequence, err));
    CR_TRY(cri_rounds_complete(group->rounds, sequence, err));
    cri_flag_set(&h->members[0].agreed, sequence);
    return CR_OK;
}

static bool is_done(const cr_group *group, uint32_t sequence)
{
    return cri_flag_reached(&group->host->members[0].agreed, sequence);
}

static void hosts_abort(cr_group *group, const cr_err *failure)
{
    if (group->rounds) cri_rounds_abort(group->rounds, failure);
}

/* ---- gather: one buffer a host ---- */

static cri_exchanged exchange_of(cr_group *g, cr_coll coll, const cri_slot *s)
{
    return (cri_exchanged){.group = g,
                           .coll = coll,
                           .name = s->name,
                           .event = s->event,
                           .sequence = s->sequence,
                           .requests = s->requests,
                           .num_requests = s->num_requests};
}

static void requests_create(const cr_group *g, cri_slot *slots, int num_slots)
{
    for (int s = 0; s < num_slots; s++)
        slots[s].requests = CR_NEW_ARRAY(MPI_Request, 2 * g->num_ranks);
}

static cr_status gather_open(cr_gather *gather, cr_err *err)
{
    requests_create(gather->group, gather->slots, gather->num_slots);
    return cri_shared_gather_open(gather, err);
}

typedef cr_status parts_fn(const cri_parts *p, cr_err *err);

static cr_status on_parts(cr_gather *gather, int slot, parts_fn *step, cr_err *err)
{
    cri_slot *s = &gather->slots[slot];
    cri_exchanged x = exchange_of(gather->group, CR_COLL_ALL_GATHER, s);

    cr_note(step(&(cri_parts){.x = &x,
                              .window = gather->window,
                              .slot = slot,
                              .data = gather->data + gather->slot_bytes * (size_t)slot,
                              .part_bytes = s->part_bytes},
                 err));
    s->num_requests = x.num_requests;
    return err->status;
}

static cr_status gather_begin(cr_gather *gather, int slot, cr_err *err)
{
    cri_slot *s = &gather->slots[slot];

    CR_TRY(cri_window_begin(gather->window, slot, s->name, s->event, err));
    s->num_requests = 0;
    return on_parts(gather, slot, cri_parts_receive, err);
}

static cr_status gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    return on_parts(gather, slot, cri_parts_send, err);
}

static cr_status gather_wait(cr_gather *gather, int slot, cr_err *err)
{
    return on_parts(gather, slot, cri_parts_wait, err);
}

/* ---- reduction: a buffer a rank, in its host's memory ---- */

static cr_status reduce_open(cr_reduce *reduce, cr_err *err)
{
    const cr_group *g = reduce->group;
    size_t each = reduce->slot_elems / (size_t)g->num_ranks, slots = (size_t)reduce->num_slots;

    requests_create(g, reduce->slots, reduce->num_slots);
    cri_sums_room(g, each, sizeof(float), &reduce->wire_bytes, &reduce->arrived_bytes);
    reduce->wire = cri_pages_map(reduce->wire_bytes * slots, /*is_meta=*/false);
    reduce->arrived = cri_pages_map(reduce->arrived_bytes * slots, /*is_meta=*/false);
    reduce->data_bytes = slots * (size_t)g->host->num_places * reduce->slot_elems * sizeof(float);
    CR_TRY(cri_window_create(g->host, reduce->num_slots, reduce->data_bytes, &reduce->window, err));
    reduce->data = (float *)(void *)reduce->window->data;
    return CR_OK;
}

static void reduce_close(cr_reduce *reduce)
{
    size_t slots = (size_t)reduce->num_slots;

    cri_window_destroy(reduce->window);
    cri_pages_unmap(reduce->wire, reduce->wire_bytes * slots);
    cri_pages_unmap(reduce->arrived, reduce->arrived_bytes * slots);
}

static size_t data_at(const cr_reduce *r, int slot, int place)
{
    return (size_t)(slot * r->group->host->num_places + place) * r->slot_elems;
}

static cr_status reduce_begin(cr_reduce *reduce, int slot, size_t *at, cr_err *err)
{
    cri_slot *s = &reduce->slots[slot];

    *at = data_at(reduce, slot, reduce->group->host->own);
    s->num_requests = 0;
    s->is_sent = false;
    return cri_window_begin(reduce->window, slot, "a reduction", s->event, err);
}

typedef cr_status sums_fn(const cri_sums *s, cr_err *err);

typedef struct into { /* where a slot's sum goes */
    float *shard;
    bool is_added;
} into;

static cr_status wait_and_combine(const cri_sums *s, const into *to, cr_err *err)
{
    CR_TRY(cri_wait_exchanged(s->x, err));
    cri_sums_combine(s, to->shard, to->is_added);
    return CR_OK;
}

/* A step, or the last one if `to` says where the sum goes. */
static cr_status on_sums(cr_reduce *reduce, int slot, sums_fn *step, const into *to, cr_err *err)
{
    cr_group *g = reduce->group;
    cri_slot *s = &reduce->slots[slot];
    cri_exchanged x = exchange_of(g, CR_COLL_REDUCE_SCATTER, s);
    const char **vector = cr_alloc((size_t)g->host->num * sizeof *vector);
    cri_sums sums = {.x = &x,
                     .v = {.elem_bytes = sizeof(float)},
                     .is_bf16 = s->dtype == CR_REDUCE_BF16,
                     .each = s->part_elems,
                     .num = s->part_elems * (size_t)g->num_ranks,
                     .vector = vector,
                     .sums = reduce->wire + reduce->wire_bytes * (size_t)slot,
                     .came = reduce->arrived + reduce->arrived_bytes * (size_t)slot};

    for (int i = 0; i < g->host->num; i++)
        vector[i] = (const char *)(reduce->data + data_at(reduce, slot, i));
    cr_note(to ? wait_and_combine(&sums, to, err) : step(&sums, err));
    s->num_requests = x.num_requests;
    cr_free(vector);
    return err->status;
}

/* Without waiting: what all ranks of this host have posted goes to the others. */
static cr_status push_further(cr_reduce *reduce, cr_err *err)
{
    cri_host *h = reduce->group->host;

    for (int slot = 0; slot < reduce->num_slots; slot++) {
        cri_slot *s = &reduce->slots[slot];
        if (s->state != CRI_PUBLISHED || s->is_sent || !cri_host_is_done(h, s->sequence)) continue;
        CR_TRY(cri_host_complete(h, s->sequence, err));
        s->is_sent = true;
        CR_TRY(on_sums(reduce, slot, cri_sums_send, NULL, err));
    }
    return CR_OK;
}

static cr_status reduce_publish(cr_reduce *reduce, int slot, cr_err *err)
{
    CR_TRY(on_sums(reduce, slot, cri_sums_receive, NULL, err));
    return push_further(reduce, err);
}

static cr_status reduce_finish(cr_reduce *reduce, int slot, float *shard, bool is_added,
                               cr_err *err)
{
    CR_TRY(push_further(reduce, err));
    CR_TRY(on_sums(reduce, slot, NULL, &(into){shard, is_added}, err));
    cri_window_end(reduce->window, slot);
    return CR_OK;
}

#define COMMON                                                                                    \
    .sum_order = CRI_SUM_BY_TREE, .max_posted = CRI_ROUNDS, .open = hosts_open,                   \
    .close = hosts_close, .post = post, .complete = complete, .is_done = is_done,                 \
    .abort = hosts_abort, .all_reduce = cri_hosts_all_reduce, .broadcast = cri_hosts_broadcast,   \
    .all_gather = cri_hosts_all_gather, .all_to_all = cri_hosts_all_to_all,                       \
    .transfer = cri_hosts_transfer, .gather_open = gather_open,                                   \
    .gather_close = cri_shared_gather_close, .gather_is_free = cri_shared_gather_is_free,         \
    .gather_begin = gather_begin, .gather_publish = gather_publish, .gather_wait = gather_wait,   \
    .gather_release = cri_shared_gather_release, .reduce_open = reduce_open,                      \
    .reduce_close = reduce_close, .reduce_begin = reduce_begin, .reduce_publish = reduce_publish, \
    .reduce_is_ready = cri_pages_reduce_is_ready, .reduce_finish = reduce_finish

const cri_comm cri_comm_hosts = {COMMON, .name = "hosts"};
const cri_comm cri_comm_mpi = {COMMON, .name = "mpi"}; /* no two ranks share one */
