/* grad.c -- see grad.h.
 *
 * With an auxiliary loss of routers, each micro-batch adds it over its own tokens with its share of all
 * label tokens as weight: that part does depend on the cut.
 *
 * The loss is summed over all label tokens of all lines and divided by their number, so it has to
 * know all lines before the first backward; how they are distributed over ranks and cut into micro-batches
 * changes nothing but the order of float32 sums. Rank 0 reads and writes; the others get the lines.
 */
#include "serve/lines/grad.h"
#include "actors/strategy_args.h"
#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/files/safetensors.h"
#include "serve/lines/line_images.h"
#include "strategies/packed_images.h"
#include "strategies/strategies.h"

#include <math.h>
#include <string.h>

typedef struct job {
    cr_session *session;
    cr_lines *lines;
    cr_line *line;            /* all good lines */
    cr_prompt_images *images; /* of each */
    size_t num_lines, capacity_lines, capacity_images;
    cr_packed packed;
    cr_packed_images packed_images;
    int64_t num_labels;
    double loss, grad_norm;
    const char *path;
    const cr_line_image_words *words;
    cr_tensor_writer *writer;
} job;

static void keep_line(job *j, cr_line *line, cr_prompt_images *images)
{
    j->line = cr_grow(j->line, j->num_lines, &j->capacity_lines, sizeof *j->line);
    j->images = cr_grow(j->images, j->num_lines, &j->capacity_images, sizeof *j->images);
    j->images[j->num_lines] = *images;
    j->line[j->num_lines++] = *line;
    for (size_t t = 1; t < line->num_ids; t++)
        j->num_labels += !line->labels || line->labels[t] >= 0;
}

static cr_status read_lines(job *j, cr_err *err)
{
    cr_line_rules rules = cr_session_rules(j->session);
    cr_prompt_images images;
    cr_line line;

    rules.has_labels = true;
    CR_TRY(cr_line_images_expect(j->session, j->words, err));
    while (cr_lines_next(j->lines, &rules, &line)) {
        cr_line_images_take(j->session, &line, &images);
        if (line.error) {
            cr_status status = cr_lines_write_error(j->lines, &line, err);
            cr_line_free(&line);
            cr_prompt_images_free(&images);
            CR_TRY(status);
            continue;
        }
        keep_line(j, &line, &images);
    }
    if (j->num_labels == 0)
        return cr_fail(err, CR_EFORMAT,
                       "no line has a label token: there is no loss to derive "
                       "(give input_ids of 2 tokens or more)");
    return CR_OK;
}

/* What a line begins with; its ids, labels and images follow. */
typedef struct head {
    int32_t num_ids, has_labels;
} head;

static void put_line(cr_buf *to, const cr_line *l, const cr_prompt_images *images)
{
    head h = {(int32_t)l->num_ids, l->labels != NULL};

    cr_buf_add(to, &h, sizeof h);
    cr_buf_add(to, l->ids, l->num_ids * sizeof(int32_t));
    if (l->labels) cr_buf_add(to, l->labels, l->num_ids * sizeof(int32_t));
    cr_prompt_images_put(images, to);
}

/* A copy of num words of 4 bytes; *at moves past them. */
static void *copy_words(const int32_t **at, size_t num)
{
    void *copy = memcpy(cr_alloc(num * sizeof **at), *at, num * sizeof **at);

    *at += num;
    return copy;
}

static void take_line(job *j, const int32_t **at)
{
    cr_prompt_images images = {0};
    cr_line line = {0};
    head h;

    memcpy(&h, *at, sizeof h);
    *at += sizeof h / sizeof **at;
    line.num_ids = (size_t)h.num_ids;
    line.ids = copy_words(at, line.num_ids);
    if (h.has_labels) line.labels = copy_words(at, line.num_ids);
    *at += cr_prompt_images_get((const char *)*at, &images) / sizeof **at;
    keep_line(j, &line, &images);
}

/* Rank 0's lines to all. */
static cr_status share_lines(job *j, cr_err *err)
{
    cr_group *all = j->session->mesh->group[CR_AXIS_ALL];
    size_t *offsets = CR_NEW_ARRAY(size_t, j->session->num_ranks + 1);
    cr_buf send = {0}, got = {0};
    const int32_t *at, *end;

    for (size_t i = 0; i < j->num_lines; i++)
        put_line(&send, &j->line[i], &j->images[i]);
    CR_TRY_GOTO(out,
                cr_all_gather_bytes(all, "lines", send.data, send.num_bytes, &got, offsets, err));
    at = (const int32_t *)(const void *)got.data;
    end = at + got.num_bytes / sizeof(int32_t);
    while (j->session->rank != 0 && at < end)
        take_line(j, &at);
out:
    cr_buf_free(&send);
    cr_buf_free(&got);
    cr_free(offsets);
    return err->status;
}

static cr_status cross_entropy(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                               cr_err *err)
{
    const float *log_prob = out->of[CR_LOG_PROB];
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    job *j = ctx;

    (void)err;
    for (size_t i = 0; i < num; i++) {
        j->loss -= log_prob[i];
        grad_log_prob[i] = (float)(-1.0 / (double)j->num_labels);
    }
    return CR_OK;
}

/* Every num_dp-th line is this rank's; all ranks run the same number of micro-batches. */
static cr_status run_lines(job *j, cr_err *err)
{
    cr_session *s = j->session;
    cr_group *dp = s->mesh->group[CR_AXIS_DP];
    size_t ranks = (size_t)cr_group_num_ranks(dp), next = (size_t)cr_group_rank(dp),
           step = (size_t)s->batch_size, mine = (j->num_lines + ranks - 1 - next) / ranks;
    int64_t num;

    CR_TRY(cr_fsdp_agree_num(s->fsdp, (int64_t)((mine + step - 1) / step), &num, err));
    for (int64_t m = 0; m < num; m++) {
        int64_t labels = 0;
        float aux;
        cr_packed_clear(&j->packed);
        cr_packed_images_clear(&j->packed_images);
        for (size_t i = 0; i < step && next < j->num_lines; i++, next += ranks) {
            labels += cr_line_pack(&j->packed, &j->line[next]);
            cr_packed_images_add(&j->packed_images, &j->images[next].seq);
            cr_packed_images_end_seq(&j->packed_images);
        }
        CR_TRY(cr_packed_images_end(&j->packed_images, &s->model->config, &j->packed.batch, err));
        aux = cr_aux_weight(s->model, s->keys, (double)labels / (double)j->num_labels);
        cr_fsdp_set_aux_weight(s->fsdp, aux);
        CR_TRY(cr_fsdp_backward(s->fsdp, j->packed.batch.num_seqs ? &j->packed.batch : NULL,
                                cross_entropy, j, err));
        j->loss += (double)aux * (double)j->num_labels * cr_fsdp_aux_loss(s->fsdp);
    }
    CR_TRY(cr_all_reduce_f64(dp, "loss", CR_OP_SUM, &j->loss, 1, err));
    j->loss /= (double)j->num_labels;
    return CR_OK;
}

/* ---- the file ---- */

static cr_status open_writer(job *j, cr_err *err)
{
    const cr_model *model = j->session->model;
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, model->num_params);
    size_t num = 0;
    cr_status status;

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        if (!p->is_trainable) continue;
        specs[num] =
            (cr_tensor_spec){.name = p->file_name, .dtype = CR_F32, .num_dims = p->num_dims};
        for (int d = 0; d < p->num_dims; d++)
            specs[num].shape[d] = p->shape[d];
        num++;
    }
    status = cr_tensor_writer_open(j->path, specs, num, &j->writer, err);
    cr_free(specs);
    return status;
}

static cr_status put(void *ctx, const cr_param *param, const float *grad, cr_err *err)
{
    job *j = ctx;
    const cr_model *model = j->session->model;
    size_t index = 0;

    if (!isfinite(j->grad_norm))
        return cr_fail(err, CR_ENUMERIC, "the gradient is not finite; nothing was written");
    if (!j->writer) CR_TRY(open_writer(j, err));
    for (size_t i = 0; model->params[i] != param; i++)
        index += model->params[i]->is_trainable;
    return cr_tensor_writer_put(j->writer, index, 0, param->num_elems, grad, err);
}

static cr_status write_gradient(job *j, cr_err *err)
{
    CR_TRY(cr_fsdp_visit_grads(j->session->fsdp, put, j, &j->grad_norm, err));
    if (j->session->rank == 0) {
        cr_tensor_writer *writer = j->writer;
        j->writer = NULL;
        cr_note(cr_tensor_writer_close(writer, err));
    }
    return cr_agree(j->session->mesh->group[CR_AXIS_ALL], "write the gradient", err);
}

static cr_status print_result(job *j, cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    cr_buf_adds(&text, "{\"loss\":");
    status = cr_json_add_double(&text, j->loss, err);
    cr_buf_addf(&text, ",\"tokens\":%lld,\"grad_norm\":", (long long)j->num_labels);
    if (status == CR_OK) status = cr_json_add_double(&text, j->grad_norm, err);
    cr_buf_addc(&text, '}');
    if (status == CR_OK) status = cr_lines_write(j->lines, &text, err);
    cr_buf_free(&text);
    return status;
}

static cr_status work(void *ctx, cr_session *session, const char *device, cr_lines *lines,
                      cr_err *err)
{
    job *j = ctx;

    j->session = session;
    j->lines = lines;
    CR_TRY(cr_session_open(j->session, device, err));
    if (j->session->rank == 0) cr_note(read_lines(j, err));
    CR_TRY(cr_agree(j->session->mesh->group[CR_AXIS_ALL], "read the lines", err));
    CR_TRY(share_lines(j, err));
    CR_TRY(run_lines(j, err));
    CR_TRY(write_gradient(j, err));
    return j->session->rank == 0 ? print_result(j, err) : CR_OK;
}

static void close_job(void *ctx)
{
    job *j = ctx;

    cr_tensor_writer_abort(j->writer);
    for (size_t i = 0; i < j->num_lines; i++) {
        cr_line_free(&j->line[i]);
        cr_prompt_images_free(&j->images[i]);
    }
    cr_free(j->line);
    cr_free(j->images);
    cr_packed_free(&j->packed);
    cr_packed_images_free(&j->packed_images);
}

int cr_grad_run(const cr_session_call *call, const char *path, const cr_line_image_words *images)
{
    job j = {.path = path, .words = images};

    return cr_lines_run(call, &(cr_lines_task){CR_SESSION_TRAIN, NULL, work, close_job, &j});
}
