/* tensorboard.h -- scalars in TensorBoard's event file format, so that `tensorboard --logdir` shows a
 * run. A file is a sequence of TFRecords (length, masked CRC-32C, bytes, masked CRC-32C), each an
 * Event protobuf; only the four fields we need are written.
 */
#ifndef CR_TENSORBOARD_H
#define CR_TENSORBOARD_H

#include "reports/metrics.h"

typedef struct cr_tensorboard cr_tensorboard;
/* Makes the folder and events.out.tfevents.<seconds>.croll.<pid> in it. */
CR_MUST cr_status cr_tensorboard_open(const char *folder, cr_tensorboard **out, cr_err *err);
/* One record with every finite metric, flushed. */
CR_MUST cr_status cr_tensorboard_add(cr_tensorboard *tb, int64_t step, const cr_metrics *m,
                                     cr_err *err);
void cr_tensorboard_close(cr_tensorboard *tb); /* accepts NULL */

#endif
