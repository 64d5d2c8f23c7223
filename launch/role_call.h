/* role_call.h -- one command to all ranks of a role, and their replies.
 *
 *     cr_role_call call = {.role = role, .ask = CR_ASK_RESUME, .command = &command};
 *     cr_role_call_run(run, &call, err)      all are asked before any is waited for
 *     call.replies[0 .. call.num - 1]
 *     cr_role_call_free(&call)               also after a failure
 *
 * cr_role_call_begin and _finish are its halves. With a batch each rank gets its part of the samples, and ranks of one
 * ulysses group get the same part.
 */
#ifndef CR_ROLE_CALL_H
#define CR_ROLE_CALL_H

#include "launch/run.h"
#include "reports/metrics.h"
#include "samples/batch.h"
#include "samples/train.h"

typedef struct cr_role_call {
    /* CR_NUM_ROLES: every role of the run that takes the command; a reference that is_of_trainer is asked for where it is */
    cr_role role;
    cr_ask ask;
    const cr_record *command; /* what every rank gets, or NULL; borrowed */
    cr_sample_batch *batch;   /* or NULL; borrowed */
    cr_deal deal;             /* of the batch; its `num` is set by cr_role_call_begin */
    unsigned columns;         /* of the batch, as bits 1 << cr_batch_column */
    cr_metrics
        *metrics; /* for the seconds and bytes of the phase (reports/phase_metrics.h), or NULL */
    bool is_base; /* set: the adapters of the ranks are off, which are those of the trained role */
    /* owned */
    cr_request *requests;
    cr_record *replies; /* [num] once it has finished: in order of roles and ranks */
    int num, num_each;  /* ranks that were asked; ranks with the same part of the batch */
} cr_role_call;

/* Errors: those of cr_run_send and cr_run_wait. */
CR_MUST cr_status cr_role_call_begin(cr_run *run, cr_role_call *call, cr_err *err);
CR_MUST cr_status cr_role_call_finish(cr_run *run, cr_role_call *call, cr_err *err);
CR_MUST cr_status cr_role_call_run(cr_run *run, cr_role_call *call, cr_err *err);
/* The array `name` of the replies, a number for each response token, into a column of the batch. */
CR_MUST cr_status cr_role_call_read(cr_role_call *call, const char *name, cr_batch_column column,
                                    cr_err *err);
/* num ids of each token of the replies, or numbers of its state, into the batch. */
CR_MUST cr_status cr_role_call_read_teacher(cr_role_call *call, size_t num, bool is_state,
                                            cr_err *err);
/* What the replies to train_step, sft_step, dpo_step or distill_step add up to, a part of the batch each, added to *sums. */
CR_MUST cr_status cr_role_call_add_sums(const cr_role_call *call, cr_train_sums *sums, cr_err *err);
void cr_role_call_free(cr_role_call *call);

#endif
