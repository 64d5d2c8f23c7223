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
    cri_parser *parser;
    size_t num_parsing;   /* bodies that it has */
    cr_serve_job *update; /* waits for all others; NULL: none */
} tasks;

static uint64_t new_seed(void)
{
    uint64_t seed;

    CR_CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed, "no random numbers");
    return seed;
}

/* Users share no computed beginnings of prompts: cached_tokens and the time would reveal what others have sent. */
static void salt(cr_serve_sampling *how, const char *user)
{
    const char *sent = how->cache_salt ? how->cache_salt : "";
    char *own = cr_asprintf("%zu:%s%s", strlen(user), user, sent);

    cr_free(how->cache_salt);
    how->cache_salt = own;
}

/* A body that was parsed. */
static void begin(cr_server *s, cr_compute *compute, tasks *t, cr_serve_job *from)
{
    cr_serve_request *request = from->request;
    cr_job *job;

    if (!request) {
        cr_serve_queue_give(s->compute, from);
        return;
    }
    if (from->user[0]) salt(&request->sampling, from->user);
    job = cr_job_create(request, from->id, new_seed());
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
    cr_status status = CR_OK;
    size_t place;

    from->used_tokens = 0;
    cri_parse(s, from);
    if (!from->request) {
        cr_serve_queue_give(s->compute, from);
        return CR_OK;
    }
    place = from->request->model->place;
    s->is_updating = true;
    status = updates->update(updates->ctx, &from->request->update, place, &from->error, err);
    s->is_updating = false;
    if (status != CR_OK) {
        cr_serve_fail(&from->error, 500, "internal_error", NULL, "%s", err->msg);
    } else if (!from->error.status) {
        cr_serve_update_body(&s->service->models[place], &from->out);
        snprintf(from->weights, sizeof from->weights, "%s",
                 s->service->models[place].weights_sha256);
    }
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

/* The next body; NULL: none. Beside an update, or with enough under way, only one that the parser has had. */
static cr_serve_job *next_job(cr_server *s, const tasks *t)
{
    const bool waits = t->num == 0;

    if (!t->update && t->num + t->num_parsing < CRI_MAX_TASKS)
        return cr_serve_queue_take(s->compute, waits);
    return t->num_parsing ? cr_serve_queue_take_back(s->compute, waits) : NULL;
}

/* Is it to be parsed while the model computes: is it large, or may it have images to decode? */
static bool takes_long(const cr_server *s, const cr_serve_job *from)
{
    const cr_serve_service *service = s->service;
    bool has_images = false;

    for (size_t i = 0; i < service->num_models; i++)
        has_images = has_images || service->models[i].images;
    return from->body.num_bytes >= CRI_LARGE_BODY || (has_images && from->route == CR_SERVE_CHAT);
}

/* Bodies to jobs; an update waits until those before it are done, and so do all after it. */
static void take(cr_server *s, cr_compute *compute, tasks *t)
{
    cr_serve_job *from;

    while (t->num < CRI_MAX_TASKS && (from = next_job(s, t))) {
        if (from->route == CR_SERVE_UPDATE) {
            t->update = from;
        } else if (!from->is_parsed && takes_long(s, from)) {
            cri_parser_put(t->parser, from);
            t->num_parsing++;
        } else {
            if (from->is_parsed) t->num_parsing--;
            if (!from->is_parsed) cri_parse(s, from);
            begin(s, compute, t, from);
        }
    }
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
    tasks t = {.parser = cri_parser_open(s)};
    cr_serve_job *left;

    compute->on_scores = on_scores;
    compute->on_scores_ctx = s;
    while (err->status == CR_OK && !cr_serve_queue_has_ended(s->compute)) {
        take(s, compute, &t);
        if (t.update && t.num + t.num_parsing == 0) {
            cr_note(update(s, updates, t.update, err));
            t.update = NULL;
            continue;
        }
        cr_note(cr_compute_step(compute, err));
        finish(s, compute, &t);
    }
    cri_parser_close(t.parser);
    while ((left = cr_serve_queue_take_back(s->compute, /*waits=*/false)) || (left = t.update)) {
        if (left == t.update) t.update = NULL;
        cr_serve_fail(&left->error, 503, "shutting_down", NULL, "the service ends");
        cr_serve_queue_give(s->compute, left);
    }
    for (size_t i = 0; i < t.num; i++)
        cr_job_fail(t.task[i].job, 500, "internal_error", err->msg);
    finish(s, compute, &t);
    cr_free(t.task);
    return err->status;
}
