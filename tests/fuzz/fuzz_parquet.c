/* fuzz_parquet.c -- arbitrary bytes as a Parquet file: rows that are JSON objects, or a refusal that names the file. */
#include "base/json.h"
#include "parquet/parquet.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_ROWS = 20000 };
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_row(const cr_buf *line)
{
    json_t *row;
    cr_err err = {0};

    if (cr_json_parse_integers(line->data, line->num_bytes, "row", CR_JSON_EXACT, &row, &err) !=
        CR_OK)
        CR_CHECK(strstr(err.msg, "duplicate") || strstr(err.msg, "depth"), "%s: %.300s", err.msg,
                 line->data); /* keys of a map */
    else
        CR_CHECK(json_is_object(row), "%.300s", line->data);
    json_decref(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    cr_parquet *file;
    cr_buf line = {0};
    cr_err err = {0};
    char path[64];

    CR_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size, "%zu bytes of a file", size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)!cr_parquet_is(path);
    if (cr_parquet_open(path, &file, &err) == CR_OK) {
        for (int i = 0;
             i < MAX_ROWS && cr_parquet_next(file, &line, &err) == CR_OK && line.num_bytes; i++)
            if (line.num_bytes < 1 << 20) check_row(&line);
        cr_parquet_close(file);
        cr_buf_free(&line);
    }
    CR_CHECK(err.status == CR_OK || strncmp(err.msg, path, strlen(path)) == 0, "%s", err.msg);
    close(fd);
    return 0;
}
