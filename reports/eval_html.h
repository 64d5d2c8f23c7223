/* eval_html.h -- the page of an evaluation: its table with intervals, and samples of it. */
#ifndef CR_EVAL_HTML_H
#define CR_EVAL_HTML_H

#include "reports/thumbnails/thumbnails.h"

/* table: eval.json (pipelines/eval/table.h); samples: the text of samples.jsonl, of which a few right and wrong ones
 * are shown, with pictures of the images that they were asked about. What is not there is left out. */
void cr_eval_html(cr_buf *out, const json_t *table, const cr_buf *samples, cr_thumbnails *images);

#endif
