/* links.h -- what a collective moves between hosts, by formula: `croll plan` asks before a run, the recorder (flight.h)
 * counts the same in one, and tests/mesh/links.c holds them against each other. docs/hosts.md has the formulas.
 *
 * A group of n ranks lies on h hosts. Every call is one meeting: the first rank of each host exchanges an entry with the
 * first ranks of the others. Then data moves; inside a host it moves through shared memory and is not counted here.
 *     gathers     each part enters a host once: part p by rank p % m of the m ranks there
 *     reductions  a host sends sums of its own ranks, one for each LEAF: a largest part of the tree of sums (comm.h) that
 *                 lies on this host. Hosts of 2^k ranks in the group's order are one leaf each.
 * Pure functions of the group's hosts; host memory only.
 */
#ifndef CR_MESH_LINKS_H
#define CR_MESH_LINKS_H

#include "mesh/flight.h"

typedef struct cr_link_count {
    int64_t num_messages; /* entries and data */
    int64_t num_bytes;    /* of data */
} cr_link_count;

typedef struct cr_link_call {
    cr_coll coll;
    size_t num_bytes;  /* of the call, as the recorder counts them (cr_flight_event) */
    size_t elem_bytes; /* reductions: of an element (bfloat16 2, float32 4, float64 8); else 0 */
} cr_link_call;

/* What `rank` of a group receives from other hosts in one call. host_of[num_ranks]: any number a host.
 * Gathered bytes and all-to-alls: as many from every rank; a broadcast: from rank 0. Of transfers and phases: nothing. */
cr_link_count cr_link_into_rank(const int *host_of, int num_ranks, cr_link_call call, int rank);
/* All ranks of one host together. */
cr_link_count cr_link_into_host(const int *host_of, int num_ranks, cr_link_call call, int host);

#endif
