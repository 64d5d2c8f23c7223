/* phase.h -- the seconds and bytes of one command of a role that shares its devices, in its reply (actors/phases.h).
 */
#ifndef CR_PHASE_H
#define CR_PHASE_H

#include "exchange/record.h"

/* One command's cycle, filled by the role: before it, loaded, before and after its offload. */
typedef struct cr_phase_cycle {
    double began_s, loaded_s, done_s;
    int64_t bytes[4];
} cr_phase_cycle;

enum { CR_PHASE_PARTS = 4 };
extern const char
    *const cr_phase_seconds[CR_PHASE_PARTS]; /* "total", "onload", "execute", "offload" */
extern const char *const cr_phase_bytes[CR_PHASE_PARTS]; /* "start/offload" .. "end/offload" */

/* Seconds and bytes so far into the reply; the cycle ends now. */
void cr_phase_write(const cr_phase_cycle *phase, cr_record *reply);
/* False: the reply has none, the role has its devices for itself. */
bool cr_phase_read(const cr_record *reply, double seconds[CR_PHASE_PARTS],
                   int64_t bytes[CR_PHASE_PARTS]);

#endif
