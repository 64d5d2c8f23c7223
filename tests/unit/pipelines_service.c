/* pipelines_service.c -- what a service answers to a run's request for log-probs, right and wrong in one thing each: any
 * number that is taken is the one that was sent. Not covered: sockets (unit/http_client), a run (e2e/run_service). */
#include "pipelines/service/service.h"
#include "tests/check_near.h"

#include <string.h>

#define W                   "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define CROLL(w)            "\"croll\":{\"weights_sha256\":\"" w "\"}"
#define SCORES(start, text) "\"croll_scores\":{\"start\":" start ",\"log_probs\":\"" text "\"}"
/* -1, -0.5, -2: and of three bytes less, one more, .. */
#define THREE           "AACAvwAAAL8AAADA"
#define TWO             "AACAvwAAAL8="
#define ONE             "AAAAwA=="
#define FIRST           "{\"index\":0," SCORES("2", THREE) "}"
#define LAST            "{\"index\":1," SCORES("2", ONE) "}"
#define ANSWER(choices) "{" CROLL(W) ",\"choices\":[" choices "]}"

/* The first prompt is wanted from place 3 on, the second from 2 on. */
static const size_t first[] = {3, 2}, num_each[] = {2, 1};
static const cr_role_service_want want = {W, 2, 2, first, num_each};

static void numbers_are_those_sent(void **state)
{
    static const char *const orders[] = {ANSWER(FIRST "," LAST), ANSWER(LAST "," FIRST)};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(orders); i++) {
        float out[3] = {0};
        cr_err err = {0};
        if (cr_role_service_read_answer(orders[i], strlen(orders[i]), &want, NULL, out, &err) !=
            CR_OK)
            fail_msg("%s", err.msg);
        assert_true(out[0] == -0.5f && out[1] == -2 && out[2] == -2);
    }
}

static void wrong_answers_are_errors(void **state)
{
    static const char *const wrong[] = {
        "",
        "[]",
        ANSWER(FIRST),
        ANSWER(FIRST "," FIRST),
        ANSWER(FIRST "," LAST "," LAST),
        ANSWER(FIRST ",{\"index\":2," SCORES("2", ONE) "}"),
        ANSWER(FIRST ",{\"index\":-1," SCORES("2", ONE) "}"),
        ANSWER(FIRST ",{\"index\":1}"),
        ANSWER(FIRST ",1"),
        ANSWER(FIRST ",{\"index\":1," SCORES("1", ONE) "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", TWO) "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "") "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AAAAwA=") "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AAAAwAA=") "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AAAAwA=A") "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AAAA*A==") "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "=AAAwA==") "}"),
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AADAfw==") "}"), /* NaN */
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AACA/w==") "}"), /* -inf */
        ANSWER(FIRST ",{\"index\":1," SCORES("2", "AACAPw==") "}"), /* 1 */
        "{\"choices\":[" FIRST "," LAST "]}",
        "{" CROLL("00") ",\"choices\":[" FIRST "," LAST "]}"};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        float out[3] = {0};
        cr_err err = {0};
        if (cr_role_service_read_answer(wrong[i], strlen(wrong[i]), &want, NULL, out, &err) ==
            CR_OK)
            fail_msg("taken: %s", wrong[i]);
    }
}

/* Two likeliest ids a place, 1 and 0, of the second prompt from place 1 on: the first place is skipped. */
#define LIKELIEST(ids)                                                     \
    ANSWER("{\"index\":0,\"croll_scores\":{\"start\":1,\"top_log_probs\":" \
           "\"AACAvwAAAL8AAADAAACAvw==\",\"top_ids\":\"" ids "\"}}")

static void likeliest_ids(void **state)
{
    static const size_t second = 2, one = 1;
    static const cr_role_service_want top = {W, 1, 1, &second, &one, 2, 3};
    static const struct {
        const char *body;
        bool is_taken;
    } cases[] = {{LIKELIEST("AQAAAAAAAAACAAAAAQAAAA=="), true}, /* 1 0 2 1 */
                 {LIKELIEST("AQAAAAAAAAADAAAAAQAAAA=="), false} /* 1 0 3 1: outside */,
                 {LIKELIEST("AQAAAAAAAAABAAAAAQAAAA=="), false} /* 1 0 1 1: twice */,
                 {LIKELIEST("AQAAAAAAAAACAAAA"), false},
                 {ANSWER(FIRST), false}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        float out[2] = {0};
        int32_t ids[2] = {0};
        cr_err err = {0};
        bool is_taken = cr_role_service_read_answer(cases[i].body, strlen(cases[i].body), &top, ids,
                                                    out, &err) == CR_OK;
        if (is_taken != cases[i].is_taken) fail_msg("%s: %s", cases[i].body, err.msg);
        if (is_taken) assert_true(ids[0] == 2 && ids[1] == 1 && out[0] == -2 && out[1] == -1);
    }
}

#define MODEL(name, more)                                                                          \
    "{\"id\":\"" name "\",\"max_model_len\":9,\"croll\":{\"dtype\":\"fp32\",\"vocab_size\":7" more \
    "}}"
#define BOTH ",\"weights_sha256\":\"" W "\",\"tokenizer_sha256\":\"" W "\""

static void identities(void **state)
{
    static const struct {
        const char *body, *model, *want; /* NULL: refused */
    } cases[] = {{"{\"data\":[" MODEL("a", BOTH) "," MODEL("b", BOTH) "]}", NULL, "a"},
                 {"{\"data\":[" MODEL("a", "") "," MODEL("b", BOTH) "]}", "b", "b"},
                 {"{\"data\":[" MODEL("a", BOTH) "]}", "b", NULL},
                 {"{\"data\":[{\"id\":\"a\",\"max_model_len\":9}]}", NULL, NULL},
                 {"{\"data\":[" MODEL("a", ",\"weights_sha256\":\"" W "\"") "]}", NULL, NULL},
                 {"{\"data\":[" MODEL("a", ",\"weights_sha256\":\"" W "0\"") "]}", NULL, NULL},
                 {"{\"data\":[]}", NULL, NULL},
                 {"{\"data\":{}}", "a", NULL},
                 {"[]", NULL, NULL},
                 {"", NULL, NULL}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_role_service_identity id;
        cr_err err = {0};
        bool is_taken = cr_role_service_read_identity(cases[i].body, strlen(cases[i].body),
                                                      cases[i].model, &id, &err) == CR_OK;
        if (is_taken != (cases[i].want != NULL)) fail_msg("%s: %s", cases[i].body, err.msg);
        if (!is_taken) continue;
        assert_string_equal(id.model, cases[i].want);
        assert_string_equal(id.weights, W);
        assert_int_equal(id.max_model_len, 9);
        assert_int_equal(id.vocab_size, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_sent),
        cmocka_unit_test(wrong_answers_are_errors),
        cmocka_unit_test(likeliest_ids),
        cmocka_unit_test(identities),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
