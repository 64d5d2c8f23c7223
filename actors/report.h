/* report.h -- run.html: the curves and a few samples of a run in one file that needs no server. */
#ifndef CR_REPORT_H
#define CR_REPORT_H

#include "base/base.h"

/* Reads metrics.jsonl and the first and last rollouts/ file of output_dir, writes run.html there. */
CR_MUST cr_status cr_report_write(const char *output_dir, const char *title, cr_err *err);

#endif
