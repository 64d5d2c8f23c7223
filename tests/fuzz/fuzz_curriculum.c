/* fuzz_curriculum.c -- arbitrary bytes as state/curriculum.json of a checkpoint: what is taken is a record of some rows, which is
 * written and read again as it is, and rows are drawn by it. */
#include "data/curriculum.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 5 };
static const cr_curriculum_keys keys = {.is_on = true,
                                        .max_solved = 2,
                                        .solved_score = 0.9,
                                        .easy_threshold = 0.7,
                                        .hard_threshold = 0.2,
                                        .easy_fraction = 0.5,
                                        .hard_fraction = 0.5};

static cr_status read_bytes(cr_curriculum *c, const void *data, size_t size, cr_err *err)
{
    char *path = cr_path_join(fuzz_folder, "in/curriculum.json");

    fuzz_put("in/curriculum.json", data, size);
    cr_note(cr_curriculum_read(c, path, err));
    cr_free(path);
    return err->status;
}

static void check(const cr_curriculum *c)
{
    size_t num[CR_NUM_POOLS], sum = 0;

    for (size_t i = 0; i < ROWS; i++) {
        const cr_row_record *r = &c->records[i];
        CR_CHECK(isfinite(r->mean) && r->num_solved >= 0 && r->num_solved <= r->num, "row %zu", i);
    }
    cr_curriculum_count(c, num);
    for (size_t p = 0; p < CR_NUM_POOLS; p++)
        sum += num[p];
    CR_CHECK(sum <= ROWS, "%zu rows in pools", sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cr_row rows[ROWS];
    const cr_dataset set = {.rows = rows, .num_rows = ROWS};
    char *path;
    cr_curriculum first, again;
    cr_err err = {0};

    if (!fuzz_folder[0]) fuzz_begin("in");
    cr_curriculum_init(&first, &keys, &set, 7);
    cr_curriculum_init(&again, &keys, &set, 7);
    if (read_bytes(&first, data, size, &err) == CR_OK) {
        path = cr_path_join(fuzz_folder, "in/again.json");
        CR_CHECK(cr_curriculum_write(&first, path, &err) == CR_OK, "%s", err.msg);
        CR_CHECK(cr_curriculum_read(&again, path, &err) == CR_OK, "%s", err.msg);
        for (size_t i = 0; i < ROWS; i++)
            CR_CHECK(!first.records[i].num ||
                         memcmp(&first.records[i], &again.records[i], sizeof first.records[i]) == 0,
                     "row %zu is another one", i);
        cr_free(path);
        for (uint32_t i = 0; i < ROWS; i++)
            cr_curriculum_see(&first, i, 1);
        check(&first);
    } else {
        CR_CHECK(err.msg[0], "an error without its text");
    }
    cr_curriculum_free(&first);
    cr_curriculum_free(&again);
    return 0;
}
