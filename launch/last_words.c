/* last_words.c -- see last_words.h. */
#include "launch/last_words.h"
#include "base/children.h"

#include <stdio.h>
#include <string.h>

enum { PUT_SECONDS = 5 };

static char *key_of(const cr_layout *layout, int world_rank)
{
    const struct cr_role_ranks *ranks = &layout->role[cr_layout_role(layout, world_rank)];

    return cr_asprintf("hb:%s:%d:last", ranks->name, world_rank - ranks->first);
}

static char *path_of(const char *output_dir, int world_rank)
{
    return cr_asprintf("%s/flight/rank-%02d.last", output_dir, world_rank);
}

bool cr_last_words_put(cr_exchange *x, const cr_layout *layout, int world_rank,
                       const char *output_dir, const cr_err *why)
{
    char *key = key_of(layout, world_rank), *path = path_of(output_dir, world_rank),
         *line = cr_asprintf("%d %s %s", (int)why->status, cr_host_name(), why->msg);
    bool has_exchange = x && cr_exchange_is_connected(x);
    cr_err err = {0};

    if (has_exchange) {
        cr_exchange_set_deadline(x, PUT_SECONDS);
        has_exchange = cr_value_set(x, key, line, &err) == CR_OK;
    }
    err = (cr_err){0};
    if (!has_exchange) cr_note(cr_file_write_atomic(path, line, strlen(line), &err));
    cr_free(key);
    cr_free(path);
    cr_free(line);
    return has_exchange;
}

void cr_last_words_stay(void)
{
    cr_sleep_s(2 * CR_LAST_WORDS_S);
}

/* A failure of its own is a cause before a wait that was in vain, and that before the failure of another rank. */
static int weight_of(cr_status status)
{
    return status == CR_OK ? 0 : status == CR_EPEER ? 1 : status == CR_ETIMEOUT ? 2 : 3;
}

static void take(const cr_buf *line, int world_rank, cr_last_words *best)
{
    cr_last_words w = {.world_rank = world_rank};
    int status = 0, at = 0;

    if (!line->num_bytes || sscanf(line->data, "%d %63s %n", &status, w.host, &at) < 2 || !at)
        return;
    w.why.status = (cr_status)status;
    snprintf(w.why.msg, sizeof w.why.msg, "%s", line->data + at);
    if (weight_of(w.why.status) > weight_of(best->why.status)) *best = w;
}

cr_status cr_last_words_find(cr_exchange *x, const cr_layout *layout, const char *output_dir,
                             cr_last_words *out, cr_err *err)
{
    int num = layout->num_ranks;
    char **keys = CR_NEW_ARRAY(char *, num);
    cr_buf *lines = CR_NEW_ARRAY(cr_buf, num);

    *out = (cr_last_words){0};
    for (int r = 0; r < num; r++)
        keys[r] = x ? key_of(layout, r) : path_of(output_dir, r);
    if (x) cr_note(cr_values_get(x, (const char *const *)keys, (size_t)num, lines, err));
    for (int r = 0; r < num; r++) {
        cr_err absent = {0};
        if (!x && cr_file_exists(keys[r])) cr_note(cr_file_read(keys[r], &lines[r], &absent));
        take(&lines[r], r, out);
        cr_free(keys[r]);
        cr_buf_free(&lines[r]);
    }
    cr_free(keys);
    cr_free(lines);
    return err->status;
}
