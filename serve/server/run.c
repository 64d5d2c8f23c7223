/* run.c -- the thread of the model: bodies from the queue become jobs, which compute and go back. */
#include "serve/server/server_impl.h"

#include "serve/answer.h"

#include <string.h>
#include <sys/random.h>

/* A request and what is computed for it. */
typedef struct task {
    cr_serve_job *from;
    cr_job *job;
} task;

typedef struct tasks {
    task *task; /* [num] */
    size_t num, capacity;
} tasks;

static uint64_t new_seed(void)
{
    uint64_t seed;

    CR_CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed, "no random numbers");
    return seed;
}

/* Users share no computed beginnings of prompts: cached_tokens and the time would tell what others have sent. */
static void salt(cr_serve_sampling *how, const char *user)
{
    const char *sent = how->cache_salt ? how->cache_salt : "";
    char *own = cr_asprintf("%zu:%s%s", strlen(user), user, sent);

    cr_free(how->cache_salt);
    how->cache_salt = own;
}

static void begin(cr_server *s, cr_compute *compute, tasks *t, cr_serve_job *from)
{
    cr_serve_request request;
    cr_job *job;

    if (cr_serve_request_parse(from->route, from->body.data ? from->body.data : "",
                               from->body.num_bytes, s->service, &request, &from->error) != CR_OK) {
        cr_serve_queue_give(s->compute, from);
        return;
    }
    cr_serve_job_note(from, &request);
    if (from->user[0]) salt(&request.sampling, from->user);
    job = cr_job_create(&request, from->id, new_seed());
    if (!from->may_generate && !cr_serve_is_scoring(&job->request))
        cr_job_fail(job, 403, "permission_error",
                    "the key may score prompts only: max_tokens may be 0 or 1");
    cr_compute_add(compute, job, cr_serve_job_share(from));
    t->task = cr_grow(t->task, t->num, &t->capacity, sizeof *t->task);
    t->task[t->num++] = (task){from, job};
}

/* Other weights: no request is worked on. */
static cr_status update(cr_server *s, const cr_serve_updates *updates, cr_serve_job *from,
                        cr_err *err)
{
    cr_serve_request request;
    cr_status status = CR_OK;
    size_t place;

    from->used_tokens = 0;
    if (from->is_cancelled ||
        cr_serve_request_parse(from->route, from->body.data ? from->body.data : "",
                               from->body.num_bytes, s->service, &request, &from->error) != CR_OK) {
        cr_serve_queue_give(s->compute, from);
        return CR_OK;
    }
    cr_serve_job_note(from, &request);
    place = request.model->place;
    s->is_updating = true;
    status = updates->update(updates->ctx, &request.update, place, &from->error, err);
    s->is_updating = false;
    if (status != CR_OK) {
        cr_serve_fail(&from->error, 500, "internal_error", NULL, "%s", err->msg);
    } else if (!from->error.status) {
        cr_serve_update_body(&s->service->models[place], &from->out);
        snprintf(from->weights, sizeof from->weights, "%s",
                 s->service->models[place].weights_sha256);
    }
    cr_serve_request_free(&request);
    cr_serve_queue_give(s->compute, from);
    return status;
}

static bool is_late(const task *t)
{
    int64_t ms = t->job->request.deadline_ms;

    return ms > 0 && cr_now_s() - t->from->put_s > 1e-3 * (double)ms;
}

/* Give back what is done and what no client waits for, send events of the others. */
static void finish(cr_server *s, cr_compute *compute, tasks *t)
{
    size_t kept = 0;

    for (size_t i = 0; i < t->num; i++) {
        cr_serve_job *from = t->task[i].from;
        cr_job *job = t->task[i].job;
        if (is_late(&t->task[i]))
            cr_job_fail(job, 504, "deadline_exceeded", "the deadline of the request has passed");
        if (job->request.wanted.is_stream) cr_serve_queue_send(s->compute, from, &job->out);
        if (!job->is_done && !from->is_cancelled) {
            t->task[kept++] = t->task[i];
            continue;
        }
        from->error = job->error;
        from->out = job->out;
        for (size_t k = 0; k < job->num_submitted; k++) {
            from->prompt_tokens += (int64_t)job->request.prompts[k].num_ids;
            from->cached_tokens += job->cached[k];
        }
        job->out = (cr_buf){0};
        from->model_s = job->model_s;
        from->used_tokens = cr_compute_remove(compute, job);
        cr_job_destroy(job);
        cr_serve_queue_give(s->compute, from);
    }
    t->num = kept;
}

/* Bodies to jobs; an update waits until those before it are done, and so do all after it. */
static cr_serve_job *take(cr_server *s, cr_compute *compute, tasks *t)
{
    cr_serve_job *from;

    while (t->num < CRI_MOST_TASKS &&
           (from = cr_serve_queue_take(s->compute, /*waits=*/t->num == 0))) {
        if (from->route == CR_SERVE_UPDATE) return from;
        begin(s, compute, t, from);
    }
    return NULL;
}

/* For a client alone: the I/O thread wakes while its answer is written. Where others wait, it has enough to do. */
static void on_scores(void *ctx, size_t num_jobs)
{
    cr_server *s = ctx;

    if (num_jobs > 1 || !s->can_spin) return;
    s->is_due = true;
    cr_http_wake(s->http);
}

cr_status cri_compute_run(cr_server *s, cr_compute *compute, const cr_serve_updates *updates,
                          cr_err *err)
{
    cr_serve_job *waiting = NULL; /* an update */
    tasks t = {0};

    compute->on_scores = on_scores;
    compute->on_scores_ctx = s;
    while (err->status == CR_OK && !cr_serve_queue_has_ended(s->compute)) {
        if (!waiting) waiting = take(s, compute, &t);
        if (waiting && t.num == 0) {
            cr_note(update(s, updates, waiting, err));
            waiting = NULL;
            continue;
        }
        cr_note(cr_compute_step(compute, err));
        finish(s, compute, &t);
    }
    if (waiting) {
        cr_serve_fail(&waiting->error, 503, "shutting_down", NULL, "the service ends");
        cr_serve_queue_give(s->compute, waiting);
    }
    for (size_t i = 0; i < t.num; i++)
        cr_job_fail(t.task[i].job, 500, "internal_error", err->msg);
    finish(s, compute, &t);
    cr_free(t.task);
    return err->status;
}
