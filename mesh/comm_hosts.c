/* comm_hosts.c -- a group in which some ranks share a host and some do not.
 *
 * Control plane: two levels. The ranks of a host compare their entries in shared memory; when all of them have posted
 * a number, the host's first rank exchanges that entry with the first ranks of the other hosts, h (h - 1) messages for
 * h hosts. When those agree it raises `agreed`, for which the other ranks of its host wait. A failure is passed on
 * the same way, so that every rank names the ranks that differ. Each level waits a quarter of the deadline longer than
 * the one below, so that it hears who is missing before it gives up itself; ranks that began to wait more than that
 * before the others name the rank that they wait for instead.
 *
 * Data: a gather has one buffer a host. A rank writes its part there and sends it to one rank of each other host
 * (part r to rank r % n of the n ranks there), which receives it in place. All else goes by messages as in comm_mpi.c:
 * sums are taken over the parts of all ranks, not yet over sums of hosts. A
 * transfer sends messages to other hosts and copies through shared memory inside its own. */
#include "mesh/host.h"
#include "mesh/rounds.h"

#include <stdio.h>

enum { NUM_PART_TAGS = 16000 }; /* an MPI tag a use of a slot */
static const double leaders_patience = 1.25, members_patience = 1.5;

/* ---- who is where ---- */

/* In group ranks: the ranks of a host, ascending; returns their number. */
static int ranks_of_host(const cr_group *g, int host, int *rank)
{
    int num = 0;

    for (int r = 0; r < g->num_ranks; r++)
        if (g->world->host_of[g->world_ranks[r]] == host) rank[num++] = r;
    return num;
}

static int host_of(const cr_group *g, int rank)
{
    return g->world->host_of[g->world_ranks[rank]];
}

/* g->receivers[own host's place * num_ranks ..]: see receiver_of. Also the first rank of each host. */
static int list_hosts(cr_group *g, int *leader)
{
    int *rank = CR_NEW_ARRAY(int, g->num_ranks), num_hosts = 0;

    g->receivers = CR_NEW_ARRAY(int, g->num_ranks * g->num_ranks);
    for (int r = 0; r < g->num_ranks; r++) {
        int num = ranks_of_host(g, host_of(g, r), rank);
        for (int p = 0; p < g->num_ranks; p++) /* who receives part p on the host of r */
            g->receivers[r * g->num_ranks + p] = host_of(g, p) == host_of(g, r) ? p : rank[p % num];
        if (rank[0] == r) leader[num_hosts++] = r;
    }
    cr_free(rank);
    return num_hosts;
}

/* The rank on the host of `rank` that puts part p into the host's buffer: p itself if it is there. */
static int receiver_of(const cr_group *g, int rank, int p)
{
    return g->receivers[rank * g->num_ranks + p];
}

static bool is_leader(const cr_group *g)
{
    return g->host->own == 0;
}

static cr_status open_ranks(cr_group *g, const int *here, int num_here, cr_err *err)
{
    MPI_Comm mpi;

    CR_TRY(cri_mpi_open(g, err));
    CR_TRY(cri_mpi(g->world, MPI_Comm_split(g->mpi, host_of(g, g->rank), g->rank, &mpi),
                   "finding the group's ranks of this host", err));
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    CR_TRY(cri_shared_open(g, here, num_here, mpi, err));
    return CR_OK;
}

static cr_status hosts_open(cr_group *g, cr_err *err)
{
    int *leader = CR_NEW_ARRAY(int, 2 * g->num_ranks), *here = leader + g->num_ranks;
    int num_hosts = list_hosts(g, leader), num_here = ranks_of_host(g, host_of(g, g->rank), here);

    if (here[0] == g->rank) g->rounds = cri_rounds_create(g, leader, num_hosts, leaders_patience);
    cr_note(open_ranks(g, here, num_here, err));
    cr_free(leader);
    return err->status;
}

static void hosts_close(cr_group *g)
{
    MPI_Comm mpi = g->host ? g->host->mpi : MPI_COMM_NULL;

    cri_shared_close(g);
    if (mpi != MPI_COMM_NULL && !g->world->is_broken) MPI_Comm_free(&mpi);
    cri_mpi_close(g);
    cri_rounds_destroy(g->rounds);
    cr_free(g->receivers);
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

static cr_status gather_open(cr_gather *gather, cr_err *err)
{
    for (int s = 0; s < gather->num_slots; s++)
        gather->slots[s].requests = CR_NEW_ARRAY(MPI_Request, 2 * gather->group->num_ranks);
    return cri_shared_gather_open(gather, err);
}

static char *part_of(const cr_gather *gather, int slot, int rank)
{
    return gather->data + gather->slot_bytes * (size_t)slot +
           gather->slots[slot].part_bytes * (size_t)rank;
}

static int tag_of(const cri_slot *s)
{
    return CRI_PART_TAG + (int)(s->sequence % NUM_PART_TAGS);
}

static cr_status send_part(cri_slot *s, cr_group *g, char *part, int to, cr_err *err)
{
    MPI_Datatype type;
    int count;

    CR_TRY(cri_mpi_count(s->part_bytes, &count, &type, err));
    return cri_mpi(
        g->world,
        MPI_Isend(part, count, type, to, tag_of(s), g->mpi, &s->requests[s->num_requests++]),
        s->name, err);
}

static cr_status receive_part(cri_slot *s, cr_group *g, char *part, int from, cr_err *err)
{
    MPI_Datatype type;
    int count;

    CR_TRY(cri_mpi_count(s->part_bytes, &count, &type, err));
    return cri_mpi(
        g->world,
        MPI_Irecv(part, count, type, from, tag_of(s), g->mpi, &s->requests[s->num_requests++]),
        s->name, err);
}

/* The slot is free on this host: what others send may come. */
static cr_status gather_begin(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];

    CR_TRY(cri_window_begin(gather->window, slot, s->name, s->event, err));
    s->num_requests = 0;
    for (int p = 0; p < g->num_ranks; p++)
        if (p != g->rank && receiver_of(g, g->rank, p) == g->rank)
            CR_TRY(receive_part(s, g, part_of(gather, slot, p), p, err));
    return CR_OK;
}

static cr_status gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];

    cri_window_write(gather->window, slot, g->rank);
    for (int r = 0; r < g->num_ranks; r++) /* the receivers of this part, one a host */
        if (r != g->rank && receiver_of(g, r, g->rank) == r)
            CR_TRY(send_part(s, g, part_of(gather, slot, g->rank), r, err));
    return CR_OK;
}

static cr_status gather_wait(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;
    cri_host *h = g->host;
    const cri_slot *s = &gather->slots[slot];

    CR_TRY(cri_wait_requests(g, s->requests, s->num_requests, s->name, s->event, err));
    for (int p = 0; p < g->num_ranks; p++)
        if (p != g->rank && receiver_of(g, g->rank, p) == g->rank)
            cri_window_write(gather->window, slot, p);
    for (int p = 0; p < g->num_ranks; p++)
        for (int i = 0; i < h->num; i++)
            if (h->rank[i] == receiver_of(g, g->rank, p))
                CR_TRY(cri_window_wait_written(gather->window, slot, p, i, s->name, s->event, err));
    return CR_OK;
}

const cri_comm cri_comm_hosts = {.name = "hosts",
                                 .sum_order = CRI_SUM_BY_TREE,
                                 .max_posted = CRI_ROUNDS,
                                 .open = hosts_open,
                                 .close = hosts_close,
                                 .post = post,
                                 .complete = complete,
                                 .is_done = is_done,
                                 .abort = hosts_abort,
                                 .all_reduce = cri_mpi_all_reduce,
                                 .broadcast = cri_mpi_broadcast,
                                 .all_gather = cri_mpi_all_gather,
                                 .all_to_all = cri_mpi_all_to_all,
                                 .transfer = cri_mpi_transfer,
                                 .gather_open = gather_open,
                                 .gather_close = cri_shared_gather_close,
                                 .gather_is_free = cri_shared_gather_is_free,
                                 .gather_begin = gather_begin,
                                 .gather_publish = gather_publish,
                                 .gather_wait = gather_wait,
                                 .gather_release = cri_shared_gather_release,
                                 .reduce_open = cri_mpi_reduce_open,
                                 .reduce_close = cri_mpi_reduce_close,
                                 .reduce_begin = cri_pages_reduce_begin,
                                 .reduce_publish = cri_mpi_reduce_publish,
                                 .reduce_is_ready = cri_pages_reduce_is_ready,
                                 .reduce_finish = cri_mpi_reduce_finish};
