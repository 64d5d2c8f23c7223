/* report.h -- run.html: what ranks disagree on, the curves, the timeline of all ranks and a few samples of a
 * run, in one file that needs no server. */
#ifndef CR_REPORT_H
#define CR_REPORT_H

#include "reports/thumbnails/thumbnails.h"

/* Reads metrics.jsonl, flight/ and the first and last rollouts/ file of output_dir, what there is of them,
 * and writes run.html there, and thumbnails/ of the images that it shows. ending: why the run ended, or NULL. */
CR_MUST cr_status cr_report_write(const char *output_dir, const char *title, const cr_err *ending,
                                  const cr_image_files *images, cr_err *err);

#endif
