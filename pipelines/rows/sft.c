/* sft.c -- supervised fine-tuning: what of a row is learnt, and its loss (see rows.h).
 *
 * What follows a row's prompt is the response; tokens of it that `learns` leaves out have no loss. The first token has nothing to be
 * predicted from, so it is always of the prompt. */
#include "data/prompts.h"
#include "pipelines/rows/rows.h"
#include "reports/metrics.h"
#include "samples/batch.h"

#include <math.h>

static size_t prompt_of(const cr_row *row)
{
    return row->num_prompt ? row->num_prompt : 1;
}

static bool is_learnt(const cr_row *row, size_t t)
{
    return !row->learns || row->learns[t];
}

/* Tokens of a row that have a loss. */
static size_t num_learnt(const cr_row *row)
{
    size_t num = 0;

    for (size_t t = prompt_of(row); t < row->num_ids; t++)
        num += is_learnt(row, t);
    return num;
}

/* Rows that are cut before their answer begins have nothing to learn. */
static cr_status check_answers(const cr_rows *r, const cr_dataset *data, const char *what,
                               cr_err *err)
{
    const int64_t sequence_length = r->c->sequence_length;
    size_t num_empty = 0;

    for (size_t i = 0; i < data->num_rows; i++)
        num_empty += num_learnt(&data->rows[i]) == 0;
    if (num_empty && num_empty == data->num_rows)
        return cr_fail(
            err, CR_ECONFIG,
            "%s: no row has a token of its answer within sequence_length %lld (raise it)", what,
            (long long)sequence_length);
    if (num_empty)
        cr_log(CR_LOG_WARN, cr_pipeline_names[r->c->kind],
               "%s: %zu of %zu rows have no token of their answer within sequence_length %lld",
               what, num_empty, data->num_rows, (long long)sequence_length);
    return CR_OK;
}

cr_status cr_rows_load_answers(cr_rows *r, const cr_worker_config *from, cr_dataset *data,
                               cr_err *err)
{
    CR_TRY(cr_rows_load(r, from, cr_prompt_encode_sft, data, err));
    return check_answers(r, data, from->name, err);
}

/* A sample's id is its place in rows; a row without any token is no sample. The batch has CR_COLUMN_MASK where a row has `learns`. */
static void batch_of(const cr_row *data, const uint32_t *rows, size_t num, cr_sample_batch *b)
{
    bool has_mask = false;
    size_t n = 0;

    cr_sample_batch_init(b, num);
    for (size_t i = 0; i < num; i++) {
        const cr_row *row = &data[rows ? rows[i] : i];
        size_t prompt = prompt_of(row);
        if (row->num_ids < prompt) continue;
        b->samples[n] = (struct cr_batch_sample){.id = i, .items = cr_row_items(row)};
        cr_sample_batch_pair(b, n++, row->ids, prompt, row->ids + prompt, row->num_ids - prompt);
        has_mask = has_mask || row->learns;
    }
    b->num = n;
    cr_sample_batch_count(b);
    for (size_t k = 0; k < n && has_mask; k++) {
        const cr_row *row = &data[rows ? rows[b->samples[k].id] : b->samples[k].id];
        double *mask = cr_sample_batch_add(b, CR_COLUMN_MASK) + b->start[k];
        for (size_t t = prompt_of(row); t < row->num_ids; t++)
            *mask++ = is_learnt(row, t);
    }
}

cr_status cr_rows_answers(cr_rows *r, const uint32_t *rows, uint64_t *num, cr_sample_batch *b,
                          cr_err *err)
{
    *num = 0;
    for (size_t i = 0; i < r->batch; i++)
        *num += num_learnt(&r->data.rows[rows[i]]);
    if (*num == 0) *num = 1;
    batch_of(r->data.rows, rows, r->batch, b);
    return cr_rows_put_images(r, &r->data, rows, 0, r->batch, err);
}

static cr_status train(cr_rows *r, const uint32_t *rows, double lr, cr_metrics *m, cr_err *err)
{
    double start = cr_now_s(), tokens;
    uint64_t counts[CR_MINI_COUNTS] = {0};
    cr_train_sums sums = {0};
    cr_sample_batch batch;

    cr_note(cr_rows_answers(r, rows, &counts[CR_MINI_TOKENS], &batch, err));
    tokens = (double)counts[CR_MINI_TOKENS];
    if (err->status == CR_OK) cr_note(cr_rows_update(r, &batch, counts, lr, &sums, err));
    cr_sample_batch_free(&batch);
    CR_TRY(err->status);
    cr_metrics_set(m, sums.loss.total_loss, "sft_train/loss");
    cr_metrics_set(m, sums.num_skipped ? (double)NAN : sums.grad_norm, "sft_train/grad_norm");
    cr_metrics_set(m, (double)(float)lr, "sft_train/lr");
    cr_metrics_set(m, tokens, "sft_train/tokens");
    cr_metrics_set(m, tokens / (cr_now_s() - start), "system/tps/tps");
    return CR_OK;
}

/* Log-probs of rows [first, end) of the validation set; nll: [end - first] zeros, then sums of each row. */
static cr_status ask_rows(cr_rows *r, size_t first, size_t end, double *nll, cr_err *err)
{
    cr_sample_batch batch;

    CR_TRY(cr_rows_put_images(r, &r->validation, NULL, first, end - first, err));
    batch_of(r->validation.rows + first, NULL, end - first, &batch);
    cr_note(cr_rows_log_probs(r, &batch, CR_COLUMN_LOG_PROBS, err));
    for (size_t k = 0; k < batch.num && err->status == CR_OK; k++) {
        const double *mask = batch.of[CR_COLUMN_MASK];
        for (size_t t = batch.start[k]; t < batch.start[k + 1]; t++)
            if (!mask || mask[t] > 0) nll[batch.samples[k].id] -= batch.of[CR_COLUMN_LOG_PROBS][t];
    }
    cr_sample_batch_free(&batch);
    return err->status;
}

/* Mean loss of a learnt token over the whole validation set. Rows are summed in their order, so the number
 * does not depend on how they are cut into ranks and micro-batches. */
cr_status cr_rows_validate_answers(cr_rows *r, bool is_final, cr_metrics *m, cr_err *err)
{
    size_t n = r->validation.num_rows, per = cr_rows_num_at_once(r);
    double *nll = CR_NEW_ARRAY(double, n), sum = 0, tokens = 0;

    for (size_t first = 0; first < n && err->status == CR_OK; first += per)
        cr_note(ask_rows(r, first, n - first < per ? n : first + per, nll + first, err));
    for (size_t i = 0; i < n; i++) {
        sum += nll[i];
        tokens += (double)num_learnt(&r->validation.rows[i]);
    }
    cr_free(nll);
    CR_TRY(err->status);
    cr_metrics_set(m, sum / tokens, "%s%s", is_final ? "final/" : "", r->kind->val_loss);
    return CR_OK;
}

const cr_rows_kind cr_rows_sft = {.ask = CR_ASK_SFT_STEP,
                                  .score = "sft_train/loss",
                                  .val_loss = "sft_train/val_loss",
                                  .num_samples = 1,
                                  .load = cr_rows_load_answers,
                                  .train = train,
                                  .validate = cr_rows_validate_answers};
