/* train_request.c -- one epoch over the batch: requests to the train ranks, sums of their replies
 * (see assemble_impl.h). */
#include "actors/packing.h"
#include "pipelines/assemble_impl.h"
#include "reports/phase_metrics.h"
#include "rl/loss.h"

typedef struct epoch {
    cr_learning *l;
    cr_run *run;
    cri_learn_batch *b;
    bool is_again, is_last; /* not the first of ppo_epochs; the last */
    int num_ranks, same;    /* `same` ranks get one batch (ulysses_size) */
    int64_t num_minis;
    /* owned */
    uint32_t *order; /* of samples, in which each rank has its own */
    int32_t *mini, *rank;
    uint64_t *counts; /* [num_minis][CR_MINI_COUNTS] */
    float *lr;        /* [num_minis] */
    cri_payload *payloads;
    cr_request *requests;
} epoch;

/* ---- what every rank gets ---- */

static void count_masks(epoch *e)
{
    const cri_learn_batch *b = e->b;
    const double *const masks[] = {b->final, b->mask, b->entropy_mask};
    static const cr_mini_count tokens_of[] = {CR_MINI_FINAL_TOKENS, CR_MINI_TOKENS,
                                              CR_MINI_ENTROPY_TOKENS},
                               samples_of[] = {CR_MINI_FINAL_SAMPLES, CR_MINI_SAMPLES,
                                               CR_MINI_ENTROPY_SAMPLES};

    for (size_t i = 0; i < b->r->num_samples; i++) {
        size_t start[2] = {0, b->start[i + 1] - b->start[i]};
        uint64_t *counts = e->counts + CR_MINI_COUNTS * e->mini[i];
        cr_ragged one = {1, start};
        for (size_t k = 0; k < CR_COUNT(masks); k++) {
            double tokens = 0, samples = 0;
            if (!masks[k]) continue;
            cr_count_masks(&one, masks[k] + b->start[i], &tokens, &samples);
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
    e->rank = CR_NEW_ARRAY(int32_t, n);
    e->num_minis = ((int64_t)n + l->mini_size - 1) / l->mini_size;
    e->counts = CR_NEW_ARRAY(uint64_t, CR_MINI_COUNTS * e->num_minis);
    e->lr = CR_NEW_ARRAY(float, e->num_minis);
    for (size_t i = 0; i < n; i++)
        tokens[i] = b->data->rows[b->r->samples[i].row].num_ids + b->r->samples[i].num_ids;
    cr_packing_deal(tokens, n, b->r->group_size, e->num_ranks / e->same,
                    w->batching.train_tokens ? 0 : (size_t)w->training.per_device_train_batch_size,
                    (size_t)l->mini_size, (uint64_t)l->config->seed, number, e->order, e->mini,
                    e->rank);
    cri_weigh_samples(l, e->b, e->mini, e->num_minis);
    count_masks(e);
    for (int64_t k = 0; k < e->num_minis; k++)
        e->lr[k] = (float)cr_learning_rate(l->schedule, w->training.learning_rate, l->warmup_steps,
                                           l->schedule_steps, l->updates + k);
    cr_free(tokens);
}

/* ---- one rank's request ---- */

static void add_samples(cri_payload *p, cr_step_array array, const cri_learn_batch *b,
                        const double *x)
{
    cr_buf *out = cri_payload_buffer(p);

    for (size_t k = 0; k < p->num; k++) {
        float f = (float)(x ? x[p->samples[k]] : b->r->samples[p->samples[k]].score);
        cr_buf_add(out, &f, 4);
    }
    cri_payload_attach(p, cr_step_array_names[array], CR_RECORD_FLOAT32, out);
}

static void fill(epoch *e, int r)
{
    cri_payload *p = &e->payloads[r];
    const cri_learn_batch *b = e->b;
    cr_old_log_probs old_from = e->is_again ? CR_OLD_COMPUTED : b->old_from;
    const double *const arrays[CR_STEP_SCORES] = {[CR_STEP_INFER] = b->infer,
                                                  [CR_STEP_ADVANTAGES] = b->advantages,
                                                  [CR_STEP_MASK] = b->mask,
                                                  [CR_STEP_FINAL] = b->final,
                                                  [CR_STEP_OLD] =
                                                      old_from == CR_OLD_COMPUTED ? b->old : NULL,
                                                  [CR_STEP_REF] = b->has_ref ? b->ref : NULL,
                                                  [CR_STEP_ENTROPY_MASK] = b->entropy_mask,
                                                  [CR_STEP_IS_WEIGHT] = b->is_weight};

    p->samples = CR_NEW_ARRAY(size_t, b->r->num_samples);
    for (size_t k = 0; k < b->r->num_samples; k++)
        if (e->rank[e->order[k]] == r / e->same) p->samples[p->num++] = e->order[k];
    cri_payload_add_tokens(p, b, e->mini);
    for (int k = 0; k < CR_STEP_SCORES; k++)
        if (arrays[k]) cri_payload_add_floats(p, b, cr_step_array_names[k], arrays[k]);
    add_samples(p, CR_STEP_SCORES, b, NULL);
    if (b->weights) add_samples(p, CR_STEP_WEIGHTS, b, b->weights);
    cr_record_add(&p->record, CR_FIELD_LR, CR_RECORD_FLOAT32, e->lr, (size_t)e->num_minis);
    cr_record_add(&p->record, CR_FIELD_COUNTS, CR_RECORD_UINT64, e->counts,
                  CR_MINI_COUNTS * (size_t)e->num_minis);
    cr_record_set_int(&p->record, CR_FIELD_MINIS, e->num_minis);
    cr_record_set_int(&p->record, CR_FIELD_OLD_FROM, old_from);
    cr_record_set_int(&p->record, CR_FIELD_IS_AGAIN, e->is_again);
    cr_record_set_int(&p->record, CR_FIELD_OFFLOAD, e->is_last);
}

/* ---- requests and replies ---- */

static cr_status ask(epoch *e, cr_train_sums *sums, cr_metrics *m, cr_err *err)
{
    for (int r = 0; r < e->num_ranks; r++) {
        fill(e, r);
        CR_TRY(cr_run_send(e->run, CR_ROLE_TRAIN, r, CR_ASK_TRAIN_STEP, &e->payloads[r].record,
                           &e->requests[r], err));
    }
    for (int r = 0; r < e->num_ranks && err->status == CR_OK; r++) {
        const char *old = cr_step_array_names[CR_STEP_OLD];
        cr_train_sums part = {0};
        cr_record reply;
        CR_TRY(cr_run_wait(e->run, &e->requests[r], &reply, err));
        if (r == 0)
            cr_phase_metrics(m, e->run->layout.role[CR_ROLE_TRAIN].name, "train_step", &reply);
        cr_note(cr_train_sums_read(&reply, &part, err));
        if (r % e->same == 0) cr_train_sums_add(sums, &part, /*is_same_update=*/r > 0);
        if (err->status == CR_OK && cr_record_has(&reply, old))
            cr_note(cri_payload_read_floats(&reply, old, &e->payloads[r], e->b, e->b->old, err));
        cr_record_free(&reply);
    }
    return err->status;
}

static void epoch_free(epoch *e)
{
    for (int r = 0; r < e->num_ranks; r++)
        cri_payload_free(&e->payloads[r]);
    cr_free(e->payloads);
    cr_free(e->requests);
    cr_free(e->order);
    cr_free(e->mini);
    cr_free(e->rank);
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
               .num_ranks = run->layout.role[CR_ROLE_TRAIN].num,
               .same = (int)l->config->train.ulysses_size};

    e.payloads = CR_NEW_ARRAY(cri_payload, e.num_ranks);
    e.requests = CR_NEW_ARRAY(cr_request, e.num_ranks);
    deal(&e, (uint64_t)(step * num_epochs + epoch_of_step));
    if (!e.is_again) cri_balance_metrics(b, e.rank, e.num_ranks / e.same, m);
    if (ask(&e, s, m, err) == CR_OK) l->updates += e.num_minis - (s->num_skipped - skipped);
    epoch_free(&e);
    return err->status;
}
