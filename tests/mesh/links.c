/* links.c -- what collectives move between hosts: messages and bytes that the recorder counts on each rank are those of
 * mesh/hosts/links.h, and for hosts of 2^k ranks those of docs/hosts.md, written here again; sums have the bits of one host.
 * Groups of 2 to 16 ranks on 1 to 4 hosts (this one pretends; on real ones, as they are), also with ranks in turn and unequal
 * hosts.
 * Not covered: transfers (sync.c), GPUs, where NCCL moves all contributions.
 * // ranks: 16
 */
#include "mesh/hosts/links.h"
#include "base/rng.h"
#include "tests/memory.h"
#include "tests/mesh/mend.h"

#include <stdio.h>
#include <string.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)
enum { RANKS = 16, PART = 1000, LONG = 300007 };

static cr_err err;
static cr_world *world;
static cr_group *everyone; /* on one host: how the ranks compare */
static const char *layout_name;
static int num_calls;

static float value(int rank, size_t i)
{
    return (float)cr_rng_normal(1, CR_RNG_TEST, (uint64_t)rank, i % 4099);
}

/* ---- the formulas of docs/hosts.md, for h hosts of m = 2^k ranks in a row; into one host ---- */

static int64_t parts_of_round(int64_t bytes, int64_t max)
{
    return (bytes + max - 1) / max;
}

static cr_link_count formula(cr_link_call c, int64_t n, int64_t m)
{
    int64_t h = n / m, bytes = (int64_t)c.num_bytes, part = bytes / n;
    cr_link_count in = {h - 1, 0}; /* the meeting */

    switch (c.coll) {
    case CR_COLL_ALL_GATHER:
        in.num_messages += n - m;
        in.num_bytes = (n - m) * part;
        break;
    case CR_COLL_REDUCE_SCATTER:
        in.num_messages += m * (h - 1);
        in.num_bytes =
            m * (h - 1) * (part / (int64_t)c.elem_bytes) * (m == 1 ? (int64_t)c.elem_bytes : 4);
        break;
    case CR_COLL_ALL_REDUCE:
        if (h * bytes <= 256 * 1024) {
            in.num_messages += h - 1;
            in.num_bytes = (h - 1) * bytes;
        } else { /* 1 MiB at a time; the last slices of a chunk may be shorter */
            in.num_messages += parts_of_round(bytes, 1 << 20) * (m * (h - 1) + n - m);
            in.num_bytes = -1;
        }
        break;
    case CR_COLL_BROADCAST:
        in.num_messages = in.num_bytes = -1;
        break; /* depends on the host */
    case CR_COLL_GATHER_BYTES:
    case CR_COLL_AGREE:
        in.num_messages += h - 1; /* lengths */
        in.num_bytes = (n - m) * (8 + part);
        if (bytes > 256 * 1024)
            in.num_messages += parts_of_round(part, (1 << 20) / n / 64 * 64) * (n - m);
        else if (bytes > 0)
            in.num_messages += h - 1;
        break;
    case CR_COLL_ALL_TO_ALL:
        in.num_messages += h - 1 + m * (n - m);
        in.num_bytes = (n - m) * 8 * n + m * (n - m) * (bytes / (n - 1));
        break;
    default:
        CR_CHECK(false, "no formula");
    }
    return in;
}

static bool is_plain(const int *host_of, int n, int *on_host)
{
    int m = 0;

    while (m < n && host_of[m] == host_of[0])
        m++;
    for (int r = 0; r < n; r++) /* a host's number is its first rank */
        if (n % m || host_of[r] != r / m * m) return false;
    *on_host = m;
    return (m & (m - 1)) == 0 && n > m;
}

/* ---- comparing ---- */

static void equal(cr_link_count got, cr_link_count want, cr_link_call c, int n, const char *whose,
                  int number)
{
    CR_CHECK(
        (want.num_messages < 0 || got.num_messages == want.num_messages) &&
            (want.num_bytes < 0 || got.num_bytes == want.num_bytes),
        "%s, %d ranks, %s of %zu bytes, into %s %d: %lld messages, %lld bytes; want %lld, %lld",
        layout_name, n, cr_coll_name(c.coll), c.num_bytes, whose, number,
        (long long)got.num_messages, (long long)got.num_bytes, (long long)want.num_messages,
        (long long)want.num_bytes);
}

static cr_link_count recorded(cr_coll coll)
{
    cr_flight_count c = cr_flight_get_count(world, coll);

    return (cr_link_count){(int64_t)c.num_messages, (int64_t)c.received_bytes};
}

/* What all ranks of the group have received since `before`. */
static void check_counts(cr_group *g, cr_link_call c, cr_link_count before)
{
    int n = cr_group_num_ranks(g), host_of[RANKS], m;
    cr_link_count mine = recorded(c.coll), into[RANKS];
    size_t offsets[RANKS + 1];
    cr_buf all = {0};

    mine.num_messages -= before.num_messages;
    mine.num_bytes -= before.num_bytes;
    memcpy(host_of, world->host_of, sizeof host_of); /* the group is of ranks 0 .. n - 1 */
    equal(mine, cr_link_into_rank(host_of, n, c, cr_group_rank(g)), c, n, "rank", cr_group_rank(g));
    OK(cr_all_gather_bytes(g, "counts", &mine, sizeof mine, &all, offsets, &err));
    memcpy(into, all.data, (size_t)n * sizeof *into);
    cr_buf_free(&all);
    for (int r = 0; r < n; r++) {
        cr_link_count sum = {0};
        for (int q = 0; q < n; q++)
            if (host_of[q] == host_of[r])
                sum.num_messages += into[q].num_messages, sum.num_bytes += into[q].num_bytes;
        equal(sum, cr_link_into_host(host_of, n, c, host_of[r]), c, n, "host of rank", r);
        if (is_plain(host_of, n, &m)) equal(sum, formula(c, n, m), c, n, "host of rank", r);
    }
    num_calls++;
}

/* ---- one of each ---- */

static void gather_once(cr_group *g)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    cr_link_count before = recorded(CR_COLL_ALL_GATHER);
    const cr_mem *whole;
    cr_gather *gather;
    cr_mem *part;

    OK(cr_gather_create(g, 1, (size_t)n * PART * 4, &gather, &err));
    OK(cr_gather_announce(gather, 0, "unit", PART * 4, &err));
    OK(cr_gather_begin(gather, 0, &part, &err));
    for (size_t i = 0; i < PART; i++)
        ((float *)HOST(part))[i] = value(me, i);
    OK(cr_gather_publish(gather, 0, &err));
    OK(cr_gather_wait(gather, 0, &whole, &err));
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < PART; i++)
            CR_CHECK(F32(whole)[(size_t)r * PART + i] == value(r, i), "part %d element %zu", r, i);
    OK(cr_gather_release(gather, 0, &err));
    check_counts(g, (cr_link_call){CR_COLL_ALL_GATHER, (size_t)n * PART * 4, 0}, before);
    cr_gather_destroy(gather);
}

static uint64_t reduce_once(cr_group *g, cr_reduce_dtype dtype)
{
    size_t n = (size_t)cr_group_num_ranks(g), elem_bytes = dtype == CR_REDUCE_BF16 ? 2 : 4;
    cr_link_count before = recorded(CR_COLL_REDUCE_SCATTER);
    cr_reduce *reduce;
    float shard[PART];
    cr_mem *data;

    OK(cr_reduce_create(g, 1, n * PART, &reduce, &err));
    OK(cr_reduce_begin(reduce, 0, &data, &err));
    for (size_t i = 0; i < n * PART; i++)
        F32(data)[i] = value(cr_group_rank(g), i);
    OK(cr_reduce_publish(reduce, 0, "unit", PART, dtype, &err));
    OK(cr_reduce_finish(reduce, 0, MEM(shard), CR_REDUCE_SET, &err));
    check_counts(g, (cr_link_call){CR_COLL_REDUCE_SCATTER, n * PART * elem_bytes, elem_bytes},
                 before);
    cr_reduce_destroy(reduce);
    return cr_hash64(shard, sizeof shard);
}

static uint64_t all_reduce_once(cr_group *g, size_t num)
{
    cr_link_count before = recorded(CR_COLL_ALL_REDUCE);
    float *x = CR_NEW_ARRAY(float, num);
    uint64_t hash;

    for (size_t i = 0; i < num; i++)
        x[i] = value(cr_group_rank(g), i);
    OK(cr_all_reduce_f32(g, "gradients", MEM(x), num, &err));
    check_counts(g, (cr_link_call){CR_COLL_ALL_REDUCE, num * 4, 4}, before);
    hash = cr_hash64(x, num * 4);
    cr_free(x);
    return hash;
}

static uint64_t all_reduce_wide(cr_group *g, size_t num)
{
    cr_link_count before = recorded(CR_COLL_ALL_REDUCE);
    double *x = CR_NEW_ARRAY(double, num);
    uint64_t hash;

    for (size_t i = 0; i < num; i++)
        x[i] = (double)value(cr_group_rank(g), i) / 3;
    OK(cr_all_reduce_f64(g, "norm", CR_OP_SUM, x, num, &err));
    check_counts(g, (cr_link_call){CR_COLL_ALL_REDUCE, num * 8, 8}, before);
    hash = cr_hash64(x, num * 8);
    cr_free(x);
    return hash;
}

static void bytes_once(cr_group *g, cr_coll coll, size_t num)
{
    int n = cr_group_num_ranks(g), me = cr_group_rank(g);
    cr_link_count before = recorded(coll);
    size_t offsets[RANKS + 1], each[RANKS];
    char *send = cr_alloc((size_t)n * num + 1), *recv = cr_alloc((size_t)n * num + 1);
    cr_buf all = {0};

    memset(send, 'a' + (coll == CR_COLL_BROADCAST ? 0 : me), (size_t)n * num);
    for (int r = 0; r < n; r++)
        each[r] = num;
    if (coll == CR_COLL_AGREE) OK(cr_agree(g, "all well", &err));
    if (coll == CR_COLL_GATHER_BYTES) {
        OK(cr_all_gather_bytes(g, "lines", send, num, &all, offsets, &err));
        CR_CHECK(all.num_bytes == (size_t)n * num && all.data[all.num_bytes - 1] == 'a' + n - 1 &&
                     all.data[num] == 'b',
                 "gathered bytes");
    }
    if (coll == CR_COLL_BROADCAST) OK(cr_broadcast(g, "ids", 0, send, num, &err));
    if (coll == CR_COLL_ALL_TO_ALL) {
        OK(cr_all_to_all(g, "heads", MEM(send), each, MEM(recv), each, &err));
        for (int r = 0; r < n; r++)
            CR_CHECK(recv[(size_t)r * num] == 'a' + r && recv[(size_t)(r + 1) * num - 1] == 'a' + r,
                     "from rank %d", r);
    }
    check_counts(g,
                 (cr_link_call){coll,
                                coll == CR_COLL_ALL_TO_ALL  ? (size_t)(n - 1) * num
                                : coll == CR_COLL_BROADCAST ? num
                                                            : (size_t)n * num,
                                0},
                 before);
    cr_buf_free(&all);
    cr_free(send);
    cr_free(recv);
}

static uint64_t one_of_each(cr_group *g, bool has_long)
{
    uint64_t hash = reduce_once(g, CR_REDUCE_F32);

    gather_once(g);
    hash = hash * 31 + reduce_once(g, CR_REDUCE_BF16);
    hash = hash * 31 + all_reduce_once(g, 77);
    hash = hash * 31 + all_reduce_wide(g, 1);
    if (has_long) hash = hash * 31 + all_reduce_once(g, LONG / 12); /* short for two leaves */
    if (has_long) hash = hash * 31 + all_reduce_once(g, LONG);
    if (has_long) hash = hash * 31 + all_reduce_wide(g, LONG);
    bytes_once(g, CR_COLL_AGREE, 0);
    bytes_once(g, CR_COLL_GATHER_BYTES, 100);
    if (has_long) bytes_once(g, CR_COLL_GATHER_BYTES, 200000);
    bytes_once(g, CR_COLL_BROADCAST, 5000);
    if (has_long) bytes_once(g, CR_COLL_BROADCAST, 1500000);
    bytes_once(g, CR_COLL_ALL_TO_ALL, 100);
    return hash;
}

/* Ranks 0 .. n - 1 on hosts; of_rank: the number of a rank's host. Returns a hash of this rank's sums. */
static uint64_t run(const char *name, int n, const int *of_rank, bool has_long)
{
    static const int ranks[RANKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint64_t hash = 0;
    cr_group *g;

    layout_name = name;
    for (int r = 0; r < RANKS; r++) {
        int first = 0;
        while (of_rank[first] != of_rank[r])
            first++;
        world->host_of[r] = first;
    }
    if (world->rank < n) {
        OK(cr_group_create(world, NULL, name, ranks, n, &g, &err));
        hash = one_of_each(g, has_long);
        cr_group_destroy(g);
    }
    return hash;
}

static bool is_long(int n)
{
    return n == 2 || n == 5 || n == 8 || n == 16;
}

/* Returns the hash of this rank's sums on one host. */
static uint64_t run_all(int n)
{
    static const int odd[][RANKS] = {{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0},
                                     {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0, 0},
                                     {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3}};
    static const char *const names[] = {"in turn", "in threes", "unequal"};
    int of_rank[RANKS];
    uint64_t first = 0, hash;

    for (int h = 1; h <= 4 && h <= n; h++) {
        char name[24];
        for (int r = 0; r < RANKS; r++)
            of_rank[r] = r * h / n;
        snprintf(name, sizeof name, "%d hosts", h);
        hash = run(name, n, of_rank, is_long(n));
        if (h == 1) first = hash;
        CR_CHECK(hash == first, "%d ranks on %d hosts: other bits", n, h);
    }
    for (size_t i = 0; i < CR_COUNT(odd) && (n % 5 == 1 || n == 7); i++)
        CR_CHECK(run(names[i], n, odd[i], is_long(n)) == first, "%d ranks, %s: other bits", n,
                 names[i]);
    return first;
}

int main(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 100};
    int ranks[RANKS], real[RANKS];
    uint64_t hash = 0;
    bool is_real;

    OK(cr_world_open(&args, &world, &err));
    CR_CHECK(world->num_ranks == RANKS, "run with scripts/mpi 16");
    for (int r = 0; r < RANKS; r++)
        ranks[r] = r;
    OK(cr_group_create(world, NULL, "everyone", ranks, RANKS, &everyone, &err));
    memcpy(real, world->host_of, sizeof real);
    is_real = cr_world_spans_hosts(world);
    for (int n = 2; n <= RANKS; n++) {
        hash = hash * 31 + (is_real ? run("real hosts", n, real, is_long(n)) : run_all(n));
        OK(cr_barrier(everyone, "next", &err));
    }
    printf("rank %d: %d calls, all counts as by formula, bits %016llx\n", world->rank, num_calls,
           (unsigned long long)hash);
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
