/* follow.c -- see follow.h. */
#include "pipelines/follow/follow.h"
#include "exchange/record.h"
#include "launch/role_call.h"

/* The trained ranks send, those of the reference take: all are asked before any is waited for. */
static cr_status sync(cr_run *run, cr_metrics *m, cr_err *err)
{
    cr_role_call call = {.role = CR_NUM_ROLES, .ask = CR_ASK_SYNC_REFERENCE};
    double start = cr_now_s();
    int64_t num_bytes;

    if (cr_role_call_run(run, &call, err) == CR_OK &&
        cr_record_get_int(&call.replies[call.num - 1], CR_FIELD_BYTES, &num_bytes, err) == CR_OK) {
        cr_metrics_set(m, (double)num_bytes, "system/reference/sync_bytes");
        cr_metrics_set(m, cr_now_s() - start, "time/ref_model_sync");
    }
    cr_role_call_free(&call);
    return err->status;
}

cr_status cr_follow(cr_run *run, int64_t step, cr_metrics *m, cr_err *err)
{
    const int64_t every = run->config->follow.steps;

    if (every == 0) return CR_OK;
    cr_metrics_set(m, (double)(step / every * every), "reference/synced_step");
    return (step + 1) % every == 0 ? sync(run, m, err) : CR_OK;
}
