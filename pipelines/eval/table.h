/* table.h -- what an evaluation says: one object (eval.json), and the same as text for people.
 *
 *     {"model": .., "samples_a_prompt": 8, "prompts": 100, "samples": 800, "without_verdict": 0,
 *      "all": LABEL, "tags": {TAG: LABEL, ..}, "domains": {DOMAIN: LABEL, ..}}
 *     LABEL: {"prompts", "samples", "without_verdict", "score", "right": SHARE, "pass@1": SHARE, "pass@2", .., "maj@2", ..}
 *     SHARE: {"value", "low", "high", "fraction": "17/40" (pass@k)}
 *
 * Intervals are Wilson's of 95 % for as many draws as there are prompts: samples of one prompt are not independent.
 */
#ifndef CR_EVAL_TABLE_H
#define CR_EVAL_TABLE_H

#include "pipelines/validation.h"

/* sums: not empty. */
CR_MUST cr_status cr_eval_table_write(const cr_config *config, const cr_validation *sums,
                                      cr_buf *out, cr_err *err);
/* table: an object that cr_eval_table_write wrote. */
void cr_eval_table_text(const json_t *table, cr_buf *out);

#endif
