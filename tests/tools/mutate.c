/* mutate.c -- broken copies of a file for scripts (mutate.h says how they are broken).
 *
 *     tool_mutate FILE NUM PREFIX    copies 0 .. NUM-1 of the file, as PREFIX0, PREFIX1 ..
 *     tool_mutate FILE NUM           NUM broken lines of a JSONL file, to stdout
 */
#include "tests/mutate.h"

#include <stdio.h>
#include <stdlib.h>

static cr_status write_copies(const cr_buf *base, size_t num, const char *prefix, cr_err *err)
{
    cr_buf mutant = {0};

    for (size_t i = 0; i < num && err->status == CR_OK; i++) {
        char *path = cr_asprintf("%s%zu", prefix, i);
        FILE *file = fopen(path, "wb");
        mutate(base->data, base->num_bytes, i, &mutant);
        if (!file || fwrite(mutant.data, 1, mutant.num_bytes, file) != mutant.num_bytes)
            cr_fail(err, CR_EIO, "cannot write %s", path);
        if (file) fclose(file);
        cr_free(path);
    }
    cr_buf_free(&mutant);
    return err->status;
}

static void write_lines(const cr_buf *base, size_t num)
{
    const char *line = base->data;
    cr_buf mutant = {0};

    for (size_t i = 0; i < num; i++) {
        size_t length = strcspn(line, "\n");
        mutate(line, length, i, &mutant);
        fwrite(mutant.data, 1, mutant.num_bytes, stdout);
        putchar('\n');
        line += length + (line[length] != 0);
        if (!*line) line = base->data;
    }
    cr_buf_free(&mutant);
}

int main(int argc, char **argv)
{
    cr_buf base = {0};
    cr_err err = {0};
    size_t num;

    if (argc < 3) return 2;
    num = strtoul(argv[2], NULL, 10);
    if (cr_file_read(argv[1], &base, &err) == CR_OK && argc > 3)
        cr_note(write_copies(&base, num, argv[3], &err));
    else if (err.status == CR_OK)
        write_lines(&base, num);
    if (err.status != CR_OK) fprintf(stderr, "%s\n", err.msg);
    cr_buf_free(&base);
    return cr_exit_code(err.status);
}
