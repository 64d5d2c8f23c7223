/* collectives.c -- GB/s and microseconds of the mesh's collectives, beside MPI's own in the same run.
 *
 *     scripts/mpi 2 build/release/bench_collectives [MEGABYTES]      (CROLL_TRANSPORT=mpi: messages)
 *
 * GB/s counts the whole buffer (what cr_flight counts) once a call, median of the calls. "cold" parts
 * are written by their rank between calls, as a training step does, outside the timed part. */
#include "mesh/collectives.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)
enum { CALLS = 41 };

static cr_err err;
static cr_world *world;
static cr_group *group;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void report(const char *what, double *seconds, size_t num_bytes)
{
    qsort(seconds, CALLS, sizeof *seconds, by_value);
    if (cr_world_rank(world) == 0)
        printf("%-34s %9.1f us  %7.2f GB/s\n", what, seconds[CALLS / 2] * 1e6,
               (double)num_bytes / seconds[CALLS / 2] / 1e9);
}

static void run_gather(size_t part_bytes, int n)
{
    double seconds[CALLS];
    cr_gather *gather;
    const void *whole;
    void *part;

    OK(cr_gather_create(group, 1, part_bytes * (size_t)n, &gather, &err));
    for (int i = 0; i < CALLS; i++) {
        OK(cr_gather_begin(gather, 0, "unit", part_bytes, &part, &err));
        memset(part, i, part_bytes);
        OK(cr_barrier(group, "start", &err));
        seconds[i] = cr_now_s();
        OK(cr_gather_publish(gather, 0, &err));
        OK(cr_gather_wait(gather, 0, &whole, &err));
        seconds[i] = cr_now_s() - seconds[i];
        cr_gather_release(gather, 0);
    }
    report("all_gather (cr_gather)", seconds, part_bytes * (size_t)n);
    cr_gather_destroy(gather);
}

static void run_reduce(size_t part_elems, int n, cr_reduce_dtype dtype)
{
    double seconds[CALLS];
    float *data, *shard = CR_NEW_ARRAY(float, part_elems);
    cr_reduce *reduce;

    OK(cr_reduce_create(group, 1, part_elems * (size_t)n, &reduce, &err));
    for (int i = 0; i < CALLS; i++) {
        OK(cr_reduce_begin(reduce, 0, &data, &err));
        for (size_t k = 0; k < part_elems * (size_t)n; k++)
            data[k] = (float)k;
        OK(cr_barrier(group, "start", &err));
        seconds[i] = cr_now_s();
        OK(cr_reduce_publish(reduce, 0, "unit", part_elems, dtype, &err));
        OK(cr_reduce_finish(reduce, 0, shard, CR_REDUCE_SET, &err));
        seconds[i] = cr_now_s() - seconds[i];
    }
    report(dtype == CR_REDUCE_F32 ? "reduce_scatter f32 (cr_reduce)" : "reduce_scatter bf16",
           seconds, part_elems * (size_t)n * 4);
    cr_reduce_destroy(reduce);
    cr_free(shard);
}

/* What Open MPI does by itself, without our flags. */
static void run_mpi(size_t part_elems, int n)
{
    double gather_s[CALLS], reduce_s[CALLS];
    float *all = CR_NEW_ARRAY(float, part_elems *(size_t)n),
          *part = CR_NEW_ARRAY(float, part_elems);

    for (int i = 0; i < CALLS; i++) {
        OK(cr_barrier(group, "start", &err));
        gather_s[i] = cr_now_s();
        MPI_Allgather(part, (int)part_elems, MPI_FLOAT, all, (int)part_elems, MPI_FLOAT,
                      MPI_COMM_WORLD);
        gather_s[i] = cr_now_s() - gather_s[i];
        OK(cr_barrier(group, "start", &err));
        reduce_s[i] = cr_now_s();
        MPI_Reduce_scatter_block(all, part, (int)part_elems, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        reduce_s[i] = cr_now_s() - reduce_s[i];
    }
    report("MPI_Allgather", gather_s, part_elems * (size_t)n * 4);
    report("MPI_Reduce_scatter_block", reduce_s, part_elems * (size_t)n * 4);
    cr_free(all);
    cr_free(part);
}

int main(int argc, char **argv)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    size_t megabytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 8;
    double seconds[CALLS], x = 1;
    int *ranks, n;

    OK(cr_world_open(&args, &world, &err));
    n = cr_world_num_ranks(world);
    ranks = CR_NEW_ARRAY(int, n);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    OK(cr_group_create(world, "all", ranks, n, &group, &err));
    if (cr_world_rank(world) == 0)
        printf("%d ranks, %zu MB, %s\n", n, megabytes,
               cr_group_is_shared(group) ? "shared windows" : "messages");
    run_gather(megabytes * 1000000 / (size_t)n, n);
    run_reduce(megabytes * 250000 / (size_t)n, n, CR_REDUCE_F32);
    run_reduce(megabytes * 250000 / (size_t)n, n, CR_REDUCE_BF16);
    for (int i = 0; i < CALLS; i++) {
        seconds[i] = cr_now_s();
        OK(cr_all_reduce_f64(group, "norm", CR_OP_SUM, &x, 1, &err));
        seconds[i] = cr_now_s() - seconds[i];
        x = 1;
    }
    report("all_reduce of one double", seconds, 8);
    if (cr_world_get_kind(world) == CR_WORLD_MPI) run_mpi(megabytes * 250000 / (size_t)n, n);
    cr_group_destroy(group);
    cr_world_close(world);
    cr_free(ranks);
    return 0;
}
