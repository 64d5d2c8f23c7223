/* recorded.c -- see recorded.h. */
#include "pipelines/replay/recorded.h"
#include "actors/distribution.h"
#include "base/digest.h"
#include "configs/configs.h"
#include "samples/messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- rows of the data files ---- */

typedef struct row_at {
    uint64_t sum; /* of its ids */
    uint32_t index;
} row_at;

static uint64_t sum_of(const int32_t *ids, size_t num)
{
    return cr_sum_bytes(0, ids, num * sizeof *ids);
}

static int by_sum(const void *a, const void *b)
{
    const row_at *x = a, *y = b;

    if (x->sum != y->sum) return x->sum < y->sum ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

typedef struct reading {
    const cr_config *config;
    const cr_dataset *data;
    row_at *rows; /* [data->num_rows] in order of sums (owned) */
    cr_rollout *out;
    size_t capacity;
} reading;

static void index_rows(reading *r)
{
    r->rows = CR_NEW_ARRAY(row_at, r->data->num_rows);
    for (size_t i = 0; i < r->data->num_rows; i++)
        r->rows[i] = (row_at){sum_of(r->data->rows[i].ids, r->data->rows[i].num_ids), (uint32_t)i};
    if (r->data->num_rows) qsort(r->rows, r->data->num_rows, sizeof *r->rows, by_sum);
}

/* The row with these ids and this text; -1: none. */
static int64_t find_row(const reading *r, const int32_t *ids, size_t num_ids, const json_t *json)
{
    const row_at key = {sum_of(ids, num_ids), 0};
    size_t low = 0, high = r->data->num_rows;

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (by_sum(&r->rows[mid], &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < r->data->num_rows && r->rows[low].sum == key.sum; low++) {
        const cr_row *row = &r->data->rows[r->rows[low].index];
        if (row->num_ids == num_ids && memcmp(row->ids, ids, num_ids * sizeof *ids) == 0 &&
            json_equal(row->json, json))
            return r->rows[low].index;
    }
    return -1;
}

/* The first sample of a group has its row, the others follow it. */
static cr_status place(const reading *r, const cr_sample_line *line, cr_sample *s, cr_err *err)
{
    const size_t num = r->out->num_samples;
    int64_t row;

    s->group = num / r->out->group_size;
    if (num % r->out->group_size) {
        s->row = s[-1].row;
        return CR_OK;
    }
    if (!line->row.value)
        return cr_fail(err, CR_EFORMAT, "row is missing, which the first sample of a group has");
    row = find_row(r, line->prompt_ids.data, line->prompt_ids.num, line->row.value);
    if (row < 0)
        return cr_fail(err, CR_EABSENT,
                       "its row is not in the data files, or has another prompt there");
    s->row = (uint32_t)row;
    return CR_OK;
}

/* A train rank has room for it, and it was drawn as the configuration says. */
static cr_status check(const reading *r, const cr_sample *s, cr_err *err)
{
    const cr_distribution of = cr_distribution_of(r->config, s->domain);
    size_t num = s->num_ids + r->data->rows[s->row].num_ids;

    if (num > (size_t)r->config->sequence_length)
        return cr_fail(err, CR_EFORMAT, "%zu tokens, more than sequence_length %lld", num,
                       (long long)r->config->sequence_length);
    return cr_distribution_check(&of, s->kept.num != NULL, err);
}

static void count(cr_rollout *out, const cr_config *config, const cr_dataset *data,
                  const cr_sample *s)
{
    out->num_timeouts += s->outcome == CR_OUTCOME_TIMEOUT;
    out->num_errors += s->outcome == CR_OUTCOME_ERROR;
    out->num_abstained += s->outcome == CR_OUTCOME_ABSTAIN;
    out->num_prompt_tokens += data->rows[s->row].num_ids;
    out->num_response_tokens += s->num_ids;
    if (!out->failure && !cr_sample_has_verdict(s)) out->failure = cr_sample_reason(config, s);
}

static cr_status add_line(reading *r, const char *text, size_t num_bytes, cr_err *err)
{
    cr_rollout *out = r->out;
    cr_arena *memory;
    cr_sample_line line;
    cr_sample *s;
    json_t *root = NULL;

    CR_TRY(cr_json_parse_integers(text, num_bytes, NULL, CR_JSON_EXACT, &root, err));
    memory = cr_arena_create(1 << 16);
    out->samples = cr_grow(out->samples, out->num_samples, &r->capacity, sizeof *out->samples);
    s = &out->samples[out->num_samples];
    cr_note(cr_sample_line_read(root, r->config, memory, &line, s, err));
    if (err->status == CR_OK) cr_note(place(r, &line, s, err));
    if (err->status == CR_OK) cr_note(check(r, s, err));
    out->num_samples++; /* cr_rollout_free has it, too */
    if (err->status == CR_OK) count(out, r->config, r->data, s);
    cr_arena_destroy(memory);
    json_decref(root);
    return err->status;
}

char *cr_recorded_path(const char *folder, int64_t step)
{
    return cr_asprintf("%s/rollouts/step-%06lld.jsonl", folder, (long long)step);
}

cr_status cr_recorded_rollout(const char *folder, int64_t step, const cr_config *config,
                              const cr_dataset *data, cr_rollout *out, cr_err *err)
{
    reading r = {.config = config, .data = data, .out = out};
    char *path = cr_recorded_path(folder, step);
    cr_buf text = {0};
    size_t at = 0, num, number = 0;

    *out = (cr_rollout){.group_size = (size_t)config->group_size};
    if (cr_file_read(path, &text, err) == CR_OK) index_rows(&r);
    for (const char *line; err->status == CR_OK && (line = cr_line_next(&text, &at, &num));) {
        number++;
        if (add_line(&r, line, num, err) != CR_OK) cr_fail_add(err, "%s, line %zu", path, number);
    }
    if (err->status == CR_OK &&
        out->num_samples != (size_t)(config->rollout_batch_size * config->group_size))
        cr_fail(err, CR_EFORMAT, "%s has %zu samples, not the %lld of a step", path,
                out->num_samples, (long long)(config->rollout_batch_size * config->group_size));
    out->num_groups = out->num_drawn = out->num_samples / out->group_size;
    cr_free(r.rows);
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}

/* ---- places in the data ---- */

static bool are_equal(const cr_row *a, const cr_row *b)
{
    return a == b ||
           (a->num_ids == b->num_ids && memcmp(a->ids, b->ids, a->num_ids * sizeof *a->ids) == 0 &&
            json_equal(a->json, b->json));
}

/* Draws up to the group's row; returns how many, 0: the domain does not have it. */
static size_t draw_to(const cr_row *rows, const cr_row *want, cr_order *order, cr_cursor *cursor)
{
    for (size_t n = 1; n <= 2 * order->num; n++) /* each epoch has each row */
        if (are_equal(&rows[cr_order_draw(order, cursor)], want)) return n;
    return 0;
}

/* A group that is rejected is replaced by one draw of its domain, so the last draw of each is kept, and all draws
 * together are one more than the last one's number. */
bool cr_recorded_follow(const cr_rollout *r, const cr_dataset *data, cr_order *orders,
                        cr_cursor *cursors, size_t num_domains)
{
    cr_cursor *before = CR_NEW_ARRAY(cr_cursor, num_domains);
    size_t num = 0, last = 0, n = 1;

    memcpy(before, cursors, num_domains * sizeof *cursors);
    for (size_t i = 0; i < r->num_samples && n > 0; i += r->group_size) {
        const cr_sample *s = &r->samples[i];
        const size_t draw = cr_sample_id_parse(s->id).draw;
        n = draw_to(data->rows, &data->rows[s->row], &orders[s->domain], &cursors[s->domain]);
        num += n;
        last = draw > last ? draw : last;
    }
    if (n == 0 || num != last + 1) memcpy(cursors, before, num_domains * sizeof *cursors);
    cr_free(before);
    return n > 0 && num == last + 1;
}
