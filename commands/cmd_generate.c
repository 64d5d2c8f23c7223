/* cmd_generate.c -- croll generate: completions of prompts, line by line.
 *
 * Lines go to the engine as they come, up to a bound, and are answered in order. A draw is keyed by
 * (seed, the line's id or, without one, its number, index), so an answer does not depend on the
 * line's place or company.
 */
#include "base/limits.h"
#include "base/rng.h"
#include "commands/commands.h"
#include "commands/worker.h"
#include "engine/engine.h"
#include "kernels/attention.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { INDEX_BITS = 20, MOST_OPEN = 4096 };

#define NOT_GIVEN INT64_MIN

/* A line and what has come for it. */
typedef struct request {
    struct request *next;
    cr_line line;
    uint64_t key;      /* of its samples: id >> INDEX_BITS */
    bool is_streaming; /* its text is shown as it comes */
    size_t shown, num_tokens;
    cr_generated *done; /* [n] */
    size_t num_done;
} request;

typedef struct ask {
    cr_worker worker;
    cr_lines lines;
    cr_line_rules rules;
    cr_engine *engine;
    cr_generating how;
    size_t num_samples;
    request *first, *last; /* lines that wait for their answer */
    size_t num_open;
    uint64_t *sample_ids; /* [num_samples] */
    bool has_json, has_ended;
} ask;

/* ---- requests ---- */

static void add_request(ask *a, request *r)
{
    if (a->last)
        a->last->next = r;
    else
        a->first = r;
    a->last = r;
    a->num_open++;
}

static void drop_first(ask *a)
{
    request *r = a->first;

    a->first = r->next;
    if (!a->first) a->last = NULL;
    a->num_open--;
    for (size_t i = 0; r->done && i < a->num_samples; i++)
        cr_generated_free(&r->done[i]);
    cr_free(r->done);
    cr_line_free(&r->line);
    cr_free(r);
}

/* The upper bits name the line, the lower ones the sample. */
static void name_samples(ask *a, request *r)
{
    const cr_line *line = &r->line;
    uint64_t key = strcmp(line->id, "null") == 0 ? cr_hash64(&line->number, sizeof line->number)
                                                 : cr_hash64(line->id, strlen(line->id));

    for (size_t i = 0; i < a->num_samples; i++)
        a->sample_ids[i] = (key << INDEX_BITS) | i;
    r->key = a->sample_ids[0] >> INDEX_BITS;
}

/* Hand a line to the engine; what it refuses is answered with an error. */
static void submit(ask *a, const cr_line *line)
{
    request *r = CR_NEW(request);
    cr_err err = {0};

    r->line = *line;
    add_request(a, r);
    if (r->line.error) return;
    name_samples(a, r);
    r->done = CR_NEW_ARRAY(cr_generated, a->num_samples);
    if (cr_engine_submit(a->engine, r->line.ids, r->line.num_ids, a->sample_ids, a->num_samples,
                         &a->how, r, &err) != CR_OK)
        cr_line_fail(&r->line, err.msg);
}

/* --prompt: the only line. */
static cr_status submit_prompt(ask *a, const char *prompt, cr_err *err)
{
    cr_line line = {.number = 1, .id = cr_strdup("null")};
    json_t *text = json_string(prompt);
    cr_status status =
        text ? a->rules.encode(a->rules.ctx, text, false, &line.ids, &line.num_ids, err)
             : cr_fail(err, CR_EUSAGE, "--prompt is no UTF-8 text");

    json_decref(text);
    a->has_ended = true;
    if (status == CR_OK)
        submit(a, &line);
    else
        cr_line_free(&line);
    return status;
}

/* Take lines in while the engine has use for them; wait for one only if there is nothing to do. */
static void read_lines(ask *a)
{
    cr_line line;

    while (!a->has_ended && a->num_open < MOST_OPEN &&
           cr_engine_num_waiting(a->engine) < (size_t)a->worker.batch_size) {
        if (a->first && !cr_lines_is_ready(&a->lines)) return;
        if (cr_lines_next(&a->lines, &a->rules, &line))
            submit(a, &line);
        else
            a->has_ended = true;
    }
}

/* ---- answers ---- */

static cr_status write_json(ask *a, const cr_line *line, size_t index, const cr_generated *g,
                            cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    cr_buf_addf(&text, "{\"id\":%s,\"index\":%zu,\"prompt_ids\":", line->id, index);
    cr_json_add_ids(&text, line->ids, line->num_ids);
    cr_buf_adds(&text, ",\"output_ids\":");
    cr_json_add_ids(&text, g->ids, g->num_ids);
    if (g->text) {
        cr_buf_adds(&text, ",\"text\":");
        cr_json_add_string(&text, g->text, g->text_bytes);
    }
    cr_buf_adds(&text, ",\"logprobs\":");
    status = cr_json_add_floats(&text, g->log_probs, g->num_ids, err);
    cr_buf_addf(&text, ",\"finish_reason\":\"%s\"}", g->finish);
    if (status == CR_OK) status = cr_lines_write(&a->lines, &text, err);
    cr_buf_free(&text);
    return status;
}

/* Without --json: the first line that waits shows its text as it comes, if it is one text. */
static void show_token(void *ctx, void *user, const cr_new_token *token)
{
    ask *a = ctx;
    request *r = a->first;

    (void)user;
    if (a->has_json || a->num_samples != 1 || !r || r->key != token->sample_id >> INDEX_BITS)
        return;
    if (r->num_tokens++ == 0) r->is_streaming = true;
    if (!r->is_streaming) return;
    fwrite(token->text, 1, token->num_bytes, a->lines.out);
    fflush(a->lines.out);
    r->shown += token->num_bytes;
}

static cr_status write_text(ask *a, const request *r, const cr_generated *g, cr_err *err)
{
    cr_buf rest = {0};
    cr_status status;

    if (r->shown < g->text_bytes) cr_buf_add(&rest, g->text + r->shown, g->text_bytes - r->shown);
    status = cr_lines_write(&a->lines, &rest, err);
    cr_buf_free(&rest);
    return status;
}

/* Answers of the lines that are complete, in order. */
static cr_status answer(ask *a, cr_err *err)
{
    while (a->first && (a->first->line.error || a->first->num_done == a->num_samples)) {
        request *r = a->first;
        if (r->line.error && a->has_json) {
            CR_TRY(cr_lines_write_error(&a->lines, &r->line, err));
        } else if (r->line.error) {
            cr_log(CR_LOG_ERROR, "generate", "%s", r->line.error);
            a->lines.has_failed = true;
        }
        for (size_t i = 0; !r->line.error && i < a->num_samples; i++)
            CR_TRY(a->has_json ? write_json(a, &r->line, i, &r->done[i], err)
                               : write_text(a, r, &r->done[i], err));
        drop_first(a);
    }
    return CR_OK;
}

static cr_status answer_all(ask *a, cr_err *err)
{
    cr_generated g;

    for (;;) {
        read_lines(a);
        CR_TRY(answer(a, err));
        if (!a->first && a->has_ended) return CR_OK;
        CR_TRY(cr_engine_step(a->engine, err));
        while (cr_engine_poll(a->engine, &g)) {
            request *r = g.user;
            r->done[g.sample_id & ((1u << INDEX_BITS) - 1)] = g;
            r->num_done++;
        }
    }
}

/* ---- the command ---- */

/* The cache may take a quarter of the memory; sequences are as long as the model and that allow. */
static cr_status open_engine(ask *a, cr_err *err)
{
    const cr_model_config *c = &a->worker.model->config;
    size_t block = cr_kv_block_bytes(a->worker.dev, a->worker.dtype, c->num_kv_heads, c->head_dim) *
                   (size_t)c->num_layers;
    int64_t bytes = cr_memory_limit() / 4;
    cr_engine_limits limits = {.max_running = a->worker.batch_size,
                               .max_model_len = c->max_position_embeddings,
                               .kv_bytes = bytes};

    if (limits.max_model_len > bytes / (int64_t)block * CR_KV_BLOCK)
        limits.max_model_len = bytes / (int64_t)block * CR_KV_BLOCK;
    CR_TRY(cr_engine_create(a->worker.model, a->worker.dev, &limits, &a->engine, err));
    cr_engine_set_tokenizer(a->engine, a->worker.encoder.tokenizer);
    cr_engine_set_on_token(a->engine, show_token, a);
    return cr_engine_set_weights(a->engine, err);
}

static void close_ask(ask *a)
{
    cr_engine_destroy(a->engine);
    while (a->first)
        drop_first(a);
    cr_free(a->sample_ids);
    cr_lines_fini(&a->lines);
}

/* What the options said; what they left out comes from generating_args of the worker keys. */
typedef struct options {
    const char *device, *prompt;
    double temperature, top_p, repetition_penalty; /* NAN: not given */
    int64_t max_new_tokens, top_k, num, seed;      /* NOT_GIVEN */
    double presence_penalty, frequency_penalty;
    int64_t min_new_tokens;
    cr_words stop;
} options;

static cr_status settle(ask *a, const options *o, cr_err *err)
{
    const cr_generating_args *g = &a->worker.keys->generating;
    int64_t num = o->num == NOT_GIVEN ? g->num_return_sequences : o->num;

    if (num < 1 || num > 1 << INDEX_BITS)
        return cr_fail(err, CR_EUSAGE, "--n is %lld, expected 1 to %d", (long long)num,
                       1 << INDEX_BITS);
    a->num_samples = (size_t)num;
    a->sample_ids = CR_NEW_ARRAY(uint64_t, num);
    a->how = (cr_generating){
        .temperature = (float)(isnan(o->temperature) ? g->temperature : o->temperature),
        .top_p = (float)(isnan(o->top_p) ? g->top_p : o->top_p),
        .min_p = (float)g->min_p,
        .top_k = o->top_k == NOT_GIVEN ? g->top_k : o->top_k,
        .repetition_penalty =
            (float)(isnan(o->repetition_penalty) ? g->repetition_penalty : o->repetition_penalty),
        .max_new_tokens = o->max_new_tokens == NOT_GIVEN ? g->max_new_tokens : o->max_new_tokens,
        .edits = {.presence = (float)o->presence_penalty, .frequency = (float)o->frequency_penalty},
        .min_new_tokens = o->min_new_tokens,
        .stop = o->stop.num ? o->stop.word : (const char *const *)g->stop_strings,
        .num_stop = o->stop.num ? o->stop.num : g->num_stop_strings,
        .should_cut_stop = !g->include_stop_str_in_output,
        .seed = (uint64_t)o->seed};
    return cr_generating_check(&a->how, err);
}

static cr_status generate(ask *a, const options *o, const cr_words *words, cr_err *err)
{
    CR_TRY(cr_worker_read(&a->worker, CR_WORKER_GENERATE, words, err));
    CR_TRY(settle(a, o, err));
    CR_TRY(cr_worker_open(&a->worker, o->device, err));
    CR_TRY(cr_worker_need_tokenizer(&a->worker, err));
    CR_TRY(open_engine(a, err));
    a->rules = cr_worker_rules(&a->worker);
    if (o->prompt) CR_TRY(submit_prompt(a, o->prompt, err));
    return answer_all(a, err);
}

static int run(int argc, char **argv)
{
    ask a = {0};
    options o = {.temperature = NAN,
                 .top_p = NAN,
                 .repetition_penalty = NAN,
                 .max_new_tokens = NOT_GIVEN,
                 .top_k = NOT_GIVEN,
                 .num = NOT_GIVEN};
    const cr_option table[] = {
        {"prompt", CR_OPT_STRING, &o.prompt, "TEXT",
         "one prompt as it is, without chat template, instead of lines on stdin"},
        {"max-new-tokens", CR_OPT_INT, &o.max_new_tokens, "N",
         "most tokens of an answer (generating_args.max_new_tokens, 8192)"},
        {"min-new-tokens", CR_OPT_INT, &o.min_new_tokens, "N",
         "no end of text and no stop text before (0)"},
        {"temperature", CR_OPT_DOUBLE, &o.temperature, "T",
         "divides the logits; 0: greedy (generating_args.temperature, 0.95)"},
        {"top-p", CR_OPT_DOUBLE, &o.top_p, "P",
         "draw from the fewest tokens that hold this much probability; 1: from all "
         "(generating_args.top_p, 0.7)"},
        {"top-k", CR_OPT_INT, &o.top_k, "K",
         "draw from the K likeliest tokens; 0: from all (generating_args.top_k, 50)"},
        {"repetition-penalty", CR_OPT_DOUBLE, &o.repetition_penalty, "R",
         "weakens tokens that were there before; 1: off (generating_args.repetition_penalty, 1)"},
        {"presence-penalty", CR_OPT_DOUBLE, &o.presence_penalty, "P",
         "subtracted from the logits of tokens that the answer has (0)"},
        {"frequency-penalty", CR_OPT_DOUBLE, &o.frequency_penalty, "F",
         "the same for each time that it has the token (0)"},
        {"n", CR_OPT_INT, &o.num, "N",
         "completions a prompt (generating_args.num_return_sequences, 1)"},
        {"seed", CR_OPT_INT, &o.seed, "SEED", "another seed, other draws (0)"},
        {"stop", CR_OPT_LIST, &o.stop, "TEXT",
         "end an answer at this text; may be given again (generating_args.stop_strings)"},
        {"json", CR_OPT_FLAG, &a.has_json, NULL, "one JSON object a completion"},
        {"device", CR_OPT_STRING, &o.device, "NAME",
         "cpu (default), cuda (never run on a GPU: docs/cuda.md)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;
    int code;

    cr_lines_init(&a.lines, stdin, stdout);
    if (cr_args_parse(&cr_command_generate, table, CR_COUNT(table), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help)
        cr_note(generate(&a, &o, &words, &err));
    code = a.lines.has_failed ? 2 : 0;
    close_ask(&a);
    code = cr_worker_leave(&a.worker, &cr_command_generate, code, &err);
    cr_words_free(&words);
    cr_words_free(&o.stop);
    return code;
}

const cr_command cr_command_generate = {
    "generate",
    "generate MODEL [key=value ..] < LINES.jsonl",
    "Complete prompts: {\"id\", \"prompt\" or \"messages\" or \"input_ids\"} in, text or "
    "{\"id\",\"index\",\"prompt_ids\",\"output_ids\",\"text\",\"logprobs\",\"finish_reason\"} out, "
    "in order.",
    "echo '{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":\"354+3=\"}]}' | "
    "croll generate output/quickstart/sft_model --temperature 0",
    run,
};
