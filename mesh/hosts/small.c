/* small.c -- small and occasional collectives between hosts (see between.h): one meeting a call, then rounds through the
 * slots of the host's first window, two of each kind in turn. What one round moves is bounded (CRI_STAGE_BYTES), and so is the memory of a group,
 * however many ranks it has. */
#include "mesh/hosts/between.h"

#include <string.h>

static cri_exchanged exchange_of(const cri_call *call)
{
    return (cri_exchanged){.group = call->group,
                           .coll = call->coll,
                           .name = call->name,
                           .event = call->event,
                           .sequence = call->sequence,
                           .requests = call->group->hosts->requests};
}

/* ---- slots ---- */

static int next_turn(const cr_group *g)
{
    return (int)(g->hosts->num_uses++ % 2);
}

static char *own_at(const cr_group *g, int turn, int place)
{
    return g->host->stage->data +
           (size_t)(turn * g->host->num_places + place) * (size_t)CRI_STAGE_BYTES;
}

static char *whole_at(const cr_group *g, int turn)
{
    return own_at(g, 2, turn);
}

static cr_status begin(const cri_exchanged *x, int slot, cr_err *err)
{
    return cri_window_begin(x->group->host->stage, slot, x->name, x->event, err);
}

static void end(const cri_exchanged *x, int slot)
{
    cri_window_end(x->group->host->stage, slot);
}

/* All parts to `data`, of which the own one is there. */
static cr_status move_parts(const cri_parts *p, cr_err *err)
{
    CR_TRY(cri_parts_send(p, err));
    return cri_parts_wait(p, err);
}

static cri_parts parts_of(cri_exchanged *x, int turn, bool is_short)
{
    return (cri_parts){.x = x,
                       .window = x->group->host->stage,
                       .slot = CRI_WHOLE_SLOT + turn,
                       .data = whole_at(x->group, turn),
                       .offset = x->group->hosts->offset,
                       .is_short = is_short};
}

/* ---- all-reduce ---- */

/* The first rank of a leaf adds up its ranks' vectors, which are in their slots. */
static cr_status sum_leaf(const cri_exchanged *x, const cri_vector *v, int turn, char *out,
                          cr_err *err)
{
    cr_group *g = x->group;
    cri_hosts *h = g->hosts;
    const cri_layout *l = h->layout;
    int n = 0;

    for (int r = g->rank; r < g->num_ranks && l->leaf[r] == g->rank; r++) {
        CR_TRY(cri_window_wait_written(g->host->stage, CRI_OWN_SLOT + turn, r, l->place[r], x->name,
                                       x->event, err));
        g->parts[n++] = own_at(g, turn, l->place[r]);
    }
    cri_tree(n, NULL, h->merges);
    cri_combine(v, g->parts, h->merges, n, out, v->num);
    return CR_OK;
}

/* The sums of all leaves come to each host; every rank adds them up. */
static cr_status all_reduce_short(cri_exchanged *x, const cri_vector *v, cr_err *err)
{
    cr_group *g = x->group;
    const cri_layout *l = g->hosts->layout;
    size_t num_bytes = v->num * v->elem_bytes, *offset = g->hosts->offset;
    int turn = next_turn(g), n = 0;
    cri_parts p = parts_of(x, turn, /*is_short=*/true);

    offset[0] = 0;
    for (int r = 0; r < g->num_ranks; r++)
        offset[r + 1] = offset[r] + (l->leaf[r] == r ? num_bytes : 0);
    CR_TRY(begin(x, CRI_OWN_SLOT + turn, err));
    CR_TRY(begin(x, p.slot, err));
    CR_TRY(cri_parts_receive(&p, err));
    memcpy(own_at(g, turn, g->host->own), v->data, num_bytes);
    cri_window_write(g->host->stage, CRI_OWN_SLOT + turn, g->rank);
    if (l->leaf[g->rank] == g->rank) CR_TRY(sum_leaf(x, v, turn, p.data + offset[g->rank], err));
    end(x, CRI_OWN_SLOT + turn);
    CR_TRY(move_parts(&p, err));
    for (int r = 0; r < g->num_ranks; r++)
        if (l->leaf[r] == r) g->parts[n++] = p.data + offset[r];
    cri_combine(v, g->parts, g->hosts->of_leaves, n, v->data, v->num);
    end(x, p.slot);
    return CR_OK;
}

typedef struct chunk { /* of a long vector, at most CRI_STAGE_BYTES */
    cri_vector v;
    size_t each; /* elements of a slice */
} chunk;

static chunk chunk_at(const cr_group *g, const cri_vector *v, size_t at)
{
    size_t max = CRI_STAGE_BYTES / v->elem_bytes;
    chunk c = {.v = *v};

    c.v.data += at * v->elem_bytes;
    c.v.num = v->num - at < max ? v->num - at : max;
    c.each = cri_slice_elems(c.v.num, g->num_ranks);
    return c;
}

/* Slice q of all ranks comes to rank q, which adds up and puts its sum into `out`. */
static cr_status scatter(cri_exchanged *x, const chunk *c, int turn, char *out, cr_err *err)
{
    cr_group *g = x->group;
    const cri_host *h = g->host;
    const char **vector = cr_alloc((size_t)h->num * sizeof *vector);
    cri_sums s = {.x = x,
                  .v = c->v,
                  .each = c->each,
                  .num = c->v.num,
                  .vector = vector,
                  .sums = g->hosts->sums,
                  .came = g->hosts->came};

    for (int i = 0; i < h->num; i++)
        vector[i] = i == h->own ? c->v.data : own_at(g, turn, i);
    CR_TRY_GOTO(out, begin(x, CRI_OWN_SLOT + turn, err));
    CR_TRY_GOTO(out, cri_sums_receive(&s, err));
    if (h->num > 1) memcpy(own_at(g, turn, h->own), c->v.data, c->v.num * c->v.elem_bytes);
    cri_window_write(h->stage, CRI_OWN_SLOT + turn, g->rank);
    for (int i = 0; i < h->num; i++)
        CR_TRY_GOTO(out, cri_window_wait_written(h->stage, CRI_OWN_SLOT + turn, h->rank[i], i,
                                                 x->name, x->event, err));
    CR_TRY_GOTO(out, cri_sums_send(&s, err));
    CR_TRY_GOTO(out, cri_wait_exchanged(x, err)); /* sums land where the vector was sent from */
    cri_sums_combine(&s, out, /*is_added=*/false);
    end(x, CRI_OWN_SLOT + turn);
out:
    cr_free(vector);
    return err->status;
}

/* A rank alone on its host has the sums put into its vector. */
static cr_status reduce_chunk(cri_exchanged *x, const chunk *c, cr_err *err)
{
    cr_group *g = x->group;
    size_t *offset = g->hosts->offset;
    int turn = next_turn(g);
    cri_parts p = parts_of(x, turn, /*is_short=*/false);

    for (int r = 0; r <= g->num_ranks; r++) {
        size_t begins = c->each * (size_t)r;
        offset[r] = (begins < c->v.num ? begins : c->v.num) * c->v.elem_bytes;
    }
    if (g->host->num == 1) p.data = c->v.data;
    CR_TRY(begin(x, p.slot, err));
    CR_TRY(scatter(x, c, turn, p.data + offset[g->rank], err));
    CR_TRY(cri_parts_receive(&p, err));
    CR_TRY(move_parts(&p, err));
    if (g->host->num > 1) memcpy(c->v.data, p.data, c->v.num * c->v.elem_bytes);
    end(x, p.slot);
    return CR_OK;
}

static void make_room(cr_group *g)
{
    cri_hosts *h = g->hosts;
    size_t max = CRI_STAGE_BYTES / sizeof(float);

    if (h->came) return;
    cri_sums_room(g, cri_slice_elems(max, g->num_ranks), sizeof(float), &h->sums_bytes,
                  &h->came_bytes);
    h->sums = cri_pages_map(h->sums_bytes, /*is_meta=*/false);
    h->came = cri_pages_map(h->came_bytes, /*is_meta=*/false);
}

cr_status cri_hosts_all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    cr_group *g = call->group;
    size_t num_bytes = v->num * v->elem_bytes;
    cri_exchanged x;

    CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/true, err));
    x = exchange_of(call);
    if (v->num == 0) return CR_OK;
    if ((size_t)g->hosts->layout->num_leaves * num_bytes <= CRI_SHORT_BYTES)
        return all_reduce_short(&x, v, err);
    make_room(g);
    for (size_t at = 0; at < v->num;) {
        chunk c = chunk_at(g, v, at);
        CR_TRY(reduce_chunk(&x, &c, err));
        at += c.v.num;
    }
    return CR_OK;
}

/* ---- broadcast ---- */

cr_status cri_hosts_broadcast(cri_call *call, int root, char *data, size_t num_bytes, cr_err *err)
{
    cr_group *g = call->group;
    size_t *offset = g->hosts->offset;
    cri_exchanged x;

    CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/true, err));
    x = exchange_of(call);
    for (size_t at = 0; at < num_bytes; at += CRI_STAGE_BYTES) {
        size_t num = num_bytes - at < CRI_STAGE_BYTES ? num_bytes - at : CRI_STAGE_BYTES;
        cri_parts p = parts_of(&x, next_turn(g), /*is_short=*/false);
        for (int r = 0; r <= g->num_ranks; r++)
            offset[r] = r > root ? num : 0;
        CR_TRY(begin(&x, p.slot, err));
        CR_TRY(cri_parts_receive(&p, err));
        if (g->rank == root) memcpy(p.data, data + at, num);
        CR_TRY(move_parts(&p, err));
        if (g->rank != root) memcpy(data + at, p.data, num);
        end(&x, p.slot);
    }
    return CR_OK;
}

/* ---- gathered bytes ---- */

/* offsets[num_ranks + 1] of all ranks' bytes in `out`, the same everywhere. A round: at most cri_piece_bytes of each rank. */
static cr_status gather_known(cri_exchanged *x, const char *data, const size_t *offsets, char *out,
                              cr_err *err)
{
    cr_group *g = x->group;
    int n = g->num_ranks, me = g->rank;
    bool is_short = offsets[n] <= CRI_SHORT_BYTES;
    size_t *offset = g->hosts->offset, max = is_short ? CRI_SHORT_BYTES : cri_piece_bytes(n);

    for (size_t at = 0;; at += max) {
        cri_parts p = parts_of(x, next_turn(g), is_short);
        offset[0] = 0;
        for (int r = 0; r < n; r++) {
            size_t total = offsets[r + 1] - offsets[r], left = at < total ? total - at : 0;
            offset[r + 1] = offset[r] + (left < max ? left : max);
        }
        if (offset[n] == 0) return CR_OK;
        CR_TRY(begin(x, p.slot, err));
        CR_TRY(cri_parts_receive(&p, err));
        if (offset[me + 1] > offset[me]) /* data may be NULL */
            memcpy(p.data + offset[me], data + at, offset[me + 1] - offset[me]);
        CR_TRY(move_parts(&p, err));
        for (int r = 0; r < n; r++)
            memcpy(out + offsets[r] + at, p.data + offset[r], offset[r + 1] - offset[r]);
        end(x, p.slot);
    }
}

/* num_bytes of each rank, in rank order. */
static cr_status gather_equal(cri_exchanged *x, const void *data, size_t num_bytes, void *out,
                              cr_err *err)
{
    int n = x->group->num_ranks;
    size_t *offsets = CR_NEW_ARRAY(size_t, n + 1);

    for (int r = 0; r <= n; r++)
        offsets[r] = num_bytes * (size_t)r;
    cr_note(gather_known(x, data, offsets, out, err));
    cr_free(offsets);
    return err->status;
}

cr_status cri_hosts_all_gather(cri_call *call, const char *data, size_t num_bytes, cr_buf *out,
                               size_t *offsets, cr_err *err)
{
    cr_group *g = call->group;
    cri_exchanged x;

    CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/false, err));
    x = exchange_of(call);
    offsets[0] = 0;
    CR_TRY(gather_equal(&x, &num_bytes, sizeof num_bytes, offsets + 1, err));
    for (int r = 0; r < g->num_ranks; r++)
        offsets[r + 1] += offsets[r];
    cr_buf_reserve(out, offsets[g->num_ranks] + 1);
    out->num_bytes = offsets[g->num_ranks];
    out->data[out->num_bytes] = 0;
    return gather_known(&x, data, offsets, out->data, err);
}

/* ---- from each rank to each ---- */

/* One message a piece, or several of at most MESSAGE_BYTES. from or to is NULL. */
static cr_status post_pieces(cri_call *call, const cr_piece *pieces, size_t num_pieces,
                             const char *from, char *to, cr_buf *requests, cr_err *err)
{
    enum { MESSAGE_BYTES = 1 << 30 };
    cr_group *g = call->group;

    for (const cr_piece *p = pieces; p < pieces + num_pieces; p++) {
        if (cr_world_is_here(g->world, g->world_ranks[p->peer])) continue;
        for (size_t at = 0; at < p->num_bytes; at += MESSAGE_BYTES) {
            size_t left = p->num_bytes - at, offset = p->offset_bytes + at;
            int num = (int)(left < MESSAGE_BYTES ? left : MESSAGE_BYTES), code;
            MPI_Request request = MPI_REQUEST_NULL;

            if (to) cri_count_received(g->world, call->coll, 1, (size_t)num);
            code = from ? MPI_Isend(from + offset, num, MPI_BYTE, p->peer, CRI_TRANSFER_TAG, g->mpi,
                                    &request)
                        : MPI_Irecv(to + offset, num, MPI_BYTE, p->peer, CRI_TRANSFER_TAG, g->mpi,
                                    &request);
            cr_buf_add(requests, &request, sizeof request);
            CR_TRY(cri_mpi(g->world, code, call->name, err));
        }
    }
    return CR_OK;
}

/* Messages to other hosts, shared memory inside. sent_bytes[num_ranks][num_ranks]: from each rank to each. */
static cr_status move_pieces(cri_call *call, const cri_pieces *x, const size_t *sent_bytes,
                             cr_err *err)
{
    cr_group *g = call->group;
    cr_buf requests = {0};

    CR_TRY_GOTO(out, post_pieces(call, x->recvs, x->num_recvs, NULL, x->recv, &requests, err));
    CR_TRY_GOTO(out, post_pieces(call, x->sends, x->num_sends, x->send, NULL, &requests, err));
    if (g->hosts->layout->max_on_host > 1)
        CR_TRY_GOTO(out, cri_host_transfer(g->host, call, x, sent_bytes, err));
    cr_note(cri_wait_requests(g, (MPI_Request *)(void *)requests.data,
                              (int)(requests.num_bytes / sizeof(MPI_Request)), call->name,
                              call->event, err));
out:
    cr_buf_free(&requests);
    return err->status;
}

cr_status cri_hosts_transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    size_t n = (size_t)call->group->num_ranks, *sent_bytes = cr_alloc(n * n * sizeof *sent_bytes);

    if (cri_transfer_begin(call, x, sent_bytes, err) == CR_OK)
        cr_note(move_pieces(call, x, sent_bytes, err));
    cr_free(sent_bytes);
    return err->status;
}

/* All ranks learn all sizes: a wrong one must be an error here, not inside MPI. */
cr_status cri_hosts_all_to_all(cri_call *call, const cri_exchange *x, cr_err *err)
{
    cr_group *g = call->group;
    int n = g->num_ranks, me = g->rank;
    size_t *bytes = CR_NEW_ARRAY(size_t, n * n);
    cr_piece *piece = CR_NEW_ARRAY(cr_piece, 2 * n);
    cri_exchanged ex;

    CR_TRY_GOTO(out, cri_call_round(call, x->send_offsets[n], /*is_equal=*/false, err));
    ex = exchange_of(call);
    CR_TRY_GOTO(out, gather_equal(&ex, x->send_bytes, (size_t)n * sizeof *bytes, bytes, err));
    for (int r = 0; r < n; r++) {
        if (bytes[r * n + me] != x->recv_bytes[r]) {
            cr_fail(err, CR_EPEER, "all_to_all %s: rank %d sends %zu bytes, rank %d expects %zu",
                    call->name, g->world_ranks[r], bytes[r * n + me], g->world->rank,
                    x->recv_bytes[r]);
            goto out;
        }
        piece[r] = (cr_piece){r, x->send_offsets[r], x->send_bytes[r]};
        piece[n + r] = (cr_piece){r, x->recv_offsets[r], x->recv_bytes[r]};
    }
    if (x->send_bytes[me] > 0)
        memcpy(x->recv + x->recv_offsets[me], x->send + x->send_offsets[me], x->send_bytes[me]);
    cr_note(move_pieces(
        call, &(cri_pieces){x->send, x->recv, piece, piece + n, (size_t)n, (size_t)n, NULL}, bytes,
        err));
out:
    cr_free(bytes);
    cr_free(piece);
    return err->status;
}
