/* phases.c -- see phases.h. */
#include "actors/phases.h"
#include "configs/worker.h"

#include <malloc.h>
#include <string.h>

bool cr_phase_is_shared(const cr_layout *layout, cr_role role)
{
    const cr_worker_config *mine = layout->role[role].worker, *other;

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        other = layout->role[r].worker;
        if (r != (int)role && mine && other && cr_workers_share(mine, other, NULL)) return true;
    }
    return false;
}

unsigned cr_phase_states(const cr_device *dev, unsigned states)
{
    return cr_device_has_own_memory(dev) ? states : states & (CR_STATE_BUFFERS | CR_STATE_GRADS);
}

void cr_phase_trim(cr_device *dev)
{
    cr_device_drop_scratch(dev);
    malloc_trim(0);
}
