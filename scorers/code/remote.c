/* remote.c -- cases that a service runs: ROLL's request, and the answers of services that take it.
 *
 *     POST {"compile_timeout", "run_timeout", "code", "language", "stdin", "expected_stdout"}
 *     <-   {"accepted": true} or {"status": "Success", "run_result": {"stdout": ..}}
 *
 * If the answer has what the program wrote, it is compared here, else `accepted` or `status` is the verdict.
 */
#include "scorers/code/code_impl.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_S = 30 };

static const char *language_of(const char *fence)
{
    static const struct {
        const char *word, *name;
    } names[] = {{"", "python"},   {"py", "python"},     {"python3", "python"},  {"c++", "cpp"},
                 {"golang", "go"}, {"js", "javascript"}, {"node", "javascript"}, {"rb", "ruby"}};

    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcasecmp(fence, names[i].word) == 0) return names[i].name;
    return fence;
}

void cri_request_write(const cri_line *l, const cr_code_keys *keys, cr_buf *out)
{
    const json_t *response = json_object_get(l->row, "response");
    const cr_code_case *c = &l->want.cases[l->at];
    int limit_s = keys->case_timeout < MAX_S ? (int)keys->case_timeout + 1 : MAX_S;
    char fence[16];

    cr_code_language(json_string_value(response), json_string_length(response), fence);
    cr_buf_clear(out);
    cr_buf_addf(out, "{\"compile_timeout\":%d,\"run_timeout\":%d", MAX_S, limit_s);
    cri_field_add(out, "code", l->code);
    cri_field_add(out, "language", language_of(fence));
    cri_field_add(out, "stdin", c->input);
    cri_field_add(out, "expected_stdout", c->want);
    cr_buf_addc(out, '}');
}

int cr_code_read_answer(const char *body, size_t num_bytes, const char *want, char detail[160])
{
    static const char *const good[] = {"Success", "Accepted", "Passed", "OK"};
    json_t *root = NULL;
    const json_t *accepted, *run;
    const char *status, *got;
    int verdict = -1;
    cr_err err = {0};

    cr_note(cr_json_parse(body, num_bytes, NULL, &root, &err));
    accepted = json_object_get(root, "accepted");
    status = json_string_value(json_object_get(root, "status"));
    run = json_object_get(root, "run_result");
    got = json_string_value(json_object_get(run ? run : root, "stdout"));
    if (json_is_boolean(accepted)) verdict = json_is_true(accepted);
    for (size_t i = 0; verdict < 0 && status && i < CR_COUNT(good); i++)
        if (strcasecmp(status, good[i]) == 0) verdict = 1;
    if (verdict < 0 && status && strcasecmp(status, "SandboxError") != 0) verdict = 0;
    if (verdict == 1 && got && !json_is_boolean(accepted)) verdict = cr_code_same_output(got, want);
    if (verdict < 0)
        snprintf(detail, 160, "the answer of code_url has neither accepted nor status: %.*s",
                 (int)(num_bytes < 80 ? num_bytes : 80), body);
    else
        snprintf(detail, 160, "%s", verdict ? "" : status ? status : "not accepted");
    json_decref(root);
    return verdict;
}

void cri_call_judge(const cr_http_client *client, const cri_line *l, cri_case_end *out)
{
    const cr_http_call *call = &l->call;
    cr_err err = {0};
    int verdict;

    *out = (cri_case_end){.status = "passed"};
    if (cr_http_call_check(client, call, &err) != CR_OK) {
        out->status = err.status == CR_ETIMEOUT ? "late" : "error";
        snprintf(out->detail, sizeof out->detail, "%.159s", err.msg);
        return;
    }
    verdict = cr_code_read_answer(call->answer.data, call->answer.num_bytes,
                                  l->want.cases[l->at].want, out->detail);
    out->is_passed = verdict == 1;
    out->has_verdict = verdict >= 0;
    if (verdict != 1) out->status = verdict < 0 ? "error" : "wrong";
}
