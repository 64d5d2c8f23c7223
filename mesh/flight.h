/* flight.h -- the flight recorder: the last collectives and phases of this rank, and counters.
 *
 * A ring of fixed size in memory, one event a collective (phases of cr_world_set_phase too), and sums
 * over the whole life. Once cr_flight_open gave it a file both live in that file (a shared mapping),
 * so they are there after any kind of death, kill -9 included. timeline.h merges the files of all
 * ranks. Local; the world's thread calls.
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
    uint32_t sequence; /* in its group, from 1; 0: not entered yet, or no group's */
    uint32_t coll;     /* cr_coll */
    uint64_t num_bytes;
    double begin_s, end_s; /* monotonic; end_s 0: not ended */
    double waited_s;       /* of it, asleep for other ranks */
    uint32_t group_tag;    /* of the group's name and members; 0: none */
    uint32_t num_ranks;    /* of the group */
    char group[24], name[64];
} cr_flight_event;

typedef struct cr_flight_count {
    uint64_t num, num_bytes;
    uint64_t num_messages,
        received_bytes; /* from other hosts: entries and data; of data (hosts/links.h) */
    double waited_s, total_s;
} cr_flight_count;

/* Time in one phase, and of it asleep in each kind of collective. The last of CR_FLIGHT_PHASES is of all
 * that had no room. */
enum { CR_FLIGHT_PHASES = 24 };
typedef struct cr_flight_phase {
    char name[48];
    uint64_t num;
    double total_s, waited_s[CR_NUM_COLLS];
} cr_flight_phase;

/* From now on the ring is the file at path (made or replaced). */
CR_MUST cr_status cr_flight_open(cr_world *world, const char *path, cr_err *err);
/* A clock that all hosts can ask was ahead of this host's monotonic one by ahead_s when that was at_s, within error_s. The
 * first and the last of these are kept: what lies between is interpolated, since clocks drift. */
typedef struct cr_flight_clock {
    double at_s, ahead_s, error_s;
} cr_flight_clock;
void cr_flight_set_clock(cr_world *world, const cr_flight_clock *clock);
/* Sums since the world was opened, for one kind. */
cr_flight_count cr_flight_get_count(const cr_world *world, cr_coll coll);

/* Called for each collective that this rank has posted; NULL: none. `croll plan` counts by it. */
typedef void (*cr_flight_watcher)(void *ctx, const cr_flight_event *event);
void cr_flight_watch(cr_world *world, cr_flight_watcher watcher, void *ctx);

/* Read a ring's file, checked in full; events in the order in which they were
 * written: by begin, but for phases that are longer than the ring. */
typedef struct cr_flight_log {
    int rank;
    char role[24], host[64];
    uint64_t clock;           /* ranks with the same one share the monotonic clock */
    double wall_offset_s;     /* seconds since 1970 = monotonic + this */
    cr_flight_clock asked[2]; /* cr_flight_set_clock, first and last; at_s 0: never */
    cr_flight_event *event;   /* owned */
    size_t num_events;
    uint64_t num_begun; /* since the start; the events are the last of them */
    cr_flight_count count[CR_NUM_COLLS];
    cr_flight_phase phase[CR_FLIGHT_PHASES];
    size_t num_phases;
    char phase_now[48]; /* goes on, not in the sums */
    double phase_begin_s;
} cr_flight_log;
CR_MUST cr_status cr_flight_read(const char *path, cr_flight_log *out, cr_err *err);
void cr_flight_log_free(cr_flight_log *log);

#endif
