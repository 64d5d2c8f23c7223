/* samples.h -- samples.jsonl of an evaluation: one line a sample, the samples of a row next to each other.
 *
 * A row's lines are appended as soon as its last verdict is there, in one write, so that the file of an evaluation
 * that was killed holds whole rows and at most one torn one at its end. cr_eval_file_open takes what is there and
 * cuts the rest off; cr_eval_file_sort puts rows in their order at the end.
 *
 * Ownership: data and config are borrowed. One thread.
 */
#ifndef CR_EVAL_SAMPLES_H
#define CR_EVAL_SAMPLES_H

#include "data/data.h"
#include "pipelines/validation.h"

#define CR_EVAL_SAMPLES "samples.jsonl"

typedef struct cr_eval_file {
    const cr_config *config;
    const cr_dataset *data;
    size_t group_size;
    char *path; /* owned */
    int fd;
    bool *is_done; /* [rows] (owned) */
    size_t num_done;
} cr_eval_file;

/* In the folder of the evaluation. CR_EIO; call cr_eval_file_close also after a failure. */
CR_MUST cr_status cr_eval_file_open(cr_eval_file *f, const cr_config *config,
                                    const cr_dataset *data, cr_err *err);
void cr_eval_file_close(cr_eval_file *f);
/* The samples of a row. */
CR_MUST cr_status cr_eval_file_put(cr_eval_file *f, const cr_sample *samples, cr_err *err);
/* All rows are there: in the order of the data, by one rename, and into *v what they say. */
CR_MUST cr_status cr_eval_file_sort(cr_eval_file *f, cr_validation *v, cr_err *err);

#endif
