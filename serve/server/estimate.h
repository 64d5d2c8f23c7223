/* estimate.h -- about how many tokens a body asks for, before it is parsed: the I/O thread has no time for more.
 *
 * A token of a prompt is taken as four bytes of the body, which is near for text and for ids; samples are n times
 * what the field for the most tokens says, looked for in the first and the last 4 KiB of the body. What was really
 * worked on is counted later (cr_serve_job.used_tokens). Threads: any.
 */
#ifndef CR_SERVE_ESTIMATE_H
#define CR_SERVE_ESTIMATE_H

#include <stddef.h>
#include <stdint.h>

int64_t cr_serve_estimate_tokens(const char *body, size_t num_bytes);

#endif
