/* train_request.c -- one epoch over the batch: requests to the ranks of a role that trains, sums of their replies
 * (see assemble_impl.h). */
#include "actors/packing.h"
#include "actors/work.h"
#include "exchange/record.h"
#include "pipelines/assemble_impl.h"
#include "pipelines/why/terms.h"
#include "rl/loss.h"

struct cri_epoch {
    cri_epoch_args a;
    bool is_again;   /* not the first epoch of the step */
    int num_batches; /* of the role */
    int64_t num_minis;
    cr_record command;
    cr_role_call call;
    /* owned */
    uint32_t *order;      /* of samples, in which each batch has its own */
    int32_t *mini, *part; /* [samples] */
    uint64_t *counts;     /* [num_minis][CR_MINI_COUNTS] */
    float *lr;            /* [num_minis] */
};

/* Else the policy learns. */
static bool is_critic(const cri_epoch *e)
{
    return e->a.who == &e->a.l->critic;
}

/* ---- what every rank gets ---- */

static void count_masks(cri_epoch *e)
{
    const cri_learn_batch *b = e->a.b;
    double *const *of = b->batch.of;
    const double *const masks[] = {of[CR_COLUMN_FINAL], of[CR_COLUMN_MASK],
                                   of[CR_COLUMN_ENTROPY_MASK]};
    static const cr_mini_count tokens_of[] = {CR_MINI_FINAL_TOKENS, CR_MINI_TOKENS,
                                              CR_MINI_ENTROPY_TOKENS},
                               samples_of[] = {CR_MINI_FINAL_SAMPLES, CR_MINI_SAMPLES,
                                               CR_MINI_ENTROPY_SAMPLES};

    for (size_t i = 0; i < b->r->num_samples; i++) {
        size_t start[2] = {0, b->batch.start[i + 1] - b->batch.start[i]};
        uint64_t *counts = e->counts + CR_MINI_COUNTS * e->mini[i];
        cr_ragged one = {1, start};
        for (size_t k = 0; k < CR_COUNT(masks); k++) {
            double tokens = 0, samples = 0;
            if (!masks[k]) continue;
            cr_count_masks(&one, masks[k] + b->batch.start[i], &tokens, &samples);
            counts[tokens_of[k]] += (uint64_t)tokens;
            counts[samples_of[k]] += (uint64_t)samples;
        }
    }
    for (int64_t m = 0; m < e->num_minis; m++)
        e->counts[CR_MINI_COUNTS * m + CR_MINI_WIDTH] =
            (uint64_t)(e->a.l->config->sequence_length - e->a.l->config->prompt_length);
}

/* Which sample goes where, and the numbers of each mini-batch. */
static void deal(cri_epoch *e)
{
    const cr_learner *who = e->a.who;
    const cri_learn_batch *b = e->a.b;
    const cr_worker_config *w = who->worker;
    const uint64_t number = (uint64_t)(e->a.step * e->a.num_epochs + e->a.epoch),
                   seed = (uint64_t)e->a.l->config->seed;
    const size_t n = b->r->num_samples;
    double *work = CR_NEW_ARRAY(double, n);

    e->order = CR_NEW_ARRAY(uint32_t, n);
    e->mini = CR_NEW_ARRAY(int32_t, n);
    e->part = CR_NEW_ARRAY(int32_t, n);
    e->num_minis = ((int64_t)n + who->mini_size - 1) / who->mini_size;
    e->counts = CR_NEW_ARRAY(uint64_t, CR_MINI_COUNTS * e->num_minis);
    e->lr = CR_NEW_ARRAY(float, e->num_minis);
    for (size_t i = 0; i < n; i++)
        work[i] = cr_work_of(b->batch.samples[i].num_ids,
                             cr_work_image_tokens(&who->images, b->batch.samples[i].items));
    cr_packing_deal(work, n, b->r->group_size, e->num_batches,
                    w->batching.train_tokens ? 0 : (size_t)w->training.per_device_train_batch_size,
                    (size_t)who->mini_size, seed, number, e->order, e->mini, e->part);
    if (!is_critic(e)) cri_weigh_samples(e->a.l, e->a.b, e->mini, e->num_minis);
    count_masks(e);
    for (int64_t k = 0; k < e->num_minis; k++)
        e->lr[k] = (float)cr_learning_rate(&who->schedule, who->updates + k);
    cr_free(work);
}

/* ---- requests and replies ---- */

static void fill_command(cri_epoch *e, cr_old_log_probs old_from)
{
    cr_record *command = &e->command;

    cr_record_add(command, CR_FIELD_LR, CR_RECORD_FLOAT32, e->lr, (size_t)e->num_minis);
    cr_record_add(command, CR_FIELD_COUNTS, CR_RECORD_UINT64, e->counts,
                  CR_MINI_COUNTS * (size_t)e->num_minis);
    cr_record_set_int(command, CR_FIELD_MINIS, e->num_minis);
    cr_record_set_int(command, CR_FIELD_OFFLOAD, e->a.epoch == e->a.num_epochs - 1);
    if (e->a.b->terms) cr_record_set_int(command, CR_FIELD_WANTS_TERMS, 1);
    if (e->a.b->only) cr_record_set_int(command, CR_FIELD_ONLY, (int64_t)*e->a.b->only);
    if (is_critic(e)) return;
    cr_record_set_int(command, CR_FIELD_OLD_FROM, old_from);
    cr_record_set_int(command, CR_FIELD_IS_AGAIN, e->is_again);
}

/* What the samples come with. */
static unsigned columns_of(const cri_epoch *e, cr_old_log_probs old_from)
{
    const cr_sample_batch *batch = &e->a.b->batch;
    const unsigned all = cr_sample_batch_columns(batch);

    if (is_critic(e))
        return 1U << CR_COLUMN_VALUES | 1U << CR_COLUMN_RETURNS | (all & 1U << CR_COLUMN_FINAL);
    return old_from == CR_OLD_COMPUTED || old_from == CR_OLD_RECORDED
               ? all
               : all & ~(1U << CR_COLUMN_OLD);
}

static void epoch_free(cri_epoch *e)
{
    cr_role_call_free(&e->call);
    cr_record_free(&e->command);
    cr_free(e->order);
    cr_free(e->mini);
    cr_free(e->part);
    cr_free(e->lr);
    cr_free(e->counts);
    cr_free(e);
}

cr_status cri_epoch_begin(const cri_epoch_args *args, cr_run *run, cr_metrics *m, cri_epoch **out,
                          cr_err *err)
{
    cri_epoch *e = CR_NEW(cri_epoch);
    cr_old_log_probs old_from;

    *out = NULL;
    e->a = *args;
    e->is_again = args->epoch > 0;
    e->num_batches = (int)cr_worker_num_batches(args->who->worker);
    old_from = e->is_again ? CR_OLD_COMPUTED : args->b->old_from;
    deal(e);
    if (!e->is_again && !is_critic(e)) cri_balance_metrics(args->b, e->part, e->num_batches, m);
    e->call = (cr_role_call){.role = args->who->role,
                             .ask = is_critic(e) ? CR_ASK_VALUE_STEP : CR_ASK_TRAIN_STEP,
                             .command = &e->command,
                             .batch = &args->b->batch,
                             .deal = {.order = e->order, .part = e->part, .mini = e->mini},
                             .columns = columns_of(e, old_from),
                             .metrics = m};
    fill_command(e, old_from);
    if (cr_role_call_begin(run, &e->call, err) == CR_OK)
        *out = e;
    else
        epoch_free(e);
    return err->status;
}

/* What each token's loss was made of. */
static cr_status take_terms(cri_epoch *e, cr_err *err)
{
    const struct {
        const char *name;
        cr_batch_column column;
        bool is_of_critic;
    } arrays[] = {{CR_FIELD_LOG_PROBS, CR_COLUMN_LOG_PROBS, false},
                  {CR_FIELD_ENTROPY, CR_COLUMN_ENTROPY, false},
                  {cr_batch_columns[CR_COLUMN_USED_OLD].name, CR_COLUMN_USED_OLD, false},
                  {CR_FIELD_VALUES, CR_COLUMN_PASS_VALUES, true}};

    for (size_t k = 0; k < CR_COUNT(arrays); k++) {
        if (arrays[k].is_of_critic != is_critic(e)) continue;
        cr_sample_batch_add(&e->a.b->batch, arrays[k].column);
        CR_TRY(cr_role_call_read(&e->call, arrays[k].name, arrays[k].column, err));
    }
    cri_terms_add(e->a.b->terms,
                  &(cri_terms_epoch){is_critic(e), e->a.epoch, e->num_minis, e->mini, e->counts});
    return CR_OK;
}

cr_status cri_epoch_finish(cri_epoch *e, cr_run *run, cr_train_sums *s, cr_err *err)
{
    const char *old = cr_batch_columns[CR_COLUMN_OLD].name;
    const int64_t skipped = s->num_skipped;

    if (err->status == CR_OK && cr_role_call_finish(run, &e->call, err) == CR_OK)
        cr_note(cr_role_call_add_sums(&e->call, s, err));
    if (err->status == CR_OK && e->a.b->terms) cr_note(take_terms(e, err));
    if (err->status == CR_OK && cr_record_has(&e->call.replies[0], old))
        cr_note(cr_role_call_read(&e->call, old, CR_COLUMN_OLD, err));
    if (err->status == CR_OK) e->a.who->updates += e->num_minis - (s->num_skipped - skipped);
    epoch_free(e);
    return err->status;
}
