/* request.h -- the body of a POST to a checked request, for every route that computes something.
 *
 * One table of fields a route (serve/fields.c: name, type, range, where the value goes, whether it is built)
 * is what the parser, its messages, the list of ignored fields and /openapi.json are made of. One struct is
 * the result of all routes: prompts as ids (texts are tokenized, chats rendered), how to sample, and what
 * is to be answered.
 *
 * null is the same as absent. A field that changes samples and is not built is refused, unless its value
 * changes nothing; a field that no table has is accepted and named in `ignored`. Ids go straight from the
 * text into int32 arrays; a prompt that is too long is counted, not kept. Messages, tools and variables of
 * a template become trees, at most CR_SERVE_MAX_TREE values of them.
 *
 * Pure functions but for the decoders of images (serve/images/): no sockets, no model, no state. Any number of threads.
 */
#ifndef CR_SERVE_REQUEST_H
#define CR_SERVE_REQUEST_H

#include "serve/images/images.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum {
    CR_SERVE_MAX_TREE = 65536,
    CR_SERVE_MAX_DEPTH = 32,
    CR_SERVE_MAX_STOP = 64,
    CR_SERVE_MAX_BAD_WORDS = 1024,
    CR_SERVE_MAX_MODELS = 32
};

typedef enum cr_serve_route {
    CR_SERVE_COMPLETIONS, /* POST /v1/completions */
    CR_SERVE_CHAT,        /* POST /v1/chat/completions */
    CR_SERVE_GENERATE,    /* POST /generate: SGLang's */
    CR_SERVE_TOKENS_IN,   /* POST /inference/v1/generate: vLLM's, ids in and out */
    CR_SERVE_TOKENIZE,    /* POST /tokenize */
    CR_SERVE_DETOKENIZE,  /* POST /detokenize */
    CR_SERVE_UPDATE,      /* POST /update_weights_from_disk: SGLang's */
    CR_SERVE_NUM_ROUTES
} cr_serve_route;
const char *cr_serve_route_path(cr_serve_route route);
bool cr_serve_is_for_model(cr_serve_route route); /* scores or samples */

/* ---- the service that a request is for; all borrowed ---- */

typedef struct cr_serve_texts cr_serve_texts;

/* One model by its name. Identity never changes while the struct is in use. */
typedef struct cr_serve_model {
    size_t place;               /* of the model that computes, in the service */
    int adapter;                /* of it; CR_NO_ADAPTER: this is that model itself */
    const char *name, *root;    /* root: its folder or name on the hub */
    const char *parent;         /* of an adapter: the name of its base, or NULL */
    const char *weights_sha256; /* of the sorted hashes of its files */
    const char *tokenizer_sha256;
    const char *weight_version; /* "1", .. */
    const char *self_check;     /* digest of log-probs (self_check.h), or NULL */
    const char *dtype;          /* "bf16", .. */
    const cr_tokenizer *tokenizer;
    const cr_serve_texts *texts; /* of the tokenizer (serve/texts.h); NULL: made for each answer */
    const cr_chat *chat;         /* may be without templates; NULL: chats are refused */
    cr_serve_images *images;     /* NULL: it takes none */
    const char *template;        /* of chats, by ROLL's name (text/chat.h); NULL: the model's own */
    const char *tokenizer_config; /* JSON of tokenizer_config.json, or NULL */
    int64_t vocab_size, max_model_len;
    const int32_t *eos_ids; /* [num_eos] that end a text */
    size_t num_eos;
    int64_t created; /* seconds since 1970 */
} cr_serve_model;

typedef struct cr_serve_service {
    const cr_serve_model *
        models; /* [num_models, at most CR_SERVE_MAX_MODELS]; the first is that of requests without a name */
    size_t num_models;
    int num_ranks;
    int64_t max_prompts, max_samples; /* of a request; samples: n for each prompt */
    int64_t max_logprobs;             /* alternatives a place */
    int64_t max_chat_tokens; /* of a chat that gives no maximum; 0: what is left of the context */
    bool clamps_max_tokens;  /* max_tokens beyond the context is cut instead of refused */
    bool only_scores;        /* the models sample at most one token */
} cr_serve_service;

/* The model of this name: NAME, or NAME@VERSION while it has that version. NULL: no such model. */
const cr_serve_model *cr_serve_find_model(const cr_serve_service *service, const char *name);
/* A sentence with the names that there are, as far as they go. */
void cr_serve_no_model(const cr_serve_service *service, const char *name, char *text,
                       size_t num_bytes);

/* ---- a request ---- */

typedef struct cr_serve_prompt {
    int32_t *ids; /* owned */
    size_t num_ids;
    char *text; /* owned: as it was sent, or rendered from a chat; NULL: ids were sent */
    size_t text_bytes;
    int64_t max_tokens;      /* that fit after it */
    cr_prompt_images images; /* owned; an engine may have taken them */
    int64_t image_bytes;     /* of their values */
} cr_serve_prompt;

typedef struct cr_serve_sampling {
    int64_t n; /* samples of a prompt */
    int64_t max_tokens;
    int64_t min_tokens; /* before: eos and stop_ids are not drawn, stop texts not looked for */
    float temperature, top_p, min_p, repetition_penalty; /* 0 greedy; 1, 0, 1: off */
    float presence_penalty, frequency_penalty;           /* 0: off */
    int64_t top_k;                                       /* <= 0: off */
    int64_t seed;                                        /* any bits */
    bool has_seed;                                       /* false: the job takes a new one */
    bool ignore_eos;
    bool keeps_stop;    /* what ends a sample (a stop text, an id) stays in the answer's text */
    bool skips_special; /* special tokens have no text */
    char **stop;        /* [num_stop] owned */
    size_t num_stop;
    cr_ids stop_ids;
    cr_ids biased;               /* ids, each once, */
    float *bias;                 /* [biased.num] owned: and what is added to their logits */
    cr_ids allowed;              /* only these ids are drawn; none: all */
    cr_ids bad_ids, bad_lengths; /* bad words: all their ids, and how many each has */
    char *cache_salt; /* owned; of requests that share prefixes in the cache; NULL: none */
} cr_serve_sampling;

/* Ids whose log-probs are wanted at each scored place of the prompt: `num_each` ids, the same at all
 * places (num_places 1) or a list for each. */
typedef struct cr_serve_candidates {
    cr_ids ids; /* [num_places, num_each] */
    size_t num_each, num_places;
} cr_serve_candidates;

/* What is answered. Place t of a prompt is its token t given those before it: the first has no number. */
typedef struct cr_serve_wanted {
    int64_t logprobs;        /* alternatives a sampled token; -1: no log-probs at all */
    int64_t prompt_logprobs; /* the same for places of the prompt */
    int64_t
        prompt_top; /* the larger of both where echo prints the prompt's: what is to be computed; -1 */
    int64_t prompt_start; /* first place of the prompt with an entry */
    int64_t prompt_first; /* first place of the prompt with a number */
    cr_serve_candidates candidates;
    bool entropy; /* of the places of the prompt */
    bool
        is_processed; /* log-probs of the prompt are at the temperature, those of samples what they were drawn
                          with; false: the raw model's */
    bool echo; /* the prompt comes before its completion, in text and log-probs */
    bool is_stream, has_usage, has_usage_in_chunks;
    bool token_ids;     /* return_token_ids */
    bool tokens_as_ids; /* token strings are "token_id:N" */
    bool is_base64;     /* arrays of numbers as base64 of little-endian float32 or int32 */
    bool token_strings; /* of /tokenize and of log-probs of /generate */
    bool is_list;       /* /generate: several prompts were sent, a list is answered */
} cr_serve_wanted;

/* Of CR_SERVE_UPDATE; texts are owned. */
typedef struct cr_serve_update {
    char *path;    /* of the new weights: a folder */
    char *version; /* NULL: one more than before */
    char *sha256;  /* that they must have, or its beginning; NULL: any */
} cr_serve_update;

typedef struct cr_serve_request {
    cr_serve_route route;
    const cr_serve_model *model; /* borrowed of the service */
    cr_serve_prompt *prompts;    /* [num_prompts]; of /detokenize: one, the tokens */
    size_t num_prompts;
    cr_serve_sampling sampling;
    cr_serve_wanted wanted;
    cr_serve_update update;
    char *request_id;    /* owned; NULL: none was sent */
    int64_t deadline_ms; /* 0: none */
    cr_buf ignored;      /* "a, b": names of fields without effect */
} cr_serve_request;

/* ---- errors, of any part of the service ---- */

typedef struct cr_serve_error {
    int status;              /* of HTTP; 0: no error */
    const char *type, *code; /* constants: invalid_request_error, context_length_exceeded, .. */
    char param[120];         /* the field and the place in it: prompt[1][5]; "": none */
    char message[480];
} cr_serve_error;

/* Fill in *error with the type that belongs to the status; returns CR_EARG. */
cr_status cr_serve_fail(cr_serve_error *error, int status, const char *code, const char *param,
                        const char *fmt, ...) CR_PRINTF(5, 6);

/* Parse a body. A failure leaves nothing to free in *out and says why in *error. */
CR_MUST cr_status cr_serve_request_parse(cr_serve_route route, const char *body, size_t num_bytes,
                                         const cr_serve_service *service, cr_serve_request *out,
                                         cr_serve_error *error);
void cr_serve_request_free(cr_serve_request *request); /* {0} is fine */

/* Can one packed forward answer it, and a token drawn from each last row if max_tokens is 1? */
bool cr_serve_is_scoring(const cr_serve_request *request);

#endif
