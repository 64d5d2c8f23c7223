/* generate.c -- see generate.h.
 *
 * Lines go to an engine as they come, up to a bound, and are answered in order. A draw is keyed by
 * (seed, the line's id or, without one, its number, index), so an answer does not depend on the
 * line's place or company, or on the rank.
 *
 * Each rank has an engine and all weights. Rank 0 reads the lines, deals each to the rank with the fewest samples, and
 * writes the answers. Every SLICE_S all ranks meet (meet): lines go out, answers come back. One rank has no meetings.
 */
#include "serve/lines/generate.h"
#include "base/args.h"
#include "base/limits.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "kernels/attention.h"
#include "mesh/collectives.h"
#include "serve/lines/line_images.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { INDEX_BITS = 20, MAX_OPEN = 4096 }; /* lines, a rank */

#define SLICE_S       0.25 /* work between two meetings */
#define NO_DEADLINE_S 1e9

/* On rank 0: a line and what has come for it. */
typedef struct request {
    struct request *next;
    cr_line line;
    int rank;          /* that computes it */
    bool is_streaming; /* its text is shown as it comes */
    size_t shown, num_tokens;
    cr_generated *done; /* [n] */
    size_t num_done;
} request;

typedef struct ask {
    const cr_generate_args *args;
    cr_session *session;
    cr_lines *lines;
    cr_line_rules rules;
    cr_engine *engine;
    cr_generating how;
    size_t num_samples;
    request *first, *last; /* lines that wait for their answer */
    size_t num_open;
    uint64_t *sample_ids; /* [num_samples] */
    int64_t *load;        /* [num_ranks] samples of open lines that each rank has */
    cr_buf sent, got;     /* of a meeting: from this rank, from all */
    size_t *offsets;      /* [num_ranks + 1] in got */
    bool has_ended;
} ask;

/* Messages. Rank 0: int32, 1 if this is the last meeting; then an `assignment`, its ids and its images for each line. Other ranks: for each
 * sample that is complete a `done` with its ids, log-probs and text; for a line that the engine refuses one whose text
 * is the reason. All but texts is words of 4 bytes. */
typedef struct assignment {
    uint64_t request;  /* rank 0's, which comes back in `done` */
    uint64_t first_id; /* of its samples */
    int64_t rank;
    uint64_t num_ids;
} assignment;

typedef struct done {
    uint64_t request, sample_id, num_ids, text_bytes;
    int32_t is_refused, is_length;
} done;

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
static uint64_t first_id(const cr_line *line)
{
    uint64_t key = strcmp(line->id, "null") == 0 ? cr_hash64(&line->number, sizeof line->number)
                                                 : cr_hash64(line->id, strlen(line->id));

    return key << INDEX_BITS;
}

static size_t index_of(uint64_t sample_id)
{
    return sample_id & ((1u << INDEX_BITS) - 1);
}

/* To this rank's engine; images are gone then. */
static cr_status submit(ask *a, const int32_t *ids, size_t num_ids, cr_prompt_images *images,
                        uint64_t first, void *user, cr_err *err)
{
    for (size_t i = 0; i < a->num_samples; i++)
        a->sample_ids[i] = first | i;
    cr_note(cr_engine_submit_images(a->engine, ids, num_ids, images, a->sample_ids, a->num_samples,
                                    &a->how, user, err));
    cr_prompt_images_free(images);
    return err->status;
}

static int lightest(const ask *a)
{
    int min = 0;

    for (int r = 1; r < a->session->num_ranks; r++)
        if (a->load[r] < a->load[min]) min = r;
    return min;
}

static void refuse(ask *a, request *r, const char *reason)
{
    a->load[r->rank] -= (int64_t)a->num_samples;
    cr_line_fail(&r->line, reason);
}

/* Give a line, whose images are gone then, to a rank; what its engine refuses is answered with an error. */
static void deal(ask *a, const cr_line *line, cr_prompt_images *images)
{
    request *r = CR_NEW(request);
    assignment d;
    cr_err err = {0};

    r->line = *line;
    add_request(a, r);
    if (r->line.error) return;
    r->done = CR_NEW_ARRAY(cr_generated, a->num_samples);
    r->rank = lightest(a);
    a->load[r->rank] += (int64_t)a->num_samples;
    d = (assignment){(uintptr_t)r, first_id(&r->line), r->rank, r->line.num_ids};
    if (r->rank != 0) {
        cr_buf_add(&a->sent, &d, sizeof d);
        cr_buf_add(&a->sent, r->line.ids, r->line.num_ids * sizeof *r->line.ids);
        cr_prompt_images_put(images, &a->sent);
        cr_prompt_images_free(images);
    } else if (submit(a, r->line.ids, r->line.num_ids, images, d.first_id, r, &err) != CR_OK) {
        refuse(a, r, err.msg);
    }
}

/* --prompt: the only line. */
static cr_status submit_prompt(ask *a, const char *prompt, cr_err *err)
{
    cr_line line = {.number = 1, .id = cr_strdup("null")};
    cr_prompt_images none = {0};
    json_t *text = json_string(prompt);
    cr_status status =
        text ? a->rules.encode(a->rules.ctx, text, false, &line.ids, &line.num_ids, err)
             : cr_fail(err, CR_EUSAGE, "--prompt is no UTF-8 text");

    json_decref(text);
    a->has_ended = true;
    if (status == CR_OK)
        deal(a, &line, &none);
    else
        cr_line_free(&line);
    return status;
}

/* Take lines in while a rank has use for them: as many samples as run at a time, and as many that wait. Wait for a line
 * only if there is nothing to do. */
static void read_lines(ask *a)
{
    cr_prompt_images images;
    cr_line line;

    while (!a->has_ended && a->num_open < (size_t)MAX_OPEN * (size_t)a->session->num_ranks &&
           a->load[lightest(a)] < 2 * a->session->batch_size) {
        if (a->first && !cr_lines_is_ready(a->lines)) return;
        if (!cr_lines_next(a->lines, &a->rules, &line)) {
            a->has_ended = true;
            return;
        }
        cr_line_images_take(a->session, &line, &images);
        deal(a, &line, &images);
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
    if (status == CR_OK) status = cr_lines_write(a->lines, &text, err);
    cr_buf_free(&text);
    return status;
}

/* Without --json: a text of rank 0 is shown as it comes, if it is its line's only one and no earlier line waits when it
 * begins. */
static void show_token(void *ctx, void *user, const cr_new_token *token)
{
    ask *a = ctx;
    request *r = user;

    if (a->args->has_json || a->num_samples != 1 || a->session->rank != 0) return;
    if (r->num_tokens++ == 0) r->is_streaming = r == a->first;
    if (!r->is_streaming) return;
    fwrite(token->text, 1, token->num_bytes, a->lines->out);
    fflush(a->lines->out);
    r->shown += token->num_bytes;
}

static cr_status write_text(ask *a, const request *r, const cr_generated *g, cr_err *err)
{
    cr_buf rest = {0};
    cr_status status;

    if (r->shown < g->text_bytes) cr_buf_add(&rest, g->text + r->shown, g->text_bytes - r->shown);
    status = cr_lines_write(a->lines, &rest, err);
    cr_buf_free(&rest);
    return status;
}

/* Answers of the lines that are complete, in order. */
static cr_status answer(ask *a, cr_err *err)
{
    while (a->first && (a->first->line.error || a->first->num_done == a->num_samples)) {
        request *r = a->first;
        if (r->line.error && a->args->has_json) {
            CR_TRY(cr_lines_write_error(a->lines, &r->line, err));
        } else if (r->line.error) {
            cr_log(CR_LOG_ERROR, "generate", "%s", r->line.error);
            a->lines->has_failed = true;
        }
        for (size_t i = 0; !r->line.error && i < a->num_samples; i++)
            CR_TRY(a->args->has_json ? write_json(a, &r->line, i, &r->done[i], err)
                                     : write_text(a, r, &r->done[i], err));
        drop_first(a);
    }
    return CR_OK;
}

static void take_sample(ask *a, request *r, const cr_generated *g)
{
    r->done[index_of(g->sample_id)] = *g;
    r->num_done++;
    a->load[r->rank]--;
}

/* ---- meetings of several ranks ---- */

static void send_done(ask *a, const cr_generated *g)
{
    done d = {.request = (uintptr_t)g->user,
              .sample_id = g->sample_id,
              .num_ids = g->num_ids,
              .text_bytes = g->text_bytes,
              .is_length = strcmp(g->finish, "length") == 0};

    cr_buf_add(&a->sent, &d, sizeof d);
    cr_buf_add(&a->sent, g->ids, g->num_ids * sizeof *g->ids);
    cr_buf_add(&a->sent, g->log_probs, g->num_ids * sizeof *g->log_probs);
    cr_buf_add(&a->sent, g->text, g->text_bytes);
}

/* The lines of this rank in rank 0's message. */
static void take_lines(ask *a)
{
    const char *at = a->got.data + sizeof(int32_t), *end = a->got.data + a->offsets[1];
    assignment d;

    while (at < end) {
        cr_prompt_images images;
        cr_err err = {0};
        done refused = {.is_refused = true};
        const int32_t *ids;
        memcpy(&d, at, sizeof d);
        ids = (const int32_t *)(const void *)(at + sizeof d);
        at += sizeof d + d.num_ids * sizeof *ids;
        at += cr_prompt_images_get(at, &images);
        if (d.rank != a->session->rank) cr_prompt_images_free(&images);
        if (d.rank != a->session->rank || submit(a, ids, d.num_ids, &images, d.first_id,
                                                 (void *)(uintptr_t)d.request, &err) == CR_OK)
            continue;
        refused.request = d.request;
        refused.text_bytes = strlen(err.msg);
        cr_buf_add(&a->sent, &refused, sizeof refused);
        cr_buf_adds(&a->sent, err.msg);
    }
}

static void *take_copy(const char **at, size_t num_bytes)
{
    char *copy = cr_alloc(num_bytes + 1);

    memcpy(copy, *at, num_bytes);
    *at += num_bytes;
    return copy;
}

/* The answers of the other ranks. */
static void take_answers(ask *a)
{
    const char *at = a->got.data + a->offsets[1], *end = a->got.data + a->got.num_bytes;
    done d;

    while (at < end) {
        request *r;
        cr_generated g;
        memcpy(&d, at, sizeof d);
        at += sizeof d;
        r = (request *)(uintptr_t)d.request;
        g = (cr_generated){.sample_id = d.sample_id,
                           .ids = take_copy(&at, d.num_ids * sizeof *g.ids),
                           .log_probs = take_copy(&at, d.num_ids * sizeof *g.log_probs),
                           .num_ids = d.num_ids,
                           .text = take_copy(&at, d.text_bytes),
                           .text_bytes = d.text_bytes,
                           .finish = d.is_length ? "length" : "stop"};
        if (!d.is_refused) {
            take_sample(a, r, &g);
            continue;
        }
        refuse(a, r, g.text);
        cr_generated_free(&g);
    }
}

/* *is_last: rank 0 says so. The others wait without a deadline: a person may have to type. */
static cr_status meet(ask *a, bool *is_last, cr_err *err)
{
    double deadline_s = cr_world_deadline_s(a->session->world);
    int32_t last = *is_last;
    cr_status status;

    if (a->session->num_ranks == 1) return CR_OK;
    if (a->session->rank == 0)
        memcpy(a->sent.data, &last, sizeof last);
    else
        cr_world_set_deadline(a->session->world, NO_DEADLINE_S);
    status = cr_all_gather_bytes(a->session->mesh->group[CR_AXIS_ALL], "lines and answers",
                                 a->sent.data, a->sent.num_bytes, &a->got, a->offsets, err);
    cr_world_set_deadline(a->session->world, deadline_s);
    CR_TRY(status);
    cr_buf_clear(&a->sent);
    if (a->session->rank == 0) {
        cr_buf_add(&a->sent, &last, sizeof last); /* the place of the next one */
        take_answers(a);
        return CR_OK;
    }
    memcpy(&last, a->got.data, sizeof last);
    *is_last = last;
    take_lines(a);
    return CR_OK;
}

/* ---- work ---- */

/* One forward; with other ranks as many as a slice has time for. */
static cr_status work(ask *a, cr_err *err)
{
    double end_s = cr_now_s() + (a->session->num_ranks > 1 ? SLICE_S : 0);
    cr_generated g;

    do {
        CR_TRY(cr_engine_step(a->engine, err));
        while (cr_engine_poll(a->engine, &g)) {
            if (a->session->rank != 0) {
                send_done(a, &g);
                cr_generated_free(&g);
            } else {
                take_sample(a, g.user, &g);
            }
        }
    } while (!cr_engine_is_idle(a->engine) && cr_now_s() < end_s);
    return CR_OK;
}

static cr_status answer_all(ask *a, cr_err *err)
{
    for (;;) {
        bool is_last;
        if (a->session->rank == 0) read_lines(a);
        is_last = !a->first && a->has_ended;
        CR_TRY(meet(a, &is_last, err));
        if (is_last) return CR_OK;
        CR_TRY(answer(a, err));
        CR_TRY(work(a, err));
    }
}

/* ---- the command ---- */

/* The caches of a host, or of a GPU, may take a quarter of its memory; sequences are as long as the model and that allow, on all ranks
 * the same. */
static cr_status limit(const ask *a, cr_engine_limits *out, cr_err *err)
{
    const cr_session *s = a->session;
    const cr_model_config *c = &s->model->config;
    size_t block =
        cr_kv_block_bytes(s->dev, s->dtype, c->num_kv_heads, c->head_dim) * (size_t)c->num_layers;
    cr_device_memory memory;
    int64_t bytes;
    double longest;

    CR_TRY(cr_agree(s->mesh->group[CR_AXIS_ALL], "load the weights", err)); /* all are on the GPU */
    CR_TRY(cr_session_memory(s, &memory, err));
    CR_TRY(cr_session_cache_bytes(&memory, memory.all_bytes / 4, (int64_t)block, &bytes, err));
    longest = (double)(bytes / (int64_t)block * CR_KV_BLOCK);
    *out = (cr_engine_limits){.max_running = s->batch_size,
                              .max_model_len = c->max_position_embeddings,
                              .kv_bytes = bytes};
    CR_TRY(cr_all_reduce_f64(s->mesh->group[CR_AXIS_ALL], "longest sequence", CR_OP_MIN, &longest,
                             1, err));
    if ((double)out->max_model_len <= longest) return CR_OK;
    out->max_model_len = (int64_t)longest;
    if (s->num_ranks > 1 && s->rank == 0)
        cr_log(CR_LOG_WARN, "generate",
               "a line with its answer has at most %lld tokens: the memory of a rank holds no more",
               (long long)out->max_model_len);
    return CR_OK;
}

static cr_status open_engine(ask *a, const cr_engine_limits *limits, cr_err *err)
{
    CR_TRY(cr_session_need_tokenizer(a->session, err));
    CR_TRY(cr_engine_create(a->session->model, a->session->dev, limits, &a->engine, err));
    cr_engine_set_tokenizer(a->engine, a->session->encoder.tokenizer);
    cr_engine_set_on_token(a->engine, show_token, a);
    return cr_engine_set_weights(a->engine, err);
}

static void close_ask(void *ctx)
{
    ask *a = ctx;

    cr_engine_destroy(a->engine);
    while (a->first)
        drop_first(a);
    cr_free(a->sample_ids);
    cr_free(a->load);
    cr_free(a->offsets);
    cr_buf_free(&a->sent);
    cr_buf_free(&a->got);
}

/* What the options left out comes from generating_args of the keys. */
static cr_status settle(void *ctx, const cr_session *session, cr_err *err)
{
    ask *a = ctx;
    const cr_generate_args *o = a->args;
    const cr_generating_args *g = &session->keys->generating;
    int64_t num = o->num == CR_NOT_GIVEN ? g->num_return_sequences : o->num;

    if (num < 1 || num > 1 << INDEX_BITS)
        return cr_fail(err, CR_EUSAGE, "--n is %lld, expected 1 to %d", (long long)num,
                       1 << INDEX_BITS);
    a->num_samples = (size_t)num;
    a->sample_ids = CR_NEW_ARRAY(uint64_t, num);
    a->how = (cr_generating){
        .temperature = (float)(isnan(o->temperature) ? g->temperature : o->temperature),
        .top_p = (float)(isnan(o->top_p) ? g->top_p : o->top_p),
        .min_p = (float)g->min_p,
        .top_k = o->top_k == CR_NOT_GIVEN ? g->top_k : o->top_k,
        .repetition_penalty =
            (float)(isnan(o->repetition_penalty) ? g->repetition_penalty : o->repetition_penalty),
        .max_new_tokens = o->max_new_tokens == CR_NOT_GIVEN ? g->max_new_tokens : o->max_new_tokens,
        .processors = {.presence = (float)o->presence_penalty,
                       .frequency = (float)o->frequency_penalty},
        .min_new_tokens = o->min_new_tokens,
        .stop = o->stop.num ? o->stop.word : (const char *const *)g->stop_strings,
        .num_stop = o->stop.num ? o->stop.num : g->num_stop_strings,
        .should_cut_stop = !g->include_stop_str_in_output,
        .seed = (uint64_t)o->seed};
    return cr_generating_check(&a->how, err);
}

static cr_status generate(void *ctx, cr_session *s, const char *device, cr_lines *lines,
                          cr_err *err)
{
    ask *a = ctx;
    cr_engine_limits limits;
    const int32_t last = 0;

    a->session = s;
    a->lines = lines;
    CR_TRY(cr_session_open(s, device, err));
    CR_TRY(limit(a, &limits, err));
    cr_note(open_engine(a, &limits, err));
    CR_TRY(cr_agree(s->mesh->group[CR_AXIS_ALL], "open the engine", err));
    a->load = CR_NEW_ARRAY(int64_t, s->num_ranks);
    a->offsets = CR_NEW_ARRAY(size_t, s->num_ranks + 1);
    if (s->rank == 0) cr_buf_add(&a->sent, &last, sizeof last);
    CR_TRY(cr_line_images_expect(s, &a->args->images, err));
    a->rules = cr_session_rules(s);
    if (a->args->prompt && s->rank == 0) CR_TRY(submit_prompt(a, a->args->prompt, err));
    return answer_all(a, err);
}

int cr_generate_run(const cr_session_call *call, const cr_generate_args *args)
{
    ask a = {.args = args};

    return cr_lines_run(call,
                        &(cr_lines_task){CR_SESSION_GENERATE, settle, generate, close_ask, &a});
}
