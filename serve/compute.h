/* compute.h -- jobs on models: rounds of scoring and steps of their engines, in turns.
 *
 * Each step is one round of the jobs that wait for scores, at most round_tokens long, and one step of each engine for
 * those that sample: neither kind starves the other. A round is of the model of the prompt whose turn it is, and of its adapter; prompts of
 * others wait for the next one. Prompts of a round, and those that get a place in the engine,
 * are chosen by what their tenants have used so far (serve/share.h): a request with thousands of prompts gets its part
 * of each round, not all of it; while there are several tenants, and a minute longer, one takes at most seven eighths
 * of the engine's places. Jobs of one tenant go in the order of their arrival. What arrives while a round runs is in the next one;
 * nothing waits for company.
 *
 * One thread, that which opened the world. With several ranks the others follow (serve/scoring.h); the engine
 * is of one process.
 */
#ifndef CR_SERVE_COMPUTE_H
#define CR_SERVE_COMPUTE_H

#include "kernels/lanes.h"
#include "serve/job.h"
#include "serve/share.h"

typedef struct cr_compute {
    cr_scoring *scoring;                     /* borrowed, as are lanes and engines */
    cr_lanes *lanes;                         /* answers of a round are written by several threads */
    cr_engine *engines[CR_SERVE_MAX_MODELS]; /* NULL: samples of more than one token are refused */
    int64_t round_tokens, max_samples;
    struct cr_compute_entry *entries; /* [num_jobs] in the order of arrival; jobs are owned */
    size_t num_jobs, capacity;
    const cr_share *last_share; /* of the last job that came */
    double shared_until_s;      /* there are several tenants, on the clock of cr_now_s */
    double shared_s;            /* how long after their jobs; set by init */
    double now;                 /* of cr_share */
    /* A round has run, and answers are written next: num_jobs are there. NULL: nothing to do */
    void (*on_scores)(void *ctx, size_t num_jobs);
    void *on_scores_ctx;
    cr_score_ask *asks; /* of a round */
    cr_score *scores;
    struct cr_compute_run *runs; /* [num_runs] asks that follow each other and are of one job */
    size_t capacity_asks, num_runs, capacity_runs;
} cr_compute;

/* max_samples: that an engine runs at a time. */
void cr_compute_init(cr_compute *c, cr_scoring *scoring, cr_lanes *lanes, int64_t round_tokens,
                     int64_t max_samples);
/* The engine of a model, of which requests have the place, while no job of it is there. */
void cr_compute_set_engine(cr_compute *c, size_t place, cr_engine *engine);
void cr_compute_free(cr_compute *c); /* with its jobs */

/* Takes the job. share: of its tenant, borrowed until it is removed. */
void cr_compute_add(cr_compute *c, cr_job *job, cr_share *share);
/* Some work for every kind of job. CR_OK or what broke the model: the process cannot go on. */
CR_MUST cr_status cr_compute_step(cr_compute *c, cr_err *err);
/* Take a job out: one that is done, or one that is not wanted any more. Returns the tokens that it has used. */
int64_t cr_compute_remove(cr_compute *c, cr_job *job);

#endif
