/* images.h -- images in the samples of a plan (croll plan --images-per-row): how large each is at most.
 */
#ifndef CR_PLAN_IMAGES_H
#define CR_PLAN_IMAGES_H

#include "plan/plan.h"

enum { CR_PLAN_MAX_IMAGES = 512 };

/* num images in each sample (0: none): as large as the processor of w's MODEL and its data_args allow, or as `room` tokens of a sample
 * leave for them. CR_EUSAGE: the option's number, or images of one size that do not fit; errors of cr_item_processor_read. */
CR_MUST cr_status cr_plan_images_find(const cr_worker_config *w, int64_t num, int64_t room,
                                      cr_plan_images *out, cr_err *err);

#endif
