/* device.h -- the device of a run's ranks, and what it is found to be before they open it.
 *
 * Errors name the device; nothing is owned but what an open device is. One thread.
 */
#ifndef CR_LAUNCH_DEVICE_H
#define CR_LAUNCH_DEVICE_H

#include "configs/configs.h"
#include "kernels/memory.h"

/* The device of a run's ranks; borrowed. */
const char *cr_device_of_run(const cr_config *config);
/* They have GPUs, and a place by them (launch/placement.h). */
bool cr_run_has_gpus(const cr_config *config);
/* A device with numbers: meta is CR_EUSAGE. number: that of device_mapping (cr_device_open_number). */
CR_MUST cr_status cr_device_open_to_compute(const char *name, int number, int num_threads,
                                            cr_device **out, cr_err *err);
/* It opens here and now. */
CR_MUST cr_status cr_device_check(const char *name, cr_err *err);
/* What device number `number` of that name has, by a process of its own: what CUDA takes of a GPU, half a gigabyte, it keeps
 * until its process ends. CR_EIO: no answer within a minute; else what opening it says. */
CR_MUST cr_status cr_device_try(const char *name, int number, cr_device_memory *memory,
                                cr_err *err);

#endif
