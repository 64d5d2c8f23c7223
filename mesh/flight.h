/* flight.h -- the flight recorder: the last collectives and phases of this rank, and counters.
 *
 * A ring of fixed size in memory, one event a collective (phases of cr_world_set_phase too). Once
 * cr_flight_open gave it a file the ring lives in that file (a shared mapping), so it is there
 * after any kind of death, kill -9 included. Local; the world's thread calls.
 */
#ifndef CR_FLIGHT_H
#define CR_FLIGHT_H

#include "mesh/mesh.h"

/* Name in messages and metrics. */
#define CR_COLLS(X)                     \
    X(BARRIER, "barrier")               \
    X(ALL_GATHER, "all_gather")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_REDUCE, "all_reduce")         \
    X(BROADCAST, "broadcast")           \
    X(GATHER_BYTES, "gather_bytes")     \
    X(ALL_TO_ALL, "all_to_all")         \
    X(AGREE, "agree")                   \
    X(TRANSFER, "transfer")             \
    X(PHASE, "phase")

typedef enum cr_coll {
#define CR_COLL_ENUM(id, text) CR_COLL_##id,
    CR_COLLS(CR_COLL_ENUM)
#undef CR_COLL_ENUM
        CR_NUM_COLLS
} cr_coll;
const char *cr_coll_name(cr_coll coll);

/* num_bytes is the whole payload: the gathered buffer, the buffer before its reduction (in the
 * dtype it is reduced from), this rank's sent bytes for the others. */
typedef struct cr_flight_event {
    uint32_t sequence; /* in its group */
    uint32_t coll;     /* cr_coll */
    uint64_t num_bytes;
    double begin_s, end_s; /* monotonic; end_s 0: not ended */
    double waited_s;       /* of it, asleep for other ranks */
    char group[24], name[64];
} cr_flight_event;

typedef struct cr_flight_count {
    uint64_t num, num_bytes;
    double waited_s, total_s;
} cr_flight_count;

/* From now on the ring is the file at path (made or replaced). */
CR_MUST cr_status cr_flight_open(cr_world *world, const char *path, cr_err *err);
/* Sums since the world was opened, for one kind. */
cr_flight_count cr_flight_get_count(const cr_world *world, cr_coll coll);

/* Read a ring's file, checked in full; events in order of begin. */
typedef struct cr_flight_log {
    int rank;
    char role[24];
    double wall_offset_s;   /* seconds since 1970 = monotonic + this */
    cr_flight_event *event; /* owned */
    size_t num_events;
} cr_flight_log;
CR_MUST cr_status cr_flight_read(const char *path, cr_flight_log *out, cr_err *err);
void cr_flight_log_free(cr_flight_log *log);

#endif
