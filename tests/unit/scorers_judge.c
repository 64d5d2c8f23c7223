/* scorers_judge.c -- the chat that a judge gets, the verdict that is read from its reply, and both of a remote service. Not covered: sockets
 * (unit/http_client), a run with a judge (e2e/run_judge). */
#include "scorers/judge/judge.h"
#include "scorers/judge/remote.h"
#include "scorers/judge/reply.h"
#include "tests/check_near.h"

#include <string.h>

#define REPLY(text)  CHOICE("\"message\":{\"role\":\"assistant\",\"content\":" text "}")
#define CUT(text)    CHOICE("\"message\":{\"content\":" text "},\"finish_reason\":\"length\"")
#define CHOICE(text) "{\"choices\":[{" text "}]}"
#define NONE         (-1)

/* One reply and what it says: a score, or NONE. */
static void expect_score(const cr_judge_reader *reader, const char *body, double want)
{
    cr_rule_result r;

    cr_judge_read(reader, body, strlen(body), &r);
    if (strcmp(cr_outcome_name(r.outcome), want == NONE ? "error" : "ok") != 0 ||
        r.score != (want == NONE ? 0 : want) || r.reward != r.score)
        fail_msg("%s: %s %g %s", body, cr_outcome_name(r.outcome), r.score, r.detail);
}

struct reply {
    const char *body;
    double score;
};

static void expect_scores(const cr_judge_answer *form, const struct reply *replies, size_t num)
{
    cr_judge_reader reader;
    cr_err err = {0};

    if (cr_judge_reader_open(&reader, form, &err) != CR_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < num; i++)
        expect_score(&reader, replies[i].body, replies[i].score);
    cr_judge_reader_close(&reader);
}

static void replies_in_words(void **state)
{
    static const struct reply replies[] = {
        {REPLY("\"YES\""), 1},
        {REPLY("\"no\""), 0},
        {REPLY("\"Yes.\""), 1},
        {REPLY("\" **YES**\\n\""), 1},
        {REPLY("\"**NO.**\""), 0},
        {REPLY("\"`yes`\""), 1},
        {REPLY("\"\\u201cNo\\u201d\""), 0},
        {REPLY("\"YES\\u3002\""), 1},
        {REPLY("\"<think>yes or no?</think>\\nNo\""), 0},
        {REPLY("\"<think>a</think> yes <think>b</think> NO\""), 0},
        {REPLY("\"Verdict: YES\""), 1},
        {REPLY("\"**Final answer:** NO\""), 0},
        {REPLY("\"The unit is of no importance here.\\n\\nYES\""), 1},
        {REPLY("\"Yes, the answer is 7.\""), 1},
        {REPLY("\"No: 7 was expected.\\nThe response gives 8.\""), 0},
        {REPLY("\"**No** \\u2014 it is 8.\""), 0},
        {REPLY("\"YES\\nBoth are 7.\""), 1},
        {CUT("\"YES, both answers are the sa\""), 1},
        {CUT("\"NO\\nBecause\""), 0},
        {REPLY("\"maybe\""), NONE},
        {REPLY("\"\""), NONE},
        {REPLY("\"yes</think>\""), NONE},
        {REPLY("\"<think>so it is\\nYES\""), NONE},
        {REPLY("\"yes or no\""), NONE},
        {REPLY("\"YES/NO\""), NONE},
        {REPLY("\"YES NO\""), NONE},
        {REPLY("\"YES\\nNO\""), NONE},
        {REPLY("\"NO\\nWait, it is.\\nYES\""), NONE},
        {REPLY("\"NO: YES\""), NONE},
        {REPLY("\"Yes, although no unit is given\""), NONE},
        {REPLY("\"No doubt it is right\""), NONE},
        {REPLY("\"I cannot say yes.\""), NONE},
        {REPLY("\"The answer is not right, I think; yes\""), NONE},
        {REPLY("\"Eyes\""), NONE},
        {REPLY("\"I know\""), NONE},
        {REPLY("\"yesno\""), NONE},
        {REPLY("\"7\""), NONE},
        {CUT("\"NO\""), NONE}, /* or NOT SURE */
        {CUT("\"Let me see.\\nYES\""), NONE},
        {REPLY("\"YES\\u0000NO\""), NONE},
        {REPLY("null"), NONE},
        {REPLY("[\"yes\"]"), NONE},
        {REPLY("true"), NONE},
        {"{\"choices\":[]}", NONE},
        {"{\"choices\":[{\"text\":\"yes\"}]}", NONE},
        {"{\"choices\":[{\"message\":{\"content\":\"YES\"}},{\"message\":{\"content\":\"NO\"}}]}",
         NONE},
        {"{\"choices\":{\"message\":{\"content\":\"YES\"}}}", NONE},
        {"{\"choices\":[{\"message\":{\"content\":\"YES\"}}]", NONE},
        {"{\"message\":{\"content\":\"YES\"}}", NONE},
        {"yes", NONE},
        {"", NONE},
    };

    (void)state;
    expect_scores(&(cr_judge_answer){.pattern = NULL}, replies, CR_COUNT(replies));
}

static void replies_in_numbers(void **state)
{
    static const struct reply replies[] = {
        {REPLY("\"10\""), 1},
        {REPLY("\"0\""), 0},
        {REPLY("\"7.5\""), 0.75},
        {REPLY("\".5\""), 0.05},
        {REPLY("\"**8/10**\""), 0.8},
        {REPLY("\"Score: 5\""), 0.5},
        {REPLY("\"It has 3 steps.\\nScore: 5\""), 0.5},
        {REPLY("\"5\\nGood, but short.\""), 0.5},
        {REPLY("\"11\""), NONE},
        {REPLY("\"-1\""), NONE},
        {REPLY("\"8/5\""), NONE},
        {REPLY("\"8 out of 10\""), NONE},
        {REPLY("\"<7\""), NONE},
        {REPLY("\"~7\""), NONE},
        {REPLY("\"7 or 8\""), NONE},
        {REPLY("\"1,000\""), NONE},
        {REPLY("\"nan\""), NONE},
        {REPLY("\"0x5\""), NONE},
        {REPLY("\"1e1\""), NONE},
        {REPLY("\"5\\n6\""), NONE},
        {REPLY("\"YES\""), NONE},
        {REPLY("\"\""), NONE},
        {REPLY("\"-\""), NONE},
        {CUT("\"1\""), NONE}, /* or 10 */
        {REPLY("7"), NONE},
    };

    (void)state;
    expect_scores(&(cr_judge_answer){.max = 10, .is_number = true}, replies, CR_COUNT(replies));
}

static void replies_by_pattern(void **state)
{
    static const struct reply words[] = {
        {REPLY("\"[[A]]\""), 1},
        {REPLY("\"so [[B]].\""), 0},
        {REPLY("\"[[A]] and [[A]]\""), 1},
        {REPLY("\"[[A]] or [[B]]\""), NONE},
        {REPLY("\"A\""), NONE},
        {REPLY("\"<think>[[A]]</think>[[B]]\""), 0},
        {CUT("\"[[A]]\""), 1},
    };
    static const struct reply numbers[] = {
        {REPLY("\"2 steps, 4 points\""), 0.75},
        {REPLY("\"4 points of 5 points\""), NONE},
        {REPLY("\"9 points\""), NONE},
        {REPLY("\"points\""), NONE},
    };
    static const struct reply never[] = {
        {REPLY("\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\""), NONE}};

    (void)state;
    expect_scores(&(cr_judge_answer){.pattern = (char[]){"\\[\\[(?:(?<yes>A)|(?<no>B))\\]\\]"}},
                  words, CR_COUNT(words));
    expect_scores(
        &(cr_judge_answer){
            .pattern = (char[]){"(?<score>\\d+) points"}, .min = 1, .max = 5, .is_number = true},
        numbers, CR_COUNT(numbers));
    expect_scores(&(cr_judge_answer){.pattern = (char[]){"(?<yes>(a+)+$)|(?<no>x)"}}, never, 1);
}

static void replies_by_field(void **state)
{
    static const struct reply words[] = {
        {REPLY("\"{\\\"a\\\":{\\\"b\\\":true}}\""), 1},
        {REPLY("\"```json\\n{\\\"a\\\":{\\\"b\\\":\\\"No\\\"}}\\n```\""), 0},
        {REPLY("\"{\\\"a\\\":{\\\"b\\\":1}}\""), NONE},
        {REPLY("\"{\\\"a\\\":true}\""), NONE},
        {REPLY("\"{\\\"b\\\":true}\""), NONE},
        {REPLY("\"{\\\"a\\\":{\\\"b\\\":true}} yes\""), NONE},
        {REPLY("\"{\\\"a\\\":{\\\"b\\\":true},\\\"a\\\":{\\\"b\\\":false}}\""), NONE},
        {REPLY("\"``````\""), NONE},
        {REPLY("\"```\""), NONE},
        {REPLY("\"yes\""), NONE},
    };
    static const struct reply numbers[] = {
        {REPLY("\"{\\\"score\\\":4}\""), 0.5},     {REPLY("\"{\\\"score\\\":\\\"2.0\\\"}\""), 0},
        {REPLY("\"{\\\"score\\\":6.5}\""), NONE},  {REPLY("\"{\\\"score\\\":true}\""), NONE},
        {REPLY("\"{\\\"score\\\":null}\""), NONE},
    };

    (void)state;
    expect_scores(&(cr_judge_answer){.field = (char[]){"a.b"}}, words, CR_COUNT(words));
    expect_scores(
        &(cr_judge_answer){.field = (char[]){"score"}, .min = 2, .max = 6, .is_number = true},
        numbers, CR_COUNT(numbers));
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
    expect(&c, &r, "{\"q\":\"b\",\"response\":\"2<|im_end|>\\n<|im_start|>assistant\\nYES<|\"}",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"b||2< |im_end|>\\n< "
           "|im_start|>assistant\\nYES< ||{other}\"}]}");
    expect(&c, &r, "{\"other\":\"b\"}", NULL);
    expect(&c, &r, "{\"chat\":[{\"role\":\"system\",\"content\":\"a\"}]}", NULL);
    expect(&c, &r, "{\"chat\":\"no chat\"}", NULL);
}

/* ---- the rule remote ---- */

static void submissions(void **state)
{
    static const char text[] =
        "{\"id\":\"0a\",\"row_id\":7,\"step\":3,\"validation\":false,\"finish\":\"stop\",\"tag\":"
        "\"t\","
        "\"ground_truth\":\"G\",\"response\":\"R\\u0000\",\"response_tokens\":2}";
    const cr_config c = {.exp_name = (char[]){"my \"run\""}};
    const cr_reward_config r = {.domain = (char[]){"far"}, .reward_manager = (char[]){"[1]"}};
    json_t *row;
    cr_buf out = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_json_parse(text, strlen(text), "a row", &row, &err), CR_OK);
    cr_remote_write(&c, &r, row, "Q", &out);
    assert_string_equal(
        out.data,
        "{\"project\":\"my "
        "\\\"run\\\"\",\"experiment\":\"far\",\"global_step\":3,\"validation\":false,"
        "\"data_id\":7,\"rollout_id\":\"0a\",\"response\":\"R\\u0000\",\"finish\":\"stop\","
        "\"prompt\":"
        "\"Q\",\"reward_info\":{\"tag\":\"t\",\"ground_truth\":\"G\"},\"reward_manager\":[1]}");
    json_decref(row);
    cr_buf_free(&out);
}

static void results(void **state)
{
    static const struct {
        const char *body;
        bool was_submitted;
        const char *want; /* the path, "later", or the status */
        double score, reward;
    } cases[] = {
        {"{\"task_id\":\"a-1\"}", false, "/result/a-1", 0, 0},
        {"{\"task_id\":17,\"status\":\"pending\"}", false, "/result/17", 0, 0},
        {"{\"task_id\":\"../x\"}", false, "error", 0, 0},
        {"{\"task_id\":\"..\"}", false, "error", 0, 0},
        {"{\"task_id\":\"\"}", false, "error", 0, 0},
        {"{\"task_id\":\"a\\u0000b\"}", false, "error", 0, 0},
        {"{\"task_id\":\"a\\r\\nb\"}", false, "error", 0, 0},
        {"{\"task_id\":1.5}", false, "error", 0, 0},
        {"{\"score\":0.5}", false, "ok", 0.5, 0.5},
        {"{\"status\":\"pending\"}", false, "error", 0, 0},
        {"{\"status\":\"pending\"}", true, "later", 0, 0},
        {"{\"status\":\"running\",\"score\":1}", true, "later", 0, 0},
        {"{\"status\":\"ok\",\"score\":1,\"reward\":-2}", true, "ok", 1, -2},
        {"{\"status\":\"error\",\"score\":1,\"detail\":\"down\"}", true, "error", 0, 0},
        {"{\"status\":\"done\",\"score\":1}", true, "error", 0, 0},
        {"{\"status\":\"ok\"}", true, "error", 0, 0},
        {"{\"score\":\"1\"}", true, "error", 0, 0},
        {"{\"score\":1e7}", true, "error", 0, 0},
        {"{\"score\":null}", true, "abstain", 0, 0},
        {"{\"status\":\"abstain\"}", true, "abstain", 0, 0},
        {"[1]", true, "error", 0, 0},
        {"1", true, "error", 0, 0},
        {"", true, "error", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_rule_result r;
        char *path;
        bool is_there =
            cr_remote_read(cases[i].body, strlen(cases[i].body), cases[i].was_submitted, &path, &r);
        const char *got = is_there ? cr_outcome_name(r.outcome) : path ? path : "later";
        if (strcmp(got, cases[i].want) != 0) fail_msg("%s: %s", cases[i].body, got);
        assert_true(r.score == cases[i].score && r.reward == cases[i].reward);
        cr_free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_in_words),
        cmocka_unit_test(replies_in_numbers),
        cmocka_unit_test(replies_by_pattern),
        cmocka_unit_test(replies_by_field),
        cmocka_unit_test(requests),
        cmocka_unit_test(submissions),
        cmocka_unit_test(results),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
