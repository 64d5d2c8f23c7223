/* work.h -- what a sample weighs when samples are distributed (packing.h): the work of its tokens, and that of its images in the vision
 * tower, in one unit.
 *
 * Flow 6 of 7. Text weighs ROLL's 24576 L + L^2: a token's Linears are as much as its attention to 24,576 others. An image adds as many
 * tokens to the first L as its FLOPs in the tower are (models/vision/cost.h).
 */
#ifndef CR_WORK_H
#define CR_WORK_H

#include "configs/configs.h"
#include "models/vision/cost.h"
#include "samples/items/items.h"

/* Of the model that a worker trains; needs its config.json. CR_ECONFIG and the like: the model cannot be built. */
CR_MUST cr_status cr_work_image_cost(const cr_worker_config *w, cr_image_cost *out, cr_err *err);
/* Of num_tokens tokens, those of images among them, whose images cost as much as image_tokens others. */
double cr_work_of(size_t num_tokens, double image_tokens);
double cr_work_image_tokens(const cr_image_cost *cost, cr_item_refs items);

#endif
