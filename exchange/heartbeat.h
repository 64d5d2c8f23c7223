/* heartbeat.h -- signs of life: a background thread with a connection of its own.
 *
 * That of a process sets hb:<name> once a second to "COUNT HOST WHAT". The pipeline calls a process silent when
 * COUNT has not moved for the deadline, and says what it did last. That of a launcher holds the prefix of its
 * run (cr_prefix_hold).
 */
#ifndef CR_HEARTBEAT_H
#define CR_HEARTBEAT_H

#include "exchange/exchange.h"

typedef struct cr_heartbeat cr_heartbeat;
CR_MUST cr_status cr_heartbeat_start(const cr_exchange_args *args, const char *name,
                                     cr_heartbeat **out, cr_err *err);
/* Hold the prefix of args for a run; it is held when this returns. CR_ECONFIG: another run holds it. */
CR_MUST cr_status cr_heartbeat_hold(const cr_exchange_args *args, const char *run_id,
                                    const char *who, cr_heartbeat **out, cr_err *err);
/* A failure once another run holds the prefix. Any thread. */
CR_MUST cr_status cr_heartbeat_check(cr_heartbeat *hb, cr_err *err);
/* What the process does now: "train_step 12". Any thread. */
void cr_heartbeat_say(cr_heartbeat *hb, const char *fmt, ...) CR_PRINTF(2, 3);
/* Within 5 s, also when the server is away. Accepts NULL. */
void cr_heartbeat_stop(cr_heartbeat *hb);

#endif
