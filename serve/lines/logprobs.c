/* logprobs.c -- see logprobs.h.
 *
 * Rank 0 reads lines and answers them, infer_batch_size for each rank in one round of serve/scoring.h; a
 * line's answer has the same bits in any company and on any rank. With --logits every line is kept until the
 * end, because a safetensors file begins with the shapes of all tensors.
 */
#include "serve/lines/logprobs.h"
#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/files/safetensors.h"
#include "serve/lines/line_images.h"
#include "serve/scoring.h"
#include "strategies/strategies.h"

#include <string.h>

enum { MAX_BATCH_TOKENS = 16384 };

/* A line that waits for its answer. */
typedef struct waiting {
    cr_line line;
    cr_score_ask ask;
    int32_t *candidates; /* of the ask; shorter lists end with -1 */
    size_t *num_each;    /* [num_lists] ids of each list */
    cr_prompt_images images;
} waiting;

typedef struct ask {
    const cr_logprobs_args *args;
    cr_session *session;
    cr_lines *lines;
    cr_line_rules rules;
    waiting *line;                           /* that wait, or (logits) all of them */
    size_t num_lines, capacity_lines, first; /* of those that wait */
    cr_scoring *scoring;
    cr_score_ask *asks; /* of a round, and its results */
    cr_score *scores;
    size_t capacity_asks;
    cr_packed packed; /* of logits */
} ask;

static void waiting_free(waiting *w)
{
    cr_line_free(&w->line);
    cr_free(w->candidates);
    cr_free(w->num_each);
    cr_prompt_images_free(&w->images);
}

/* ---- candidates of a line ---- */

static bool read_list(const json_t *list, int64_t vocab_size, int32_t *ids)
{
    size_t i;
    json_t *id;

    json_array_foreach(list, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= vocab_size)
            return false;
        ids[i] = (int32_t)json_integer_value(id);
    }
    return true;
}

/* [id, ..]: the same at every place, or a list of those for each. False: neither. */
static bool read_candidates(waiting *w, const json_t *all, int64_t vocab_size)
{
    bool has_lists = json_is_array(json_array_get(all, 0));
    size_t num = has_lists ? json_array_size(all) : 1, max = 0;

    if (!json_is_array(all) || (has_lists && num != w->line.num_ids - 1)) return false;
    w->num_each = CR_NEW_ARRAY(size_t, num);
    for (size_t i = 0; i < num; i++) {
        const json_t *list = has_lists ? json_array_get(all, i) : all;
        if (!json_is_array(list)) return false;
        w->num_each[i] = json_array_size(list);
        if (w->num_each[i] > max) max = w->num_each[i];
    }
    w->candidates = CR_NEW_ARRAY(int32_t, num * max);
    memset(w->candidates, 0xFF, num * max * sizeof *w->candidates);
    for (size_t i = 0; i < num; i++)
        if (!read_list(has_lists ? json_array_get(all, i) : all, vocab_size,
                       w->candidates + i * max))
            return false;
    w->ask.candidates = w->candidates;
    w->ask.num_candidates = max;
    w->ask.num_lists = num;
    return true;
}

/* What is wanted of a good line. */
static void make_ask(const ask *a, waiting *w)
{
    const json_t *candidates = json_object_get(w->line.json, "candidates");
    int64_t vocab = a->session->model->config.vocab_size;
    char *why;

    w->ask = (cr_score_ask){.ids = w->line.ids,
                            .num_ids = w->line.num_ids,
                            .first = 1,
                            .has_entropy = a->args->has_entropy,
                            .has_rank = a->args->has_rank,
                            .num_top = a->args->num_top,
                            .images = w->images.seq};
    if (!candidates || json_is_null(candidates) || read_candidates(w, candidates, vocab)) return;
    why = cr_asprintf("candidates must be ids below %lld, or a list of them for each of the %zu "
                      "tokens after the first",
                      (long long)vocab, w->line.num_ids - 1);
    cr_line_fail(&w->line, why);
    cr_free(why);
}

/* ---- answers ---- */

/* "key":[[..],[..]] of num places; each list as long as num_each says (NULL: all num_cols). */
static cr_status add_lists(cr_buf *text, const char *key, const float *values, const int32_t *ids,
                           size_t num, size_t num_cols, const waiting *w, cr_err *err)
{
    cr_buf_addf(text, ",\"%s\":[", key);
    for (size_t t = 0; t < num; t++) {
        size_t cols = w ? w->num_each[w->ask.num_lists == 1 ? 0 : t] : num_cols;
        if (t) cr_buf_addc(text, ',');
        if (ids)
            cr_json_add_ids(text, ids + t * num_cols, cols);
        else
            CR_TRY(cr_json_add_floats(text, values + t * num_cols, cols, err));
    }
    cr_buf_addc(text, ']');
    return CR_OK;
}

static cr_status add_score(cr_buf *text, const waiting *w, const cr_score *x, cr_err *err)
{
    size_t top = (size_t)x->num_top;

    cr_buf_adds(text, ",\"logprobs\":");
    CR_TRY(cr_json_add_floats(text, x->log_probs, x->num, err));
    if (x->entropy) {
        cr_buf_adds(text, ",\"entropy\":");
        CR_TRY(cr_json_add_floats(text, x->entropy, x->num, err));
    }
    if (x->ranks) {
        cr_buf_adds(text, ",\"rank\":");
        cr_json_add_ids(text, x->ranks, x->num);
    }
    if (top) {
        CR_TRY(add_lists(text, "top_ids", NULL, x->top_ids, x->num, top, NULL, err));
        CR_TRY(add_lists(text, "top_logprobs", x->top_log_probs, NULL, x->num, top, NULL, err));
    }
    if (!w->num_each) return CR_OK;
    return add_lists(text, "candidate_logprobs", x->candidates, NULL, x->num, x->num_candidates, w,
                     err);
}

static cr_status answer(ask *a, const waiting *w, const cr_score *score, cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    if (w->line.error) return cr_lines_write_error(a->lines, &w->line, err);
    cr_buf_addf(&text, "{\"id\":%s,\"input_ids\":", w->line.id);
    cr_json_add_ids(&text, w->line.ids, w->line.num_ids);
    status = add_score(&text, w, score, err);
    cr_buf_addc(&text, '}');
    if (status == CR_OK)
        status = cr_lines_write(a->lines, &text, err);
    else
        cr_fail_add(err, "line %lld", (long long)w->line.number);
    cr_buf_free(&text);
    return status;
}

/* A round of the good ones of the lines that wait, then all their answers. */
static cr_status answer_waiting(ask *a, cr_err *err)
{
    size_t num = 0, num_all = a->num_lines - a->first;

    if (num_all > a->capacity_asks) {
        a->asks = cr_realloc(a->asks, 0, num_all * sizeof *a->asks);
        a->scores = cr_realloc(a->scores, 0, num_all * sizeof *a->scores);
        a->capacity_asks = num_all;
    }
    for (size_t i = a->first; i < a->num_lines; i++)
        if (!a->line[i].line.error) a->asks[num++] = a->line[i].ask;
    if (num) CR_TRY(cr_scoring_round(a->scoring, 0, 0, a->asks, num, a->scores, err));
    num = 0;
    for (size_t i = a->first; i < a->num_lines; i++) {
        const cr_score *score = a->line[i].line.error ? NULL : &a->scores[num++];
        CR_TRY(answer(a, &a->line[i], score, err));
    }
    a->first = a->num_lines;
    if (a->args->logits) return CR_OK;
    for (size_t i = 0; i < a->num_lines; i++)
        waiting_free(&a->line[i]);
    a->first = a->num_lines = 0;
    return CR_OK;
}

static cr_status answer_all(ask *a, cr_err *err)
{
    int64_t ranks = cr_group_num_ranks(a->session->mesh->group[CR_AXIS_DP]), num_good = 0,
            num_tokens = 0;
    waiting w = {0};

    if (a->session->rank != 0) return cr_scoring_follow(a->scoring, NULL, err);
    while (cr_lines_next(a->lines, &a->rules, &w.line)) {
        cr_line_images_take(a->session, &w.line, &w.images);
        if (w.images.seq.num && a->args->logits)
            cr_line_fail(&w.line, "images are not available yet with --logits");
        if (!w.line.error) make_ask(a, &w);
        a->line = cr_grow(a->line, a->num_lines, &a->capacity_lines, sizeof *a->line);
        a->line[a->num_lines++] = w;
        num_good += !w.line.error;
        num_tokens += (int64_t)w.line.num_ids;
        w = (waiting){0};
        if (num_good < a->session->batch_size * ranks && num_tokens < MAX_BATCH_TOKENS * ranks)
            continue;
        CR_TRY(answer_waiting(a, err));
        num_good = num_tokens = 0;
    }
    CR_TRY(answer_waiting(a, err));
    return cr_scoring_end(a->scoring, err);
}

/* ---- logits ---- */

static cr_status put_logits(ask *a, const cr_line *line, cr_tensor_writer *writer, size_t index,
                            cr_err *err)
{
    int64_t vocab = a->session->model->config.vocab_size, num = (int64_t)line->num_ids;
    float *logits = CR_NEW_ARRAY(float, num *vocab);
    int32_t *rows = CR_NEW_ARRAY(int32_t, num);
    cr_status status;

    for (int64_t t = 0; t < num; t++)
        rows[t] = (int32_t)t;
    cr_packed_clear(&a->packed);
    cr_line_pack(&a->packed, line);
    status = cr_fsdp_logits(a->session->fsdp, &a->packed.batch, rows, num, logits, err);
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
        if (!a->line[i].line.error)
            specs[(*num)++] = (cr_tensor_spec){
                .name = a->line[i].line.name,
                .dtype = CR_F32,
                .num_dims = 2,
                .shape = {(int64_t)a->line[i].line.num_ids, a->session->model->config.vocab_size}};
    status = cr_tensor_writer_open(path, specs, *num, out, err);
    cr_free(specs);
    return status;
}

/* The line of rank 0 (NULL elsewhere) runs on all ranks of its ulysses group; the others only give
 * their shards. */
static cr_status run_logits(ask *a, const cr_line *line, cr_tensor_writer *writer, size_t index,
                            cr_err *err)
{
    cr_group *group = a->session->mesh->group[CR_AXIS_ULYSSES];
    cr_line mine = {0};
    cr_status status;

    if (cr_group_rank(a->session->mesh->group[CR_AXIS_DP]) != 0)
        return cr_fsdp_logits(a->session->fsdp, NULL, NULL, 0, NULL, err);
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
    cr_group *all = a->session->mesh->group[CR_AXIS_ALL];
    cr_tensor_writer *writer = NULL;
    size_t num = 0;
    cr_status status = CR_OK;

    if (a->session->rank == 0) cr_note(open_writer(a, path, &num, &writer, err));
    CR_TRY_GOTO(out, cr_agree(all, "open the file of logits", err));
    CR_TRY_GOTO(out, cr_broadcast(all, "number of lines", 0, &num, sizeof num, err));
    for (size_t i = 0, k = 0; k < num && status == CR_OK; i++) {
        if (a->session->rank == 0 && a->line[i].line.error) continue;
        status = run_logits(a, a->session->rank == 0 ? &a->line[i].line : NULL, writer, k++, err);
    }
out:
    if (a->session->rank == 0 && err->status == CR_OK)
        cr_note(cr_tensor_writer_close(writer, err));
    else
        cr_tensor_writer_abort(writer);
    if (err->status == CR_OK) cr_note(cr_agree(all, "write the logits", err));
    return err->status;
}

/* ---- the command ---- */

static void close_ask(void *ctx)
{
    ask *a = ctx;

    for (size_t i = 0; i < a->num_lines; i++)
        waiting_free(&a->line[i]);
    cr_free(a->line);
    cr_free(a->asks);
    cr_free(a->scores);
    cr_scoring_destroy(a->scoring);
    cr_packed_free(&a->packed);
}

static cr_status work(void *ctx, cr_session *session, const char *device, cr_lines *lines,
                      cr_err *err)
{
    ask *a = ctx;
    const char *logits = a->args->logits;

    a->session = session;
    a->lines = lines;
    CR_TRY(cr_session_open(session, device, err));
    if (a->args->num_top < 0 || a->args->num_top > session->model->config.vocab_size)
        return cr_fail(err, CR_EUSAGE, "--top-logprobs %lld: from 0 to %lld, the model's ids",
                       (long long)a->args->num_top, (long long)session->model->config.vocab_size);
    a->scoring = cr_scoring_create(session->world, session->mesh);
    cr_scoring_set(a->scoring, 0, session->model, session->fsdp);
    a->rules = cr_session_rules(session);
    CR_TRY(cr_line_images_expect(session, &a->args->images, err));
    a->rules.needs_name = logits != NULL;
    CR_TRY(answer_all(a, err));
    return logits ? write_logits(a, logits, err) : CR_OK;
}

int cr_logprobs_run(const cr_session_call *call, const cr_logprobs_args *args)
{
    ask a = {.args = args};

    return cr_lines_run(call, &(cr_lines_task){CR_SESSION_INFER, NULL, work, close_ask, &a});
}
