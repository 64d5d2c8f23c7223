/* base_print_float.c -- cr_print_float against printf's "%.9g", byte for byte: random bits of all sizes, every power of
 * ten and of two with its neighbours, ties between two last digits, and what only printf knows (denormals, infinities). */
#include "base/json.h"
#include "base/print_float.h"
#include "base/rng.h"
#include "tests/check_near.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void check(float x)
{
    char got[CR_FLOAT_TEXT], want[64];
    size_t num = cr_print_float(x, got);

    snprintf(want, sizeof want, "%.9g", (double)x);
    assert_string_equal(got, want);
    assert_int_equal(num, strlen(want));
}

/* And its neighbours, of both signs. */
static void check_near_to(float x)
{
    float at = x;

    for (int i = 0; i < 3; i++, at = nextafterf(at, 0))
        check(at), check(-at);
    at = x;
    for (int i = 0; i < 3; i++, at = nextafterf(at, INFINITY))
        check(at), check(-at);
}

static void powers(void **state)
{
    (void)state;
    for (int k = -45; k <= 38; k++)
        check_near_to((float)pow(10, k));
    for (int e = -149; e < 128; e++)
        check_near_to(ldexpf(1, e));
    check(0);
    check(-0.0f);
    check(INFINITY);
    check(NAN);
}

/* Small whole numbers over powers of two end in 5: nine digits of many of them are a tie. */
static void ties(void **state)
{
    (void)state;
    for (int e = 1; e <= 23; e++)
        for (int m = 1; m < 4096; m += 2)
            check(ldexpf((float)m, -e));
}

static void random_bits(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        uint32_t w[4];
        float x;
        cr_rng_philox(3, CR_RNG_TEST, i, 0, w);
        for (int k = 0; k < 4; k++) {
            memcpy(&x, &w[k], sizeof x);
            check(x);
            check((float)(w[k] >> 8) * ldexpf(1, -(int)(w[k] & 63)));
        }
    }
}

static void whole_numbers(void **state)
{
    static const int64_t x[] = {0, 7, 10, -1, -10, 1234567890123456789, INT64_MAX, INT64_MIN};
    char want[32];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(x); i++) {
        cr_buf got = {0};
        snprintf(want, sizeof want, "%lld", (long long)x[i]);
        cr_json_add_int(&got, x[i]);
        assert_string_equal(got.data, want);
        cr_buf_free(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(powers), cmocka_unit_test(ties),
                                       cmocka_unit_test(random_bits),
                                       cmocka_unit_test(whole_numbers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
