/* rewards_judge.c -- the chat that a judge gets, and the verdict that is read from its reply. Not covered: sockets
 * (unit/http_client), a run with a judge (e2e/run_judge). */
#include "rewards/judge.h"
#include "tests/check_near.h"

#include <string.h>

#define REPLY(text) "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":" text "}}]}"

static void replies(void **state)
{
    static const struct {
        const char *body, *status;
        double score;
    } cases[] = {
        {REPLY("\"YES\""), "ok", 1},
        {REPLY("\"no.\""), "ok", 0},
        {REPLY("\"Yes, although no unit is given\""), "ok", 1},
        {REPLY("\"<think>yes or no?</think>\\nNo\""), "ok", 0},
        {REPLY("\"<think>a</think> yes <think>b</think> NO\""), "ok", 0},
        {REPLY("\"maybe\""), "error", 0},
        {REPLY("\"\""), "error", 0},
        {REPLY("\"yes</think>\""), "error", 0},
        {REPLY("null"), "error", 0},
        {REPLY("[\"yes\"]"), "error", 0},
        {"{\"choices\":[]}", "error", 0},
        {"{\"choices\":[{\"text\":\"yes\"}]}", "error", 0},
        {"yes", "error", 0},
        {"", "error", 0},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_rule_result r;
        cr_judge_read(cases[i].body, strlen(cases[i].body), &r);
        if (strcmp(r.status, cases[i].status) != 0)
            fail_msg("%s: %s %s", cases[i].body, r.status, r.detail);
        assert_true(r.score == cases[i].score && r.reward == cases[i].score);
    }
}

static char *write_request(const cr_config *c, const cr_reward_config *r, const char *text)
{
    json_t *row;
    cr_buf out = {0};
    cr_err err = {0};

    assert_int_equal(cr_json_parse(text, strlen(text), "a row", &row, &err), CR_OK);
    if (cr_judge_write(c, r, row, &out, &err) != CR_OK) assert_null(out.data);
    json_decref(row);
    return out.data;
}

static void expect(const cr_config *c, const cr_reward_config *r, const char *row, const char *want)
{
    char *got = write_request(c, r, row);

    if (!want != !got || (want && strcmp(want, got) != 0))
        fail_msg("%s instead of %s", got ? got : "none", want ? want : "none");
    cr_free(got);
}

static void requests(void **state)
{
    cr_config c = {.train.data.messages = (char[]){"chat"},
                   .validation.data.prompt = (char[]){"q"}};
    cr_reward_config r = {.judge_fields = (char[]){"{\"temperature\":0}"},
                          .judge.model = (char[]){"m"},
                          .judge_prompt = (char[]){"{question}|{reference}|{response}|{other}"}};
    char *usual;

    (void)state;
    expect(&c, &r,
           "{\"chat\":\"[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"3+4\\\"},{\\\"role\\\":"
           "\\\"assistant\\\",\\\"content\\\":\\\"?\\\"}]\",\"ground_truth\":\"7\",\"response\":"
           "\"{question} \\\"8\\\"\"}",
           "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"3+4|7|{question} "
           "\\\"8\\\"|{other}\"}],\"temperature\":0}");
    r.judge_fields = (char[]){"{}"};
    r.judge.model = NULL;
    expect(&c, &r,
           "{\"chat\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\","
           "\"text\":\"a\"}]}],\"ground_truth\":\"\",\"response\":\"\"}",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"a|||{other}\"}]}");
    expect(&c, &r, "{\"q\":\"b\",\"ground_truth\":\"1\",\"response\":\"2\"}",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"b|1|2|{other}\"}]}");
    expect(&c, &r, "{\"other\":\"b\"}", NULL);
    expect(&c, &r, "{\"chat\":[{\"role\":\"system\",\"content\":\"a\"}]}", NULL);
    expect(&c, &r, "{\"chat\":\"no chat\"}", NULL);
    r.judge_prompt = NULL;
    usual = write_request(&c, &r, "{\"q\":\"QQ\",\"ground_truth\":\"GG\",\"response\":\"RR\"}");
    assert_non_null(strstr(usual, "QQ"));
    assert_non_null(strstr(usual, "GG"));
    assert_non_null(strstr(usual, "RR"));
    assert_null(strchr(strchr(usual, '[') + 2, '{'));
    cr_free(usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies),
        cmocka_unit_test(requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
