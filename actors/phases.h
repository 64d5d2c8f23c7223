/* phases.h -- what a role that shares its devices gives up while another one works.
 *
 * As in ROLL a command loads the states it needs and offloads them when it is done, unless its record says
 * is_offload_states 0 (the next command of the role needs them, too). A role that has its devices for
 * itself keeps everything. On a device whose memory is the host's nothing is copied: what can be made
 * again is freed (gathered units, reductions, tape, scratch; the engine's cache and packed weights) and so
 * are gradients, which are zero between steps; masters and moments stay. Other devices move them, too.
 *
 * The reply tells seconds and bytes; cr_phase_metrics gives them ROLL's names.
 */
#ifndef CR_PHASES_H
#define CR_PHASES_H

#include "actors/roles.h"
#include "exchange/record.h"
#include "kernels/kernels.h"
#include "reports/metrics.h"
#include "strategies/strategies.h"

/* Does the role have a device that another role of this run has, too? */
bool cr_phase_is_shared(const cr_layout *layout, cr_role role);
/* Those of `states` (enum cr_states) that are worth moving off this device. */
unsigned cr_phase_states(const cr_device *dev, unsigned states);

/* One command's cycle, filled by the role: before it, loaded, before and after its offload. */
typedef struct cr_phase_cycle {
    double began_s, loaded_s, done_s;
    int64_t bytes[4];
} cr_phase_cycle;
/* seconds and bytes so far into the reply; offloaded_s is now. */
void cr_phase_report(const cr_phase_cycle *phase, cr_record *reply);
/* Give freed memory back to the system. */
void cr_phase_trim(cr_device *dev);

/* time/ROLE/NAME/{total,onload,execute,offload} and memory/ROLE/NAME/{start,end}/{offload,onload}/
 * allocated (GiB) from the reply of one rank; several commands of a step: times add up, memory is that
 * before the first and after the last. */
void cr_phase_metrics(cr_metrics *m, const char *role, const char *name, const cr_record *reply);

#endif
