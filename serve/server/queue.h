/* queue.h -- requests on their way from the I/O thread to a thread that works on them, and back.
 *
 *     I/O thread:    put ..                       .. collect (after `wake`)
 *     the other:           take -> work -> give
 *
 * Bounded in requests, in tokens (what is known of them before a body is parsed: serve/server/estimate.h) and in bytes of
 * bodies; one request fits whatever its tokens. Tenants take turns by the tokens that they have used for their weight
 * (serve/share.h), in the order of arrival inside one. Where the queue is full, a tenant that has less in it than
 * another takes the place of the other's last request, which comes back with a 503. A job that was cancelled while it
 * waited comes back without work. A job belongs to the I/O thread; between take and give to the other one, which
 * writes what is below "answer". One lock; each function says its thread.
 */
#ifndef CR_SERVE_QUEUE_H
#define CR_SERVE_QUEUE_H

#include "base/digest.h"
#include "http/server.h"
#include "serve/request.h"
#include "serve/server/keys.h"
#include "serve/share.h"

#include <stdatomic.h>

enum { CR_TENANT_NAME = 64, CR_MAX_TENANTS = 256 /* by name; all others are one */ };

/* Counters of one tenant, as they are when they are asked for. */
typedef struct cr_tenant_counts {
    char name[CR_TENANT_NAME];
    int64_t num_waiting, num_running;
    int64_t waiting_tokens;
    int64_t num_refused; /* the queue was full */
    int64_t num_tokens;  /* of requests that were worked on: prompts and samples */
    double queued_s;     /* all its requests together */
} cr_tenant_counts;

typedef struct cr_tenant cr_tenant;

typedef struct cr_serve_job {
    cr_serve_route route;
    cr_buf body;              /* owned */
    bool may_generate;        /* more than one token */
    char id[132];             /* of the exchange */
    char user[CR_KEY_NAME];   /* name of the key or certificate; "": neither */
    double deadline_s;        /* cr_now_s; 0: none */
    atomic_bool is_cancelled; /* its answer is not wanted any more */
    double put_s, begin_s, end_s;
    double model_s;    /* of the time from begin to end: forwards and steps of the engine */
    cr_tenant *tenant; /* of the queue, from put on */
    int64_t estimated_tokens;
    /* of the thread that works on it */
    bool is_parsed;            /* body has been read: */
    cr_serve_request *request; /* owned; NULL: it is refused by `error`, or cancelled */
    /* of the I/O thread */
    cr_http_exchange *x; /* NULL: gone, or answered */
    size_t place;        /* in the I/O thread's list */
    struct cr_serve_job *next;
    bool is_streaming;  /* the beginning of its answer was sent */
    bool is_pushed_out; /* its place in the queue went to another tenant */
    /* answer */
    cr_buf events;                /* of a stream, not collected yet; under the queue's lock */
    cr_serve_error error;         /* status 0: `out` is the body of a 200 */
    cr_buf out, ignored;          /* owned; ignored: names of fields without effect */
    char weights[CR_DIGEST_TEXT]; /* SHA-256 of its model's; "": it was not read so far */
    int64_t used_tokens;          /* that were worked on; -1: as estimated */
    int64_t prompt_tokens, cached_tokens; /* of a job that was sampled, and of them in the cache */
} cr_serve_job;

typedef struct cr_serve_load {
    int64_t num_waiting, num_running;
    int64_t waiting_tokens;
    size_t waiting_bytes;
    double stuck_s; /* since the work has last moved; 0: nothing to do */
} cr_serve_load;

typedef struct cr_serve_queue cr_serve_queue;

typedef struct cr_serve_bounds {
    int64_t max_requests, max_tokens;
    size_t max_bytes;
    int64_t max_running_each; /* of one tenant, taken and not given; 0: any number */
    double spin_s; /* that take looks for another job after the last one, before it sleeps */
} cr_serve_bounds;

/* wake: called when there is something to collect, in the thread of put, take or give. */
cr_serve_queue *cr_serve_queue_create(const cr_serve_bounds *bounds, void (*wake)(void *ctx),
                                      void *ctx);
void cr_serve_queue_free(cr_serve_queue *queue); /* with its jobs; accepts NULL */
void cr_serve_job_free(cr_serve_job *job);

/* The other thread, when the body has been read: what of it is in the answer's fields. Takes request->ignored. */
void cr_serve_job_note(cr_serve_job *job, cr_serve_request *request);

/* I/O thread. False: it is full, and the job stays the caller's. tenant: a name; weight: above 0, of the key. */
bool cr_serve_queue_put(cr_serve_queue *queue, cr_serve_job *job, const char *tenant,
                        double weight);
/* Seconds, 1 to 60, that what waits now takes at the speed of the last ones. */
int cr_serve_queue_drain_s(cr_serve_queue *queue);
cr_serve_job *cr_serve_queue_collect(cr_serve_queue *queue); /* a list */
cr_serve_load cr_serve_queue_load(cr_serve_queue *queue);
/* The first `most` tenants, in the order of their first requests; returns their number. */
size_t cr_serve_queue_tenants(cr_serve_queue *queue, cr_tenant_counts *out, size_t max);
/* Any thread: take returns NULL from now on. */
void cr_serve_queue_end(cr_serve_queue *queue);

/* Move the events that were sent since the last call to the end of *out. False: none. */
bool cr_serve_queue_events(cr_serve_queue *queue, cr_serve_job *job, cr_buf *out);
bool cr_serve_queue_has_ended(cr_serve_queue *queue); /* any thread */

/* The other thread. take waits for a job; NULL: the end, or (waits false) no job waits that may be taken. Those that were put back come
 * first, and take_back gives only them. */
cr_serve_job *cr_serve_queue_take(cr_serve_queue *queue, bool waits);
cr_serve_job *cr_serve_queue_take_back(cr_serve_queue *queue, bool waits);
/* Any thread: a job that was taken, and on which the other thread is to go on. */
void cr_serve_queue_put_back(cr_serve_queue *queue, cr_serve_job *job);
/* The share of the work that its tenant has there; of the other thread alone. */
cr_share *cr_serve_job_share(cr_serve_job *job);
/* Events of a job for its client; the buffer is cleared. */
void cr_serve_queue_send(cr_serve_queue *queue, cr_serve_job *job, cr_buf *events);
void cr_serve_queue_give(cr_serve_queue *queue, cr_serve_job *job);

#endif
