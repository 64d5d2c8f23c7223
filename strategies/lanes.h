/* lanes.h -- forwards with a thread for each part of a batch (strategies/ only).
 */
#ifndef CR_STRATEGY_LANES_H
#define CR_STRATEGY_LANES_H

#include "strategies/fsdp_impl.h"

/* A small model's kernels end before a second thread has begun to help. Where every unit is whole on its rank
 * (cri_is_resident), a forward without gradient runs instead as several passes over whole sequences, a thread
 * each (kernels/lanes.h). Results have the same bits. */
typedef struct cri_lanes cri_lanes;
cri_lanes *cri_lanes_create(const cr_fsdp *f);
void cri_lanes_destroy(cri_lanes *lanes);        /* accepts NULL */
int64_t cri_lanes_bytes(const cri_lanes *lanes); /* the most that scratch of all took */
/* Cut a batch; false: it gives too few parts, or has what cannot be cut. */
bool cri_lanes_cut(cri_lanes *lanes, const cr_batch *batch);
/* pass: of the batch that was cut last; its hooks, scratch and state are not used. */
CR_MUST cr_status cri_lanes_forward(cri_lanes *lanes, const cr_model *model, const cr_pass *pass,
                                    const cr_outputs *out, cr_err *err);

#endif
