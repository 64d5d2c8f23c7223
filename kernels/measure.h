/* measure.h -- how fast a device is, in some seconds: products, attention, and memory of other operations. */
#ifndef CR_MEASURE_H
#define CR_MEASURE_H

#include "kernels/memory.h"

typedef struct cr_speed {
    double product_flops_s, attention_flops_s, memory_bytes_s; /* as cr_device_stats counts them */
} cr_speed;

/* In bf16; each is the best of some calls, since other programs only make them slower. */
CR_MUST cr_status cr_device_measure(cr_device *dev, cr_speed *out, cr_err *err);

#endif
