/* timeline.h -- the flight recorders of all ranks, merged: one clock, and where the ranks disagree.
 *
 * Ranks of one host share a clock to the nanosecond. Ranks of several hosts are laid side by side by the clock that all
 * of them asked at the start and at the end (cr_flight_set_clock), within error_s, and their events are moved by what
 * their clocks drifted. Where one has not asked, by their hosts' wall clocks, as good as those agree (NTP: a
 * millisecond or so).
 * Comparing needs no clock: calls of a group are compared by their sequence numbers.
 *
 * Ownership: a timeline owns its logs. Pure functions and files; any thread.
 */
#ifndef CR_TIMELINE_H
#define CR_TIMELINE_H

#include "mesh/flight.h"

typedef struct cr_timeline {
    cr_flight_log *log; /* owned, by rank */
    size_t num_logs;
    double *shift_s;       /* owned: of log i, seconds since 1970 = its times + this */
    double begin_s, end_s; /* of all events, since 1970 */
    bool has_hosts;        /* more than one clock; otherwise no log has a host */
    double error_s;        /* between events of two hosts; 0: by wall clocks */
    cr_buf findings;       /* owned: a sentence a line, the gravest first; empty: the ranks agree */
} cr_timeline;

/* All rank-NN.bin of a folder. A damaged or missing one is a finding. CR_EIO: there are none. */
CR_MUST cr_status cr_timeline_read(const char *folder, cr_timeline *out, cr_err *err);
/* log: an owned array of num > 0 logs, taken over. */
void cr_timeline_merge(cr_flight_log *log, size_t num, cr_timeline *out);
void cr_timeline_free(cr_timeline *t);
/* The last collective of a log that entered (or, if none did, began); NULL: none. */
const cr_flight_event *cr_timeline_last(const cr_flight_log *log);

#endif
