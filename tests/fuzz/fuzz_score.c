/* fuzz_score.c -- the first byte chooses a rule, the rest is a line of `croll score`: a row and the response
 * of a model in training. The answer is one line of JSON and a verdict; any line is read as one. */
#include "actors/score_line.h"
#include "actors/scorer.h"
#include "tests/fuzz/mutator.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const cr_rule_args settings = {.deadline_s = 2, .reward_type = "soft", .length_coef = 0.01};
    size_t num = 0, n;
    double start = cr_now_s();
    cr_verdict verdict;
    cr_buf line = {0}, out = {0};
    json_t *json = NULL;
    cr_err err = {0};
    bool is_good;

    while (cr_rule_names[num])
        num++;
    if (size < 2) return 0;
    cr_buf_add(&line, data + 1, size - 1);
    cr_verdict_read(&line, &verdict);
    CR_CHECK(isfinite(verdict.score) && isfinite(verdict.reward), "score %g", verdict.score);
    is_good = cr_score_line(cr_rule_find(cr_rule_names[data[0] % num]), &settings, line.data,
                            line.num_bytes, 1, &out);
    CR_CHECK(cr_now_s() - start < 8, "%.1f s", cr_now_s() - start);
    n = --out.num_bytes;
    CR_CHECK(out.data[n] == '\n' && !memchr(out.data, '\n', n), "%s", out.data);
    CR_CHECK(cr_json_parse(out.data, n, "answer", &json, &err) == CR_OK, "%s", err.msg);
    cr_verdict_read(&out, &verdict);
    CR_CHECK(is_good == !json_object_get(json, "error"), "%s", out.data);
    CR_CHECK(is_good || strcmp(verdict.status, "error") == 0, "%s", out.data);
    json_decref(json);
    cr_buf_free(&line);
    cr_buf_free(&out);
    return 0;
}
