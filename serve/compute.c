/* compute.c -- see compute.h. */
#include "serve/compute.h"

#include <string.h>

void cr_compute_init(cr_compute *c, cr_scoring *scoring, cr_engine *engine, int64_t round_tokens)
{
    *c = (cr_compute){.scoring = scoring, .engine = engine, .round_tokens = round_tokens};
    if (engine) cr_engine_set_on_token(engine, cr_job_on_token, NULL);
}

void cr_compute_free(cr_compute *c)
{
    while (c->num_jobs) {
        cr_job *job = c->jobs[c->num_jobs - 1];
        cr_compute_remove(c, job);
        cr_job_destroy(job);
    }
    cr_free(c->jobs);
    cr_free(c->asks);
    cr_free(c->scores);
}

void cr_compute_add(cr_compute *c, cr_job *job)
{
    c->jobs = cr_grow(c->jobs, c->num_jobs, &c->capacity, sizeof *c->jobs);
    c->jobs[c->num_jobs++] = job;
    if (job->is_done || cr_serve_is_scoring(&job->request)) return;
    if (c->engine)
        cr_job_submit(job, c->engine);
    else
        cr_job_fail(job, 501, "unsupported_parameter", "this service samples at most one token");
}

void cr_compute_remove(cr_compute *c, cr_job *job)
{
    size_t i = 0;

    while (i < c->num_jobs && c->jobs[i] != job)
        i++;
    CR_CHECK(i < c->num_jobs, "a job that was not added");
    if (job->num_running > 0) cr_job_cancel(job, c->engine);
    memmove(c->jobs + i, c->jobs + i + 1, (--c->num_jobs - i) * sizeof *c->jobs);
}

bool cr_compute_is_idle(const cr_compute *c)
{
    return c->num_jobs == 0;
}

/* ---- rounds ---- */

static void add_ask(cr_compute *c, size_t at, const cr_score_ask *ask)
{
    if (at == c->capacity_asks) {
        size_t num = 2 * at + 64;
        c->asks = cr_realloc(c->asks, at * sizeof *c->asks, num * sizeof *c->asks);
        c->scores = cr_realloc(c->scores, at * sizeof *c->scores, num * sizeof *c->scores);
        c->capacity_asks = num;
    }
    c->asks[at] = *ask;
}

/* The asks of one job that still fit. A wrong one fails its job alone. */
static size_t gather(cr_compute *c, cr_job *job, size_t num, int64_t *tokens)
{
    const cr_score_ask *asks;
    size_t num_asks = cr_job_asks(job, &asks), at = num;
    cr_err err = {0};

    for (size_t i = job->num_taken; i < num_asks && !job->is_done; i++) {
        if (*tokens > 0 && *tokens + (int64_t)asks[i].num_ids > c->round_tokens) break;
        if (cr_scoring_check(c->scoring, &asks[i], &err) != CR_OK) {
            cr_job_fail(job, 400, "invalid_value", err.msg);
            return num;
        }
        *tokens += (int64_t)asks[i].num_ids;
        add_ask(c, at++, &asks[i]);
    }
    return at;
}

static cr_status run_round(cr_compute *c, cr_err *err)
{
    size_t *num_each = CR_NEW_ARRAY(size_t, c->num_jobs), num = 0, at = 0;
    int64_t tokens = 0;
    cr_status status = CR_OK;

    for (size_t i = 0; i < c->num_jobs; i++) {
        size_t now = gather(c, c->jobs[i], num, &tokens);
        num_each[i] = now - num;
        num = now;
    }
    if (num) status = cr_scoring_round(c->scoring, c->asks, num, c->scores, err);
    for (size_t i = 0; status == CR_OK && i < c->num_jobs; i++) {
        if (num_each[i]) cr_job_take_scores(c->jobs[i], c->scores + at, num_each[i]);
        at += num_each[i];
    }
    cr_free(num_each);
    return status;
}

cr_status cr_compute_step(cr_compute *c, cr_err *err)
{
    cr_generated g;

    CR_TRY(run_round(c, err));
    if (!c->engine || cr_engine_is_idle(c->engine)) return CR_OK;
    CR_TRY(cr_engine_step(c->engine, err));
    while (cr_engine_poll(c->engine, &g))
        cr_job_take_sample(&g);
    return CR_OK;
}
