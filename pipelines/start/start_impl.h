/* start_impl.h -- parts of start.c. */
#ifndef CRI_START_H
#define CRI_START_H

#include "configs/configs.h"

/* One run at a time in the folder of the run, and in that of its checkpoints if it is another one; the locks go with the process.
 * fds: -1 before; the caller closes what is open. */
CR_MUST cr_status cri_start_lock(const cr_config *config, int fds[2], cr_err *err);
/* Refuse folders that hold a run that has done something, unless it is resumed or overwritten; remove what a run before left. */
CR_MUST cr_status cri_start_clear(const cr_config *config, bool should_overwrite,
                                  const char *resume_path, cr_err *err);
/* Write config.yaml. *changes: what a resumed run says of the keys that were there, or NULL; owned by the caller. */
CR_MUST cr_status cri_start_write_config(const cr_config *config, const char *path, bool is_resumed,
                                         char **changes, cr_err *err);

#endif
