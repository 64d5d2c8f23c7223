/* queue.h -- streams that run later, for the device `far` (far.c): work is kept until it is waited for.
 *
 * Two orders, each the worst that events allow; CROLL_FAR_STREAMS names one:
 *     late   a stream runs when the host waits for it, or when a stream that runs comes to one of its events
 *     early  the streams but compute run as soon as no event holds them up; compute as in late
 * So work without the event it needs finds memory that is not written yet (late: what compute reads of others; both:
 * what others read of compute), or memory that is written too soon (early: what compute still reads).
 *
 * Threads: any; one at a time works on a device.
 */
#ifndef CR_QUEUE_H
#define CR_QUEUE_H

#include "kernels/kernels_impl.h"

typedef struct cri_queues cri_queues; /* of one device */
typedef cr_status (*cri_work)(cr_device *dev, const void *args, cr_err *err);

/* CR_EUSAGE: no such order. */
CR_MUST cr_status cri_queues_create(const char *order, cr_device *dev, cr_err *err);
void cri_queues_destroy(cri_queues *q); /* what has not run does not run */
/* work(dev, args) in the order of dev's stream. args is of cr_alloc and freed after it. */
CR_MUST cr_status cri_queue_add(cr_device *dev, cri_work work, void *args, cr_err *err);
/* All that is queued on dev's stream; on all streams of all devices. */
CR_MUST cr_status cri_queue_run(cr_device *dev, cr_err *err);
CR_MUST cr_status cri_queue_run_all(cr_err *err);
bool cri_queue_is_empty(cr_device *dev); /* dev's stream has run all */
/* The entries of the device's table; nothing without queues. */
CR_MUST cr_status cri_queue_record(cr_device *dev, cr_event *event, cr_err *err);
CR_MUST cr_status cri_queue_wait(cr_device *dev, cr_event *event, cr_err *err);
CR_MUST cr_status cri_queue_is_over(cr_device *dev, const cr_event *event, bool *out, cr_err *err);

#endif
