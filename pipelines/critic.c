/* critic.c -- the critic of a step: one epoch over the batch, beside actor_train where it has devices of its own
 * (see assemble_impl.h). */
#include "pipelines/assemble_impl.h"
#include "reports/metrics.h"

static void put_metrics(const cr_learning *l, const cr_train_sums *s, cr_metrics *m)
{
    const cr_learner *who = &l->critic;
    const cr_value_metrics *x = &s->value;
    double updates = (double)(s->num_updates > 0 ? s->num_updates : 1);

    cr_metrics_set(m, cr_learning_rate(&who->schedule, who->updates > 0 ? who->updates - 1 : 0),
                   "critic/lr");
    cr_metrics_set(m, x->loss / updates, "critic/loss");
    cr_metrics_set(m, x->old_value / updates, "critic/value");
    cr_metrics_set(m, x->value / updates, "critic/vpred");
    cr_metrics_set(m, x->clipfrac / updates, "critic/clipfrac");
    cr_metrics_set(m, x->error / updates, "critic/error");
    cr_metrics_set(m, s->grad_norm / (double)(s->num_updates - s->num_skipped), "critic/grad_norm");
    cr_metrics_set(m, (double)s->num_skipped, "critic/skipped_updates");
}

cr_status cri_critic_begin(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                           cr_metrics *m, cri_epoch **out, cr_err *err)
{
    const cri_epoch_args args = {l, &l->critic, b, step, 0, 1};

    *out = NULL;
    if (!l->critic.worker) return CR_OK;
    CR_TRY(cri_epoch_begin(&args, run, m, out, err));
    if (!cr_workers_share(l->critic.worker, l->actor.worker, NULL)) return CR_OK;
    cr_note(cri_critic_finish(l, run, *out, step, m, err));
    *out = NULL;
    return err->status;
}

cr_status cri_critic_finish(cr_learning *l, cr_run *run, cri_epoch *e, int64_t step, cr_metrics *m,
                            cr_err *err)
{
    cr_train_sums s = {0};

    if (!e) return err->status;
    CR_TRY(cri_epoch_finish(e, run, &s, err));
    put_metrics(l, &s, m);
    if (s.num_skipped)
        cr_log(CR_LOG_WARN, "rlvr",
               "step %lld: %lld updates of the critic skipped: the gradient is not finite",
               (long long)step, (long long)s.num_skipped);
    return CR_OK;
}
