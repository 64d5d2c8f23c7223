/* queue.c -- see queue.h. */
#include "kernels/queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct item {
    cri_work work; /* NULL: a wait for `on` to have run `until` of its items */
    void *args;
    int on;
    uint64_t until;
} item;

typedef struct stream {
    item *items; /* those that have not run are the last ones: num_run to num_queued */
    size_t first, num, capacity;
    uint64_t num_run;
    bool is_running;
    cr_device *dev;
} stream;

struct cri_queues {
    pthread_mutex_t lock;
    stream of[CR_NUM_STREAMS];
    bool is_early;
    cri_queues *next;
};

static struct {
    pthread_mutex_t lock;
    cri_queues *first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- life ---- */

cr_status cri_queues_create(const char *order, cr_device *dev, cr_err *err)
{
    cri_queues *q;
    pthread_mutexattr_t recursive;

    if (strcmp(order, "late") != 0 && strcmp(order, "early") != 0)
        return cr_fail(err, CR_EUSAGE, "CROLL_FAR_STREAMS=%s: late or early", order);
    q = CR_NEW(cri_queues);
    q->is_early = strcmp(order, "early") == 0;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&q->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    pthread_mutex_lock(&all.lock);
    q->next = all.first;
    all.first = q;
    pthread_mutex_unlock(&all.lock);
    dev->queues = q;
    return CR_OK;
}

void cri_queues_destroy(cri_queues *q)
{
    cri_queues **at = &all.first;

    pthread_mutex_lock(&all.lock);
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    pthread_mutex_unlock(&all.lock);
    for (int s = 0; s < CR_NUM_STREAMS; s++) {
        for (size_t i = q->of[s].first; i < q->of[s].num; i++)
            cr_free(q->of[s].items[i].args);
        cr_free(q->of[s].items);
    }
    pthread_mutex_destroy(&q->lock);
    cr_free(q);
}

/* ---- what runs, and when ---- */

static uint64_t num_queued(const stream *s)
{
    return s->num_run + (s->num - s->first);
}

static bool is_held_up(const cri_queues *q, const item *it)
{
    return !it->work && q->of[it->on].num_run < it->until;
}

static cr_status run_until(cri_queues *q, stream *s, uint64_t until, cr_err *err);

/* The streams but compute, as far as events let them. */
static cr_status run_early(cri_queues *q, cr_err *err)
{
    bool has_run = q->is_early;

    while (has_run) {
        has_run = false;
        for (int i = 1; i < CR_NUM_STREAMS; i++) {
            stream *s = &q->of[i];
            if (s->is_running || s->first == s->num || is_held_up(q, &s->items[s->first])) continue;
            CR_TRY(run_until(q, s, s->num_run + 1, err));
            has_run = true;
        }
    }
    return CR_OK;
}

static cr_status run_until(cri_queues *q, stream *s, uint64_t until, cr_err *err)
{
    if (s->num_run >= until) return CR_OK;
    CR_CHECK(!s->is_running, "device far: a stream waits for itself");
    s->is_running = true;
    while (s->num_run < until) {
        item it = s->items[s->first];
        cr_note(it.work ? it.work(s->dev, it.args, err)
                        : run_until(q, &q->of[it.on], it.until, err));
        cr_free(it.args);
        s->first++;
        s->num_run++;
        if (s->first == s->num) s->first = s->num = 0;
        if (err->status != CR_OK) break;
        if (s == &q->of[CR_STREAM_COMPUTE]) cr_note(run_early(q, err));
    }
    s->is_running = false;
    return err->status;
}

static cr_status add(cr_device *dev, item it, cr_err *err)
{
    cri_queues *q = dev->queues;
    stream *s = &q->of[dev->stream];
    cr_status status;

    pthread_mutex_lock(&q->lock);
    s->dev = dev;
    s->items = cr_grow(s->items, s->num, &s->capacity, sizeof *s->items);
    s->items[s->num++] = it;
    status = run_early(q, err);
    pthread_mutex_unlock(&q->lock);
    return status;
}

cr_status cri_queue_add(cr_device *dev, cri_work work, void *args, cr_err *err)
{
    return add(dev, (item){.work = work, .args = args}, err);
}

static cr_status run_stream(cri_queues *q, int number, cr_err *err)
{
    stream *s = &q->of[number];
    cr_status status;

    pthread_mutex_lock(&q->lock);
    status = run_until(q, s, num_queued(s), err);
    pthread_mutex_unlock(&q->lock);
    return status;
}

cr_status cri_queue_run(cr_device *dev, cr_err *err)
{
    return run_stream(dev->queues, dev->stream, err);
}

bool cri_queue_is_empty(cr_device *dev)
{
    cri_queues *q = dev->queues;
    const stream *s = &q->of[dev->stream];
    bool is_empty;

    pthread_mutex_lock(&q->lock);
    is_empty = s->first == s->num;
    pthread_mutex_unlock(&q->lock);
    return is_empty;
}

cr_status cri_queue_run_all(cr_err *err)
{
    pthread_mutex_lock(&all.lock);
    for (cri_queues *q = all.first; q; q = q->next)
        for (int s = 0; s < CR_NUM_STREAMS && err->status == CR_OK; s++)
            cr_note(run_stream(q, s, err));
    pthread_mutex_unlock(&all.lock);
    return err->status;
}

cr_status cri_queue_record(cr_device *dev, cr_event *event, cr_err *err)
{
    const cri_queues *q = dev->queues;

    (void)err;
    if (!q) return CR_OK;
    event->position = num_queued(&q->of[dev->stream]);
    return CR_OK;
}

/* Streams of one device; of another device all that was queued has to run now. */
cr_status cri_queue_wait(cr_device *dev, cr_event *event, cr_err *err)
{
    if (!event->dev->queues) return CR_OK;
    if (event->dev->queues != dev->queues) return cri_queue_run(event->dev, err);
    return add(dev, (item){.on = event->dev->stream, .until = event->position}, err);
}

/* Nothing runs on its own, so who asks makes it run. */
cr_status cri_queue_is_over(cr_device *dev, const cr_event *event, bool *out, cr_err *err)
{
    (void)event;
    *out = true;
    return dev->queues ? cri_queue_run(dev, err) : CR_OK;
}
