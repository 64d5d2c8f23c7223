/* meetings.c -- microseconds of a meeting (a barrier: all ranks compare an entry), twenty one after the other in each of several
 * groups in turn: the same ranks on as many hosts as ranks (all pairs of them exchange entries), on four, on two and on one:
 * `scripts/mpi 16 build/release/bench_meetings [ROUNDS]`. This machine pretends hosts; where mpirun has real ones, those are
 * compared with all pairs. One JSON line: medians, and how many times faster than all pairs, in the same round. */
#include "mesh/collectives.h"
#include "mesh/mesh_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)
enum { WARM_UP = 2, CALLS = 20, KINDS = 4 };

static cr_err err;
static cr_world *world;

/* All ranks in a row on num_hosts hosts; 0: the real ones. */
static cr_group *group_on(int num_hosts)
{
    int n = world->num_ranks, *ranks = CR_NEW_ARRAY(int, 2 * n), *real = ranks + n;
    cr_group *g;

    for (int r = 0; r < n; r++) {
        int first = r;
        while (num_hosts && first > 0 && (first - 1) * num_hosts / n == r * num_hosts / n)
            first--;
        real[r] = world->host_of[r];
        if (num_hosts) world->host_of[r] = first;
        ranks[r] = r;
    }
    OK(cr_group_create(world, NULL, "meeting", ranks, n, &g, &err));
    for (int r = 0; r < n; r++)
        world->host_of[r] = real[r];
    cr_free(ranks);
    return g;
}

static double meet(cr_group *g)
{
    double begin_s = cr_now_s();

    for (int i = 0; i < CALLS; i++)
        OK(cr_barrier(g, "meeting", &err));
    return (cr_now_s() - begin_s) / CALLS;
}

int main(int argc, char **argv)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    int num = argc > 1 ? atoi(argv[1]) : 31, hosts[KINDS] = {0, 4, 2, 1}, kinds = KINDS;
    double *seconds[KINDS], *ratio[KINDS];
    static const char *const names[] = {"all pairs", "4 hosts", "2 hosts", "1 host"};
    cr_group *g[KINDS];

    CR_CHECK(num > 0, "how many rounds?");
    OK(cr_world_open(&args, &world, &err));
    hosts[0] = world->num_ranks;
    if (cr_world_spans_hosts(world)) kinds = 2, hosts[1] = 0;
    for (int k = 0; k < kinds; k++) {
        g[k] = group_on(hosts[k]);
        seconds[k] = CR_NEW_ARRAY(double, num);
        ratio[k] = CR_NEW_ARRAY(double, num);
    }
    for (int i = -WARM_UP; i < num; i++)
        for (int k = 0; k < kinds; k++) {
            double each_s = meet(g[k]);
            if (i < 0) continue;
            seconds[k][i] = each_s;
            ratio[k][i] = seconds[0][i] / each_s;
        }
    if (world->rank == 0) printf("{\"ranks\":%d,\"rounds\":%d", world->num_ranks, num);
    for (int k = 0; k < kinds; k++) {
        qsort(seconds[k], (size_t)num, sizeof **seconds, cr_by_double);
        qsort(ratio[k], (size_t)num, sizeof **ratio, cr_by_double);
        if (world->rank == 0)
            printf(",\"%s\":{\"us\":%.0f,\"times_faster\":%.2f}",
                   hosts[k] ? names[k] : "real hosts", seconds[k][num / 2] * 1e6,
                   ratio[k][num / 2]);
    }
    if (world->rank == 0) printf("}\n");
    for (int k = 0; k < kinds; k++) {
        cr_group_destroy(g[k]);
        cr_free(seconds[k]);
        cr_free(ratio[k]);
    }
    cr_world_close(world);
    return 0;
}
