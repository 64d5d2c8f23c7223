/* lanes.h -- a device's threads as devices of one thread each, for work that is cut by rows.
 *
 * Kernels share their work over a device's threads one by one, which pays where products are large.
 * A pass of many small ones (a step of generation with a small model) runs whole on each lane instead,
 * over some of the rows: no kernel's result depends on how rows are cut. Memory of a lane's device is
 * that of any other; scratch is its own. Owned by the caller, destroyed before the device. Local.
 */
#ifndef CR_LANES_H
#define CR_LANES_H

#include "kernels/kernels.h"

typedef struct cr_lanes cr_lanes;
typedef cr_status (*cr_lane_fn)(void *ctx, int lane, cr_device *dev, cr_err *err);

cr_lanes *cr_lanes_create(const cr_device *dev); /* as many as dev has threads */
void cr_lanes_destroy(cr_lanes *lanes);          /* accepts NULL */
int cr_lanes_num(const cr_lanes *lanes);
cr_device *cr_lanes_device(cr_lanes *lanes, int lane); /* borrowed */
/* fn on lanes 0 .. num - 1 at the same time, after all that is queued on the device; the failure of the first lane that
 * failed. Kernels of a lane have run when they return. */
CR_MUST cr_status cr_lanes_run(cr_lanes *lanes, int num, cr_lane_fn fn, void *ctx, cr_err *err);
/* The same for items 0 .. num - 1: a lane that is done with one takes the next. */
typedef cr_status (*cr_lane_item_fn)(void *ctx, size_t item, int lane, cr_device *dev, cr_err *err);
CR_MUST cr_status cr_lanes_each(cr_lanes *lanes, size_t num, cr_lane_item_fn fn, void *ctx,
                                cr_err *err);

#endif
