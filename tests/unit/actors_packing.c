/* actors_packing.c -- dealing samples to ranks and micro-batches: everyone once, groups whole, the sizes that were asked for, and
 * tokens that balance in every micro-batch.
 * Not covered: the records that take the samples there (tests/e2e). */
#include "actors/packing.h"
#include "base/rng.h"
#include "tests/check_near.h"

#include <math.h>
enum { NUM = 240, DP = 3, MICRO = 4, MINI = DP * MICRO * 5, GROUP = 6 };

/* Tokens of each (mini-batch, micro-batch, rank), when every rank takes MICRO of its samples at a time. */
static void test_micro_batches(void **state)
{
    size_t tokens[NUM], work[NUM / MINI][5][DP] = {0}, seen[NUM / MINI][DP] = {0};
    int32_t mini[NUM], rank[NUM];
    uint32_t order[NUM];
    bool is_dealt[NUM] = {false};

    (void)state;
    for (size_t i = 0; i < NUM; i++)
        tokens[i] = 20 + (size_t)(100 * fabs(cr_rng_normal(7, CR_RNG_TEST, 0, i)));
    cr_packing_deal(tokens, NUM, GROUP, DP, MICRO, MINI, 42, 3, order, mini, rank);
    for (size_t k = 0; k < NUM; k++) {
        uint32_t i = order[k];
        assert_false(is_dealt[i]);
        is_dealt[i] = true;
        assert_int_equal(mini[i], k / MINI);
        work[mini[i]][seen[mini[i]][rank[i]]++ / MICRO][rank[i]] += tokens[i];
    }
    for (size_t i = 0; i < NUM; i++)
        assert_int_equal(mini[i], mini[i / GROUP * GROUP]);
    for (size_t b = 0; b < NUM / MINI; b++) {
        size_t least = SIZE_MAX, most = 0;
        for (size_t c = 0; c < 5 * DP; c++) {
            size_t w = work[b][c / DP][c % DP];
            assert_int_equal(seen[b][c % DP], 5 * MICRO);
            least = w < least ? w : least;
            most = w > most ? w : most;
        }
        assert_true(most - least <= 60); /* round-robin: 600 to 900 of about 880 */
    }
}

/* 17 samples for 3 ranks: 6, 6 and 5, whatever their micro-batches. */
static void test_uneven(void **state)
{
    size_t tokens[17], num[DP] = {0};
    uint32_t order[17];
    int32_t rank[17];

    (void)state;
    for (size_t i = 0; i < 17; i++) {
        tokens[i] = 10 + i * i;
        order[i] = (uint32_t)i;
    }
    cr_packing_deal_mini(tokens, DP, MICRO, order, 17, rank);
    for (uint32_t i = 0; i < 17; i++) {
        assert_int_equal(order[i], i);
        num[rank[i]]++;
    }
    for (int r = 0; r < DP; r++)
        assert_in_range(num[r], 5, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_micro_batches),
                                       cmocka_unit_test(test_uneven)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
