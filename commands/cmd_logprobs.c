/* cmd_logprobs.c -- croll logprobs: log-probs of given tokens, line by line.
 *
 * Lines are packed without padding, infer_batch_size of them in one forward of one rank; a line's
 * answer has the same bits in any company and on any rank. Rank 0 reads and answers: in each round it
 * gives its lines to all, and every rank runs its part of them. With --logits every line is kept
 * until the end, because a safetensors file begins with the shapes of all tensors.
 */
#include "commands/commands.h"
#include "commands/worker.h"
#include "models/files/safetensors.h"

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
    cr_buf round, sent, values; /* ids of a round's lines; this rank's values, all ranks' */
    size_t *offsets;            /* [num_ranks + 1] */
} ask;

/* ---- answers ---- */

/* values: log-probs of the line, then its entropies. */
static cr_status answer(ask *a, const cr_line *line, const float *values, cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    if (line->error) return cr_lines_write_error(&a->lines, line, err);
    cr_buf_addf(&text, "{\"id\":%s,\"input_ids\":", line->id);
    cr_json_add_ids(&text, line->ids, line->num_ids);
    cr_buf_adds(&text, ",\"logprobs\":");
    status = cr_json_add_floats(&text, values, line->num_ids - 1, err);
    if (status == CR_OK && a->has_entropy) {
        cr_buf_adds(&text, ",\"entropy\":");
        status = cr_json_add_floats(&text, values + line->num_ids - 1, line->num_ids - 1, err);
    }
    cr_buf_addc(&text, '}');
    if (status == CR_OK)
        status = cr_lines_write(&a->lines, &text, err);
    else
        cr_fail_add(err, "line %lld", (long long)line->number);
    cr_buf_free(&text);
    return status;
}

/* ---- rounds ---- */

/* Rank 0's lines to all, as numbers of ids and ids; nothing: there will be no more. The others may
 * have to wait for a person to type. */
static cr_status share_round(ask *a, cr_err *err)
{
    cr_world *world = a->worker.world;
    double deadline_s = cr_world_deadline_s(world);
    cr_status status;

    cr_buf_clear(&a->sent);
    for (size_t i = a->first; i < a->num_lines; i++) {
        const cr_line *l = &a->line[i];
        int32_t num = (int32_t)l->num_ids;
        if (l->error) continue;
        cr_buf_add(&a->sent, &num, sizeof num);
        cr_buf_add(&a->sent, l->ids, l->num_ids * sizeof(int32_t));
    }
    if (a->worker.rank != 0) cr_world_set_deadline(world, 1e9);
    status = cr_all_gather_bytes(a->worker.mesh->group[CR_AXIS_ALL], "lines", a->sent.data,
                                 a->sent.num_bytes, &a->round, a->offsets, err);
    cr_world_set_deadline(world, deadline_s);
    return status;
}

/* Lines [first, end) of a round, packed. */
static void pack_lines(ask *a, size_t first, size_t end)
{
    int32_t *at = (int32_t *)(void *)a->round.data;

    cr_packed_clear(&a->packed);
    for (size_t i = 0; i < end; i++) {
        cr_line line = {.num_ids = (size_t)at[0], .ids = at + 1};
        if (i >= first) cr_line_pack(&a->packed, &line);
        at += 1 + at[0];
    }
}

static size_t count_lines(const ask *a)
{
    const int32_t *at = (const int32_t *)(const void *)a->round.data;
    const int32_t *end = at + a->round.num_bytes / sizeof(int32_t);
    size_t num = 0;

    for (; at < end; at += 1 + at[0])
        num++;
    return num;
}

/* Per line its log-probs, then its entropies, as the answers want them. */
static void add_values(ask *a, const float *log_prob, const float *entropy)
{
    const cr_batch *b = &a->packed.batch;

    cr_buf_clear(&a->sent);
    for (int64_t i = 0; i < b->num_seqs; i++) {
        size_t num = (size_t)(b->cu_seqlens[i + 1] - b->cu_seqlens[i] - 1);
        cr_buf_add(&a->sent, log_prob, num * sizeof(float));
        cr_buf_add(&a->sent, entropy, num * sizeof(float));
        log_prob += num;
        entropy += num;
    }
}

/* This rank's part of a round; then rank 0 has the values of all lines in order. */
static cr_status run_round(ask *a, cr_err *err)
{
    const cr_worker *w = &a->worker;
    cr_group *dp = w->mesh->group[CR_AXIS_DP];
    size_t num = count_lines(a), ranks = (size_t)cr_group_num_ranks(dp),
           rank = (size_t)cr_group_rank(dp), rows;
    bool is_teller = cr_group_rank(w->mesh->group[CR_AXIS_ULYSSES]) == 0;
    float *values;
    cr_status status;

    pack_lines(a, num * rank / ranks, num * (rank + 1) / ranks);
    rows = (size_t)a->packed.batch.num_tokens;
    values = CR_NEW_ARRAY(float, 2 * rows);
    status = cr_fsdp_forward(w->fsdp, rows ? &a->packed.batch : NULL,
                             &(cr_outputs){{values, values + rows}}, err);
    add_values(a, values, values + rows);
    if (!is_teller) cr_buf_clear(&a->sent); /* all ranks of a ulysses group have the same */
    cr_free(values);
    CR_TRY(status);
    return cr_all_gather_bytes(w->mesh->group[CR_AXIS_ALL], "log-probs", a->sent.data,
                               a->sent.num_bytes, &a->values, a->offsets, err);
}

/* A round of the good ones of the lines that wait, then all their answers. */
static cr_status answer_waiting(ask *a, cr_err *err)
{
    const float *values;
    bool is_good = false;

    for (size_t i = a->first; i < a->num_lines; i++)
        is_good |= !a->line[i].error;
    if (is_good) {
        CR_TRY(share_round(a, err));
        CR_TRY(run_round(a, err));
    }
    values = (const float *)(const void *)a->values.data;
    for (size_t i = a->first; i < a->num_lines; i++) {
        CR_TRY(answer(a, &a->line[i], values, err));
        if (!a->line[i].error) values += 2 * (a->line[i].num_ids - 1);
    }
    a->first = a->num_lines;
    if (a->has_logits) return CR_OK;
    for (size_t i = 0; i < a->num_lines; i++)
        cr_line_free(&a->line[i]);
    a->first = a->num_lines = 0;
    return CR_OK;
}

static cr_status answer_all(ask *a, cr_err *err)
{
    int64_t ranks = cr_group_num_ranks(a->worker.mesh->group[CR_AXIS_DP]), num_good = 0,
            num_tokens = 0;
    cr_line line;

    while (a->worker.rank == 0 && cr_lines_next(&a->lines, &a->rules, &line)) {
        a->line = cr_grow(a->line, a->num_lines, &a->capacity_lines, sizeof *a->line);
        a->line[a->num_lines++] = line;
        num_good += !line.error;
        num_tokens += (int64_t)line.num_ids;
        if (num_good < a->worker.batch_size * ranks && num_tokens < MAX_BATCH_TOKENS * ranks)
            continue;
        CR_TRY(answer_waiting(a, err));
        num_good = num_tokens = 0;
    }
    if (a->worker.rank == 0) CR_TRY(answer_waiting(a, err));
    for (;;) { /* rank 0 has no lines left and says so */
        CR_TRY(share_round(a, err));
        if (a->round.num_bytes == 0) return CR_OK;
        CR_TRY(run_round(a, err));
    }
}

/* ---- logits ---- */

static cr_status put_logits(ask *a, const cr_line *line, cr_tensor_writer *writer, size_t index,
                            cr_err *err)
{
    int64_t vocab = a->worker.model->config.vocab_size, num = (int64_t)line->num_ids;
    float *logits = CR_NEW_ARRAY(float, num *vocab);
    int32_t *rows = CR_NEW_ARRAY(int32_t, num);
    cr_status status;

    for (int64_t t = 0; t < num; t++)
        rows[t] = (int32_t)t;
    cr_packed_clear(&a->packed);
    cr_line_pack(&a->packed, line);
    status = cr_fsdp_logits(a->worker.fsdp, &a->packed.batch, rows, num, logits, err);
    if (status == CR_OK && writer)
        status = cr_tensor_writer_put(writer, index, 0, num * vocab, logits, err);
    cr_free(logits);
    cr_free(rows);
    return status;
}

static cr_status open_writer(ask *a, const char *path, size_t *num, cr_tensor_writer **out,
                             cr_err *err)
{
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, a->num_lines);
    cr_status status;

    *num = 0;
    for (size_t i = 0; i < a->num_lines; i++)
        if (!a->line[i].error)
            specs[(*num)++] = (cr_tensor_spec){
                .name = a->line[i].name,
                .dtype = CR_F32,
                .num_dims = 2,
                .shape = {(int64_t)a->line[i].num_ids, a->worker.model->config.vocab_size}};
    status = cr_tensor_writer_open(path, specs, *num, out, err);
    cr_free(specs);
    return status;
}

/* The line of rank 0 (NULL elsewhere) runs on all ranks of its ulysses group; the others only give
 * their shards. */
static cr_status run_logits(ask *a, const cr_line *line, cr_tensor_writer *writer, size_t index,
                            cr_err *err)
{
    cr_group *group = a->worker.mesh->group[CR_AXIS_ULYSSES];
    cr_line mine = {0};
    cr_status status;

    if (cr_group_rank(a->worker.mesh->group[CR_AXIS_DP]) != 0)
        return cr_fsdp_logits(a->worker.fsdp, NULL, NULL, 0, NULL, err);
    if (line) mine = *line;
    CR_TRY(cr_broadcast(group, "number of ids", 0, &mine.num_ids, sizeof mine.num_ids, err));
    if (!line) mine.ids = CR_NEW_ARRAY(int32_t, mine.num_ids);
    status = cr_broadcast(group, "ids", 0, mine.ids, mine.num_ids * sizeof(int32_t), err);
    if (status == CR_OK) status = put_logits(a, &mine, writer, index, err);
    if (!line) cr_free(mine.ids);
    return status;
}

static cr_status write_logits(ask *a, const char *path, cr_err *err)
{
    cr_group *all = a->worker.mesh->group[CR_AXIS_ALL];
    cr_tensor_writer *writer = NULL;
    size_t num = 0;
    cr_status status = CR_OK;

    if (a->worker.rank == 0) cr_note(open_writer(a, path, &num, &writer, err));
    CR_TRY_GOTO(out, cr_agree(all, "open the file of logits", err));
    CR_TRY_GOTO(out, cr_broadcast(all, "number of lines", 0, &num, sizeof num, err));
    for (size_t i = 0, k = 0; k < num && status == CR_OK; i++) {
        if (a->worker.rank == 0 && a->line[i].error) continue;
        status = run_logits(a, a->worker.rank == 0 ? &a->line[i] : NULL, writer, k++, err);
    }
out:
    if (a->worker.rank == 0 && err->status == CR_OK)
        cr_note(cr_tensor_writer_close(writer, err));
    else
        cr_tensor_writer_abort(writer);
    if (err->status == CR_OK) cr_note(cr_agree(all, "write the logits", err));
    return err->status;
}

/* ---- the command ---- */

static int finish(ask *a, const cr_err *err)
{
    int code = a->lines.has_failed ? 2 : 0;

    for (size_t i = 0; i < a->num_lines; i++)
        cr_line_free(&a->line[i]);
    cr_free(a->line);
    cr_free(a->offsets);
    cr_buf_free(&a->round);
    cr_buf_free(&a->sent);
    cr_buf_free(&a->values);
    cr_packed_free(&a->packed);
    cr_lines_fini(&a->lines);
    return cr_worker_leave(&a->worker, &cr_command_logprobs, code, err);
}

static cr_status run_ask(ask *a, const char *device, const char *logits, cr_err *err)
{
    CR_TRY(cr_worker_open(&a->worker, device, err));
    a->offsets = CR_NEW_ARRAY(size_t, a->worker.num_ranks + 1);
    a->has_logits = logits != NULL;
    a->rules = cr_worker_rules(&a->worker);
    a->rules.needs_name = a->has_logits;
    CR_TRY(answer_all(a, err));
    return logits ? write_logits(a, logits, err) : CR_OK;
}

static int run(int argc, char **argv)
{
    ask a = {0};
    const char *logits = NULL, *device = NULL;
    const cr_option options[] = {
        {"entropy", CR_OPT_FLAG, &a.has_entropy, NULL, "also the entropy at every position (nats)"},
        {"logits", CR_OPT_STRING, &logits, "FILE",
         "also write float32 [tokens, vocabulary] per id to this safetensors file"},
        {"device", CR_OPT_STRING, &device, "NAME", "cpu (default); cuda is not available yet"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;
    int code = 0;

    cr_lines_init(&a.lines, stdin, stdout);
    if (cr_args_parse(&cr_command_logprobs, options, CR_COUNT(options), argc, argv, &words,
                      &is_help, &err) == CR_OK &&
        !is_help && cr_worker_read(&a.worker, CR_WORKER_INFER, &words, &err) == CR_OK &&
        !cr_worker_launch(&a.worker, &cr_command_logprobs, argc, argv, &code))
        cr_note(run_ask(&a, device, logits, &err));
    code |= finish(&a, &err);
    cr_words_free(&words);
    return code;
}

const cr_command cr_command_logprobs = {
    "logprobs",
    "logprobs MODEL [key=value ..] < LINES.jsonl",
    "Log-probability of every next token of each line: {\"id\", \"input_ids\" or \"prompt\" or "
    "\"messages\"} in, {\"id\",\"input_ids\",\"logprobs\"} out, in order.",
    "echo '{\"id\":1,\"input_ids\":[51,43,52,61]}' | croll logprobs output/quickstart/sft_model "
    "model_args.dtype=fp32 --entropy",
    run,
};
