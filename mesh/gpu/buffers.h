/* buffers.h -- inside the room: big buffers with slots, of all-gathers and reductions (collectives.h), and those in memory
 * of a GPU. Who allocates what is the transport's (comm.h).
 */
#ifndef CR_MESH_BUFFERS_H
#define CR_MESH_BUFFERS_H

#include "mesh/collectives.h"
#include "mesh/mesh_impl.h"

typedef enum cri_state { CRI_FREE, CRI_ANNOUNCED, CRI_BEGUN, CRI_PUBLISHED } cri_state;

typedef struct cri_slot { /* one use of a big buffer */
    cri_state state;
    uint32_t sequence;
    uint64_t event;
    size_t part_bytes, part_elems; /* of one rank: as it travels; of a reduction */
    cr_reduce_dtype dtype;
    MPI_Request *requests; /* of the transport; owned */
    int num_requests;
    cr_event *moved; /* comm_nccl.c: after the transfer, on the stream; owned */
    bool is_here;    /* comm_staged.c: the gathered whole is on the device */
    bool is_sent;    /* hosts/comm_hosts.c: this host's sums are on their way */
    size_t base_at;  /* comm_staged.c: this rank's buffer of the base, in elements */
    char name[CRI_NAME_BYTES];
} cri_slot;

struct cr_gather {
    cr_group *group;
    int num_slots;
    size_t slot_bytes;
    cri_slot *slots;
    char *data;   /* [num_slots][slot_bytes], of the base: as the host sees it */
    cr_mem *view; /* the same as memory of the group's device; of a GPU: a buffer there */
    struct cri_window *window; /* where data is shared */
};

struct cr_reduce {
    cr_group *group;
    int num_slots;
    size_t slot_elems; /* of one rank's buffer */
    cri_slot *slots;
    float *data;       /* [num_slots][ranks that share it][slot_elems], of the base */
    size_t data_bytes; /* set by its open */
    cr_mem *view;      /* data as memory of the group's device; of a GPU: [num_slots][slot_elems] */
    cr_mem *came;      /* of a GPU: [num_slots][slot_elems], what the others sent */
    struct cri_window *window; /* where data is shared */
    char *wire, *arrived;      /* hosts/comm_hosts.c: what is sent, what came; [num_slots] of */
    size_t wire_bytes, arrived_bytes;
};

/* comm_device.c: buffers in memory of a GPU, of which no other rank reads. */
CR_MUST cr_status cri_device_gather_open(cr_gather *gather, cr_err *err);
void cri_device_gather_close(cr_gather *gather);
CR_MUST cr_status cri_device_reduce_open(cr_reduce *reduce, cr_err *err);
CR_MUST cr_status cri_device_came_open(cr_reduce *reduce, cr_err *err); /* once */
void cri_device_reduce_close(cr_reduce *reduce);
/* A slot of the buffers. */
cr_mem *cri_device_gather_at(const cr_gather *gather, int slot);
cr_mem *cri_device_reduce_at(const cr_reduce *reduce, int slot);
cr_mem *cri_device_came_at(const cr_reduce *reduce, int slot);
/* This rank's contribution as it travels. */
CR_MUST cr_status cri_device_contribution(cr_reduce *reduce, int slot, const cr_mem **out,
                                          cr_err *err);

#endif
