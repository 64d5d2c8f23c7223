/* service.c -- see service.h. */
#include "pipelines/service/service.h"
#include "http/client.h"

#include "base/json.h"
#include "rl/distill.h"
#include "scorers/service.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ANSWER_BYTES = 256 << 20,
    REQUEST_SAMPLES = 64, /* of one request, and */
    REQUEST_TOKENS = 32768,
    REQUEST_IDS = REQUEST_TOKENS * 256 /* likeliest ones, of which fewer tokens have more */
};
#define REACH_S 10.0 /* at the start, before the model is waited for */
#define WATCH_S 0.1

struct cr_role_service {
    const char *role;            /* "reference" */
    const cr_service_keys *keys; /* borrowed */
    cr_http_client *client;
    cr_role_service_identity identity;
    int64_t top; /* likeliest ids of each token that are wanted; 0: its log-prob */
    float temperature;
};

/* ---- one request ---- */

static void write_request(const cr_role_service *r, const struct cr_batch_sample *const *samples,
                          size_t num, size_t start, cr_buf *out)
{
    const cr_role_service_identity *id = &r->identity;

    cr_buf_adds(out, "{\"model\":");
    cr_json_add_string(out, id->model, strlen(id->model));
    cr_buf_adds(out, ",\"prompt\":[");
    for (size_t i = 0; i < num; i++) {
        const char *between = i ? ",[" : "[";
        for (size_t part = 0; part < samples[i]->num_segments; part++)
            for (size_t k = 0; k < samples[i]->segments[part].num_ids; k++, between = ",")
                cr_buf_addf(out, "%s%d", between, samples[i]->segments[part].ids[k]);
        cr_buf_addc(out, ']');
    }
    cr_buf_addf(out,
                "],\"max_tokens\":0,\"prompt_logprobs\":%lld,\"prompt_logprob_start\":%zu,"
                "\"temperature\":%.9g,\"encoding_format\":\"base64\",\"croll\":{"
                "\"logprobs_mode\":\"processed\",\"expect_weights\":\"%s\","
                "\"expect_tokenizer\":\"%s\"}}",
                (long long)r->top, start, (double)r->temperature,
                r->keys->expect_weights ? r->keys->expect_weights : id->weights, id->tokenizer);
}

static cr_role_service_want want_of(const cr_role_service *r, size_t num, size_t start,
                                    const size_t *first, const size_t *num_each)
{
    return (cr_role_service_want){.weights = r->identity.weights,
                                  .num = num,
                                  .start = start,
                                  .first = first,
                                  .num_each = num_each,
                                  .top = (size_t)r->top,
                                  .vocab_size = r->identity.vocab_size};
}

/* A call that is waited for alone, before there is a run. */
static cr_status ask_alone(cr_role_service *r, cr_http_call *call, double seconds, cr_err *err)
{
    call->deadline_s = cr_now_s() + seconds;
    cr_http_client_add(r->client, call, 0);
    while (!cr_http_client_next(r->client, seconds, -1))
        continue; /* its deadline ends it */
    return cr_http_call_check(r->client, call, err);
}

/* ---- the start ---- */

/* Is it there? Its model may still be loading. */
static cr_status reach(cr_role_service *r, cr_err *err)
{
    cr_http_call call = {.method = "GET", .path = "/health"};

    if (ask_alone(r, &call, fmin(REACH_S, r->keys->timeout), err) != CR_OK) {
        *err = (cr_err){0};
        cr_fail(err, CR_EABSENT,
                "%s.service: %.200s (start it with croll serve MODEL --listen HOST:PORT; "
                "without the key service the %s has ranks of its own)",
                r->role,
                call.failure.status ? call.failure.msg : "it answers, and its /v1/health does not",
                r->role);
    }
    cr_http_call_free(&call);
    return err->status;
}

static cr_status get_identity(cr_role_service *r, cr_err *err)
{
    cr_http_call call = {.method = "GET", .path = "/models"};

    if (ask_alone(r, &call, r->keys->timeout, err) == CR_OK)
        cr_note(cr_role_service_read_identity(call.answer.data, call.answer.num_bytes,
                                              r->keys->model, &r->identity, err));
    cr_http_call_free(&call);
    return err->status;
}

static cr_status check_identity(const cr_role_service *r, const cr_config *c, cr_err *err)
{
    const cr_role_service_identity *id = &r->identity;
    char *path = cr_path_join(c->train.model_path, "tokenizer.json"), own[CR_DIGEST_TEXT];
    int64_t vocab_size = 0;

    CR_TRY_GOTO(out, cr_digest_file(path, own, NULL, err));
    CR_TRY_GOTO(out, cr_model_number_read(c->train.model_path, "vocab_size", &vocab_size, err));
    if (strcmp(own, id->tokenizer) != 0)
        cr_fail(err, CR_ECONFIG,
                "its tokenizer (SHA-256 %.12s) is not that of the run (%.12s, %.160s): ids would "
                "mean other tokens",
                id->tokenizer, own, path);
    else if (id->vocab_size < vocab_size)
        cr_fail(err, CR_ECONFIG, "its vocabulary has %lld ids, that of the run %lld",
                (long long)id->vocab_size, (long long)vocab_size);
    else if (id->max_model_len < c->sequence_length)
        cr_fail(err, CR_ECONFIG,
                "its longest sequence has %lld tokens, sequence_length of the run is %lld",
                (long long)id->max_model_len, (long long)c->sequence_length);
out:
    cr_free(path);
    return err->status;
}

/* OUTPUT_DIR/reference.json */
static char *record_path(const cr_role_service *r, const char *output_dir)
{
    return cr_asprintf("%s/%s.json", output_dir, r->role);
}

/* A run that goes on has the weights that it began with. */
static cr_status check_record(const cr_role_service *r, const cr_config *c, cr_err *err)
{
    char *path = record_path(r, c->output_dir);
    json_t *before = NULL;
    const char *weights;

    if (c->resume && cr_file_exists(path)) cr_note(cr_json_read_file(path, &before, err));
    weights = json_string_value(json_object_get(before, "weights_sha256"));
    if (before && (!weights || strcmp(weights, r->identity.weights) != 0))
        cr_fail(err, CR_ECONFIG,
                "it has the weights %.12s, and the run that is resumed began with "
                "%.12s (%.200s)",
                r->identity.weights, weights ? weights : "others", path);
    json_decref(before);
    cr_free(path);
    return err->status;
}

/* A request as those of the steps: the key may score, the weights are those that are expected, numbers come back. */
static cr_status try_request(cr_role_service *r, cr_err *err)
{
    static const int32_t ids[2] = {0, 0};
    static const size_t first = 1, num_each = 1;
    const cr_segment segment = {.ids = ids, .num_ids = 2};
    const struct cr_batch_sample one = {.segments = &segment, .num_segments = 1}, *ones = &one;
    const cr_role_service_want want = want_of(r, 1, 1, &first, &num_each);
    cr_http_call call = {.method = "POST", .path = "/completions"};
    float *numbers = CR_NEW_ARRAY(float, want.top + 1);
    int32_t *chosen = CR_NEW_ARRAY(int32_t, want.top + 1);

    write_request(r, &ones, 1, 1, &call.body);
    if (ask_alone(r, &call, r->keys->timeout, err) == CR_OK)
        cr_note(cr_role_service_read_answer(call.answer.data, call.answer.num_bytes, &want, chosen,
                                            numbers, err));
    cr_http_call_free(&call);
    cr_free(numbers);
    cr_free(chosen);
    return err->status;
}

cr_status cr_role_service_open(const cr_config *c, const cr_worker_config *w, int64_t top,
                               cr_role_service **out, cr_err *err)
{
    cr_role_service *r = CR_NEW(cr_role_service);
    const cr_service_keys *k = r->keys = &w->service;

    *out = NULL;
    r->role = w->name;
    r->top = top;
    r->temperature = top ? cr_kd_teacher_temperature(&c->distill.kd) : 1;
    if (cr_service_open(k, NULL, ANSWER_BYTES, &r->client, err) != CR_OK)
        cr_fail_add(err, "service");
    CR_TRY_GOTO(failed, err->status);
    CR_TRY_GOTO(failed, reach(r, err));
    if (get_identity(r, err) != CR_OK || check_identity(r, c, err) != CR_OK ||
        check_record(r, c, err) != CR_OK || try_request(r, err) != CR_OK) {
        err->status = CR_ECONFIG; /* nothing was started */
        cr_fail_add(err, "%s.service %.100s", r->role, k->url);
        goto failed;
    }
    cr_log(CR_LOG_INFO, "rlvr", "%s: %s, weights %.12s, %s, at %s", r->role, r->identity.model,
           r->identity.weights, r->identity.dtype, k->url);
    *out = r;
    return CR_OK;
failed:
    cr_role_service_close(r);
    return err->status;
}

void cr_role_service_close(cr_role_service *r)
{
    if (!r) return;
    cr_http_client_close(r->client);
    cr_free(r);
}

/* ---- the record ---- */

cr_status cr_role_service_record(const cr_role_service *r, const char *output_dir, cr_err *err)
{
    const cr_role_service_identity *id = &r->identity;
    char *path = record_path(r, output_dir);
    const char *const texts[][2] = {{"url", r->keys->url},
                                    {"model", id->model},
                                    {"weights_sha256", id->weights},
                                    {"tokenizer_sha256", id->tokenizer},
                                    {"dtype", id->dtype}};
    cr_buf out = {0};

    for (size_t i = 0; i < CR_COUNT(texts); i++) {
        cr_buf_addf(&out, "%s\"%s\":", i ? "," : "{", texts[i][0]);
        cr_json_add_string(&out, texts[i][1], strlen(texts[i][1]));
    }
    cr_buf_addf(&out, ",\"vocab_size\":%lld,\"max_model_len\":%lld}\n", (long long)id->vocab_size,
                (long long)id->max_model_len);
    cr_note(cr_file_write_atomic(path, out.data, out.num_bytes, err));
    cr_buf_free(&out);
    cr_free(path);
    return err->status;
}

/* ---- a step ---- */

/* Samples first .. end - 1 of the batch. */
typedef struct part {
    cr_http_call call;
    size_t first, end, start;
} part;

/* The longest row of samples from `first` on that one request takes. */
static size_t end_of_part(const cr_role_service *r, const cr_sample_batch *b, size_t first)
{
    const size_t max = r->top > 256 ? REQUEST_IDS / (size_t)r->top : REQUEST_TOKENS;
    size_t end = first, tokens = 0;

    while (end < b->num && end - first < REQUEST_SAMPLES) {
        tokens += b->samples[end].num_ids;
        if (tokens > max && end > first) break;
        end++;
    }
    return end;
}

/* Samples without a response have nothing to ask for; of the others all that follows the prompt. */
static size_t list_samples(const cr_sample_batch *b, const part *p,
                           const struct cr_batch_sample **samples, size_t *first, size_t *num_each)
{
    size_t num = 0;

    for (size_t i = p->first; i < p->end; i++) {
        const struct cr_batch_sample *s = samples[num] = &b->samples[i];
        if (s->num_response == 0) continue;
        first[num] = s->segments->num_ids;
        num_each[num++] = s->num_ids - s->segments->num_ids;
    }
    return num;
}

static void add_part(cr_role_service *r, const cr_sample_batch *b, part *p, double deadline_s)
{
    const struct cr_batch_sample *samples[REQUEST_SAMPLES];
    size_t first[REQUEST_SAMPLES], num_each[REQUEST_SAMPLES],
        num = list_samples(b, p, samples, first, num_each);

    if (num == 0) return;
    p->start = first[0];
    for (size_t i = 1; i < num; i++)
        if (first[i] < p->start) p->start = first[i];
    p->call.method = "POST";
    p->call.path = "/completions";
    p->call.deadline_s = deadline_s;
    write_request(r, samples, num, p->start, &p->call.body);
    cr_http_client_add(r->client, &p->call, 0);
}

/* Numbers of the response, `each` a token, out of those of all that follows the prompt; ids NULL: none. */
static void take_response(const struct cr_batch_sample *const *samples, size_t num, size_t each,
                          const int32_t *from_ids, const float *from, int32_t *ids, float *numbers)
{
    for (size_t i = 0; i < num; i++)
        for (size_t k = 1; k < samples[i]->num_segments; k++) {
            size_t n = samples[i]->segments[k].num_ids * each;
            if (samples[i]->segments[k].kind == CR_SEGMENT_GENERATED) {
                memcpy(numbers, from, n * sizeof *numbers);
                numbers += n;
                if (ids) memcpy(ids, from_ids, n * sizeof *ids), ids += n;
            }
            from += n;
            from_ids += n;
        }
}

/* Into ids and numbers of all response tokens of the batch. */
static cr_status take_part(const cr_role_service *r, const cr_sample_batch *b, const part *p,
                           int32_t *ids, float *numbers, cr_err *err)
{
    const struct cr_batch_sample *samples[REQUEST_SAMPLES];
    size_t first[REQUEST_SAMPLES], num_each[REQUEST_SAMPLES],
        num = list_samples(b, p, samples, first, num_each), each = r->top ? (size_t)r->top : 1,
        at = b->start[p->first] * each, num_numbers = 0;
    const cr_role_service_want want = want_of(r, num, p->start, first, num_each);
    float *got;
    int32_t *got_ids;

    CR_TRY(cr_http_call_check(r->client, &p->call, err));
    for (size_t i = 0; i < num; i++)
        num_numbers += num_each[i] * each;
    got = CR_NEW_ARRAY(float, num_numbers);
    got_ids = CR_NEW_ARRAY(int32_t, num_numbers);
    if (cr_role_service_read_answer(p->call.answer.data, p->call.answer.num_bytes, &want,
                                    ids ? got_ids : NULL, got, err) == CR_OK)
        take_response(samples, num, each, got_ids, got, ids ? ids + at : NULL, numbers + at);
    else if (err->status != CR_ENUMERIC)
        err->status = CR_EPEER;
    cr_free(got);
    cr_free(got_ids);
    return err->status;
}

const char *cr_role_service_weights(const cr_role_service *r)
{
    return r->identity.weights;
}

static cr_status ask(cr_role_service *r, cr_run *run, const cr_sample_batch *b, int32_t *ids,
                     float *numbers, cr_err *err)
{
    double deadline_s = cr_now_s() + r->keys->timeout;
    size_t n = b->num, num = 0, num_left = 0;
    part *parts = CR_NEW_ARRAY(part, n); /* none moves while it is under way */

    for (size_t first = 0; first < n; first = parts[num++].end) {
        parts[num] = (part){.first = first, .end = end_of_part(r, b, first)};
        add_part(r, b, &parts[num], deadline_s);
        num_left += parts[num].call.path != NULL;
    }
    while (num_left > 0 && err->status == CR_OK) {
        cr_http_call *call = cr_http_client_next(r->client, WATCH_S, -1);
        if (call) num_left--;
        if (!call)
            cr_note(cr_run_watch(run, err));
        else if (take_part(r, b, (const part *)(const void *)call, ids, numbers, err) != CR_OK)
            cr_fail_add(err, "step %lld: %s.service", (long long)run->step, r->role);
    }
    for (size_t i = 0; i < num; i++)
        cr_http_call_free(&parts[i].call);
    cr_free(parts);
    return err->status;
}

cr_status cr_role_service_ask(cr_role_service *r, cr_run *run, cr_sample_batch *b,
                              cr_batch_column column, cr_err *err)
{
    double *log_probs = cr_sample_batch_add(b, column);
    float *numbers = CR_NEW_ARRAY(float, b->num_tokens + 1);

    if (ask(r, run, b, NULL, numbers, err) == CR_OK)
        for (size_t t = 0; t < b->num_tokens; t++)
            log_probs[t] = numbers[t];
    cr_free(numbers);
    return err->status;
}

cr_status cr_role_service_ask_teacher(cr_role_service *r, cr_run *run, cr_sample_batch *b,
                                      cr_err *err)
{
    struct cr_batch_teacher *w = &b->teacher;

    w->num = (size_t)r->top;
    w->ids = CR_NEW_ARRAY(int32_t, b->num_tokens * w->num + 1);
    w->numbers = CR_NEW_ARRAY(float, b->num_tokens * w->num + 1);
    return ask(r, run, b, w->ids, w->numbers, err);
}
