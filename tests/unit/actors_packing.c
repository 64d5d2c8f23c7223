/* actors_packing.c -- dealing samples to ranks and micro-batches: everyone once, groups whole, the sizes that were asked for, and
 * tokens that balance in every micro-batch.
 * Not covered: the records that take the samples there (tests/e2e). */
#include "actors/packing.h"
#include "actors/work.h"
#include "base/rng.h"
#include "tests/check_near.h"

#include <math.h>
enum { NUM = 240, DP = 3, MICRO = 4, MINI = DP * MICRO * 5, GROUP = 6 };

/* Of text. */
static const double *weigh(const size_t *tokens, size_t num)
{
    static double work[NUM];

    for (size_t i = 0; i < num; i++)
        work[i] = cr_work_of(tokens[i], 0);
    return work;
}

/* Tokens of each (mini-batch, micro-batch, rank), when every rank takes MICRO of its samples at a time. */
static void test_micro_batches(void **state)
{
    size_t tokens[NUM], work[NUM / MINI][5][DP] = {0}, seen[NUM / MINI][DP] = {0};
    int32_t mini[NUM], rank[NUM];
    uint32_t order[NUM];
    bool is_assigned[NUM] = {false};

    (void)state;
    for (size_t i = 0; i < NUM; i++)
        tokens[i] = 20 + (size_t)(100 * fabs(cr_rng_normal(7, CR_RNG_TEST, 0, i)));
    cr_packing_deal(weigh(tokens, NUM), NUM, GROUP, DP, MICRO, MINI, 42, 3, order, mini, rank);
    for (size_t k = 0; k < NUM; k++) {
        uint32_t i = order[k];
        assert_false(is_assigned[i]);
        is_assigned[i] = true;
        assert_int_equal(mini[i], k / MINI);
        work[mini[i]][seen[mini[i]][rank[i]]++ / MICRO][rank[i]] += tokens[i];
    }
    for (size_t i = 0; i < NUM; i++)
        assert_int_equal(mini[i], mini[i / GROUP * GROUP]);
    for (size_t b = 0; b < NUM / MINI; b++) {
        size_t min = SIZE_MAX, max = 0;
        for (size_t c = 0; c < 5 * DP; c++) {
            size_t w = work[b][c / DP][c % DP];
            assert_int_equal(seen[b][c % DP], 5 * MICRO);
            min = w < min ? w : min;
            max = w > max ? w : max;
        }
        assert_true(max - min <= 60); /* round-robin: 600 to 900 of about 880 */
    }
}

/* The largest work of a rank in a mini-batch, by the mean. */
static double worst(const double *work, const int32_t *mini, const int32_t *rank)
{
    double of[NUM / MINI][DP] = {0}, most = 0;

    for (size_t i = 0; i < NUM; i++)
        of[mini[i]][rank[i]] += work[i];
    for (size_t b = 0; b < NUM / MINI; b++) {
        double sum = 0, max = 0;
        for (int r = 0; r < DP; r++) {
            sum += of[b][r];
            max = fmax(max, of[b][r]);
        }
        most = fmax(most, DP * max / sum);
    }
    return most;
}

/* Samples of as many tokens each, of which images of very different sizes have some: their work balances, which that of tokens does not. */
static void test_images(void **state)
{
    const cr_image_cost cost = {.patch = 0.1,
                                .merged = 0.01,
                                .frame_pair = 2e-5,
                                .window_pair = 1e-5,
                                .merge = 2,
                                .window = 8};
    double work[NUM], text[NUM];
    int32_t mini[NUM], rank[NUM];
    uint32_t order[NUM];

    (void)state;
    for (size_t i = 0; i < NUM; i++) {
        const size_t group = i / GROUP; /* which have the same prompt */
        const int32_t side = 4 + 2 * (int32_t)(30 * fabs(cr_rng_normal(9, CR_RNG_TEST, 0, group))),
                      grid[3] = {1, side, 2 * side};
        const cr_item_refs items = {.grids = grid, .num = group % 2};
        text[i] = cr_work_of(3000 + i % GROUP, 0);
        work[i] = cr_work_of(3000 + i % GROUP, cr_work_image_tokens(&cost, items));
        assert_true(group % 2 ? work[i] > text[i] : work[i] == text[i]);
    }
    cr_packing_deal(work, NUM, GROUP, DP, MICRO, MINI, 42, 3, order, mini, rank);
    assert_true(worst(work, mini, rank) < 1.02);
    cr_packing_deal(text, NUM, GROUP, DP, MICRO, MINI, 42, 3, order, mini, rank);
    assert_true(worst(work, mini, rank) > 1.08);
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
    cr_packing_deal_mini(weigh(tokens, 17), DP, MICRO, order, 17, rank);
    for (uint32_t i = 0; i < 17; i++) {
        assert_int_equal(order[i], i);
        num[rank[i]]++;
    }
    for (int r = 0; r < DP; r++)
        assert_in_range(num[r], 5, 6);
}

static size_t draw(uint64_t seed, uint64_t hi, uint64_t lo)
{
    uint32_t words[4];

    cr_rng_philox(seed, CR_RNG_TEST, hi, lo, words);
    return words[0];
}

/* By tokens: no micro-batch above the limit (but a sample that is), few of them, and as many as were
 * asked for, with tokens spread over them. */
static void test_cut_by_tokens(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 200; k++) {
        size_t num = 1 + draw(k, 0, 0) % 60, tokens[60], micro[60], used[64] = {0},
               limit = 500 + draw(k, 0, 1) % 1500, sum = 0, first, second;
        for (size_t i = 0; i < num; i++) {
            tokens[i] = 10 + draw(k, 1, i) % 490;
            sum += tokens[i];
        }
        first = cr_packing_cut(tokens, num, limit, 0, micro);
        for (size_t i = 0; i < num; i++)
            used[micro[i]] += tokens[i];
        for (size_t m = 0; m < first; m++)
            assert_true(used[m] > 0 && used[m] <= limit);
        assert_true(first >= (sum + limit - 1) / limit && first <= 2 * sum / limit + 1);
        second = cr_packing_cut(tokens, num, limit, first + 2, micro);
        assert_int_equal(second, first + 2);
        for (size_t i = 0; i < num; i++)
            assert_true(micro[i] < second);
    }
}

static void test_cut_corners(void **state)
{
    const size_t tokens[] = {30, 900, 30, 40}, even[] = {6, 6, 6, 6};
    size_t micro[4];

    (void)state;
    assert_int_equal(cr_packing_cut(tokens, 0, 100, 0, micro), 0);
    assert_int_equal(cr_packing_cut(tokens, 4, 100, 0, micro), 2); /* 900 has one of its own */
    assert_true(micro[1] != micro[0] && micro[0] == micro[2] && micro[2] == micro[3]);
    assert_int_equal(cr_packing_cut(even, 4, 18, 0, micro), 2);
    assert_true((micro[0] == 0) + (micro[1] == 0) + (micro[2] == 0) + (micro[3] == 0) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images), cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_uneven), cmocka_unit_test(test_cut_by_tokens),
        cmocka_unit_test(test_cut_corners)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
