/* server.h -- `croll serve`: routes, keys, log and metrics of one service over http/.
 *
 * An I/O thread answers. Large bodies are parsed by others, so that a text of 32 MiB holds up neither /health nor the model; what one has
 * to do waits in a bounded queue. The thread that opened the server loads the model and, when it is there, says so:
 *
 *     cr_server_open     binds, starts the I/O thread: /health answers, /ready is 503
 *     cr_server_ready    the model is there: the other routes answer
 *     cr_server_run      computes until SIGTERM or SIGINT has ended it
 *     cr_server_close
 *
 * SIGTERM drains: new work is refused (503), what was taken is answered, for at most drain_s. SIGHUP reads keys and certificate again; a second SIGTERM ends the process at once, and so does the first while
 * the model is being loaded. Ownership: options and service are borrowed until cr_server_close.
 */
#ifndef CR_SERVE_SERVER_H
#define CR_SERVE_SERVER_H

#include "http/server.h"
#include "serve/compute.h"

typedef struct cr_server cr_server;

typedef struct cr_server_options {
    cr_http_options http;
    const char *keys;       /* file (keys.h); NULL: no keys */
    bool needs_no_keys;     /* also where other machines reach it */
    const char *access_log; /* file, "-": stderr, "none" */
    int64_t max_queue;      /* requests that wait */
    int64_t max_queue_tokens;
    double drain_s, stall_s;
    const char *metrics_prefix;
    const char *version;
    bool can_update; /* weights may be replaced; needs keys */
} cr_server_options;

/* Other weights for a model, asked for by POST /update_weights_from_disk; in the thread of the model, while no request is
 * worked on. CR_OK with *error: refused, and nothing has changed; CR_OK without: cr_server_ready was called. Else: the
 * models cannot go on. */
typedef struct cr_serve_updates {
    cr_status (*update)(void *ctx, const cr_serve_update *wanted, size_t place,
                        cr_serve_error *error, cr_err *err);
    void *ctx;
} cr_serve_updates;

/* SIGTERM, SIGINT and SIGHUP, in this thread and those that it starts later: no thread of the process may be left that
 * they would end. */
void cr_server_block_signals(void);
/* Blocks signals. CR_EUSAGE. */
CR_MUST cr_status cr_server_open(const cr_server_options *options, cr_server **out, cr_err *err);
const char *cr_server_url(const cr_server *server);
/* Again: another service is in its place, and the one before is not read any more. */
void cr_server_ready(cr_server *server, const cr_serve_service *service);
/* This thread computes. An error of the model ends the service: CR_OK, or what it was. updates: used only with options.can_update. */
CR_MUST cr_status cr_server_run(cr_server *server, cr_compute *compute,
                                const cr_serve_updates *updates, cr_err *err);
void cr_server_wait(cr_server *server);
/* Ends it if it still runs; accepts NULL. */
void cr_server_close(cr_server *server);

#endif
