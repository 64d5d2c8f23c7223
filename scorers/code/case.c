/* case.c -- one case of a line: what the processes of its program are given, and what their end means. */
#include "scorers/code/code_impl.h"

#include <stdio.h>
#include <string.h>

/* The files of Python in this folder as one text. */
__asm__(".section .rodata\n"
        ".global cri_harness_begin\n"
        "cri_harness_begin: .incbin \"scorers/code/harness.py\"\n"
        ".incbin \"scorers/code/link.py\"\n"
        ".incbin \"scorers/code/solution.py\"\n"
        ".incbin \"scorers/code/stand_ins.py\"\n"
        ".incbin \"scorers/code/guard.py\"\n"
        ".incbin \"scorers/code/tests.py\"\n"
        ".byte 0\n"
        ".previous\n");

void cri_field_add(cr_buf *out, const char *key, const char *text)
{
    cr_buf_addf(out, ",\"%s\":", key);
    cr_json_add_string(out, text, strlen(text));
}

static void begin_job(cr_buf *out, const char *role, const char *code)
{
    cr_buf_clear(out);
    cr_buf_addf(out, "{\"role\":\"%s\"", role);
    cri_field_add(out, "code", code);
}

/* The test of a text, with the response where it stands, as a literal. */
static void write_text_test(const char *test, const json_t *response, cr_buf *out)
{
    static const char place[] = "{response}";
    const char *text = json_string_value(response);
    cr_buf code = {0};

    for (const char *at; (at = strstr(test, place)); test = at + strlen(place)) {
        cr_buf_add(&code, test, (size_t)(at - test));
        cr_json_add_string(&code, text, json_string_length(response));
    }
    cr_buf_adds(&code, test);
    begin_job(out, "text", code.data);
    cr_buf_free(&code);
}

void cri_jobs_write(cri_line *l, bool is_python, cr_program *p)
{
    const cr_code_case *c = &l->want.cases[l->at];
    cr_buf *job = &l->jobs[0];

    p->jobs[0] = job;
    if (!is_python) {
        cr_buf_clear(job);
        cr_buf_adds(job, l->code);
    } else if (l->want.kind == CR_CASE_IO) {
        begin_job(job, "script", l->code);
    } else if (l->want.kind == CR_CASE_CALL) {
        begin_job(job, "call", l->code);
        cri_field_add(job, "function", l->want.function);
        cri_field_add(job, "lines", c->input);
    } else if (l->want.kind == CR_CASE_TEXT) {
        write_text_test(c->test, json_object_get(l->row, "response"), job);
    } else {
        begin_job(job, "test", c->test);
        if (c->entry) cri_field_add(job, "entry", c->entry);
        begin_job(&l->jobs[1], "solution", l->code);
        cr_buf_addc(&l->jobs[1], '}');
        p->jobs[1] = &l->jobs[1];
    }
    if (is_python) cr_buf_addc(job, '}');
    if (l->want.kind != CR_CASE_IO) return;
    p->input = c->input;
    p->input_bytes = strlen(c->input);
}

/* The last line that says something, of a stream. */
static void last_line(const cr_buf *text, char *out, size_t num_bytes)
{
    size_t end = text->num_bytes, from;

    while (end > 0 && strchr(" \t\r\n", text->data[end - 1]))
        end--;
    from = end;
    while (from > 0 && text->data[from - 1] != '\n')
        from--;
    snprintf(out, num_bytes, "%.*s", (int)(end - from), end ? text->data + from : "");
}

/* A text of a program in few bytes, on one line. */
static void shorten(const char *text, char out[48])
{
    snprintf(out, 48, "%s", text);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ') *p = ' ';
    if (strlen(text) >= 48) memcpy(out + 44, "...", 4);
}

static void say_wrong(const char *what, const char *got, const char *want, cri_case_end *out)
{
    char a[48], b[48];

    shorten(got, a);
    shorten(want, b);
    out->status = "wrong";
    snprintf(out->detail, sizeof out->detail, "wrong %s: '%s' instead of '%s'", what, a, b);
}

/* The verdict that the process of the tests, or of a call, gave; a program that ends before has none. */
static void judge_result(const cr_program *p, const cr_code_case *c, bool is_call,
                         cri_case_end *out)
{
    const char *said = NULL, *value;
    json_t *root = NULL;
    cr_err bad = {0};

    cr_note(cr_json_parse(p->result.data, p->result.num_bytes, NULL, &root, &bad));
    said = json_string_value(json_object_get(root, "error"));
    value = json_string_value(json_object_get(root, "value"));
    if (said) {
        out->status = strncmp(said, "AssertionError", 14) == 0 ? "wrong" : "error";
        snprintf(out->detail, sizeof out->detail, "%.159s", said);
    } else if (is_call && value) {
        out->is_passed = cr_code_same_value(value, c->want);
        if (!out->is_passed) say_wrong("value", value, c->want, out);
    } else if (!is_call && json_is_true(json_object_get(root, "passed"))) {
        out->is_passed = true;
    } else {
        out->status = "error";
        snprintf(out->detail, sizeof out->detail, "it ended before its verdict");
    }
    json_decref(root);
}

static void judge_exit(const cr_program *p, const cri_line *l, cri_case_end *out)
{
    const cr_code_case *c = &l->want.cases[l->at];
    char line[100];

    if (p->code != 0) {
        last_line(&p->errors, line, sizeof line);
        out->status = "error";
        snprintf(out->detail, sizeof out->detail, "exit code %d%s%s", p->code, line[0] ? ": " : "",
                 line);
    } else if (l->want.kind == CR_CASE_IO) {
        const char *got = p->output.data ? p->output.data : "";
        out->is_passed = strlen(got) == p->output.num_bytes && cr_code_same_output(got, c->want);
        if (!out->is_passed) say_wrong("output", got, c->want, out);
    } else {
        judge_result(p, c, l->want.kind == CR_CASE_CALL, out);
    }
}

void cri_program_judge(const cr_program *p, cri_case_end *out)
{
    const cri_line *l = p->owner;
    int n = sizeof out->detail;

    *out = (cri_case_end){.has_verdict = true,
                          .status = "passed",
                          .took_s = p->took_s,
                          .cpu_s = p->used_cpu_s,
                          .peak_bytes = p->peak_bytes};
    switch (p->end) {
    case CR_PROGRAM_EXITED:
        judge_exit(p, l, out);
        break;
    case CR_PROGRAM_KILLED:
        out->status = "killed";
        snprintf(out->detail, (size_t)n, "killed by signal %d (%s)", p->code, strsignal(p->code));
        break;
    case CR_PROGRAM_LATE:
        out->status = "late";
        out->has_verdict = !l->is_cut || p->used_cpu_s >= 0.85 * p->cpu_s;
        snprintf(out->detail, (size_t)n, "no end after %.1f s (CPU %.1f s)%s", p->took_s,
                 p->used_cpu_s, out->has_verdict ? "" : ", all that reward_timeout leaves");
        break;
    case CR_PROGRAM_LARGE:
        out->status = "large";
        snprintf(out->detail, (size_t)n, "more memory than case_memory_mb");
        break;
    case CR_PROGRAM_LOUD:
        out->status = "loud";
        snprintf(out->detail, (size_t)n, "more than 4 MiB of output");
        break;
    case CR_PROGRAM_BROKEN:
        out->status = "broken";
        out->has_verdict = false;
        snprintf(out->detail, (size_t)n, "%s", p->why);
    }
}

json_t *cri_case_explain(const cri_case_end *end, size_t number)
{
    json_t *out = json_object();

    json_object_set_new(out, "case", json_integer((json_int_t)number));
    json_object_set_new(out, "status", json_string(end->status));
    json_object_set_new(out, "time_s", json_real(end->took_s));
    json_object_set_new(out, "cpu_s", json_real(end->cpu_s));
    json_object_set_new(out, "memory_mb", json_real((double)end->peak_bytes / 1048576));
    cr_explain_text(out, "detail", end->detail, strlen(end->detail));
    return out;
}
