/* protocol.h -- what the pipeline asks of actor ranks, for both sides: commands, who takes them, and the
 * names of their fields (docs/exchange.md says what each field holds).
 *
 * A command is a record on the stream cmd:ROLE:RANK with `op` and `request`; its reply lies under that
 * request, with `status` (0, or a failure and its `message`).
 *
 * Another command: a value of cr_ask, a row in protocol.c with the tasks of the roles that take it, and what these do
 * (trainer.c, generator.c).
 */
#ifndef CR_PROTOCOL_H
#define CR_PROTOCOL_H

#include "samples/roles.h"

typedef enum cr_ask {
    CR_ASK_LOG_PROBS,
    CR_ASK_TRAIN_STEP,
    CR_ASK_SFT_STEP,
    CR_ASK_VALUES,
    CR_ASK_VALUE_STEP,
    CR_ASK_DPO_STEP,
    CR_ASK_DISTILL_STEP,
    CR_ASK_SYNC,
    CR_ASK_SYNC_REFERENCE, /* of a reference that follows (sync_ref_model) */
    CR_ASK_SAVE,
    CR_ASK_SAVE_POLL,
    CR_ASK_SAVE_WAIT,
    CR_ASK_RESUME,
    CR_ASK_GENERATE,
    CR_ASK_PAUSE, /* while it generates */
    CR_ASK_STOP,  /* of every role */
    CR_NUM_ASKS
} cr_ask;

const char *cr_ask_name(cr_ask ask);
/* What metrics of phases call it (reports/phase_metrics.h); NULL: it has none. */
const char *cr_ask_phase(cr_ask ask);
/* By the task of a role; w NULL: it is not in the run. */
bool cr_ask_is_for(cr_ask ask, const cr_worker_config *w);
/* CR_EFORMAT: the role knows no such command. */
CR_MUST cr_status cr_ask_find(const char *name, const cr_worker_config *w, cr_ask *out,
                              cr_err *err);

/* Streams, and the groups of their consumers: the role that generates, reward workers, the pipeline. */
#define CR_STREAM_PROMPTS   "prompts"
#define CR_TABLE_ROWS       "rows"       /* by the name of the group's first sample */
#define CR_TABLE_ITEMS      "items"      /* bytes of files, by the text of their SHA-256 */
#define CR_STREAM_GENERATED "generated:" /* and the block of rewards */
#define CR_STREAM_SAMPLED   "sampled"
#define CR_STREAM_SCORED    "scored"
#define CR_GROUP_REWARD     "reward"
#define CR_GROUP_PIPELINE   "pipeline"

/* verdicts: what a scoring program gives single tokens */
#define CR_FIELD_TOKEN_REWARDS "token_rewards"

/* every command, and its reply */
#define CR_FIELD_OP      "op"
#define CR_FIELD_REQUEST "request"
#define CR_FIELD_STATUS  "status"
#define CR_FIELD_MESSAGE "message"
#define CR_FIELD_HOST    "host"              /* of a rank that failed */
#define CR_FIELD_OFFLOAD "is_offload_states" /* roles that share devices: go to the host after it */
/* samples: log_probs, train_step, sft_step, values, value_step, dpo_step, distill_step */
#define CR_FIELD_PROMPTS      "prompts"
#define CR_FIELD_LENGTHS      "lengths"
#define CR_FIELD_PROMPT_OF    "prompt_of"
#define CR_FIELD_NUM_SPANS    "num_spans"
#define CR_FIELD_SPANS        "spans"
#define CR_FIELD_MINI         "mini"
#define CR_FIELD_IDS          "ids"
#define CR_FIELD_SAMPLE_IDS   "sample_ids"
#define CR_FIELD_TEMPERATURES "temperatures"
#define CR_FIELD_NUM_KEPT     "num_kept"
#define CR_FIELD_KEPT_IDS     "kept_ids"
#define CR_FIELD_NUM_ITEMS    "num_items"
#define CR_FIELD_ITEM_DIGESTS "item_digests"
#define CR_FIELD_ITEM_GRIDS   "item_grids"
/* log_probs */
#define CR_FIELD_IS_BASE "is_base" /* of actor_train: with adapters off */
#define CR_FIELD_TOP     "top"     /* number of likeliest ids of each token that are wanted, too; */
#define CR_FIELD_STATES  "states"  /* or what the head computes them from; also the reply's name */
/* replies to that; distill_step */
#define CR_FIELD_TOP_IDS       "top_ids"
#define CR_FIELD_TOP_LOG_PROBS "top_log_probs"
/* train_step, sft_step, value_step, dpo_step, distill_step; their arrays: rl/batch_columns.h */
#define CR_FIELD_MINIS       "minis"
#define CR_FIELD_LR          "lr"
#define CR_FIELD_COUNTS      "counts"
#define CR_FIELD_OLD_FROM    "old_from"
#define CR_FIELD_IS_AGAIN    "is_again"
#define CR_FIELD_ONLY        "only"        /* id of the sample whose gradient alone is derived */
#define CR_FIELD_WANTS_TERMS "wants_terms" /* the reply has what each token's loss was made of */
/* replies of log_probs, values, save_poll, generate */
#define CR_FIELD_LOG_PROBS "log_probs"
#define CR_FIELD_VALUES    "values"
#define CR_FIELD_ENTROPY   "entropy"
#define CR_FIELD_BUSY      "busy"
#define CR_FIELD_TOKENS    "tokens"
#define CR_FIELD_PREEMPTED "preempted"
#define CR_FIELD_BYTES     "bytes"
/* save, resume; generate */
#define CR_FIELD_FOLDER "folder"
/* save */
#define CR_FIELD_STEP  "step"
#define CR_FIELD_MARK  "mark"  /* of the folder (run_mark.h) */
#define CR_FIELD_STEPS "steps" /* of the checkpoints that are kept */
/* resume */
#define CR_FIELD_MANIFEST "manifest" /* SHA-256 of the checkpoint's */
/* replies of save_wait: what the rank has written */
#define CR_FIELD_WRITTEN     "written" /* bytes of the whole files, then the sums of its part */
#define CR_FIELD_SHARD       "shard"
#define CR_FIELD_SHARD_BYTES "shard_bytes"
#define CR_FIELD_SHARD_HASH  "shard_sha256"
#define CR_FIELD_IS_HERE     "is_here" /* it has the launcher's folder */

enum { CR_WRITTEN_FILES = 4 }; /* that CR_FIELD_WRITTEN has numbers of */

#endif
