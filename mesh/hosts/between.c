/* between.c -- parts and sums between the hosts of a group (see between.h). */
#include "mesh/hosts/between.h"

enum { NUM_PART_TAGS = 16000 }; /* an MPI tag a call; the steps of a call come in one order */

static const cri_layout *layout_of(const cri_exchanged *x)
{
    return x->group->hosts->layout;
}

static int own_host(const cri_exchanged *x)
{
    return layout_of(x)->host_of[x->group->rank];
}

/* ---- messages ---- */

static int tag_of(const cri_exchanged *x)
{
    return CRI_PART_TAG + (int)(x->sequence % NUM_PART_TAGS);
}

static cr_status send_to(cri_exchanged *x, const void *data, size_t num_bytes, int to, cr_err *err)
{
    MPI_Datatype type;
    int count;

    CR_TRY(cri_mpi_count(num_bytes, &count, &type, err));
    return cri_mpi(
        x->group->world,
        MPI_Isend(data, count, type, to, tag_of(x), x->group->mpi, &x->requests[x->num_requests++]),
        x->name, err);
}

static cr_status receive_from(cri_exchanged *x, void *data, size_t num_bytes, int from, cr_err *err)
{
    MPI_Datatype type;
    int count;

    CR_TRY(cri_mpi_count(num_bytes, &count, &type, err));
    cri_count_received(x->group->world, x->coll, 1, num_bytes);
    return cri_mpi(x->group->world,
                   MPI_Irecv(data, count, type, from, tag_of(x), x->group->mpi,
                             &x->requests[x->num_requests++]),
                   x->name, err);
}

cr_status cri_wait_exchanged(cri_exchanged *x, cr_err *err)
{
    CR_TRY(cri_wait_requests(x->group, x->requests, x->num_requests, x->name, x->event, err));
    x->num_requests = 0;
    return CR_OK;
}

/* ---- parts ---- */

static size_t begin_of(const cri_parts *p, int rank)
{
    return p->offset ? p->offset[rank] : p->part_bytes * (size_t)rank;
}

static size_t bytes_of(const cri_parts *p, int first, int num)
{
    return begin_of(p, first + num) - begin_of(p, first);
}

/* How many ranks from `first` on are on one host. */
static int run_from(const cri_layout *l, int first)
{
    int num = 1;

    while (first + num < l->num && l->host_of[first + num] == l->host_of[first])
        num++;
    return num;
}

typedef cr_status run_fn(const cri_parts *p, int first, int num, cr_err *err);

/* Each run of the group that has bytes. */
static cr_status each_run(const cri_parts *p, bool is_own, run_fn *run, cr_err *err)
{
    const cri_layout *l = layout_of(p->x);

    for (int first = 0, num; first < l->num; first += num) {
        num = run_from(l, first);
        if ((l->host_of[first] == own_host(p->x)) == is_own && bytes_of(p, first, num) > 0)
            CR_TRY(run(p, first, num, err));
    }
    return CR_OK;
}

static cr_status receive_run(const cri_parts *p, int first, int num, cr_err *err)
{
    const cri_layout *l = layout_of(p->x);

    return receive_from(p->x, p->data + begin_of(p, first), bytes_of(p, first, num),
                        l->leader[l->host_of[first]], err);
}

static cr_status send_run(const cri_parts *p, int first, int num, cr_err *err)
{
    const cri_layout *l = layout_of(p->x);

    for (int host = 0; host < l->num_hosts; host++)
        if (host != own_host(p->x))
            CR_TRY(send_to(p->x, p->data + begin_of(p, first), bytes_of(p, first, num),
                           l->leader[host], err));
    return CR_OK;
}

static bool is_leader(const cri_exchanged *x)
{
    return x->group->host->own == 0;
}

cr_status cri_parts_receive(const cri_parts *p, cr_err *err)
{
    const cri_layout *l = layout_of(p->x);
    int me = p->x->group->rank;

    if (p->is_short)
        return is_leader(p->x) ? each_run(p, /*is_own=*/false, receive_run, err) : CR_OK;
    for (int r = 0; r < l->num; r++)
        if (bytes_of(p, r, 1) > 0 && cri_layout_receives(l, me, r))
            CR_TRY(receive_from(p->x, p->data + begin_of(p, r), bytes_of(p, r, 1), r, err));
    return CR_OK;
}

cr_status cri_parts_send(const cri_parts *p, cr_err *err)
{
    const cri_layout *l = layout_of(p->x);
    int me = p->x->group->rank;

    if (bytes_of(p, me, 1) == 0) return CR_OK;
    cri_window_write(p->window, p->slot, me);
    for (int r = 0; r < l->num && !p->is_short; r++) /* the receivers of this part, one a host */
        if (cri_layout_receives(l, r, me))
            CR_TRY(send_to(p->x, p->data + begin_of(p, me), bytes_of(p, me, 1), r, err));
    return CR_OK;
}

/* Until what `writer` (a place on this host) puts there of rank r's part is there. */
static cr_status wait_for_part(const cri_parts *p, int r, int writer, cr_err *err)
{
    if (bytes_of(p, r, 1) == 0) return CR_OK;
    return cri_window_wait_written(p->window, p->slot, r, writer, p->x->name, p->x->event, err);
}

static cr_status wait_for_own_parts(const cri_parts *p, cr_err *err)
{
    const cri_host *h = p->x->group->host;

    for (int i = 0; i < h->num; i++)
        CR_TRY(wait_for_part(p, h->rank[i], i, err));
    return CR_OK;
}

cr_status cri_parts_wait(const cri_parts *p, cr_err *err)
{
    const cri_layout *l = layout_of(p->x);
    int me = p->x->group->rank;

    CR_TRY(wait_for_own_parts(p, err));
    if (p->is_short && is_leader(p->x)) CR_TRY(each_run(p, /*is_own=*/true, send_run, err));
    CR_TRY(cri_wait_exchanged(p->x, err));
    for (int r = 0; r < l->num; r++)
        if (l->host_of[r] != own_host(p->x) &&
            (p->is_short ? is_leader(p->x) : cri_layout_receives(l, me, r)))
            cri_window_write(p->window, p->slot, r);
    for (int r = 0; r < l->num; r++)
        if (l->host_of[r] != own_host(p->x))
            CR_TRY(wait_for_part(p, r, p->is_short ? 0 : cri_layout_receiver(l, own_host(p->x), r),
                                 err));
    return CR_OK;
}

/* ---- sums ---- */

/* Contributions travel as they are: no host has a sum. */
static bool is_alone(const cri_exchanged *x)
{
    return layout_of(x)->num_leaves == layout_of(x)->num;
}

static size_t wire_bytes(const cri_sums *s)
{
    return s->is_bf16 && is_alone(s->x) ? sizeof(uint16_t) : s->v.elem_bytes;
}

static size_t slice_num(const cri_sums *s, int q)
{
    return cri_slice_num(s->each, s->num, q);
}

/* The slices of other hosts that this rank sums for its host. */
static int num_served(const cri_layout *l, int me)
{
    int num = 0;

    for (int q = 0; q < l->num; q++)
        num += cri_layout_receives(l, me, q);
    return num;
}

void cri_sums_room(const cr_group *group, size_t each, size_t elem_bytes, size_t *sums_bytes,
                   size_t *came_bytes)
{
    const cri_layout *l = group->hosts->layout;
    int own = l->host_of[group->rank];

    *sums_bytes =
        (size_t)num_served(l, group->rank) * (size_t)l->leaves_of[own] * each * elem_bytes;
    *came_bytes = (size_t)l->num_leaves * each * elem_bytes;
}

static char *came_at(const cri_sums *s, int leaf)
{
    size_t before = (size_t)layout_of(s->x)->leaf_place[leaf];

    return s->came + before * slice_num(s, s->x->group->rank) * wire_bytes(s);
}

/* The rank of a host that sums slice q there. */
static int server_of(const cri_layout *l, int host, int q)
{
    int r = l->leader[host];

    while (l->host_of[r] != host || l->place[r] != cri_layout_receiver(l, host, q))
        r++;
    return r;
}

cr_status cri_sums_receive(const cri_sums *s, cr_err *err)
{
    const cri_layout *l = layout_of(s->x);
    int me = s->x->group->rank;
    size_t num = slice_num(s, me);

    for (int host = 0; host < l->num_hosts && num > 0; host++)
        if (host != own_host(s->x))
            CR_TRY(receive_from(s->x, came_at(s, l->leader[host]),
                                (size_t)l->leaves_of[host] * num * wire_bytes(s),
                                server_of(l, host, me), err));
    return CR_OK;
}

/* *out: elements [begin, begin + num) of the leaf's ranks, added up. */
static void sum_leaf(const cri_sums *s, int leaf, size_t begin, size_t num, void *out)
{
    const cri_layout *l = layout_of(s->x);
    cr_group *g = s->x->group;
    uint8_t *merges = g->hosts->merges;
    int n = 0;

    for (int r = leaf; r < l->num && l->leaf[r] == leaf; r++)
        g->parts[n++] = s->vector[l->place[r]] + begin * s->v.elem_bytes;
    cri_tree(n, NULL, merges);
    if (s->is_bf16 && is_alone(s->x))
        cri_round_bf16(out, g->parts[0], num);
    else if (s->is_bf16)
        cri_sum(CRI_SUM_ROUNDED, out, g->parts, merges, n, num, /*is_added=*/false);
    else
        cri_combine(&s->v, g->parts, merges, n, out, num);
}

/* Of all leaves of this host, one after the other. Returns their bytes. */
static size_t sum_own(const cri_sums *s, size_t begin, size_t num, char *out)
{
    const cri_layout *l = layout_of(s->x);
    size_t at = 0;

    for (int r = 0; r < l->num; r++) {
        if (l->host_of[r] != own_host(s->x) || l->leaf[r] != r) continue;
        sum_leaf(s, r, begin, num, out + at);
        at += num * wire_bytes(s);
    }
    return at;
}

cr_status cri_sums_send(const cri_sums *s, cr_err *err)
{
    const cri_layout *l = layout_of(s->x);
    int me = s->x->group->rank;
    bool is_plain = !s->is_bf16 && s->x->group->host->num == 1; /* as it lies there */
    char *sums = s->sums;

    for (int q = 0; q < l->num; q++) {
        size_t begin = s->each * (size_t)q, num = slice_num(s, q);
        const char *plain = is_plain ? s->vector[0] + begin * s->v.elem_bytes : NULL;
        size_t num_bytes = num * s->v.elem_bytes;
        if (num == 0 || !cri_layout_receives(l, me, q)) continue;
        if (!is_plain) num_bytes = sum_own(s, begin, num, sums);
        CR_TRY(send_to(s->x, is_plain ? plain : sums, num_bytes, q, err));
        if (!is_plain) sums += num_bytes;
    }
    return CR_OK;
}

void cri_sums_combine(const cri_sums *s, void *out, bool is_added)
{
    const cri_layout *l = layout_of(s->x);
    cr_group *g = s->x->group;
    size_t num = slice_num(s, g->rank);
    int n = 0;

    if (num == 0) return;
    sum_own(s, s->each * (size_t)g->rank, num, came_at(s, l->leader[own_host(s->x)]));
    for (int r = 0; r < l->num; r++)
        if (l->leaf[r] == r) g->parts[n++] = came_at(s, r);
    if (s->v.is_double)
        cri_combine(&s->v, g->parts, g->hosts->of_leaves, n, out, num);
    else
        cri_sum(s->is_bf16 && is_alone(s->x) ? CRI_SUM_BF16 : CRI_SUM_F32, out, g->parts,
                g->hosts->of_leaves, n, num, is_added);
}
