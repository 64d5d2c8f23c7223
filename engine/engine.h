/* engine.h -- the generation engine: continuous batching over a paged cache, in one process.
 *
 * Flow 3 of 7. A request is one prompt and n samples. Its prompt is computed once; the samples share
 * its full cache blocks and copy the last one. With keeps_prefixes full blocks stay in the cache after their samples,
 * until their room is needed or weights change, and a request of the same adapter that begins with their tokens does not compute them
 * again. Images of a prompt go through the vision tower once for all samples; prompts with equal ids and other images have nothing in
 * common from the first image on. Each step() is one forward over a row per running
 * sample and chunks of waiting prompts; of a model with several adapters one for each that samples have. When blocks run out the youngest sample gives its up and is
 * computed again later.
 *
 * A sample's tokens depend on the weights, its prompt, its settings and (seed, sample id, position)
 * only: not on its neighbours, on limits, on preemption, or on the rank. Log-probs are the raw
 * model's or those of the distribution that was sampled, with the bits of a packed forward
 * (docs/sampling.md).
 *
 * Ownership: model and device are borrowed; requests are copied; a polled sample belongs to the
 * caller (cr_generated_free). No allocation per step after warm-up. One thread.
 */
#ifndef CR_ENGINE_H
#define CR_ENGINE_H

#include "engine/prompt_images.h"
#include "kernels/attention.h"
#include "models/models.h"
#include "text/tokenizer.h"

typedef struct cr_engine cr_engine;

typedef struct cr_engine_limits {
    int64_t max_running;   /* samples at a time */
    int64_t max_model_len; /* prompt and response; 0: the model's max_position_embeddings */
    int64_t max_rows;      /* rows of one forward (chunks of prompts); 0: 512 */
    int64_t
        kv_bytes; /* most memory of the cache; 0: what max_running samples of max_model_len need */
    bool keeps_prefixes; /* between requests */
    bool is_eager;       /* no step is captured (graphs.c) */
} cr_engine_limits;

/* What log-probs are of: the model's softmax, or what was left to draw from after repetition penalty,
 * temperature and filters. Greedy samples have the model's. */
typedef enum cr_log_probs { CR_LOG_PROBS_RAW, CR_LOG_PROBS_SAMPLED } cr_log_probs;

/* Sequences of ids that no sample has: the last id of one is not drawn where the response ends with its other ids. */
typedef struct cr_bad_words {
    const int32_t *ids;     /* of all, one after the other */
    const int32_t *num_ids; /* [num] of each, at least 1 */
    size_t num;
} cr_bad_words;

typedef struct cr_generating {
    cr_log_probs log_probs;
    float temperature;        /* 0: greedy */
    float top_p;              /* >= 1: off */
    float min_p;              /* 0: off */
    int64_t top_k;            /* <= 0: off */
    float repetition_penalty; /* 1: off */
    cr_token_processors
        processors;         /* copied by submit; banned is set by the engine: see min_new_tokens */
    cr_bad_words bad_words; /* copied by submit */
    bool has_ranks;         /* of the tokens: 1 + more likely ids */
    int64_t num_top; /* most likely ids at each token's place, with their log-probs; 0: none */
    int64_t max_new_tokens;
    int64_t
        min_new_tokens; /* before: ids that end a sample are not drawn, stop texts do not end it */
    const char *const *stop; /* texts that end a sample; copied by submit */
    size_t num_stop;
    bool should_cut_stop;    /* leave what ends a sample, a stop text or an id, out of `text` */
    const int32_t *stop_ids; /* ids that end a sample beside the model's eos ids; copied */
    size_t num_stop_ids;
    bool ignores_eos;    /* the model's eos ids end no sample */
    bool keeps_special;  /* special tokens are in `text` */
    bool continues_text; /* `text` goes on where the prompt's ends: a space that begins it stays */
    uint64_t seed;
    uint64_t cache_salt; /* requests with different ones share no prefix */
    int adapter;         /* of the model's (cr_pass.adapter) */
} cr_generating;

/* Does a filter (top_k, top_p, min_p) leave fewer ids to draw from? Not in greedy samples. */
bool cr_generating_has_filter(const cr_generating *how);
/* CR_EARG: a setting that makes no sense. submit checks the same, and the ids of processors. */
CR_MUST cr_status cr_generating_check(const cr_generating *how, cr_err *err);

typedef struct cr_new_token {
    uint64_t sample_id;
    int32_t id, rank;   /* rank, top_ids, top_log_probs: as in cr_generated */
    int64_t num_reused; /* tokens of the prompt that an earlier request had computed */
    float log_prob;
    const int32_t *top_ids;
    const float *top_log_probs;
    const char *text; /* that it completes; may be empty */
    size_t num_bytes;
} cr_new_token;
/* Called for each new token of a sample (user: of its request); what it points to is there during the call. */
typedef void (*cr_engine_on_token)(void *ctx, void *user, const cr_new_token *token);

CR_MUST cr_status cr_engine_create(cr_model *model, cr_device *dev, const cr_engine_limits *limits,
                                   cr_engine **out, cr_err *err);
void cr_engine_destroy(cr_engine *e); /* accepts NULL */
/* For `text` (special tokens left out) and stop texts; borrowed. NULL: neither. */
void cr_engine_set_tokenizer(cr_engine *e, const cr_tokenizer *tokenizer);
void cr_engine_set_on_token(cr_engine *e, cr_engine_on_token on_token, void *ctx);
/* The values at param->weight have changed: pack them again. Only while nothing runs, and once
 * before the first step: the cache is reserved then (CR_EARG: kv_bytes hold no sequence). */
CR_MUST cr_status cr_engine_set_weights(cr_engine *e, cr_err *err);
/* What packed weights take on a device. */
int64_t cr_engine_packed_bytes(const cr_model *model, const cr_device *dev, cr_dtype dtype);
/* Graphs of steps that an engine keeps at most, on a device that has any. */
int64_t cr_engine_max_captured(const cr_model *model, bool is_eager);
/* What gpu_memory_utilization (share) of a memory leaves for the cache beside the weights; negative: less than they
 * need. */
int64_t cr_engine_cache_budget(double share, int64_t memory_bytes, int64_t weight_bytes);

/* Free the cache, packed weights and what steps work in. Only while nothing runs; cr_engine_set_weights
 * comes before the next step. */
void cr_engine_release(cr_engine *e);
/* Bytes of its device that cache and packed weights take. */
int64_t cr_engine_held_bytes(const cr_engine *e);
/* Bytes of its device that steps work in: they grow with the samples that happened to run together. */
int64_t cr_engine_scratch_bytes(const cr_engine *e);

/* CR_EARG: empty prompt, id out of range, no such adapter, or prompt + 1 token does not fit max_model_len. */
CR_MUST cr_status cr_engine_submit(cr_engine *e, const int32_t *prompt_ids, size_t num_prompt,
                                   const uint64_t *sample_ids, size_t num_samples,
                                   const cr_generating *how, void *user, cr_err *err);
/* The same of a prompt with images, which become the engine's if it takes them. CR_EARG: the model takes none, or these do not
 * fit the prompt's placeholders. */
CR_MUST cr_status cr_engine_submit_images(cr_engine *e, const int32_t *prompt_ids,
                                          size_t num_prompt, cr_prompt_images *images,
                                          const uint64_t *sample_ids, size_t num_samples,
                                          const cr_generating *how, void *user, cr_err *err);
/* Does nothing when idle. */
CR_MUST cr_status cr_engine_step(cr_engine *e, cr_err *err);
bool cr_engine_is_idle(const cr_engine *e);
size_t cr_engine_num_waiting(const cr_engine *e); /* samples not yet running */

typedef struct cr_generated {
    uint64_t sample_id;
    void *user; /* of its request */
    int32_t *ids;
    float *log_probs;
    size_t num_ids;
    int32_t *ranks;       /* [num_ids], NULL: not asked for */
    int32_t *top_ids;     /* [num_ids, how.num_top] most likely first; -1: no more can be drawn */
    float *top_log_probs; /* the same; of what log_probs are of */
    /* of filters with CR_LOG_PROBS_SAMPLED, else NULL: log of the probability that the kept ids had
     * before, and the kept ids of each token (num_kept 0: all), one list after the other */
    float *log_mass;
    int32_t *num_kept, *kept_ids;
    size_t num_kept_ids;
    char *text; /* NULL without a tokenizer */
    size_t text_bytes;
    const char *finish; /* "stop" or "length" */
    int stop;           /* index in how.stop of the text that ended it, -1: none did */
    int32_t stop_id;    /* of how.stop_ids, -1: an eos id, a text or the length ended it */
} cr_generated;
/* The next finished sample; false: none. */
bool cr_engine_poll(cr_engine *e, cr_generated *out);
void cr_generated_free(cr_generated *g);
/* Drop all samples of the requests with this user, finished ones too. Between steps, not from on_token. */
void cr_engine_cancel(cr_engine *e, const void *user);
/* Drop everything that waits or runs. */
void cr_engine_abort(cr_engine *e);

typedef struct cr_engine_stats {
    int64_t num_steps, num_tokens, num_prompt_rows, num_preempted, blocks_used, blocks_total;
    int64_t num_reused; /* tokens of prompts that were found in the cache */
    int64_t
        num_towers; /* prompts whose images went through the vision tower, again after preemption */
} cr_engine_stats;
cr_engine_stats cr_engine_get_stats(const cr_engine *e);

#endif
