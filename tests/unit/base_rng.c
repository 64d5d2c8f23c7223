/* base_rng.c -- Philox against the vectors published with Random123, shuffle and uniform ranges.
 * Not covered: statistical quality, which is Philox's own. */
#include "base/rng.h"
#include "tests/check_near.h"

#include <string.h>

/* Random123's kat_vectors, philox4x32-10: counter 0, key 0. Our key is seed ^ stream bits, so the
 * seed that cancels the stream's bits gives key 0. */
static void philox_known_answer(void **state)
{
    uint64_t cancel = (uint64_t)CR_RNG_TEST << 56 | (uint64_t)CR_RNG_TEST << 24;
    uint32_t w[4];

    (void)state;
    cr_rng_philox(cancel, CR_RNG_TEST, 0, 0, w);
    assert_int_equal(w[0], 0x6627e8d5u);
    assert_int_equal(w[1], 0xe169c58du);
    assert_int_equal(w[2], 0xbc57ac4cu);
    assert_int_equal(w[3], 0x9b00dbd8u);
    cr_rng_philox(~(uint64_t)0 ^ cancel, CR_RNG_TEST, ~(uint64_t)0, ~(uint64_t)0, w);
    assert_int_equal(w[0], 0x408f276du);
    assert_int_equal(w[3], 0x6d5451fdu);
}

static void shuffle_is_a_permutation(void **state)
{
    uint32_t order[100], again[100];
    int seen[100] = {0};

    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        order[i] = again[i] = i;
    cr_rng_shuffle(7, 3, order, 100);
    cr_rng_shuffle(7, 3, again, 100);
    assert_memory_equal(order, again, sizeof order);
    for (int i = 0; i < 100; i++)
        seen[order[i]]++;
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
    cr_rng_shuffle(7, 4, again, 100);
    assert_true(memcmp(order, again, sizeof order) != 0);
}

static void normal_has_unit_variance(void **state)
{
    double sum = 0, squares = 0;

    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        double x = cr_rng_normal(1, CR_RNG_TEST, 5, i);
        sum += x;
        squares += x * x;
    }
    check_near(sum / 1e5, 0, 0.0127);     /* 4 sigma of a mean of 1e5 */
    check_near(squares / 1e5, 1, 0.0179); /* 4 sigma: sqrt(2 / 1e5) */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answer),
        cmocka_unit_test(shuffle_is_a_permutation),
        cmocka_unit_test(normal_has_unit_variance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
