/* job.h -- one request on its way: what it asks of rounds of scoring and of the engine, and the bytes that it has
 * to send.
 *
 *     cr_serve_is_scoring:  create, asks -> a round -> take_scores: is_done
 *     else:                 create, submit_next for each prompt; the engine's tokens and samples -> on_token, take_sample .. until all
 *                           samples are there; then is_done, or asks -> a round -> take_scores: is_done
 *
 * `out` is the body of a 200, or events of a stream as they come. A job that has not sent anything when it fails
 * is answered by an error of HTTP.
 *
 * Samples are drawn with (seed, place of the sample): with a seed in the request, equal prompts of one request get
 * equal samples, and a prompt's samples do not depend on the others; without one they differ.
 *
 * No sockets. One thread: that of the model.
 */
#ifndef CR_SERVE_JOB_H
#define CR_SERVE_JOB_H

#include "engine/sampling.h"
#include "serve/answer.h"
#include "serve/scoring.h"

typedef struct cr_job cr_job;

/* One sample. */
typedef struct cr_job_sample {
    cr_generated made;  /* by the engine; owned, as is text */
    const int32_t *ids; /* of it, or of a round */
    cr_buf text;
    size_t num_ids;
    size_t num_sent; /* bytes of text in events so far */
    cr_serve_scores scores;
    const char *finish; /* NULL: goes on */
    const char *stop_text;
    int32_t stop_id;
} cr_job_sample;

struct cr_job {
    cr_serve_request request; /* owned */
    char *id;                 /* owned: request_id or what the caller made */
    int64_t created;
    double begun_s;                  /* cr_now_s */
    double model_s;                  /* forwards and steps of an engine that it took part in */
    cr_job_sample *samples;          /* [num_samples] owned: prompt by prompt */
    size_t num_samples, num_running; /* num_running: samples that the engine has or will get */
    size_t num_submitted;            /* prompts that the engine got */
    int64_t num_sampled;             /* tokens so far */
    struct cr_job_place *places;     /* [num_prompts] owned: users of the engine's requests */
    cr_score_ask *asks;              /* [num_asks] owned */
    cr_draw_row *draws;
    cr_ends ends;                   /* of draws; owned */
    size_t num_asks, num_taken;     /* num_taken: asks that have their scores */
    cr_arena *arena;                /* copies of scores */
    cr_serve_scores *prompt_scores; /* [num_prompts] owned */
    int64_t *cached;                /* [num_prompts] owned: tokens that the engine had */
    cr_buf *prompt_texts;           /* [num_prompts] owned: decoded for a drawn token */
    cr_serve_stream stream;
    cr_buf out;             /* taken by the caller: it may clear it */
    bool is_done, has_sent; /* has_sent: events */
    cr_serve_error error;   /* status 0: none */
};

/* Takes the request, which is {0} afterwards. seed: for a request without one. id: copied, if it has none. */
cr_job *cr_job_create(cr_serve_request *request, const char *id, uint64_t seed);
void cr_job_destroy(cr_job *job); /* accepts NULL; not while its samples are in an engine */

/* ---- rounds ---- */

/* What it wants of rounds, borrowed until it is done; 0: nothing. A job that is done when it begins (nothing to
 * sample, nothing to score) is done by this call. */
size_t cr_job_asks(cr_job *job, const cr_score_ask **asks);
/* The scores of its next num asks; copied. */
void cr_job_take_scores(cr_job *job, const cr_score *scores, size_t num);

/* ---- the engine ---- */

/* The samples of its next prompt. The engine needs cr_job_on_token. A refusal is in job->error. */
void cr_job_submit_next(cr_job *job, cr_engine *engine);
/* For cr_engine_set_on_token. */
void cr_job_on_token(void *ctx, void *user, const cr_new_token *token);
/* A finished sample of a job, of cr_engine_poll; frees it. Returns its job. */
cr_job *cr_job_take_sample(cr_generated *sample);
/* Drop what the engine has of it. */
void cr_job_cancel(cr_job *job, cr_engine *engine);

/* ---- */

/* It cannot go on: an error, as an event if something was sent already. */
void cr_job_fail(cr_job *job, int status, const char *code, const char *message);

#endif
