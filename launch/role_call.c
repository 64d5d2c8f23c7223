/* role_call.c -- see role_call.h. */
#include "launch/role_call.h"
#include "reports/phase_metrics.h"

#include <string.h>

/* What the ranks of one part of the batch get: what all get, and the part. */
static cr_record command_of(const cr_role_call *call, int part)
{
    cr_record out = {0};

    if (call->command) {
        out = *call->command;
        out.owned = NULL;
        out.head = json_copy(call->command->head);
    }
    if (call->is_base) cr_record_set_int(&out, CR_FIELD_IS_BASE, 1);
    if (call->batch) cr_sample_batch_write(call->batch, &call->deal, part, call->columns, &out);
    return out;
}

static cr_status ask_role(cr_run *run, cr_role_call *call, cr_role role, cr_err *err)
{
    int num = run->layout.role[role].num, each = call->batch ? call->num_each : num;

    for (int first = 0; first < num && err->status == CR_OK; first += each) {
        cr_record command = command_of(call, first / each);
        for (int r = first; r < first + each && err->status == CR_OK; r++)
            cr_note(
                cr_run_send(run, role, r, call->ask, &command, &call->requests[call->num++], err));
        cr_record_free(&command);
    }
    return err->status;
}

cr_status cr_role_call_begin(cr_run *run, cr_role_call *call, cr_err *err)
{
    call->is_base = call->role == CR_ROLE_REFERENCE && run->config->reference.is_of_trainer;
    if (call->is_base) call->role = CR_ROLE_TRAIN;
    call->requests = CR_NEW_ARRAY(cr_request, run->layout.num_ranks);
    call->replies = CR_NEW_ARRAY(cr_record, run->layout.num_ranks);
    if (call->batch) {
        const cr_worker_config *w = run->layout.role[call->role].worker;
        call->deal.num = (int)cr_worker_num_batches(w);
        call->num_each = (int)w->ulysses_size;
    }
    for (int role = 0; role < CR_NUM_ROLES; role++)
        if (role == (int)call->role ||
            (call->role == CR_NUM_ROLES && cr_ask_is_for(call->ask, run->layout.role[role].worker)))
            CR_TRY(ask_role(run, call, (cr_role)role, err));
    return CR_OK;
}

cr_status cr_role_call_finish(cr_run *run, cr_role_call *call, cr_err *err)
{
    const char *phase = cr_ask_phase(call->ask);

    for (int i = 0; i < call->num; i++)
        CR_TRY(cr_run_wait(run, &call->requests[i], &call->replies[i], err));
    if (call->metrics && phase && call->num)
        cr_phase_metrics(call->metrics, run->layout.role[call->role].name, phase,
                         &call->replies[0]);
    return CR_OK;
}

cr_status cr_role_call_run(cr_run *run, cr_role_call *call, cr_err *err)
{
    CR_TRY(cr_role_call_begin(run, call, err));
    return cr_role_call_finish(run, call, err);
}

cr_status cr_role_call_read(cr_role_call *call, const char *name, cr_batch_column column,
                            cr_err *err)
{
    for (int part = 0; part < call->deal.num; part++)
        CR_TRY(cr_sample_batch_read(call->batch, &call->deal, part,
                                    &call->replies[part * call->num_each], name, column, err));
    return CR_OK;
}

cr_status cr_role_call_read_teacher(cr_role_call *call, size_t num, bool is_state, cr_err *err)
{
    for (int part = 0; part < call->deal.num; part++)
        CR_TRY(cr_sample_batch_read_teacher(call->batch, &call->deal, part,
                                            &call->replies[part * call->num_each], num, is_state,
                                            err));
    return CR_OK;
}

cr_status cr_role_call_add_sums(const cr_role_call *call, cr_train_sums *sums, cr_err *err)
{
    for (int part = 0; part < call->deal.num; part++) {
        cr_train_sums one = {0};
        CR_TRY(cr_train_sums_read(&call->replies[part * call->num_each], &one, err));
        cr_train_sums_add(sums, &one, /*is_same_update=*/part > 0);
    }
    return CR_OK;
}

void cr_role_call_free(cr_role_call *call)
{
    for (int i = 0; call->replies && i < call->num; i++)
        cr_record_free(&call->replies[i]);
    cr_free(call->replies);
    cr_free(call->requests);
    call->replies = NULL;
    call->requests = NULL;
    call->num = 0;
}
