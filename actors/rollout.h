/* rollout.h -- all groups of one step: prompts out, scored samples back, in a repeatable order.
 *
 * Flows 1 to 4 of 9. A group is the samples of one prompt. Groups are drawn from the cursors of their
 * domains; a group that the domain's query filter rejects is replaced by the next prompt, so what is
 * kept is always the same prefix of the same sequence, whoever finished first. Samples are ordered by
 * (domain, draw, index).
 *
 * A sample whose verdict is a time-out or an error is scored once more, under "ID.1". A group in which
 * no sample has a verdict then is replaced by the next prompt, too, at most as often as the step has
 * groups and once all others have come; where nothing at all has a verdict, and after that, such groups
 * stay, and nothing is learned from them.
 *
 * Sample ids: bit 63 for validation, then step (23 bits), draw (24 bits), index (16 bits). They key
 * the random numbers of generation, name the sample in every file, and make retries harmless.
 *
 * A rollout owns its samples (cr_rollout_free).
 */
#ifndef CR_ROLLOUT_H
#define CR_ROLLOUT_H

#include "actors/data.h"
#include "actors/run.h"

#include <string.h>

/* Which words each token of a sample was drawn from (cr_generated); {0}: no filters. */
typedef struct cr_kept {
    float *log_mass;    /* [num_ids] */
    int32_t *num, *ids; /* [num_ids], and one list behind the other */
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

typedef struct cr_rollout {
    cr_sample *samples; /* [num_groups * group_size], groups adjacent */
    size_t num_samples, num_groups, group_size;
    size_t num_drawn, num_filtered;  /* groups asked for, and rejected by the query filter */
    size_t num_redrawn;              /* groups without any verdict that were replaced */
    size_t num_timeouts, num_errors; /* samples without a verdict, those of redrawn groups too */
    size_t num_retries;              /* samples that were scored a second time */
    char *failure;     /* the first sample without a verdict, and why; NULL: all have one (owned) */
    double generate_s; /* until the last sample was there */
    size_t num_prompt_tokens, num_response_tokens;
} cr_rollout;

typedef struct cr_rollout_args {
    const cr_dataset *data;
    cr_order *orders;       /* [num_rewards] of each domain */
    cr_cursor *cursors;     /* [num_rewards], moved on */
    const int *num_prompts; /* [num_rewards] groups wanted of each domain */
    size_t group_size;
    int64_t step;
    bool
        is_validation; /* every row once in file order: orders and cursors are not used, no filter */
    bool is_followed;  /* by another rollout with the same weights: engines stay loaded */
} cr_rollout_args;

/* Ask, wait, order. */
CR_MUST cr_status cr_rollout_collect(cr_run *run, const cr_rollout_args *args, cr_rollout *out,
                                     cr_metrics *m, cr_err *err);
void cr_rollout_free(cr_rollout *rollout);
/* rollouts/step-000000.jsonl, of a validation val-000000.jsonl: one line a sample, in order. */
CR_MUST cr_status cr_rollout_write(const cr_run *run, const cr_rollout *rollout,
                                   const cr_dataset *data, int64_t step, bool is_validation,
                                   cr_err *err);

#endif
