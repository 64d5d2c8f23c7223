/* timeline_html.h -- what the flight recorders of a run say, for run.html. Pure functions. */
#ifndef CR_TIMELINE_HTML_H
#define CR_TIMELINE_HTML_H

#include "mesh/timeline.h"

/* What ranks disagree on, or that they agree. */
void cr_timeline_html_findings(const cr_timeline *t, cr_buf *out);
/* Lanes of all ranks: the whole record, its last training step, the end of that. */
void cr_timeline_html_pictures(const cr_timeline *t, cr_buf *out);
/* Phases, collectives, where each rank was last. */
void cr_timeline_html_tables(const cr_timeline *t, cr_buf *out);

/* Share of the training steps that a rank was asleep for gathers (reductions): the mean of the ranks that
 * train. False: there were none. */
bool cr_timeline_wait_share(const cr_timeline *t, double *gathers, double *reductions);

#endif
