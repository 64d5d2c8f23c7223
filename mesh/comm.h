/* comm.h -- inside the room: groups, their control plane, and transports.
 *
 * A transport is a constant table of functions, `cri_comm`; only group.c, which chooses it, asks which one it is:
 *     cri_comm_self    one rank
 *     cri_comm_meta    a rank of a world that is only counted
 *     cri_comm_shared  all ranks on one host: flags and data in MPI-3 shared windows
 *     cri_comm_hosts   ranks of several hosts: shared memory inside, MPI messages between
 *     cri_comm_mpi     the same where every rank is on a host of its own
 * A group on a GPU, whose memory the host cannot touch, has two: one of these as `base`, for the control plane and for
 * host memory, and for device memory (collectives.h: cr_mem) one of
 *     cri_comm_device  one rank
 *     cri_comm_nccl    NCCL
 *     cri_comm_ipc     ranks that share a GPU, which NCCL refuses: transfers by CUDA IPC on a GPU, by NCCL between GPUs, the rest as staged
 *     cri_comm_staged  through host memory and the base
 * which have only the functions from all_reduce on, less those of host memory. Elsewhere comm == base.
 *
 * Control plane (control.c): each call of a group has the next sequence number. A rank POSTS its entry (number,
 * kind, name, bytes), which returns at once; the call is COMPLETE when every rank has posted that number and all
 * entries agree. Each wait has the world's deadline. Data plane: the table. What a rank has written before it
 * posts is readable by the ranks that share its memory once the call is complete; messages start after it.
 *
 * Streams (collectives.h): a base moves data on the host when the stream has run what was queued. NCCL moves it on the
 * stream, and the host waits until it has moved, since only a host's wait has a deadline and sees that a rank failed
 * (comm_nccl.c). What was published before compute was queued still moves under that compute.
 *
 * Sums, of n parts in group rank order: of the first h, plus that of the other n - h, where h is the largest power of two
 * below n (pairwise summation; Higham, "The accuracy of floating point summation", 1993). So ranks k 2^i to (k + 1) 2^i - 1
 * are a subtree, and when they share a host one sum of theirs can stand for them: one host or several, windows or messages
 * give the same bits. In the type of the call, by cri_sum, the loop of control.c, or cr_sum_parts on a device. A transport with
 * another order says so in `sum_order` (tests/mesh/comm.c).
 */
#ifndef CR_COMM_H
#define CR_COMM_H

#include "mesh/gpu/buffers.h"

enum {
    CRI_STAGE_BYTES = 1 << 20
}; /* a round of a small collective: of one rank on one host, of all ranks between hosts */

typedef struct cri_entry {
    uint32_t sequence, coll;
    uint64_t num_bytes;
    uint32_t is_equal; /* num_bytes must be the same everywhere */
    uint32_t slot;     /* of a big buffer; must be the same everywhere */
    char name[CRI_NAME_BYTES];
} cri_entry;

/* Data below is an address of the host; for the transport of device memory, of the device. */
typedef struct cri_call { /* one small collective, from its check to its record */
    cr_group *group;
    cr_coll coll;
    const char *name;
    uint64_t event;
    uint32_t sequence; /* of its last round, not of a window that it makes; 0: it had none */
} cri_call;

typedef struct cri_vector { /* reduced in place */
    cr_op op;
    bool is_double;
    char *data;
    size_t num, elem_bytes;
} cri_vector;

typedef struct cri_exchange { /* all-to-all; offsets are sums of the bytes before */
    const char *send;
    char *recv;
    const size_t *send_bytes, *recv_bytes;
    size_t *send_offsets, *recv_offsets; /* [num_ranks + 1] */
} cri_exchange;

typedef struct cri_pieces { /* a transfer; peers are ranks of the group */
    const char *send;
    char *recv;
    const cr_piece *sends, *recvs;
    size_t num_sends, num_recvs;
    cr_device *dev; /* whose memory it is; NULL: of the host */
} cri_pieces;

typedef struct cri_comm {
    const char *name;
    enum cri_sum_order { CRI_SUM_BY_TREE } sum_order;
    uint32_t max_posted; /* calls that may be posted and not complete */
    /* Collective over the group, under the guard. A failed open is followed by close. */
    cr_status (*open)(cr_group *group, cr_err *err);
    void (*close)(cr_group *group);
    cr_status (*post)(cr_group *group, const cri_entry *entry, cr_err *err); /* control plane */
    cr_status (*complete)(cr_group *group, uint32_t sequence, cr_err *err);  /* only this waits */
    bool (*is_done)(const cr_group *group, uint32_t sequence);
    /* Signals ranks that do not see this one's board. */
    void (*abort)(cr_group *group, const cr_err *failure);
    /* Small collectives: each does its own rounds of cri_call_round. */
    cr_status (*all_reduce)(cri_call *call, const cri_vector *v, cr_err *err);
    cr_status (*broadcast)(cri_call *call, int root, char *data, size_t num_bytes, cr_err *err);
    cr_status (*all_gather)(cri_call *call, const char *data, size_t num_bytes, cr_buf *out,
                            size_t *offsets, cr_err *err);
    cr_status (*all_to_all)(cri_call *call, const cri_exchange *x, cr_err *err);
    cr_status (*transfer)(cri_call *call, const cri_pieces *x, cr_err *err);
    /* Big buffers. The slot's state is checked; posted before publish (gather: before begin), complete before finish. */
    cr_status (*gather_open)(cr_gather *gather, cr_err *err);
    void (*gather_close)(cr_gather *gather);
    bool (*gather_is_free)(const cr_gather *gather, int slot);
    cr_status (*gather_begin)(cr_gather *gather, int slot, cr_err *err);
    cr_status (*gather_publish)(cr_gather *gather, int slot, cr_err *err);
    cr_status (*gather_wait)(cr_gather *gather, int slot, cr_err *err);
    void (*gather_release)(cr_gather *gather, int slot);
    cr_status (*reduce_open)(cr_reduce *reduce, cr_err *err);
    void (*reduce_close)(cr_reduce *reduce);
    /* *at: element of `view` where this rank's buffer begins */
    cr_status (*reduce_begin)(cr_reduce *reduce, int slot, size_t *at, cr_err *err);
    cr_status (*reduce_fetch)(cr_reduce *reduce, int slot,
                              cr_err *err); /* before the post; or NULL */
    cr_status (*reduce_publish)(cr_reduce *reduce, int slot, cr_err *err);
    bool (*reduce_is_ready)(const cr_reduce *reduce, int slot);
    cr_status (*reduce_finish)(cr_reduce *reduce, int slot, float *shard, bool is_added,
                               cr_err *err);
} cri_comm;

extern const cri_comm cri_comm_self, cri_comm_meta, cri_comm_shared, cri_comm_mpi, cri_comm_hosts,
    cri_comm_device, cri_comm_nccl, cri_comm_staged;

/* comm_nccl.c: how memory of a GPU moves in a group of several ranks. Collective; the base is open. */
CR_MUST cr_status cri_choose_nccl(cr_group *group, const cri_comm **out, cr_err *err);

struct cr_group {
    cr_world *world;
    cr_device *dev; /* borrowed; NULL: host memory only */
    char name[CRI_GROUP_BYTES];
    uint32_t tag; /* of name and members */
    int rank, num_ranks;
    int *world_ranks;
    const cri_comm *base; /* control plane and host memory */
    const cri_comm *comm; /* device memory; NULL: not chosen yet */
    struct cri_nccl *nccl;
    cr_group *next;               /* in the world's list */
    const void **parts;           /* [num_ranks] for cri_sum */
    uint8_t *merges;              /* [num_ranks] the tree of all ranks (cri_tree) */
    uint32_t sequence, completed; /* of the last call posted; all ranks agreed up to here */
    cri_entry *last;           /* [num_ranks] last that came by message from each; NULL: none do */
    MPI_Comm mpi;              /* this and the next are of the transport */
    struct cri_host *host;     /* the ranks of this host (host.h) */
    struct cri_rounds *rounds; /* entries by messages (rounds.h) */
    struct cri_hosts *hosts;   /* hosts/between.h */
};

/* Device memory is not the host's: data are addresses of the device. */
static inline bool cri_is_on_gpu(const cr_group *group)
{
    return group->comm != group->base;
}

/* comm_local.c: of transports with nothing to open, and of one rank, which takes its rounds alone. */
CR_MUST cr_status cri_open_none(cr_group *group, cr_err *err);
void cri_close_none(cr_group *group);
CR_MUST cr_status cri_self_all_reduce(cri_call *call, const cri_vector *v, cr_err *err);
/* Its round, and CR_EARG unless it sends itself what it expects; the caller copies. */
CR_MUST cr_status cri_self_all_to_all_begin(cri_call *call, const cri_exchange *x, cr_err *err);

/* transfer.c: one round, in which the ranks compare their sizes: CR_EPEER on all of them if two differ. Own pieces are
 * copied. sent_bytes[num_ranks][num_ranks]: from each rank to each; or NULL. */
CR_MUST cr_status cri_transfer_begin(cri_call *call, const cri_pieces *x, size_t *sent_bytes,
                                     cr_err *err);

/* ---- control.c ---- */

/* The MPI communicator of the group's ranks. Close accepts a group without one. */
CR_MUST cr_status cri_open_mpi(cr_group *group, cr_err *err);
void cri_close_mpi(cr_group *group);

CR_MUST cr_status cri_post(cr_group *group, cr_coll coll, const char *name, size_t num_bytes,
                           bool is_equal, int slot, uint32_t *sequence, cr_err *err);
CR_MUST cr_status cri_complete(cr_group *group, uint32_t sequence, uint64_t event, cr_err *err);
/* Post and complete one round of a small collective. */
CR_MUST cr_status cri_call_round(cri_call *call, size_t num_bytes, bool is_equal, cr_err *err);

/* CR_EDIVERGED, with both ranks and both calls, unless the entries agree. */
CR_MUST cr_status cri_compare(cr_group *group, const cri_entry *mine, const cri_entry *theirs,
                              int rank, cr_err *err);
void cri_entry_text(const cr_group *group, const cri_entry *e, char *text, size_t capacity_bytes);
/* "rank 3 (actor_infer, ..), which entered all_gather x ..": the last known call of world_rank. */
void cri_describe(const cr_world *world, const cr_group *group, int world_rank, char *text,
                  size_t capacity_bytes);
/* Records a failure here and on this rank's board. */
cr_status cri_fail_group(cr_group *group, cr_status status, const char *message, cr_err *err);
/* is_missing[r]: rank r of the group has not come to `what`. CR_ETIMEOUT naming them. */
cr_status cri_fail_missing(cr_group *group, const char *what, const bool *is_missing,
                           double waited_s, cr_err *err);
/* CR_EPEER if a missing rank has said on its board that it failed. */
CR_MUST cr_status cri_check_failed(cr_group *group, const char *what, const bool *is_missing,
                                   cr_err *err);
/* Of this rank, when the failure of another one ends its wait. */
cr_status cri_status_of_failure(uint32_t status);
/* Both, for one rank; never CR_OK. */
cr_status cri_fail_late(cr_group *group, const char *what, int rank, cr_err *err);
/* out[num] = the reduction of parts[num_parts] along the tree, with type and operation of v. out may be one of the parts. */
void cri_combine(const cri_vector *v, const void *const *parts, const uint8_t *merges,
                 int num_parts, void *out, size_t num);

#endif
