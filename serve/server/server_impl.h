/* server_impl.h -- inside serve/server/: server.c has the life of a server, routes.c its routes. */
#ifndef CR_SERVE_SERVER_IMPL_H
#define CR_SERVE_SERVER_IMPL_H

#include "serve/server/keys.h"
#include "serve/server/metrics.h"
#include "serve/server/server.h"

#include <pthread.h>
#include <stdatomic.h>

/* Of an exchange: its `user` from on_head to on_end. */
typedef struct cri_call {
    const char *route; /* constant: its path in the log and in metrics */
    char tenant[CR_KEY_NAME];
} cri_call;

struct cr_server {
    cr_server_options options;
    cr_http_server *http;
    pthread_t thread;
    bool has_thread;
    atomic_bool should_stop;
    _Atomic(const cr_serve_service *) service; /* NULL: the model is being loaded */
    cr_serve_keys keys;
    cr_serve_metrics metrics;
    int log_fd; /* -1: none */
    cr_buf log; /* lines of the last tick */
    int num_signals;
};

/* routes.c */
void cri_on_head(void *server, cr_http_exchange *x);
void cri_on_request(void *server, cr_http_exchange *x);

#endif
