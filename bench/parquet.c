/* parquet.c -- rows of a Parquet file: `bench_parquet FILE` says rows/s and MB/s of CPU time of one thread, of the reader alone (rows as
 * JSON text) and of all that a run does with a file but tokenizing (text, tree, sum); `bench_parquet print FILE` writes the rows to
 * stdout, a line each, for tests/parity/parquet_files.py --check. */
#include "parquet/parquet.h"
#include "data/data.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)
static cr_err err;

static int64_t read_rows(const char *path, bool prints)
{
    cr_parquet *file;
    cr_buf line = {0};
    int64_t num = 0;

    OK(cr_parquet_open(path, &file, &err));
    for (;; num++) {
        OK(cr_parquet_next(file, &line, &err));
        if (!line.num_bytes) break;
        if (prints) puts(line.data);
    }
    CR_CHECK(num == cr_parquet_num_rows(file), "%lld rows of %lld", (long long)num,
             (long long)cr_parquet_num_rows(file));
    cr_parquet_close(file);
    cr_buf_free(&line);
    return num;
}

static cr_status one_id(void *ctx, cr_row *row, cr_err *ignored)
{
    (void)ctx;
    (void)ignored;
    row->ids = CR_NEW_ARRAY(int32_t, 1);
    row->num_ids = 1;
    return CR_OK;
}

/* Of this process: others may use the machine. */
static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void say(const char *what, const char *path, int64_t num, double seconds)
{
    struct stat file;

    CR_CHECK(stat(path, &file) == 0, "%s", path);
    printf("%s: %lld rows in %.2f s, %.0f rows/s, %.1f MB/s of the file\n", what, (long long)num,
           seconds, (double)num / seconds, (double)file.st_size / seconds / 1e6);
}

int main(int argc, char **argv)
{
    cr_dataset data = {0};
    double begin = cpu_s();
    int64_t num;

    if (argc == 3 && strcmp(argv[1], "print") == 0) {
        read_rows(argv[2], true);
        return 0;
    }
    CR_CHECK(argc == 2, "bench_parquet [print] FILE");
    num = read_rows(argv[1], false);
    say("rows as text", argv[1], num, cpu_s() - begin);
    begin = cpu_s();
    OK(cr_dataset_load(&data, argv[1], &(cr_row_coder){.encode = one_id}, &err));
    say("rows of a run", argv[1], (int64_t)data.num_rows, cpu_s() - begin);
    cr_dataset_free(&data);
    return 0;
}
