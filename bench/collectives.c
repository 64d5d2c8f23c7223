/* collectives.c -- GB/s of the mesh's collectives: `scripts/mpi RANKS bench_collectives [KILOBYTES ..]`, default 64
 * 1024 8192 65536. One JSON line with the fields of peers' collectives_gloo.py (CROLL_TRANSPORT=mpi: messages).
 *
 * GB/s counts the whole float32 tensor (elements x 4 bytes, with bf16 too) once a call and is rank 0's time from a
 * barrier. A tensor is written by its rank before each call, as a training step does.
 *     all_gather           a private shard -> every rank reads the whole in place: one copy of the own part
 *     reduce_scatter       from where a gradient is accumulated (the shared window) to a private shard
 *     reduce_scatter_copy  the same, after the whole tensor was copied there from private memory
 *     all_reduce           private, in place
 * latency_us: a barrier, and an all-reduce of one double. */
#include "mesh/collectives.h"
#include "tests/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)
enum { WARM_UP = 2, CALLS = 15, SMALL_CALLS = 1001 };

static cr_err err;
static cr_world *world;
static cr_group *group;

typedef struct work { /* of one size */
    int n;
    size_t part_elems, part_bytes;
    float *full, *shard; /* private */
    cr_gather *gather;
    cr_reduce *reduce;
    cr_reduce_dtype dtype;
} work;

static void fill(float *x, size_t num)
{
    for (size_t i = 0; i < num; i++)
        x[i] = (float)(cr_world_rank(world) + 1);
}

static void check(const float *x, size_t num, float first, float last)
{
    CR_CHECK(x[0] == first && x[num - 1] == last, "wrong result: %g .. %g", (double)x[0],
             (double)x[num - 1]);
}

static double start(void)
{
    OK(cr_barrier(group, "start", &err));
    return cr_now_s();
}

static double all_gather(const work *w)
{
    const cr_mem *whole;
    cr_mem *part;
    double begin_s, seconds;

    fill(w->shard, w->part_elems);
    begin_s = start();
    OK(cr_gather_announce(w->gather, 0, "unit", w->part_bytes, &err));
    OK(cr_gather_begin(w->gather, 0, &part, &err));
    memcpy(cr_host_view(part), w->shard, w->part_bytes);
    OK(cr_gather_publish(w->gather, 0, &err));
    OK(cr_gather_wait(w->gather, 0, &whole, &err));
    seconds = cr_now_s() - begin_s;
    check(F32(whole), w->part_elems * (size_t)w->n, 1, (float)w->n);
    OK(cr_gather_release(w->gather, 0, &err));
    return seconds;
}

static double reduce(const work *w, bool is_copied)
{
    float total = (float)(w->n * (w->n + 1) / 2);
    cr_mem *data = NULL;
    double begin_s, seconds;

    if (!is_copied) OK(cr_reduce_begin(w->reduce, 0, &data, &err));
    fill(is_copied ? w->full : F32(data), w->part_elems * (size_t)w->n);
    fill(w->shard, w->part_elems);
    begin_s = start();
    if (is_copied) {
        OK(cr_reduce_begin(w->reduce, 0, &data, &err));
        memcpy(cr_host_view(data), w->full, w->part_bytes * (size_t)w->n);
    }
    OK(cr_reduce_publish(w->reduce, 0, "unit", w->part_elems, w->dtype, &err));
    OK(cr_reduce_finish(w->reduce, 0, MEM(w->shard), CR_REDUCE_SET, &err));
    seconds = cr_now_s() - begin_s;
    check(w->shard, w->part_elems, total, total);
    return seconds;
}

static double reduce_scatter(const work *w)
{
    return reduce(w, /*is_copied=*/false);
}

static double reduce_scatter_copy(const work *w)
{
    return reduce(w, /*is_copied=*/true);
}

static double all_reduce(const work *w)
{
    size_t num = w->part_elems * (size_t)w->n;
    float total = (float)(w->n * (w->n + 1) / 2);
    double begin_s, seconds;

    fill(w->full, num);
    begin_s = start();
    OK(cr_all_reduce_f32(group, "unit", MEM(w->full), num, &err));
    seconds = cr_now_s() - begin_s;
    check(w->full, num, total, total);
    return seconds;
}

static void time_calls(const work *w, const char *what, double (*call)(const work *))
{
    double seconds[WARM_UP + CALLS], bytes = (double)w->part_bytes * w->n;

    for (int i = 0; i < WARM_UP + CALLS; i++)
        seconds[i] = call(w);
    qsort(seconds + WARM_UP, CALLS, sizeof *seconds, cr_by_double);
    if (cr_world_rank(world) > 0) return;
    printf(",\"%s_%.0f%s\":{\"median\":%.3f,\"best\":%.3f,\"seconds\":%.3g}", what,
           bytes < 1 << 20 ? bytes / 1024 : bytes / (1 << 20), bytes < 1 << 20 ? "kb" : "mb",
           bytes / seconds[WARM_UP + CALLS / 2] / 1e9, bytes / seconds[WARM_UP] / 1e9,
           seconds[WARM_UP + CALLS / 2]);
}

static void run_size(int n, size_t num_bytes)
{
    work w = {.n = n, .part_elems = num_bytes / sizeof(float) / (size_t)n};

    w.part_bytes = w.part_elems * sizeof(float);
    w.full = CR_NEW_ARRAY(float, w.part_elems *(size_t)n);
    w.shard = CR_NEW_ARRAY(float, w.part_elems);
    OK(cr_gather_create(group, 1, w.part_bytes * (size_t)n, &w.gather, &err));
    OK(cr_reduce_create(group, 1, w.part_elems * (size_t)n, &w.reduce, &err));
    time_calls(&w, "all_gather", all_gather);
    time_calls(&w, "reduce_scatter", reduce_scatter);
    time_calls(&w, "reduce_scatter_copy", reduce_scatter_copy);
    time_calls(&w, "all_reduce", all_reduce);
    w.dtype = CR_REDUCE_BF16;
    time_calls(&w, "reduce_scatter_bf16", reduce_scatter);
    cr_gather_destroy(w.gather);
    cr_reduce_destroy(w.reduce);
    cr_free(w.full);
    cr_free(w.shard);
}

static void run_small(const char *what, bool is_barrier)
{
    double *seconds = CR_NEW_ARRAY(double, SMALL_CALLS), x = 1, begin_s;

    for (int i = 0; i < SMALL_CALLS; i++) {
        begin_s = cr_now_s();
        if (is_barrier)
            OK(cr_barrier(group, "end", &err));
        else
            OK(cr_all_reduce_f64(group, "norm", CR_OP_MAX, &x, 1, &err));
        seconds[i] = cr_now_s() - begin_s;
    }
    qsort(seconds, SMALL_CALLS, sizeof *seconds, cr_by_double);
    if (cr_world_rank(world) == 0)
        printf(",\"%s_latency_us\":{\"median\":%.2f,\"best\":%.2f}", what,
               seconds[SMALL_CALLS / 2] * 1e6, seconds[0] * 1e6);
    cr_free(seconds);
}

int main(int argc, char **argv)
{
    static const size_t usual[] = {64, 1024, 8192, 65536};
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    int num_sizes = argc > 1 ? argc - 1 : (int)CR_COUNT(usual), *ranks, n;

    OK(cr_world_open(&args, &world, &err));
    n = cr_world_num_ranks(world);
    ranks = CR_NEW_ARRAY(int, n);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    OK(cr_group_create(world, NULL, "all", ranks, n, &group, &err));
    if (cr_world_rank(world) == 0)
        printf("{\"peer\":\"croll\",\"case\":\"collectives w%d fp32\",\"processes\":%d,"
               "\"unit\":\"GB/s\",\"transport\":\"%s\",\"repeat\":%d",
               n, n, cr_group_transport(group), CALLS);
    for (int i = 0; i < num_sizes; i++)
        run_size(n, 1024 * (argc > 1 ? strtoul(argv[i + 1], NULL, 10) : usual[i]));
    run_small("barrier", /*is_barrier=*/true);
    run_small("all_reduce_of_one", /*is_barrier=*/false);
    if (cr_world_rank(world) == 0) printf("}\n");
    cr_group_destroy(group);
    cr_world_close(world);
    cr_free(ranks);
    return 0;
}
