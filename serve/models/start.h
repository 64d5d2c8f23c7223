/* start.h -- `croll serve` from its words to its end. The first line of stdout says where it listens, the next ones, a model
 * each, that they are there. With several ranks rank 0 has the server; the others follow its rounds of scoring.
 *
 * Errors as cr_session_leave has them. Arguments are borrowed. The thread that opens the world calls.
 */
#ifndef CR_SERVE_START_H
#define CR_SERVE_START_H

#include "launch/session.h"
#include "serve/request.h"
#include "serve/server/server.h"

typedef struct cr_serve_args {
    cr_server_options options;
    cr_serve_service service; /* its limits */
    const char *name, *port_file, *role;
    cr_words adapters; /* [NAME=]DIR of the one MODEL */
    bool is_quiet;
    bool may_be_random; /* a model passes the self-check without knowing anything */
} cr_serve_args;

/* call->words: MODEL or NAME=MODEL .. with worker keys, or FILE with keys of a run. Returns the exit code. */
int cr_serve_run(const cr_session_call *call, const cr_serve_args *args);

#endif
