/* sample.h -- one sample as the pipeline keeps it: a response to a prompt, and what became of it.
 *
 * Sample ids: bit 63 for validation, then step (23 bits), draw (24 bits), index (16 bits). They key
 * the random numbers of generation, name the sample in every file, and make retries harmless.
 *
 * Ownership: a cr_sample owns its arrays and texts (cr_sample_free in actors/messages.h).
 */
#ifndef CR_SAMPLE_H
#define CR_SAMPLE_H

#include "base/json.h"

#include <string.h>

/* Which words each token of a sample was drawn from (cr_generated); {0}: no filters. */
typedef struct cr_kept {
    float *log_mass;    /* [num_ids] */
    int32_t *num, *ids; /* [num_ids], and one list after the other */
    size_t num_ids;     /* of all lists */
} cr_kept;

typedef struct cr_sample {
    uint64_t id;
    int domain;            /* index into config->rewards */
    size_t group;          /* place of its group in the rollout */
    uint32_t row;          /* index into the data set */
    int32_t *ids;          /* response tokens; the prompt is data->rows[row].ids */
    float *log_prob_infer; /* [num_ids] */
    size_t num_ids;
    cr_kept kept;
    char *response; /* text, any bytes */
    size_t response_bytes;
    char finish[8]; /* "stop" or "length" */
    char status[12], *detail;
    double score, reward;
    float *token_rewards; /* [num_ids], what the scoring program gives single tokens, or NULL */
    json_t *metrics;      /* its own numbers by name, or NULL */
    float *advantages;    /* [num_ids] once the step has learned, else NULL */
    bool is_second;       /* asked again: the first verdict was a time-out or an error */
    int64_t version;      /* updates that the weights it was sampled with have had */
    bool has_come;
} cr_sample;

/* Timed out and failed ones have no score: they are left out of every mean. */
static inline bool cr_sample_has_verdict(const cr_sample *s)
{
    return strcmp(s->status, "ok") == 0;
}

#endif
