/* nccl.cpp -- see include/nccl.h. Each rank has an area in a shared segment. An operation at the head of its stream
 *   1. waits until all ranks have finished the communicator's last one, then leaves its data and its arguments ("posts");
 *   2. waits until all have posted, compares the arguments and reads the others' areas.
 * Both waits return to the scheduler, so other streams go on meanwhile. */
#include "tests/cuda_sim/gpu/impl.h"

#include <nccl.h>

#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

using std::chrono::steady_clock;

enum { MAX_RANKS = 8, AREA = 64 << 20, INIT_SECONDS = 60 };
enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, EXCHANGE };
static const char *const kind_names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                         "group of sends and receives"};

namespace
{
struct request {
    int kind, type, op, root;
    size_t count;
    bool operator==(const request &o) const
    {
        return kind == o.kind && type == o.type && op == o.op && root == o.root && count == o.count;
    }
};
struct rank_of {
    std::atomic<uint64_t> posted, finished;
    std::atomic<int> pid;
    request what;
    size_t offset[MAX_RANKS], bytes[MAX_RANKS]; /* of an exchange, by receiver */
};
struct segment {
    std::atomic<int> num_joined;
    rank_of rank[MAX_RANKS];
    unsigned char area[MAX_RANKS][AREA];
};
struct message {
    void *data;
    size_t bytes;
    int peer;
    bool is_send;
};
struct call { /* one operation of one rank */
    ncclComm *comm;
    request what;
    const void *send;
    size_t send_bytes;
    void *recv;
    std::vector<message> messages;
    uint64_t turn;
    steady_clock::time_point start;
};
} // namespace

struct ncclComm {
    segment *seg;
    int rank, num_ranks;
    uint64_t num_enqueued, num_done;
    bool is_aborted;
    ncclResult_t error;
};

static int group_depth;
static std::vector<message> group_messages;
static ncclComm *group_comm;
static cudaStream_t group_stream;

static size_t size_of(int type)
{
    switch (type) {
    case ncclFloat64:
        return 8;
    case ncclFloat32:
    case ncclInt32:
        return 4;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    default:
        return 1;
    }
}

/* ---- sums ---- */

template <class T> static T combine(T a, T b, int op)
{
    switch (op) {
    case ncclSum:
        return a + b;
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return a * b;
    }
}

template <class T> static void reduce(const ncclComm *c, void *out, size_t first, size_t n, int op)
{
    for (size_t i = 0; i < n; i++) {
        T sum = ((const T *)c->seg->area[0])[first + i];
        for (int r = 1; r < c->num_ranks; r++)
            sum = combine(sum, ((const T *)c->seg->area[r])[first + i], op);
        ((T *)out)[i] = sum;
    }
}

static void reduce_bf16(const ncclComm *c, uint16_t *out, size_t first, size_t n, int op)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t sum = ((const uint16_t *)c->seg->area[0])[first + i];
        for (int r = 1; r < c->num_ranks; r++)
            sum = cri_sim_to_bf16(
                combine(cri_sim_from_bf16(sum),
                        cri_sim_from_bf16(((const uint16_t *)c->seg->area[r])[first + i]), op));
        out[i] = sum;
    }
}

static void reduce_any(const ncclComm *c, const request &w, void *out, size_t first)
{
    if (w.type == ncclFloat32)
        reduce<float>(c, out, first, w.count, w.op);
    else if (w.type == ncclFloat64)
        reduce<double>(c, out, first, w.count, w.op);
    else if (w.type == ncclInt32)
        reduce<int32_t>(c, out, first, w.count, w.op);
    else if (w.type == ncclBfloat16)
        reduce_bf16(c, (uint16_t *)out, first, w.count, w.op);
    else
        cri_sim_die("NCCL: a sum in type %d, which the simulation lacks", w.type);
}

/* ---- one operation ---- */

static void touch(const void *p, size_t n, bool is_write)
{
    if (n && !cri_sim_in_arena(p))
        cri_sim_die("NCCL %s %zu bytes of host memory at %p: it takes device memory only",
                    is_write ? "writes" : "reads", n, p);
    cri_sim_touch(p, n, is_write);
}

/* The messages to one peer come one after another, in the order of their calls. */
static void post_messages(const call &o)
{
    ncclComm *c = o.comm;
    rank_of *me = &c->seg->rank[c->rank];
    size_t at = 0;

    for (int r = 0; r < c->num_ranks; r++) {
        me->offset[r] = at;
        for (const message &m : o.messages) {
            if (!m.is_send || m.peer != r) continue;
            if (at + m.bytes > AREA) cri_sim_die("NCCL: over %d bytes sent at once", AREA);
            touch(m.data, m.bytes, false);
            memcpy(c->seg->area[c->rank] + at, m.data, m.bytes);
            at += m.bytes;
        }
        me->bytes[r] = at - me->offset[r];
    }
}

static void post(const call &o)
{
    ncclComm *c = o.comm;
    rank_of *me = &c->seg->rank[c->rank];

    if (o.what.kind == EXCHANGE) {
        post_messages(o);
    } else if (o.send) {
        touch(o.send, o.send_bytes, false);
        memcpy(c->seg->area[c->rank], o.send, o.send_bytes);
    }
    me->what = o.what;
    me->posted = o.turn;
}

static void end_if_asked(const call &o)
{
    const char *die = getenv("CROLL_SIM_NCCL_DIE");
    int rank;
    unsigned long turn;

    if (!die) return;
    if (sscanf(die, "%d:%lu", &rank, &turn) != 2)
        cri_sim_die("CROLL_SIM_NCCL_DIE=%s: rank:operation", die);
    if (rank == o.comm->rank && turn == o.turn) _exit(9);
}

static bool is_ready(const call &o)
{
    ncclComm *c = o.comm;
    bool can_post = true, have_all = true;

    if (c->is_aborted) return true;
    if (c->error == ncclSystemError || getenv("CROLL_SIM_NCCL_HOLD")) return false;
    if (steady_clock::now() < o.start) return false;
    end_if_asked(o);
    for (int r = 0; r < c->num_ranks; r++) {
        const rank_of *other = &c->seg->rank[r];
        can_post = can_post && other->finished >= o.turn - 1;
        have_all = have_all && other->posted >= o.turn;
        if ((other->posted < o.turn || other->finished < o.turn - 1) && r != c->rank &&
            kill(other->pid, 0) && errno == ESRCH)
            c->error = ncclRemoteError;
    }
    if (c->seg->rank[c->rank].posted < o.turn && can_post) post(o);
    return have_all && c->seg->rank[c->rank].posted >= o.turn;
}

static void compare(const call &o)
{
    const request *w = &o.what;

    for (int r = 0; r < o.comm->num_ranks; r++) {
        const request *x = &o.comm->seg->rank[r].what;
        if (w->kind == EXCHANGE ? x->kind == EXCHANGE : *x == *w) continue;
        cri_sim_die("NCCL operation %lu: rank %d calls %s of %zu (type %d, op %d, root %d), rank "
                    "%d calls %s of %zu (type %d, op %d, root %d): on GPUs this hangs or corrupts",
                    (unsigned long)o.turn, o.comm->rank, kind_names[w->kind], w->count, w->type,
                    w->op, w->root, r, kind_names[x->kind], x->count, x->type, x->op, x->root);
    }
}

static void receive_messages(const call &o)
{
    const ncclComm *c = o.comm;
    size_t used[MAX_RANKS] = {0};

    for (const message &m : o.messages) {
        const rank_of *from = &c->seg->rank[m.peer];
        if (m.is_send) continue;
        if (used[m.peer] + m.bytes > from->bytes[c->rank])
            cri_sim_die("NCCL: rank %d waits for %zu bytes of rank %d, which sends %zu", c->rank,
                        used[m.peer] + m.bytes, m.peer, from->bytes[c->rank]);
        touch(m.data, m.bytes, true);
        memcpy(m.data, c->seg->area[m.peer] + from->offset[c->rank] + used[m.peer], m.bytes);
        used[m.peer] += m.bytes;
    }
    for (int r = 0; r < c->num_ranks; r++)
        if (used[r] != c->seg->rank[r].bytes[c->rank])
            cri_sim_die("NCCL: rank %d sends %zu bytes to rank %d, which waits for %zu", r,
                        c->seg->rank[r].bytes[c->rank], c->rank, used[r]);
}

/* What an operation that was aborted would have received is NaN: kernels that are queued after it run all the same. */
static void spoil_messages(const call &o)
{
    for (const message &m : o.messages) {
        if (m.is_send) continue;
        touch(m.data, m.bytes, true);
        memset(m.data, 0xff, m.bytes);
    }
}

static void complete(const call &o)
{
    ncclComm *c = o.comm;
    size_t bytes = o.what.count * size_of(o.what.type);

    c->num_done++;
    if (c->is_aborted) {
        spoil_messages(o);
        return;
    }
    compare(o);
    if (o.what.kind == EXCHANGE) {
        receive_messages(o);
    } else if (o.what.kind == ALL_GATHER) {
        touch(o.recv, bytes * (size_t)c->num_ranks, true);
        for (int r = 0; r < c->num_ranks; r++)
            memcpy((char *)o.recv + (size_t)r * bytes, c->seg->area[r], bytes);
    } else {
        touch(o.recv, bytes, true);
        if (o.what.kind == BROADCAST)
            memcpy(o.recv, c->seg->area[o.what.root], bytes);
        else
            reduce_any(c, o.what, o.recv,
                       o.what.kind == ALL_REDUCE ? 0 : o.what.count * (size_t)c->rank);
    }
    c->seg->rank[c->rank].finished = o.turn;
}

static ncclResult_t enqueue(call o, cudaStream_t stream)
{
    cri_sim_enter enter;
    unsigned delay = (unsigned)cri_sim_setting("CROLL_SIM_NCCL_DELAY_US", 0);
    unsigned late = delay ? cri_sim_rng.below(delay + 1) : 0;
    cri_sim_op op;

    if (cri_sim_lost) return ncclUnhandledCudaError;
    if (cri_sim_fails(CRI_SIM_FAIL_NCCL)) o.comm->error = ncclSystemError;
    if (o.send_bytes > AREA)
        cri_sim_die("NCCL: %zu bytes at once; the simulation holds %d", o.send_bytes, AREA);
    o.turn = ++o.comm->num_enqueued;
    o.start = steady_clock::now() + std::chrono::microseconds(late);
    op.name = std::string("NCCL ") + kind_names[o.what.kind];
    op.is_external = true;
    op.ready = [o] { return is_ready(o); };
    op.run = [o] { complete(o); };
    cri_sim_enqueue(stream, std::move(op));
    return ncclSuccess;
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22707;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int count;

    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/sim-nccl-%d-%d", (int)getpid(), count++);
    return ncclSuccess;
}

/* Collective. */
ncclResult_t ncclCommInitRank(ncclComm_t *out, int num_ranks, ncclUniqueId id, int rank)
{
    steady_clock::time_point until = steady_clock::now() + std::chrono::seconds(INIT_SECONDS);
    ncclComm *c;
    void *at;
    int fd;

    if (num_ranks > MAX_RANKS || rank < 0 || rank >= num_ranks) return ncclInvalidArgument;
    fd = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(segment))) return ncclSystemError;
    at = mmap(nullptr, sizeof(segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return ncclSystemError;
    c = new ncclComm();
    c->seg = (segment *)at;
    c->rank = rank;
    c->num_ranks = num_ranks;
    c->seg->rank[rank].pid = (int)getpid();
    c->seg->num_joined++;
    while (c->seg->num_joined < num_ranks && steady_clock::now() < until)
        usleep(100);
    shm_unlink(id.internal);
    if (c->seg->num_joined < num_ranks) {
        ncclCommDestroy(c);
        return ncclSystemError;
    }
    cri_sim_want_progress_thread();
    *out = c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    std::lock_guard<std::recursive_mutex> guard(cri_sim_lock);

    if (c->num_done < c->num_enqueued)
        cri_sim_die("ncclCommDestroy while %lu of its operations are queued",
                    (unsigned long)(c->num_enqueued - c->num_done));
    munmap(c->seg, sizeof(segment));
    delete c;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    std::lock_guard<std::recursive_mutex> guard(cri_sim_lock);

    c->is_aborted = true; /* the object stays: operations that are queued name it */
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    *error = c->error;
    return ncclSuccess;
}

/* ---- operations ---- */

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s)
{
    return enqueue({c, {ALL_REDUCE, t, op, 0, n}, send, n * size_of(t), recv, {}, 0, {}}, s);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    size_t bytes = n * size_of(t) * (size_t)c->num_ranks;

    return enqueue({c, {REDUCE_SCATTER, t, op, 0, n}, send, bytes, recv, {}, 0, {}}, s);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s)
{
    return enqueue({c, {ALL_GATHER, t, 0, 0, n}, send, n * size_of(t), recv, {}, 0, {}}, s);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t s)
{
    const void *mine = c->rank == root ? send : nullptr;

    return enqueue({c, {BROADCAST, t, 0, root, n}, mine, n * size_of(t), recv, {}, 0, {}}, s);
}

static ncclResult_t exchange(ncclComm *c, std::vector<message> messages, cudaStream_t s)
{
    return enqueue({c, {EXCHANGE, 0, 0, 0, 0}, nullptr, 0, nullptr, messages, 0, {}}, s);
}

static ncclResult_t add_message(const message &m, ncclComm_t c, cudaStream_t s)
{
    if (m.peer < 0 || m.peer >= c->num_ranks) return ncclInvalidArgument;
    if (!group_depth) return exchange(c, {m}, s);
    if (group_comm && (group_comm != c || group_stream != s))
        cri_sim_die("NCCL group: the simulation takes one communicator and one stream");
    group_comm = c;
    group_stream = s;
    group_messages.push_back(m);
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return add_message({const_cast<void *>(p), n * size_of(t), peer, true}, c, s);
}

ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return add_message({p, n * size_of(t), peer, false}, c, s);
}

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result;

    if (--group_depth || !group_comm) return ncclSuccess;
    result = exchange(group_comm, std::move(group_messages), group_stream);
    group_messages.clear();
    group_comm = nullptr;
    return result;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "operation in progress"};

    return r >= 0 && r <= 7 ? text[r] : "unknown result code";
}
