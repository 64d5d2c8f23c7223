/* parquet_rows.c -- the files of tests/parity/parquet: 60 that give pyarrow's rows, 37 that are refused with their reason; the
 * same rows in a dataset as from JSON lines; broken copies of all files, which are refused or read, whatever is broken.
 * `unit_parquet_rows broken NUM [SEED]`: NUM broken copies more, by hand.
 * Not covered: random tables (tests/parity/parquet_files.py --check), arbitrary bytes (tests/fuzz/fuzz_parquet.c).
 */
#include "data/data.h"
#include "parquet/parquet.h"
#include "tests/check_near.h"
#include "tests/mutate.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FOLDER "tests/parity/parquet"

static char *names[200]; /* without their ends */
static size_t num_names;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_files(void)
{
    DIR *folder = opendir(FOLDER);

    CR_CHECK(folder, "%s (run it in the repository's root)", FOLDER);
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        const char *end = strstr(e->d_name, ".parquet");
        CR_CHECK(num_names < CR_COUNT(names), "more files than %zu", CR_COUNT(names));
        if (end) names[num_names++] = cr_strndup(e->d_name, (size_t)(end - e->d_name));
    }
    closedir(folder);
    qsort(names, num_names, sizeof *names, by_name);
}

static char *path_of(const char *name, const char *end)
{
    return cr_asprintf(FOLDER "/%s%s", name, end);
}

static void check_row(const char *name, int64_t row, const cr_buf *line, const char *want,
                      size_t num)
{
    cr_err err = {0};
    json_t *trees[2] = {0};
    cr_buf texts[2] = {0};

    if (cr_json_parse_integers(line->data, line->num_bytes, "got", CR_JSON_EXACT, &trees[0],
                               &err) != CR_OK ||
        cr_json_parse_integers(want, num, "wanted", CR_JSON_EXACT, &trees[1], &err) != CR_OK)
        fail_msg("%s: row %lld: %s", name, (long long)row, err.msg);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(cr_json_add_value(&texts[k], trees[k], &err), CR_OK);
        json_decref(trees[k]);
    }
    if (strcmp(texts[0].data, texts[1].data) != 0)
        fail_msg("%s: row %lld is\n%s\ninstead of\n%s", name, (long long)row, texts[0].data,
                 texts[1].data);
    cr_buf_free(&texts[0]);
    cr_buf_free(&texts[1]);
}

static cr_status read_all(const char *path, const char *name, const cr_buf *want, cr_err *err)
{
    cr_parquet *file;
    cr_buf line = {0};
    size_t at = 0, n;
    int64_t num = 0;

    CR_TRY(cr_parquet_open(path, &file, err));
    while (cr_parquet_next(file, &line, err) == CR_OK && line.num_bytes) {
        const char *text = want ? cr_line_next(want, &at, &n) : NULL;
        num++;
        if (want && !text) fail_msg("%s has a row %lld", name, (long long)num);
        if (want) check_row(name, num, &line, text, n);
    }
    if (err->status == CR_OK && num != cr_parquet_num_rows(file))
        fail_msg("%s: %lld rows of %lld", name, (long long)num,
                 (long long)cr_parquet_num_rows(file));
    if (want && err->status == CR_OK && cr_line_next(want, &at, &n))
        fail_msg("%s has only %lld rows", name, (long long)num);
    cr_buf_free(&line);
    cr_parquet_close(file);
    return err->status;
}

static void files_of_pyarrow(void **state)
{
    size_t num_read = 0;

    (void)state;
    for (size_t i = 0; i < num_names; i++) {
        char *path = path_of(names[i], ".parquet"), *rows = path_of(names[i], ".jsonl");
        cr_err err = {0};
        cr_buf want = {0};
        if (cr_file_exists(rows)) {
            assert_true(cr_parquet_is(path));
            if (cr_file_read(rows, &want, &err) != CR_OK ||
                read_all(path, names[i], &want, &err) != CR_OK)
                fail_msg("%s", err.msg);
            num_read++;
        }
        cr_buf_free(&want);
        cr_free(rows);
        cr_free(path);
    }
    assert_true(num_read >= 60);
}

static void refused_files(void **state)
{
    size_t num_refused = 0;

    (void)state;
    for (size_t i = 0; i < num_names; i++) {
        char *path = path_of(names[i], ".parquet"), *reason = path_of(names[i], ".error");
        cr_err err = {0}, ignored = {0};
        cr_buf want = {0};
        if (cr_file_exists(reason)) {
            double begin = cr_now_s();
            assert_int_equal(cr_file_read(reason, &want, &ignored), CR_OK);
            want.data[strcspn(want.data, "\n")] = 0;
            if (read_all(path, names[i], NULL, &err) == CR_OK || !strstr(err.msg, want.data) ||
                strncmp(err.msg, path, strlen(path)) != 0 || cr_exit_code(err.status) != 2)
                fail_msg("%s: %s instead of %s", names[i], err.msg, want.data);
            if (cr_now_s() - begin > 60) fail_msg("%s takes long", names[i]);
            num_refused++;
        }
        cr_buf_free(&want);
        cr_free(reason);
        cr_free(path);
    }
    assert_true(num_refused >= 37);
}

/* ---- datasets ---- */

/* A row without "id" is wrong. */
static cr_status one_id(void *ctx, cr_row *row, cr_err *err)
{
    (void)ctx;
    if (!json_is_string(json_object_get(row->json, "id"))) return cr_fail(err, CR_EFORMAT, "no id");
    row->ids = CR_NEW_ARRAY(int32_t, 1);
    row->num_ids = 1;
    return CR_OK;
}

static const cr_row_coder one = {.encode = one_id};

static void rows_of_a_dataset(void **state)
{
    cr_dataset lines = {0}, rows = {0};
    cr_err err = {0};

    (void)state;
    if (cr_dataset_load(&lines, FOLDER "/chats_zstd.jsonl", &one, &err) != CR_OK ||
        cr_dataset_load(&rows, FOLDER "/chats_zstd.parquet", &one, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(lines.num_rows, 6);
    assert_int_equal(rows.num_rows, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_true(json_equal(lines.rows[i].json, rows.rows[i].json));
        assert_int_equal(rows.rows[i].line, (int)i + 1);
        assert_int_equal(rows.rows[i].domain, -1);
    }
    assert_true(rows.sum != 0 && rows.sum != lines.sum);
    assert_int_equal(cr_dataset_load(&rows, FOLDER "/grouped.parquet", &one, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "grouped.parquet: row 1: no id (and 44 more wrong rows in "));
    assert_int_equal(rows.num_rows, 6);
    cr_dataset_free(&lines);
    cr_dataset_free(&rows);
}

/* ---- broken copies ---- */

/* A file in memory. */
typedef struct copy {
    int fd;
    char path[64];
} copy;

static copy make_copy(void)
{
    copy c = {.fd = memfd_create("parquet", MFD_CLOEXEC)};

    CR_CHECK(c.fd >= 0, "no file in memory");
    snprintf(c.path, sizeof c.path, "/proc/self/fd/%d", c.fd);
    return c;
}

static void put(const copy *c, const char *data, size_t num)
{
    CR_CHECK(ftruncate(c->fd, 0) == 0 && pwrite(c->fd, data, num, 0) == (ssize_t)num, "%zu bytes",
             num);
}

static void check_broken(size_t num, uint64_t seed)
{
    const copy c = make_copy();
    size_t num_read = 0;

    for (size_t k = 0; k < num; k++) {
        char *path = path_of(names[k % num_names], ".parquet");
        cr_err err = {0};
        cr_buf text = {0}, out = {0};
        if (cr_file_read(path, &text, &err) != CR_OK) fail_msg("%s", err.msg);
        if (k % 3) { /* bytes alone */
            mutator m = {.seed = seed + k};
            for (size_t n = 1 + mutate_draw(&m, 3); n; n--)
                text.data[mutate_draw(&m, text.num_bytes)] ^= (char)(1 << mutate_draw(&m, 8));
            cr_buf_add(&out, text.data, text.num_bytes);
        } else {
            mutate(text.data, text.num_bytes, seed + k, &out);
        }
        put(&c, out.data, out.num_bytes);
        num_read += read_all(c.path, names[k % num_names], NULL, &err) == CR_OK;
        if (err.status != CR_OK && !strstr(err.msg, c.path)) fail_msg("%s", err.msg);
        cr_buf_free(&text);
        cr_buf_free(&out);
        cr_free(path);
    }
    printf("%zu broken copies: %zu are read, the others refused\n", num, num_read);
    close(c.fd);
}

static void broken_copies(void **state)
{
    (void)state;
    check_broken(1000, 1);
}

static void cut_copies(void **state)
{
    char *path = path_of("nested", ".parquet");
    const copy c = make_copy();
    cr_err err = {0};
    cr_buf text = {0};

    (void)state;
    if (cr_file_read(path, &text, &err) != CR_OK) fail_msg("%s", err.msg);
    for (size_t n = 4; n < text.num_bytes; n += 1 + n / 20) {
        err = (cr_err){0};
        put(&c, text.data, n);
        if (read_all(c.path, "cut", NULL, &err) == CR_OK || !strstr(err.msg, "it ends early"))
            fail_msg("%zu bytes: %s", n, err.msg);
    }
    cr_buf_free(&text);
    close(c.fd);
    cr_free(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_pyarrow), cmocka_unit_test(refused_files),
        cmocka_unit_test(rows_of_a_dataset), cmocka_unit_test(broken_copies),
        cmocka_unit_test(cut_copies)};
    int code = 0;

    list_files();
    if (argc > 2 && strcmp(argv[1], "broken") == 0) {
        check_broken(strtoul(argv[2], NULL, 10), argc > 3 ? strtoull(argv[3], NULL, 10) : 100000);
    } else {
        code = cmocka_run_group_tests(tests, NULL, NULL);
    }
    for (size_t i = 0; i < num_names; i++)
        cr_free(names[i]);
    return code;
}
