/* server_impl.h -- inside serve/server/: server.c has the life of a server, routes.c its routes. */
#ifndef CR_SERVE_SERVER_IMPL_H
#define CR_SERVE_SERVER_IMPL_H

#include "serve/server/keys.h"
#include "serve/server/metrics.h"
#include "serve/server/queue.h"
#include "serve/server/server.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    CRI_MAX_TASKS = 256, /* of the model at a time; others wait in the queue, which is bounded */
    CRI_LARGE_BODY =
        32 *
        1024 /* bytes: parsed by a thread of its own, which smaller ones would wait for longer than for their parsing */
};

/* A thread that has just had work looks for more for so long before it sleeps. */
#define CRI_SPIN_S 100e-6

#define CRI_NO_TENANT "-" /* name of the tenant of requests without key and certificate */

/* Of an exchange: its `user` from on_head to on_end. */
typedef struct cri_server_call {
    const char *route; /* constant: its path in the log and in metrics */
    char tenant[CR_KEY_NAME];
    double weight;                      /* of the tenant */
    bool may_generate;                  /* the key's scopes allow more than one token */
    cr_serve_job *job;                  /* that is worked on; NULL: none */
    double queued_s, worked_s, model_s; /* of a job that was */
} cri_server_call;

struct cr_server {
    cr_server_options options;
    cr_http_server *http;
    pthread_t thread;
    bool has_thread;
    atomic_bool should_stop, has_failed;       /* has_failed: the model, which stops the service */
    _Atomic(const cr_serve_service *) service; /* NULL: the model is being loaded */
    pthread_rwlock_t
        service_lock;        /* held by threads other than that of the model while they read it */
    atomic_bool is_updating; /* weights are being loaded */
    atomic_bool is_due;      /* the only answer is being written */
    cr_serve_queue *texts;   /* bodies to be read: /tokenize, /detokenize */
    cr_serve_queue *compute; /* bodies for the model */
    pthread_t text_thread;
    bool has_text_thread;
    cr_serve_job **open; /* owned [num_open]: all jobs of the I/O thread */
    size_t num_open, capacity_open;
    bool is_draining, is_paused;
    cr_http_exchange **pausing; /* owned [num_pausing]: to be answered when no work is left */
    size_t num_pausing, capacity_pausing;
    double drain_until_s;
    cr_serve_keys keys;
    cr_serve_metrics metrics;
    int log_fd; /* -1: none */
    cr_buf log; /* lines of the last tick */
    bool is_log_broken;
    int num_signals;
    bool can_spin; /* there is a core for a thread that waits for another one */
};

/* work.c: bodies on their way through the queue */
void cri_work_put(cr_server *s, cr_http_exchange *x, cr_serve_route route);
void cri_work_gone(cr_server *s, cr_http_exchange *x);
void cri_work_collect(cr_server *s);
void cri_work_tick(cr_server *s); /* deadlines */
void cri_work_fail_all(cr_server *s);
void cri_work_abort(cr_server *s);         /* requests for a model: the service is paused */
bool cri_work_is_open(const cr_server *s); /* has a client that waits */
void cri_work_free(cr_server *s);
void *cri_work_thread(void *server);
/* parser.c: job->request, or job->error */
typedef struct cri_parser cri_parser;
void cri_parse(const cr_server *s, cr_serve_job *job);
cri_parser *cri_parser_open(cr_server *s);
/* Of s->compute, to which it is put back. While one is on its way no model of the service changes. */
void cri_parser_put(cri_parser *p, cr_serve_job *job);
void cri_parser_close(cri_parser *p); /* all are put back, parsed or not */
/* run.c: the thread of the model, until the I/O thread has ended */
CR_MUST cr_status cri_compute_run(cr_server *s, cr_compute *compute,
                                  const cr_serve_updates *updates, cr_err *err);
void cri_refuse_draining(cr_http_exchange *x);

/* routes.c */
const char *
cri_route_name(const cr_http_exchange *x); /* "": there is no such path, or none was read */
void cri_on_head(void *server, cr_http_exchange *x);
void cri_on_request(void *server, cr_http_exchange *x);

/* admin.c */
void cri_answer_pause(cr_server *s, cr_http_exchange *x);
void cri_answer_resume(cr_server *s, cr_http_exchange *x);
void cri_answer_is_paused(cr_server *s, cr_http_exchange *x);
void cri_answer_versions(cr_server *s, cr_http_exchange *x);
void cri_answer_world_size(cr_server *s, cr_http_exchange *x);
void cri_refuse_paused(cr_http_exchange *x);
void cri_admin_collect(cr_server *s); /* work may have ended */
void cri_admin_gone(cr_server *s, const cr_http_exchange *x);

void cri_answer_page(cr_server *s, cr_http_exchange *x); /* page.c: GET / */

#endif
