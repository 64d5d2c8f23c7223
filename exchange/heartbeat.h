/* heartbeat.h -- signs of life: a background thread with a connection of its own.
 *
 * That of a process sets hb:<name> once a second to "COUNT HOST WHAT". The pipeline calls a process silent when
 * COUNT has not moved for the deadline, and says what it did last. That of a launcher holds the prefix of its
 * run (cr_prefix_hold).
 *
 * A launcher of several hosts has one named CR_LAUNCHER, too: its processes have a lease. One that has had no heartbeat from
 * it for CR_LEASE_SECONDS (its host is cut off, or the launcher hangs) ends itself, whatever its other threads do.
 *
 * With each beat the server sends its time, by which the clocks of all hosts are aligned (cr_heartbeat_clock).
 */
#ifndef CR_HEARTBEAT_H
#define CR_HEARTBEAT_H

#include "exchange/exchange.h"

#define CR_LAUNCHER "launcher"
enum { CR_LEASE_SECONDS = 15 };

typedef struct cr_lease {
    double
        unreachable_s; /* how long the server may be away; a server that loads its file is there */
    void (*end)(void *context, const char *why); /* from the heartbeat's thread; does not return */
    void *context;
} cr_lease;

typedef struct cr_heartbeat cr_heartbeat;
/* lease: copied; NULL: none. There is none either if the launcher has not beaten before. */
CR_MUST cr_status cr_heartbeat_start(const cr_exchange_args *args, const char *name,
                                     const cr_lease *lease, cr_heartbeat **out, cr_err *err);
/* Hold the prefix of args for a run; it is held when this returns. CR_ECONFIG: another run holds it. */
CR_MUST cr_status cr_heartbeat_hold(const cr_exchange_args *args, const char *run_id,
                                    const char *who, cr_heartbeat **out, cr_err *err);
/* A failure once another run holds the prefix. Any thread. */
CR_MUST cr_status cr_heartbeat_check(cr_heartbeat *hb, cr_err *err);
/* What the process does now: "train_step 12". Any thread. */
void cr_heartbeat_say(cr_heartbeat *hb, const char *fmt, ...) CR_PRINTF(2, 3);
/* The server's clock by the best round trip of the last ones: it was at_s (cr_now_s) + ahead_s, within error_s. Any thread. */
typedef struct cr_clock {
    double at_s, ahead_s, error_s;
} cr_clock;
cr_clock cr_heartbeat_clock(cr_heartbeat *hb);
/* Within 5 s, also when the server is away. Accepts NULL. */
void cr_heartbeat_stop(cr_heartbeat *hb);

#endif
