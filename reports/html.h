/* html.h -- what the pages that croll writes (plan.html, run.html) have in common: one file each,
 * well-formed XML, pictures as inline SVG, no script, nothing that is fetched (and no browser would: their policy forbids it). Pure functions on a
 * growing buffer of the caller; any thread.
 */
#ifndef CR_HTML_H
#define CR_HTML_H

#include "base/base.h"

/* Head, style and the heading. under: a line below it, or NULL. */
void cr_html_begin(cr_buf *out, const char *title, const char *under);
void cr_html_end(cr_buf *out);
/* Text, escaped; what XML cannot hold becomes U+FFFD. */
void cr_html_add(cr_buf *out, const char *text, size_t num_bytes);
void cr_html_adds(cr_buf *out, const char *text);

/* "12.3 GiB", "41.2 ms"; text holds 32 bytes. */
const char *cr_size_text(int64_t bytes, char text[32]);
const char *cr_seconds_text(double seconds, char text[32]);
/* 1, 2 or 5 times a power of ten: marks of an axis of this length, about num of them. */
double cr_axis_step(double length, int num);

#endif
