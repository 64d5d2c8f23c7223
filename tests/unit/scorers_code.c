/* scorers_code.c -- what a row of a code domain asks for, the program of a response, and how outputs and values are compared; answers of a
 * service. Not covered: running them (e2e/score_code_*, e2e/run_code). */
#include "rewards/code/cases.h"
#include "scorers/code/code.h"
#include "tests/check_near.h"

#include <string.h>

static cr_status read_row(const char *text, cr_code_row *out, cr_err *err)
{
    json_t *row = NULL;
    cr_status status;

    assert_int_equal(cr_json_parse(text, strlen(text), NULL, &row, err), CR_OK);
    status = cr_code_row_read(row, out, err);
    json_decref(row);
    return status;
}

static void rows_say_how_they_are_tested(void **state)
{
    static const struct {
        const char *row;
        cr_case_kind kind;
        size_t num;
        const char *input, *want, *test, *entry;
    } rows[] = {
        {"{\"case_type\":\"assert\",\"test_cases\":\"[{\\\"assert_code\\\":\\\"assert f()\\\"}]\"}",
         CR_CASE_TEST, 1, NULL, NULL, "assert f()", NULL},
        {"{\"test_cases\":[{\"assert_code\":[\"a\",\"b\"]},{\"assert_code\":\"c\"}]}", CR_CASE_TEST,
         2, NULL, NULL, "a\nb", NULL},
        {"{\"case_type\":\"pytest\",\"test_cases\":[\"def test_f(): pass\"]}", CR_CASE_TEST, 1,
         NULL, NULL, "def test_f(): pass", NULL},
        {"{\"case_type\":\"check_based\",\"test_cases\":[{\"assert_code\":\"x\",\"entry_point\":"
         "\"f\","
         "\"import_prefix\":\"import y\"},{}]}",
         CR_CASE_TEST, 1, NULL, NULL, "import y\nx", "f"},
        {"{\"case_type\":\"text\",\"test_cases\":[{\"assert_code\":\"{response}\"}]}", CR_CASE_TEXT,
         1, NULL, NULL, "{response}", NULL},
        {"{\"case_type\":\"input\",\"test_cases\":[{\"stdin\":\"1\",\"expected_stdout\":\"2\"}]}",
         CR_CASE_IO, 1, "1", "2", NULL, NULL},
        {"{\"test_cases\":[{\"input\":[\"1\",\"2\"],\"output\":7}]}", CR_CASE_IO, 1, "1\n2", "7",
         NULL, NULL},
        {"{\"case_type\":\"call_based\",\"test_case_function\":\"f\",\"test_cases\":[{\"stdin\":\"["
         "1]\","
         "\"expected_stdout\":\"2\"}]}",
         CR_CASE_CALL, 1, "[1]", "2", NULL, NULL},
        {"{\"test_cases\":{\"inputs\":[[1,[2]]],\"outputs\":[[3]],\"fn_name\":\"f\"}}",
         CR_CASE_CALL, 1, "1\n[2]\n", "[3]", NULL, NULL},
        {"{\"test_cases\":{\"inputs\":[\"1 2\"],\"outputs\":[\"3\"]}}", CR_CASE_IO, 1, "1 2", "3",
         NULL, NULL},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(rows); i++) {
        cr_code_row row;
        cr_err err = {0};
        if (read_row(rows[i].row, &row, &err) != CR_OK) fail_msg("row %zu: %s", i, err.msg);
        assert_int_equal(row.kind, rows[i].kind);
        assert_int_equal(row.num_cases, rows[i].num);
        if (rows[i].input) assert_string_equal(row.cases[0].input, rows[i].input);
        if (rows[i].want) assert_string_equal(row.cases[0].want, rows[i].want);
        if (rows[i].test) assert_string_equal(row.cases[0].test, rows[i].test);
        assert_int_equal(row.cases[0].entry != NULL, rows[i].entry != NULL);
        if (rows[i].entry) assert_string_equal(row.cases[0].entry, rows[i].entry);
        cr_code_row_free(&row);
    }
}

static void rows_that_cannot_be_tested_are_refused(void **state)
{
    static const struct {
        const char *row, *says;
    } rows[] = {
        {"{}", "test_cases is missing"},
        {"{\"test_cases\":null}", "test_cases is missing"},
        {"{\"test_cases\":\"\"}", "not valid JSON"},
        {"{\"test_cases\":\"[{]\"}", "not valid JSON"},
        {"{\"test_cases\":[]}", "not a list of 1 to"},
        {"{\"test_cases\":7}", "not a list of 1 to"},
        {"{\"test_cases\":[{}]}", "case 1 of test_cases has no expected_stdout"},
        {"{\"case_type\":\"assert\",\"test_cases\":[{\"assert_code\":\" \\n\"}]}",
         "has no assert_code"},
        {"{\"case_type\":\"assert\",\"test_cases\":[{\"assert_code\":[1]}]}", "has no assert_code"},
        {"{\"case_type\":\"check_based\",\"test_cases\":[{\"assert_code\":\"x\"}]}",
         "no entry_point"},
        {"{\"case_type\":\"call_based\",\"test_cases\":[{\"stdin\":\"\",\"expected_stdout\":\"\"}]"
         "}",
         "test_case_function is empty"},
        {"{\"case_type\":\"inputs\",\"test_cases\":[{}]}", "case_type is 'inputs'"},
        {"{\"test_cases\":{\"inputs\":[1],\"outputs\":[]}}", "1 inputs and 0 outputs"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(rows); i++) {
        cr_code_row row;
        cr_err err = {0};
        assert_int_equal(read_row(rows[i].row, &row, &err), CR_EFORMAT);
        if (!strstr(err.msg, rows[i].says)) fail_msg("row %zu: %s", i, err.msg);
        cr_code_row_free(&row);
    }
}

static void programs_are_found_in_responses(void **state)
{
    static const struct {
        const char *response, *code, *language;
    } cases[] = {
        {"x = 1", "x = 1", ""},
        {"Here:\n```python\nx = 1\n```\nDone", "x = 1\n", "python"},
        {"```\ninput\n```\n```py\ndef f(): pass\n```\n```py\ndef g(): pass\n```", "def f(): pass\n",
         "py"},
        {"```cpp\nint x;\n```\n```\ny\n```", "int x;\n", "cpp"},
        {"<think>```python\ndef wrong(): pass\n```</think>\n```python\nx\n```", "x\n", "python"},
        {"a<|begin_of_solution|>b<|begin_of_solution|>c<|end_of_solution|>", "c", ""},
        {"```python\ndef f():\n    return 1", "def f():\n    return 1", "python"},
        {"x = 1<|im_end|>", "x = 1", ""},
        {"", NULL, ""},
        {"``````", NULL, ""},
        {"```", NULL, ""},
        {"```python", NULL, ""},
        {" \n</think>\n ", NULL, ""},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        size_t n = strlen(cases[i].response);
        char *code = cr_code_of_response(cases[i].response, n), language[16];
        if (!cases[i].code != !code) fail_msg("response %zu: %s", i, code ? code : "nothing");
        if (code) assert_string_equal(code, cases[i].code);
        cr_code_language(cases[i].response, n, language);
        if (code) assert_string_equal(language, cases[i].language);
        cr_free(code);
    }
}

static void outputs_are_compared(void **state)
{
    static const struct {
        const char *got, *want;
        bool is_same;
    } cases[] = {
        {"1\n", "1", true},
        {"1 \n2\t\n\n", "1\n2", true},
        {"\n\n1", "1", true},
        {"1  2", "1 2", true},
        {"1\n2", "1 2", false},
        {"2 1", "1 2", false},
        {"1 1 2", "1 2", false},
        {"1\n\n2", "1\n2", false},
        {"", "\n", true},
        {"", "0", false},
        {"0.1", "0.10000000001", true},
        {"0.5", "0.51", false},
        {"1000000", "1000001", false},
        {"3", "3.0", true},
        {"1e3", "1000.0", true},
        {"nan", "nan", true},
        {"inf", "-inf", false},
        {"0x10", "16.0", false},
        {"YES", "Yes", false},
        {"-0.0", "0.0", true},
        {"1234567890123456789", "1234567890123456788", false},
        {"12345678901234567890.0", "12345678901234567891", false},
        {"12345678901234567168.0", "12345678901234567168", true},
        {"1764.0000000001", "1764", false},
        {"1764.00000000000000001", "1764", true},
        {"1764.0000000001", "1764.0", true},
        {"0.0000001", "0", false},
        {"-0.0", "0", true},
        {"1e3", "+01000", true},
        {"-5.0", "5", false},
        {"inf", "1", false},
        {"-17", "-17.0", true},
        {"a\r\nb\r\n", "a\nb", true},
        {" 1", "1", true},
        {"1 2", "1", false},
        {"nan", "1.0", false},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        if (cr_code_same_output(cases[i].got, cases[i].want) != cases[i].is_same ||
            cr_code_same_output(cases[i].want, cases[i].got) != cases[i].is_same)
            fail_msg("output %zu: '%s' and '%s'", i, cases[i].got, cases[i].want);
    }
}

static void values_are_compared(void **state)
{
    static const struct {
        const char *got, *want;
        bool is_same;
    } cases[] = {
        {"[1, 2]", "[1,2]", true},
        {"[2, 1]", "[1, 2]", false},
        {"[1]", "[1, 2]", false},
        {"3", "3.0", true},
        {"1764.0000000001", "1764", false},
        {"[-1764]", "[-1764.0]", true},
        {"9007199254740993", "9007199254740992.0", false},
        {"0", "-0.0", true},
        {"0", "1e-13", false},
        {"0.30000000000000004", "0.3", true},
        {"0.3001", "0.3", false},
        {"{\"a\": 1, \"b\": [null]}", "{\"b\":[null],\"a\":1}", true},
        {"{\"a\": 1}", "{\"a\":1,\"b\":2}", false},
        {"\"x\"", "x", true},
        {"\"x\"", "\"x\"", true},
        {"\"1\"", "1", false},
        {"true", "1", false},
        {"true", "true", true},
        {"1267650600228229401496703205376", "1267650600228229401496703205376", true},
        {"1267650600228229401496703205376", "1267650600228229401496703205377", false},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        if (cr_code_same_value(cases[i].got, cases[i].want) != cases[i].is_same)
            fail_msg("value %zu: %s and %s", i, cases[i].got, cases[i].want);
}

static void answers_of_a_service_are_read(void **state)
{
    static const struct {
        const char *body;
        int verdict;
    } cases[] = {
        {"{\"accepted\": true}", 1},
        {"{\"accepted\": false, \"status\": \"Success\"}", 0},
        {"{\"status\": \"Success\", \"run_result\": {\"stdout\": \"7\\n\"}}", 1},
        {"{\"status\": \"Success\", \"run_result\": {\"stdout\": \"8\"}}", 0},
        {"{\"status\": \"Success\"}", 1},
        {"{\"status\": \"Failed\", \"stdout\": \"7\"}", 0},
        {"{\"status\": \"SandboxError\"}", -1},
        {"{\"accepted\": 1}", -1},
        {"{}", -1},
        {"[]", -1},
        {"<html>", -1},
        {"", -1},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char detail[160];
        int verdict = cr_code_read_answer(cases[i].body, strlen(cases[i].body), "7", detail);
        if (verdict != cases[i].verdict) fail_msg("answer %zu: %d (%s)", i, verdict, detail);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_say_how_they_are_tested),
        cmocka_unit_test(rows_that_cannot_be_tested_are_refused),
        cmocka_unit_test(programs_are_found_in_responses),
        cmocka_unit_test(outputs_are_compared),
        cmocka_unit_test(values_are_compared),
        cmocka_unit_test(answers_of_a_service_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
