/* eval.h -- an evaluation: the validation of a run without its training (val_only), and what comes of it.
 *
 * Prompts, seeds and rewards are those of a run's validation at step 0. In output_dir: samples.jsonl (samples.h),
 * inputs.json (what rows and weights they are of), at the end eval.json (table.h) and eval.html. One that ended early goes
 * on with the rows that are not in samples.jsonl yet; its samples are those that it would have had.
 */
#ifndef CR_EVAL_H
#define CR_EVAL_H

#include "data/data.h"
#include "launch/run.h"

#define CR_EVAL_TABLE "eval.json"

/* The rows that have a domain. CR_ECONFIG: what is there is of other rows or weights. */
CR_MUST cr_status cr_evaluate(cr_run *run, const cr_dataset *data, cr_err *err);

#endif
