/* phases.h -- what a role that shares its devices gives up while another one works.
 *
 * As in ROLL a command loads the states it needs and offloads them when it is done, unless its record says
 * is_offload_states 0 (the next command of the role needs them, too). A role that has its devices for
 * itself keeps everything. On a device whose memory is the host's nothing is copied: what can be made
 * again is freed (gathered units, reductions, tape, scratch; the engine's cache and packed weights) and so
 * are gradients, which are zero between steps; masters and moments stay. Other devices move them, too.
 *
 * The reply has seconds and bytes (samples/phase.h); reports/phase_metrics.h gives them ROLL's names.
 */
#ifndef CR_PHASES_H
#define CR_PHASES_H

#include "kernels/kernels.h"
#include "samples/phase.h"
#include "samples/roles.h"
#include "strategies/strategies.h"

/* Does the role have a device that another role of this run has, too? */
bool cr_phase_is_shared(const cr_layout *layout, cr_role role);
/* Those of `states` (enum cr_states) that are worth moving off this device. */
unsigned cr_phase_states(const cr_device *dev, unsigned states);

/* Give freed memory back to the system. */
void cr_phase_trim(cr_device *dev);

#endif
