/* transfer.c -- pieces of memory between ranks of a group (see comm.h): what every transport does first, and how
 * pieces move between the ranks of a host.
 *
 * Inside a host: the stream of a rank is all that it sends to the others there, one receiver after the other. Streams
 * pass through a window of two slots of CRI_STAGE_BYTES a rank, one round after the other; a receiver copies the
 * overlap of a round with its part of the stream, whose place follows from the sizes that all ranks have exchanged. */
#include "mesh/host.h"

#include <string.h>

enum { SLOTS = 2 };

/* ---- sizes ---- */

typedef struct total { /* of the pieces from one rank to another */
    size_t num_bytes;
    uint64_t sizes; /* hash of the sizes in order */
} total;

/* Empty pieces do not move and do not count. */
static void add_up(const cr_piece *pieces, size_t num, total *of_peer)
{
    for (size_t i = 0; i < num; i++) {
        total *t = &of_peer[pieces[i].peer];
        t->num_bytes += pieces[i].num_bytes;
        if (pieces[i].num_bytes) t->sizes = t->sizes * 0x9e3779b97f4a7c15u + pieces[i].num_bytes;
    }
}

static cr_status compare(const cri_call *call, int from, int to, const total *sent,
                         const total *expected, cr_err *err)
{
    const int *world_rank = call->group->world_ranks;

    if (sent->num_bytes != expected->num_bytes)
        return cr_fail(err, CR_EPEER,
                       "%s %s: rank %d sends %zu bytes to rank %d, which expects %zu",
                       cr_coll_name(call->coll), call->name, world_rank[from], sent->num_bytes,
                       world_rank[to], expected->num_bytes);
    if (sent->sizes != expected->sizes)
        return cr_fail(
            err, CR_EPEER,
            "transfer %s: the %zu bytes from rank %d to rank %d are sent in other pieces "
            "than they are expected in",
            call->name, sent->num_bytes, world_rank[from], world_rank[to]);
    return CR_OK;
}

/* What this rank sends to itself. Both lists have the same sizes. */
static cr_status copy_own(const cr_group *g, const cri_pieces *x, cr_err *err)
{
    const cr_piece *to = x->recvs;

    for (const cr_piece *from = x->sends; from < x->sends + x->num_sends; from++) {
        if (from->peer != g->rank || !from->num_bytes) continue;
        while (to->peer != g->rank || !to->num_bytes)
            to++;
        if (x->dev)
            CR_TRY(cr_copy(x->dev, cr_mem_of_host(x->recv + to->offset_bytes),
                           (const cr_mem *)(const void *)(x->send + from->offset_bytes),
                           from->num_bytes, err));
        else
            memmove(x->recv + to->offset_bytes, x->send + from->offset_bytes, from->num_bytes);
        to++;
    }
    return CR_OK;
}

cr_status cri_transfer_begin(cri_call *call, const cri_pieces *x, size_t *sent_bytes, cr_err *err)
{
    cr_group *g = call->group;
    size_t n = (size_t)g->num_ranks, *offsets = CR_NEW_ARRAY(size_t, n + 1);
    total *mine = CR_NEW_ARRAY(total, 2 * n); /* sent to each rank, then expected from each */
    cr_buf all = {0};

    add_up(x->sends, x->num_sends, mine);
    add_up(x->recvs, x->num_recvs, mine + n);
    CR_TRY_GOTO(out, g->base->all_gather(call, (const char *)mine, 2 * n * sizeof *mine, &all,
                                         offsets, err));
    for (size_t from = 0; from < n; from++)
        for (size_t to = 0; to < n; to++) {
            const total *t = (const total *)(const void *)all.data;
            const total *sent = &t[2 * n * from + to], *expected = &t[2 * n * to + n + from];
            CR_TRY_GOTO(out, compare(call, (int)from, (int)to, sent, expected, err));
            if (sent_bytes) sent_bytes[n * from + to] = sent->num_bytes;
        }
    cr_note(copy_own(g, x, err));
out:
    cr_buf_free(&all);
    cr_free(mine);
    cr_free(offsets);
    return err->status;
}

/* ---- inside a host ---- */

typedef struct cursor { /* in the pieces of one peer */
    const cr_piece *piece;
    size_t done_bytes;
} cursor;

typedef struct span { /* of a stream: what one receiver gets */
    size_t begin, end;
} span;

typedef struct streams {
    size_t longest_bytes;
    span *out, *in;        /* [num] in the own stream, by receiver; in the stream of each sender */
    cursor *sends, *recvs; /* [num] */
} streams;

static void streams_init(streams *s, const cri_host *h, const cri_pieces *x,
                         const size_t *sent_bytes)
{
    *s =
        (streams){.out = CR_NEW_ARRAY(span, 2 * h->num), .sends = CR_NEW_ARRAY(cursor, 2 * h->num)};
    s->in = s->out + h->num;
    s->recvs = s->sends + h->num;
    for (int from = 0; from < h->num; from++) {
        size_t at = 0;
        for (int to = 0; to < h->num; to++) {
            span part = {at, at};
            if (to != from)
                part.end += sent_bytes[h->rank[from] * h->group->num_ranks + h->rank[to]];
            at = part.end;
            if (from == h->own) s->out[to] = part;
            if (to == h->own) s->in[from] = part;
        }
        if (at > s->longest_bytes) s->longest_bytes = at;
        s->sends[from] = (cursor){x->sends, 0};
        s->recvs[from] = (cursor){x->recvs, 0};
    }
}

static void streams_fini(streams *s)
{
    cr_free(s->out);
    cr_free(s->sends);
}

/* What a round from `at` on has of a span. */
static span overlap(span s, size_t at)
{
    if (s.begin < at) s.begin = at;
    if (s.end > at + CRI_STAGE_BYTES) s.end = at + CRI_STAGE_BYTES;
    return s;
}

/* The next bytes of peer's pieces, to or from the stage. */
static void copy_next(cursor *c, int peer, const char *from, char *to, char *stage,
                      size_t num_bytes)
{
    while (num_bytes > 0) {
        size_t num, at;
        while (c->piece->peer != peer || c->done_bytes == c->piece->num_bytes)
            *c = (cursor){c->piece + 1, 0};
        num = c->piece->num_bytes - c->done_bytes;
        if (num > num_bytes) num = num_bytes;
        at = c->piece->offset_bytes + c->done_bytes;
        if (from)
            memcpy(stage, from + at, num);
        else
            memcpy(to + at, stage, num);
        c->done_bytes += num;
        stage += num;
        num_bytes -= num;
    }
}

static cr_status move_round(cri_host *h, const cri_call *call, const cri_pieces *x, streams *s,
                            size_t at, cr_err *err)
{
    cri_window *w = h->channel;
    int slot = (int)(at / CRI_STAGE_BYTES % SLOTS);
    char *stage = w->data + (size_t)slot * (size_t)h->num_places * CRI_STAGE_BYTES;

    CR_TRY(cri_window_begin(w, slot, call->name, call->event, err));
    for (int i = 0; i < h->num; i++) {
        span part = overlap(s->out[i], at);
        if (part.begin < part.end)
            copy_next(&s->sends[i], h->rank[i], x->send, NULL,
                      stage + (size_t)h->own * CRI_STAGE_BYTES + (part.begin - at),
                      part.end - part.begin);
    }
    cri_window_write(w, slot, h->group->rank);
    for (int i = 0; i < h->num; i++) {
        span part = overlap(s->in[i], at);
        if (part.begin >= part.end) continue;
        CR_TRY(cri_window_wait_written(w, slot, h->rank[i], i, call->name, call->event, err));
        copy_next(&s->recvs[i], h->rank[i], NULL, x->recv,
                  stage + (size_t)i * CRI_STAGE_BYTES + (part.begin - at), part.end - part.begin);
    }
    cri_window_end(w, slot);
    return CR_OK;
}

cr_status cri_host_transfer(cri_host *host, const cri_call *call, const cri_pieces *x,
                            const size_t *sent_bytes, cr_err *err)
{
    size_t window_bytes = (size_t)SLOTS * (size_t)host->num_places * CRI_STAGE_BYTES;
    streams s;

    if (!host->channel) CR_TRY(cri_window_create(host, SLOTS, window_bytes, &host->channel, err));
    streams_init(&s, host, x, sent_bytes);
    for (size_t at = 0; at < s.longest_bytes && err->status == CR_OK; at += CRI_STAGE_BYTES)
        cr_note(move_round(host, call, x, &s, at, err));
    streams_fini(&s);
    return err->status;
}
