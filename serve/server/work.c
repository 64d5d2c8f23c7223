/* work.c -- bodies that are read outside of the I/O thread: into the queue, the thread that reads them, and their
 * answers, deadlines and cancellation. */
#include "serve/server/server_impl.h"

#include "serve/answer.h"
#include "serve/server/estimate.h"

#include <stdlib.h>
#include <string.h>

/* ---- the thread ---- */

static void fail_job(cr_serve_job *job, const cr_err *err)
{
    cr_serve_fail(&job->error, 500, "internal_error", "", "%s", err->msg);
}

static void work(const cr_server *s, cr_serve_job *job)
{
    cr_serve_result result = {.id = job->id};
    cr_err err = {0};

    cri_parse(s, job);
    result.request = job->request;
    if (job->request && cr_serve_answer(&result, &job->out, &err) != CR_OK) fail_job(job, &err);
}

void *cri_work_thread(void *ctx)
{
    cr_server *s = ctx;
    cr_serve_job *job;

    while ((job = cr_serve_queue_take(s->texts, /*waits=*/true))) {
        pthread_rwlock_rdlock(&s->service_lock);
        work(s, job);
        pthread_rwlock_unlock(&s->service_lock);
        cr_serve_queue_give(s->texts, job);
    }
    return NULL;
}

/* ---- the I/O thread: in ---- */

/* x-croll-deadline-ms: when the client stops to wait. False: it is not a number. */
static bool read_deadline(const cr_http_exchange *x, double *deadline_s)
{
    const char *text = cr_http_field(x->request, "x-croll-deadline-ms");
    size_t num = text ? strlen(text) : 0;

    *deadline_s = 0;
    if (!text) return true;
    if (num == 0 || num > 9 || strspn(text, "0123456789") != num) return false;
    *deadline_s = x->begin_s + 1e-3 * (double)strtol(text, NULL, 10);
    return true;
}

static void add_open(cr_server *s, cr_serve_job *job)
{
    s->open = cr_grow(s->open, s->num_open, &s->capacity_open, sizeof(cr_serve_job *));
    job->place = s->num_open;
    s->open[s->num_open++] = job;
}

static void forget(cr_server *s, cr_serve_job *job)
{
    s->open[job->place] = s->open[--s->num_open];
    s->open[job->place]->place = job->place;
    cr_serve_job_free(job);
}

static cr_serve_queue *queue_of(const cr_server *s, cr_serve_route route)
{
    return route == CR_SERVE_TOKENIZE || route == CR_SERVE_DETOKENIZE ? s->texts : s->compute;
}

static void refuse_full(cr_server *s, cr_serve_queue *queue, cr_http_exchange *x)
{
    char seconds[16];

    s->metrics.num_rejected_queue++;
    snprintf(seconds, sizeof seconds, "%d", cr_serve_queue_drain_s(queue));
    cr_http_set(x, "Retry-After", seconds);
    cr_http_fail(x, 503, NULL, NULL, "the queue of requests is full, try again later");
}

void cri_work_put(cr_server *s, cr_http_exchange *x, cr_serve_route route)
{
    cri_server_call *call = x->user;
    cr_serve_queue *queue = queue_of(s, route);
    cr_serve_job *job;
    double deadline_s;

    if (!read_deadline(x, &deadline_s)) {
        cr_http_fail(x, 400, "invalid_value", "x-croll-deadline-ms",
                     "x-croll-deadline-ms is a whole number of milliseconds");
        return;
    }
    job = CR_NEW(cr_serve_job);
    job->route = route;
    job->deadline_s = deadline_s;
    job->may_generate = call->may_generate;
    job->x = x;
    strcpy(job->id, x->id);
    if (strcmp(call->tenant, CRI_NO_TENANT) != 0) strcpy(job->user, call->tenant);
    cr_http_take_body(x, &job->body);
    if (job->body.num_bytes)
        job->estimated_tokens = cr_serve_estimate_tokens(job->body.data, job->body.num_bytes);
    if (cr_serve_queue_put(queue, job, call->tenant, call->weight)) {
        call->job = job;
        add_open(s, job);
        return;
    }
    cr_serve_job_free(job);
    refuse_full(s, queue, x);
}

/* ---- the I/O thread: out ---- */

/* Its client does not wait any more, or gets an answer now; the job ends when the other thread gives it back. */
static cr_http_exchange *let_go(cr_serve_job *job)
{
    cr_http_exchange *x = job->x;
    cri_server_call *call = x->user;

    call->job = NULL;
    job->x = NULL;
    job->is_cancelled = true;
    return x;
}

void cri_work_gone(cr_server *s, cr_http_exchange *x)
{
    cri_server_call *call = x->user;

    (void)s;
    if (call && call->job) let_go(call->job);
}

static void set_identity(cr_server *s, cr_serve_job *job)
{
    cr_http_exchange *x = job->x;

    cr_http_set(x, "x-croll-version", s->options.version);
    if (job->weights[0]) cr_http_set(x, "x-croll-weights", job->weights);
    if (job->ignored.num_bytes) cr_http_set(x, "x-croll-ignored", job->ignored.data);
}

/* Events that came since the last wake. */
static void send_events(cr_server *s, cr_serve_job *job)
{
    cr_buf events = {0};

    if (job->x && cr_serve_queue_events(queue_of(s, job->route), job, &events)) {
        if (!job->is_streaming) {
            set_identity(s, job);
            cr_http_set(job->x, "Cache-Control", "no-cache");
            cr_http_set(job->x, "X-Accel-Buffering", "no");
            cr_http_stream(job->x, 200, "text/event-stream; charset=utf-8");
        }
        job->is_streaming = true;
        cr_http_stream_add(job->x, events.data, events.num_bytes);
    }
    cr_buf_free(&events);
}

static void answer(cr_server *s, cr_serve_job *job)
{
    const cr_serve_error *e = &job->error;
    cri_server_call *call = job->x->user;

    if (job->is_pushed_out) {
        call->queued_s = cr_now_s() - job->put_s;
        refuse_full(s, queue_of(s, job->route), let_go(job));
        return;
    }
    call->queued_s = job->begin_s - job->put_s;
    call->worked_s = job->end_s - job->begin_s;
    call->model_s = job->model_s;
    send_events(s, job);
    if (!job->x) return; /* the client was too slow */
    if (!job->is_streaming) set_identity(s, job);
    if (job->is_streaming)
        cr_http_stream_end(let_go(job));
    else if (e->status)
        cr_http_fail(let_go(job), e->status, e->code, e->param[0] ? e->param : NULL, e->message);
    else
        cr_http_answer(let_go(job), 200, "application/json", job->out.data, job->out.num_bytes);
}

static void collect(cr_server *s, cr_serve_queue *queue)
{
    for (cr_serve_job *job = cr_serve_queue_collect(queue), *next; job; job = next) {
        next = job->next;
        if (job->end_s > 0) cr_serve_metrics_job(&s->metrics, job);
        if (job->x) answer(s, job);
        forget(s, job);
    }
}

void cri_work_collect(cr_server *s)
{
    if (atomic_exchange(&s->is_due, false)) cr_http_expect(s->http, CRI_SPIN_S);
    collect(s, s->texts);
    collect(s, s->compute);
    for (size_t i = 0; i < s->num_open; i++)
        send_events(s, s->open[i]);
    cri_admin_collect(s);
}

/* An error for a client that waits, as an event if its stream has begun. */
static void fail_exchange(cr_serve_job *job, int status, const char *code, const char *message)
{
    cr_http_exchange *x = let_go(job);
    cr_serve_error error = {0};
    cr_buf event = {0};

    if (!job->is_streaming) {
        if (status == 503) cr_http_set(x, "Retry-After", "1");
        cr_http_fail(x, status, code, NULL, message);
        return;
    }
    cr_serve_fail(&error, status, code ? code : "deadline_exceeded", NULL, "%s", message);
    cr_serve_stream_fail(&error, &event);
    cr_http_stream_add(x, event.data, event.num_bytes);
    cr_http_stream_end(x);
    cr_buf_free(&event);
}

void cri_work_tick(cr_server *s)
{
    double now_s = cr_now_s();

    for (size_t i = 0; i < s->num_open; i++) {
        cr_serve_job *job = s->open[i];
        if (!job->x || job->deadline_s == 0 || now_s < job->deadline_s) continue;
        s->metrics.num_late++;
        fail_exchange(job, 504, NULL, "the deadline of the request has passed");
    }
}

void cri_refuse_draining(cr_http_exchange *x)
{
    cr_http_set(x, "Retry-After", "1");
    cr_http_fail(x, 503, "shutting_down", NULL, "the service is shutting down");
}

void cri_work_fail_all(cr_server *s)
{
    for (size_t i = 0; i < s->num_open; i++)
        if (s->open[i]->x)
            fail_exchange(s->open[i], 503, "shutting_down", "the service is shutting down");
}

void cri_work_abort(cr_server *s)
{
    for (size_t i = 0; i < s->num_open; i++)
        if (s->open[i]->x && cr_serve_is_for_model(s->open[i]->route))
            fail_exchange(s->open[i], 503, "paused", "the service was paused");
}

bool cri_work_is_open(const cr_server *s)
{
    for (size_t i = 0; i < s->num_open; i++)
        if (s->open[i]->x) return true;
    return false;
}

void cri_work_free(cr_server *s)
{
    cr_serve_queue_free(s->texts); /* and all jobs */
    cr_serve_queue_free(s->compute);
    cr_free(s->open);
}
