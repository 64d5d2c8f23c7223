/* queue.c -- see queue.h. */
#include "serve/server/queue.h"

#include <pthread.h>
#include <time.h>

#define WAIT_S 1 /* take looks at least this often whether all has ended */

typedef struct list {
    cr_serve_job *first, **end;
} list;

struct cr_serve_queue {
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    list waiting, given;
    int64_t max_requests;
    size_t max_bytes;
    cr_serve_load load;
    double moved_s;
    bool has_ended;
    void (*wake)(void *ctx);
    void *ctx;
};

static void clear(list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void append(list *l, cr_serve_job *job)
{
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
}

static cr_serve_job *pop(list *l)
{
    cr_serve_job *job = l->first;

    l->first = job->next;
    if (!job->next) l->end = &l->first;
    return job;
}

cr_serve_queue *cr_serve_queue_create(int64_t max_requests, size_t max_bytes,
                                      void (*wake)(void *ctx), void *ctx)
{
    cr_serve_queue *q = CR_NEW(cr_serve_queue);

    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->has_work, NULL);
    clear(&q->waiting);
    clear(&q->given);
    q->max_requests = max_requests;
    q->max_bytes = max_bytes;
    q->wake = wake;
    q->ctx = ctx;
    return q;
}

void cr_serve_job_free(cr_serve_job *job)
{
    cr_buf_free(&job->body);
    cr_buf_free(&job->out);
    cr_buf_free(&job->events);
    cr_buf_free(&job->ignored);
    cr_free(job);
}

void cr_serve_queue_free(cr_serve_queue *q)
{
    if (!q) return;
    while (q->waiting.first)
        cr_serve_job_free(pop(&q->waiting));
    while (q->given.first)
        cr_serve_job_free(pop(&q->given));
    pthread_cond_destroy(&q->has_work);
    pthread_mutex_destroy(&q->lock);
    cr_free(q);
}

bool cr_serve_queue_put(cr_serve_queue *q, cr_serve_job *job)
{
    cr_serve_load *l = &q->load;
    bool fits;

    pthread_mutex_lock(&q->lock);
    fits = l->num_waiting < q->max_requests &&
           l->waiting_bytes + job->body.num_bytes <= q->max_bytes && !q->has_ended;
    if (fits) {
        job->put_s = cr_now_s();
        if (l->num_waiting + l->num_running == 0) q->moved_s = job->put_s;
        append(&q->waiting, job);
        l->num_waiting++;
        l->waiting_bytes += job->body.num_bytes;
        pthread_cond_signal(&q->has_work);
    }
    pthread_mutex_unlock(&q->lock);
    return fits;
}

cr_serve_job *cr_serve_queue_collect(cr_serve_queue *q)
{
    cr_serve_job *first;

    pthread_mutex_lock(&q->lock);
    first = q->given.first;
    clear(&q->given);
    pthread_mutex_unlock(&q->lock);
    return first;
}

cr_serve_load cr_serve_queue_load(cr_serve_queue *q)
{
    cr_serve_load load;

    pthread_mutex_lock(&q->lock);
    load = q->load;
    if (load.num_waiting + load.num_running > 0) load.stuck_s = cr_now_s() - q->moved_s;
    pthread_mutex_unlock(&q->lock);
    return load;
}

void cr_serve_queue_end(cr_serve_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->has_ended = true;
    pthread_cond_broadcast(&q->has_work);
    pthread_mutex_unlock(&q->lock);
}

/* ---- the other thread ---- */

static void wait_for_work(cr_serve_queue *q)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_cond_timedwait(&q->has_work, &q->lock, &until);
}

cr_serve_job *cr_serve_queue_take(cr_serve_queue *q, bool waits)
{
    cr_serve_job *job = NULL;
    bool has_given = false;

    pthread_mutex_lock(&q->lock);
    while (!job && !q->has_ended) {
        if (!q->waiting.first) {
            if (!waits) break;
            wait_for_work(q);
            continue;
        }
        job = pop(&q->waiting);
        q->load.num_waiting--;
        q->load.waiting_bytes -= job->body.num_bytes;
        if (job->is_cancelled) {
            append(&q->given, job);
            has_given = true;
            job = NULL;
        }
    }
    if (job) {
        q->load.num_running++;
        job->begin_s = q->moved_s = cr_now_s();
    }
    pthread_mutex_unlock(&q->lock);
    if (has_given) q->wake(q->ctx);
    return job;
}

bool cr_serve_queue_events(cr_serve_queue *q, cr_serve_job *job, cr_buf *out)
{
    size_t num;

    pthread_mutex_lock(&q->lock);
    num = job->events.num_bytes;
    if (num) cr_buf_add(out, job->events.data, num);
    cr_buf_clear(&job->events);
    pthread_mutex_unlock(&q->lock);
    return num > 0;
}

bool cr_serve_queue_has_ended(cr_serve_queue *q)
{
    bool has_ended;

    pthread_mutex_lock(&q->lock);
    has_ended = q->has_ended;
    pthread_mutex_unlock(&q->lock);
    return has_ended;
}

void cr_serve_queue_send(cr_serve_queue *q, cr_serve_job *job, cr_buf *events)
{
    if (events->num_bytes == 0) return;
    pthread_mutex_lock(&q->lock);
    cr_buf_add(&job->events, events->data, events->num_bytes);
    q->moved_s = cr_now_s();
    pthread_mutex_unlock(&q->lock);
    cr_buf_clear(events);
    q->wake(q->ctx);
}

void cr_serve_queue_give(cr_serve_queue *q, cr_serve_job *job)
{
    pthread_mutex_lock(&q->lock);
    job->end_s = q->moved_s = cr_now_s();
    append(&q->given, job);
    q->load.num_running--;
    pthread_mutex_unlock(&q->lock);
    q->wake(q->ctx);
}
