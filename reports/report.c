/* report.c -- see report.h. The order of the curves is the order in which a person looks: does it learn,
 * does it stay near, what does it cost. */
#include "reports/report.h"
#include "base/json.h"
#include "reports/html.h"
#include "reports/rollout_files.h"
#include "reports/timeline_html.h"
#include "reports/verdicts_html.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const curves[] = {
    "critic/score/mean",
    "val_correct/all/mean",
    "sft_train/loss",
    "sft_train/val_loss",
    "actor/loss",
    "rewards/accuracies",
    "rewards/margins",
    "val/rewards/accuracies",
    "actor/total_loss",
    "actor/pg_loss",
    "actor/kl_loss",
    "critic/entropy/mean",
    "actor/clipfrac",
    "actor_train/grad_norm",
    "sft_train/grad_norm",
    "token/response_length/mean",
    "scheduler/curriculum/solved",
    "scheduler/curriculum/easy",
    "scheduler/curriculum/hard",
    "actor/lr",
    "sft_train/lr",
    "actor/train_infer_diff_max",
    "system/tps/tps",
    "time/step_total",
    "time/step_generate",
    "time/step_train",
};

/* The last value of each that there is. */
static const struct {
    const char *metric, *text;
} cards[] = {{"critic/score/mean", "score, last step"},
             {"val_correct/all/mean", "validation, last one"},
             {"sft_train/loss", "loss"},
             {"actor/loss", "loss"},
             {"rewards/accuracies", "chosen above rejected, last step"},
             {"system/tps/tps", "tokens a second"},
             {"time/step_total", "seconds a step"}};

enum { WIDTH = 315, HEIGHT = 130, LEFT = 6, RIGHT = 309, TOP = 8, BOTTOM = 122 };

static double value_of(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

/* rows: the parsed lines of metrics.jsonl. Nothing is drawn for a metric that no line has. */
static void add_curve(cr_buf *out, json_t *rows, const char *name)
{
    double min = 0, max = 0, last = 0, first_step = 0, last_step = 0, x = 0, y = 0;
    size_t num = 0, i;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        double v = value_of(row, name), step = value_of(row, "step");
        if (!json_object_get(row, name)) continue;
        if (num == 0) min = max = v, first_step = step;
        if (v < min) min = v;
        if (v > max) max = v;
        last = v;
        last_step = step;
        num++;
    }
    if (num == 0) return;
    cr_buf_addf(out, "<figure><figcaption><b>%.4g</b>", last);
    cr_html_adds(out, name);
    cr_buf_addf(out,
                "</figcaption><svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\"><rect "
                "width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#f3f6fa\"/><polyline "
                "fill=\"none\" stroke=\"#2457a6\" stroke-width=\"1.6\" "
                "stroke-linejoin=\"round\" points=\"",
                WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    json_array_foreach(rows, i, row)
    {
        if (!json_object_get(row, name)) continue;
        x = last_step > first_step ? LEFT + (RIGHT - LEFT) * (value_of(row, "step") - first_step) /
                                                (last_step - first_step)
                                   : WIDTH / 2;
        y = max > min ? BOTTOM - (BOTTOM - TOP) * (value_of(row, name) - min) / (max - min)
                      : HEIGHT / 2;
        cr_buf_addf(out, "%.1f,%.1f ", x, y);
    }
    cr_buf_addf(
        out,
        "\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#2457a6\"/></svg><small>%.4g to "
        "%.4g, steps %.0f to %.0f</small></figure>\n",
        x, y, min, max, first_step, last_step);
}

/* Curves of each domain, if there are several: what a metric's name begins with, as `math_rule/`. */
static void add_domain_curves(cr_buf *out, json_t *rows)
{
    static const char *const shown[] = {"critic/score/mean", "val_correct/mean",
                                        "token/response_length/mean", "actor/final_mask_ratio"};
    json_t *domains = json_object(), *row, *value;
    const char *name;
    size_t i;

    json_array_foreach(rows, i, row) json_object_foreach(row, name, value)
    {
        const char *end = strstr(name, shown[0]);
        if (!end || end == name || strcmp(end, shown[0]) != 0) continue;
        json_object_setn_new(domains, name, (size_t)(end - name), json_true());
    }
    if (json_object_size(domains) > 1) {
        cr_buf_adds(out, "<h2>By domain</h2><div class=\"curves\">");
        for (i = 0; i < CR_COUNT(shown); i++)
            json_object_foreach(domains, name, value)
            {
                char *whole = cr_asprintf("%s%s", name, shown[i]);
                add_curve(out, rows, whole);
                cr_free(whole);
            }
        cr_buf_adds(out, "</div>\n");
    }
    json_decref(domains);
}

/* Curves of each reward, where samples have several: `DOMAIN/rewards/BLOCK/mean`. */
static void add_reward_curves(cr_buf *out, json_t *rows)
{
    json_t *names = json_object(), *row, *value;
    const char *name;
    size_t i;

    json_array_foreach(rows, i, row) json_object_foreach(row, name, value)
    {
        const char *block = strstr(name, "/rewards/"), *end = strrchr(name, '/');
        if (block && end > block + 9 && strcmp(end, "/mean") == 0)
            json_object_set_new(names, name, json_true());
    }
    if (json_object_size(names)) {
        cr_buf_adds(out, "<h2>By reward</h2><div class=\"curves\">");
        json_object_foreach(names, name, value) add_curve(out, rows, name);
        cr_buf_adds(out, "</div>\n");
    }
    json_decref(names);
}

/* Of its prompt; the first sample of a group has the row, and *has_images says whether it had some. */
static void add_images(cr_buf *out, cr_thumbnails *images, const json_t *sample, bool *has_images)
{
    const json_t *row = json_object_get(sample, "row");

    if (row)
        *has_images = cr_thumbnails_add(images, row, out);
    else if (*has_images)
        cr_buf_adds(out, "<small>images as above</small>");
}

static void add_sample(cr_buf *out, cr_thumbnails *images, const json_t *sample, bool *has_images)
{
    const json_t *prompt = json_object_get(sample, "prompt"),
                 *response = json_object_get(sample, "response"),
                 *score = json_object_get(sample, "score");

    cr_buf_adds(out, "<tr><td>");
    if (json_is_number(score))
        cr_buf_addf(out, "%.3g", json_number_value(score));
    else if (json_is_string(json_object_get(sample, "status")))
        cr_html_adds(out, json_string_value(json_object_get(sample, "status")));
    cr_buf_adds(out, "</td><td>");
    add_images(out, images, sample, has_images);
    cr_buf_adds(out, "<pre>");
    if (prompt) cr_html_add(out, json_string_value(prompt), json_string_length(prompt));
    cr_buf_adds(out, "</pre></td><td><pre>");
    if (response) cr_html_add(out, json_string_value(response), json_string_length(response));
    cr_buf_adds(out, "</pre></td></tr>\n");
}

/* The first five samples of one rollouts file. */
static void add_samples(cr_buf *out, cr_thumbnails *images, const char *path, const char *title)
{
    cr_buf text = {0};
    cr_err ignored = {0};
    size_t at = 0, n;
    int num = 0;
    bool has_images = false;

    if (cr_file_read(path, &text, &ignored) != CR_OK) return;
    cr_buf_addf(out, "<h2>%s</h2><table><tr><th>score</th><th>prompt</th><th>response</th></tr>\n",
                title);
    for (const char *line; num < 5 && (line = cr_line_next(&text, &at, &n)); num++) {
        json_t *sample = NULL;
        cr_err bad = {0};
        if (cr_json_parse(line, n, path, &sample, &bad) == CR_OK)
            add_sample(out, images, sample, &has_images);
        json_decref(sample);
    }
    cr_buf_adds(out, "</table>\n");
    cr_buf_free(&text);
}

static void add_rollouts(cr_buf *out, cr_thumbnails *images, const char *output_dir)
{
    char **names;
    size_t num = cr_rollout_files(output_dir, &names);

    if (num) add_samples(out, images, names[0], "Samples of the first step");
    if (num > 1) add_samples(out, images, names[num - 1], "Samples of the last step");
    for (size_t i = 0; i < num; i++)
        cr_free(names[i]);
    cr_free(names);
}

static void add_card(cr_buf *out, json_t *rows, const char *name, const char *what)
{
    size_t i = json_array_size(rows);

    while (i-- > 0) {
        json_t *row = json_array_get(rows, i);
        if (!json_object_get(row, name)) continue;
        cr_buf_addf(out, "<div class=\"card\"><b>%.4g</b><span>%s</span></div>",
                    value_of(row, name), what);
        return;
    }
}

static void add_cards(cr_buf *out, json_t *rows, const cr_timeline *t)
{
    double gathers, reductions;

    cr_buf_addf(out, "<div class=\"cards\"><div class=\"card\"><b>%zu</b><span>steps</span></div>",
                json_array_size(rows));
    for (size_t i = 0; i < CR_COUNT(cards); i++)
        add_card(out, rows, cards[i].metric, cards[i].text);
    if (t && cr_timeline_wait_share(t, &gathers, &reductions))
        cr_buf_addf(
            out,
            "<div class=\"card\"><b>%.1f %% + %.1f %%</b><span>of a training step waits for "
            "gathers + reductions</span></div>",
            100 * gathers, 100 * reductions);
    cr_buf_adds(out, "</div>\n");
}

/* What a curve does not show: samples without a score, steps that changed no weight. */
static void add_verdicts(cr_buf *out, json_t *rows)
{
    double empty = 0, timeouts = 0, errors = 0, abstained = 0;
    json_t *row;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        empty += json_object_get(row, "mask/final_mask_sum_eq_0") != NULL;
        timeouts += value_of(row, "scheduler/reward_timeouts");
        errors += value_of(row, "scheduler/reward_errors");
        abstained += value_of(row, "scheduler/reward_abstained");
    }
    if (empty > 0)
        cr_buf_addf(
            out,
            "<div class=\"bad\">%.0f of %zu steps trained nothing: no sample had a verdict, or "
            "masks left none (run.log has the reason of each)</div>\n",
            empty, json_array_size(rows));
    if (timeouts + errors + abstained > 0)
        cr_buf_addf(out,
                    "<div class=\"warn\">%.0f samples have no verdict: %.0f time-outs, %.0f errors "
                    "of reward programs, %.0f without any reward (\"detail\" in rollouts/ says "
                    "why)</div>\n",
                    timeouts + errors + abstained, timeouts, errors, abstained);
}

static void add_ending(cr_buf *out, const cr_err *ending)
{
    if (!ending || ending->status == CR_OK) return;
    cr_buf_addf(out, "<div class=\"%s\">The run ended with: ",
                ending->status == CR_ESIGNAL ? "warn" : "bad");
    cr_html_adds(out, ending->msg);
    cr_buf_adds(out, "</div>\n");
}

cr_status cr_report_write(const char *output_dir, const char *title, const cr_err *ending,
                          const cr_image_files *images, cr_err *err)
{
    char *flight = cr_path_join(output_dir, "flight"), *path = cr_path_join(output_dir, "run.html");
    json_t *rows = cr_metrics_lines(output_dir);
    bool has_flight = cr_dir_exists(flight);
    cr_thumbnails *thumbnails = cr_thumbnails_open(output_dir, images);
    cr_timeline t = {0};
    cr_err unread = {0};
    cr_buf out = {0};

    cr_html_begin(&out, title, output_dir);
    add_ending(&out, ending);
    add_verdicts(&out, rows);
    if (has_flight && cr_timeline_read(flight, &t, &unread) != CR_OK) {
        cr_buf_adds(&out, "<div class=\"bad\">");
        cr_html_adds(&out, unread.msg);
        cr_buf_adds(&out, "</div>\n");
    }
    if (t.num_logs) cr_timeline_html_findings(&t, &out);
    add_cards(&out, rows, t.num_logs ? &t : NULL);
    cr_buf_adds(&out, "<div class=\"curves\">");
    for (size_t i = 0; i < CR_COUNT(curves); i++)
        add_curve(&out, rows, curves[i]);
    cr_buf_adds(&out, "</div>\n");
    add_domain_curves(&out, rows);
    add_reward_curves(&out, rows);
    cr_verdicts_html(&out, rows, thumbnails, output_dir);
    if (t.num_logs) {
        cr_timeline_html_pictures(&t, &out);
        cr_timeline_html_tables(&t, &out);
    }
    add_rollouts(&out, thumbnails, output_dir);
    cr_html_end(&out);
    cr_note(cr_file_write_atomic(path, out.data, out.num_bytes, err));
    cr_thumbnails_close(thumbnails);
    cr_timeline_free(&t);
    json_decref(rows);
    cr_buf_free(&out);
    cr_free(flight);
    cr_free(path);
    return err->status;
}
