/* cmd_grad.c -- croll grad: the full gradient of the cross entropy of given lines (reference/cli.md 2).
 *
 * The loss is summed over all label tokens of all lines and divided by their number, so it has to
 * know all lines before the first backward; how they are cut into micro-batches changes nothing but
 * the order of float32 sums.
 */
#include "actors/commands.h"
#include "actors/worker.h"
#include "models/safetensors.h"

#include <math.h>

typedef struct job {
    cr_worker worker;
    cr_lines lines;
    cr_line *line; /* all good lines */
    size_t num_lines, capacity_lines;
    cr_packed packed;
    int64_t num_labels;
    double loss, grad_norm;
} job;

static cr_status read_lines(job *j, cr_err *err)
{
    cr_line_rules rules = cr_worker_rules(&j->worker);
    cr_line line;

    rules.has_labels = true;
    while (cr_lines_next(&j->lines, &rules, &line)) {
        if (line.error) {
            cr_status status = cr_lines_write_error(&j->lines, &line, err);
            cr_line_free(&line);
            CR_TRY(status);
            continue;
        }
        if (j->num_lines == j->capacity_lines) {
            size_t num = j->capacity_lines ? 2 * j->capacity_lines : 16;
            j->line = cr_realloc(j->line, j->capacity_lines * sizeof line, num * sizeof line);
            j->capacity_lines = num;
        }
        j->line[j->num_lines++] = line;
        for (size_t t = 1; t < line.num_ids; t++)
            j->num_labels += !line.labels || line.labels[t] >= 0;
    }
    if (j->num_labels == 0)
        return cr_fail(err, CR_EFORMAT,
                       "no line has a label token: there is no loss to derive "
                       "(give input_ids of 2 tokens or more)");
    return CR_OK;
}

/* Lines [first, end) as one micro-batch. */
static cr_status run_micro_batch(job *j, size_t first, size_t end, cr_err *err)
{
    cr_pass pass = cr_worker_pass(&j->worker, &j->packed.batch, /*has_tape=*/true);
    int64_t num = 0;
    float *log_prob, *grad;
    cr_status status;

    cr_packed_clear(&j->packed);
    for (size_t i = first; i < end; i++)
        num += cr_packed_add(&j->packed, &j->line[i]);
    log_prob = CR_NEW_ARRAY(float, num);
    grad = CR_NEW_ARRAY(float, num);
    for (int64_t i = 0; i < num; i++)
        grad[i] = (float)(-1.0 / (double)j->num_labels);
    status = cr_model_forward(j->worker.model, &pass, &(cr_model_out){log_prob, NULL}, err);
    if (status == CR_OK) status = cr_model_backward(j->worker.model, &pass, grad, NULL, err);
    for (int64_t i = 0; i < num; i++)
        j->loss -= log_prob[i];
    cr_free(log_prob);
    cr_free(grad);
    return status;
}

static cr_status run_lines(job *j, cr_err *err)
{
    size_t step = (size_t)j->worker.batch_size;

    for (size_t i = 0; i < j->num_lines; i += step)
        CR_TRY(run_micro_batch(j, i, i + step < j->num_lines ? i + step : j->num_lines, err));
    j->loss /= (double)j->num_labels;
    return CR_OK;
}

static cr_status write_gradient(job *j, const char *path, cr_err *err)
{
    const cr_model *model = j->worker.model;
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, model->num_params);
    cr_param **params = CR_NEW_ARRAY(cr_param *, model->num_params);
    cr_tensor_writer *writer = NULL;
    double squares = 0, part;
    size_t num = 0;
    cr_status status;

    for (size_t i = 0; i < model->num_params; i++) {
        cr_param *p = model->params[i];
        if (!p->is_trainable) continue;
        specs[num] = (cr_tensor_spec){.name = p->name, .dtype = CR_F32, .num_dims = p->num_dims};
        for (int d = 0; d < p->num_dims; d++)
            specs[num].shape[d] = p->shape[d];
        params[num++] = p;
    }
    status = cr_tensor_writer_open(path, specs, num, &writer, err);
    for (size_t i = 0; i < num && status == CR_OK; i++) {
        status =
            cr_square_sum(j->worker.dev, params[i]->grad, (size_t)params[i]->num_elems, &part, err);
        squares += part;
        if (status == CR_OK)
            status = cr_tensor_writer_put(writer, i, 0, params[i]->num_elems, params[i]->grad, err);
    }
    j->grad_norm = sqrt(squares);
    if (status == CR_OK && !isfinite(j->grad_norm))
        status = cr_fail(err, CR_ENUMERIC, "the gradient is not finite; nothing was written");
    if (status == CR_OK)
        status = cr_tensor_writer_close(writer, err);
    else
        cr_tensor_writer_abort(writer);
    cr_free(specs);
    cr_free(params);
    return status;
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
    if (status == CR_OK) status = cr_lines_write(&j->lines, &text, err);
    cr_buf_free(&text);
    return status;
}

static cr_status run_job(job *j, const cr_words *words, const char *device, const char *out,
                         cr_err *err)
{
    if (!out) return cr_fail(err, CR_EUSAGE, "--out FILE is missing (where the gradient goes)");
    CR_TRY(cr_worker_open(&j->worker, CR_WORKER_TRAIN, words, device, err));
    CR_TRY(read_lines(j, err));
    CR_TRY(run_lines(j, err));
    CR_TRY(write_gradient(j, out, err));
    return print_result(j, err);
}

static int run(int argc, char **argv)
{
    job j = {0};
    const char *out = NULL, *device = NULL;
    const cr_option options[] = {
        {"out", CR_OPT_STRING, &out, "FILE",
         "the gradient: a safetensors file, float32 (required)"},
        {"device", CR_OPT_STRING, &device, "NAME", "cpu (default) or cuda"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;
    int code;

    cr_lines_init(&j.lines, stdin, stdout);
    if (cr_args_parse(&cr_command_grad, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help)
        (void)!run_job(&j, &words, device, out, &err);
    code = err.status ? cr_command_fail(&cr_command_grad, &err) : j.lines.has_failed ? 2 : 0;
    for (size_t i = 0; i < j.num_lines; i++)
        cr_line_free(&j.line[i]);
    cr_free(j.line);
    cr_packed_free(&j.packed);
    cr_lines_fini(&j.lines);
    cr_worker_close(&j.worker);
    cr_words_free(&words);
    return code;
}

const cr_command cr_command_grad = {
    "grad",
    "grad MODEL --out G.safetensors [key=value ..] < LINES.jsonl",
    "Gradient of the mean cross entropy over all label tokens of all lines; prints loss, tokens "
    "and "
    "grad_norm.",
    "echo '{\"id\":1,\"input_ids\":[1,403,407]}' | croll grad ../shared/data/stories260k --out "
    "/tmp/g.safetensors model_args.dtype=fp32",
    run,
};
