/* cores.c -- what two threads have to share: `bench_cores`, a JSON line. one_way_ns: a cache line from one core to the other, the best
 * of REPEATS; add_gb_per_s: reading and writing 256 MB of float32, with one thread and with two. Where a host moves the cores of
 * a virtual machine between caches, one_way_ns changes from call to call.
 */
#include "base/base.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { REPEATS = 5, TURNS = 200000, NUM = 1 << 26 };

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each thread waits until the number is odd, or even, and adds one. */
static double one_way(void)
{
    static _Alignas(128) atomic_int line;
    double start;

    atomic_store(&line, 0);
    start = seconds();
#pragma omp parallel num_threads(2)
    for (int i = 0, me = omp_get_thread_num(); i < TURNS; i++) {
        while ((atomic_load(&line) & 1) != me)
            ;
        atomic_fetch_add(&line, 1);
    }
    return (seconds() - start) / (2 * TURNS);
}

static double add_one(int threads, float *x)
{
    double start = seconds();

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < NUM; i++)
        x[i] += 1;
    return seconds() - start;
}

int main(void)
{
    float *x = CR_NEW_ARRAY(float, NUM);
    double best[3] = {1, 1, 1};

    if (omp_get_num_procs() < 2) {
        fprintf(stderr, "bench_cores: two cores are needed\n");
        return 1;
    }
    for (int i = 0; i < NUM; i++)
        x[i] = 0; /* its pages */
    for (int r = 0; r < REPEATS; r++) {
        double took[3] = {one_way(), add_one(1, x), add_one(2, x)};
        for (int i = 0; i < 3; i++)
            best[i] = took[i] < best[i] ? took[i] : best[i];
    }
    printf("{\"one_way_ns\":%.0f,\"add_gb_per_s\":[%.1f,%.1f]}\n", 1e9 * best[0],
           8e-9 * NUM / best[1], 8e-9 * NUM / best[2]);
    cr_free(x);
    return 0;
}
