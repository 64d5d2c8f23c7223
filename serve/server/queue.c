/* queue.c -- see queue.h. */
#include "serve/server/queue.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WAIT_S      1    /* take looks at least this often whether all has ended */
#define SPEED_S     10.0 /* how far back the speed of the work is looked at */
#define MAX_DRAIN_S 60

typedef struct list {
    cr_serve_job *first, **end;
} list;

struct cr_tenant {
    cr_share queued; /* under the lock */
    cr_share worked; /* of the other thread */
    list waiting;
    cr_tenant_counts counts;
};

struct cr_serve_queue {
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    _Atomic(int64_t) num_signals; /* of has_work, for a thread that looks without the lock */
    cr_tenant **tenants;          /* owned [num_tenants] */
    size_t num_tenants, capacity;
    double now; /* of cr_share */
    list given, back;
    cr_serve_bounds bounds;
    cr_serve_load load;
    int64_t running_tokens;
    double done_tokens, done_s,
        measured_s; /* the speed: of the last SPEED_S, ever less of the earlier */
    double moved_s;
    bool has_ended;
    void (*wake)(void *ctx);
    void *ctx;
};

/* ---- lists ---- */

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

static cr_serve_job *pop_last(list *l)
{
    cr_serve_job **at = &l->first, *job;

    while ((*at)->next)
        at = &(*at)->next;
    job = *at;
    *at = NULL;
    l->end = at;
    return job;
}

/* ---- life ---- */

cr_serve_queue *cr_serve_queue_create(const cr_serve_bounds *bounds, void (*wake)(void *ctx),
                                      void *ctx)
{
    cr_serve_queue *q = CR_NEW(cr_serve_queue);

    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->has_work, NULL);
    clear(&q->given);
    clear(&q->back);
    q->bounds = *bounds;
    q->measured_s = cr_now_s();
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
    if (job->request) cr_serve_request_free(job->request);
    cr_free(job->request);
    cr_free(job);
}

void cr_serve_job_note(cr_serve_job *job, cr_serve_request *request)
{
    job->ignored = request->ignored;
    request->ignored = (cr_buf){0};
    snprintf(job->weights, sizeof job->weights, "%s", request->model->weights_sha256);
}

void cr_serve_queue_free(cr_serve_queue *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->num_tenants; i++) {
        while (q->tenants[i]->waiting.first)
            cr_serve_job_free(pop(&q->tenants[i]->waiting));
        cr_free(q->tenants[i]);
    }
    while (q->given.first)
        cr_serve_job_free(pop(&q->given));
    while (q->back.first)
        cr_serve_job_free(pop(&q->back));
    cr_free(q->tenants);
    pthread_cond_destroy(&q->has_work);
    pthread_mutex_destroy(&q->lock);
    cr_free(q);
}

/* ---- in ---- */

static cr_tenant *find_tenant(cr_serve_queue *q, const char *name)
{
    cr_tenant *t;

    for (size_t i = 0; i < q->num_tenants; i++)
        if (strcmp(q->tenants[i]->counts.name, name) == 0) return q->tenants[i];
    if (q->num_tenants == CR_MAX_TENANTS) return q->tenants[CR_MAX_TENANTS - 1];
    t = CR_NEW(cr_tenant);
    clear(&t->waiting);
    t->worked.weight = 1;
    snprintf(t->counts.name, sizeof t->counts.name, "%s",
             q->num_tenants == CR_MAX_TENANTS - 1 ? "others" : name);
    q->tenants = cr_grow(q->tenants, q->num_tenants, &q->capacity, sizeof(cr_tenant *));
    q->tenants[q->num_tenants++] = t;
    return t;
}

static bool fits(const cr_serve_queue *q, const cr_serve_job *job)
{
    const cr_serve_load *l = &q->load;

    if (l->num_waiting >= q->bounds.max_requests) return false;
    if (l->waiting_bytes + job->body.num_bytes > q->bounds.max_bytes) return false;
    return l->num_waiting == 0 || l->waiting_tokens + job->estimated_tokens <= q->bounds.max_tokens;
}

static void count_waiting(cr_serve_queue *q, cr_tenant *t, const cr_serve_job *job, int sign)
{
    int64_t tokens = sign * job->estimated_tokens;

    q->load.num_waiting += sign;
    q->load.waiting_tokens += tokens;
    if (sign > 0)
        q->load.waiting_bytes += job->body.num_bytes;
    else
        q->load.waiting_bytes -= job->body.num_bytes;
    t->counts.num_waiting += sign;
    t->counts.waiting_tokens += tokens;
}

/* The part of the queue that a tenant takes for its weight, with this number of requests and tokens more. */
static double part_of(const cr_serve_queue *q, const cr_tenant *t, int64_t requests, int64_t tokens)
{
    double a = (double)(t->counts.num_waiting + requests) / (double)q->bounds.max_requests,
           b = (double)(t->counts.waiting_tokens + tokens) / (double)q->bounds.max_tokens;

    return (a > b ? a : b) / t->queued.weight;
}

/* Take the last requests of tenants that have more waiting than this one would have with its request. */
static bool make_room(cr_serve_queue *q, const cr_tenant *t, const cr_serve_job *job)
{
    bool has_pushed = false;

    while (!fits(q, job)) {
        cr_tenant *max = NULL;
        cr_serve_job *last;
        for (size_t i = 0; i < q->num_tenants; i++)
            if (q->tenants[i]->waiting.first &&
                (!max || part_of(q, q->tenants[i], 0, 0) > part_of(q, max, 0, 0)))
                max = q->tenants[i];
        if (!max || max == t || part_of(q, max, 0, 0) <= part_of(q, t, 1, job->estimated_tokens))
            break;
        last = pop_last(&max->waiting);
        count_waiting(q, max, last, -1);
        max->counts.num_refused++;
        last->is_pushed_out = has_pushed = true;
        append(&q->given, last);
    }
    return has_pushed;
}

bool cr_serve_queue_put(cr_serve_queue *q, cr_serve_job *job, const char *tenant, double weight)
{
    bool is_taken, has_pushed;
    cr_tenant *t;

    pthread_mutex_lock(&q->lock);
    t = find_tenant(q, tenant);
    t->queued.weight = weight;
    has_pushed = !q->has_ended && make_room(q, t, job);
    is_taken = !q->has_ended && fits(q, job);
    if (is_taken) {
        job->put_s = cr_now_s();
        job->tenant = t;
        job->used_tokens = -1;
        if (q->load.num_waiting + q->load.num_running == 0) q->moved_s = q->measured_s = job->put_s;
        if (!t->waiting.first) cr_share_wake(&t->queued, q->now);
        append(&t->waiting, job);
        count_waiting(q, t, job, 1);
        q->num_signals++;
        pthread_cond_signal(&q->has_work);
    } else {
        t->counts.num_refused++;
    }
    pthread_mutex_unlock(&q->lock);
    if (has_pushed) q->wake(q->ctx);
    return is_taken;
}

int cr_serve_queue_drain_s(cr_serve_queue *q)
{
    double seconds;

    pthread_mutex_lock(&q->lock);
    seconds = q->done_s + cr_now_s() - q->measured_s; /* with those that have not come back yet */
    if (q->done_tokens > 0)
        seconds *= (double)(q->load.waiting_tokens + q->running_tokens) / q->done_tokens;
    pthread_mutex_unlock(&q->lock);
    return (int)ceil(fmin(fmax(seconds, 1), MAX_DRAIN_S));
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

size_t cr_serve_queue_tenants(cr_serve_queue *q, cr_tenant_counts *out, size_t max)
{
    size_t num;

    pthread_mutex_lock(&q->lock);
    num = q->num_tenants < max ? q->num_tenants : max;
    for (size_t i = 0; i < num; i++)
        out[i] = q->tenants[i]->counts;
    pthread_mutex_unlock(&q->lock);
    return num;
}

void cr_serve_queue_end(cr_serve_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->has_ended = true;
    q->num_signals++;
    pthread_cond_broadcast(&q->has_work);
    pthread_mutex_unlock(&q->lock);
}

/* ---- the other thread ---- */

/* True: a job came, or all has ended, in the time in which the next one comes if a client sends one after the other. */
static bool spin_for_work(cr_serve_queue *q)
{
    int64_t num_signals = q->num_signals;
    double until_s = q->moved_s + q->bounds.spin_s;

    pthread_mutex_unlock(&q->lock);
    while (q->num_signals == num_signals && cr_now_s() < until_s)
        sched_yield();
    pthread_mutex_lock(&q->lock);
    return q->num_signals != num_signals;
}

static void wait_for_work(cr_serve_queue *q)
{
    struct timespec until;

    if (spin_for_work(q)) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_cond_timedwait(&q->has_work, &q->lock, &until);
}

/* The tenant whose turn it is; NULL: none that waits has a place left. */
static cr_tenant *next_tenant(const cr_serve_queue *q)
{
    cr_tenant *next = NULL;

    for (size_t i = 0; i < q->num_tenants; i++) {
        cr_tenant *t = q->tenants[i];
        bool may = t->waiting.first && (q->bounds.max_running_each == 0 ||
                                        t->counts.num_running < q->bounds.max_running_each);
        if (may && (!next || t->queued.used < next->queued.used)) next = t;
    }
    return next;
}

static void begin(cr_serve_queue *q, cr_tenant *t, cr_serve_job *job)
{
    q->now = fmax(q->now, t->queued.used);
    cr_share_use(&t->queued, job->estimated_tokens);
    t->worked.weight = t->queued.weight;
    q->load.num_running++;
    q->running_tokens += job->estimated_tokens;
    t->counts.num_running++;
    job->begin_s = q->moved_s = cr_now_s();
    t->counts.queued_s += job->begin_s - job->put_s;
}

cr_serve_job *cr_serve_queue_take(cr_serve_queue *q, bool waits)
{
    cr_serve_job *job = NULL;
    bool has_given = false;

    pthread_mutex_lock(&q->lock);
    while (!job && !q->has_ended) {
        cr_tenant *t = next_tenant(q);
        if (q->back.first) {
            job = pop(&q->back);
            break;
        }
        if (!t && !waits) break;
        if (!t && has_given) { /* the next job may come late */
            has_given = false;
            pthread_mutex_unlock(&q->lock);
            q->wake(q->ctx);
            pthread_mutex_lock(&q->lock);
            continue;
        }
        if (!t) {
            wait_for_work(q);
            continue;
        }
        job = pop(&t->waiting);
        count_waiting(q, t, job, -1);
        if (!job->is_cancelled) {
            begin(q, t, job);
            break;
        }
        append(&q->given, job);
        has_given = true;
        job = NULL;
    }
    pthread_mutex_unlock(&q->lock);
    if (has_given) q->wake(q->ctx);
    return job;
}

cr_serve_job *cr_serve_queue_take_back(cr_serve_queue *q, bool waits)
{
    cr_serve_job *job;

    pthread_mutex_lock(&q->lock);
    while (waits && !q->back.first && !q->has_ended)
        wait_for_work(q);
    job = q->back.first ? pop(&q->back) : NULL;
    pthread_mutex_unlock(&q->lock);
    return job;
}

void cr_serve_queue_put_back(cr_serve_queue *q, cr_serve_job *job)
{
    pthread_mutex_lock(&q->lock);
    append(&q->back, job);
    q->moved_s = cr_now_s();
    q->num_signals++;
    pthread_cond_signal(&q->has_work);
    pthread_mutex_unlock(&q->lock);
}

cr_share *cr_serve_job_share(cr_serve_job *job)
{
    return &job->tenant->worked;
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

/* Older work counts less and less. */
static void measure(cr_serve_queue *q, double now_s, int64_t tokens)
{
    double seconds = now_s - q->measured_s, left = exp(-seconds / SPEED_S);

    q->done_tokens = q->done_tokens * left + (double)tokens;
    q->done_s = q->done_s * left + seconds;
    q->measured_s = now_s;
}

void cr_serve_queue_give(cr_serve_queue *q, cr_serve_job *job)
{
    cr_tenant *t = job->tenant;
    int64_t used = job->used_tokens < 0 ? job->estimated_tokens : job->used_tokens;

    pthread_mutex_lock(&q->lock);
    job->end_s = q->moved_s = cr_now_s();
    append(&q->given, job);
    q->load.num_running--;
    q->running_tokens -= job->estimated_tokens;
    t->counts.num_running--;
    t->counts.num_tokens += used;
    cr_share_use(&t->queued, used - job->estimated_tokens);
    measure(q, job->end_s, used);
    pthread_mutex_unlock(&q->lock);
    q->wake(q->ctx);
}
