/* sample.h -- one sample as the pipeline keeps it: the segments of its tokens, and what became of it.
 *
 * Ownership: a cr_sample owns its arrays and texts (cr_sample_free in samples/messages.h).
 */
#ifndef CR_SAMPLE_H
#define CR_SAMPLE_H

#include "base/json.h"
#include "configs/configs.h"
#include "rl/batch_columns.h"
#include "samples/id.h"
#include "samples/outcome.h"
#include "samples/segments.h"

/* Which token ids each token of a sample was drawn from (cr_generated); {0}: no filters. */
typedef struct cr_kept {
    float *log_mass;    /* [num_ids] */
    int32_t *num, *ids; /* [num_ids], and one list after the other */
    size_t num_ids;     /* of all lists */
} cr_kept;

/* The num kept ids of token number t begin at ids[*at]: they ascend, are below vocab_size, and the token is one of them; *at is
 * moved past them. CR_EFORMAT names t. */
CR_MUST cr_status cr_kept_check(size_t t, int32_t token, int32_t num, const int32_t *ids,
                                size_t num_ids, int64_t vocab_size, size_t *at, cr_err *err);

/* What one block of rewards says of a sample. */
typedef struct cr_sample_reward {
    int block; /* index into config->rewards */
    cr_outcome outcome;
    char *detail;         /* owned */
    double score, reward; /* before its weight; 0 unless the outcome is CR_OUTCOME_OK */
    double seconds;       /* from the question to the answer; 0: not known */
    float *token_rewards; /* [num_ids], what its program gives single tokens, or NULL */
    size_t num_ids;
    json_t *metrics; /* its own numbers by name, or NULL */
    bool is_second;  /* asked again: the first verdict was a time-out or an error */
    bool has_come;
} cr_sample_reward;

/* Its block had something to say of the sample, or said that it has not. */
static inline bool cr_reward_is_answer(const cr_sample_reward *x)
{
    return x->outcome == CR_OUTCOME_OK || x->outcome == CR_OUTCOME_ABSTAIN;
}

typedef struct cr_sample {
    uint64_t id;
    int domain;   /* index into config->rewards */
    size_t group; /* place of its group in the rollout */
    uint32_t row; /* index into the data set */
    cr_segment *
        segments; /* [num_segments], the prompt first: that of the row, filled in once the step learns */
    size_t num_segments;   /* 0: they have not come */
    int32_t *ids;          /* tokens of the response, then the observed ones */
    float *log_prob_infer; /* [num_ids] */
    size_t num_ids;        /* of the response */
    cr_kept kept;
    char *response; /* text, any bytes */
    size_t response_bytes;
    char finish[8];            /* "stop" or "length" */
    cr_sample_reward *rewards; /* [num_rewards], that of its domain first */
    size_t num_rewards, num_come;
    /* of all rewards, once they have come (cr_sample_merge) */
    cr_outcome outcome;
    const char *detail;        /* borrowed from rewards */
    double score, reward;      /* reward: the sum by weight */
    float *token_rewards;      /* [num_ids] the sum by weight, or NULL */
    float *of[CR_NUM_COLUMNS]; /* [num_ids] what its line has of the step that learned; else NULL */
    int64_t version;           /* updates that the weights of its oldest segment have had */
} cr_sample;

/* Its response, which is copied, and an empty prompt. CR_EFORMAT: that of cr_segments_make. */
CR_MUST cr_status cr_sample_set_response(cr_sample *s, const cr_spans *from, cr_err *err);

/* Timed out and failed ones, and those to which every reward abstains, have no score: they are left out of every
 * mean. */
static inline bool cr_sample_has_verdict(const cr_sample *s)
{
    return s->outcome == CR_OUTCOME_OK;
}

/* All rewards of a sample have come: its status, score, reward and rewards of tokens (docs/rewards.md). The score is
 * that of the first reward which does not abstain, the domain's own first; the reward is the sum of all of them by
 * weight. A reward that timed out or failed leaves the sample without a verdict, unless its block has on_failure:
 * abstain. */
void cr_sample_merge(const cr_config *config, cr_sample *s);
/* Which reward of a merged sample failed, and why; else that none has anything to say (owned). */
char *cr_sample_reason(const cr_config *config, const cr_sample *s);

#endif
