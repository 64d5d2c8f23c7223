/* verdicts_html.h -- verdicts in run.html: by cause and step, the slowest ones, and rows that fail. */
#ifndef CR_VERDICTS_HTML_H
#define CR_VERDICTS_HTML_H

#include "reports/thumbnails/thumbnails.h"

/* rows: the parsed lines of metrics.jsonl. Nothing where they have no verdicts. */
void cr_verdicts_html(cr_buf *out, const json_t *rows, cr_thumbnails *images,
                      const char *output_dir);

#endif
