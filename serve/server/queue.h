/* queue.h -- requests on their way from the I/O thread to a thread that works on them, and back.
 *
 *     I/O thread:    put ..                       .. collect (after `wake`)
 *     the other:           take -> work -> give
 *
 * Bounded in requests and in bytes of bodies, served in the order of arrival. A job that was cancelled while it waited comes
 * back without work. A job belongs to the I/O thread; between take and give to the other one, which writes what is
 * below "answer". One lock; each function says its thread.
 */
#ifndef CR_SERVE_QUEUE_H
#define CR_SERVE_QUEUE_H

#include "http/server.h"
#include "serve/request.h"

#include <stdatomic.h>

typedef struct cr_serve_job {
    cr_serve_route route;
    cr_buf body;              /* owned */
    bool may_generate;        /* more than one token */
    char id[132];             /* of the exchange */
    double deadline_s;        /* cr_now_s; 0: none */
    atomic_bool is_cancelled; /* its answer is not wanted any more */
    double put_s, begin_s, end_s;
    /* of the I/O thread */
    cr_http_exchange *x; /* NULL: gone, or answered */
    size_t place;        /* in the I/O thread's list */
    struct cr_serve_job *next;
    bool is_streaming; /* the beginning of its answer was sent */
    /* answer */
    cr_buf events;        /* of a stream, not collected yet; under the queue's lock */
    cr_serve_error error; /* status 0: `out` is the body of a 200 */
    cr_buf out, ignored;  /* owned; ignored: names of fields without effect */
} cr_serve_job;

typedef struct cr_serve_load {
    int64_t num_waiting, num_running;
    size_t waiting_bytes;
    double stuck_s; /* since the work has last moved; 0: nothing to do */
} cr_serve_load;

typedef struct cr_serve_queue cr_serve_queue;

/* wake: called in the thread of take and give when there is something to collect. */
cr_serve_queue *cr_serve_queue_create(int64_t max_requests, size_t max_bytes,
                                      void (*wake)(void *ctx), void *ctx);
void cr_serve_queue_free(cr_serve_queue *queue); /* with its jobs; accepts NULL */
void cr_serve_job_free(cr_serve_job *job);

/* I/O thread. False: it is full, and the job stays the caller's. */
bool cr_serve_queue_put(cr_serve_queue *queue, cr_serve_job *job);
cr_serve_job *cr_serve_queue_collect(cr_serve_queue *queue); /* a list */
cr_serve_load cr_serve_queue_load(cr_serve_queue *queue);
/* Any thread: take returns NULL from now on. */
void cr_serve_queue_end(cr_serve_queue *queue);

/* Move the events that were sent since the last call to the end of *out. False: none. */
bool cr_serve_queue_events(cr_serve_queue *queue, cr_serve_job *job, cr_buf *out);
bool cr_serve_queue_has_ended(cr_serve_queue *queue); /* any thread */

/* The other thread. take waits for a job; NULL: the end, or (waits false) no job waits. */
cr_serve_job *cr_serve_queue_take(cr_serve_queue *queue, bool waits);
/* Events of a job for its client; the buffer is cleared. */
void cr_serve_queue_send(cr_serve_queue *queue, cr_serve_job *job, cr_buf *events);
void cr_serve_queue_give(cr_serve_queue *queue, cr_serve_job *job);

#endif
