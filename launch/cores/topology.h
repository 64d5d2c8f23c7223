/* topology.h -- the cores and NUMA nodes that a process may use: of this machine, or of one that a text describes.
 *
 * hwloc, which Open MPI brings, reads the machine. Cores that the affinity of this process leaves out (taskset, a cpuset, Slurm)
 * are not there; the CPU time that its cgroup gives (docker --cpus, a limit of Kubernetes) is `quota`. Cores are counted, not
 * hardware threads: products fill a core's units by one thread. One thread; a machine with more than CPU_SETSIZE (1024)
 * hardware threads is seen up to that number.
 */
#ifndef CR_TOPOLOGY_H
#define CR_TOPOLOGY_H

#include "base/base.h"

#include <sched.h>

typedef struct cr_core {
    int number;     /* in hwloc's order over the whole machine */
    int node;       /* the operating system's number of the NUMA node whose memory is its own */
    cpu_set_t cpus; /* its hardware threads */
} cr_core;

typedef struct cr_topology {
    cr_core *core; /* [num_cores] owned; those of a node side by side */
    int num_cores, num_cpus, num_nodes;
    double quota;    /* CPUs that the cgroup gives; 0: no limit */
    bool is_machine; /* this machine, to which threads can be bound */
} cr_topology;

/* description: NULL for this machine (or the one that HWLOC_SYNTHETIC or HWLOC_XMLFILE describes); the path of an XML file that
 * `lstopo FILE.xml` wrote elsewhere; else hwloc's synthetic form, "numa:8 core:16 pu:2". CR_EUSAGE: it is none of these.
 * Owned by the caller, also after a failure. */
CR_MUST cr_status cr_topology_read(const char *description, cr_topology *out, cr_err *err);
void cr_topology_free(cr_topology *t); /* {0} is fine */
/* Cores of a NUMA node, the k-th of num_nodes: core[*first] and those after it. Returns how many. */
int cr_topology_node(const cr_topology *t, int k, int *first);
/* "128 cores (256 hardware threads), 8 NUMA nodes of 16 cores". */
void cr_topology_text(const cr_topology *t, cr_buf *out);

#endif
