/* progress.h -- state/pipeline.json of a checkpoint: where an RLVR pipeline's data and learning stand.
 *
 * Cursors, with the remainder of their domain's share, are kept by the name of their domain: one that the
 * file does not know begins at its first row.
 */
#ifndef CR_PROGRESS_H
#define CR_PROGRESS_H

#include "pipelines/assemble.h"

CR_MUST cr_status cr_progress_write(const char *path, int64_t step, const cr_learning *learning,
                                    const cr_cursor *cursors, cr_err *err);
/* CR_EFORMAT: the file is not what cr_progress_write wrote; learning and cursors are then not to be used. */
CR_MUST cr_status cr_progress_read(const char *path, cr_learning *learning, cr_cursor *cursors,
                                   cr_err *err);

#endif
