/* verdicts_html.c -- see verdicts_html.h. Counts and times are those of metrics.jsonl; the samples that are shown come from files of
 * rollouts/: the few of the slowest ones, and the newest files up to MAX_BYTES together for rows that fail. */
#include "reports/verdicts_html.h"
#include "reports/html.h"
#include "reports/rollout_files.h"
#include "samples/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SHOWN = 5, BINS = 80, WIDTH = 960, HEIGHT = 90, MAX_BYTES = 32 << 20, TEXT_BYTES = 400 };

/* In the order in which they are drawn, from below; metric: after DOMAIN/verdict/. */
static const struct {
    const char *metric, *text, *colour;
} causes[] = {{"right", "right", "#3b9b57"},      {"in_part", "in part right", "#9ccf6b"},
              {"wrong", "wrong", "#d9694f"},      {"no_answer", "no answer found", "#e8a33d"},
              {"cut_off", "cut off", "#8a6fc0"},  {"abstain", "abstained", "#b9c0ca"},
              {"timeout", "time-out", "#5b6675"}, {"error", "error", "#1c2430"}};
enum { NUM_CAUSES = CR_COUNT(causes) };

static double number_of(const json_t *row, const char *first, const char *domain, const char *last)
{
    char name[256];

    snprintf(name, sizeof name, "%s%s%s", first, domain, last);
    return json_number_value(json_object_get(row, name));
}

/* Numbers of samples of a domain by cause, in steps begin .. end; returns their sum. */
static double count(const json_t *rows, const char *domain, size_t begin, size_t end,
                    double counts[NUM_CAUSES])
{
    double sum = 0;

    for (size_t c = 0; c < NUM_CAUSES; c++) {
        char last[32];
        snprintf(last, sizeof last, "/verdict/%s", causes[c].metric);
        counts[c] = 0;
        for (size_t i = begin; i < end; i++) {
            double x = number_of(json_array_get(rows, i), "", domain, last);
            if (x > 0 && x < 1e12) counts[c] += x;
        }
        sum += counts[c];
    }
    return sum;
}

/* Domain -> true, of all metrics DOMAIN/verdict/right; owned by the caller. */
static json_t *domains_of(const json_t *rows)
{
    static const char end[] = "/verdict/right";
    json_t *domains = json_object(), *row, *value;
    const char *name;
    size_t i;

    json_array_foreach(rows, i, row) json_object_foreach(row, name, value)
    {
        size_t n = strlen(name);
        if (n < sizeof end || n > 200 || strcmp(name + n - strlen(end), end) != 0) continue;
        json_object_setn_new(domains, name, n - strlen(end), json_true());
    }
    return domains;
}

static void add_legend(cr_buf *out)
{
    cr_buf_adds(out, "<p class=\"legend\">");
    for (size_t c = 0; c < NUM_CAUSES; c++)
        cr_buf_addf(out, "<span><i style=\"background:%s\"></i>%s</span>", causes[c].colour,
                    causes[c].text);
    cr_buf_adds(out, "</p>\n");
}

static long long step_of(const json_t *row)
{
    return json_integer_value(json_object_get(row, "step"));
}

/* Shares over the steps, a bar for one step or for some together. */
static void add_bars(cr_buf *out, const json_t *rows, const char *domain)
{
    size_t num = json_array_size(rows), bins = num < BINS ? num : BINS;
    double width = (double)WIDTH / (double)bins, counts[NUM_CAUSES];

    cr_buf_addf(out, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">", WIDTH, HEIGHT, WIDTH,
                HEIGHT);
    for (size_t b = 0; b < bins; b++) {
        double sum = count(rows, domain, b * num / bins, (b + 1) * num / bins, counts), y = HEIGHT;
        for (size_t c = 0; c < NUM_CAUSES && sum > 0; c++) {
            double height = HEIGHT * counts[c] / sum;
            y -= height;
            if (counts[c] > 0)
                cr_buf_addf(out,
                            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                            "fill=\"%s\"/>",
                            (double)b * width, y > 0 ? y : 0, width * 0.92, height,
                            causes[c].colour);
        }
    }
    cr_buf_addf(out, "</svg><small>steps %lld to %lld</small>\n", step_of(json_array_get(rows, 0)),
                step_of(json_array_get(rows, num - 1)));
}

static void add_shares(cr_buf *out, const json_t *rows, const json_t *domains)
{
    const size_t num = json_array_size(rows);
    double counts[NUM_CAUSES], last[NUM_CAUSES], redrawn = 0;
    const char *name;
    json_t *value;

    cr_buf_adds(out, "<table><tr><th>domain</th><th class=\"n\">samples</th>");
    for (size_t c = 0; c < NUM_CAUSES; c++)
        cr_buf_addf(out, "<th class=\"n\">%s</th>", causes[c].text);
    cr_buf_adds(out, "</tr>\n");
    json_object_foreach((json_t *)(uintptr_t)domains, name, value)
    {
        double sum = count(rows, name, 0, num, counts),
               sum_last = count(rows, name, num - 1, num, last);
        cr_buf_adds(out, "<tr><td>");
        cr_html_adds(out, name);
        cr_buf_addf(out, "</td><td class=\"n\">%.0f</td>", sum);
        for (size_t c = 0; c < NUM_CAUSES; c++) {
            cr_buf_addf(out, "<td class=\"n\">%.0f", counts[c]);
            if (counts[c] > 0)
                cr_buf_addf(out, "<br/><small>%.1f %%</small>", 100 * counts[c] / sum);
            if (counts[c] > 0 && sum_last > 0)
                cr_buf_addf(out, "<br/><small>last step %.1f %%</small>", 100 * last[c] / sum_last);
            cr_buf_adds(out, "</td>");
        }
        cr_buf_adds(out, "</tr>\n");
    }
    cr_buf_adds(out, "</table>\n");
    for (size_t i = 0; i < num; i++)
        redrawn += number_of(json_array_get(rows, i), "scheduler/", "redrawn_groups", "");
    if (redrawn > 0)
        cr_buf_addf(out,
                    "<p class=\"quiet\">Not among these: %.0f groups without any verdict, whose "
                    "prompts were replaced (run.log has the reasons).</p>\n",
                    redrawn);
}

/* ---- samples ---- */

/* A text, or the end of a long one. */
static void add_text(cr_buf *out, const json_t *text)
{
    const char *t = json_string_value(text);
    size_t n = json_string_length(text), from = n > TEXT_BYTES ? n - TEXT_BYTES : 0;

    while (from < n && ((unsigned char)t[from] & 0xC0) == 0x80)
        from++;
    cr_buf_adds(out, from ? "<pre>.. " : "<pre>");
    if (t) cr_html_add(out, t + from, n - from);
    cr_buf_adds(out, "</pre>");
}

static void add_cell(cr_buf *out, const json_t *text)
{
    cr_buf_adds(out, "<td>");
    add_text(out, text);
    cr_buf_adds(out, "</td>");
}

static void add_score(cr_buf *out, const json_t *sample)
{
    const json_t *score = json_object_get(sample, "score");
    const char *status = json_string_value(json_object_get(sample, "status"));

    cr_buf_adds(out, "<td>");
    if (json_is_number(score))
        cr_buf_addf(out, "%.3g", json_number_value(score));
    else if (status)
        cr_html_adds(out, status);
    cr_buf_adds(out, "</td>");
}

/* The sample with an id; NULL: it is not there. */
static json_t *find_sample(const char *output_dir, int64_t step, uint64_t id)
{
    char *path = cr_asprintf("%s/rollouts/step-%06lld.jsonl", output_dir, (long long)step),
         start[40];
    cr_buf text = {0};
    cr_err ignored = {0};
    json_t *found = NULL;
    size_t at = 0, n;

    snprintf(start, sizeof start, "{\"id\":\"%016llx\"", (unsigned long long)id);
    if (cr_file_exists(path)) cr_note(cr_file_read(path, &text, &ignored));
    for (const char *line; !found && text.num_bytes && (line = cr_line_next(&text, &at, &n));)
        if (n > strlen(start) && memcmp(line, start, strlen(start)) == 0)
            cr_note(cr_json_parse(line, n, path, &found, &ignored));
    cr_buf_free(&text);
    cr_free(path);
    return found;
}

typedef struct slow {
    double seconds;
    int64_t step;
    uint64_t id;
} slow;

/* The slowest verdicts of a domain, at most one of each step, the slowest first. Returns their number. */
static size_t find_slowest(const json_t *rows, const char *domain, slow out[SHOWN])
{
    size_t num = 0, i;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        double seconds = number_of(row, "time/verdict/", domain, "/max");
        uint64_t id;
        json_int_t step = json_integer_value(json_object_get(row, "step"));
        size_t at = num;
        if (!(seconds > 0) ||
            !cr_sample_id_of_step(step, number_of(row, "time/verdict/", domain, "/slowest"), &id))
            continue;
        while (at > 0 && out[at - 1].seconds < seconds)
            at--;
        if (at == SHOWN) continue;
        if (num < SHOWN) num++;
        memmove(out + at + 1, out + at, (num - at - 1) * sizeof *out);
        out[at] = (slow){seconds, step, id};
    }
    return num;
}

static void add_slowest(cr_buf *out, const json_t *rows, const json_t *domains,
                        const char *output_dir)
{
    bool has_head = false;
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)domains, name, value)
    {
        slow slowest[SHOWN];
        size_t num = find_slowest(rows, name, slowest);
        for (size_t i = 0; i < num; i++) {
            json_t *sample = find_sample(output_dir, slowest[i].step, slowest[i].id);
            char time[32];
            if (!has_head)
                cr_buf_adds(
                    out,
                    "<h3>Slowest verdicts</h3><table><tr><th>domain</th><th class=\"n\">time</th>"
                    "<th class=\"n\">step</th><th>score</th><th>prompt</th><th>response</th>"
                    "<th>detail</th></tr>\n");
            has_head = true;
            cr_buf_adds(out, "<tr><td>");
            cr_html_adds(out, name);
            cr_buf_addf(out, "</td><td class=\"n\">%s</td><td class=\"n\">%lld</td>",
                        cr_seconds_text(slowest[i].seconds, time), (long long)slowest[i].step);
            add_score(out, sample);
            add_cell(out, json_object_get(sample, "prompt"));
            add_cell(out, json_object_get(sample, "response"));
            add_cell(out, json_object_get(sample, "detail"));
            cr_buf_adds(out, "</tr>\n");
            json_decref(sample);
        }
    }
    if (has_head) cr_buf_adds(out, "</table>\n");
}

/* ---- rows that fail ---- */

typedef struct prompt {
    json_t *row;   /* the data row, if files have it (owned) */
    json_t *first; /* a sample of it, without verdict if there is one, else the worst (owned) */
    double num, num_failed, sum;
} prompt;

typedef struct prompts {
    prompt *items;
    size_t num, capacity;
    json_t *index; /* domain NEWLINE digests of images NEWLINE prompt -> place */
} prompts;

/* The row of a group, which its first sample has, and the digests of its images; owned. */
typedef struct group {
    json_t *row;
    char *digests;
} group;

static void group_free(group *g)
{
    json_decref(g->row);
    cr_free(g->digests);
    *g = (group){0};
}

static void add_sample(prompts *p, json_t *sample, const group *of)
{
    const char *domain = json_string_value(json_object_get(sample, "domain")),
               *text = json_string_value(json_object_get(sample, "prompt"));
    const json_t *score = json_object_get(sample, "score");
    json_t *place;
    bool is_worse;
    char *key;
    prompt *x;

    if (!domain || !text) return;
    key = cr_asprintf("%s\n%s\n%s", domain, of->digests, text);
    place = json_object_get(p->index, key);
    if (!place) {
        p->items = cr_grow(p->items, p->num, &p->capacity, sizeof *p->items);
        p->items[p->num] = (prompt){.row = json_incref(of->row), .first = json_incref(sample)};
        place = json_integer((json_int_t)p->num++);
        json_object_set_new(p->index, key, place);
    }
    x = &p->items[json_integer_value(place)];
    x->num++;
    is_worse =
        !json_is_number(score)
            ? x->num_failed == 0
            : x->num_failed == 0 &&
                  json_number_value(score) < json_number_value(json_object_get(x->first, "score"));
    if (json_is_number(score))
        x->sum += json_number_value(score);
    else
        x->num_failed++;
    if (is_worse) {
        json_decref(x->first);
        x->first = json_incref(sample);
    }
    cr_free(key);
}

/* Most failures first, then the lowest scores. */
static int by_failure(const void *a, const void *b)
{
    const prompt *x = a, *y = b;
    double mean_x = x->num > x->num_failed ? x->sum / (x->num - x->num_failed) : 0,
           mean_y = y->num > y->num_failed ? y->sum / (y->num - y->num_failed) : 0;

    if (x->num_failed != y->num_failed) return x->num_failed < y->num_failed ? 1 : -1;
    if (mean_x != mean_y) return mean_x > mean_y ? 1 : -1;
    return x->num < y->num ? 1 : x->num > y->num ? -1 : 0;
}

static size_t size_of(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 ? (size_t)s.st_size : SIZE_MAX;
}

/* The sample's own, if it has a row; else the group stays that of the sample before it. */
static void find_group(const json_t *sample, group *g)
{
    json_t *row = json_object_get(sample, "row");

    if (!row && g->digests) return;
    group_free(g);
    *g = (group){json_incref(row), cr_thumbnails_digests(row)};
}

/* Samples of the newest files; *oldest: name of the first of them. */
static void read_newest(prompts *p, char *const *paths, size_t num, const char **oldest)
{
    size_t bytes = 0;

    for (size_t i = num; i-- > 0;) {
        cr_buf text = {0};
        cr_err ignored = {0};
        group of = {0};
        size_t at = 0, n, size = size_of(paths[i]);
        if (size > MAX_BYTES - bytes) return;
        bytes += size;
        if (cr_file_read(paths[i], &text, &ignored) != CR_OK) return;
        *oldest = strrchr(paths[i], '/') + 1;
        for (const char *line; text.num_bytes && (line = cr_line_next(&text, &at, &n));) {
            json_t *sample = NULL;
            cr_err bad = {0};
            if (cr_json_parse(line, n, NULL, &sample, &bad) == CR_OK) {
                find_group(sample, &of);
                add_sample(p, sample, &of);
            }
            json_decref(sample);
        }
        group_free(&of);
        cr_buf_free(&text);
    }
}

static void add_failing_row(cr_buf *out, cr_thumbnails *images, const prompt *x)
{
    const double num_scores = x->num - x->num_failed;

    cr_buf_adds(out, "<tr><td>");
    cr_html_adds(out, json_string_value(json_object_get(x->first, "domain")));
    cr_buf_addf(out, "</td><td class=\"n\">%.0f</td><td class=\"n\">%.0f</td><td class=\"n\">",
                x->num, x->num_failed);
    if (num_scores > 0) cr_buf_addf(out, "%.3g", x->sum / num_scores);
    cr_buf_adds(out, "</td><td>");
    cr_thumbnails_add(images, x->row, out);
    add_text(out, json_object_get(x->first, "prompt"));
    cr_buf_adds(out, "</td>");
    add_cell(out, json_object_get(x->first, "ground_truth"));
    add_cell(out, json_object_get(x->first, "response"));
    add_cell(out, json_object_get(x->first, "detail"));
    cr_buf_adds(out, "</tr>\n");
}

static void add_failing(cr_buf *out, const json_t *domains, cr_thumbnails *images,
                        const char *output_dir)
{
    prompts p = {.index = json_object()};
    const char *oldest = "", *name;
    char **paths;
    size_t num = cr_rollout_files(output_dir, &paths);
    json_t *value;

    read_newest(&p, paths, num, &oldest);
    if (p.num) {
        qsort(p.items, p.num, sizeof *p.items, by_failure);
        cr_buf_adds(out, "<h3>Rows that fail</h3><p class=\"quiet\">Of the files from rollouts/");
        cr_html_adds(out, oldest);
        cr_buf_adds(
            out, " on: most samples without a verdict, then the lowest "
                 "scores.</p><table><tr><th>domain</th>"
                 "<th class=\"n\">samples</th><th class=\"n\">without verdict</th><th "
                 "class=\"n\">mean score</th>"
                 "<th>prompt</th><th>ground truth</th><th>a response</th><th>detail</th></tr>\n");
        json_object_foreach((json_t *)(uintptr_t)domains, name, value)
        {
            int shown = 0;
            for (size_t i = 0; i < p.num && shown < SHOWN; i++) {
                const prompt *x = &p.items[i];
                if (strcmp(json_string_value(json_object_get(x->first, "domain")), name) != 0)
                    continue;
                if (x->num_failed == 0 && x->sum >= x->num) continue; /* all are right */
                add_failing_row(out, images, x);
                shown++;
            }
        }
        cr_buf_adds(out, "</table>\n");
    }
    for (size_t i = 0; i < p.num; i++) {
        json_decref(p.items[i].row);
        json_decref(p.items[i].first);
    }
    for (size_t i = 0; i < num; i++)
        cr_free(paths[i]);
    cr_free(paths);
    cr_free(p.items);
    json_decref(p.index);
}

void cr_verdicts_html(cr_buf *out, const json_t *rows, cr_thumbnails *images,
                      const char *output_dir)
{
    json_t *domains = domains_of(rows), *value;
    const char *name;

    if (json_object_size(domains)) {
        cr_buf_adds(out, "<h2>Verdicts by cause</h2>");
        add_legend(out);
        json_object_foreach(domains, name, value)
        {
            cr_buf_adds(out, "<h3>");
            cr_html_adds(out, name);
            cr_buf_adds(out, "</h3>");
            add_bars(out, rows, name);
        }
        add_shares(out, rows, domains);
        add_slowest(out, rows, domains, output_dir);
        add_failing(out, domains, images, output_dir);
    }
    json_decref(domains);
}
