/* rollout.h -- all groups of one step: prompts out, scored samples back, in a repeatable order.
 *
 *     cr_rollouts *r;
 *     cr_rollouts_begin(run, &args, &r, err)      engines begin; the caller goes on
 *     cr_rollouts_poll(r, err)                    now and then: reads what has come, does not wait
 *     cr_rollouts_take(r, &rollout, &m, err)      waits for the rest; engines are idle then
 *     cr_rollouts_free(r)                         also after a failure
 *
 * Engines work on one rollout at a time. They may get other weights while none is under way, so all samples of a rollout
 * are of one version of the weights.
 *
 * Flow 2 and 5 of 7. A group is the samples of one prompt. Groups are drawn from the cursors of their
 * domains; a group that the domain's query filter rejects is replaced by the next prompt, so what is
 * kept is always the same prefix of the same sequence, whoever finished first. Samples are ordered by
 * (domain, draw, index).
 *
 * A sample is scored by each of its row's blocks of rewards; what they say becomes one verdict (samples/sample.h) when all
 * have come. A block whose answer is a time-out or an error is asked once more, under "ID.1". A group in which
 * no sample has a verdict then is replaced by the next prompt, too, at most as often as the step has
 * groups and once all others have come; where nothing at all has a verdict, and after that, such groups
 * stay, and nothing is learned from them.
 *
 * A rollout owns its samples (cr_rollout_free).
 */
#ifndef CR_ROLLOUT_H
#define CR_ROLLOUT_H

#include "data/curriculum.h"
#include "launch/run.h"
#include "samples/sample.h"

typedef struct cr_rollout {
    cr_sample *samples; /* [num_groups * group_size], groups adjacent */
    size_t num_samples, num_groups, group_size;
    size_t num_drawn, num_filtered;  /* groups asked for, and rejected by the query filter */
    size_t num_redrawn;              /* groups without any verdict that were replaced */
    size_t num_timeouts, num_errors; /* samples without a verdict, those of redrawn groups too */
    size_t num_abstained;            /* samples to which no reward had anything to say */
    size_t num_retries;              /* rewards of samples that were asked for a second time */
    size_t num_left_out;             /* rewards that failed and are left out: on_failure: abstain */
    char *left_out;                  /* the first of them, and why; NULL: none (owned) */
    char *failure;     /* the first sample without a verdict, and why; NULL: all have one (owned) */
    double generate_s; /* from the beginning until the last sample was there */
    size_t num_prompt_tokens, num_response_tokens;
} cr_rollout;

typedef struct cr_rollout_args {
    const cr_dataset *data;
    cr_order *orders;          /* [num_rewards] of each domain */
    cr_cursor *cursors;        /* [num_rewards], moved on */
    cr_curriculum *curriculum; /* of these orders, sees all groups that were drawn; NULL: none */
    const int *num_prompts;    /* [num_rewards] groups wanted of each domain */
    size_t group_size;
    int64_t step;
    bool
        is_validation; /* every row once in file order: orders and cursors are not used, no filter */
    bool is_followed;  /* by another rollout with the same weights: engines stay loaded */
    /* of a validation: rows that are left out, which keep their draws, and with them the ids of all others;
     * NULL: none */
    const bool *is_done;
    /* of a validation: each group once all of its verdicts have come, in any order; NULL: not wanted */
    cr_status (*on_group)(void *context, const cr_sample *samples, cr_err *err);
    void *context;
} cr_rollout_args;

typedef struct cr_rollouts cr_rollouts;
/* Prompts go out. args is copied; what it points to, but num_prompts, has to live as long as *out. */
CR_MUST cr_status cr_rollouts_begin(cr_run *run, const cr_rollout_args *args, cr_rollouts **out,
                                    cr_err *err);
/* Groups that are rejected are replaced, rewards that failed are asked for again: without a poll that waits for the take. */
CR_MUST cr_status cr_rollouts_poll(cr_rollouts *r, cr_err *err);
/* Wait, order, clear the streams. Seconds and bytes of the engines' phase are added to m. */
CR_MUST cr_status cr_rollouts_take(cr_rollouts *r, cr_rollout *out, cr_metrics *m, cr_err *err);
void cr_rollouts_free(cr_rollouts *r);
/* Begin, take, free. */
CR_MUST cr_status cr_rollout_collect(cr_run *run, const cr_rollout_args *args, cr_rollout *out,
                                     cr_metrics *m, cr_err *err);
void cr_rollout_free(cr_rollout *rollout);
/* rollouts/step-000000.jsonl, of a validation val-000000.jsonl: one line a sample, in order. */
CR_MUST cr_status cr_rollout_write(const cr_run *run, const cr_rollout *rollout,
                                   const cr_dataset *data, int64_t step, bool is_validation,
                                   cr_err *err);

#endif
