/* answer_impl.h -- what the writers of answers share; inside serve/ only.
 *
 * answer.c         numbers, token strings, usage, identity; which writer a route has
 * answer_openai.c  /v1/completions and /v1/chat/completions
 * answer_ids.c     /generate, /inference/v1/generate; /tokenize, /detokenize
 * stream.c         events
 */
#ifndef CR_SERVE_ANSWER_IMPL_H
#define CR_SERVE_ANSWER_IMPL_H

#include "base/json.h"
#include "serve/answer.h"
#include "serve/texts.h"

/* A place to print: its token and its numbers, if it has some. */
typedef struct cri_place {
    int32_t id;
    const cr_serve_scores *scores; /* NULL: the first token of a prompt */
    size_t at;                     /* in scores */
} cri_place;

CR_MUST cr_status cri_add_log_prob(cr_buf *out, float x, cr_err *err);
/* As a JSON string. */
void cri_add_token(const cr_serve_request *r, int32_t id, cr_buf *out);
void cri_add_text(cr_buf *out, const char *text, size_t num_bytes);
void cri_add_finish(const char *finish, cr_buf *out); /* a string or null */
/* "usage":{..} of num_ids sampled tokens. */
void cri_add_usage(const cr_serve_result *result, size_t num_ids, cr_buf *out);
/* "model":..,"system_fingerprint":.. */
void cri_add_model(const cr_serve_request *r, cr_buf *out);
/* The same, and "croll":{identity} */
void cri_add_identity(const cr_serve_request *r, cr_buf *out);
/* The text of a prompt, as echo prints it. */
void cri_add_prompt_text(const cr_serve_result *result, size_t prompt, cr_buf *out);
/* "prompt_logprobs":[..] and, where something was asked for that only croll has, "croll_scores":{..}. */
CR_MUST cr_status cri_add_prompt_scores(const cr_serve_result *result, size_t prompt, cr_buf *out,
                                        cr_err *err);
/* "croll_scores":{..} alone; with a comma before it. */
CR_MUST cr_status cri_add_croll_scores(const cr_serve_result *result, size_t prompt, cr_buf *out,
                                       cr_err *err);
/* The logprobs object of num_places(place by place); *offset: code points before the first. */
CR_MUST cr_status cri_add_completion_logprobs(const cr_serve_result *result, size_t prompt,
                                              const cr_serve_sample *sample, bool has_prompt,
                                              int64_t *offset, cr_buf *out, cr_err *err);
/* "logprobs" as {"content": [..]: the tokens of a sample, each with its alternatives; `end` closes it. add_one leaves its
 * object open. */
typedef cr_status cri_add_one(const cr_serve_request *r, int32_t id, float log_prob, int64_t rank,
                              cr_buf *out, cr_err *err);
CR_MUST cr_status cri_add_content(const cr_serve_request *r, const cr_serve_sample *sample,
                                  cri_add_one *add_one, const char *end, cr_buf *out, cr_err *err);
CR_MUST cr_status cri_add_chat_logprobs(const cr_serve_request *r, const cr_serve_sample *sample,
                                        cr_buf *out, cr_err *err);
CR_MUST cr_status cri_add_ids_logprobs(const cr_serve_request *r, const cr_serve_sample *sample,
                                       cr_buf *out, cr_err *err);
/* "stop_reason":.. */
void cri_add_stop_reason(const cr_serve_sample *sample, cr_buf *out);

CR_MUST cr_status cri_answer_completions(const cr_serve_result *result, cr_buf *out, cr_err *err);
CR_MUST cr_status cri_answer_chat(const cr_serve_result *result, cr_buf *out, cr_err *err);
CR_MUST cr_status cri_answer_generate(const cr_serve_result *result, cr_buf *out, cr_err *err);
CR_MUST cr_status cri_answer_ids(const cr_serve_result *result, cr_buf *out, cr_err *err);
void cri_answer_tokenize(const cr_serve_request *r, cr_buf *out);
void cri_answer_detokenize(const cr_serve_request *r, cr_buf *out);
/* One object of /generate. */
CR_MUST cr_status cri_add_generated(const cr_serve_result *result, size_t prompt,
                                    const cr_serve_sample *sample, cr_buf *out, cr_err *err);

#endif
