/* fuzz_score.c -- the first byte chooses a rule, the rest is a line of `croll score`: a row and the response
 * of a model in training. The answer is one line of JSON and a verdict; any line is read as one. */
#include "configs/configs.h"
#include "scorers/score_line.h"
#include "scorers/scorer.h"
#include "tests/fuzz/mutator.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A line as a program's answer to a response of three tokens: what is taken is within its bounds. */
static void read_answer(const cr_buf *line)
{
    const char *id;
    json_t *root;
    cr_verdict v;
    cr_err err = {0};

    if (cr_answer_parse(line->data, line->num_bytes, &root, &id, &err) != CR_OK) return;
    cr_verdict_read(root, 3, &v);
    CR_CHECK(fabs(v.score) <= CR_SCORE_LIMIT && fabs(v.reward) <= CR_SCORE_LIMIT, "%g", v.score);
    CR_CHECK(v.outcome > CR_OUTCOME_NONE && v.outcome < CR_NUM_OUTCOMES, "outcome %d", v.outcome);
    for (size_t i = 0; v.token_rewards && i < 3; i++)
        CR_CHECK(fabsf(v.token_rewards[i]) <= (float)CR_SCORE_LIMIT, "%g", v.token_rewards[i]);
    cr_verdict_free(&v);
    json_decref(root);
}

static char think[] = "think", *tags[] = {think, think};
static cr_reward_terms terms = {.format_tags = tags,
                                .overlong_tokens = 7,
                                .max_response_tokens = 30,
                                .overlong_factor = 1,
                                .repetition_n_grams = 2,
                                .repetition_max_penalty = -1};
static const cr_rule_args settings = {
    .deadline_s = 2, .reward_type = "soft", .length_coef = 0.01, .terms = &terms};

/* The same line in other forms: the verdict is the same, and a paragraph has no character that a terminal obeys. */
static void check_same(const uint8_t *data, size_t size, const json_t *first)
{
    static const char *const members[] = {"score", "reward", "status", "detail"};
    const cr_score_form other = data[0] < 128 ? CR_SCORE_PLAIN : CR_SCORE_EXPLAINED;
    const bool is_late =
        strcmp(json_string_value(json_object_get(first, "status")), "timeout") == 0;
    cr_buf line = {0}, out = {0};
    json_t *json = NULL;
    cr_err err = {0};
    size_t num = 0;

    while (cr_rule_names[num])
        num++;
    for (int i = 0; i < 2; i++) {
        cr_buf_clear(&line);
        cr_buf_add(&line, data + 1, size - 1);
        cr_score_line(cr_rule_find(cr_rule_names[data[0] % num]), &settings,
                      i ? CR_SCORE_PARAGRAPH : other, line.data, line.num_bytes, 1, &out);
        for (size_t k = 0; i && k < out.num_bytes; k++)
            CR_CHECK((unsigned char)out.data[k] >= 0x20 || out.data[k] == '\n', "%s", out.data);
    }
    cr_buf_clear(&line);
    cr_buf_add(&line, data + 1, size - 1);
    cr_score_line(cr_rule_find(cr_rule_names[data[0] % num]), &settings, other, line.data,
                  line.num_bytes, 1, &out);
    CR_CHECK(cr_json_parse(out.data, out.num_bytes - 1, "answer", &json, &err) == CR_OK, "%s",
             err.msg);
    for (size_t i = 0; i < CR_COUNT(members) && !is_late; i++)
        CR_CHECK(json_equal(json_object_get(json, members[i]), json_object_get(first, members[i])),
                 "%s", out.data);
    json_decref(json);
    cr_buf_free(&line);
    cr_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
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
    terms.num_format_tags = data[0] / 64 % 3; /* 0: ROLL's pattern */
    cr_buf_add(&line, data + 1, size - 1);
    read_answer(&line);
    is_good = cr_score_line(cr_rule_find(cr_rule_names[data[0] % num]), &settings,
                            data[0] < 128 ? CR_SCORE_EXPLAINED : CR_SCORE_PLAIN, line.data,
                            line.num_bytes, 1, &out);
    CR_CHECK(cr_now_s() - start < 8, "%.1f s", cr_now_s() - start);
    n = --out.num_bytes;
    CR_CHECK(out.data[n] == '\n' && !memchr(out.data, '\n', n), "%s", out.data);
    CR_CHECK(cr_json_parse(out.data, n, "answer", &json, &err) == CR_OK, "%s", err.msg);
    cr_verdict_read(json, 0, &verdict);
    CR_CHECK(!verdict.is_fault, "%s", verdict.detail);
    CR_CHECK(is_good == !json_object_get(json, "error"), "%s", out.data);
    CR_CHECK(is_good || verdict.outcome == CR_OUTCOME_ERROR, "%s", out.data);
    CR_CHECK(data[0] < 128 || !json_object_get(json, "explain"), "%s", out.data);
    if (is_good) check_same(data, size, json);
    cr_verdict_free(&verdict);
    json_decref(json);
    cr_buf_free(&line);
    cr_buf_free(&out);
    return 0;
}
