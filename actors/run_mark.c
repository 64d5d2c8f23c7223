/* run_mark.c -- see run_mark.h. */
#include "actors/run_mark.h"
#include "base/children.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char file[] = ".croll-run";
static const double SEEN_WITHIN_S = 3; /* a network's file system may show a new file late */

void cr_run_mark_make(char mark[CR_RUN_MARK])
{
    snprintf(mark, CR_RUN_MARK, "%s:%016llx", cr_host_name(), (unsigned long long)cr_rng_chance());
}

cr_status cr_run_mark_write(const char *folder, const char *mark, cr_err *err)
{
    char *path = cr_path_join(folder, file);

    cr_note(cr_file_write_atomic(path, mark, strlen(mark), err));
    cr_free(path);
    return err->status;
}

static bool is_there(const char *path, const char *mark)
{
    cr_buf text = {0};
    cr_err ignored = {0};
    bool is_same = cr_file_read(path, &text, &ignored) == CR_OK && text.num_bytes == strlen(mark) &&
                   memcmp(text.data, mark, text.num_bytes) == 0;

    cr_buf_free(&text);
    return is_same;
}

bool cr_run_mark_is_in(const char *folder, const char *mark, bool is_expected)
{
    char *path = cr_path_join(folder, file);
    double until_s = cr_now_s() + (is_expected ? SEEN_WITHIN_S : 0);
    bool is_in;

    while (!(is_in = is_there(path, mark)) && cr_now_s() < until_s)
        cr_sleep_s(0.1);
    cr_free(path);
    return is_in;
}

cr_status cr_run_mark_check(const char *folder, const char *key, const char *mark, cr_err *err)
{
    if (cr_run_mark_is_in(folder, mark, true)) return CR_OK;
    return cr_fail(
        err, CR_ECONFIG,
        "%s %s is not the folder that the launcher on %.*s has there: put it on a file "
        "system that all hosts of the run share, or choose checkpoint_config.hosts: gather or "
        "each (nothing was started)",
        key, folder, (int)strcspn(mark, ":"), mark);
}

void cr_run_mark_remove(const char *folder)
{
    char *path = cr_path_join(folder, file);

    unlink(path);
    cr_free(path);
}
