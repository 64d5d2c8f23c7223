/* links.c -- messages and bytes between hosts by formula (see links.h). */
#include "mesh/hosts/links.h"
#include "mesh/hosts/layout.h"

typedef struct tally { /* what one rank receives */
    const cri_layout *l;
    int rank;
    cr_link_count into;
} tally;

static bool is_far(const tally *t, int p)
{
    return t->l->host_of[p] != t->l->host_of[t->rank];
}

static bool is_leader(const tally *t)
{
    return t->l->place[t->rank] == 0;
}

static void add(tally *t, int num_messages, size_t num_bytes)
{
    t->into.num_messages += num_messages;
    t->into.num_bytes += (int64_t)num_bytes;
}

static void add_meeting(tally *t)
{
    if (is_leader(t)) add(t, t->l->num_hosts - 1, 0);
}

/* Parts of as many bytes from every rank, each by its own message. */
static void add_parts(tally *t, size_t part_bytes)
{
    for (int p = 0; p < t->l->num && part_bytes > 0; p++)
        if (cri_layout_receives(t->l, t->rank, p)) add(t, 1, part_bytes);
}

/* Parts that the first ranks of hosts exchange: neighbours on one host are one message. is_sum: those of leaves only. */
static void add_short(tally *t, size_t part_bytes, bool is_sum)
{
    const cri_layout *l = t->l;

    for (int p = 0; p < l->num && part_bytes > 0 && is_leader(t); p++) {
        if (!is_far(t, p)) continue;
        if (p == 0 || l->host_of[p] != l->host_of[p - 1]) add(t, 1, 0);
        if (!is_sum || l->leaf[p] == p) add(t, 0, part_bytes);
    }
}

/* The sums that other hosts have of what this rank is to sum: one message a host. */
static void add_sums(tally *t, size_t num, size_t elem_bytes)
{
    int mine = t->l->leaves_of[t->l->host_of[t->rank]], far = t->l->num_leaves - mine;
    bool is_alone = t->l->num_leaves == t->l->num; /* no sums: contributions as they are */

    if (num == 0) return;
    if (elem_bytes < sizeof(float) && !is_alone) elem_bytes = sizeof(float);
    add(t, t->l->num_hosts - 1, (size_t)far * num * elem_bytes);
}

static void add_all_reduce(tally *t, size_t num_bytes, size_t elem_bytes)
{
    size_t num = num_bytes / elem_bytes, max = CRI_STAGE_BYTES / elem_bytes;
    int n = t->l->num;

    if ((size_t)t->l->num_leaves * num_bytes <= CRI_SHORT_BYTES) {
        add_short(t, num_bytes, /*is_sum=*/true);
        return;
    }
    for (size_t at = 0; at < num; at += max) {
        size_t chunk = num - at < max ? num - at : max, each = cri_slice_elems(chunk, n);
        add_sums(t, cri_slice_num(each, chunk, t->rank), elem_bytes);
        for (int p = 0; p < n; p++) {
            size_t bytes = cri_slice_num(each, chunk, p) * elem_bytes;
            if (bytes > 0 && cri_layout_receives(t->l, t->rank, p)) add(t, 1, bytes);
        }
    }
}

/* As many bytes from every rank, which all ranks know. */
static void add_pieces(tally *t, size_t part_bytes)
{
    size_t max = cri_piece_bytes(t->l->num);

    if (part_bytes * (size_t)t->l->num <= CRI_SHORT_BYTES) {
        add_short(t, part_bytes, /*is_sum=*/false);
        return;
    }
    for (size_t at = 0; at < part_bytes; at += max)
        add_parts(t, part_bytes - at < max ? part_bytes - at : max);
}

static void add_gathered_bytes(tally *t, size_t part_bytes)
{
    add_pieces(t, sizeof(uint64_t)); /* lengths */
    add_pieces(t, part_bytes);
}

static void add_all_to_all(tally *t, size_t pair_bytes)
{
    add_pieces(t, (size_t)t->l->num * sizeof(uint64_t)); /* what each sends to each */
    for (int p = 0; p < t->l->num && pair_bytes > 0; p++)
        if (is_far(t, p)) add(t, 1, pair_bytes);
}

static void add_broadcast(tally *t, size_t num_bytes)
{
    if (cri_layout_receives(t->l, t->rank, 0))
        add(t, (int)((num_bytes + CRI_STAGE_BYTES - 1) / CRI_STAGE_BYTES), num_bytes);
}

static void add_data(tally *t, cr_link_call call)
{
    size_t n = (size_t)t->l->num;

    switch (call.coll) {
    case CR_COLL_ALL_GATHER:
        add_parts(t, call.num_bytes / n);
        return;
    case CR_COLL_REDUCE_SCATTER:
        add_sums(t, call.num_bytes / n / call.elem_bytes, call.elem_bytes);
        return;
    case CR_COLL_ALL_REDUCE:
        add_all_reduce(t, call.num_bytes, call.elem_bytes);
        return;
    case CR_COLL_BROADCAST:
        add_broadcast(t, call.num_bytes);
        return;
    case CR_COLL_AGREE:
    case CR_COLL_GATHER_BYTES:
        add_gathered_bytes(t, call.num_bytes / n);
        return;
    case CR_COLL_ALL_TO_ALL:
        add_all_to_all(t, n > 1 ? call.num_bytes / (n - 1) : 0);
        return;
    case CR_COLL_BARRIER:
    case CR_COLL_TRANSFER:
    case CR_COLL_PHASE:
    case CR_NUM_COLLS:
        return;
    }
}

static cr_link_count count(const cri_layout *l, cr_link_call call, int rank)
{
    tally t = {.l = l, .rank = rank};

    if (l->num_hosts == 1 || call.coll == CR_COLL_TRANSFER || call.coll == CR_COLL_PHASE)
        return t.into;
    add_meeting(&t);
    add_data(&t, call);
    return t.into;
}

cr_link_count cr_link_into_rank(const int *host_of, int num_ranks, cr_link_call call, int rank)
{
    cri_layout *l = cri_layout_create(host_of, num_ranks);
    cr_link_count c = count(l, call, rank);

    cri_layout_destroy(l);
    return c;
}

cr_link_count cr_link_into_host(const int *host_of, int num_ranks, cr_link_call call, int host)
{
    cri_layout *l = cri_layout_create(host_of, num_ranks);
    cr_link_count sum = {0};

    for (int r = 0; r < num_ranks; r++)
        if (host_of[r] == host) {
            cr_link_count c = count(l, call, r);
            sum.num_messages += c.num_messages;
            sum.num_bytes += c.num_bytes;
        }
    cri_layout_destroy(l);
    return sum;
}
