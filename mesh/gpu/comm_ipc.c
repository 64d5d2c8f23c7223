/* comm_ipc.c -- memory of GPUs in a group whose ranks share some of them, which NCCL refuses. Transfers (weights from trainers to engines)
 * stay on the GPUs; all else goes through the host (comm_staged.c): such groups are those of a weight sync, where there is nothing else,
 * or of a test.
 *
 * A transfer: ranks of one GPU lend each other the allocations that they send from (CUDA IPC), and the receiver copies. From GPU to
 * GPU it is one group of messages of NCCL, between the first ranks of the GPUs: these move what the others of their GPU send, and
 * receive in the others' place, in memory that is lent to them. Then all meet: no rank reads or writes lent memory any more.
 *
 *     sizes are compared -> what is sent is complete (the host waits for compute) -> loans and pieces are exchanged
 *     -> copies and messages -> the host waits, and closes what it has opened -> all meet -> loans are taken back
 *
 * A rank that fails on the way leaves its loans: that memory stays until its process ends, and others may still read it. Where a
 * container keeps processes from opening each other's memory, which is tried when the group is made, a warning says so, and transfers
 * go through the host, too. */
#include "mesh/gpu/nccl.h"

#include <stdio.h>
#include <string.h>

/* ---- may ranks of one GPU open each other's memory? ---- */

enum { PROBE_BYTES = 256, WHY_BYTES = 240 };

typedef struct offer { /* of the first rank of a GPU */
    cr_gpu_loan loan;
    uint64_t is_there;
} offer;

static void try_loan(cr_group *g, const offer *o, char *why)
{
    cr_mem *base;
    cr_err e = {0};

    if (!o->is_there)
        snprintf(why, WHY_BYTES, "rank %d lends none", g->world_ranks[g->nccl->first[g->rank]]);
    else if (cr_gpu_open_loan(g->dev, &o->loan, &base, &e) != CR_OK ||
             cr_gpu_close_loan(g->dev, base, &e) != CR_OK)
        snprintf(why, WHY_BYTES, "%.200s", e.msg);
}

/* Sets has_loans, on all ranks alike. */
static cr_status probe(cr_group *g, cr_err *err)
{
    size_t *offsets = CR_NEW_ARRAY(size_t, g->num_ranks + 1);
    char why[WHY_BYTES] = "";
    cr_buf offers = {0}, all = {0};
    cr_mem *mem = NULL;
    offer mine = {.is_there = 0};
    cr_err e = {0};

    if (cri_is_member(g)) {
        mine.is_there = cr_device_alloc(g->dev, PROBE_BYTES, &mem, &e) == CR_OK &&
                        cr_gpu_lend(g->dev, mem, &mine.loan, &e) == CR_OK;
        if (!mine.is_there) snprintf(why, sizeof why, "%.200s", e.msg);
    }
    CR_TRY_GOTO(out, cr_all_gather_bytes(g, "loans", &mine, sizeof mine, &offers, offsets, err));
    if (!cri_is_member(g))
        try_loan(g, &((const offer *)(const void *)offers.data)[g->nccl->first[g->rank]], why);
    CR_TRY_GOTO(out, cr_all_gather_bytes(g, "opened", why, sizeof why, &all, offsets, err));
    g->nccl->has_loans = true;
    for (int r = 0; r < g->num_ranks && g->nccl->has_loans; r++) {
        const char *text = (const char *)all.data + (size_t)r * WHY_BYTES;
        g->nccl->has_loans = !text[0];
        if (text[0] && g->rank == 0)
            cr_log(CR_LOG_WARN, "mesh",
                   "group %s: processes of one GPU do not open each other's memory (rank %d: %s): "
                   "weights go through the host's memory, which is slower",
                   g->name, g->world_ranks[r], text);
    }
out:
    if (mine.is_there && err->status == CR_OK) cr_gpu_take_back(g->dev, mem);
    cr_device_free(g->dev, mem, PROBE_BYTES);
    cr_buf_free(&offers);
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}

static cr_status ipc_open(cr_group *g, cr_err *err)
{
    CR_TRY(probe(g, err));
    return cri_nccl_open(g, err);
}

/* ---- a transfer ---- */

typedef struct part { /* what a rank sends the others; its pieces follow, sends before receives */
    uint64_t num_sends, num_recvs, lends_send, lends_recv;
    cr_gpu_loan send, recv;
} part;

typedef struct side { /* a rank, as this one sees it */
    const part *said;
    const cr_piece *sends, *recvs;
    cr_mem *send_base, *recv_base; /* opened here, or NULL */
    const char *send;
    char *recv;
} side;

typedef struct move {
    cri_call *call;
    cr_group *g;
    const cri_pieces *x;
    size_t *sent; /* [num_ranks][num_ranks] bytes, from each to each */
    side *of;     /* [num_ranks] */
} move;

static bool is_near(const cr_group *g, int a, int b)
{
    return g->nccl->member[a] == g->nccl->member[b];
}

/* Another rank of this GPU, or its member, moves from or to the memory of rank `of` what goes from one to the other. */
static bool is_moved_by(const cr_group *g, int from, int to, int of, int by)
{
    if (from == to || by == of || !is_near(g, of, by)) return false;
    return is_near(g, from, to) ? of == from && by == to : g->nccl->first[of] == by;
}

/* Does `by` open what rank `of` sends from (or receives in)? */
static bool is_opened(const move *m, int of, int by, bool is_send)
{
    int n = m->g->num_ranks;

    for (int peer = 0; peer < n; peer++) {
        int from = is_send ? of : peer, to = is_send ? peer : of;
        if (m->sent[from * n + to] && is_moved_by(m->g, from, to, of, by)) return true;
    }
    return false;
}

static bool is_lent(const move *m, bool is_send)
{
    for (int by = 0; by < m->g->num_ranks; by++)
        if (is_opened(m, m->g->rank, by, is_send)) return true;
    return false;
}

/* What this rank sends the others. */
static cr_status lend(const move *m, cr_buf *out, cr_err *err)
{
    part mine = {.num_sends = m->x->num_sends, .num_recvs = m->x->num_recvs};

    mine.lends_send = is_lent(m, true);
    mine.lends_recv = is_lent(m, false);
    if (mine.lends_send)
        CR_TRY(cr_gpu_lend(m->g->dev, (const cr_mem *)(const void *)m->x->send, &mine.send, err));
    if (mine.lends_recv)
        CR_TRY(cr_gpu_lend(m->g->dev, cr_mem_of_host(m->x->recv), &mine.recv, err));
    cr_buf_add(out, &mine, sizeof mine);
    cr_buf_add(out, m->x->sends, m->x->num_sends * sizeof(cr_piece));
    cr_buf_add(out, m->x->recvs, m->x->num_recvs * sizeof(cr_piece));
    return CR_OK;
}

static void take_back(const move *m)
{
    const part *mine = m->of[m->g->rank].said;

    if (mine->lends_send) cr_gpu_take_back(m->g->dev, (const cr_mem *)(const void *)m->x->send);
    if (mine->lends_recv) cr_gpu_take_back(m->g->dev, cr_mem_of_host(m->x->recv));
}

static cr_status open_side(const move *m, int rank, cr_err *err)
{
    side *s = &m->of[rank];

    if (is_opened(m, rank, m->g->rank, true)) {
        CR_TRY(cr_gpu_open_loan(m->g->dev, &s->said->send, &s->send_base, err));
        s->send = (const char *)cr_mem_to_host(s->send_base) + s->said->send.offset_bytes;
    }
    if (is_opened(m, rank, m->g->rank, false)) {
        CR_TRY(cr_gpu_open_loan(m->g->dev, &s->said->recv, &s->recv_base, err));
        s->recv = (char *)cr_mem_to_host(s->recv_base) + s->said->recv.offset_bytes;
    }
    return CR_OK;
}

static cr_status close_sides(const move *m, cr_err *err)
{
    for (side *s = m->of; s < m->of + m->g->num_ranks; s++) {
        if (s->send_base) CR_TRY(cr_gpu_close_loan(m->g->dev, s->send_base, err));
        if (s->recv_base) CR_TRY(cr_gpu_close_loan(m->g->dev, s->recv_base, err));
    }
    return CR_OK;
}

static void read_sides(move *m, const cr_buf *all, const size_t *offsets)
{
    for (int r = 0; r < m->g->num_ranks; r++) {
        side *s = &m->of[r];
        s->said = (const part *)(const void *)(all->data + offsets[r]);
        s->sends = (const cr_piece *)(const void *)(s->said + 1);
        s->recvs = s->sends + s->said->num_sends;
    }
    m->of[m->g->rank].send = m->x->send;
    m->of[m->g->rank].recv = m->x->recv;
}

/* From a rank of this GPU. Both lists have the same sizes. */
static cr_status copy_from(const move *m, int from, cr_err *err)
{
    const side *s = &m->of[from];
    const cr_piece *to = m->x->recvs;

    for (const cr_piece *p = s->sends; p < s->sends + s->said->num_sends; p++) {
        if (p->peer != m->g->rank || !p->num_bytes) continue;
        while (to->peer != from || !to->num_bytes)
            to++;
        CR_TRY(cr_copy(m->g->dev, cr_mem_of_host(m->x->recv + to->offset_bytes),
                       (const cr_mem *)(const void *)(s->send + p->offset_bytes), p->num_bytes,
                       err));
        to++;
    }
    return CR_OK;
}

/* The messages between two GPUs, one of which is this member's. */
static void add_messages(const move *m, int from, int to, ncclResult_t *code)
{
    const int *first = m->g->nccl->first, *member = m->g->nccl->member;
    const side *a = &m->of[from], *b = &m->of[to];

    for (uint64_t i = 0; first[from] == m->g->rank && i < a->said->num_sends; i++)
        if (a->sends[i].peer == to)
            cri_nccl_send(m->g, a->send + a->sends[i].offset_bytes, a->sends[i].num_bytes,
                          member[to], CR_STREAM_COMPUTE, code);
    for (uint64_t i = 0; first[to] == m->g->rank && i < b->said->num_recvs; i++)
        if (b->recvs[i].peer == from)
            cri_nccl_receive(m->g, b->recv + b->recvs[i].offset_bytes, b->recvs[i].num_bytes,
                             member[from], CR_STREAM_COMPUTE, code);
}

/* In one order on all members: from, then to. */
static cr_status exchange(const move *m, cr_err *err)
{
    cr_group *g = m->g;
    int n = g->num_ranks, own = g->nccl->member[g->rank];
    ncclResult_t code = ncclSuccess;

    CR_TRY(cri_nccl_begin(g, m->call->name, err));
    cri_nccl_send(g, NULL, 0, own, CR_STREAM_COMPUTE, &code);
    cri_nccl_receive(g, NULL, 0, own, CR_STREAM_COMPUTE, &code);
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++)
            if (m->sent[from * n + to] && !is_near(g, from, to)) add_messages(m, from, to, &code);
    return cri_nccl_end(g, m->call->name, code, err);
}

static cr_status move_all(const move *m, cr_err *err)
{
    cr_group *g = m->g;
    int n = g->num_ranks;
    bool has_messages = false;

    for (int r = 0; r < n; r++)
        CR_TRY(open_side(m, r, err));
    for (int from = 0; from < n; from++)
        if (from != g->rank && is_near(g, from, g->rank) && m->sent[from * n + g->rank])
            CR_TRY(copy_from(m, from, err));
    for (int i = 0; i < n * n; i++)
        has_messages = has_messages || (m->sent[i] && !is_near(g, i / n, i % n));
    if (has_messages && cri_is_member(g)) CR_TRY(exchange(m, err));
    CR_TRY(cri_nccl_wait(m->call, err));
    return close_sides(m, err);
}

static cr_status transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    cr_group *g = call->group;
    size_t n = (size_t)g->num_ranks, *offsets;
    move m = {.call = call, .g = g, .x = x};
    cr_buf mine = {0}, all = {0};

    if (!g->nccl->has_loans) return cri_comm_staged.transfer(call, x, err);
    offsets = CR_NEW_ARRAY(size_t, n + 1);
    m.sent = CR_NEW_ARRAY(size_t, n * n);
    m.of = CR_NEW_ARRAY(side, n);
    CR_TRY_GOTO(out, cri_transfer_begin(call, x, m.sent, err));
    CR_TRY_GOTO(out, cr_device_sync(g->dev, err));
    CR_TRY_GOTO(out, lend(&m, &mine, err));
    CR_TRY_GOTO(out, g->base->all_gather(call, (const char *)mine.data, mine.num_bytes, &all,
                                         offsets, err));
    read_sides(&m, &all, offsets);
    CR_TRY_GOTO(out, move_all(&m, err));
    CR_TRY_GOTO(out, cri_call_round(call, 0, /*is_equal=*/true, err));
    take_back(&m);
out:
    cr_buf_free(&mine);
    cr_buf_free(&all);
    cr_free(m.sent);
    cr_free(m.of);
    cr_free(offsets);
    return err->status;
}

const cri_comm *cri_comm_ipc(void)
{
    static cri_comm table;

    table = cri_comm_staged;
    table.name = "ipc";
    table.open = ipc_open;
    table.close = cri_nccl_close;
    table.abort = cri_nccl_abort;
    table.transfer = transfer;
    return &table;
}
