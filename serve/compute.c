/* compute.c -- see compute.h. */
#include "serve/compute.h"

#include <string.h>

#define SHARED_S 60.0

struct cr_compute_entry {
    cr_job *job;
    cr_share *share;
    size_t num_in_round; /* its asks that are in the round */
    int64_t num_placed;  /* samples that were handed to the engine */
    int64_t num_charged; /* of job->num_sampled */
    int64_t used_tokens;
};

struct cr_compute_run {
    size_t entry, first, num;
};

typedef struct cr_compute_entry entry;

void cr_compute_init(cr_compute *c, cr_scoring *scoring, cr_lanes *lanes, int64_t round_tokens,
                     int64_t max_samples)
{
    *c = (cr_compute){.scoring = scoring,
                      .lanes = lanes,
                      .round_tokens = round_tokens,
                      .max_samples = max_samples,
                      .shared_s = SHARED_S};
}

void cr_compute_set_engine(cr_compute *c, size_t place, cr_engine *engine)
{
    c->engines[place] = engine;
    if (engine) cr_engine_set_on_token(engine, cr_job_on_token, NULL);
}

static size_t place_of(const cr_job *job)
{
    return job->request.model->place;
}

static bool is_same_model(const cr_job *a, const cr_job *b)
{
    return place_of(a) == place_of(b) && a->request.model->adapter == b->request.model->adapter;
}

void cr_compute_free(cr_compute *c)
{
    while (c->num_jobs) {
        cr_job *job = c->entries[c->num_jobs - 1].job;
        cr_compute_remove(c, job);
        cr_job_destroy(job);
    }
    cr_free(c->entries);
    cr_free(c->asks);
    cr_free(c->scores);
    cr_free(c->runs);
}

/* Where a tenant starts that comes back. */
static void advance(cr_compute *c)
{
    double min = c->num_jobs ? c->entries[0].share->used : 0;

    for (size_t i = 0; i < c->num_jobs; i++)
        if (c->entries[i].share->used < min) min = c->entries[i].share->used;
    if (c->now < min) c->now = min;
}

static bool has_several(const cr_compute *c)
{
    for (size_t i = 1; i < c->num_jobs; i++)
        if (c->entries[i].share != c->entries[0].share) return true;
    return false;
}

/* Now, or shortly before. */
static bool is_shared(const cr_compute *c)
{
    return has_several(c) || cr_now_s() < c->shared_until_s;
}

void cr_compute_add(cr_compute *c, cr_job *job, cr_share *share)
{
    advance(c);
    cr_share_wake(share, c->now);
    c->entries = cr_grow(c->entries, c->num_jobs, &c->capacity, sizeof *c->entries);
    c->entries[c->num_jobs++] = (entry){.job = job, .share = share};
    if (c->last_share && (c->last_share != share || has_several(c)))
        c->shared_until_s = cr_now_s() + c->shared_s;
    c->last_share = share;
    if (!c->engines[place_of(job)] && !cr_serve_is_scoring(&job->request))
        cr_job_fail(job, 501, "unsupported_parameter", "this service samples at most one token");
}

int64_t cr_compute_remove(cr_compute *c, cr_job *job)
{
    size_t i = 0;
    int64_t used;

    while (i < c->num_jobs && c->entries[i].job != job)
        i++;
    CR_CHECK(i < c->num_jobs, "a job that was not added");
    if (job->num_running > 0 && c->engines[place_of(job)])
        cr_job_cancel(job, c->engines[place_of(job)]);
    used = c->entries[i].used_tokens;
    if (has_several(c)) c->shared_until_s = cr_now_s() + c->shared_s;
    advance(c);
    memmove(c->entries + i, c->entries + i + 1, (--c->num_jobs - i) * sizeof *c->entries);
    return used;
}

static void charge(entry *e, int64_t tokens)
{
    cr_share_use(e->share, tokens);
    e->used_tokens += tokens;
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

/* The next ask of a job for this round; NULL: none. */
static const cr_score_ask *next_ask(const entry *e)
{
    size_t at = e->job->num_taken + e->num_in_round;

    return !e->job->is_done && e->job->num_running == 0 && at < e->job->num_asks ? &e->job->asks[at]
                                                                                 : NULL;
}

/* The first job of the tenant whose turn it is; of (first NULL) any model or that of *first. *until: so far it may go on;
 * the next one's use. NULL: none. */
static entry *choose(cr_compute *c, const entry *first, double *until)
{
    entry *next = NULL;

    *until = 1e300;
    for (size_t i = 0; i < c->num_jobs; i++) {
        entry *e = &c->entries[i];
        if (first && !is_same_model(e->job, first->job)) continue;
        if (!next_ask(e) || (next && e->share == next->share)) continue;
        if (next && e->share->used >= next->share->used) {
            if (e->share->used < *until) *until = e->share->used;
            continue;
        }
        if (next) *until = next->share->used;
        next = e;
    }
    return next;
}

/* Asks of one job, while it is its tenant's turn. False: the round is full. A wrong ask fails its job alone. */
static bool gather(cr_compute *c, entry *e, double until, size_t *num, int64_t *tokens)
{
    const cr_score_ask *ask;
    size_t first = *num;
    bool has_room = true;
    cr_err err = {0};

    while ((ask = next_ask(e)) && (*num == first || e->share->used <= until)) {
        if (cr_scoring_check(c->scoring, place_of(e->job), ask, &err) != CR_OK) {
            cr_job_fail(e->job, 400, "invalid_value", err.msg);
            break;
        }
        if (*tokens > 0 && *tokens + (int64_t)ask->num_ids > c->round_tokens) {
            has_room = false;
            break;
        }
        *tokens += (int64_t)ask->num_ids;
        charge(e, (int64_t)ask->num_ids);
        add_ask(c, (*num)++, ask);
        e->num_in_round++;
    }
    if (*num == first) return has_room;
    c->runs = cr_grow(c->runs, c->num_runs, &c->capacity_runs, sizeof *c->runs);
    c->runs[c->num_runs++] = (struct cr_compute_run){(size_t)(e - c->entries), first, *num - first};
    return has_room;
}

/* To one job: most of the time of a small model's round goes into the text of its answers. */
static cr_status hand_out(void *ctx, size_t at, int lane, cr_device *dev, cr_err *err)
{
    const cr_compute *c = ctx;

    (void)lane;
    (void)dev;
    (void)err;
    for (size_t i = 0; i < c->num_runs; i++)
        if (c->runs[i].entry == at)
            cr_job_take_scores(c->entries[at].job, c->scores + c->runs[i].first, c->runs[i].num);
    return CR_OK;
}

static cr_status run_round(cr_compute *c, cr_err *err)
{
    const cr_score_ask *asks;
    int64_t tokens = 0;
    size_t num = 0;
    double until;
    entry *first, *e;

    c->num_runs = 0;
    for (size_t i = 0; i < c->num_jobs; i++) {
        c->entries[i].num_in_round = 0;
        cr_job_asks(c->entries[i].job, &asks);
    }
    for (e = first = choose(c, NULL, &until); e && gather(c, e, until, &num, &tokens);)
        e = choose(c, first, &until);
    if (num == 0) return CR_OK;
    CR_TRY(cr_scoring_round(c->scoring, place_of(first->job), first->job->request.model->adapter,
                            c->asks, num, c->scores, err));
    for (size_t i = 0; i < c->num_jobs; i++)
        if (c->entries[i].num_in_round > 0)
            c->entries[i].job->model_s += cr_scoring_forward_s(c->scoring);
    if (c->on_scores) c->on_scores(c->on_scores_ctx, c->num_jobs);
    return cr_lanes_each(c->lanes, c->num_jobs, hand_out, c, err);
}

/* ---- samples ---- */

static int64_t num_in_engine(const entry *e)
{
    if (e->job->num_running == 0) return 0;
    return e->num_placed - (int64_t)(e->job->num_samples - e->job->num_running);
}

static int64_t num_of_share(const cr_compute *c, size_t place, const cr_share *share)
{
    int64_t num = 0;

    for (size_t i = 0; i < c->num_jobs; i++)
        if (place_of(c->entries[i].job) == place && (!share || c->entries[i].share == share))
            num += num_in_engine(&c->entries[i]);
    return num;
}

/* The first job of the tenant whose turn it is to get places in an engine. */
static entry *choose_sampled(cr_compute *c, size_t place)
{
    int64_t max = is_shared(c) ? c->max_samples - c->max_samples / 8 : c->max_samples;
    entry *next = NULL;

    for (size_t i = 0; i < c->num_jobs; i++) {
        entry *e = &c->entries[i];
        if (e->job->is_done || e->job->num_submitted == e->job->request.num_prompts) continue;
        if (e->job->num_running == 0 || place_of(e->job) != place ||
            num_of_share(c, place, e->share) >= max)
            continue;
        if (!next || e->share->used < next->share->used) next = e;
    }
    return next;
}

/* Fill an engine's places, a prompt after the other. */
static void place_samples(cr_compute *c, size_t place)
{
    entry *e;

    while (num_of_share(c, place, NULL) < c->max_samples && (e = choose_sampled(c, place))) {
        size_t prompt = e->job->num_submitted;
        cr_job_submit_next(e->job, c->engines[place]);
        e->num_placed += e->job->request.sampling.n;
        charge(e, (int64_t)e->job->request.prompts[prompt].num_ids);
    }
}

static cr_status step_engine(cr_compute *c, size_t place, cr_err *err)
{
    cr_generated g;
    double begin_s, step_s;

    place_samples(c, place);
    if (cr_engine_is_idle(c->engines[place])) return CR_OK;
    begin_s = cr_now_s();
    CR_TRY(cr_engine_step(c->engines[place], err));
    step_s = cr_now_s() - begin_s;
    for (size_t i = 0; i < c->num_jobs; i++) {
        entry *e = &c->entries[i];
        if (place_of(e->job) == place && num_in_engine(e) > 0) e->job->model_s += step_s;
        charge(e, e->job->num_sampled - e->num_charged);
        e->num_charged = e->job->num_sampled;
    }
    while (cr_engine_poll(c->engines[place], &g))
        cr_job_take_sample(&g);
    return CR_OK;
}

cr_status cr_compute_step(cr_compute *c, cr_err *err)
{
    CR_TRY(run_round(c, err));
    for (size_t place = 0; place < CR_SERVE_MAX_MODELS; place++)
        if (c->engines[place]) CR_TRY(step_engine(c, place, err));
    return CR_OK;
}
