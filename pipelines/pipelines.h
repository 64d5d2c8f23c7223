/* pipelines.h -- the step loops. A pipeline reads and checks its data before anything is started or
 * written, then drives a cr_run until max_steps, a failure or a signal; a signal ends it after the
 * step it came in, with a checkpoint.
 */
#ifndef CR_PIPELINES_H
#define CR_PIPELINES_H

#include "launch/run.h"

typedef struct cr_pipeline_ops {
    /* Load tokenizer and data sets. CR_EFORMAT and CR_ECONFIG name file and row. *out is the caller's
     * (close), also after a failure. config is borrowed. */
    cr_status (*open)(const cr_config *config, void **out, cr_err *err);
    /* resume_path: checkpoint to go on from, or NULL. */
    cr_status (*run)(void *pipeline, cr_run *run, const char *resume_path, cr_err *err);
    /* The file of an image of its rows, by its SHA-256, for the run's page. NULL: the page shows no rows. */
    cr_status (*image)(void *pipeline, const char *sha256, cr_buf *out, cr_err *err);
    void (*close)(void *pipeline);
} cr_pipeline_ops;

extern const cr_pipeline_ops cr_pipeline_rlvr, cr_pipeline_rows; /* sft and dpo */

#endif
