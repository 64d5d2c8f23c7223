/* rollout_files.c -- see rollout_files.h. */
#include "reports/rollout_files.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

size_t cr_rollout_files(const char *folder, char ***paths)
{
    char *inside = cr_path_join(folder, "rollouts");
    const char *from = cr_dir_exists(inside) ? inside : folder;
    DIR *dir = opendir(from);
    struct dirent *entry;
    size_t num = 0, capacity = 0;

    *paths = NULL;
    while (dir && (entry = readdir(dir))) {
        if (strncmp(entry->d_name, "step-", 5) != 0) continue;
        *paths = cr_grow(*paths, num, &capacity, sizeof **paths);
        (*paths)[num++] = cr_path_join(from, entry->d_name);
    }
    if (dir) closedir(dir);
    if (num) qsort(*paths, num, sizeof **paths, by_name);
    cr_free(inside);
    return num;
}
