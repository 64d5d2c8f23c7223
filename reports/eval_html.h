/* eval_html.h -- the page of an evaluation: its table with intervals, and samples of it. */
#ifndef CR_EVAL_HTML_H
#define CR_EVAL_HTML_H

#include "base/json.h"

/* table: eval.json (pipelines/eval/table.h); samples: the text of samples.jsonl, of which a few right and wrong ones
 * are shown. What is not there is left out. */
void cr_eval_html(cr_buf *out, const json_t *table, const cr_buf *samples);

#endif
