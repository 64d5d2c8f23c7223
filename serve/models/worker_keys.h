/* worker_keys.h -- which keys of a worker block `croll serve MODEL key=value ..` reads. Others are errors: a service that takes
 * a key and does nothing with it would look like one that follows it. */
#ifndef CR_SERVE_WORKER_KEYS_H
#define CR_SERVE_WORKER_KEYS_H

#include "base/args.h"

/* words: MODEL, then key=value, which cr_session_read has accepted. CR_EUSAGE names the first one that has no effect. */
CR_MUST cr_status cr_serve_keys_check(const cr_words *words, cr_err *err);

#endif
