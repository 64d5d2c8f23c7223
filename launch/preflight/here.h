/* here.h -- what a run needs of the launcher's host, found before anything is started: a rank where checkpoints are written, the
 * device, open files, /dev/shm, threads. Other hosts are asked by the pre-flight (preflight.h).
 *
 * Errors are CR_ECONFIG, but for what opening the device says. One thread.
 */
#ifndef CR_HERE_H
#define CR_HERE_H

#include "kernels/memory.h"
#include "launch/preflight/needs.h"

/* hosts: with the places of all ranks. *memory: of the device, where a rank is on this host. */
CR_MUST cr_status cr_here_check(const cr_config *config, const cr_hosts *hosts,
                                cr_device_memory *memory, cr_err *err);

#endif
