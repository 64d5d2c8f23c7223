/* code.c -- see code.h. A line goes through its cases one after the other; the lines are under way at the same time. */
#include "scorers/code/code.h"

#include "scorers/code/code_impl.h"
#include "scorers/input.h"
#include "scorers/service.h"

#include <string.h>
#include <strings.h>

enum { ANSWER_BYTES = 16 << 20, MAX_RUNNERS = 8, MAX_TRIES = 3, OUTPUT_BYTES = 4 << 20 };
enum { NUM_PROCESSES = 64, FILES_BYTES = 64 << 20 };
#define LOOK_S   0.005 /* at sources in turn */
#define ANSWER_S 0.1   /* of a deadline, for the answer itself */

/* Python, or another interpreter of a row, with its sandbox. */
typedef struct runner {
    char *interpreter;
    cr_sandbox *sandbox;
    bool is_python;
} runner;

struct cr_code {
    cr_code_settings settings;
    runner runners[MAX_RUNNERS];
    size_t num_runners;
    cr_http_client *client; /* or NULL */
    cri_line *lines;        /* [settings.num_at_once] */
    size_t num_used;
    cr_input input;
    long num_read;
    FILE *to;
    bool has_bad, is_closed; /* a wrong line; its reader has gone */
};

/* ---- sandboxes ---- */

static bool is_python(const char *interpreter)
{
    size_t n = strcspn(interpreter, " \t"), from = n;

    while (from > 0 && interpreter[from - 1] != '/')
        from--;
    return strncmp(interpreter + from, "python", 6) == 0 ||
           strncmp(interpreter + from, "pypy", 4) == 0;
}

/* The runner of an interpreter, started when it is needed first. */
static cr_status find_runner(cr_code *c, const char *interpreter, runner **out, cr_err *err)
{
    const cr_code_keys *k = c->settings.keys;
    bool has_harness = is_python(interpreter);
    cr_sandbox_args args = {.num_slots = c->settings.num_at_once,
                            .interpreter = interpreter,
                            .harness = has_harness ? cri_harness_begin : NULL,
                            .limits = {.memory_bytes = k->case_memory_mb << 20,
                                       .files_bytes = FILES_BYTES,
                                       .output_bytes = OUTPUT_BYTES,
                                       .num_processes = NUM_PROCESSES},
                            .is_open = k->is_open};
    runner *r = c->runners;

    for (; r < c->runners + c->num_runners; r++)
        if (strcmp(r->interpreter, interpreter) == 0) {
            *out = r;
            return CR_OK;
        }
    if (c->num_runners == MAX_RUNNERS)
        return cr_fail(err, CR_EFORMAT, "there are more than %d interpreters", MAX_RUNNERS);
    CR_TRY(cr_sandbox_open(&args, &r->sandbox, err));
    r->interpreter = cr_strdup(interpreter);
    r->is_python = has_harness;
    c->num_runners++;
    *out = r;
    return CR_OK;
}

cr_status cr_code_open(const cr_code_settings *settings, cr_code **out, cr_err *err)
{
    const cr_code_keys *k = settings->keys;
    cr_code *c = CR_NEW(cr_code);
    runner *r;

    *out = NULL;
    *c = (cr_code){.settings = *settings};
    c->lines = CR_NEW_ARRAY(cri_line, settings->num_at_once);
    if (k->service.url && !k->use_local)
        cr_note(cr_service_open(&k->service, NULL, ANSWER_BYTES, &c->client, err));
    else
        cr_note(find_runner(c, k->interpreter, &r, err));
    if (k->is_open)
        cr_log(CR_LOG_WARN, "reward",
               "sandbox: none: programs of the model run with the rights of this user");
    if (err->status == CR_OK)
        *out = c;
    else
        cr_code_close(c);
    return err->status;
}

static void free_line(cri_line *l)
{
    json_decref(l->row);
    cr_code_row_free(&l->want);
    cr_free(l->code);
    cr_buf_free(&l->jobs[0]);
    cr_buf_free(&l->jobs[1]);
    json_decref(l->explain);
    cr_program_free(&l->program);
    cr_http_call_free(&l->call);
    *l = (cri_line){.row = NULL};
}

void cr_code_close(cr_code *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->num_runners; i++) {
        cr_sandbox_close(c->runners[i].sandbox);
        cr_free(c->runners[i].interpreter);
    }
    cr_http_client_close(c->client);
    for (size_t i = 0; i < c->settings.num_at_once; i++)
        free_line(&c->lines[i]);
    cr_input_free(&c->input);
    cr_free(c->lines);
    cr_free(c);
}

/* ---- answers ---- */

static void print(cr_code *c, const cr_buf *out)
{
    if (fwrite(out->data, 1, out->num_bytes, c->to) != out->num_bytes || fflush(c->to) != 0)
        c->is_closed = true;
}

/* The line's verdict, with its cases if they are wanted; the line is free then. */
static void finish(cr_code *c, cri_line *l)
{
    cr_buf out = {0};

    cr_score_answer(l->row, &l->result, l->explain, c->settings.form, NULL, &out);
    print(c, &out);
    cr_buf_free(&out);
    free_line(l);
    c->num_used--;
}

static void fail_line(cr_code *c, cri_line *l, cr_outcome outcome, const char *why)
{
    cr_rule_error(&l->result, "%.190s", why);
    l->result.outcome = outcome;
    finish(c, l);
}

static void end_line(cr_code *c, cri_line *l, bool is_passed)
{
    l->result.score = l->result.reward = is_passed;
    l->result.outcome = CR_OUTCOME_OK;
    finish(c, l);
}

/* ---- cases ---- */

static void start_case(cr_code *c, cri_line *l);

/* The case has ended with a verdict of its own, or without one. */
static void take_case(cr_code *c, cri_line *l, const cri_case_end *end)
{
    if (l->explain)
        json_array_append_new(json_object_get(l->explain, "cases"),
                              cri_case_explain(end, l->at + 1));
    if (strcmp(end->status, "broken") == 0 && ++l->num_tries < MAX_TRIES) {
        start_case(c, l);
        return;
    }
    if (!end->is_passed)
        snprintf(l->result.detail, sizeof l->result.detail, "case %zu of %zu: %s", l->at + 1,
                 l->want.num_cases, end->detail);
    if (end->is_passed && ++l->at < l->want.num_cases) {
        l->num_tries = 0;
        start_case(c, l);
    } else if (end->is_passed) {
        snprintf(l->result.detail, sizeof l->result.detail, "passed %zu case%s", l->at,
                 l->at == 1 ? "" : "s");
        end_line(c, l, true);
    } else if (end->has_verdict) {
        end_line(c, l, false);
    } else {
        char why[sizeof l->result.detail];
        snprintf(why, sizeof why, "%s", l->result.detail);
        fail_line(c, l, strcmp(end->status, "late") == 0 ? CR_OUTCOME_TIMEOUT : CR_OUTCOME_ERROR,
                  why);
    }
}

static void start_case(cr_code *c, cri_line *l)
{
    const cr_code_keys *k = c->settings.keys;
    double left = l->deadline_s - cr_now_s() - ANSWER_S, wall_s = 2 * k->case_timeout;
    cr_program *p = &l->program;
    char why[160];

    if (left <= 0) {
        snprintf(why, sizeof why,
                 "the time for a line is over after %zu of %zu cases (reward_timeout)", l->at,
                 l->want.num_cases);
        fail_line(c, l, CR_OUTCOME_TIMEOUT, why);
        return;
    }
    if (l->is_remote) {
        cr_http_call_free(&l->call);
        l->call =
            (cr_http_call){.method = "POST", .path = "", .deadline_s = l->deadline_s - ANSWER_S};
        cri_request_write(l, k, &l->call.body);
        cr_http_client_add(c->client, &l->call, 0);
        return;
    }
    l->is_cut = left < wall_s;
    cr_program_free(p);
    *p = (cr_program){.cpu_s = k->case_timeout, .wall_s = l->is_cut ? left : wall_s, .owner = l};
    cri_jobs_write(l, l->is_python, p);
    cr_sandbox_start(l->sandbox, p);
}

/* ---- lines ---- */

/* What a row asks for can be run; else the line is answered. */
static void start_line(cr_code *c, cri_line *l)
{
    const json_t *response = json_object_get(l->row, "response");
    const char *text = json_string_value(response), *interpreter = c->settings.keys->interpreter;
    runner *r = NULL;
    cr_err err = {0};

    l->deadline_s = cr_now_s() + c->settings.limit_s;
    if (cr_code_row_read(l->row, &l->want, &err) != CR_OK) {
        fail_line(c, l, CR_OUTCOME_ERROR, err.msg);
        return;
    }
    l->code = l->want.kind == CR_CASE_TEXT
                  ? cr_strndup(text, json_string_length(response))
                  : cr_code_of_response(text, json_string_length(response));
    if (!l->code) {
        snprintf(l->result.detail, sizeof l->result.detail,
                 CR_NO_ANSWER ": the response has no program");
        end_line(c, l, false);
        return;
    }
    if (c->settings.form != CR_SCORE_PLAIN) {
        l->explain = json_object();
        cr_explain_text(l->explain, "program", l->code, strlen(l->code));
        json_object_set_new(l->explain, "cases", json_array());
    }
    l->is_remote = c->client && l->want.kind == CR_CASE_IO;
    if (!l->is_remote) {
        if (l->want.interpreter) interpreter = l->want.interpreter;
        if (find_runner(c, interpreter, &r, &err) == CR_OK && !r->is_python &&
            l->want.kind != CR_CASE_IO)
            cr_fail(&err, CR_EFORMAT, "%s runs programs with stdin and stdout only", interpreter);
        if (err.status != CR_OK) {
            fail_line(c, l, CR_OUTCOME_ERROR, err.msg);
            return;
        }
        l->sandbox = r->sandbox;
        l->is_python = r->is_python;
    }
    start_case(c, l);
}

static void take_line(cr_code *c, char *text, size_t n)
{
    cri_line *l = c->lines;
    json_t *row = NULL;
    cr_err err = {0};
    cr_buf out = {0};

    c->num_read++;
    if (strspn(text, " \t\r\n") >= n) return;
    if (cr_score_row_any(text, n, c->num_read, &row, &err) != CR_OK) {
        c->has_bad = true;
        cr_score_answer(row, NULL, NULL, c->settings.form, err.msg, &out);
        print(c, &out);
        cr_buf_free(&out);
        json_decref(row);
        return;
    }
    while (l->row)
        l++;
    *l = (cri_line){.row = row};
    c->num_used++;
    start_line(c, l);
}

/* Something that has ended, or other_fd can be read, or wait_s is over. */
static void wait_for(cr_code *c, double wait_s, int other_fd)
{
    size_t num_sources = c->num_runners + (c->client != NULL);
    double one_s = num_sources > 1 ? LOOK_S : wait_s;
    cr_http_call *call;
    cri_case_end end;

    for (size_t i = 0; i < c->num_runners; i++) {
        cr_program *p = cr_sandbox_next(c->runners[i].sandbox, one_s, other_fd);
        if (!p) continue;
        cri_program_judge(p, &end);
        take_case(c, p->owner, &end);
    }
    if (!c->client || !(call = cr_http_client_next(c->client, one_s, other_fd))) return;
    for (size_t i = 0; i < c->settings.num_at_once; i++)
        if (call == &c->lines[i].call) {
            cri_call_judge(c->client, &c->lines[i], &end);
            take_case(c, &c->lines[i], &end);
        }
}

cr_status cr_code_lines(cr_code *c, int from_fd, FILE *to, cr_err *err)
{
    c->input = (cr_input){.fd = from_fd};
    c->to = to;
    while (!c->is_closed && !(cr_input_is_over(&c->input) && c->num_used == 0)) {
        bool is_full = c->num_used == c->settings.num_at_once;
        char *text;
        size_t n;
        wait_for(c, 1, is_full || c->input.has_ended ? -1 : from_fd);
        cr_input_read(&c->input);
        while (c->num_used < c->settings.num_at_once && (text = cr_input_next(&c->input, &n))) {
            take_line(c, text, n);
            cr_free(text);
        }
    }
    return c->has_bad ? cr_fail(err, CR_EFORMAT, "some lines were wrong (see their \"error\")")
                      : CR_OK;
}
