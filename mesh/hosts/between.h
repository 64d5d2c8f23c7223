/* between.h -- inside the room: data between the hosts of a group. comm_hosts.c has the transport, with big buffers; small.c
 * its small collectives; between.c what both are made of:
 *     cri_parts   each rank has a part; all of them come to one buffer a host, each by one message a host
 *     cri_sums    each rank has a vector; rank q sums slice q of all, from sums of the other hosts' leaves (layout.h)
 * A step that receives comes before the one that sends, on every rank, so that no rank waits for a buffer.
 */
#ifndef CR_MESH_BETWEEN_H
#define CR_MESH_BETWEEN_H

#include "mesh/host.h"
#include "mesh/hosts/layout.h"
#include "mesh/rounds.h"

/* Slots of the host's first window: two of the ranks' vectors, two of a buffer for all. */
enum { CRI_OWN_SLOT, CRI_WHOLE_SLOT = 2, CRI_SMALL_SLOTS = 4 };

typedef struct cri_hosts { /* of a group */
    cri_layout *layout;
    uint8_t *of_leaves;    /* [leaves] the tree over them (cri_tree) */
    uint8_t *merges;       /* [num_ranks] scratch: of one leaf */
    size_t *offset;        /* [num_ranks + 1] scratch of small collectives */
    MPI_Request *requests; /* [2 * num_ranks] of small collectives */
    char *sums, *came;     /* of all-reduce: to other hosts, from all; made when first used */
    size_t sums_bytes, came_bytes;
    uint32_t num_uses; /* of slots by small collectives */
} cri_hosts;

typedef struct cri_exchanged { /* messages of one step */
    cr_group *group;
    cr_coll coll;
    const char *name;
    uint64_t event;
    uint32_t sequence;
    MPI_Request *requests; /* [2 * num_ranks] */
    int num_requests;
} cri_exchanged;

CR_MUST cr_status cri_wait_exchanged(cri_exchanged *x, cr_err *err);

/* ---- parts ----
 * receive -> (write own part) -> send -> wait -> (read all) -> cri_window_end. The slot has begun before. */

typedef struct cri_parts {
    cri_exchanged *x;
    cri_window *window;
    int slot;
    char *data;           /* of all parts, one after the other */
    const size_t *offset; /* [num_ranks + 1]; NULL: part_bytes each */
    size_t part_bytes;
    bool is_short; /* first ranks of hosts exchange what all ranks there have */
} cri_parts;

/* Every rank of this host has begun the slot: what others send may come. */
CR_MUST cr_status cri_parts_receive(const cri_parts *p, cr_err *err);
CR_MUST cr_status cri_parts_send(const cri_parts *p, cr_err *err);
CR_MUST cr_status cri_parts_wait(const cri_parts *p, cr_err *err);

/* ---- sums ----
 * receive -> (the vectors of this host's ranks are complete) -> send -> cri_wait_exchanged -> combine. */

typedef struct cri_sums {
    cri_exchanged *x;
    cri_vector v;              /* type and operation; data and num are not read */
    bool is_bf16;              /* each contribution is rounded to bfloat16 */
    size_t each, num;          /* elements: slice q begins at q * each; of all slices */
    const char *const *vector; /* [ranks of this host] */
    char *sums, *came;         /* as many bytes as cri_sums_room says */
} cri_sums;

/* Slices of at most `each` elements of elem_bytes. */
void cri_sums_room(const cr_group *group, size_t each, size_t elem_bytes, size_t *sums_bytes,
                   size_t *came_bytes);
CR_MUST cr_status cri_sums_receive(const cri_sums *s, cr_err *err);
CR_MUST cr_status cri_sums_send(const cri_sums *s, cr_err *err);
/* out (=, += with is_added) the sum of this rank's slice. */
void cri_sums_combine(const cri_sums *s, void *out, bool is_added);

/* ---- small.c ---- */

CR_MUST cr_status cri_hosts_all_reduce(cri_call *call, const cri_vector *v, cr_err *err);
CR_MUST cr_status cri_hosts_broadcast(cri_call *call, int root, char *data, size_t num_bytes,
                                      cr_err *err);
CR_MUST cr_status cri_hosts_all_gather(cri_call *call, const char *data, size_t num_bytes,
                                       cr_buf *out, size_t *offsets, cr_err *err);
CR_MUST cr_status cri_hosts_all_to_all(cri_call *call, const cri_exchange *x, cr_err *err);
CR_MUST cr_status cri_hosts_transfer(cri_call *call, const cri_pieces *x, cr_err *err);

#endif
