/* train_request.c -- one epoch over the batch: requests to the train ranks, sums of their replies
 * (see assemble_impl.h). */
#include "actors/packing.h"
#include "exchange/record.h"
#include "pipelines/assemble_impl.h"
#include "rl/loss.h"

typedef struct epoch {
    cr_learning *l;
    cr_run *run;
    cri_learn_batch *b;
    bool is_again, is_last; /* not the first of ppo_epochs; the last */
    int num_batches;        /* of the role */
    int64_t num_minis;
    /* owned */
    uint32_t *order;      /* of samples, in which each batch has its own */
    int32_t *mini, *part; /* [samples] */
    uint64_t *counts;     /* [num_minis][CR_MINI_COUNTS] */
    float *lr;            /* [num_minis] */
} epoch;

/* ---- what every rank gets ---- */

static void count_masks(epoch *e)
{
    const cri_learn_batch *b = e->b;
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
            (uint64_t)(e->l->config->sequence_length - e->l->config->prompt_length);
}

/* Which sample goes where, and the numbers of each mini-batch. */
static void deal(epoch *e, uint64_t number)
{
    const cr_learning *l = e->l;
    const cri_learn_batch *b = e->b;
    const cr_worker_config *w = &l->config->train;
    size_t n = b->r->num_samples, *tokens = CR_NEW_ARRAY(size_t, n);

    e->order = CR_NEW_ARRAY(uint32_t, n);
    e->mini = CR_NEW_ARRAY(int32_t, n);
    e->part = CR_NEW_ARRAY(int32_t, n);
    e->num_minis = ((int64_t)n + l->mini_size - 1) / l->mini_size;
    e->counts = CR_NEW_ARRAY(uint64_t, CR_MINI_COUNTS * e->num_minis);
    e->lr = CR_NEW_ARRAY(float, e->num_minis);
    for (size_t i = 0; i < n; i++)
        tokens[i] = b->data->rows[b->r->samples[i].row].num_ids + b->r->samples[i].num_ids;
    cr_packing_deal(tokens, n, b->r->group_size, e->num_batches,
                    w->batching.train_tokens ? 0 : (size_t)w->training.per_device_train_batch_size,
                    (size_t)l->mini_size, (uint64_t)l->config->seed, number, e->order, e->mini,
                    e->part);
    cri_weigh_samples(l, e->b, e->mini, e->num_minis);
    count_masks(e);
    for (int64_t k = 0; k < e->num_minis; k++)
        e->lr[k] = (float)cr_learning_rate(&l->schedule, l->updates + k);
    cr_free(tokens);
}

/* ---- requests and replies ---- */

static void fill_command(const epoch *e, cr_old_log_probs old_from, cr_record *command)
{
    cr_record_add(command, CR_FIELD_LR, CR_RECORD_FLOAT32, e->lr, (size_t)e->num_minis);
    cr_record_add(command, CR_FIELD_COUNTS, CR_RECORD_UINT64, e->counts,
                  CR_MINI_COUNTS * (size_t)e->num_minis);
    cr_record_set_int(command, CR_FIELD_MINIS, e->num_minis);
    cr_record_set_int(command, CR_FIELD_OLD_FROM, old_from);
    cr_record_set_int(command, CR_FIELD_IS_AGAIN, e->is_again);
    cr_record_set_int(command, CR_FIELD_OFFLOAD, e->is_last);
}

static cr_status ask(epoch *e, cr_train_sums *sums, cr_metrics *m, cr_err *err)
{
    const char *old = cr_batch_columns[CR_COLUMN_OLD].name;
    cr_old_log_probs old_from = e->is_again ? CR_OLD_COMPUTED : e->b->old_from;
    cr_record command = {0};
    cr_role_call call = {.role = CR_ROLE_TRAIN,
                         .ask = CR_ASK_TRAIN_STEP,
                         .command = &command,
                         .batch = &e->b->batch,
                         .deal = {.order = e->order, .part = e->part, .mini = e->mini},
                         .columns = cr_sample_batch_columns(&e->b->batch),
                         .metrics = m};

    if (old_from != CR_OLD_COMPUTED && old_from != CR_OLD_RECORDED)
        call.columns &= ~(1U << CR_COLUMN_OLD);
    fill_command(e, old_from, &command);
    if (cr_role_call_run(e->run, &call, err) == CR_OK)
        cr_note(cr_role_call_add_sums(&call, sums, err));
    if (err->status == CR_OK && cr_record_has(&call.replies[0], old))
        cr_note(cr_role_call_read(&call, old, CR_COLUMN_OLD, err));
    cr_role_call_free(&call);
    cr_record_free(&command);
    return err->status;
}

static void epoch_free(epoch *e)
{
    cr_free(e->order);
    cr_free(e->mini);
    cr_free(e->part);
    cr_free(e->lr);
    cr_free(e->counts);
}

cr_status cri_train_epoch(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                          int64_t epoch_of_step, cr_train_sums *s, cr_metrics *m, cr_err *err)
{
    int64_t num_epochs = l->config->algorithm.ppo_epochs, skipped = s->num_skipped;
    epoch e = {.l = l,
               .run = run,
               .b = b,
               .is_again = epoch_of_step > 0,
               .is_last = epoch_of_step == num_epochs - 1,
               .num_batches = (int)cr_worker_num_batches(&l->config->train)};

    deal(&e, (uint64_t)(step * num_epochs + epoch_of_step));
    if (!e.is_again) cri_balance_metrics(b, e.part, e.num_batches, m);
    if (ask(&e, s, m, err) == CR_OK) l->updates += e.num_minis - (s->num_skipped - skipped);
    epoch_free(&e);
    return err->status;
}
