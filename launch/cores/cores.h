/* cores.h -- how many threads a rank has, and on which cores they run (docs/cores.md).
 *
 * Roles of a run take turns, so the ranks of one role have all cores of their host while they work; a role's ranks there share
 * them evenly, by NUMA nodes: each rank has the nodes of its share, or one node together with others. A rank has as many threads as
 * cores of its share, no more than its part of the CPU time that the cgroup gives.
 *
 * Where there is more than one node, threads are bound to the nodes of their rank, not to single cores: what a rank allocates
 * and first writes lies on its node, and the kernel still moves threads away from cores that other programs use. A rank with
 * several nodes has its memory spread over them page by page. With one node nothing is bound. A caller overrides it:
 *
 *     OMP_NUM_THREADS=N              threads of a rank, whatever the topology
 *     CROLL_BIND=none|nodes|cores    nodes: as above; cores: each rank to cores of its own, on a machine that nothing else uses
 *     OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY    OpenMP binds the threads, croll does not
 *
 * in the environment or in system_envs. Results do not depend on any of it. cr_cores_share is a pure function.
 */
#ifndef CR_CORES_H
#define CR_CORES_H

#include "launch/cores/topology.h"

typedef enum cr_bind { CR_BIND_NODES, CR_BIND_NONE, CR_BIND_CORES, CR_BIND_BY_OPENMP } cr_bind;

typedef struct cr_cores_wish {
    int num_threads; /* 0: by the topology */
    cr_bind bind;
} cr_cores_wish;

typedef struct cr_share {
    int num_threads;
    int first_node, num_nodes; /* k of cr_topology_node */
    int num_sharers;           /* ranks that have its first node, this one among them */
    int first_core, num_cores; /* what its threads are bound to: core[first_core ..] */
    bool is_bound, is_interleaved;
    char why[168];
} cr_share;

/* Of system_envs (NAME=VALUE ..; NULL: none) or else the environment. CR_EUSAGE: OMP_NUM_THREADS or CROLL_BIND has another value. */
CR_MUST cr_status cr_cores_wish_read(char *const *envs, cr_cores_wish *out, cr_err *err);
/* The shares of the num ranks that a role has on a host: out [num]. */
void cr_cores_share(const cr_topology *t, const cr_cores_wish *wish, int num, cr_share *out);
/* The calling thread, and threads that it starts from now on, to the cores and memory of the share. CR_EIO: the kernel refuses. */
CR_MUST cr_status cr_cores_bind(const cr_topology *t, const cr_share *share, cr_err *err);
/* For rank `index` of those num, before it opens its device: binds it, and says its threads. A refusal of the kernel is a
 * warning. CR_EUSAGE, CR_EIO: as above. */
CR_MUST cr_status cr_cores_take(char *const *envs, int index, int num, int *num_threads,
                                cr_err *err);

/* A line for each run of ranks whose shares are alike: name, ranks, threads, cores, memory, reason; num 0: the titles. */
void cr_cores_row(const cr_topology *t, const cr_cores_wish *wish, const char *name, int num,
                  cr_buf *out);
/* The same as JSON objects {"role":"actor_train","ranks":"0-7","threads":16,"cores":"nodes 0-7, 1 rank each",..}, with commas between. */
void cr_cores_json(const cr_topology *t, const cr_cores_wish *wish, const char *name, int num,
                   cr_buf *out);

#endif
