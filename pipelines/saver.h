/* saver.h -- checkpoints of a run while it goes on (async_save_ckpt) or before it goes on.
 *
 * A save begins with a folder for the pipeline's own state; the train ranks then copy their masters and
 * moments and write them in the background. cr_saver_poll, once a step, finishes the checkpoint when all
 * ranks are done; one save at a time. Until then the checkpoint before it is the newest one.
 */
#ifndef CR_SAVER_H
#define CR_SAVER_H

#include "data/data.h"
#include "launch/run.h"

typedef struct cr_saver {
    cr_run *run;            /* borrowed */
    const cr_dataset *data; /* that is trained on; borrowed */
    char *folder;           /* of the save under way, or NULL */
    char mark[CR_RUN_MARK];
    int64_t step;
} cr_saver;

/* Finish what is under way; *folder (borrowed) is where `state` lies. */
CR_MUST cr_status cr_saver_begin(cr_saver *s, int64_t step, const char **folder, cr_err *err);
/* All state of the pipeline is in the folder: let the ranks save. */
CR_MUST cr_status cr_saver_start(cr_saver *s, cr_err *err);
/* The step's metrics are written: without async_save_ckpt, and after the last step, finish the save. A
 * checkpoint never has a step that metrics.jsonl lacks. */
CR_MUST cr_status cr_saver_end_step(cr_saver *s, bool is_last, cr_err *err);
CR_MUST cr_status cr_saver_poll(cr_saver *s, cr_err *err);
CR_MUST cr_status cr_saver_wait(cr_saver *s, cr_err *err); /* nothing under way: nothing done */
/* The trained role goes on from a checkpoint; a warning if the data is not what it was then. */
CR_MUST cr_status cr_saver_resume(const cr_saver *s, const char *checkpoint, cr_err *err);
/* A save that did not end is removed: when no rank writes any more. */
void cr_saver_fini(cr_saver *s);

#endif
