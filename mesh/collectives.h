/* collectives.h -- what the ranks of a group do together (see mesh.h for groups and failures).
 *
 * Every function here is collective over the group unless it says "local". `name` is the unit or
 * the purpose ("model.layers.3"); the kind is added to it in errors ("all_gather model.layers.3").
 * Names are copied; those over 63 bytes are cut. On a group of one rank nothing is moved; on a meta
 * world nothing is moved either, sums are left as they are, and counters go up.
 *
 * Big buffers are owned here, so that inside a host nothing is copied twice:
 *     cr_gather   all-gather that lands in its final place. The ranks of a host share ONE buffer:
 *                 each writes its part, all read the whole.
 *     cr_reduce   reduce-scatter of full-size float32 buffers.
 * Both have slots that are reused; begin waits until every rank has finished with the slot's previous use.
 * Prefetching one unit is: publish slot B before computing on slot A. Ordered and non-blocking steps are
 * separate calls: announce and publish have to come in the same order on every rank and return at once;
 * cr_gather_is_free and cr_reduce_is_ready say, without waiting, whether begin and finish would wait.
 *
 * Streams (kernels/memory.h) of the group's device: a cr_gather works on CR_STREAM_GATHER, a cr_reduce on
 * CR_STREAM_REDUCE, all else on CR_STREAM_COMPUTE. So the own part is written on the gather stream; what reads the
 * whole on another stream waits for an event recorded there after cr_gather_publish, and is over on the gather stream
 * (an event, too) before cr_gather_release. Likewise a reduction: its buffer is complete on the reduce stream before
 * cr_reduce_publish, and shard (and the buffer of the slot's next use) is for work after an event recorded after finish.
 *
 * Errors: CR_EARG for calls in a wrong order and sizes that do not fit (nothing has been sent); CR_EDIVERGED,
 * CR_ETIMEOUT and CR_EPEER as in mesh.h (the group is broken). Sizes are in bytes or elements as named.
 *
 * Exchange buffers and what they are filled from are device memory (cr_mem, kernels/memory.h); `void *`
 * and number types are host memory.
 */
#ifndef CR_COLLECTIVES_H
#define CR_COLLECTIVES_H

#include "kernels/memory.h"
#include "mesh/mesh.h"

/* ---- all-gather in place ----
 * announce -> begin -> (write own part) -> publish -> wait -> (read all) -> release. */

typedef struct cr_gather cr_gather;

/* capacity_bytes: largest gathered size (part_bytes * ranks) of any use. */
CR_MUST cr_status cr_gather_create(cr_group *group, int num_slots, size_t capacity_bytes,
                                   cr_gather **out, cr_err *err);
void cr_gather_destroy(cr_gather *gather); /* accepts NULL */
/* Its place in the order of the group's collectives; returns at once. part_bytes: of this rank, the same
 * number on every rank. */
CR_MUST cr_status cr_gather_announce(cr_gather *gather, int slot, const char *name,
                                     size_t part_bytes, cr_err *err);
/* Local: all ranks have released the slot's last use, so that begin will not wait. Always true for memory of a GPU: begin and
 * publish then have to follow before the group's next collective. */
bool cr_gather_is_free(const cr_gather *gather, int slot);
/* Waits until the slot is free. *own_part: where this rank writes its part before publish. */
CR_MUST cr_status cr_gather_begin(cr_gather *gather, int slot, cr_mem **own_part, cr_err *err);
CR_MUST cr_status cr_gather_publish(cr_gather *gather, int slot, cr_err *err); /* returns at once */
/* *whole: part_bytes * ranks bytes, parts in rank order; read-only, valid until release. */
CR_MUST cr_status cr_gather_wait(cr_gather *gather, int slot, const cr_mem **whole, cr_err *err);
/* Local: this rank has stopped reading. */
CR_MUST cr_status cr_gather_release(cr_gather *gather, int slot, cr_err *err);

/* ---- reduce-scatter ----
 * begin -> (write or accumulate num_ranks * part_elems floats) -> publish -> finish. */

typedef enum cr_reduce_dtype {
    CR_REDUCE_F32,
    CR_REDUCE_BF16 /* each contribution is rounded to bfloat16, the sum is taken in float32 */
} cr_reduce_dtype;
typedef enum cr_reduce_mode { CR_REDUCE_SET, CR_REDUCE_ADD } cr_reduce_mode;

typedef struct cr_reduce cr_reduce;

/* capacity_elems: largest number of floats (part_elems * ranks) of any use. */
CR_MUST cr_status cr_reduce_create(cr_group *group, int num_slots, size_t capacity_elems,
                                   cr_reduce **out, cr_err *err);
void cr_reduce_destroy(cr_reduce *reduce); /* accepts NULL */
/* Waits until all ranks have ended the slot's last use; *data: this rank's buffer, its old content
 * undefined (the caller zeroes what it accumulates into). Local. */
CR_MUST cr_status cr_reduce_begin(cr_reduce *reduce, int slot, cr_mem **data, cr_err *err);
CR_MUST cr_status cr_reduce_publish(cr_reduce *reduce, int slot, const char *name,
                                    size_t part_elems, cr_reduce_dtype dtype, cr_err *err);
/* Local: all ranks have published, so that finish will not wait. Always false in a group of several hosts. */
bool cr_reduce_is_ready(const cr_reduce *reduce, int slot);
/* shard[part_elems] (=, +=) sum over ranks of their elements [rank * part_elems, +part_elems). */
CR_MUST cr_status cr_reduce_finish(cr_reduce *reduce, int slot, cr_mem *shard, cr_reduce_mode mode,
                                   cr_err *err);

/* ---- small and occasional ---- */

typedef enum cr_op { CR_OP_SUM, CR_OP_MAX, CR_OP_MIN } cr_op;

CR_MUST cr_status cr_barrier(cr_group *group, const char *name, cr_err *err);
/* In place. Sums (of floats: the only operation) are taken in the type given, pairwise in the order of the ranks (comm.h). NaN in any rank gives NaN. */
CR_MUST cr_status cr_all_reduce_f64(cr_group *group, const char *name, cr_op op, double *x,
                                    size_t num, cr_err *err);
CR_MUST cr_status cr_all_reduce_f32(cr_group *group, const char *name, cr_mem *x, size_t num,
                                    cr_err *err);
CR_MUST cr_status cr_broadcast(cr_group *group, const char *name, int root, void *data,
                               size_t num_bytes, cr_err *err);
/* Each rank gives any number of bytes. *out gets all of them, in rank order, and
 * offsets[ranks + 1] where each rank's begin. out is emptied first. */
CR_MUST cr_status cr_all_gather_bytes(cr_group *group, const char *name, const void *data,
                                      size_t num_bytes, cr_buf *out, size_t *offsets, cr_err *err);
/* send holds send_bytes[0] bytes for rank 0, then send_bytes[1] for rank 1, ..; recv likewise.
 * CR_EPEER if a peer sends another number than recv_bytes says. */
CR_MUST cr_status cr_all_to_all(cr_group *group, const char *name, const cr_mem *send,
                                const size_t *send_bytes, cr_mem *recv, const size_t *recv_bytes,
                                cr_err *err);
/* The same between host arrays of num int64 for each rank. */
CR_MUST cr_status cr_all_to_all_i64(cr_group *group, const char *name, const int64_t *send,
                                    int64_t *recv, size_t num, cr_err *err);
/* Do fallible local work, then agree: a rank whose err holds a failure keeps it, the others get
 * CR_EPEER with the lowest failing rank and its message. CR_OK if no rank failed. */
CR_MUST cr_status cr_agree(cr_group *group, const char *name, cr_err *err);

/* ---- pieces from any rank to any other (train shards to infer shards) ---- */

typedef struct cr_piece {
    int peer;            /* rank of the group; this rank itself is allowed (a copy) */
    size_t offset_bytes; /* into the send or receive buffer */
    size_t num_bytes;
} cr_piece;

/* Between two ranks the pieces are in the same order and of the same sizes on both sides, else every rank gets
 * CR_EPEER; empty ones do not count. send and recv do not overlap, but where this rank's own pieces are. */
CR_MUST cr_status cr_transfer(cr_group *group, const char *name, const cr_mem *send,
                              const cr_piece *sends, size_t num_sends, cr_mem *recv,
                              const cr_piece *recvs, size_t num_recvs, cr_err *err);

#endif
