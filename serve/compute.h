/* compute.h -- jobs on one model: rounds of scoring and steps of the engine, in turns.
 *
 * Each step is one round of the jobs that wait for scores, in the order of their arrival and at most round_tokens
 * long, and one step of the engine for those that sample: neither kind starves the other. What arrives while a
 * round runs is in the next one; nothing waits for company.
 *
 * One thread, that which opened the world. With several ranks the others follow (serve/scoring.h); the engine
 * is of one process.
 */
#ifndef CR_SERVE_COMPUTE_H
#define CR_SERVE_COMPUTE_H

#include "serve/job.h"

typedef struct cr_compute {
    cr_scoring *scoring; /* borrowed, as is the engine */
    cr_engine *engine;   /* NULL: samples of more than one token are refused */
    int64_t round_tokens;
    cr_job **jobs; /* [num_jobs] owned */
    size_t num_jobs, capacity;
    cr_score_ask *asks; /* of a round */
    cr_score *scores;
    size_t capacity_asks;
} cr_compute;

void cr_compute_init(cr_compute *c, cr_scoring *scoring, cr_engine *engine, int64_t round_tokens);
void cr_compute_free(cr_compute *c); /* with its jobs */

/* Takes the job. */
void cr_compute_add(cr_compute *c, cr_job *job);
bool cr_compute_is_idle(const cr_compute *c); /* no job, done or not */
/* Some work for every kind of job. CR_OK or what broke the model: the process cannot go on. */
CR_MUST cr_status cr_compute_step(cr_compute *c, cr_err *err);
/* Take a job out: one that is done, or one that is not wanted any more. */
void cr_compute_remove(cr_compute *c, cr_job *job);

#endif
