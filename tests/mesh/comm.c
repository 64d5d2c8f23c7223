/* comm.c -- the conformance suite of transports, on 4 ranks: every collective over shared windows, over messages, over
 * groups that span two or three hosts (this one pretends; on real ones, as they are), and alone. Sizes 0, 1, odd and of several rounds, each
 * dtype, integers stored as floats (compared with ==) and real floats whose bits must be the same on every transport;
 * groups of ranks 3, 1, 2 in that order, pairs, a mesh of (2, 2). Then failures: a rank that calls something else, one
 * that does not come, one that has failed: every rank names it, in time.
 * Not covered: windows whose slots are used differently (failures.c), a killed rank (mpirun ends the others).
 * On cuda groups are on the device, with the same transports as base; failures on the first one only. What waits in NCCL
 * for a rank that does not come has the deadline, too.
 * // ranks: 4
 * // mostly waits
 * // also on cuda
 */
#include "base/rng.h"
#include "tests/memory.h"
#include "tests/mesh/mend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* There if the GPU is a simulated one. */
void cri_sim_spoil(void *mem, size_t num_bytes, void *stream) __attribute__((weak));

#define OK(expr)   CR_CHECK((expr) == CR_OK, "%s", err.msg)
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
enum { RANKS = 4, USES = 40 }; /* uses of a gather */

static cr_err err;
static cr_world *world;
static cr_device *dev; /* of all groups; NULL: host memory */

/* A host array as memory of the groups, written on a stream; and back, to what was lent. */
static cr_mem *lend(cr_stream stream, const void *host, size_t num_bytes)
{
    cr_mem *mem;

    if (!dev) return MEM(host);
    OK(cr_device_alloc(dev, num_bytes, &mem, &err));
    OK(cr_upload(cr_device_stream(dev, stream), mem, host, num_bytes, &err));
    return mem;
}

static void take_back(cr_stream stream, void *host, cr_mem *mem, size_t num_bytes)
{
    if (!dev) return;
    OK(cr_download(cr_device_stream(dev, stream), host, mem, num_bytes, &err));
    cr_device_free(dev, mem, num_bytes);
}

/* Memory that a group owns. */
static void write_to(cr_stream stream, cr_mem *mem, const void *host, size_t num_bytes)
{
    if (dev)
        OK(cr_upload(cr_device_stream(dev, stream), mem, host, num_bytes, &err));
    else
        memcpy(HOST(mem), host, num_bytes);
}

static void read_from(cr_stream stream, void *host, const cr_mem *mem, size_t num_bytes)
{
    if (dev)
        OK(cr_download(cr_device_stream(dev, stream), host, mem, num_bytes, &err));
    else
        memcpy(host, HOST(mem), num_bytes);
}

static cr_group *group_of(const char *name, const int *ranks, int num)
{
    cr_group *g;

    OK(cr_group_create(world, dev, name, ranks, num, &g, &err));
    return g;
}

static bool is_on(const cr_group *g, const char *transport)
{
    return strcmp(cr_group_transport(g), transport) == 0;
}

static size_t elems_of(int use)
{
    static const size_t num[] = {1000, 7, 1, 0};

    return num[use % 4];
}

static void announce(cr_gather *gather, int use)
{
    char name[32];

    snprintf(name, sizeof name, "unit %d", use);
    OK(cr_gather_announce(gather, use % 2, name, elems_of(use) * 4, &err));
}

static void publish(cr_gather *gather, int use, int me)
{
    float values[1000];
    cr_mem *part;

    OK(cr_gather_begin(gather, use % 2, &part, &err));
    for (size_t i = 0; i < elems_of(use); i++)
        values[i] = (float)(use * 10000 + me * 1000 + (int)i);
    write_to(CR_STREAM_GATHER, part, values, elems_of(use) * sizeof *values);
    OK(cr_gather_publish(gather, use % 2, &err));
}

/* Each rank writes its part; all read all. The next use is announced before this one is awaited, and written
 * when its slot is free, at the latest before it is awaited: ranks in turn are late to release. */
static void test_gather(cr_group *g)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    double num_late = 0; /* of all ranks */
    bool is_written = false;
    cr_gather *gather;
    const cr_mem *whole;
    float values[4000];

    OK(cr_gather_create(g, 2, (size_t)n * 4000, &gather, &err));
    announce(gather, 0);
    for (int use = 0; use < USES; use++) {
        size_t num = elems_of(use);
        if (!is_written) publish(gather, use, me);
        if (use < USES - 1) announce(gather, use + 1);
        is_written = use < USES - 1 && cr_gather_is_free(gather, (use + 1) % 2);
        if (is_written) publish(gather, use + 1, me);
        num_late += use < USES - 1 && !is_written;
        OK(cr_gather_wait(gather, use % 2, &whole, &err));
        read_from(CR_STREAM_GATHER, values, whole, (size_t)n * num * sizeof *values);
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < num; i++)
                CR_CHECK(values[(size_t)r * num + i] == (float)(use * 10000 + r * 1000 + (int)i),
                         "use %d rank %d element %zu", use, r, i);
        if (use % 20 == 3 * me) cr_sleep_s(0.002);
        OK(cr_gather_release(gather, use % 2, &err));
    }
    OK(cr_all_reduce_f64(g, "late", CR_OP_SUM, &num_late, 1, &err));
    if (is_on(g, "shared")) CR_CHECK(num_late > 0, "no slot was busy");
    if (is_on(g, "mpi") || is_on(g, "nccl"))
        CR_CHECK(num_late == 0, "%g slots were busy", num_late);
    cr_gather_destroy(gather);
}

static float value(int rank, size_t i)
{
    return (float)cr_rng_normal(1, CR_RNG_TEST, (uint64_t)rank, i);
}

static float contribution(int use, int rank, size_t at, cr_reduce_dtype dtype)
{
    float x = use % 2 ? value(rank, at + (size_t)use) : (float)(rank + 1 + (int)(at % 100));
    int e;

    if (dtype == CR_REDUCE_F32) return x;
    x = frexpf(x, &e); /* by arithmetic: 8 bits of significand, ties to even */
    return ldexpf(rintf(x * 256), e - 8);
}

/* Of the ranks from the first on, by the definition in comm.h. is_wide: of float64, values / 3. */
static double tree_sum(int first, int num, float (*of)(const void *, int), const void *ctx,
                       bool is_wide)
{
    int half = 1;

    if (num == 1) return is_wide ? (double)of(ctx, first) / 3 : (double)of(ctx, first);
    while (half * 2 < num)
        half *= 2;
    double left = tree_sum(first, half, of, ctx, is_wide),
           right = tree_sum(first + half, num - half, of, ctx, is_wide);
    return is_wide ? left + right : (double)((float)left + (float)right);
}

typedef struct element { /* of a reduction */
    int use;
    size_t at;
    cr_reduce_dtype dtype;
} element;

static float reduced(const void *ctx, int rank)
{
    const element *a = ctx;

    return contribution(a->use, rank, a->at, a->dtype);
}

static float all_reduced(const void *ctx, int rank)
{
    return value(rank, *(const size_t *)ctx % 7777);
}

/* Exact against the same sum done here. */
static uint64_t test_reduce(cr_group *g, cr_reduce_dtype dtype, int num_slots, size_t part)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    float *shard = CR_NEW_ARRAY(float, part + 1), *mine = CR_NEW_ARRAY(float, (size_t)n *part);
    cr_mem *data, *lent;
    cr_reduce *reduce;
    uint64_t hash = 0;

    OK(cr_reduce_create(g, num_slots, (size_t)n * part, &reduce, &err));
    for (int use = 0; use < 4; use++) {
        OK(cr_reduce_begin(reduce, use % num_slots, &data, &err));
        for (size_t i = 0; i < (size_t)n * part; i++)
            mine[i] = contribution(use, me, i, CR_REDUCE_F32);
        write_to(CR_STREAM_REDUCE, data, mine, (size_t)n * part * sizeof *mine);
        OK(cr_reduce_publish(reduce, use % num_slots, "unit", part, dtype, &err));
        for (size_t i = 0; i <= part; i++)
            shard[i] = 3;
        while (use == 1 && is_on(g, "shared") && !cr_reduce_is_ready(reduce, use % num_slots))
            cr_sleep_s(1e-4); /* a lost flag runs into the test's time limit */
        lent = lend(CR_STREAM_REDUCE, shard, (part + 1) * sizeof *shard);
        OK(cr_reduce_finish(reduce, use % num_slots, lent, use < 2 ? CR_REDUCE_SET : CR_REDUCE_ADD,
                            &err));
        take_back(CR_STREAM_REDUCE, shard, lent, (part + 1) * sizeof *shard);
        for (size_t i = 0; i < part; i++) {
            element elem = {use, (size_t)me * part + i, dtype};
            float sum = (float)tree_sum(0, n, reduced, &elem, /*is_wide=*/false);
            sum = use < 2 ? sum : 3 + sum;
            CR_CHECK(shard[i] == sum, "use %d element %zu: %.9g, want %.9g", use, i,
                     (double)shard[i], (double)sum);
        }
        CR_CHECK(shard[part] == 3, "written past the end");
        hash = hash * 31 + cr_hash64(shard, part * sizeof(float));
    }
    cr_reduce_destroy(reduce);
    cr_free(shard);
    cr_free(mine);
    return hash;
}

/* float32 and float64, sums against the same sum done here. */
static uint64_t test_all_reduce(cr_group *g, size_t num)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    float *x = CR_NEW_ARRAY(float, num + 1);
    double *y = CR_NEW_ARRAY(double, num + 1);
    cr_mem *lent;
    uint64_t hash;

    for (size_t i = 0; i <= num; i++) {
        x[i] = i < 7777 ? value(me, i) : x[i - 7777];
        y[i] = (double)x[i] / 3;
    }
    lent = lend(CR_STREAM_COMPUTE, x, (num + 1) * sizeof *x);
    OK(cr_all_reduce_f32(g, "floats", lent, num, &err));
    take_back(CR_STREAM_COMPUTE, x, lent, (num + 1) * sizeof *x);
    OK(cr_all_reduce_f64(g, "doubles", CR_OP_SUM, y, num, &err));
    for (size_t i = 0; i<num; i += num> 1000 ? 997 : 1) {
        float want = (float)tree_sum(0, n, all_reduced, &i, /*is_wide=*/false);
        double wide = tree_sum(0, n, all_reduced, &i, /*is_wide=*/true);
        CR_CHECK(x[i] == want && y[i] == wide,
                 "element %zu of %zu: %.9g, want %.9g; %.17g, want %.17g", i, num, (double)x[i],
                 (double)want, y[i], wide);
    }
    CR_CHECK(x[num] == value(me, num % 7777), "written past the end");
    hash = cr_hash64(x, num * sizeof(float)) * 31 + cr_hash64(y, num * sizeof(double));
    cr_free(x);
    cr_free(y);
    return hash;
}

static void test_ops(cr_group *g)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    double d[3] = {me, me == n - 1 ? NAN : me, -me};

    OK(cr_all_reduce_f64(g, "max", CR_OP_MAX, d, 3, &err));
    CR_CHECK(d[0] == n - 1 && isnan(d[1]) && d[2] == 0, "max %g %g %g", d[0], d[1], d[2]);
    d[0] = me;
    OK(cr_all_reduce_f64(g, "min", CR_OP_MIN, d, 1, &err));
    CR_CHECK(d[0] == 0, "min %g", d[0]);
}

static void test_bytes(cr_group *g, size_t scale)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    size_t num = scale * (size_t)me, offsets[8], at = 0; /* rank 0 gives nothing */
    char *mine = cr_alloc(num);
    cr_buf all = {0};

    memset(mine, 'a' + me, num);
    OK(cr_all_gather_bytes(g, "blobs", mine, num, &all, offsets, &err));
    for (int r = 0; r < n; r++) {
        CR_CHECK(offsets[r] == at && offsets[r + 1] == at + scale * (size_t)r, "offset of %d", r);
        for (; at < offsets[r + 1]; at++)
            CR_CHECK(all.data[at] == 'a' + r, "byte %zu", at);
    }
    memset(mine, 'x', num);
    for (int root = 0; root < n; root++) {
        char *data = cr_alloc(scale + 1);
        memset(data, me == root ? 'A' + root : 'z', scale + 1);
        OK(cr_broadcast(g, "words", root, data, scale, &err));
        for (size_t i = 0; i < scale; i++)
            CR_CHECK(data[i] == 'A' + root, "byte %zu of root %d", i, root);
        CR_CHECK(data[scale] == (me == root ? 'A' + root : 'z'), "written past the end");
        memset(data, '-', scale + 1);
        cr_free(data);
    }
    cr_buf_free(&all);
    cr_free(mine);
}

/* Rank i sends scale * ((i + 2 j) % 3) bytes to rank j: some pairs send nothing. */
static void test_all_to_all(cr_group *g, size_t scale)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    size_t sends[8], recvs[8], total = 0, at = 0;
    cr_mem *from, *to;
    char *send, *recv;

    for (int r = 0; r < n; r++) {
        sends[r] = scale * (size_t)((me + 2 * r) % 3);
        recvs[r] = scale * (size_t)((r + 2 * me) % 3);
        total += sends[r] + recvs[r];
    }
    send = cr_alloc(total);
    recv = cr_alloc(total);
    memset(send, 0, total); /* all of it is lent */
    memset(recv, 0, total);
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < sends[r]; i++)
            send[at++] = (char)(me * 50 + r * 7 + (int)(i % 31));
    from = lend(CR_STREAM_COMPUTE, send, total);
    to = lend(CR_STREAM_COMPUTE, recv, total);
    OK(cr_all_to_all(g, "heads", from, sends, to, recvs, &err));
    take_back(CR_STREAM_COMPUTE, send, from, total);
    take_back(CR_STREAM_COMPUTE, recv, to, total);
    at = 0;
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < recvs[r]; i++, at++)
            CR_CHECK(recv[at] == (char)(r * 50 + me * 7 + (int)(i % 31)), "from %d byte %zu", r, i);
    cr_free(send);
    cr_free(recv);
}

static void test_agree(cr_group *g)
{
    cr_err mine = {0};
    char want[80 + CRI_RANK_BYTES], who[CRI_RANK_BYTES];

    CR_CHECK(cr_agree(g, "all well", &mine) == CR_OK, "%s", mine.msg);
    if (cr_group_num_ranks(g) == 1) return;
    if (cr_group_rank(g) == 1) {
        cr_fail(&mine, CR_EFORMAT, "weights.safetensors: no such tensor");
        CR_CHECK(cr_agree(g, "load", &mine) == CR_EFORMAT, "own failure is kept");
        return;
    }
    snprintf(want, sizeof want, "%s: weights.safetensors: no such tensor",
             cri_rank_text(world, cr_group_world_rank(g, 1), who));
    CR_CHECK(cr_agree(g, "load", &mine) == CR_EPEER && !strcmp(mine.msg, want), "%s", mine.msg);
}

/* ---- transfers ---- */

/* Rank i sends (i + 2 j) % 4 pieces to rank j, itself included; some are empty. */
static size_t pieces_between(int from, int to, size_t scale, size_t *num_bytes)
{
    size_t num = (size_t)(from + 2 * to) % 4;

    for (size_t k = 0; k < num; k++)
        num_bytes[k] = scale * k + (size_t)(from == to || scale > 1) * k % 3;
    return num;
}

/* Lists this rank's pieces, those of the last peer first, at odd addresses; returns how many. */
static size_t list_pieces(const cr_group *g, bool is_send, size_t scale, cr_piece *pieces,
                          size_t *total_bytes)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    size_t bytes[4], num = 0, at = 1;

    for (int r = n - 1; r >= 0; r--) {
        size_t count = pieces_between(is_send ? me : r, is_send ? r : me, scale, bytes);
        for (size_t k = 0; k < count; k++) {
            pieces[num++] = (cr_piece){r, at, bytes[k]};
            at += bytes[k] + 1;
        }
    }
    *total_bytes = at;
    return num;
}

static char byte_of(int from, int to, size_t piece, size_t i)
{
    return (char)(from * 50 + to * 11 + (int)piece * 3 + (int)(i % 251));
}

/* Every rank sends to every other one at once, pieces beside each other; what lies between them stays. */
static void test_transfer(cr_group *g, size_t scale)
{
    int me = cr_group_rank(g), next[RANKS] = {0};
    cr_piece sends[4 * RANKS], recvs[4 * RANKS];
    size_t send_bytes, recv_bytes, num_sends = list_pieces(g, true, scale, sends, &send_bytes),
                                   num_recvs = list_pieces(g, false, scale, recvs, &recv_bytes);
    char *send = cr_alloc(send_bytes), *recv = cr_alloc(recv_bytes);
    cr_mem *from, *to;

    memset(send, '-', send_bytes);
    memset(recv, '-', recv_bytes);
    for (size_t k = 0; k < num_sends; k++) {
        size_t piece = (size_t)next[sends[k].peer]++;
        for (size_t i = 0; i < sends[k].num_bytes; i++)
            send[sends[k].offset_bytes + i] = byte_of(me, sends[k].peer, piece, i);
    }
    memset(next, 0, sizeof next);
    from = lend(CR_STREAM_COMPUTE, send, send_bytes);
    to = lend(CR_STREAM_COMPUTE, recv, recv_bytes);
    OK(cr_transfer(g, "shards", from, sends, num_sends, to, recvs, num_recvs, &err));
    take_back(CR_STREAM_COMPUTE, send, from, send_bytes);
    take_back(CR_STREAM_COMPUTE, recv, to, recv_bytes);
    for (size_t k = 0; k < num_recvs; k++) {
        size_t piece = (size_t)next[recvs[k].peer]++;
        for (size_t i = 0; i < recvs[k].num_bytes; i++)
            CR_CHECK(recv[recvs[k].offset_bytes + i] == byte_of(recvs[k].peer, me, piece, i),
                     "piece %zu from %d byte %zu of %zu", piece, recvs[k].peer, i,
                     recvs[k].num_bytes);
        CR_CHECK(recv[recvs[k].offset_bytes + recvs[k].num_bytes] == '-' || k + 1 == num_recvs,
                 "written past piece %zu from %d", piece, recvs[k].peer);
    }
    cr_free(send);
    cr_free(recv);
}

/* num_sizes 5: with one of several rounds. On a GPU, where every byte is checked: NCCL has no rounds below 8 MiB. */
static uint64_t test_group(cr_group *g, size_t num_sizes)
{
    const size_t sizes[] = {0, 1, 7, dev ? 2011 : 20011, 530003};
    uint64_t hash = 0, sums;

    if (is_on(g, "nccl")) num_sizes = 4;

    OK(cr_barrier(g, "start", &err));
    test_gather(g);
    test_ops(g);
    for (size_t i = 0; i < num_sizes; i++) {
        if (i < 4) hash = hash * 31 + test_reduce(g, CR_REDUCE_F32, 1, sizes[i]);
        if (i < 4) hash = hash * 31 + test_reduce(g, CR_REDUCE_BF16, 2, sizes[i]);
        sums = test_all_reduce(g, sizes[i]);
        if (i < 4) hash = hash * 31 + sums; /* the bits are the same on every transport */
        test_bytes(g, sizes[i] * (i == 4 ? 2 : 1));
        test_all_to_all(g, sizes[i] * (i == 4 ? 2 : 1));
        test_transfer(g, sizes[i] * (i == 4 ? 2 : 1));
    }
    test_agree(g);
    OK(cr_barrier(g, "end", &err));
    return hash;
}

static void test_mesh(void)
{
    static const int all[] = {0, 1, 2, 3};
    cr_mesh_shape shape;
    cr_mesh *mesh;
    double x = world->rank;

    OK(cr_mesh_shape_init(&shape, RANKS, 2, 2, 1, 0, &err));
    OK(cr_mesh_create(world, dev, "actor_train", all, &shape, &mesh, &err));
    CR_CHECK(mesh->group[CR_AXIS_FSDP] == mesh->group[CR_AXIS_ULYSSES], "same ranks, one group");
    OK(cr_all_reduce_f64(mesh->group[CR_AXIS_DDP], "ddp", CR_OP_SUM, &x, 1, &err));
    CR_CHECK(x == 2 * (world->rank % 2) + 2, "ddp sum %g", x);
    x = world->rank;
    OK(cr_all_reduce_f64(mesh->group[CR_AXIS_FSDP], "fsdp", CR_OP_SUM, &x, 1, &err));
    CR_CHECK(x == (world->rank < 2 ? 1 : 5), "fsdp sum %g", x);
    cr_mesh_destroy(mesh);
}

/* ---- failures: every rank says who and what, in time ---- */

static const int everyone[] = {0, 1, 2, 3};
/* A busy machine is given time: levels of hosts wait a quarter of the deadline for each other's news. Soon: long before the world's own
 * deadline of 60 s. */
static const double deadline_s = 1, sleep_s = 2, soon_s = 30;

/* The call after the first barrier; on cuda the ranks have compared their GPUs before. */
static const char *second(void)
{
    const char *gpus = getenv("CROLL_SIM_GPUS");

    if (!dev) return "sequence 2";
    return gpus && strcmp(gpus, "1") == 0 ? "sequence 5"
                                          : "sequence 4"; /* loans were tried; NCCL has met */
}

static cr_group *fresh(const char *name)
{
    cr_group *g;

    mend(world);
    g = group_of(name, everyone, RANKS);
    OK(cr_barrier(g, "begin", &err));
    return g;
}

static void expect(const char *transport, cr_status got, const cr_err *e, cr_status want,
                   const char *const *words)
{
    CR_CHECK(got == want, "%s: status %d: %s", transport, (int)got, e->msg);
    for (; *words; words++)
        CR_CHECK(strstr(e->msg, *words), "%s: \"%s\" is not in: %s", transport, *words, e->msg);
}

static void test_divergence(int other)
{
    bool is_other = world->rank == other;
    char who[32];
    cr_err e = {0};
    double x[2] = {1, 1}, begin_s = cr_now_s();
    cr_group *g = fresh("names");

    snprintf(who, sizeof who, "rank %d", other);
    expect(cr_group_transport(g),
           cr_all_reduce_f64(g, is_other ? "loss" : "norm", CR_OP_SUM, x, 1, &e), &e, CR_EDIVERGED,
           WORDS(who, "all_reduce norm", "all_reduce loss", "group names", second()));
    g = fresh("kinds");
    e = (cr_err){0};
    expect(cr_group_transport(g),
           is_other ? cr_barrier(g, "end", &e) : cr_broadcast(g, "ids", 0, x, 8, &e), &e,
           CR_EDIVERGED, WORDS(who, "barrier end", "broadcast ids"));
    g = fresh("sizes");
    e = (cr_err){0};
    expect(cr_group_transport(g), cr_all_reduce_f64(g, "norm", CR_OP_SUM, x, is_other ? 0 : 2, &e),
           &e, CR_EDIVERGED, WORDS(who, "all_reduce norm", "has 16", "has 0"));
    CR_CHECK(cr_now_s() - begin_s < soon_s, "after %.2f s", cr_now_s() - begin_s);
}

static void test_deadline(int late)
{
    cr_group *g = fresh("late");
    char who[32];
    cr_err e = {0};
    double begin_s = cr_now_s();

    snprintf(who, sizeof who, "rank %d", late);
    if (world->rank == late) {
        cr_sleep_s(sleep_s);
        return;
    }
    cr_world_set_deadline(world, deadline_s);
    expect(cr_group_transport(g), cr_barrier(g, "model.layers.3", &e), &e, CR_ETIMEOUT,
           WORDS(who, "barrier model.layers.3", second(), "barrier begin"));
    CR_CHECK(cr_now_s() - begin_s < soon_s, "after %.2f s", cr_now_s() - begin_s);
    cr_world_set_deadline(world, 60);
}

static void test_failed_peer(int failed)
{
    cr_group *g = fresh("failed");
    char who[64];
    cr_err e = {0};
    double begin_s = cr_now_s();

    if (world->rank == failed) {
        cr_fail(&e, CR_ENUMERIC, "loss is NaN at step 3");
        cr_world_fail(world, &e);
        cr_sleep_s(deadline_s);
        return;
    }
    snprintf(who, sizeof who, "rank %d failed: loss is NaN at step 3", failed);
    expect(cr_group_transport(g), cr_barrier(g, "x", &e), &e, CR_EPEER, WORDS(who));
    CR_CHECK(cr_now_s() - begin_s < soon_s, "after %.2f s", cr_now_s() - begin_s);
}

/* `other` sends to its neighbour two pieces of 8 bytes; `expected` is what that one expects. Every rank reports it. */
static void test_transfer_sizes(int other, const cr_piece *expected, size_t num,
                                const char *const *words)
{
    int next = (other + 1) % RANKS;
    cr_group *g = fresh("pieces");
    cr_piece sends[] = {{next, 0, 8}, {next, 8, 8}};
    char send[16] = "", recv[16] = "";
    cr_mem *from = lend(CR_STREAM_COMPUTE, send, sizeof send),
           *to = lend(CR_STREAM_COMPUTE, recv, sizeof recv);
    cr_err e = {0};
    cr_status got = cr_transfer(g, "shards", from, sends, world->rank == other ? 2 : 0, to,
                                expected, world->rank == next ? num : 0, &e);

    take_back(CR_STREAM_COMPUTE, send, from, sizeof send);
    take_back(CR_STREAM_COMPUTE, recv, to, sizeof recv);

    expect(cr_group_transport(g), got, &e, CR_EPEER, words);
}

static void test_transfer_failures(int other)
{
    cr_piece less = {other, 0, 15}, joined = {other, 0, 16}, sends = {RANKS, 0, 1};
    char who[32], whom[32];
    cr_group *g;
    cr_err e = {0};
    double begin_s;

    snprintf(who, sizeof who, "rank %d", other);
    snprintf(whom, sizeof whom, "rank %d", (other + 1) % RANKS);
    test_transfer_sizes(other, &less, 1,
                        WORDS("transfer shards", "16 bytes", who, whom, "expects 15"));
    test_transfer_sizes(other, NULL, 0,
                        WORDS("transfer shards", "16 bytes", who, whom, "expects 0"));
    test_transfer_sizes(other, &joined, 1, WORDS("transfer shards", who, whom, "in other pieces"));
    g = fresh("peers");
    CR_CHECK(cr_transfer(g, "shards", MEM(who), &sends, 1, NULL, NULL, 0, &e) == CR_EARG,
             "a peer too many");
    e = (cr_err){0};
    expect(cr_group_transport(g),
           world->rank == other ? cr_barrier(g, "end", &e)
                                : cr_transfer(g, "shards", NULL, NULL, 0, NULL, NULL, 0, &e),
           &e, CR_EDIVERGED, WORDS(who, "transfer shards", "barrier end"));
    g = fresh("absent");
    if (world->rank == other) {
        cr_sleep_s(sleep_s);
        return;
    }
    cr_world_set_deadline(world, deadline_s);
    begin_s = cr_now_s();
    e = (cr_err){0};
    expect(cr_group_transport(g), cr_transfer(g, "shards", NULL, NULL, 0, NULL, NULL, 0, &e), &e,
           CR_ETIMEOUT, WORDS(who, "transfer shards", second(), "barrier begin"));
    CR_CHECK(cr_now_s() - begin_s < soon_s, "after %.2f s", cr_now_s() - begin_s);
    cr_world_set_deadline(world, 60);
}

/* Every rank has announced, but `late` does not publish: the others wait inside the transport of device memory. */
static void test_late_part(int late)
{
    cr_group *g = fresh("parts");
    cr_gather *gather;
    const cr_mem *whole;
    cr_err e = {0};
    double begin_s;

    OK(cr_gather_create(g, 2, RANKS * 4000, &gather, &err));
    announce(gather, 0);
    if (world->rank == late) {
        cr_sleep_s(sleep_s);
        return;
    }
    publish(gather, 0, world->rank);
    cr_world_set_deadline(world, deadline_s);
    begin_s = cr_now_s();
    expect(cr_group_transport(g), cr_gather_wait(gather, 0, &whole, &e), &e, CR_ETIMEOUT,
           WORDS("unit 0", "group parts"));
    CR_CHECK(cr_now_s() - begin_s < soon_s, "after %.2f s", cr_now_s() - begin_s);
    cr_world_set_deadline(world, 60);
}

/* All ranks have announced a call and queued it, but one rank's part does not move (the simulated NCCL holds it): each waits in the call
 * itself, until the deadline. */
static void test_held(int held)
{
    for (int is_sum = 0; is_sum < 2; is_sum++) {
        float x[2 * RANKS] = {0};
        cr_piece to = {(world->rank + 1) % RANKS, 0, 4}, from = {(world->rank + 3) % RANKS, 0, 4};
        cr_group *g = fresh("held");
        cr_mem *sent = lend(CR_STREAM_COMPUTE, x, sizeof x),
               *got = lend(CR_STREAM_COMPUTE, x, sizeof x);
        cr_err e = {0};
        double begin_s = cr_now_s();
        if (world->rank == held) setenv("CROLL_SIM_NCCL_HOLD", "1", 1);
        cr_world_set_deadline(world, deadline_s);
        expect(cr_group_transport(g),
               is_sum ? cr_all_reduce_f32(g, "floats", sent, 2 * RANKS, &e)
                      : cr_transfer(g, "shards", sent, &to, 1, got, &from, 1, &e),
               &e, CR_ETIMEOUT, WORDS(is_sum ? "all_reduce floats" : "transfer shards"));
        CR_CHECK(cr_now_s() - begin_s < soon_s, "after %.2f s", cr_now_s() - begin_s);
        cr_world_set_deadline(world, 60);
        unsetenv("CROLL_SIM_NCCL_HOLD");
    }
}

static void test_failures(void)
{
    bool is_held = dev && cri_sim_spoil &&
                   strstr(cr_group_transport(group_of("any", everyone, RANKS)), "nccl");

    for (int rank = 0; rank < RANKS; rank += 3 - rank % 2) { /* 0, 3: first and last of a host */
        test_divergence(rank);
        test_deadline(rank);
        test_failed_peer(rank);
        test_transfer_failures(rank);
        if (dev) test_late_part(rank);
        if (is_held) test_held(rank);
    }
    mend(world);
}

/* ---- all ---- */

typedef struct layout {           /* host_of: ranks with one number share a host */
    const char *all, *odd, *pair; /* transports of the groups below */
    int host_of[RANKS];
} layout;

static const layout layouts[] = {{"shared", "shared", "shared", {0, 0, 0, 0}},
                                 {"mpi", "mpi", "mpi", {0, 1, 2, 3}},
                                 {"hosts", "hosts", "shared", {0, 0, 2, 2}},
                                 {"hosts", "hosts", "mpi", {0, 1, 0, 1}},
                                 {"hosts", "hosts", "shared", {0, 0, 0, 3}}};

static bool is_gpu_shared(const cr_group *g)
{
    const char *gpus = getenv("CROLL_SIM_GPUS");

    for (int i = 0; gpus && strcmp(gpus, "1") == 0 && i < g->num_ranks; i++)
        for (int j = 0; j < i; j++)
            if (world->host_of[g->world_ranks[i]] == world->host_of[g->world_ranks[j]]) return true;
    return false;
}

static uint64_t test_one(const char *name, const int *ranks, int num, const char *transport)
{
    cr_group *g = group_of(name, ranks, num);
    uint64_t hash;

    if (dev && num > 1) transport = is_gpu_shared(g) ? "ipc" : "nccl";
    CR_CHECK(!transport || is_on(g, transport), "group %s is on %s, not %s", name,
             cr_group_transport(g), transport);
    CR_CHECK(g->comm->sum_order == CRI_SUM_BY_TREE, "another order of sums");
    hash = test_group(g, num > 2 ? 5 : 4);
    cr_group_destroy(g);
    return hash;
}

static uint64_t test_layout(const layout *l)
{
    static const int odd[] = {3, 1, 2}, low[] = {0, 1}, high[] = {2, 3};
    uint64_t hash;

    memcpy(world->host_of, l->host_of, sizeof l->host_of);
    hash = test_one("all", everyone, RANKS, l->all);
    if (world->rank > 0) hash = hash * 31 + test_one("odd", odd, 3, l->odd);
    hash = hash * 31 +
           test_one("pair", world->rank < 2 ? low : high, 2, world->rank < 2 ? l->pair : NULL);
    test_mesh();
    if (!dev || l == layouts) test_failures(); /* they sleep; the base's are tested on the host */
    return hash;
}

int main(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    uint64_t hash = 0, first = 0;

    OK(cr_world_open(&args, &world, &err));
    CR_CHECK(world->num_ranks == RANKS, "run with scripts/mpi 4");
    if (strcmp(cr_device_default(), "cuda") == 0) OK(cr_device_open("cuda", 1, &dev, &err));
    test_one("self", &world->rank, 1, dev ? "device" : "self");
    if (cr_world_spans_hosts(world)) {
        layout real = {NULL, NULL, NULL, {0}};
        memcpy(real.host_of, world->host_of, sizeof real.host_of);
        first = test_layout(&real);
    }
    for (size_t i = 0; i < CR_COUNT(layouts) && !cr_world_spans_hosts(world); i++) {
        hash = test_layout(&layouts[i]);
        if (i == 0) first = hash;
        CR_CHECK(hash == first, "layout %zu gives other bits", i);
    }
    outer_barrier(world);
    printf("rank %d ok, bits %016llx\n", world->rank, (unsigned long long)first);
    fflush(stdout);
    MPI_Finalize(); /* windows of broken groups are left as they are */
    return 0;
}
