/* report.c -- see report.h. Each curve is an inline SVG; the order of the first ones is the order in
 * which a person looks: does it learn, does it stay near, what does it cost. */
#include "actors/report.h"
#include "base/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const curves[] = {
    "critic/score/mean",
    "val_correct/all/mean",
    "sft_train/loss",
    "actor/total_loss",
    "actor/pg_loss",
    "actor/kl_loss",
    "critic/entropy/mean",
    "actor/clipfrac",
    "actor_train/grad_norm",
    "sft_train/grad_norm",
    "token/response_length/mean",
    "actor/lr",
    "sft_train/lr",
    "actor/train_infer_diff_max",
    "system/tps/tps",
    "time/step_total",
    "time/step_generate",
    "time/step_train",
};

static void add_text(cr_buf *out, const char *text, size_t num_bytes)
{
    for (size_t i = 0; i < num_bytes; i++)
        switch (text[i]) {
        case '<':
            cr_buf_adds(out, "&lt;");
            break;
        case '>':
            cr_buf_adds(out, "&gt;");
            break;
        case '&':
            cr_buf_adds(out, "&amp;");
            break;
        case '"':
            cr_buf_adds(out, "&quot;");
            break;
        default:
            cr_buf_addc(out, text[i]);
        }
}

/* rows: the parsed lines of metrics.jsonl. Nothing is drawn for a metric that no line has. */
static void add_curve(cr_buf *out, json_t *rows, const char *name)
{
    double least = 0, most = 0, last = 0, first_step = 0, last_step = 0;
    size_t num = 0, i;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        json_t *x = json_object_get(row, name);
        double v = json_number_value(x), step = json_number_value(json_object_get(row, "step"));
        if (!x) continue;
        if (num == 0) least = most = v, first_step = step;
        if (v < least) least = v;
        if (v > most) most = v;
        last = v;
        last_step = step;
        num++;
    }
    if (num == 0) return;
    cr_buf_adds(out, "<figure><figcaption>");
    add_text(out, name, strlen(name));
    cr_buf_addf(out, " <b>%.4g</b></figcaption><svg viewBox=\"0 0 320 120\"><polyline points=\"",
                last);
    json_array_foreach(rows, i, row)
    {
        json_t *x = json_object_get(row, name);
        double step = json_number_value(json_object_get(row, "step"));
        if (!x) continue;
        cr_buf_addf(
            out, "%.1f,%.1f ",
            last_step > first_step ? 4 + 312 * (step - first_step) / (last_step - first_step) : 160,
            most > least ? 112 - 104 * (json_number_value(x) - least) / (most - least) : 60);
    }
    cr_buf_addf(out, "\"/></svg><small>%.4g to %.4g, steps %.0f to %.0f</small></figure>\n", least,
                most, first_step, last_step);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The first five samples of one rollouts file. */
static void add_samples(cr_buf *out, const char *path, const char *title)
{
    cr_buf text = {0};
    cr_err ignored = {0};
    int num = 0;

    if (cr_file_read(path, &text, &ignored) != CR_OK) return;
    cr_buf_addf(out, "<h2>%s</h2><table><tr><th>score<th>prompt<th>response</tr>\n", title);
    for (char *line = text.data; line && *line && num < 5; num++) {
        char *end = strchr(line, '\n');
        json_t *row = NULL;
        cr_err bad = {0};
        if (!end) break;
        if (cr_json_parse(line, (size_t)(end - line), path, &row, &bad) == CR_OK) {
            json_t *prompt = json_object_get(row, "prompt"),
                   *response = json_object_get(row, "response");
            cr_buf_addf(out, "<tr><td>%.3g<td><pre>",
                        json_number_value(json_object_get(row, "score")));
            if (prompt) add_text(out, json_string_value(prompt), json_string_length(prompt));
            cr_buf_adds(out, "</pre><td><pre>");
            if (response) add_text(out, json_string_value(response), json_string_length(response));
            cr_buf_adds(out, "</pre></tr>\n");
        }
        json_decref(row);
        line = end + 1;
    }
    cr_buf_adds(out, "</table>\n");
    cr_buf_free(&text);
}

static void add_rollouts(cr_buf *out, const char *output_dir)
{
    char *folder = cr_path_join(output_dir, "rollouts"), *names[4096];
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t num = 0;

    while (dir && num < CR_COUNT(names) && (entry = readdir(dir)))
        if (strncmp(entry->d_name, "step-", 5) == 0)
            names[num++] = cr_path_join(folder, entry->d_name);
    if (dir) closedir(dir);
    qsort(names, num, sizeof *names, by_name);
    if (num) add_samples(out, names[0], "Samples of the first step");
    if (num > 1) add_samples(out, names[num - 1], "Samples of the last step");
    for (size_t i = 0; i < num; i++)
        cr_free(names[i]);
    cr_free(folder);
}

cr_status cr_report_write(const char *output_dir, const char *title, cr_err *err)
{
    char *metrics = cr_path_join(output_dir, "metrics.jsonl"),
         *path = cr_path_join(output_dir, "run.html");
    cr_buf text = {0}, out = {0};
    json_t *rows = json_array();
    cr_status status = cr_file_read(metrics, &text, err);

    for (char *line = text.data; status == CR_OK && line && *line;) {
        char *end = strchr(line, '\n');
        json_t *row = NULL;
        if (!end) break;
        status = cr_json_parse(line, (size_t)(end - line), metrics, &row, err);
        if (row) json_array_append_new(rows, row);
        line = end + 1;
    }
    if (status == CR_OK) {
        cr_buf_adds(&out, "<!doctype html><meta charset=utf-8><title>");
        add_text(&out, title, strlen(title));
        cr_buf_adds(&out, "</title><style>body{font:14px "
                          "sans-serif;margin:2em;color:#222}figure{display:inline-block;width:"
                          "330px;margin:6px}svg{width:320px;background:#f6f6f4}polyline{fill:none;"
                          "stroke:#2457a6;stroke-width:1.5"
                          "}small{color:#666}pre{white-space:pre-wrap;margin:0}td{vertical-align:"
                          "top;padding:4px 10px;border-top:"
                          "1px solid #ddd}</style><h1>");
        add_text(&out, title, strlen(title));
        cr_buf_adds(&out, "</h1>\n");
        for (size_t i = 0; i < CR_COUNT(curves); i++)
            add_curve(&out, rows, curves[i]);
        add_rollouts(&out, output_dir);
        status = cr_file_write_atomic(path, out.data, out.num_bytes, err);
    }
    json_decref(rows);
    cr_buf_free(&text);
    cr_buf_free(&out);
    cr_free(metrics);
    cr_free(path);
    return status;
}
