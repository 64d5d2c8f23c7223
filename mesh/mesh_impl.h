/* mesh_impl.h -- inside the room: the world, the control board, groups and how ranks meet.
 *
 * Four transports of a group: SELF (one rank), META (counts only), SHARED (all ranks on one host:
 * flags and data in MPI-3 shared windows, sleeping in futexes) and MPI (non-blocking messages).
 *
 * Meeting: a collective ENTERS (publishes its entry, number `sequence`) and MEETS (waits until every
 * rank has entered that number, comparing entries on the way, in order). On SHARED the store of
 * `entered` releases the data written before it; on MPI the entries are messages and data moves by
 * its own requests after the entry.
 */
#ifndef CR_MESH_IMPL_H
#define CR_MESH_IMPL_H

#include "mesh/flight.h"
#include "mesh/mesh.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

enum { CRI_RING = 64, CRI_ROUNDS = 16, CRI_NAME_BYTES = 64, CRI_GROUP_BYTES = 24 };
enum { CRI_STAGE_BYTES = 1 << 20 }; /* one rank's area of a staging slot */

/* A counter in shared memory that other processes wait for. One cache line. */
typedef struct cri_flag {
    _Atomic uint32_t value, num_waiters;
    char pad[56];
} cri_flag;

bool cri_flag_reached(cri_flag *flag, uint32_t target);
void cri_flag_set(cri_flag *flag, uint32_t value);
/* Spin, yield, then sleep until the flag is there (true) or the clock says until_s. */
bool cri_flag_wait(cri_flag *flag, uint32_t target, double until_s, bool should_spin);

/* What a rank says before it waits. */
typedef struct cri_entry {
    uint32_t sequence, coll;
    uint64_t num_bytes;
    uint32_t is_equal; /* num_bytes must be the same everywhere */
    uint32_t slot;     /* likewise; of the window, 0 if there is none */
    char name[CRI_NAME_BYTES];
} cri_entry;

typedef struct cri_member { /* one a rank, in the group's window */
    cri_flag entered, verified;
    cri_entry ring[CRI_RING]; /* entry s at s % CRI_RING */
} cri_member;

typedef struct cri_round { /* one outstanding meeting over MPI */
    uint32_t sequence;
    bool is_open;
    cri_entry mine, *theirs;
    MPI_Request *requests; /* [2 * num_ranks]: receives, then sends */
} cri_round;

/* Who is where, in the host's window. Written by its rank only; readers accept a torn text. */
typedef struct cri_board {
    _Atomic uint32_t has_failed; /* 0, or its cr_status */
    uint32_t sequence, coll;
    uint32_t is_inside; /* in the collective, or after it */
    double since_s;
    char group[CRI_GROUP_BYTES], name[CRI_NAME_BYTES], role[24], phase[48], failure[240];
} cri_board;

typedef struct cri_watchdog cri_watchdog;

struct cr_world {
    cr_world_kind kind;
    int rank, num_ranks;
    double deadline_s;
    bool is_broken;   /* a collective failed: no clean end of MPI */
    bool should_spin; /* this host has a core for every rank */
    int *host_of;     /* [num_ranks] lowest world rank of the same host */
    int *board_of;    /* [num_ranks] place in that host's board */
    MPI_Comm comm, transfer_comm, host_comm;
    MPI_Win board_win;
    cri_board *board;     /* [ranks of this host] */
    cri_board *own_board; /* own_board == &private_board without a window */
    cri_board private_board;
    cri_watchdog *watchdog;
    struct cri_flight *flight;
};

typedef enum cri_transport { CRI_SELF, CRI_META, CRI_SHARED, CRI_MPI } cri_transport;

typedef struct cri_window cri_window;

struct cr_group {
    cr_world *world;
    char name[CRI_GROUP_BYTES];
    uint32_t tag; /* of name and members */
    int rank, num_ranks;
    int *world_ranks;
    const void **parts; /* [num_ranks] for cri_sum */
    cri_transport transport;
    uint32_t sequence; /* last one entered */
    uint32_t verified; /* all ranks agreed up to here */
    uint32_t *seen;    /* [num_ranks] agreed with that rank up to here */
    MPI_Comm comm;
    MPI_Win win;
    cri_member *members; /* SHARED: [num_ranks] */
    cri_entry *last;     /* MPI: [num_ranks] the last entry that came from each */
    cri_round *rounds;   /* MPI: [CRI_ROUNDS] */
    cri_window *stage;   /* SHARED: small collectives pass through here */
    char *stage_all;     /* MPI: [num_ranks][CRI_STAGE_BYTES] */
    uint32_t stage_uses;
};

/* Blocking MPI calls run between these two: past the deadline the process says which call did not
 * return and what the others do, and leaves with exit code 3. */
void cri_guard_begin(cr_world *world, const char *what);
void cri_guard_end(cr_world *world);
cr_status cri_mpi(cr_world *world, int code, const char *what, cr_err *err);

/* ---- group.c: entering and meeting ---- */

cr_status cri_group_open_shared(cr_group *group, cr_err *err);
cr_status cri_group_open_mpi(cr_group *group, cr_err *err);

cr_status cri_enter(cr_group *group, cr_coll coll, const char *name, size_t num_bytes,
                    bool is_equal, int slot, uint32_t *sequence, cr_err *err);
cr_status cri_meet(cr_group *group, uint32_t sequence, uint64_t event, cr_err *err);
/* Wait for a flag that rank sets. *has_come false: not until until_s, or that rank has said that it failed.
 * CR_EDIVERGED: ranks do different things, so it may never come. */
cr_status cri_flag_wait_rank(cr_group *group, int rank, cri_flag *flag, uint32_t target,
                             double until_s, bool *has_come, cr_err *err);
/* rank did not come to `what` in time: CR_ETIMEOUT, or CR_EPEER if it said that it failed. */
cr_status cri_fail_late(cr_group *group, const char *what, int rank, cr_err *err);
/* Bytes that rank published at the sequence met last. */
size_t cri_met_bytes(const cr_group *group, int rank);
/* Wait for MPI requests of the data of `what` with the deadline. */
cr_status cri_wait_requests(cr_group *group, MPI_Request *requests, int num_requests,
                            const char *what, uint64_t event, cr_err *err);
/* count and datatype for num_bytes. CR_EARG past what MPI's int can say. */
cr_status cri_mpi_count(size_t num_bytes, int *count, MPI_Datatype *type, cr_err *err);
/* "rank 3 (actor_infer, ..): in all_gather x ..": what world_rank did last. */
void cri_describe(const cr_group *group, const cr_world *world, int world_rank, char *text,
                  size_t capacity_bytes);

/* ---- window.c: shared memory with slots that are begun and ended by all ranks ---- */

struct cri_window {
    cr_group *group;
    int num_slots;
    MPI_Win win;
    char *data;        /* the ranks' common bytes */
    cri_flag *ended;   /* [num_slots][num_ranks] uses that rank has ended */
    cri_flag *written; /* [num_slots][num_ranks] uses that rank has written its part of */
    uint32_t *uses;    /* [num_slots] uses begun here */
};
cr_status cri_window_create(cr_group *group, int num_slots, size_t num_bytes, cri_window **out,
                            cr_err *err);
void cri_window_destroy(cri_window *window);
bool cri_window_is_free(const cri_window *window, int slot); /* begin would not wait */
cr_status cri_window_begin(cri_window *window, int slot, const char *name, uint64_t event,
                           cr_err *err);
void cri_window_write(cri_window *window, int slot); /* this rank's part is there */
cr_status cri_window_wait_written(cri_window *window, int slot, const char *name, uint64_t event,
                                  cr_err *err);
void cri_window_end(cri_window *window, int slot);
void *cri_map(size_t num_bytes, bool is_meta); /* private zero pages; meta: not readable */
void cri_unmap(void *ptr, size_t num_bytes);

/* ---- sums.c ---- */

typedef enum cri_sum_kind {
    CRI_SUM_F32,
    CRI_SUM_ROUNDED, /* of float32, each rounded to bfloat16 */
    CRI_SUM_BF16
} cri_sum_kind;
/* out[num] (=, += with is_added) parts[0] + parts[1] + .. in this order, in float32. */
void cri_sum(cri_sum_kind kind, float *out, const void *const *parts, int num_parts, size_t num,
             bool is_added);

/* ---- flight.c ---- */

struct cri_flight *cri_flight_create(int rank);
void cri_flight_destroy(struct cri_flight *flight);
/* group NULL: none */
uint64_t cri_event_begin(cr_world *world, cr_coll coll, const cr_group *group, const char *name);
/* Entered a round: what a death in it leaves. */
void cri_event_round(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes);
void cri_event_entered(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes);
void cri_event_named(cr_world *world, uint64_t event, const char *name);
void cri_event_waited(cr_world *world, uint64_t event, double waited_s);
void cri_event_end(cr_world *world, uint64_t event);
void cri_flight_set_role(cr_world *world, const char *role);
void cri_flight_set_phase(cr_world *world, const char *phase);

#endif
