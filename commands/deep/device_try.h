/* device_try.h -- what device number `number` is found to be before ranks open it, by a process of its own: what CUDA takes of a GPU, half
 * a gigabyte, it keeps until its process ends.
 */
#ifndef CR_DEVICE_TRY_H
#define CR_DEVICE_TRY_H

#include "kernels/memory.h"

/* The device of that name. CR_EIO: no answer within a minute; else what opening it says. */
CR_MUST cr_status cr_device_try(const char *name, int number, cr_device_memory *memory,
                                cr_err *err);

#endif
