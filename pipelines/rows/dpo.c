/* dpo.c -- pairs of a chosen and a rejected answer: log-probs of the reference, the loss (rl/pairs.h), what it says of rewards (see
 * rows.h). A pair is two samples that share their prompt. */
#include "data/prompts.h"
#include "pipelines/rows/reference.h"
#include "pipelines/rows/rows.h"
#include "pipelines/service/service.h"
#include "reports/metrics.h"
#include "samples/items/loader.h"

#include <math.h>
#include <string.h>

typedef struct dpo {
    cr_role_service *service; /* of the reference, or NULL */
    cr_reference_table data, validation;
    double reference_s; /* since the last update */
} dpo;

/* ---- rows ---- */

static cr_status load(cr_rows *r, const cr_worker_config *from, cr_dataset *data, cr_err *err)
{
    const cr_worker_config *w = &r->c->reference;
    dpo *d = r->own;

    if (!d) {
        r->own = d = CR_NEW(dpo);
        d->data.fd = d->validation.fd = -1;
        if (!w->is_of_trainer)
            CR_TRY(w->service.url ? cr_role_service_open(r->c, w, 0, &d->service, err)
                                  : cr_vocabulary_check(r->c, w, r->tokenizer, err));
    }
    return cr_rows_load(r, from, cr_prompt_encode_pair, data, err);
}

/* Rows of data (rows NULL: its first num) as samples 2k, chosen, and 2k + 1, rejected. */
static void batch_of(const cr_row *data, const uint32_t *rows, size_t num, cr_sample_batch *b)
{
    cr_sample_batch_init(b, 2 * num);
    for (size_t i = 0; i < 2 * num; i++) {
        const cr_row *row = &data[rows ? rows[i / 2] : i / 2];
        size_t first = row->num_prompt + (i % 2 ? row->num_chosen : 0);
        b->samples[i].id = i;
        b->samples[i].items = cr_row_items(row);
        cr_sample_batch_pair(b, i, row->ids, row->num_prompt, row->ids + first,
                             i % 2 ? row->num_ids - first : row->num_chosen);
    }
    cr_sample_batch_count(b);
}

/* ---- the reference ---- */

static cr_status ask_reference(cr_rows *r, cr_sample_batch *b, cr_err *err)
{
    const dpo *d = r->own;

    return d->service ? cr_role_service_ask(d->service, r->run, b, CR_COLUMN_REF, err)
                      : cr_rows_log_probs(r, b, CR_COLUMN_REF, err);
}

/* Rows that the table does not have yet. */
static cr_status compute_missing(cr_rows *r, cr_reference_table *t, const uint32_t *rows,
                                 size_t num, cr_err *err)
{
    uint32_t *missing = CR_NEW_ARRAY(uint32_t, num + 1);
    size_t n = 0;
    cr_sample_batch b;

    for (size_t i = 0; i < num; i++)
        if (!t->of[rows[i]]) missing[n++] = rows[i];
    batch_of(t->data->rows, missing, n, &b);
    if (n) cr_note(ask_reference(r, &b, err));
    for (size_t i = 0; i < n && err->status == CR_OK; i++)
        cr_note(cr_reference_add(t, missing[i], b.of[CR_COLUMN_REF] + b.start[2 * i], err));
    cr_sample_batch_free(&b);
    cr_free(missing);
    return err->status;
}

/* Log-probs of the reference over the batch of these rows. */
static cr_status add_reference(cr_rows *r, cr_reference_table *t, const uint32_t *rows, size_t num,
                               cr_sample_batch *b, cr_err *err)
{
    double start = cr_now_s(), *to;
    dpo *d = r->own;

    if (r->c->rows.keeps_reference) {
        CR_TRY(compute_missing(r, t, rows, num, err));
        to = cr_sample_batch_add(b, CR_COLUMN_REF);
        for (size_t i = 0; i < num; i++)
            for (size_t k = b->start[2 * i]; k < b->start[2 * i + 2]; k++)
                to[k] = t->of[rows[i]][k - b->start[2 * i]];
    } else {
        CR_TRY(ask_reference(r, b, err));
    }
    d->reference_s += cr_now_s() - start;
    return CR_OK;
}

/* How images become patches; their files and grids are the rows'. */
static cr_status name_processor(const cr_rows *r, const char *folder, cr_buf *out, cr_err *err)
{
    if (!cr_dataset_has_images(&r->data) && !cr_dataset_has_images(&r->validation)) return CR_OK;
    cr_buf_adds(out, " images ");
    return cr_item_processor_name(folder, &r->c->train.data, out, err);
}

/* What the numbers of the reference depend on beside the rows. */
static cr_status name_reference(const cr_rows *r, cr_buf *out, cr_err *err)
{
    const cr_worker_config *w = r->c->reference.is_of_trainer ? &r->c->train : &r->c->reference;
    char hex[CR_DIGEST_TEXT];

    if (w->service.url) {
        cr_buf_addf(out, "service %s", cr_role_service_weights(((dpo *)r->own)->service));
        return CR_OK;
    }
    CR_TRY(cr_reference_weights(w->model_path, hex, err));
    cr_buf_addf(out, "%s dtype %d %s", hex, (int)w->dtype, r->c->device);
    return name_processor(r, w->model_path, out, err);
}

static cr_status begin(cr_rows *r, cr_err *err)
{
    dpo *d = r->own;
    cr_buf name = {0};

    if (d->service) CR_TRY(cr_role_service_record(d->service, r->run->output_dir, err));
    if (!r->c->rows.keeps_reference) return CR_OK;
    if (name_reference(r, &name, err) == CR_OK &&
        cr_reference_open(&d->data, &r->data, r->run->output_dir, name.data, err) == CR_OK &&
        r->c->has_validation)
        cr_note(
            cr_reference_open(&d->validation, &r->validation, r->run->output_dir, name.data, err));
    if (err->status == CR_OK && d->data.num_known)
        cr_log(CR_LOG_INFO, "dpo", "the reference's log-probs of %zu of %zu pairs are in %s",
               d->data.num_known, r->data.num_rows, d->data.path);
    cr_buf_free(&name);
    return err->status;
}

static void end(cr_rows *r)
{
    dpo *d = r->own;

    if (!d) return;
    cr_reference_close(&d->data);
    cr_reference_close(&d->validation);
    cr_role_service_close(d->service);
    cr_free(d);
}

/* ---- steps ---- */

static void write_metrics(cr_metrics *m, const char *prefix, const cr_pair_metrics *x)
{
    const struct {
        const char *name;
        double value;
    } all[] = {{"rewards/chosen", x->chosen},
               {"rewards/rejected", x->rejected},
               {"rewards/margins", x->margins},
               {"rewards/accuracies", x->accuracies},
               {"logps/chosen", x->chosen_log_probs},
               {"logps/rejected", x->rejected_log_probs},
               {"nll_loss", x->nll}};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_metrics_set(m, all[i].value, "%s%s", prefix, all[i].name);
}

static cr_status train(cr_rows *r, const uint32_t *rows, double lr, cr_metrics *m, cr_err *err)
{
    double start = cr_now_s(), tokens = 0;
    uint64_t counts[CR_MINI_COUNTS] = {[CR_MINI_FINAL_SAMPLES] = r->batch};
    cr_train_sums sums = {0};
    cr_sample_batch b;
    dpo *d = r->own;

    CR_TRY(cr_rows_put_images(r, &r->data, rows, 0, r->batch, err));
    batch_of(r->data.rows, rows, r->batch, &b);
    counts[CR_MINI_TOKENS] = b.num_tokens;
    for (size_t i = 0; i < b.num; i++) {
        tokens += (double)b.samples[i].num_ids;
        if (i % 2 == 0) counts[CR_MINI_FINAL_TOKENS] += b.samples[i].num_response;
    }
    if (add_reference(r, &d->data, rows, r->batch, &b, err) == CR_OK)
        cr_note(cr_rows_update(r, &b, counts, lr, &sums, err));
    cr_sample_batch_free(&b);
    CR_TRY(err->status);
    cr_metrics_set(m, sums.loss.total_loss, "actor/loss");
    cr_metrics_set(m, (double)(float)lr, "actor/lr");
    cr_metrics_set(m, sums.num_skipped ? (double)NAN : sums.grad_norm, "actor_train/grad_norm");
    write_metrics(m, "", &sums.pairs);
    cr_metrics_set(m, d->reference_s, "time/ref_log_probs_values");
    d->reference_s = 0;
    cr_metrics_set(m, tokens / (cr_now_s() - start), "system/tps/tps");
    return CR_OK;
}

/* Log-probs of validation pairs [first, end) into both columns of all, the batch of the whole set. */
static cr_status validate_rows(cr_rows *r, size_t first, size_t end, cr_sample_batch *all,
                               cr_err *err)
{
    static const cr_batch_column columns[] = {CR_COLUMN_REF, CR_COLUMN_LOG_PROBS};
    uint32_t *rows = CR_NEW_ARRAY(uint32_t, end - first);
    cr_sample_batch b;
    dpo *d = r->own;

    for (size_t i = 0; i < end - first; i++)
        rows[i] = (uint32_t)(first + i);
    batch_of(r->validation.rows, rows, end - first, &b);
    if (cr_rows_put_images(r, &r->validation, rows, 0, end - first, err) == CR_OK &&
        add_reference(r, &d->validation, rows, end - first, &b, err) == CR_OK)
        cr_note(cr_rows_log_probs(r, &b, CR_COLUMN_LOG_PROBS, err));
    for (size_t c = 0; c < CR_COUNT(columns) && err->status == CR_OK; c++)
        memcpy(cr_sample_batch_add(all, columns[c]) + all->start[2 * first], b.of[columns[c]],
               b.num_tokens * sizeof(double));
    cr_sample_batch_free(&b);
    cr_free(rows);
    return err->status;
}

/* Over all pairs, also those that fill no batch; the numbers do not depend on how they are cut. */
static cr_status validate(cr_rows *r, bool is_final, cr_metrics *m, cr_err *err)
{
    const char *prefix = is_final ? "final/val/" : "val/";
    size_t n = r->validation.num_rows, per = cr_rows_num_at_once(r);
    cr_sample_batch all;
    cr_pair_args args = {.num_pairs = (double)n};

    batch_of(r->validation.rows, NULL, n, &all);
    for (size_t first = 0; first < n && err->status == CR_OK; first += per)
        cr_note(validate_rows(r, first, n - first < per ? n : first + per, &all, err));
    for (size_t i = 0; i < n; i++)
        args.num_chosen_tokens += (double)r->validation.rows[i].num_chosen;
    args.rows = (cr_ragged){all.num, all.start};
    args.log_probs = all.of[CR_COLUMN_LOG_PROBS];
    args.ref = all.of[CR_COLUMN_REF];
    if (err->status == CR_OK) cr_pair_losses(&r->c->pairs, &args);
    cr_sample_batch_free(&all);
    CR_TRY(err->status);
    cr_metrics_set(m, args.metrics.loss, "%sloss", prefix);
    write_metrics(m, prefix, &args.metrics);
    return CR_OK;
}

const cr_rows_kind cr_rows_dpo = {.ask = CR_ASK_DPO_STEP,
                                  .score = "rewards/accuracies",
                                  .num_samples = 2,
                                  .load = load,
                                  .train = train,
                                  .validate = validate,
                                  .begin = begin,
                                  .end = end};
