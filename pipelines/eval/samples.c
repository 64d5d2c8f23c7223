/* samples.c -- see samples.h. */
#include "pipelines/eval/samples.h"
#include "reports/thumbnails/thumbnails.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lines ---- */

static cr_status add_column(cr_buf *out, const char *name, const json_t *value, cr_err *err)
{
    cr_buf_addf(out, ",\"%s\":", name);
    if (value) return cr_json_add_value(out, value, err);
    cr_buf_adds(out, "null");
    return CR_OK;
}

static void add_text(cr_buf *out, const char *name, const char *text, size_t num_bytes)
{
    cr_buf_addf(out, ",\"%s\":", name);
    if (text)
        cr_json_add_string(out, text, num_bytes);
    else
        cr_buf_adds(out, "null");
}

/* Without a verdict there is no score. */
static cr_status add_score(cr_buf *out, const char *name, const cr_sample *s, double x, cr_err *err)
{
    cr_buf_addf(out, ",\"%s\":", name);
    if (cr_sample_has_verdict(s)) return cr_json_add_double(out, x, err);
    cr_buf_adds(out, "null");
    return CR_OK;
}

static cr_status add_sample(const cr_eval_file *f, const cr_sample *s, size_t index, cr_buf *out,
                            cr_err *err)
{
    const cr_row *row = &f->data->rows[s->row];
    const json_t *id = json_object_get(row->json, "id");
    const char *domain = f->config->rewards[s->domain].domain, *tag = cr_row_tag(f->config, row),
               *status = cr_outcome_name(s->outcome);
    char *answer = cr_sample_answer(f->config, s, row);
    json_t *images = row->num_images ? cr_thumbnails_references(row->json) : NULL;

    cr_buf_adds(out, "{\"id\":");
    if (id)
        cr_note(cr_json_add_value(out, id, err));
    else
        cr_buf_addf(out, "%u", s->row);
    cr_buf_addf(out, ",\"index\":%zu,\"row\":%u", index, s->row);
    add_text(out, "domain", domain, strlen(domain));
    add_text(out, "tag", tag, tag ? strlen(tag) : 0);
    cr_note(add_column(out, "prompt", row->asked, err));
    if (images) cr_note(add_column(out, "images", images, err));
    cr_note(add_column(out, "ground_truth", json_object_get(row->json, "ground_truth"), err));
    add_text(out, "text", s->response ? s->response : "", s->response_bytes);
    add_text(out, "vote", answer, answer ? strlen(answer) : 0);
    cr_note(add_score(out, "score", s, s->score, err));
    cr_note(add_score(out, "reward", s, s->reward, err));
    add_text(out, "status", status, strlen(status));
    add_text(out, "detail", s->detail ? s->detail : "", s->detail ? strlen(s->detail) : 0);
    add_text(out, "finish", s->finish, strlen(s->finish));
    cr_buf_addf(out, ",\"tokens\":%zu}\n", s->num_ids);
    json_decref(images);
    cr_free(answer);
    return err->status;
}

cr_status cr_eval_file_put(cr_eval_file *f, const cr_sample *samples, cr_err *err)
{
    cr_buf out = {0};
    size_t at = 0;

    for (size_t i = 0; i < f->group_size && err->status == CR_OK; i++)
        cr_note(add_sample(f, &samples[i], i, &out, err));
    while (err->status == CR_OK && at < out.num_bytes) {
        ssize_t n = write(f->fd, out.data + at, out.num_bytes - at);
        if (n > 0)
            at += (size_t)n;
        else if (errno != EINTR)
            cr_fail(err, CR_EIO, "cannot write %s: %s", f->path, strerror(errno));
    }
    cr_buf_free(&out);
    if (err->status != CR_OK) return err->status;
    f->is_done[samples->row] = true;
    f->num_done++;
    return CR_OK;
}

/* ---- what is there ---- */

/* Where the lines of each row begin, and how many bytes they have; 0 bytes: they are not there. */
typedef struct span {
    size_t begin, num_bytes;
} span;

/* The line is sample `index` of *row, which it sets if index is 0. */
static bool is_sample(const cr_eval_file *f, const char *line, size_t n, size_t index, size_t *row)
{
    cr_err ignored = {0};
    json_t *x = NULL;
    const json_t *of;
    bool is_so = false;

    if (cr_json_parse(line, n, NULL, &x, &ignored) != CR_OK) return false;
    of = json_object_get(x, "row");
    if (json_is_integer(of) && json_is_integer(json_object_get(x, "index")) &&
        json_integer_value(json_object_get(x, "index")) == (json_int_t)index &&
        json_integer_value(of) >= 0 && (size_t)json_integer_value(of) < f->data->num_rows) {
        if (index == 0) *row = (size_t)json_integer_value(of);
        is_so = *row == (size_t)json_integer_value(of);
    }
    json_decref(x);
    return is_so;
}

/* Whole rows from the start of the text on; returns where they end. */
static size_t find_rows(const cr_eval_file *f, const cr_buf *text, span *rows)
{
    size_t at = 0, begin = 0, n, row = 0, num = 0;

    for (const char *line; (line = cr_line_next(text, &at, &n));) {
        if (at > text->num_bytes || text->data[at - 1] != '\n' || !is_sample(f, line, n, num, &row))
            return begin;
        if (++num < f->group_size) continue;
        rows[row] = (span){begin, at - begin};
        begin = at;
        num = 0;
    }
    return begin;
}

cr_status cr_eval_file_open(cr_eval_file *f, const cr_config *config, const cr_dataset *data,
                            cr_err *err)
{
    span *rows = CR_NEW_ARRAY(span, data->num_rows);
    cr_buf text = {0};
    size_t end = 0;

    *f = (cr_eval_file){.config = config,
                        .data = data,
                        .group_size = (size_t)config->validation.generating.num_return_sequences,
                        .path = cr_path_join(config->output_dir, CR_EVAL_SAMPLES),
                        .is_done = CR_NEW_ARRAY(bool, data->num_rows),
                        .fd = -1};
    if (cr_file_exists(f->path) && cr_file_read(f->path, &text, err) == CR_OK)
        end = find_rows(f, &text, rows);
    for (size_t i = 0; i < data->num_rows; i++) {
        f->is_done[i] = rows[i].num_bytes > 0;
        f->num_done += f->is_done[i];
    }
    if (err->status == CR_OK) {
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (f->fd < 0 || ftruncate(f->fd, (off_t)end) != 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", f->path, strerror(errno));
    }
    if (err->status == CR_OK && f->num_done)
        cr_log(CR_LOG_INFO, "eval", "%zu rows are in %s already", f->num_done, f->path);
    cr_buf_free(&text);
    cr_free(rows);
    return err->status;
}

void cr_eval_file_close(cr_eval_file *f)
{
    if (f->path && f->fd >= 0) close(f->fd);
    cr_free(f->path);
    cr_free(f->is_done);
    *f = (cr_eval_file){.fd = -1};
}

/* ---- the end ---- */

/* The samples of one row, as the file has them, into the sums. */
static cr_status add_row(const cr_eval_file *f, const char *text, size_t num_bytes,
                         cr_validation *v, cr_err *err)
{
    json_t **lines = CR_NEW_ARRAY(json_t *, f->group_size);
    const char **answer = CR_NEW_ARRAY(const char *, f->group_size);
    double *score = CR_NEW_ARRAY(double, f->group_size);
    const cr_buf part = {.data = (char *)(uintptr_t)text, .num_bytes = num_bytes};
    cr_validated g = {.score = score, .answer = answer};
    size_t at = 0, n, num = 0;

    for (const char *line; num < f->group_size && (line = cr_line_next(&part, &at, &n)); num++) {
        CR_TRY_GOTO(out, cr_json_parse(line, n, f->path, &lines[num], err));
        g.tag = json_string_value(json_object_get(lines[num], "tag"));
        g.domain = json_string_value(json_object_get(lines[num], "domain"));
        if (!g.domain) {
            cr_fail(err, CR_EFORMAT, "%s: a line has no domain", f->path);
            goto out;
        }
        if (!json_is_number(json_object_get(lines[num], "score"))) {
            g.num_without++;
            continue;
        }
        score[g.n] = json_number_value(json_object_get(lines[num], "score"));
        answer[g.n++] = json_string_value(json_object_get(lines[num], "vote"));
    }
    cr_validation_add(v, &g);
out:
    for (size_t i = 0; i < f->group_size; i++)
        json_decref(lines[i]);
    cr_free(lines);
    cr_free(answer);
    cr_free(score);
    return err->status;
}

cr_status cr_eval_file_sort(cr_eval_file *f, cr_validation *v, cr_err *err)
{
    span *rows = CR_NEW_ARRAY(span, f->data->num_rows);
    cr_buf text = {0}, sorted = {0};

    CR_TRY_GOTO(out, cr_file_read(f->path, &text, err));
    find_rows(f, &text, rows);
    cr_buf_reserve(&sorted, text.num_bytes);
    for (int d = 0; d < (int)f->config->num_rewards; d++) /* as a run's validation adds them up */
        for (size_t i = 0; i < f->data->num_rows; i++)
            if (rows[i].num_bytes && f->data->rows[i].domain == d)
                CR_TRY_GOTO(out, add_row(f, text.data + rows[i].begin, rows[i].num_bytes, v, err));
    for (size_t i = 0; i < f->data->num_rows; i++)
        cr_buf_add(&sorted, text.data + rows[i].begin, rows[i].num_bytes);
    cr_note(cr_file_write_atomic(f->path, sorted.data ? sorted.data : "", sorted.num_bytes, err));
out:
    cr_buf_free(&text);
    cr_buf_free(&sorted);
    cr_free(rows);
    return err->status;
}
