/* nccl.h -- what comm_nccl.c and comm_ipc.c share: a communicator of NCCL over the GPUs of a group, its operations and the host's wait for
 * them. Where ranks share a GPU, the first of them is the GPU's member of the communicator and moves what is the others'. */
#ifndef CR_MESH_NCCL_H
#define CR_MESH_NCCL_H

#include "kernels/gpu.h"
#include "kernels/kernels.h"
#include "mesh/comm.h"

#include <nccl.h>

struct cri_nccl {
    ncclUniqueId id;
    int *member; /* [num_ranks] of the communicator: that of the rank's GPU */
    int *first;  /* [num_ranks] the rank that is it */
    int num_members;
    ncclComm_t comm;  /* NULL: not open, aborted, or this rank is no member */
    bool is_ended;    /* by a failure */
    bool has_loans;   /* comm_ipc.c: ranks of one GPU open each other's memory */
    cr_event *moved;  /* of calls that wait before they return */
    bool *is_missing; /* [num_ranks] all but this rank */
    cr_mem *rooms; /* of all-reduces: two chunks; made by the first one, and anew by a larger one */
    size_t room_elems;
    cr_event *came[2], *summed[2]; /* of the chunk in that room */
};

static inline bool cri_is_member(const cr_group *g)
{
    return g->nccl->first[g->rank] == g->rank;
}

CR_MUST cr_status cri_nccl_open(cr_group *g, cr_err *err);
void cri_nccl_abort(cr_group *g, const cr_err *failure);
void cri_nccl_close(cr_group *g);

/* Operations that are queued as one, on members. A message of no bytes is left out, but those of a rank to itself, of which it has at
 * least one each way. peer: a member. */
CR_MUST cr_status cri_nccl_begin(cr_group *g, const char *what, cr_err *err);
void cri_nccl_send(cr_group *g, const void *data, size_t num_bytes, int peer, cr_stream stream,
                   ncclResult_t *code);
void cri_nccl_receive(cr_group *g, void *data, size_t num_bytes, int peer, cr_stream stream,
                      ncclResult_t *code);
CR_MUST cr_status cri_nccl_end(cr_group *g, const char *what, ncclResult_t code, cr_err *err);
/* The host waits until all that is queued on compute has run: with the deadline, and as long as no rank fails. */
CR_MUST cr_status cri_nccl_wait(const cri_call *call, cr_err *err);

/* comm_ipc.c: that of a group whose ranks share GPUs. */
const cri_comm *cri_comm_ipc(void);

#endif
