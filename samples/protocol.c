/* protocol.c -- see protocol.h. */
#include "samples/protocol.h"

#include <string.h>

enum {
    TRAIN = 1 << CR_TASK_TRAIN,
    GENERATE = 1 << CR_TASK_GENERATE,
    SCORE = 1 << CR_TASK_SCORE,
    FOLLOW = 1 << CR_TASK_FOLLOW,
    VALUE = 1 << CR_TASK_VALUE,
    ALL = TRAIN | GENERATE | SCORE | FOLLOW | VALUE,
    SAVED = TRAIN | VALUE | FOLLOW
};

static const struct {
    const char *name;
    unsigned tasks;    /* of the roles that take it */
    const char *phase; /* in metrics of phases (ROLL's names); NULL: it has none */
} asks[CR_NUM_ASKS] = {
    [CR_ASK_LOG_PROBS] = {"log_probs", TRAIN | SCORE | FOLLOW, "compute_log_probs"},
    [CR_ASK_TRAIN_STEP] = {"train_step", TRAIN, "train_step"},
    [CR_ASK_SFT_STEP] = {"sft_step", TRAIN},
    [CR_ASK_VALUES] = {"values", VALUE, "compute_values"},
    [CR_ASK_VALUE_STEP] = {"value_step", VALUE, "train_step"},
    [CR_ASK_DPO_STEP] = {"dpo_step", TRAIN},
    [CR_ASK_DISTILL_STEP] = {"distill_step", TRAIN},
    [CR_ASK_SYNC] = {"sync", TRAIN | GENERATE},
    [CR_ASK_SYNC_REFERENCE] = {"sync_reference", TRAIN | FOLLOW},
    [CR_ASK_SAVE] = {"save", SAVED},
    [CR_ASK_SAVE_POLL] = {"save_poll", SAVED},
    [CR_ASK_SAVE_WAIT] = {"save_wait", SAVED},
    [CR_ASK_RESUME] = {"resume", SAVED},
    [CR_ASK_GENERATE] = {"generate", GENERATE, "generate"},
    [CR_ASK_PAUSE] = {"pause", GENERATE},
    [CR_ASK_STOP] = {"stop", ALL}};

const char *cr_ask_name(cr_ask ask)
{
    return asks[ask].name;
}

const char *cr_ask_phase(cr_ask ask)
{
    return asks[ask].phase;
}

bool cr_ask_is_for(cr_ask ask, const cr_worker_config *w)
{
    return w && asks[ask].tasks >> w->task & 1;
}

cr_status cr_ask_find(const char *name, const cr_worker_config *w, cr_ask *out, cr_err *err)
{
    for (int i = 0; i < CR_NUM_ASKS; i++)
        if (strcmp(asks[i].name, name) == 0 && cr_ask_is_for((cr_ask)i, w)) {
            *out = (cr_ask)i;
            return CR_OK;
        }
    return cr_fail(err, CR_EFORMAT, "%s does not know the command %s", w->name, name);
}
