/* base_json.c -- integers of any size: as reals, exactly, or refused.
 */
#include "base/json.h"
#include "tests/check_near.h"

#include <string.h>

static json_t *parse(const char *text, bool are_exact)
{
    json_t *out;
    cr_err err = {0};

    if (are_exact ? cr_json_parse_integers(text, strlen(text), "x", CR_JSON_EXACT, &out, &err)
                  : cr_json_parse(text, strlen(text), "x", &out, &err))
        fail_msg("%s", err.msg);
    return out;
}

/* What Transformers writes where no length is known. */
static void large_integers_are_reals(void **state)
{
    json_t *all = parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": [3,"
                        "9223372036854775807,-9223372036854775809], \"x\": 1.5e1, \"s\": "
                        "\"a\\\"99999999999999999999\"}",
                        false);
    const json_t *n = json_object_get(all, "n");

    (void)state;
    assert_true(json_is_real(json_object_get(all, "model_max_length")));
    check_near(json_number_value(json_object_get(all, "model_max_length")) / 1e30, 1, 1e-15);
    assert_int_equal(json_integer_value(json_array_get(n, 0)), 3);
    assert_true(json_integer_value(json_array_get(n, 1)) == INT64_MAX);
    assert_true(json_is_real(json_array_get(n, 2)));
    check_near(json_number_value(json_object_get(all, "x")), 15, 0);
    assert_string_equal(json_string_value(json_object_get(all, "s")), "a\"99999999999999999999");
    json_decref(all);
}

static void digits_are_kept(void **state)
{
    static const char text[] = "{\"a\":100000000000000000001,\"b\":[-100000000000000000001,7],"
                               "\"c\":\"100000000000000000001\"}";
    json_t *all = parse(text, true);
    cr_buf out = {0};
    cr_err err = {0};

    (void)state;
    assert_string_equal(cr_json_digits(json_object_get(all, "a")), "100000000000000000001");
    assert_null(cr_json_digits(json_object_get(all, "c")));
    if (cr_json_add_value(&out, all, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(out.num_bytes, strlen(text));
    assert_memory_equal(out.data, text, out.num_bytes);
    cr_buf_free(&out);
    json_decref(all);
}

static void refused(void **state)
{
    static const char *const texts[] = {"[100000000000000000001,]", "100000000000000000001x",
                                        "[00000000000000000000001]",
                                        "{\"a\":--99999999999999999999}"};
    json_t *out;
    cr_err err = {0};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(texts); i++) {
        err = (cr_err){0};
        assert_int_equal(cr_json_parse(texts[i], strlen(texts[i]), "x", &out, &err), CR_EFORMAT);
        assert_null(out);
    }
    err = (cr_err){0};
    assert_int_equal(
        cr_json_parse_integers("99999999999999999999", 20, "x", CR_JSON_OF_64_BITS, &out, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "too big"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_integers_are_reals),
                                       cmocka_unit_test(digits_are_kept),
                                       cmocka_unit_test(refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
