/* folder.h -- for targets of files: a folder of this process, in memory if there is such a place, that is
 * removed at the end. */
#ifndef CR_FUZZ_FOLDER_H
#define CR_FUZZ_FOLDER_H

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fuzz_folder[64]; /* "" before fuzz_begin */

static void fuzz_end(void)
{
    cr_err err = {0};

    cr_note(cr_remove_tree(fuzz_folder, &err));
}

/* With a folder inside. */
static void fuzz_begin(const char *inner)
{
    cr_err err = {0};
    char *path;

    snprintf(fuzz_folder, sizeof fuzz_folder, "%s/croll-fuzz-%d",
             cr_dir_exists("/dev/shm") ? "/dev/shm" : "/tmp", (int)getpid());
    path = cr_path_join(fuzz_folder, inner);
    atexit(fuzz_end);
    CR_CHECK(cr_mkdirs(path, &err) == CR_OK, "%s", err.msg);
    cr_free(path);
}

static void fuzz_put(const char *name, const void *data, size_t size)
{
    char *path = cr_path_join(fuzz_folder, name);
    FILE *file = fopen(path, "wb");

    CR_CHECK(file && fwrite(data, 1, size, file) == size, "%s", path);
    fclose(file);
    cr_free(path);
}

/* Files that are apart by NULs; the last one may have some. */
static inline void fuzz_put_all(const char *const *names, size_t num, const uint8_t *data,
                                size_t size)
{
    for (size_t i = 0; i < num; i++) {
        size_t n = i + 1 < num ? strnlen((const char *)data, size) : size, used = n + (n < size);
        fuzz_put(names[i], data, n);
        data += used;
        size -= used;
    }
}

#endif
