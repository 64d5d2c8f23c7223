/* data.c -- see data.h. */
#include "actors/data.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cr_status add_row(cr_dataset *data, const char *path, int line_number, const char *line,
                         size_t num_bytes, cr_row_encode encode, void *ctx, cr_err *err)
{
    cr_row row = {.line = line_number, .domain = -1};
    char what[400];

    snprintf(what, sizeof what, "%s:%d", path, line_number);
    CR_TRY(cr_json_parse(line, num_bytes, what, &row.json, err));
    if (!json_is_object(row.json)) {
        json_decref(row.json);
        return cr_fail(err, CR_EFORMAT, "%s: a row must be a JSON object", what);
    }
    row.text = cr_strndup(line, num_bytes);
    if (encode(ctx, &row, err) != CR_OK || !row.ids) {
        json_decref(row.json);
        cr_free(row.text);
        cr_free(row.ids);
        if (err->status == CR_OK) data->num_dropped++;
        return cr_fail_add(err, "%s", what);
    }
    if (data->num_rows == data->capacity) {
        size_t want = data->capacity ? 2 * data->capacity : 256;
        data->rows =
            cr_realloc(data->rows, data->num_rows * sizeof *data->rows, want * sizeof *data->rows);
        data->capacity = want;
    }
    data->rows[data->num_rows++] = row;
    return CR_OK;
}

cr_status cr_dataset_load(cr_dataset *data, const char *path, cr_row_encode encode, void *ctx,
                          cr_err *err)
{
    cr_buf text = {0};
    cr_err first = {0};
    int line_number = 0, num_bad = 0;
    size_t at = 0, n;

    CR_TRY(cr_file_read(path, &text, err));
    for (const char *line; (line = cr_line_next(&text, &at, &n));) {
        cr_err bad = {0};
        line_number++;
        if (strspn(line, " \t\r") < n &&
            add_row(data, path, line_number, line, n, encode, ctx, &bad) != CR_OK) {
            if (num_bad++ < 10) cr_log_line(bad.msg);
            if (first.status == CR_OK) first = bad;
        }
    }
    cr_buf_free(&text);
    if (num_bad == 0) return CR_OK;
    return cr_fail(err, first.status, "%s (and %d more wrong rows in %s)", first.msg, num_bad - 1,
                   path);
}

void cr_dataset_free(cr_dataset *data)
{
    for (size_t i = 0; i < data->num_rows; i++) {
        json_decref(data->rows[i].json);
        cr_free(data->rows[i].text);
        cr_free(data->rows[i].ids);
    }
    cr_free(data->rows);
    *data = (cr_dataset){0};
}

void cr_order_init(cr_order *order, const cr_dataset *data, int domain, uint64_t seed)
{
    *order = (cr_order){.epoch = -1, .seed = seed ^ (uint64_t)(domain + 1) << 40};
    order->index = CR_NEW_ARRAY(uint32_t, data->num_rows);
    for (size_t i = 0; i < data->num_rows; i++)
        if (data->rows[i].domain == domain) order->index[order->num++] = (uint32_t)i;
}

void cr_order_free(cr_order *order)
{
    cr_free(order->index);
    *order = (cr_order){0};
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

uint32_t cr_order_draw(cr_order *order, cr_cursor *cursor)
{
    CR_CHECK(order->num > 0, "a domain without rows is drawn from");
    if (cursor->next >= (int64_t)order->num) {
        cursor->epoch++;
        cursor->next = 0;
    }
    if (order->epoch != cursor->epoch) {
        qsort(order->index, order->num, sizeof *order->index, by_value);
        cr_rng_shuffle(order->seed, (uint64_t)cursor->epoch, order->index, order->num);
        order->epoch = cursor->epoch;
    }
    return order->index[cursor->next++];
}
