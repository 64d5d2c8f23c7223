/* cmd_logprobs.c -- croll logprobs: log-probs of given tokens, line by line (reference/cli.md 2).
 *
 * Lines are packed without padding, infer_batch_size of them in one forward; a line's answer has the
 * same bits in any company. With --logits every line is kept until the end, because a safetensors
 * file begins with the shapes of all tensors.
 */
#include "actors/commands.h"
#include "actors/worker.h"
#include "models/safetensors.h"

#include <string.h>

enum { MAX_BATCH_TOKENS = 16384 };

typedef struct ask {
    cr_worker worker;
    cr_lines lines;
    cr_line_rules rules;
    bool has_entropy, has_logits;
    cr_line *line; /* lines that wait for their answer, or (logits) all of them */
    size_t num_lines, capacity_lines, first; /* of those that wait */
    cr_packed packed;
    float *log_prob, *entropy;
    size_t capacity; /* of both, in rows */
} ask;

/* ---- answers ---- */

static cr_status answer(ask *a, const cr_line *line, size_t row, cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    if (line->error) return cr_lines_write_error(&a->lines, line, err);
    cr_buf_addf(&text, "{\"id\":%s,\"input_ids\":", line->id);
    cr_json_add_ids(&text, line->ids, line->num_ids);
    cr_buf_adds(&text, ",\"logprobs\":");
    status = cr_json_add_floats(&text, a->log_prob + row, line->num_ids - 1, err);
    if (status == CR_OK && a->has_entropy) {
        cr_buf_adds(&text, ",\"entropy\":");
        status = cr_json_add_floats(&text, a->entropy + row, line->num_ids - 1, err);
    }
    cr_buf_addc(&text, '}');
    if (status == CR_OK)
        status = cr_lines_write(&a->lines, &text, err);
    else
        cr_fail_add(err, "line %lld", (long long)line->number);
    cr_buf_free(&text);
    return status;
}

static void reserve_rows(ask *a, size_t num)
{
    size_t old = a->capacity * sizeof(float);

    if (num <= a->capacity) return;
    a->capacity = 2 * num;
    a->log_prob = cr_realloc(a->log_prob, old, a->capacity * sizeof(float));
    a->entropy = cr_realloc(a->entropy, old, a->capacity * sizeof(float));
}

/* One forward over the good ones of the lines that wait, then all their answers. */
static cr_status answer_waiting(ask *a, cr_err *err)
{
    cr_model_out out;
    size_t row = 0;

    cr_packed_clear(&a->packed);
    for (size_t i = a->first; i < a->num_lines; i++)
        if (!a->line[i].error) cr_packed_add(&a->packed, &a->line[i]);
    if (a->packed.batch.num_tokens) {
        cr_pass pass = cr_worker_pass(&a->worker, &a->packed.batch, /*has_tape=*/false);
        reserve_rows(a, (size_t)a->packed.batch.num_tokens);
        out = (cr_model_out){a->log_prob, a->has_entropy ? a->entropy : NULL};
        CR_TRY(cr_model_forward(a->worker.model, &pass, &out, err));
    }
    for (size_t i = a->first; i < a->num_lines; i++) {
        CR_TRY(answer(a, &a->line[i], row, err));
        if (!a->line[i].error) row += a->line[i].num_ids - 1;
    }
    a->first = a->num_lines;
    if (a->has_logits) return CR_OK;
    for (size_t i = 0; i < a->num_lines; i++)
        cr_line_free(&a->line[i]);
    a->first = a->num_lines = 0;
    return CR_OK;
}

static void keep_line(ask *a, const cr_line *line)
{
    if (a->num_lines == a->capacity_lines) {
        size_t num = a->capacity_lines ? 2 * a->capacity_lines : 16;
        a->line = cr_realloc(a->line, a->capacity_lines * sizeof *line, num * sizeof *line);
        a->capacity_lines = num;
    }
    a->line[a->num_lines++] = *line;
}

static cr_status answer_all(ask *a, cr_err *err)
{
    int64_t num_good = 0, num_tokens = 0;
    cr_line line;

    while (cr_lines_next(&a->lines, &a->rules, &line)) {
        keep_line(a, &line);
        num_good += !line.error;
        num_tokens += (int64_t)line.num_ids;
        if (num_good < a->worker.batch_size && num_tokens < MAX_BATCH_TOKENS) continue;
        CR_TRY(answer_waiting(a, err));
        num_good = num_tokens = 0;
    }
    return answer_waiting(a, err);
}

/* ---- logits ---- */

static cr_status put_logits(ask *a, const cr_line *line, cr_tensor_writer *writer, size_t index,
                            cr_err *err)
{
    int64_t vocab = a->worker.model->config.vocab_size, num = (int64_t)line->num_ids;
    float *logits = CR_NEW_ARRAY(float, num *vocab);
    int32_t *rows = CR_NEW_ARRAY(int32_t, num);
    cr_status status;
    cr_pass pass;

    for (int64_t t = 0; t < num; t++)
        rows[t] = (int32_t)t;
    cr_packed_clear(&a->packed);
    cr_packed_add(&a->packed, line);
    pass = cr_worker_pass(&a->worker, &a->packed.batch, /*has_tape=*/false);
    status = cr_model_logits(a->worker.model, &pass, rows, num, logits, err);
    if (status == CR_OK) status = cr_tensor_writer_put(writer, index, 0, num * vocab, logits, err);
    cr_free(logits);
    cr_free(rows);
    return status;
}

static cr_status write_logits(ask *a, const char *path, cr_err *err)
{
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, a->num_lines);
    cr_tensor_writer *writer = NULL;
    size_t num = 0;
    cr_status status;

    for (size_t i = 0; i < a->num_lines; i++)
        if (!a->line[i].error)
            specs[num++] = (cr_tensor_spec){
                .name = a->line[i].name,
                .dtype = CR_F32,
                .num_dims = 2,
                .shape = {(int64_t)a->line[i].num_ids, a->worker.model->config.vocab_size}};
    status = cr_tensor_writer_open(path, specs, num, &writer, err);
    num = 0;
    for (size_t i = 0; i < a->num_lines && status == CR_OK; i++)
        if (!a->line[i].error) status = put_logits(a, &a->line[i], writer, num++, err);
    if (status == CR_OK)
        status = cr_tensor_writer_close(writer, err);
    else
        cr_tensor_writer_abort(writer);
    cr_free(specs);
    return status;
}

/* ---- the command ---- */

static void close_ask(ask *a)
{
    for (size_t i = 0; i < a->num_lines; i++)
        cr_line_free(&a->line[i]);
    cr_free(a->line);
    cr_free(a->log_prob);
    cr_free(a->entropy);
    cr_packed_free(&a->packed);
    cr_lines_fini(&a->lines);
    cr_worker_close(&a->worker);
}

static int run(int argc, char **argv)
{
    ask a = {0};
    const char *logits = NULL, *device = NULL;
    const cr_option options[] = {
        {"entropy", CR_OPT_FLAG, &a.has_entropy, NULL, "also the entropy at every position (nats)"},
        {"logits", CR_OPT_STRING, &logits, "FILE",
         "also write float32 [tokens, vocabulary] per id to this safetensors file"},
        {"device", CR_OPT_STRING, &device, "NAME", "cpu (default) or cuda"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;
    int code;

    cr_lines_init(&a.lines, stdin, stdout);
    if (cr_args_parse(&cr_command_logprobs, options, CR_COUNT(options), argc, argv, &words,
                      &is_help, &err) == CR_OK &&
        !is_help && cr_worker_open(&a.worker, CR_WORKER_INFER, &words, device, &err) == CR_OK) {
        a.has_logits = logits != NULL;
        a.rules = cr_worker_rules(&a.worker);
        a.rules.needs_name = a.has_logits;
        if (answer_all(&a, &err) == CR_OK && logits) (void)!write_logits(&a, logits, &err);
    }
    code = err.status ? cr_command_fail(&cr_command_logprobs, &err) : a.lines.has_failed ? 2 : 0;
    close_ask(&a);
    cr_words_free(&words);
    return code;
}

const cr_command cr_command_logprobs = {
    "logprobs",
    "logprobs MODEL [key=value ..] < LINES.jsonl",
    "Log-probability of every next token of each line: {\"id\", \"input_ids\" or \"prompt\" or "
    "\"messages\"} in, {\"id\",\"input_ids\",\"logprobs\"} out, in order.",
    "echo '{\"id\":1,\"input_ids\":[1,403,407]}' | croll logprobs ../shared/data/stories260k "
    "model_args.dtype=fp32 --entropy",
    run,
};
