/* layout.h -- inside the room: how the ranks of a group lie on hosts, and the tree of sums cut along them. Transports
 * (comm_hosts.c) and formulas (links.h) take both from here.
 */
#ifndef CR_MESH_LAYOUT_H
#define CR_MESH_LAYOUT_H

#include "mesh/comm.h"

typedef struct cri_layout {
    int num, num_hosts, num_leaves;
    int *host_of;    /* [num] places of hosts, in the order of their first ranks */
    int *place;      /* [num] among the ranks of its host */
    int *on_host;    /* [num_hosts] ranks there */
    int *leader;     /* [num_hosts] the first of them */
    int *leaves_of;  /* [num_hosts] leaves there */
    int *leaf;       /* [num] first rank of its leaf */
    int *leaf_place; /* [num] of a leaf's first rank: of all leaves, those of a host together */
    int max_on_host;
} cri_layout;

/* host_of[num]: any number a host; copied. */
cri_layout *cri_layout_create(const int *host_of, int num);
void cri_layout_destroy(cri_layout *layout); /* accepts NULL */
/* The place, among the ranks of a host, of the one that receives part p for it and sums slice p there. */
int cri_layout_receiver(const cri_layout *l, int host, int p);
/* Does `rank`, of another host, receive part p for its host? */
bool cri_layout_receives(const cri_layout *l, int rank, int p);

/* A vector of all-reduce is exchanged whole below this many bytes, all leaves together: one step instead of two. */
enum { CRI_SHORT_BYTES = 1 << 18 };

/* Long ones go in chunks of CRI_STAGE_BYTES, of which rank q sums slice q, also inside a host. Slices begin on a cache line. */
enum { CRI_SLICE_ELEMS = 16 };
size_t cri_slice_elems(size_t num, int num_ranks);    /* of each, but the last ones */
size_t cri_slice_num(size_t each, size_t num, int q); /* elements of slice q, of num in all */

/* Gathered bytes: of each rank in one round. */
size_t cri_piece_bytes(int num_ranks);

#endif
