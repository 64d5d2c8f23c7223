/* heartbeat.h -- a sign of life of one process: a background thread with its own connection sets
 * hb:<name> once a second to "COUNT WHAT". The pipeline calls a process silent when COUNT has not
 * moved for the deadline, and says what it did last.
 */
#ifndef CR_HEARTBEAT_H
#define CR_HEARTBEAT_H

#include "exchange/exchange.h"

typedef struct cr_heartbeat cr_heartbeat;
CR_MUST cr_status cr_heartbeat_start(const char *url, const char *prefix, const char *name,
                                     double deadline_s, cr_heartbeat **out, cr_err *err);
/* What the process does now: "train_step 12". Any thread. */
void cr_heartbeat_say(cr_heartbeat *hb, const char *fmt, ...) CR_PRINTF(2, 3);
void cr_heartbeat_stop(cr_heartbeat *hb); /* accepts NULL */

#endif
