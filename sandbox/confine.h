/* confine.h -- a process of our own that works on bytes of strangers gives up what it does not need for that.
 *
 * It is forked, gets its descriptors, and from cr_confine on it may read and write those, take memory and end: a call of the kernel
 * beyond that ends it (SIGSYS), whatever a flaw in a library makes it do. For other people's programs there is sandbox.h.
 */
#ifndef CR_CONFINE_H
#define CR_CONFINE_H

#include "base/base.h"

/* Of the calling process, which has one thread, for ever. keep_fd is the only descriptor that stays open, beside stdin, stdout and stderr,
 * which become /dev/null. memory_bytes: more than it has now. CR_EABSENT: the kernel has no filters of system calls. */
CR_MUST cr_status cr_confine(int keep_fd, int64_t memory_bytes, cr_err *err);

#endif
