/* collectives.c -- every collective on 4 ranks, over shared windows and over messages, with
 * integers stored as floats (compared with ==) and with real floats whose bits must be the same on
 * both transports. A group of ranks 3, 1, 2 in that order, pairs, and a mesh of (2, 2).
 * Not covered: failures (failures.c), several hosts.
 * // ranks: 4
 */
#include "mesh/collectives.h"
#include "base/rng.h"
#include "mesh/flight.h"
#include "mesh/mesh_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)

static cr_err err;
static cr_world *world;

static cr_group *group_of(const char *name, const int *ranks, int num)
{
    cr_group *g;

    OK(cr_group_create(world, NULL, name, ranks, num, &g, &err));
    return g;
}

static bool is_shared(const cr_group *g)
{
    return strcmp(cr_group_transport(g), "shared") == 0;
}

static size_t elems_of(int use)
{
    return use % 3 == 0 ? 1000 : 7;
}

static void announce(cr_gather *gather, int use)
{
    char name[32];

    snprintf(name, sizeof name, "unit %d", use);
    OK(cr_gather_announce(gather, use % 2, name, elems_of(use) * 4, &err));
}

static void publish(cr_gather *gather, int use, int me)
{
    void *part;

    OK(cr_gather_begin(gather, use % 2, &part, &err));
    for (size_t i = 0; i < elems_of(use); i++)
        ((float *)part)[i] = (float)(use * 10000 + me * 1000 + (int)i);
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
    const void *whole;

    OK(cr_gather_create(g, 2, (size_t)n * 4000, &gather, &err));
    announce(gather, 0);
    for (int use = 0; use < 200; use++) {
        size_t num = elems_of(use);
        if (!is_written) publish(gather, use, me);
        if (use < 199) announce(gather, use + 1);
        is_written = use < 199 && cr_gather_is_free(gather, (use + 1) % 2);
        if (is_written) publish(gather, use + 1, me);
        num_late += use < 199 && !is_written;
        OK(cr_gather_wait(gather, use % 2, &whole, &err));
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < num; i++)
                CR_CHECK(((const float *)whole)[(size_t)r * num + i] ==
                             (float)(use * 10000 + r * 1000 + (int)i),
                         "use %d rank %d element %zu", use, r, i);
        if (use % 20 == 3 * me) cr_sleep_s(0.002);
        cr_gather_release(gather, use % 2);
    }
    OK(cr_all_reduce_f64(g, "late", CR_OP_SUM, &num_late, 1, &err));
    CR_CHECK(is_shared(g) == (num_late > 0), "%g slots were busy", num_late);
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

/* Exact against the same sum in rank order done here. */
static uint64_t test_reduce(cr_group *g, cr_reduce_dtype dtype, int num_slots)
{
    enum { PART = 9001 };
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    float *shard = CR_NEW_ARRAY(float, PART), *data;
    cr_reduce *reduce;
    uint64_t hash = 0;

    OK(cr_reduce_create(g, num_slots, (size_t)n * PART, &reduce, &err));
    for (int use = 0; use < 4; use++) {
        OK(cr_reduce_begin(reduce, use % num_slots, &data, &err));
        for (size_t i = 0; i < (size_t)n * PART; i++)
            data[i] = contribution(use, me, i, CR_REDUCE_F32);
        OK(cr_reduce_publish(reduce, use % num_slots, "unit", PART, dtype, &err));
        for (size_t i = 0; i < PART; i++)
            shard[i] = 3;
        while (use == 1 && is_shared(g) && !cr_reduce_is_ready(reduce, use % num_slots))
            cr_sleep_s(1e-4); /* a lost flag runs into the test's time limit */
        OK(cr_reduce_finish(reduce, use % num_slots, shard, use < 2 ? CR_REDUCE_SET : CR_REDUCE_ADD,
                            &err));
        for (size_t i = 0; i < PART; i++) {
            float sum = 0;
            for (int r = 0; r < n; r++) {
                float x = contribution(use, r, (size_t)me * PART + i, dtype);
                sum = r == 0 ? x : sum + x;
            }
            sum = use < 2 ? sum : 3 + sum;
            CR_CHECK(shard[i] == sum, "use %d element %zu: %.9g, want %.9g", use, i,
                     (double)shard[i], (double)sum);
        }
        hash ^= cr_hash64(shard, PART * sizeof(float));
    }
    cr_reduce_destroy(reduce);
    cr_free(shard);
    return hash;
}

static uint64_t test_all_reduce(cr_group *g)
{
    enum { NUM = 300001 }; /* more than one round */
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    float *x = CR_NEW_ARRAY(float, NUM);
    double d[3] = {me + 1, me, me == 1 ? NAN : me}, sum = 0;
    uint64_t hash;

    for (size_t i = 0; i < NUM; i++)
        x[i] = value(me, i % 7777);
    OK(cr_all_reduce_f32(g, "floats", CR_OP_SUM, x, NUM, &err));
    for (size_t i = 0; i < NUM; i += 997) {
        float want = value(0, i % 7777);
        for (int r = 1; r < n; r++)
            want += value(r, i % 7777);
        CR_CHECK(x[i] == want, "element %zu", i);
    }
    hash = cr_hash64(x, NUM * sizeof(float));
    OK(cr_all_reduce_f64(g, "doubles", CR_OP_SUM, d, 1, &err));
    for (int r = 0; r < n; r++)
        sum += r + 1;
    CR_CHECK(d[0] == sum, "sum");
    OK(cr_all_reduce_f64(g, "most", CR_OP_MAX, d + 1, 2, &err));
    CR_CHECK(d[1] == n - 1 && isnan(d[2]), "max %g %g", d[1], d[2]);
    d[0] = me;
    OK(cr_all_reduce_f64(g, "least", CR_OP_MIN, d, 1, &err));
    CR_CHECK(d[0] == 0, "min");
    cr_free(x);
    return hash;
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
        OK(cr_broadcast(g, "words", root, data, scale + 1, &err));
        for (size_t i = 0; i <= scale; i++)
            CR_CHECK(data[i] == 'A' + root, "byte %zu of root %d", i, root);
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
    char *send, *recv;

    for (int r = 0; r < n; r++) {
        sends[r] = scale * (size_t)((me + 2 * r) % 3);
        recvs[r] = scale * (size_t)((r + 2 * me) % 3);
        total += sends[r] + recvs[r];
    }
    send = cr_alloc(total);
    recv = cr_alloc(total);
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < sends[r]; i++)
            send[at++] = (char)(me * 50 + r * 7 + (int)(i % 31));
    OK(cr_all_to_all(g, "heads", send, sends, recv, recvs, &err));
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
    char want[80];

    CR_CHECK(cr_agree(g, "all well", &mine) == CR_OK, "%s", mine.msg);
    if (cr_group_rank(g) == 1) {
        cr_fail(&mine, CR_EFORMAT, "weights.safetensors: no such tensor");
        CR_CHECK(cr_agree(g, "load", &mine) == CR_EFORMAT, "own failure is kept");
        return;
    }
    snprintf(want, sizeof want, "rank %d: weights.safetensors: no such tensor",
             cr_group_world_rank(g, 1));
    CR_CHECK(cr_agree(g, "load", &mine) == CR_EPEER && !strcmp(mine.msg, want), "%s", mine.msg);
}

/* Train shards on ranks 0, 1 (halves) to infer shards on ranks 2, 3 (a third and two thirds), and a
 * piece to oneself. */
static void test_transfer(size_t third)
{
    int me = world->rank;
    size_t half = third * 3 / 2, split = third;
    char *data = cr_alloc(third * 3);
    cr_piece sends[4] = {{0}}, recvs[4] = {{0}};
    size_t num_sends = 0, num_recvs = 0;
    cr_transfer *t;

    if (me == 0) {
        memset(data, 'a', split);
        memset(data + split, 'b', half - split);
        sends[num_sends++] = (cr_piece){2, 0, split};
        sends[num_sends++] = (cr_piece){3, split, half - split};
    } else if (me == 1) {
        memset(data, 'c', half);
        sends[num_sends++] = (cr_piece){3, 0, half};
    } else if (me == 2) {
        recvs[num_recvs++] = (cr_piece){0, 0, split};
    } else {
        memset(data + 2 * third, 'd', third);
        sends[num_sends++] = (cr_piece){3, 3 * third - 1, 1};
        recvs[num_recvs++] = (cr_piece){0, 0, half - split};
        recvs[num_recvs++] = (cr_piece){1, half - split, half};
        recvs[num_recvs++] = (cr_piece){3, 2 * third, 1};
    }
    OK(cr_transfer_start(world, "weight sync", data, sends, num_sends, data, recvs, num_recvs, &t,
                         &err));
    OK(cr_transfer_wait(t, &err));
    for (size_t i = 0; me == 2 && i < split; i++)
        CR_CHECK(data[i] == 'a', "byte %zu", i);
    for (size_t i = 0; me == 3 && i < third * 2; i++)
        CR_CHECK(data[i] == (i < half - split ? 'b' : 'c'), "byte %zu is %c", i, data[i]);
    cr_free(data);
}

static uint64_t test_group(cr_group *g)
{
    uint64_t hash = 0;

    OK(cr_barrier(g, "start", &err));
    test_gather(g);
    hash ^= test_reduce(g, CR_REDUCE_F32, 1);
    hash ^= test_reduce(g, CR_REDUCE_BF16, 2) * 3;
    hash ^= test_all_reduce(g) * 5;
    test_bytes(g, 1);
    test_bytes(g, 700001); /* several rounds for some ranks */
    test_all_to_all(g, 3);
    test_all_to_all(g, 500009);
    test_agree(g);
    OK(cr_barrier(g, "end", &err));
    return hash;
}

static uint64_t test_all(bool has_memory)
{
    static const int all[] = {0, 1, 2, 3}, odd[] = {3, 1, 2}, low[] = {0, 1}, high[] = {2, 3};
    cr_mesh_shape shape;
    uint64_t hash = 0;
    cr_group *g = group_of("all", all, 4), *two;
    cr_mesh *mesh;
    double x;

    CR_CHECK(is_shared(g) == has_memory, "transport");
    hash ^= test_group(g);
    cr_group_destroy(g);
    if (world->rank > 0) {
        g = group_of("odd", odd, 3);
        CR_CHECK(cr_group_rank(g) == (world->rank == 3 ? 0 : world->rank), "place");
        hash ^= test_group(g);
        cr_group_destroy(g);
    }
    two = group_of("pair", world->rank < 2 ? low : high, 2);
    hash ^= test_group(two);
    cr_group_destroy(two);
    OK(cr_mesh_shape_init(&shape, 4, 2, 2, 1, 0, &err));
    OK(cr_mesh_create(world, NULL, "actor_train", all, &shape, &mesh, &err));
    CR_CHECK(mesh->group[CR_AXIS_FSDP] == mesh->group[CR_AXIS_ULYSSES], "same ranks, one group");
    x = world->rank;
    OK(cr_all_reduce_f64(mesh->group[CR_AXIS_DDP], "ddp", CR_OP_SUM, &x, 1, &err));
    CR_CHECK(x == 2 * (world->rank % 2) + 2, "ddp sum %g", x);
    x = world->rank;
    OK(cr_all_reduce_f64(mesh->group[CR_AXIS_FSDP], "fsdp", CR_OP_SUM, &x, 1, &err));
    CR_CHECK(x == (world->rank < 2 ? 1 : 5), "fsdp sum %g", x);
    cr_mesh_destroy(mesh);
    return hash;
}

int main(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    uint64_t shared, messages;
    bool is_forced;

    OK(cr_world_open(&args, &world, &err));
    CR_CHECK(world->num_ranks == 4, "run with scripts/mpi 4");
    is_forced = world->board == NULL; /* CROLL_TRANSPORT=mpi */
    test_transfer(4);
    test_transfer(3000000);
    shared = test_all(!is_forced);
    for (int r = 0; r < 4; r++)
        world->host_of[r] = r; /* from here on groups believe in four hosts */
    messages = test_all(false);
    CR_CHECK(shared == messages, "the transports give other bits");
    cr_world_close(world);
    printf("rank ok\n");
    return 0;
}
