/* data.c -- see data.h. */
#include "data/data.h"
#include "base/digest.h"
#include "base/limits.h"
#include "base/rng.h"
#include "parquet/parquet.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ROWS_AT_ONCE = 256, BYTES_AT_ONCE = 32 << 20, SECONDS_OF_SILENCE = 10 };

#define PLACE_OF_LINE "%s:%d" /* of path and number */
#define PLACE_OF_ROW  "%s: row %d"

/* What is being loaded, and what is wrong with it so far. */
typedef struct loading {
    cr_dataset *data;
    const char *path;
    const char *place; /* how a message names a row */
    const cr_row_coder *coder;
    cr_row rows[ROWS_AT_ONCE]; /* read, not encoded yet */
    size_t num, num_bytes;
    size_t num_read, num_all; /* rows of the file; 0: unknown */
    double start_s, said_s;
    size_t num_bad;
    cr_err first;
} loading;

void cr_row_free(cr_row *row)
{
    json_decref(row->json);
    json_decref(row->asked);
    cr_free(row->text);
    cr_free(row->ids);
    cr_free(row->rewards);
    cr_free(row->learns);
    cr_free(row->image_digests);
    cr_free(row->image_grids);
    json_decref(row->image_files);
}

/* Takes row->json and row->text. */
static cr_status add_row(const loading *l, cr_row *row, cr_err *err)
{
    cr_dataset *data = l->data;

    if (!json_is_object(row->json))
        cr_fail(err, CR_EFORMAT, "a row must be a JSON object");
    else
        cr_note(l->coder->encode(l->coder->ctx, row, err));
    if (err->status != CR_OK || !row->ids) {
        cr_row_free(row);
        data->num_dropped += err->status == CR_OK;
        return err->status;
    }
    data->rows = cr_grow(data->rows, data->num_rows, &data->capacity, sizeof *data->rows);
    data->rows[data->num_rows++] = *row;
    return CR_OK;
}

static void note_bad(loading *l, const cr_err *bad)
{
    if (l->num_bad++ < 10) cr_log_line(bad->msg);
    if (l->first.status == CR_OK) l->first = *bad;
}

static void say_progress(loading *l)
{
    const double now = cr_now_s();
    char all[40] = "";

    l->num_read += l->num;
    if (now - l->said_s < SECONDS_OF_SILENCE) return;
    l->said_s = now;
    if (l->num_all) snprintf(all, sizeof all, " of %zu", l->num_all);
    cr_log(CR_LOG_INFO, "data", "%s: %zu%s rows are read after %.0f s", l->path, l->num_read, all,
           now - l->start_s);
}

/* Encode the rows that were read. */
static void encode_rows(loading *l)
{
    char what[400];

    if (l->coder->look) l->coder->look(l->coder->ctx, l->rows, l->num);
    for (size_t i = 0; i < l->num; i++) {
        cr_err bad = {0};
        snprintf(what, sizeof what, l->place, l->path, l->rows[i].line);
        if (add_row(l, &l->rows[i], &bad) == CR_OK) continue;
        cr_fail_add(&bad, "%s", what);
        note_bad(l, &bad);
    }
    say_progress(l);
    l->num = l->num_bytes = 0;
}

/* Takes row->json and row->text. */
static void take_row(loading *l, const cr_row *row, size_t num_bytes)
{
    l->rows[l->num++] = *row;
    l->num_bytes += num_bytes;
    if (l->num == ROWS_AT_ONCE || l->num_bytes > BYTES_AT_ONCE) encode_rows(l);
}

/* What was no row; rows before it have their errors first. */
static void refuse(loading *l, const cr_err *bad)
{
    encode_rows(l);
    note_bad(l, bad);
}

/* A row as it is written. */
static cr_status read_row(const loading *l, cr_row *row, const char *text, size_t num_bytes,
                          cr_err *err)
{
    char what[400];

    snprintf(what, sizeof what, l->place, l->path, row->line);
    CR_TRY(cr_json_parse_integers(text, num_bytes, what, CR_JSON_EXACT, &row->json, err));
    row->text = cr_strndup(text, num_bytes);
    return CR_OK;
}

static void load_lines(loading *l, const cr_buf *text, size_t at)
{
    int line_number = 0;
    size_t n;

    for (const char *line; (line = cr_line_next(text, &at, &n));) {
        cr_row row = {.line = ++line_number, .domain = -1};
        cr_err bad = {0};
        if (strspn(line, " \t\r") >= n) continue;
        if (read_row(l, &row, line, n, &bad) == CR_OK) {
            take_row(l, &row, n);
            continue;
        }
        if (line_number == 1) {
            const cr_err why = bad;
            bad.status = CR_OK;
            cr_fail(&bad, why.status,
                    "%.400s (a file is lines with one JSON object each, or one JSON array)",
                    why.msg);
        }
        refuse(l, &bad);
    }
}

static cr_status load_array(loading *l, const cr_buf *text, size_t at, cr_err *err)
{
    json_t *all, *element;
    size_t i;

    l->place = PLACE_OF_ROW;
    if (cr_json_parse_integers(text->data + at, text->num_bytes - at, l->path, CR_JSON_EXACT, &all,
                               err) != CR_OK)
        return cr_fail_add(err, "a file that begins with [ is read as one JSON array");
    l->num_all = json_array_size(all);
    json_array_foreach(all, i, element)
    {
        cr_row row = {.line = (int)i + 1, .domain = -1, .json = json_incref(element)};
        cr_err bad = {0};
        cr_buf line = {0};
        if (cr_json_add_value(&line, element, &bad) == CR_OK) {
            row.text = line.data;
            take_row(l, &row, line.num_bytes);
            continue;
        }
        json_decref(element);
        cr_buf_free(&line);
        cr_fail_add(&bad, "%s: row %zu", l->path, i + 1);
        refuse(l, &bad);
    }
    json_decref(all);
    return CR_OK;
}

/* All rows stay in memory: they may take what a file of JSON of their size may (a small file can hold very many). */
static cr_status check_rows(const loading *l, int64_t num_rows, int64_t num_bytes, int64_t left,
                            cr_err *err)
{
    enum { ROW_BYTES = 256 };

    if (num_bytes <= left / 3 && num_rows <= (left / 3 - num_bytes) / ROW_BYTES) return CR_OK;
    return cr_fail(
        err, CR_EIO,
        "%s is too large: %lld rows and %lld bytes of them as JSON, all in memory, where "
        "%lld bytes are left",
        l->path, (long long)num_rows, (long long)num_bytes, (long long)left);
}

static cr_status load_parquet_rows(loading *l, cr_parquet *file, cr_err *err)
{
    const int64_t left = cr_memory_left();
    int64_t num_bytes = 0;
    cr_buf line = {0};

    CR_TRY(check_rows(l, cr_parquet_num_rows(file), 0, left, err));
    l->place = PLACE_OF_ROW;
    l->num_all = (size_t)cr_parquet_num_rows(file);
    for (int number = 1; cr_parquet_next(file, &line, err) == CR_OK && line.num_bytes; number++) {
        cr_row row = {.line = number, .domain = -1};
        cr_err bad = {0};
        num_bytes += (int64_t)line.num_bytes;
        CR_TRY_GOTO(out, check_rows(l, cr_parquet_num_rows(file), num_bytes, left, err));
        if (read_row(l, &row, line.data, line.num_bytes, &bad) == CR_OK)
            take_row(l, &row, line.num_bytes);
        else
            refuse(l, &bad);
    }
out:
    cr_buf_free(&line);
    return err->status;
}

static cr_status load_parquet(loading *l, cr_err *err)
{
    char digest[CR_DIGEST_TEXT];
    const char *column;
    cr_parquet *file;
    int64_t num;
    uint64_t sum;

    CR_TRY(cr_digest_file_and_sum(l->path, digest, &num, &sum, err));
    l->data->sum = 31 * l->data->sum + sum;
    CR_TRY(cr_parquet_open(l->path, &file, err));
    cr_note(load_parquet_rows(l, file, err));
    num = cr_parquet_num_not_finite(file, &column);
    if (num)
        cr_log(CR_LOG_WARN, "data",
               "%s: %lld numbers are NaN or infinite, the first in column %s: they are null",
               l->path, (long long)num, column);
    cr_parquet_close(file);
    return err->status;
}

/* Files that are no JSON text, by their first bytes, and what makes JSON of them. */
static cr_status check_format(const char *path, const cr_buf *text, cr_err *err)
{
    static const struct {
        const char *bytes;
        size_t num;
        const char *what, *before, *after;
    } formats[] = {
        {"\x1f\x8b", 2, "compressed by gzip", "gunzip -c ", " > rows.jsonl"},
        {"\x28\xb5\x2f\xfd", 4, "compressed by zstd", "zstd -dc ", " > rows.jsonl"},
        {"\xfd"
         "7zXZ",
         5, "compressed by xz", "xz -dc ", " > rows.jsonl"},
        {"PK\x03\x04", 4, "a zip archive", "unzip ", ""},
        {"\xff\xfe", 2, "UTF-16", "iconv -f UTF-16 -t UTF-8 ", " > rows.jsonl"},
        {"\xfe\xff", 2, "UTF-16", "iconv -f UTF-16 -t UTF-8 ", " > rows.jsonl"},
        {"{\0", 2, "UTF-16", "iconv -f UTF-16LE -t UTF-8 ", " > rows.jsonl"},
        {"[\0", 2, "UTF-16", "iconv -f UTF-16LE -t UTF-8 ", " > rows.jsonl"},
    };

    for (size_t i = 0; i < CR_COUNT(formats); i++)
        if (text->num_bytes >= formats[i].num &&
            memcmp(text->data, formats[i].bytes, formats[i].num) == 0)
            return cr_fail(err, CR_EFORMAT,
                           "%s: the file is %s, JSON text is expected (convert it: %s%s%s)", path,
                           formats[i].what, formats[i].before, path, formats[i].after);
    return CR_OK;
}

static cr_status load_json(loading *l, cr_err *err)
{
    cr_buf text = {0};
    size_t at = 0, blank;

    CR_TRY(cr_file_read(l->path, &text, err));
    CR_TRY_GOTO(out, check_format(l->path, &text, err));
    l->data->sum = 31 * l->data->sum + cr_sum_bytes(0, text.data, text.num_bytes);
    if (text.num_bytes >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0) {
        cr_log(CR_LOG_INFO, "data", "%s: the byte order mark at its begin is skipped", l->path);
        at = 3;
    }
    blank = text.num_bytes ? strspn(text.data + at, " \t\r\n") : 0;
    if (at + blank < text.num_bytes && text.data[at + blank] == '[')
        cr_note(load_array(l, &text, at, err));
    else
        load_lines(l, &text, at);
out:
    cr_buf_free(&text);
    return err->status;
}

static cr_status load_file(cr_dataset *data, const char *path, const cr_row_coder *coder,
                           cr_err *err)
{
    const double now = cr_now_s();
    loading l = {.data = data,
                 .path = path,
                 .place = PLACE_OF_LINE,
                 .coder = coder,
                 .start_s = now,
                 .said_s = now};
    struct stat file;

    if (stat(path, &file) == 0 && S_ISFIFO(file.st_mode))
        return cr_fail(err, CR_EFORMAT,
                       "%s is a pipe, a file is expected: rows are read more than once", path);
    cr_note(cr_parquet_is(path) ? load_parquet(&l, err) : load_json(&l, err));
    encode_rows(&l);
    if (l.num_bad > 1)
        cr_fail(err, l.first.status, "%s (and %zu more wrong row%s in %s)", l.first.msg,
                l.num_bad - 1, l.num_bad > 2 ? "s" : "", path);
    else if (l.num_bad)
        cr_fail(err, l.first.status, "%s", l.first.msg);
    return err->status;
}

static bool has_rows(const char *name)
{
    static const char *const ends[] = {".parquet", ".jsonl", ".json"};
    const size_t num = strlen(name);

    for (size_t i = 0; i < CR_COUNT(ends); i++)
        if (num > strlen(ends[i]) && strcmp(name + num - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static int is_seen(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Its files, which are all of rows. */
static cr_status load_folder(cr_dataset *data, const char *folder, const cr_row_coder *coder,
                             cr_err *err)
{
    struct dirent **entries;
    const int num = scandir(folder, &entries, is_seen, by_name);

    if (num < 0) return cr_fail(err, CR_EIO, "%s: the folder cannot be read", folder);
    if (num == 0) cr_fail(err, CR_EFORMAT, "%s: the folder is empty", folder);
    for (int i = 0; i < num && err->status == CR_OK; i++)
        if (!has_rows(entries[i]->d_name))
            cr_fail(err, CR_EFORMAT,
                    "%s: %s is no file of rows (.parquet, .jsonl or .json), and a folder that "
                    "stands for its files has no other ones",
                    folder, entries[i]->d_name);
    for (int i = 0; i < num; i++) {
        char *path = cr_path_join(folder, entries[i]->d_name);
        if (err->status == CR_OK) cr_note(load_file(data, path, coder, err));
        cr_free(path);
        free(entries[i]);
    }
    free(entries);
    return err->status;
}

cr_status cr_dataset_load(cr_dataset *data, const char *path, const cr_row_coder *coder,
                          cr_err *err)
{
    return cr_dir_exists(path) ? load_folder(data, path, coder, err)
                               : load_file(data, path, coder, err);
}

void cr_dataset_free(cr_dataset *data)
{
    for (size_t i = 0; i < data->num_rows; i++)
        cr_row_free(&data->rows[i]);
    cr_free(data->rows);
    *data = (cr_dataset){0};
}

bool cr_dataset_has_images(const cr_dataset *data)
{
    for (size_t i = 0; i < data->num_rows; i++)
        if (data->rows[i].num_images) return true;
    return false;
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

/* One prompt after the other, each to the domain whose next one is due first, of those that may have one
 * already: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980); no domain is off by
 * more than 1 - 1 / (2 n - 2) prompts. */
void cr_cursors_deal(cr_cursor *cursors, const double *share, size_t num, int64_t total,
                     int *num_prompts)
{
    double n = 0, slack;

    for (size_t d = 0; d < num; d++) {
        n += share[d] > 0;
        num_prompts[d] = 0;
    }
    slack = n > 1 ? 1 / (2 * n - 2) : 0;
    for (int64_t k = 0; k < total; k++) {
        size_t best = num;
        double best_time = 0;
        for (size_t d = 0; d < num; d++) {
            double time = share[d] > 0 ? (1 - slack - cursors[d].deficit - share[d]) / share[d] : 0;
            cursors[d].deficit += share[d];
            if (share[d] <= 0 || cursors[d].deficit < slack - 1e-9) continue;
            if (best == num || time < best_time) best = d, best_time = time;
        }
        CR_CHECK(best < num, "no domain has a share");
        cursors[best].deficit -= 1;
        num_prompts[best]++;
    }
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
