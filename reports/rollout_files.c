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

json_t *cr_metrics_lines(const char *output_dir)
{
    char *path = cr_path_join(output_dir, "metrics.jsonl");
    json_t *rows = json_array();
    cr_buf text = {0};
    cr_err ignored = {0};
    size_t at = 0, n;

    if (cr_file_exists(path)) cr_note(cr_file_read(path, &text, &ignored));
    for (const char *line; (line = cr_line_next(&text, &at, &n));) {
        json_t *row = NULL;
        cr_err bad = {0};
        if (cr_json_parse(line, n, path, &row, &bad) == CR_OK) json_array_append_new(rows, row);
    }
    cr_buf_free(&text);
    cr_free(path);
    return rows;
}
