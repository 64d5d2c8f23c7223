/* curriculum.c -- see curriculum.h. */
#include "data/curriculum.h"
#include "base/rng.h"

#include <math.h>

enum { REMEMBERED = 4 /* groups that a row's mean is of, about */ };

void cr_curriculum_init(cr_curriculum *c, const cr_curriculum_keys *keys, const cr_dataset *data,
                        uint64_t seed)
{
    *c = (cr_curriculum){keys, data, CR_NEW_ARRAY(cr_row_record, data->num_rows + 1), seed, 0};
}

void cr_curriculum_free(cr_curriculum *c)
{
    cr_free(c->records);
    *c = (cr_curriculum){0};
}

static cr_row_pool pool_of(const cr_curriculum *c, uint32_t row)
{
    const cr_curriculum_keys *k = c->keys;
    const cr_row_record *r = &c->records[row];

    if (r->num == 0) return CR_POOL_NORMAL;
    if (k->max_solved && r->num_solved >= k->max_solved) return CR_POOL_SOLVED;
    return r->mean >= k->easy_threshold   ? CR_POOL_EASY
           : r->mean <= k->hard_threshold ? CR_POOL_HARD
                                          : CR_POOL_NORMAL;
}

/* In this epoch; each row by a number of its own. */
static bool is_drawn(const cr_curriculum *c, uint32_t row, int64_t epoch)
{
    const double share[CR_NUM_POOLS] = {[CR_POOL_NORMAL] = 1,
                                        [CR_POOL_EASY] = c->keys->easy_fraction,
                                        [CR_POOL_HARD] = c->keys->hard_fraction,
                                        [CR_POOL_SOLVED] = 0};
    uint32_t words[4];

    cr_rng_philox(c->seed, CR_RNG_POOL, (uint64_t)epoch, row, words);
    return cr_rng_double(words[0], words[1]) < share[pool_of(c, row)];
}

uint32_t cr_curriculum_draw(cr_curriculum *c, cr_order *order, cr_cursor *cursor)
{
    uint32_t row = cr_order_draw(order, cursor);

    for (size_t num = 1; num < 2 * order->num && !is_drawn(c, row, cursor->epoch); num++) {
        row = cr_order_draw(order, cursor);
        c->num_skipped++;
    }
    return row;
}

void cr_curriculum_see(cr_curriculum *c, uint32_t row, double score)
{
    cr_row_record *r = &c->records[row];

    if (r->num < INT32_MAX) r->num++;
    r->num_solved =
        score >= c->keys->solved_score ? r->num_solved + (r->num_solved < INT32_MAX) : 0;
    r->mean += (score - r->mean) / (r->num < REMEMBERED ? r->num : REMEMBERED);
}

void cr_curriculum_count(const cr_curriculum *c, size_t num[CR_NUM_POOLS])
{
    for (int p = 0; p < CR_NUM_POOLS; p++)
        num[p] = 0;
    for (size_t i = 0; i < c->data->num_rows; i++)
        if (c->data->rows[i].domain >= 0) num[pool_of(c, (uint32_t)i)]++;
}

/* ---- checkpoints: [row, num_solved, num, mean] of those that were seen ---- */

cr_status cr_curriculum_write(const cr_curriculum *c, const char *path, cr_err *err)
{
    json_t *rows = json_array(), *root = json_pack("{s:o}", "rows", rows);
    cr_buf text = {0};

    for (size_t i = 0; i < c->data->num_rows; i++) {
        const cr_row_record *r = &c->records[i];
        if (r->num)
            json_array_append_new(
                rows, json_pack("[I,i,i,f]", (json_int_t)i, r->num_solved, r->num, r->mean));
    }
    if (cr_json_add_value(&text, root, err) == CR_OK)
        cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    json_decref(root);
    cr_buf_free(&text);
    return err->status;
}

static bool is_count(const json_t *v, int64_t max)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= max;
}

static cr_status read_row(cr_curriculum *c, const json_t *row, cr_err *err)
{
    const json_t *index = json_array_get(row, 0), *solved = json_array_get(row, 1),
                 *num = json_array_get(row, 2), *mean = json_array_get(row, 3);

    if (json_array_size(row) != 4 || !is_count(index, (int64_t)c->data->num_rows - 1) ||
        !is_count(num, INT32_MAX) || !is_count(solved, json_integer_value(num)) ||
        !json_is_number(mean) || !isfinite(json_number_value(mean)))
        return cr_fail(err, CR_EFORMAT, "an entry is no record of one of the %zu rows",
                       c->data->num_rows);
    c->records[json_integer_value(index)] =
        (cr_row_record){(int32_t)json_integer_value(solved), (int32_t)json_integer_value(num),
                        json_number_value(mean)};
    return CR_OK;
}

cr_status cr_curriculum_read(cr_curriculum *c, const char *path, cr_err *err)
{
    json_t *root = NULL, *rows, *row;
    size_t i;

    CR_TRY(cr_json_read_file(path, &root, err));
    rows = json_object_get(root, "rows");
    if (!json_is_array(rows)) cr_fail(err, CR_EFORMAT, "it has no \"rows\"");
    json_array_foreach(rows, i, row) if (err->status == CR_OK) cr_note(read_row(c, row, err));
    json_decref(root);
    return cr_fail_add(err, "%s (damaged, or of other data?)", path);
}
