/* eval_html.c -- see eval_html.h. */
#include "reports/eval_html.h"
#include "reports/html.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 240, HEIGHT = 14, SHOWN = 8, TEXT_BYTES = 1500 };

static double number_of(const json_t *x, const char *key)
{
    return json_number_value(json_object_get(x, key));
}

static void add_text(cr_buf *out, const json_t *text)
{
    const char *data = json_string_value(text);
    size_t n = json_string_length(text);

    cr_html_add(out, data ? data : "", n < TEXT_BYTES ? n : TEXT_BYTES);
    if (n > TEXT_BYTES) cr_buf_adds(out, " ..");
}

/* The interval as a band from 0 to 1, and the value in it. */
static void add_share(cr_buf *out, const char *name, const json_t *share)
{
    const double low = number_of(share, "low"), high = number_of(share, "high"),
                 value = number_of(share, "value");

    cr_buf_adds(out, "<tr><td>");
    cr_html_adds(out, name);
    cr_buf_addf(out,
                "</td><td class=\"n\">%.4f</td><td class=\"n\">%.4f to %.4f</td><td><svg "
                "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
                "style=\"height:%dpx;min-width:60px\">"
                "<rect width=\"%d\" height=\"%d\" fill=\"#f3f6fa\"/><rect x=\"%.1f\" "
                "width=\"%.1f\" height=\"%d\" "
                "fill=\"#b9d3f2\"/><rect x=\"%.1f\" width=\"2\" height=\"%d\" "
                "fill=\"#2457a6\"/></svg></td><td class=\"n\">",
                value, low, high, WIDTH, HEIGHT, WIDTH, HEIGHT, HEIGHT, WIDTH, HEIGHT, low * WIDTH,
                (high - low) * WIDTH, HEIGHT, value * (WIDTH - 2), HEIGHT);
    add_text(out, json_object_get(share, "fraction"));
    cr_buf_adds(out, "</td></tr>\n");
}

static void add_label(cr_buf *out, const char *kind, const char *name, const json_t *label)
{
    const char *key;
    json_t *share;

    cr_buf_addf(out, "<h2>%s", kind);
    cr_html_adds(out, name);
    cr_buf_addf(
        out,
        "</h2>\n<p>%.0f prompts, %.0f samples, %.0f without a verdict; mean score %.4f</p>\n"
        "<table><tr><th></th><th class=\"n\">mean</th><th class=\"n\">95 %% interval</th><th></th>"
        "<th class=\"n\">exact</th></tr>\n",
        number_of(label, "prompts"), number_of(label, "samples"),
        number_of(label, "without_verdict"), number_of(label, "score"));
    json_object_foreach((json_t *)(uintptr_t)label, key, share)
    {
        if (json_is_object(share)) add_share(out, key, share);
    }
    cr_buf_adds(out, "</table>\n");
}

static void add_labels(cr_buf *out, const char *kind, const json_t *labels)
{
    const char *name;
    json_t *label;

    if (json_object_size(labels) < 2) return;
    json_object_foreach((json_t *)(uintptr_t)labels, name, label)
    {
        add_label(out, kind, name, label);
    }
}

/* *row: that of the sample before, whose images are not shown again. */
static void add_sample(cr_buf *out, cr_thumbnails *images, const json_t *x, double *row)
{
    const json_t *references = json_object_get(x, "images");

    cr_buf_addf(out, "<tr><td class=\"n\">%.0f</td><td class=\"n\">%.4g</td><td>",
                number_of(x, "row"), number_of(x, "score"));
    if (*row != number_of(x, "row"))
        cr_thumbnails_add(images, references, out);
    else if (references)
        cr_buf_adds(out, "<small>images as above</small>");
    *row = number_of(x, "row");
    cr_buf_adds(out, "<pre>");
    add_text(out, json_object_get(x, "prompt"));
    cr_buf_adds(out, "</pre></td><td><pre>");
    add_text(out, json_object_get(x, "text"));
    cr_buf_adds(out, "</pre></td><td><pre>");
    add_text(out, json_object_get(x, "ground_truth"));
    cr_buf_adds(out, "</pre></td></tr>\n");
}

/* The first samples that are right, or that are not. */
static void add_samples(cr_buf *out, const char *title, const cr_buf *samples,
                        cr_thumbnails *images, bool are_right)
{
    size_t at = 0, n;
    double row = -1;
    int num = 0;

    cr_buf_addf(out,
                "<h2>%s</h2>\n<table><tr><th>row</th><th>score</th><th>prompt</th><th>response</th>"
                "<th>right answer</th></tr>\n",
                title);
    for (const char *line; num < SHOWN && (line = cr_line_next(samples, &at, &n));) {
        cr_err ignored = {0};
        json_t *x = NULL;
        const json_t *score;
        if (cr_json_parse(line, n, NULL, &x, &ignored) != CR_OK) continue;
        score = json_object_get(x, "score");
        if (json_is_number(score) && (json_number_value(score) == 1) == are_right) {
            add_sample(out, images, x, &row);
            num++;
        }
        json_decref(x);
    }
    cr_buf_adds(out, num ? "</table>\n" : "<tr><td>none</td></tr></table>\n");
}

void cr_eval_html(cr_buf *out, const json_t *table, const cr_buf *samples, cr_thumbnails *images)
{
    const char *model = json_string_value(json_object_get(table, "model"));

    cr_html_begin(out, "Evaluation", model);
    add_label(out, "", "All prompts", json_object_get(table, "all"));
    add_labels(out, "Tag ", json_object_get(table, "tags"));
    add_labels(out, "Domain ", json_object_get(table, "domains"));
    add_samples(out, "Wrong", samples, images, false);
    add_samples(out, "Right", samples, images, true);
    cr_html_end(out);
}
