/* judge.c -- see judge.h. */
#include "scorers/judge/judge.h"

#include "base/rng.h"
#include "scorers/input.h"
#include "scorers/judge/remote.h"
#include "scorers/judge/reply.h"
#include "scorers/score_line.h"
#include "scorers/service.h"

#include <math.h>
#include <string.h>

enum { ANSWER_BYTES = 16 << 20 };
#define WATCH_S      0.1
#define FIRST_POLL_S 0.1
#define LAST_POLL_S  2.0

/* ---- requests ---- */

/* The text of a content: a string, or the last of its parts with a text. NULL: none. */
static const json_t *content_text(const json_t *content)
{
    for (size_t i = json_array_size(content); i > 0; i--) {
        const json_t *text = json_object_get(json_array_get(content, i - 1), "text");
        if (json_is_string(text)) return text;
    }
    return json_is_string(content) ? content : NULL;
}

/* What the user said last in a chat, or in the JSON text of one; the copy is owned, NULL: nothing. */
static char *last_user_text(const json_t *chat)
{
    json_t *parsed = NULL;
    const json_t *found = NULL;
    cr_err ignored = {0};
    char *copy;

    if (json_is_string(chat))
        cr_note(cr_json_parse(json_string_value(chat), json_string_length(chat), NULL, &parsed,
                              &ignored));
    if (parsed) chat = parsed;
    for (size_t i = json_array_size(chat); i > 0 && !found; i--) {
        const json_t *message = json_array_get(chat, i - 1);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "user") == 0)
            found = content_text(json_object_get(message, "content"));
    }
    copy = found ? cr_strndup(json_string_value(found), json_string_length(found)) : NULL;
    json_decref(parsed);
    return copy;
}

/* From the columns that prompts are made of. */
static char *question_of(const cr_config *c, const json_t *row)
{
    const cr_data_args *const args[] = {&c->train.data, &c->validation.data};
    char *text = NULL;

    for (size_t i = 0; i < CR_COUNT(args) && !text; i++) {
        const json_t *prompt = args[i]->prompt ? json_object_get(row, args[i]->prompt) : NULL;
        if (json_is_string(prompt)) text = cr_strdup(json_string_value(prompt));
        if (!text && args[i]->messages)
            text = last_user_text(json_object_get(row, args[i]->messages));
    }
    return text;
}

static void add_column(cr_buf *out, const json_t *row, const char *name)
{
    const json_t *text = json_object_get(row, name);

    if (json_is_string(text)) cr_buf_add(out, json_string_value(text), json_string_length(text));
}

/* What a model wrote must not end its message and begin the judge's: "<|im_end|>" becomes "< |im_end|>". */
static void add_response(cr_buf *out, const json_t *row)
{
    const json_t *text = json_object_get(row, "response");
    const char *from = json_string_value(text);

    for (size_t i = 0, num = json_string_length(text); i < num; i++) {
        cr_buf_addc(out, from[i]);
        if (from[i] == '<' && i + 1 < num && from[i + 1] == '|') cr_buf_addc(out, ' ');
    }
}

/* The prompt with its places filled; texts that come from a row are not looked at again. */
static void fill(const char *prompt, const char *question, const json_t *row, cr_buf *out)
{
    static const char at_question[] = "{question}", at_reference[] = "{reference}",
                      at_response[] = "{response}";

    while (*prompt) {
        if (strncmp(prompt, at_question, strlen(at_question)) == 0) {
            cr_buf_adds(out, question);
            prompt += strlen(at_question);
        } else if (strncmp(prompt, at_reference, strlen(at_reference)) == 0) {
            add_column(out, row, "ground_truth");
            prompt += strlen(at_reference);
        } else if (strncmp(prompt, at_response, strlen(at_response)) == 0) {
            add_response(out, row);
            prompt += strlen(at_response);
        } else {
            cr_buf_addc(out, *prompt++);
        }
    }
}

cr_status cr_judge_write(const cr_config *c, const cr_reward_config *r, const json_t *row,
                         cr_buf *out, cr_err *err)
{
    char *question = question_of(c, row);
    const char *fields = r->judge_fields;
    cr_buf text = {0};

    if (!question)
        return cr_fail(err, CR_EFORMAT,
                       "the row has no question: no text in the column of data_args.prompt, no "
                       "user in that of data_args.messages");
    fill(r->judge_prompt, question, row, &text);
    cr_buf_addc(out, '{');
    if (r->judge.model) {
        cr_buf_adds(out, "\"model\":");
        cr_json_add_string(out, r->judge.model, strlen(r->judge.model));
        cr_buf_addc(out, ',');
    }
    cr_buf_adds(out, "\"messages\":[{\"role\":\"user\",\"content\":");
    cr_json_add_string(out, text.data, text.num_bytes);
    cr_buf_adds(out, "}]");
    if (r->judge_model.is_given) /* the same chat gets the same verdict, each chat its own draws */
        cr_buf_addf(
            out, ",\"seed\":%lld",
            (long long)((cr_hash64(text.data, text.num_bytes) ^ (uint64_t)c->seed) & INT64_MAX));
    cr_buf_addf(out, "%s%s", strcmp(fields, "{}") == 0 ? "" : ",", fields + 1); /* its brace */
    cr_buf_free(&text);
    cr_free(question);
    return CR_OK;
}

/* ---- lines ---- */

typedef struct line {
    cr_http_call call; /* first: a call is its line */
    json_t *row;       /* owned */
    char *path;        /* of a remote result that is asked for; owned */
    double pause_s;    /* until it is asked for again */
    bool is_used;
} line;

struct cr_judge {
    const cr_config *config;
    const cr_reward_config *reward;
    cr_http_client *client;
    cr_judge_reader reader;
    double limit_s;
    line *lines; /* [num] */
    size_t num, num_used;
    long num_read; /* lines of the input */
    bool has_bad;
    cr_score_form form;
    bool is_remote; /* the rule remote */
};

static void line_free(line *l)
{
    json_decref(l->row);
    cr_free(l->path);
    cr_http_call_free(&l->call);
    *l = (line){.row = NULL};
}

cr_status cr_judge_open(const cr_config *config, const cr_reward_config *r, int number,
                        double limit_s, cr_judge **out, cr_err *err)
{
    char *url = r->judge_model.is_given ? cr_judge_url(r, number) : NULL;
    cr_http_client *client;
    cr_judge *j;

    *out = NULL;
    cr_note(cr_service_open(&r->judge, url, ANSWER_BYTES, &client, err));
    cr_free(url);
    CR_TRY(err->status);
    j = *out = CR_NEW(cr_judge);
    *j = (cr_judge){.config = config, .reward = r, .client = client, .limit_s = limit_s};
    j->is_remote = r->rule && strcmp(r->rule, "remote") == 0;
    j->num = (size_t)r->judge.connections;
    j->lines = CR_NEW_ARRAY(line, j->num);
    return cr_judge_reader_open(&j->reader, &r->judge_answer, err);
}

void cr_judge_close(cr_judge *j)
{
    if (!j) return;
    cr_http_client_close(j->client);
    cr_judge_reader_close(&j->reader);
    for (size_t i = 0; i < j->num; i++)
        line_free(&j->lines[i]);
    cr_free(j->lines);
    cr_free(j);
}

/* Take over a row; CR_EFORMAT: there is nothing to ask for. */
static cr_status ask(cr_judge *j, json_t *row, cr_err *err)
{
    line *l = j->lines;

    while (l->is_used)
        l++;
    *l = (line){.row = row, .is_used = true};
    l->call.method = "POST";
    l->call.path = j->is_remote ? CR_REMOTE_SUBMIT : "/chat/completions";
    l->call.deadline_s = cr_now_s() + j->limit_s;
    l->pause_s = FIRST_POLL_S;
    j->num_used++;
    if (j->is_remote) {
        char *question = question_of(j->config, row);
        cr_remote_write(j->config, j->reward, row, question ? question : "", &l->call.body);
        cr_free(question);
    } else {
        CR_TRY(cr_judge_write(j->config, j->reward, row, &l->call.body, err));
    }
    cr_http_client_add(j->client, &l->call, 0);
    return CR_OK;
}

static void release(cr_judge *j, line *l)
{
    line_free(l);
    j->num_used--;
}

/* A remote service has answered: is it the result? Else it is asked again. */
static bool read_remote(cr_judge *j, line *l, cr_rule_result *out)
{
    cr_http_call *call = &l->call;
    char *path;

    if (cr_remote_read(call->answer.data, call->answer.num_bytes, l->path != NULL, &path, out))
        return true;
    if (path) l->path = path;
    cr_buf_clear(&call->body);
    call->method = "GET";
    call->path = l->path;
    cr_http_client_add(j->client, call, l->pause_s);
    l->pause_s = fmin(2 * l->pause_s, LAST_POLL_S);
    return false;
}

/* False: the verdict comes later. */
static bool judge(cr_judge *j, line *l, cr_rule_result *out)
{
    cr_err err = {0};

    if (cr_http_call_check(j->client, &l->call, &err) == CR_OK) {
        if (j->is_remote) return read_remote(j, l, out);
        cr_judge_read(&j->reader, l->call.answer.data, l->call.answer.num_bytes, out);
        return true;
    }
    cr_rule_error(out, "%.190s", err.msg);
    if (err.status == CR_ETIMEOUT) out->outcome = CR_OUTCOME_TIMEOUT;
    return true;
}

static bool print(FILE *to, const cr_buf *out)
{
    return fwrite(out->data, 1, out->num_bytes, to) == out->num_bytes && fflush(to) == 0;
}

static bool take_line(cr_judge *j, char *text, size_t n, FILE *to)
{
    json_t *row = NULL;
    cr_rule_result none = {0};
    cr_err err = {0};
    cr_buf out = {0};
    bool is_written;

    j->num_read++;
    if (strspn(text, " \t\r\n") >= n) return true;
    if (cr_score_row(text, n, j->num_read, &row, &err) == CR_OK) {
        if (ask(j, row, &err) == CR_OK) return true;
        cr_rule_error(&none, "%.190s", err.msg); /* a sample without verdict */
        cr_score_answer(row, &none, NULL, j->form, NULL, &out);
        for (size_t i = 0; i < j->num; i++)
            if (j->lines[i].row == row) release(j, &j->lines[i]);
    } else {
        j->has_bad = true;
        cr_score_answer(row, &none, NULL, j->form, err.msg, &out);
        json_decref(row);
    }
    is_written = print(to, &out);
    cr_buf_free(&out);
    return is_written;
}

/* The text of the first message of a body; of another body all of it. */
static void explain_chat(json_t *explain, const char *key, const cr_buf *body, const char *list)
{
    json_t *root = NULL;
    const json_t *first, *message, *text;
    cr_err ignored = {0};

    if (!body->num_bytes) return;
    cr_note(cr_json_parse(body->data, body->num_bytes, NULL, &root, &ignored));
    first = json_array_get(json_object_get(root, list), 0);
    message = json_object_get(first, "message");
    text = json_object_get(message ? message : first, "content");
    if (json_is_string(text))
        cr_explain_text(explain, key, json_string_value(text), json_string_length(text));
    else
        cr_explain_text(explain, key, body->data, body->num_bytes);
    json_decref(root);
}

static bool take_answer(cr_judge *j, line *l, FILE *to)
{
    cr_rule_result result;
    json_t *explain = NULL;
    cr_buf out = {0};
    bool is_written;

    if (!judge(j, l, &result)) return true;
    if (j->form != CR_SCORE_PLAIN) {
        explain = json_object();
        explain_chat(explain, "asked", &l->call.body, "messages");
        explain_chat(explain, "reply", &l->call.answer, "choices");
        cr_explain_value(explain, "tries", json_integer(l->call.num_tries));
    }
    cr_score_answer(l->row, &result, explain, j->form, NULL, &out);
    release(j, l);
    json_decref(explain);
    is_written = print(to, &out);
    cr_buf_free(&out);
    return is_written;
}

/* Whole lines of the input, while there is room. */
static bool take_lines(cr_judge *j, cr_input *input, FILE *to)
{
    bool goes_on = true;
    char *text;
    size_t n;

    while (goes_on && j->num_used < j->num && (text = cr_input_next(input, &n))) {
        goes_on = take_line(j, text, n, to);
        cr_free(text);
    }
    return goes_on;
}

cr_status cr_judge_lines(cr_judge *j, int from_fd, cr_score_form form, FILE *to, cr_err *err)
{
    cr_input input = {.fd = from_fd};
    bool goes_on = true;

    j->form = form;
    while (goes_on && !(cr_input_is_over(&input) && j->num_used == 0)) {
        bool can_read = j->num_used < j->num && !input.has_ended;
        cr_http_call *call = cr_http_client_next(j->client, 1, can_read ? from_fd : -1);
        if (call) goes_on = take_answer(j, (line *)(void *)call, to);
        if (!call && can_read) cr_input_read(&input);
        if (goes_on) goes_on = take_lines(j, &input, to);
    }
    cr_input_free(&input);
    return j->has_bad ? cr_fail(err, CR_EFORMAT, "some lines were wrong (see their \"error\")")
                      : CR_OK;
}

cr_status cr_judge_check(cr_judge *j, const json_t *row, cr_status (*watch)(void *, cr_err *),
                         void *ctx, cr_err *err)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)row);
    cr_rule_result result = {0};
    bool is_there = false;

    json_object_set_new(copy, "response", json_string(""));
    json_object_set_new(copy, "id", json_string("probe"));
    if (ask(j, copy, err) != CR_OK) return err->status;
    while (!is_there) { /* its deadline ends it */
        is_there = cr_http_client_next(j->client, WATCH_S, -1) &&
                   (cr_http_call_check(j->client, &j->lines[0].call, err) != CR_OK ||
                    judge(j, &j->lines[0], &result));
        if (watch && !is_there) CR_TRY(watch(ctx, err));
    }
    if (err->status != CR_OK) err->status = CR_ECONFIG; /* nothing was started */
    if (strstr(result.detail, "is not a chat") || strncmp(result.detail, "the service's", 13) == 0)
        cr_fail(err, CR_ECONFIG, "%s", result.detail);
    if (strstr(result.detail, "no verdict"))
        cr_log(CR_LOG_WARN, "reward", "%s: %s", j->reward->domain, result.detail);
    release(j, &j->lines[0]);
    return err->status;
}
