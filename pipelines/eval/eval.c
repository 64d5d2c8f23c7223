/* eval.c -- see eval.h. */
#include "pipelines/eval/eval.h"
#include "base/digest.h"
#include "data/row_images.h"
#include "pipelines/eval/samples.h"
#include "pipelines/eval/table.h"
#include "pipelines/verdicts.h"
#include "reports/eval_html.h"
#include "samples/items/loader.h"

#include <string.h>

/* What the samples are of: the bytes of the data files, of the model and of its adapter. */
static cr_status describe(const cr_config *c, const cr_dataset *data, cr_buf *out, cr_err *err)
{
    char hex[CR_DIGEST_TEXT];
    int64_t num_bytes;

    cr_buf_addf(out, "{\"rows\":\"%016llx\"", (unsigned long long)data->sum);
    CR_TRY(cr_digest_model(c->infer.model_path, hex, &num_bytes, err));
    cr_buf_addf(out, ",\"model\":\"%s\"", hex);
    if (c->val_adapter) {
        CR_TRY(cr_digest_model(c->val_adapter, hex, &num_bytes, err));
        cr_buf_addf(out, ",\"adapter\":\"%s\"", hex);
    }
    cr_buf_adds(out, "}\n");
    return CR_OK;
}

/* Samples that are there are of the same inputs, or the evaluation is refused. */
static cr_status check_inputs(const cr_eval_file *f, cr_err *err)
{
    char *path = cr_path_join(f->config->output_dir, "inputs.json");
    cr_buf now = {0}, before = {0};

    CR_TRY_GOTO(out, describe(f->config, f->data, &now, err));
    if (f->num_done == 0) {
        cr_note(cr_file_write_atomic(path, now.data, now.num_bytes, err));
        goto out;
    }
    CR_TRY_GOTO(out, cr_file_read(path, &before, err));
    if (strcmp(before.data ? before.data : "", now.data) != 0)
        cr_fail(err, CR_ECONFIG,
                "%s has %zu rows of other data files or another model (inputs.json there has "
                "%.200s): --overwrite starts anew",
                f->path, f->num_done, before.data ? before.data : "nothing");
out:
    cr_buf_free(&now);
    cr_buf_free(&before);
    cr_free(path);
    return err->status;
}

typedef struct taker {
    cr_eval_file *file;
    cr_run *run;
} taker;

/* After a signal nothing has to be waited for: what is in the file is kept. */
static cr_status take_group(void *context, const cr_sample *samples, cr_err *err)
{
    const taker *t = context;

    CR_TRY(cr_eval_file_put(t->file, samples, err));
    return cr_run_should_stop() ? cr_run_stopped(t->run, err) : CR_OK;
}

static cr_status sample(cr_run *run, cr_eval_file *f, cr_err *err)
{
    taker t = {f, run};
    const cr_rollout_args args = {.data = f->data,
                                  .group_size = f->group_size,
                                  .is_validation = true,
                                  .is_done = f->is_done, /* read before the first group comes */
                                  .on_group = take_group,
                                  .context = &t};
    cr_rollout rollout;
    cr_metrics m = {0};

    if (cr_rollout_collect(run, &args, &rollout, &m, err) == CR_OK)
        cr_verdict_warn(&rollout, "evaluation, step", 0);
    cr_rollout_free(&rollout);
    cr_metrics_free(&m);
    return err->status;
}

static cr_status read_image(void *data, const char *sha256, cr_buf *out, cr_err *err)
{
    return cr_row_images_find(data, sha256, out, err);
}

static void make_page(const cr_eval_file *f, const json_t *table, const cr_buf *samples,
                      cr_buf *page)
{
    const cr_image_files files = {read_image, (void *)(uintptr_t)f->data,
                                  cr_item_alpha(&f->config->train.data)};
    cr_thumbnails *images = cr_thumbnails_open(f->config->output_dir, &files);

    cr_eval_html(page, table, samples, images);
    cr_thumbnails_close(images);
}

/* eval.json and eval.html. */
static cr_status report(const cr_eval_file *f, const cr_validation *v, cr_err *err)
{
    const char *folder = f->config->output_dir;
    char *page_path = cr_path_join(folder, "eval.html"),
         *path = cr_path_join(folder, CR_EVAL_TABLE);
    cr_buf table = {0}, page = {0}, samples = {0};
    json_t *read = NULL;

    CR_TRY_GOTO(out, cr_eval_table_write(f->config, v, &table, err));
    CR_TRY_GOTO(out, cr_json_parse(table.data, table.num_bytes, path, &read, err));
    CR_TRY_GOTO(out, cr_file_read(f->path, &samples, err));
    make_page(f, read, &samples, &page);
    CR_TRY_GOTO(out, cr_file_write_atomic(page_path, page.data, page.num_bytes, err));
    cr_note(cr_file_write_atomic(path, table.data, table.num_bytes, err));
out:
    json_decref(read);
    cr_buf_free(&table);
    cr_buf_free(&page);
    cr_buf_free(&samples);
    cr_free(page_path);
    cr_free(path);
    return err->status;
}

cr_status cr_evaluate(cr_run *run, const cr_dataset *data, cr_err *err)
{
    cr_eval_file f;
    cr_validation v = {0};

    CR_TRY_GOTO(out, cr_eval_file_open(&f, run->config, data, err));
    CR_TRY_GOTO(out, check_inputs(&f, err));
    run->view = cr_view_create(0, 1, "");
    CR_TRY_GOTO(out, sample(run, &f, err));
    CR_TRY_GOTO(out, cr_eval_file_sort(&f, &v, err));
    cr_note(report(&f, &v, err));
out:
    cr_validation_free(&v);
    cr_eval_file_close(&f);
    return err->status;
}
