/* transfer.c -- pieces of memory between any two ranks of the world (see collectives.h), by
 * non-blocking MPI messages in pieces of at most 1 GiB. */
#include "mesh/comm.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static const size_t message_bytes = (size_t)1 << 30;

struct cr_transfer {
    cr_world *world;
    uint64_t event;
    MPI_Request *requests;
    int *peers; /* [num_requests] */
    int num_requests, num_recvs;
    char name[CRI_NAME_BYTES];
};

static int num_messages(const cr_world *w, const cr_piece *pieces, size_t num)
{
    size_t n = 0;

    for (size_t i = 0; i < num; i++)
        if (pieces[i].peer != w->rank)
            n += (pieces[i].num_bytes + message_bytes - 1) / message_bytes;
    return (int)n;
}

/* What this rank sends to itself: both lists, in order, must agree. */
static cr_status copy_own(const cr_world *w, const char *name, const char *send,
                          const cr_piece *sends, size_t num_sends, char *recv,
                          const cr_piece *recvs, size_t num_recvs, cr_err *err)
{
    size_t s = 0, r = 0;

    for (;; s++, r++) {
        while (s < num_sends && sends[s].peer != w->rank)
            s++;
        while (r < num_recvs && recvs[r].peer != w->rank)
            r++;
        if (s == num_sends && r == num_recvs) return CR_OK;
        if (s == num_sends || r == num_recvs || sends[s].num_bytes != recvs[r].num_bytes)
            return cr_fail(err, CR_EARG,
                           "transfer %s: what rank %d sends to itself is not what it "
                           "receives from itself",
                           name, w->rank);
        memmove(recv + recvs[r].offset_bytes, send + sends[s].offset_bytes, sends[s].num_bytes);
    }
}

static cr_status check_peers(const cr_world *w, const char *name, const cr_piece *pieces,
                             size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++)
        if (pieces[i].peer < 0 || pieces[i].peer >= w->num_ranks)
            return cr_fail(err, CR_EARG, "transfer %s: rank %d is not in the world of %d ranks",
                           name, pieces[i].peer, w->num_ranks);
    return CR_OK;
}

static cr_status post(cr_transfer *t, bool is_send, char *base, const cr_piece *pieces, size_t num,
                      cr_err *err)
{
    int tag = 1 + (int)(strlen(t->name) % 100), code = MPI_SUCCESS;

    for (const char *c = t->name; *c; c++)
        tag = (tag * 31 + (uint8_t)*c) % 32749;
    for (size_t i = 0; i < num; i++) {
        if (pieces[i].peer == t->world->rank) continue;
        for (size_t at = 0; at < pieces[i].num_bytes; at += message_bytes) {
            size_t left = pieces[i].num_bytes - at;
            int count = (int)(left < message_bytes ? left : message_bytes);
            char *data = base + pieces[i].offset_bytes + at;
            MPI_Request *request = &t->requests[t->num_requests];

            t->peers[t->num_requests++] = pieces[i].peer;
            *request = MPI_REQUEST_NULL;
            code = is_send ? MPI_Isend(data, count, MPI_BYTE, pieces[i].peer, tag,
                                       t->world->transfer_comm, request)
                           : MPI_Irecv(data, count, MPI_BYTE, pieces[i].peer, tag,
                                       t->world->transfer_comm, request);
            CR_TRY(cri_mpi(t->world, code, t->name, err));
        }
    }
    return CR_OK;
}

static void transfer_free(cr_transfer *t)
{
    cr_free(t->requests);
    cr_free(t->peers);
    cr_free(t);
}

cr_status cr_transfer_start(cr_world *world, const char *name, const cr_mem *send,
                            const cr_piece *sends, size_t num_sends, cr_mem *recv,
                            const cr_piece *recvs, size_t num_recvs, cr_transfer **out, cr_err *err)
{
    cr_transfer *t;
    size_t sent_bytes = 0;
    int num;

    *out = NULL;
    CR_TRY(check_peers(world, name, sends, num_sends, err));
    CR_TRY(check_peers(world, name, recvs, num_recvs, err));
    if (world->kind != CR_WORLD_META)
        CR_TRY(copy_own(world, name, cr_host_view(send), sends, num_sends, cr_host_view(recv),
                        recvs, num_recvs, err));
    t = CR_NEW(cr_transfer);
    t->world = world;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->event = cri_event_begin(world, CR_COLL_TRANSFER, NULL, name);
    for (size_t i = 0; i < num_sends; i++)
        if (sends[i].peer != world->rank) sent_bytes += sends[i].num_bytes;
    cri_event_posted(world, t->event, 0, sent_bytes);
    if (world->kind == CR_WORLD_MPI) {
        num = num_messages(world, recvs, num_recvs) + num_messages(world, sends, num_sends);
        t->requests = CR_NEW_ARRAY(MPI_Request, num);
        t->peers = CR_NEW_ARRAY(int, num);
        CR_TRY_GOTO(failed, post(t, /*is_send=*/false, cr_host_view(recv), recvs, num_recvs, err));
        t->num_recvs = t->num_requests;
        CR_TRY_GOTO(failed, post(t, /*is_send=*/true, cr_host_view(send), sends, num_sends, err));
    }
    *out = t;
    return CR_OK;
failed:
    transfer_free(t);
    return err->status;
}

static cr_status fail_transfer(cr_transfer *t, cr_err *err)
{
    char text[320] = "";
    int i = 0, is_done = 1;

    for (; i < t->num_requests; i++) {
        MPI_Test(&t->requests[i], &is_done, MPI_STATUS_IGNORE);
        if (!is_done) break;
    }
    if (i < t->num_requests) cri_describe(t->world, NULL, t->peers[i], text, sizeof text);
    cr_fail(err, CR_ETIMEOUT, "transfer %s: rank %d waited %.3g s to %s %s", t->name,
            t->world->rank, t->world->deadline_s, i < t->num_recvs ? "receive from" : "send to",
            text);
    cr_world_fail(t->world, err);
    return err->status;
}

cr_status cr_transfer_wait(cr_transfer *transfer, cr_err *err)
{
    cr_transfer *t = transfer;
    double begin_s = cr_now_s(), now_s = begin_s;
    int is_done = t->num_requests == 0, code = MPI_SUCCESS;

    while (!is_done && code == MPI_SUCCESS) {
        code = MPI_Testall(t->num_requests, t->requests, &is_done, MPI_STATUSES_IGNORE);
        if (is_done || code != MPI_SUCCESS) break;
        now_s = cr_now_s();
        if (now_s - begin_s > t->world->deadline_s) {
            fail_transfer(t, err);
            break;
        }
        if (now_s - begin_s < 0.002)
            sched_yield();
        else
            cr_sleep_s(now_s - begin_s < 0.05 ? 50e-6 : 500e-6);
    }
    if (err->status == CR_OK) cr_note(cri_mpi(t->world, code, t->name, err));
    cri_event_waited(t->world, t->event, cr_now_s() - begin_s);
    cri_event_end(t->world, t->event);
    transfer_free(t);
    return err->status;
}
