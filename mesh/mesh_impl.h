/* mesh_impl.h -- inside the room: the world, the control board of a host, flags, pages, sums and the
 * recorder's hooks. comm.h has groups and transports.
 */
#ifndef CR_MESH_IMPL_H
#define CR_MESH_IMPL_H

#include "mesh/flight.h"
#include "mesh/mesh.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    CRI_NAME_BYTES = 64,
    CRI_GROUP_BYTES = 24,
    CRI_FAILURE_BYTES = 240,
    CRI_HOST_BYTES = 64,
    CRI_RANK_BYTES = 96
};

/* ---- memory.c: a counter in shared memory that other processes wait for, on its own cache line; pages ---- */

typedef struct cri_flag {
    _Atomic uint32_t value, num_waiters;
    char pad[56];
} cri_flag;

bool cri_flag_reached(const cri_flag *flag, uint32_t target);
void cri_flag_set(cri_flag *flag, uint32_t value);
/* Spin, yield, then sleep until the flag has reached target (true) or the clock has reached until_s. */
bool cri_flag_wait(cri_flag *flag, uint32_t target, double until_s, bool should_spin);

/* Zero pages, of a kind that a device may give a second address (cr_device_share); meta: not readable. */
void *cri_pages_map(size_t num_bytes, bool is_meta);
void cri_pages_unmap(void *ptr, size_t num_bytes); /* accepts NULL */

/* ---- comm_local.c: buffers on private pages; nothing but gather_wait writes into those of a gather ---- */

struct cr_gather;
bool cri_pages_gather_is_free(const struct cr_gather *gather, int slot); /* always */
CR_MUST cr_status cri_pages_gather_step(struct cr_gather *gather, int slot,
                                        cr_err *err); /* does nothing */
void cri_pages_gather_release(struct cr_gather *gather, int slot);
/* Reductions likewise: the buffer of a slot; all work is left to reduce_finish. */
struct cr_reduce;
CR_MUST cr_status cri_pages_reduce_begin(struct cr_reduce *reduce, int slot, size_t *at,
                                         cr_err *err);
CR_MUST cr_status cri_pages_reduce_publish(struct cr_reduce *reduce, int slot,
                                           cr_err *err);                  /* nothing */
bool cri_pages_reduce_is_ready(const struct cr_reduce *reduce, int slot); /* never */

/* ---- sums.c ---- */

/* The tree of a sum of num parts (comm.h): the first cri_half(num) parts, the rest. The largest power of two below num. */
int cri_half(int num);
/* The same tree as a list: the parts with is_there[i] (NULL: all) one after the other, and after the k-th of them merges[k]
 * times the last two sums are added. merges[num]. A part that is not there is left out: what stands for a whole
 * subtree is the part of its first rank alone. Returns how many there are. */
int cri_tree(int num, const bool *is_there, uint8_t *merges);

typedef enum cri_sum_kind {
    CRI_SUM_F32,
    CRI_SUM_ROUNDED, /* of float32, each rounded to bfloat16 */
    CRI_SUM_BF16
} cri_sum_kind;
/* out[num] (=, += with is_added) the sum of the parts along the tree, in float32. out may be one of the parts. */
void cri_sum(cri_sum_kind kind, float *out, const void *const *parts, const uint8_t *merges,
             int num_parts, size_t num, bool is_added);
/* To bfloat16: nearest, ties to even; NaN stays NaN. */
void cri_round_bf16(uint16_t *out, const float *x, size_t num);

/* ---- world.c ---- */

/* State of one rank, in the host's window. Written by its rank only; readers accept a torn text. */
typedef struct cri_board {
    _Atomic uint32_t has_failed; /* 0, or its cr_status */
    uint32_t sequence, coll;
    uint32_t is_inside; /* in the collective, or after it */
    double since_s;
    int32_t process;        /* 0: not known yet */
    uint64_t process_space; /* process numbers mean the same where this is equal */
    char group[CRI_GROUP_BYTES], name[CRI_NAME_BYTES], role[24], phase[48],
        failure[CRI_FAILURE_BYTES];
} cri_board;

typedef struct cri_watchdog cri_watchdog;

struct cr_world {
    cr_world_kind kind;
    int rank, num_ranks;
    double deadline_s;
    bool is_broken;                    /* a collective failed: no clean end of MPI */
    bool should_spin;                  /* this host has a core for every rank */
    bool has_links;                    /* a group spans hosts, so MPI wants to be called */
    int *host_of;                      /* [num_ranks] lowest world rank of the same host */
    int *board_of;                     /* [num_ranks] place in that host's board */
    char (*host_name)[CRI_HOST_BYTES]; /* [num_ranks] */
    MPI_Comm comm, host_comm;
    MPI_Win board_win;
    cri_board *board;     /* [ranks of this host]; NULL: this rank is alone there */
    cri_board *own_board; /* own_board == &private_board without a window */
    cri_board private_board;
    cri_watchdog *watchdog;
    struct cri_flight *flight;
    cr_group *groups; /* all that are open: cr_world_fail signals to their ranks */
};

/* "rank 2", or "rank 2 on h2" if that is another host. text holds CRI_RANK_BYTES. */
const char *cri_rank_text(const cr_world *world, int world_rank, char *text);
/* The board of a rank of this host; NULL: of another host. */
cri_board *cri_board_of(const cr_world *world, int world_rank);
/* Has the process of that rank ended? */
bool cri_board_is_gone(const cr_world *world, const cri_board *board);
/* Blocking MPI calls run between these two: past the deadline the process logs which call did not
 * return and leaves with exit code 3. */
void cri_guard_begin(cr_world *world, const char *what);
void cri_guard_end(cr_world *world);
/* CR_OK for MPI_SUCCESS, else CR_EPEER with MPI's text. */
CR_MUST cr_status cri_mpi(cr_world *world, int code, const char *what, cr_err *err);

/* ---- flight.c: one event a collective ---- */

struct cri_flight *cri_flight_create(int rank);
void cri_flight_destroy(struct cri_flight *flight); /* accepts NULL */
/* group NULL: none */
uint64_t cri_event_begin(cr_world *world, cr_coll coll, const cr_group *group, const char *name);
/* Its last round is posted: what the record shows if the rank dies in it. */
void cri_event_round(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes);
void cri_event_posted(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes);
void cri_event_named(cr_world *world, uint64_t event, const char *name);
void cri_event_waited(cr_world *world, uint64_t event, double waited_s);
void cri_event_end(cr_world *world, uint64_t event);
/* This rank is to receive so much from other hosts. */
void cri_count_received(cr_world *world, cr_coll coll, int num_messages, size_t num_bytes);
void cri_flight_set_role(cr_world *world, const char *role);
void cri_flight_set_phase(cr_world *world, const char *phase);

#endif
