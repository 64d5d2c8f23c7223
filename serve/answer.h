/* answer.h -- results of a request to the JSON text of its route, whole or in chunks of a stream.
 *
 * A result is arrays: ids, texts, log-probs, ranks, the most likely ids. Numbers are printed with "%.9g",
 * so that they read back as the same float32; a log-prob of -inf is printed as -9999.0, a NaN is an
 * error of the service (CR_ENUMERIC), never a number. The number of the actual token has the same digits
 * wherever it is printed. Token strings are those of serve/texts.h; where two ids of one place have one string they are
 * "token_id:N".
 *
 * Pure functions: no sockets, no model. Any number of threads.
 */
#ifndef CR_SERVE_ANSWER_H
#define CR_SERVE_ANSWER_H

#include "serve/request.h"

/* ---- results; all borrowed by the functions below ---- */

/* Numbers of num consecutive places. Arrays that were not asked for are NULL. */
typedef struct cr_serve_scores {
    size_t num;
    const float *log_probs;     /* [num] of the actual token */
    const int32_t *ranks;       /* [num] 1 + ids with a larger logit */
    size_t num_top;             /* most likely ids a place, best first */
    const int32_t *top_ids;     /* [num, num_top]; -1: no more */
    const float *top_log_probs; /* [num, num_top] */
    size_t num_candidates;
    const float *candidates; /* [num, num_candidates] */
    const float *entropy;    /* [num] */
} cr_serve_scores;

/* One sample, or a part of it in a stream. */
typedef struct cr_serve_sample {
    const int32_t *ids;
    size_t num_ids;
    const char *text; /* of the ids */
    size_t text_bytes;
    cr_serve_scores scores;
    const char *finish;    /* "stop" or "length"; NULL: goes on */
    const char *stop_text; /* what ended it, or NULL */
    int32_t stop_id;       /* the same as an id, or -1: text, end of text or length */
} cr_serve_sample;

typedef struct cr_serve_result {
    const cr_serve_request *request;
    const char *id;  /* of the answer, without "cmpl-" */
    int64_t created; /* seconds since 1970 */
    double latency_s;
    /* [num_prompts]: places from max(1, wanted.prompt_start) on; NULL: prompts were not scored */
    const cr_serve_scores *prompt_scores;
    const cr_serve_sample *samples; /* [num_prompts * n], prompt by prompt */
    const int64_t *cached;          /* [num_prompts] tokens that were in the cache; NULL: none */
    const cr_buf *prompt_texts;     /* [num_prompts] decoded; NULL, or an empty one: not so far */
} cr_serve_result;

/* Append the body of a 200. CR_ENUMERIC: a number is NaN. */
CR_MUST cr_status cr_serve_answer(const cr_serve_result *result, cr_buf *out, cr_err *err);

/* ---- streams: events of text/event-stream ---- */

/* What must be known from one chunk to the next; {0} at the beginning. */
typedef struct cr_serve_stream_sample {
    bool has_begun;
    size_t num_ids;                                             /* sent so far */
    int64_t num_code_points;                                    /* of token strings sent so far */
    cr_buf ids, text, log_probs, ranks, top_ids, top_log_probs; /* /generate: all so far */
} cr_serve_stream_sample;

/* Of the events of OpenAI's shapes the first has the identity, of /generate, whose events are whole answers, each. */
typedef struct cr_serve_stream {
    cr_serve_result result; /* borrowed parts live as long as the stream; samples is not used */
    cr_serve_stream_sample *samples; /* [num_prompts * n] owned */
    bool has_identity;               /* in an event so far */
} cr_serve_stream;

void cr_serve_stream_open(cr_serve_stream *stream, const cr_serve_result *result);
void cr_serve_stream_close(cr_serve_stream *stream);
/* Append the events of new tokens of a sample (index: prompt * n + sample): none if they complete no text
 * and only text is asked for. The event with part->finish is the sample's last. */
CR_MUST cr_status cr_serve_stream_part(cr_serve_stream *stream, size_t index,
                                       const cr_serve_sample *part, cr_buf *out, cr_err *err);
/* Append the usage if it is asked for, and "data: [DONE]". */
void cr_serve_stream_end(cr_serve_stream *stream, cr_buf *out);
/* Append an error after the first byte of a stream, and "data: [DONE]". */
void cr_serve_stream_fail(const cr_serve_error *error, cr_buf *out);

/* Bytes of text that may be sent: those before a stop text and before what may become one. may_stop: a stop text
 * that is complete ends the sample, as it does after min_tokens. */
size_t cr_serve_sendable(const char *text, size_t num_bytes, char *const *stop, size_t num_stop,
                         bool may_stop);

/* ---- small bodies ---- */

void cr_serve_error_body(const cr_serve_error *error, cr_buf *out);
void cr_serve_models_body(const cr_serve_service *service, cr_buf *out);
void cr_serve_model_body(const cr_serve_model *model, cr_buf *out);
/* The fields of tokenizer_config.json, with tokens as strings. */
CR_MUST cr_status cr_serve_tokenizer_info(const cr_serve_model *model, cr_buf *out, cr_err *err);
/* What an update has done. */
void cr_serve_update_body(const cr_serve_model *model, cr_buf *out);
/* {"weight_version":..}: of the first model, and of all by name. */
void cr_serve_versions_body(const cr_serve_service *service, cr_buf *out);
/* OpenAPI 3.1 of the POST routes with fields, made of their tables, and of the others. */
typedef struct cr_serve_get {
    const char *method, *path, *help, *content; /* method: "get"; content: type of a 200 */
} cr_serve_get;
void cr_serve_openapi(const cr_serve_get *gets, size_t num, cr_buf *out);

#endif
