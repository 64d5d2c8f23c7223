/* data_curriculum.c -- which rows a curriculum draws: records of scores by tables; draws are those of the order without the rows that
 * are passed over; a share of each pool over many epochs, of each row alike; what is left where nothing is; a file goes on with the same
 * draws, and damaged files are refused.
 * Not covered: scores of whole runs, resume, ranks (e2e/run_curriculum).
 */
#include "data/curriculum.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, EPOCHS = 4000 };

static const cr_curriculum_keys usual = {.is_on = true,
                                         .max_solved = 2,
                                         .solved_score = 1,
                                         .easy_threshold = 0.75,
                                         .easy_fraction = 0.25,
                                         .hard_threshold = 0.125,
                                         .hard_fraction = 0.5};
static cr_row rows[ROWS];
static const cr_dataset data = {.rows = rows, .num_rows = ROWS};

static cr_row_pool pool_after(const cr_curriculum_keys *keys, const double *scores, size_t num)
{
    size_t count[CR_NUM_POOLS];
    cr_curriculum c;

    cr_curriculum_init(&c, keys, &data, 1);
    for (size_t i = 0; i < num; i++)
        cr_curriculum_see(&c, 3, scores[i]);
    cr_curriculum_count(&c, count);
    cr_curriculum_free(&c);
    for (int p = 1; p < CR_NUM_POOLS; p++)
        if (count[p]) return (cr_row_pool)p;
    return CR_POOL_NORMAL;
}

static void pools_by_scores(void **state)
{
    static const struct {
        double scores[8];
        size_t num;
        cr_row_pool pool;
    } cases[] = {
        {{0}, 0, CR_POOL_NORMAL},
        {{1}, 1, CR_POOL_EASY},
        {{1, 1}, 2, CR_POOL_SOLVED},
        {{1, 0.75, 1}, 3, CR_POOL_EASY}, /* not in a row */
        {{0, 1, 1}, 3, CR_POOL_SOLVED},
        {{1, 1, 0}, 3, CR_POOL_NORMAL}, /* it would come back */
        {{0.75}, 1, CR_POOL_EASY},
        {{0.74}, 1, CR_POOL_NORMAL},
        {{0.125}, 1, CR_POOL_HARD},
        {{0.126}, 1, CR_POOL_NORMAL},
        {{0, 0, 0, 0, 0.75, 0.75},
         6,
         CR_POOL_NORMAL}, /* 0.328: the last ones count for a quarter, not for a sixth */
        {{0, 0, 0, 0.5}, 4, CR_POOL_HARD}, /* 0.125, the plain mean of four */
    };
    cr_curriculum_keys none = usual;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        if (pool_after(&usual, cases[i].scores, cases[i].num) != cases[i].pool)
            fail_msg("case %zu", i);
    none.max_solved = 0;
    none.easy_threshold = INFINITY;
    none.hard_threshold = -INFINITY;
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        assert_int_equal(pool_after(&none, cases[i].scores, cases[i].num), CR_POOL_NORMAL);
}

/* Rows 0 to 2 are easy, 3 to 5 hard, 6 and 7 solved, 8 was seen, the others were not. */
static void fill(cr_curriculum *c)
{
    for (uint32_t r = 0; r < 3; r++)
        cr_curriculum_see(c, r, 0.8);
    for (uint32_t r = 3; r < 6; r++)
        cr_curriculum_see(c, r, 0);
    for (uint32_t r = 6; r < 8; r++)
        for (int k = 0; k < 2; k++)
            cr_curriculum_see(c, r, 1);
    cr_curriculum_see(c, 8, 0.5);
}

static void shares_over_epochs(void **state)
{
    int num[ROWS] = {0};
    cr_curriculum c;
    cr_order order, plain;
    cr_cursor cursor = {0}, at = {0};

    (void)state;
    cr_order_init(&order, &data, 0, 7);
    cr_order_init(&plain, &data, 0, 7);
    cr_curriculum_init(&c, &usual, &data, 7);
    fill(&c);
    while (cursor.epoch < EPOCHS) {
        uint32_t row = cr_curriculum_draw(&c, &order, &cursor);
        num[row]++;
        do
            assert_true(at.epoch < cursor.epoch ||
                        at.next < cursor.next); /* it is a later one of the plain order */
        while (cr_order_draw(&plain, &at) != row || at.epoch != cursor.epoch ||
               at.next != cursor.next);
    }
    for (int r = 0; r < ROWS; r++) {
        double want = r < 3 ? 0.25 : r < 6 ? 0.5 : r < 8 ? 0 : 1;
        double tolerance = want > 0 && want < 1 ? 0.03 : 0.001; /* 4 deviations of EPOCHS tosses */
        if (fabs(num[r] / (double)EPOCHS - want) > tolerance)
            fail_msg("row %d: %d in %d epochs", r, num[r], EPOCHS);
    }
    assert_int_equal(num[6] + num[7], 0);
    assert_true(c.num_skipped > 0);
    cr_curriculum_free(&c);
    cr_order_free(&order);
    cr_order_free(&plain);
}

static void nothing_is_left(void **state)
{
    bool is_drawn[ROWS] = {false};
    cr_curriculum c;
    cr_order order;
    cr_cursor cursor = {0};

    (void)state;
    cr_order_init(&order, &data, 0, 7);
    cr_curriculum_init(&c, &usual, &data, 7);
    for (uint32_t r = 0; r < ROWS; r++)
        for (int k = 0; k < 2; k++)
            cr_curriculum_see(&c, r, 1);
    for (int i = 0; i < 20 * ROWS; i++)
        is_drawn[cr_curriculum_draw(&c, &order, &cursor)] = true;
    for (int r = 0; r < ROWS; r++)
        assert_true(is_drawn[r]);
    cr_curriculum_free(&c);
    cr_order_free(&order);
}

static void goes_on_from_a_file(void **state)
{
    char *path = cr_path_join(temp_folder, "curriculum.json");
    cr_curriculum a, b;
    cr_order of_a, of_b;
    cr_cursor at_a = {.epoch = 5, .next = 3}, at_b = at_a;
    cr_err err = {0};

    (void)state;
    cr_order_init(&of_a, &data, 0, 9);
    cr_order_init(&of_b, &data, 0, 9);
    cr_curriculum_init(&a, &usual, &data, 9);
    cr_curriculum_init(&b, &usual, &data, 9);
    fill(&a);
    cr_curriculum_see(&a, 8, 1.0 / 3);
    assert_int_equal(cr_curriculum_write(&a, path, &err), CR_OK);
    assert_int_equal(cr_curriculum_read(&b, path, &err), CR_OK);
    assert_memory_equal(a.records, b.records, ROWS * sizeof *a.records);
    for (int i = 0; i < 500; i++)
        assert_int_equal(cr_curriculum_draw(&a, &of_a, &at_a),
                         cr_curriculum_draw(&b, &of_b, &at_b));
    cr_curriculum_free(&a);
    cr_curriculum_free(&b);
    cr_order_free(&of_a);
    cr_order_free(&of_b);
    cr_free(path);
}

static void damaged_files(void **state)
{
    static const char *const texts[] = {"",
                                        "[]",
                                        "{}",
                                        "{\"rows\":{}}",
                                        "{\"rows\":[[12,0,1,0.5]]}", /* there are 12 */
                                        "{\"rows\":[[-1,0,1,0.5]]}",
                                        "{\"rows\":[[0,2,1,0.5]]}",
                                        "{\"rows\":[[0,0,1,\"x\"]]}",
                                        "{\"rows\":[[0,0,1]]}",
                                        "{\"rows\":[[0,0,99999999999,0.5]]}"};
    char *path = cr_path_join(temp_folder, "damaged.json");
    cr_curriculum c;

    (void)state;
    cr_curriculum_init(&c, &usual, &data, 9);
    for (size_t i = 0; i < CR_COUNT(texts); i++) {
        cr_err err = {0};
        assert_int_equal(cr_file_write_atomic(path, texts[i], strlen(texts[i]), &err), CR_OK);
        if (cr_curriculum_read(&c, path, &err) != CR_EFORMAT) fail_msg("%s is read", texts[i]);
        assert_non_null(strstr(err.msg, path));
    }
    cr_curriculum_free(&c);
    cr_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_by_scores), cmocka_unit_test(shares_over_epochs),
        cmocka_unit_test(nothing_is_left), cmocka_unit_test(goes_on_from_a_file),
        cmocka_unit_test(damaged_files)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
