/* plan_html.c -- a plan as a page (see plan_print.h). For each role: its mesh as a map of ranks, the bytes
 * in use along a step (the sawtooth) over what is reserved, bytes by phase, traffic by link, the tree.
 *
 * The sawtooth's width is compute: each moment is as wide as the FLOPs since the one before, with a little
 * added to moments without any, so that a table and an update are seen at all. Where what stands all the
 * time is most of the memory, the axis begins in the middle of it.
 */
#include "configs/worker.h"
#include "plan/hosts_print.h"
#include "plan/plan_print.h"
#include "reports/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const colors[CR_PLAN_KINDS] = {"#31578f", "#c65d3b", "#7fa3d1",
                                                  "#31578f", "#e3a92f", "#e58f73",
                                                  "#9aa3ad", "#4c9f70", "#bcd3b4"};

static void legend(cr_buf *out, const bool *is_used)
{
    cr_buf_adds(out, "<div class=\"legend\">");
    for (int k = CR_PLAN_KINDS - 1; k >= 0; k--)
        if (is_used[k])
            cr_buf_addf(out, "<span><i style=\"background:%s\"></i>%s</span>", colors[k],
                        cr_plan_kinds[k].text);
    cr_buf_adds(out, "</div>\n");
}

/* ---- the mesh ---- */

enum { CELL = 26, MAX_COLUMNS = 32, MAX_ROWS = 8 };

static void mesh(cr_buf *out, const cr_plan_role *r)
{
    const cr_mesh_shape *m = &r->mesh;
    int columns = m->num_fsdp < MAX_COLUMNS ? m->num_fsdp : MAX_COLUMNS,
        rows = m->num_ddp < MAX_ROWS ? m->num_ddp : MAX_ROWS;
    bool is_cut = columns < m->num_fsdp || rows < m->num_ddp;

    cr_buf_addf(out, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">", columns * CELL + 130,
                rows * CELL, columns * CELL + 130, rows * CELL);
    for (int d = 0; d < rows; d++) {
        for (int s = 0; s < columns; s++) {
            int rank = d * m->num_fsdp + s;
            cr_buf_addf(
                out,
                "<g><title>rank %d: replica %d, shard %d, data-parallel %d, part %d of its "
                "sequences</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" "
                "fill=\"%s\"/><text x=\"%d\" y=\"%d\" text-anchor=\"middle\" "
                "class=\"small\">%d</text></g>",
                rank, d, s, rank / m->num_ulysses, rank % m->num_ulysses, s * CELL + 1,
                d * CELL + 1, CELL - 2, CELL - 2,
                m->num_ulysses > 1 && rank / m->num_ulysses % 2 ? "#bcd4f0" : "#e4ebf5",
                s * CELL + CELL / 2, d * CELL + CELL / 2 + 4, rank);
        }
        cr_buf_addf(out, "<text x=\"%d\" y=\"%d\" class=\"small\">%s%d</text>", columns * CELL + 8,
                    d * CELL + CELL / 2 + 4, m->num_fsdp > columns ? ".. replica " : "replica ", d);
    }
    cr_buf_adds(out, "</svg><p><small>");
    if (is_cut) cr_buf_addf(out, "The first of %d x %d ranks. ", m->num_ddp, m->num_fsdp);
    cr_buf_addf(out, "%s</small></p>\n",
                m->num_ulysses > 1 ? "Neighbours of one shade share their sequences (ulysses)."
                                   : "A row is a shard group; a column has the same shard.");
}

static void say_mesh(cr_buf *out, const cr_plan_role *r)
{
    const cr_mesh_shape *m = &r->mesh;

    cr_buf_addf(out, "<h3>Mesh: ddp %d x fsdp %d", m->num_ddp, m->num_fsdp);
    if (m->num_ulysses > 1) cr_buf_addf(out, ", ulysses %d", m->num_ulysses);
    if (m->num_ep > 1)
        cr_buf_addf(out, "; experts: ep %d x efsdp %d x eddp %d", m->num_ep, m->num_efsdp,
                    m->num_eddp);
    cr_buf_adds(out, "</h3>\n");
    mesh(out, r);
}

/* ---- memory along a step ---- */

enum { WIDTH = 950, LEFT = 70, TOP = 22, HEIGHT = 250, COLUMNS = 440 };

typedef struct saw {
    const cr_plan_role *role;
    size_t pick[COLUMNS]; /* the fullest moment of each column */
    int64_t floor, top;   /* bytes at the edges */
    size_t fullest;
} saw;

/* What moment i is wide, in FLOPs. */
static double width_of(const cr_plan_role *r, size_t i)
{
    double all = r->moment[r->num_moments - 1].flops,
           x = r->moment[i].flops - (i ? r->moment[i - 1].flops : 0),
           min = all > 0 ? all / 10 / (double)r->num_moments : 1;

    if (r->moment[i].what[0] == 'u') min = all / 40;
    return x > min ? x : min;
}

static void pick_columns(saw *s)
{
    const cr_plan_role *r = s->role;
    double width = 0, at = 0;

    for (size_t i = 0; i < r->num_moments; i++)
        width += width_of(r, i);
    for (int c = 0; c < COLUMNS; c++)
        s->pick[c] = SIZE_MAX;
    for (size_t i = 0; i < r->num_moments; i++) {
        int first = (int)(at / width * COLUMNS), end;
        at += width_of(r, i);
        end = (int)(at / width * COLUMNS + 0.999999);
        for (int c = first; c < end && c < COLUMNS; c++)
            if (s->pick[c] == SIZE_MAX ||
                cr_plan_sum(&r->moment[i].bytes) > cr_plan_sum(&r->moment[s->pick[c]].bytes))
                s->pick[c] = i;
        if (cr_plan_sum(&r->moment[i].bytes) > cr_plan_sum(&r->moment[s->fullest].bytes))
            s->fullest = i;
    }
    for (int c = 0; c < COLUMNS; c++)
        if (s->pick[c] == SIZE_MAX) s->pick[c] = c ? s->pick[c - 1] : 0;
}

static double y_of(const saw *s, double bytes)
{
    if (bytes < (double)s->floor) bytes = (double)s->floor;
    return TOP + HEIGHT * (1 - (bytes - (double)s->floor) / (double)(s->top - s->floor));
}

static double x_of(int column)
{
    return LEFT + (double)(WIDTH - LEFT) * column / COLUMNS;
}

static int64_t below(const saw *s, int column, int kinds)
{
    int64_t sum = 0;

    for (int k = 0; k < kinds; k++)
        sum += cr_plan_part(&s->role->moment[s->pick[column]].bytes, k);
    return sum;
}

static void area(cr_buf *out, const saw *s, int kind)
{
    int64_t last = -1, max = 0;
    char size[32];

    for (int c = 0; c < COLUMNS; c++) {
        int64_t n = cr_plan_part(&s->role->moment[s->pick[c]].bytes, kind);
        if (n > max) max = n;
    }
    if (max == 0) return;
    cr_buf_addf(out, "<path fill=\"%s\" d=\"M%.1f %.1f", colors[kind], x_of(0),
                y_of(s, (double)below(s, 0, kind)));
    for (int c = 0; c < COLUMNS; c++) {
        int64_t n = below(s, c, kind + 1);
        if (n != last) cr_buf_addf(out, "H%.1fV%.1f", x_of(c), y_of(s, (double)n));
        last = n;
    }
    cr_buf_addf(out, "H%.1f", x_of(COLUMNS));
    last = -1;
    for (int c = COLUMNS - 1; c >= 0; c--) {
        int64_t n = below(s, c, kind);
        if (n != last) cr_buf_addf(out, "H%.1fV%.1f", x_of(c + 1), y_of(s, (double)n));
        last = n;
    }
    cr_buf_addf(out, "H%.1fZ\"><title>%s: at most %s</title></path>\n", x_of(0),
                cr_plan_kinds[kind].text, cr_size_text(max, size));
}

static void axis(cr_buf *out, const saw *s)
{
    int64_t unit = 1;
    double step;
    char size[32];

    while (s->top / unit >= 1024)
        unit *= 1024;
    step = cr_axis_step((double)(s->top - s->floor) / (double)unit, 5);
    for (double at = step * ceil((double)s->floor / (double)unit / step);
         at * (double)unit <= (double)s->top; at += step) {
        double y = y_of(s, at * (double)unit);
        cr_size_text(unit, size);
        cr_buf_addf(out,
                    "<path class=\"axis\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                    "text-anchor=\"end\">%g %s</text>",
                    LEFT, y, WIDTH, LEFT - 6, y + 4, at, strchr(size, ' ') + 1);
    }
}

static void line(cr_buf *out, const saw *s, int64_t bytes, const char *color, const char *what)
{
    char size[32];
    double y = y_of(s, (double)bytes);

    if (bytes > s->top) return;
    cr_buf_addf(
        out,
        "<path d=\"M%d %.1fH%d\" stroke=\"%s\" stroke-width=\"1.5\" stroke-dasharray=\"6 4\" "
        "fill=\"none\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s %s</text>",
        LEFT, y, WIDTH, color, WIDTH - 4, y - 5, what, cr_size_text(bytes, size));
}

/* 0 forward, 1 backward with its recompute, 2 update. */
static int band_of(const saw *s, int column)
{
    char c = s->role->moment[s->pick[column]].what[0];

    return c == 'f' ? 0 : c == 'u' ? 2 : 1;
}

static void bands(cr_buf *out, const saw *s)
{
    static const char *const names[] = {"forward", "backward", "update"}, *const fills[] = {
                                                                              "#d8e6f7", "#f7dfd0",
                                                                              "#dcdfe4"};

    for (int c = 0, end; c < COLUMNS; c = end) {
        int band = band_of(s, c);
        double width;
        for (end = c; end < COLUMNS && band_of(s, end) == band;)
            end++;
        width = x_of(end) - x_of(c);
        cr_buf_addf(out,
                    "<g><title>%s</title><rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" "
                    "fill=\"%s\"/>",
                    names[band], x_of(c), TOP + HEIGHT + 4, width, fills[band]);
        if (width > 60)
            cr_buf_addf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                        x_of(c) + width / 2, TOP + HEIGHT + 17, names[band]);
        cr_buf_adds(out, "</g>");
    }
    cr_buf_adds(out, "\n");
}

static void sawtooth(cr_buf *out, const cr_plan *p, const cr_plan_role *r)
{
    saw s = {.role = r};
    int64_t peak = cr_plan_peak(r);
    bool is_used[CR_PLAN_KINDS] = {0};
    char size[32];

    if (r->num_moments == 0) return;
    pick_columns(&s);
    s.top = peak + peak / 12 + 1;
    if (p->memory > peak && p->memory < 2 * peak) s.top = p->memory + p->memory / 12;
    for (int k = 0; k < CR_PLAN_KINDS; k++)
        if (cr_plan_kinds[k].offset <= offsetof(cr_plan_bytes, values))
            s.floor += cr_plan_part(&r->moment[0].bytes, k);
    s.floor = s.floor > peak / 2 ? s.floor - (peak - s.floor) / 3 : 0;
    for (int k = 0; k < CR_PLAN_KINDS; k++)
        for (int c = 0; c < COLUMNS; c++)
            is_used[k] = is_used[k] || cr_plan_part(&r->moment[s.pick[c]].bytes, k) > 0;
    cr_buf_addf(
        out,
        "<h3>Memory of a rank along %s</h3><p class=\"quiet\">In use, from left to right as "
        "the modules run; the width is compute. Buffers stay reserved at their largest: the "
        "dashed line. Fullest in %s: %s.%s</p>\n",
        r->is_train ? "an update (its first two micro-batches)" : "one forward",
        r->moment[s.fullest].what, cr_size_text(cr_plan_sum(&r->moment[s.fullest].bytes), size),
        s.floor ? " The axis does not begin at 0: most of the memory stands all the time." : "");
    legend(out, is_used);
    cr_buf_addf(out, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", WIDTH,
                TOP + HEIGHT + 26, WIDTH, TOP + HEIGHT + 26);
    axis(out, &s);
    for (int k = 0; k < CR_PLAN_KINDS; k++)
        area(out, &s, k);
    line(out, &s, peak, "#1c2430", "reserved");
    if (p->memory) line(out, &s, p->memory, "#c8321f", "--memory");
    bands(out, &s);
    cr_buf_adds(out, "</svg>\n");
}

/* ---- tables ---- */

static void phases(cr_buf *out, const cr_plan_role *r)
{
    bool is_used[CR_PLAN_KINDS] = {0};
    int64_t peak = cr_plan_peak(r);
    char size[32];

    for (size_t i = 0; i < r->num_phases; i++)
        for (int k = 0; k < CR_PLAN_KINDS; k++)
            is_used[k] = is_used[k] || cr_plan_part(&r->phase[i].bytes, k) > 0;
    cr_buf_adds(out, "<h3>Reserved by phase</h3>");
    if (r->num_moments == 0) legend(out, is_used);
    cr_buf_adds(out, "<table><tr><th>phase</th><th></th>");
    for (int k = 0; k < CR_PLAN_KINDS; k++)
        if (is_used[k]) cr_buf_addf(out, "<th class=\"n\">%s</th>", cr_plan_kinds[k].text);
    cr_buf_adds(out, "<th class=\"n\">together</th></tr>\n");
    for (size_t i = 0; i < r->num_phases; i++) {
        const cr_plan_bytes *b = &r->phase[i].bytes;
        double x = 0;
        cr_buf_addf(out,
                    "<tr><td>%s</td><td><svg width=\"110\" height=\"14\" viewBox=\"0 0 180 14\" "
                    "preserveAspectRatio=\"none\">",
                    r->phase[i].name);
        for (int k = 0; k < CR_PLAN_KINDS && peak; k++) {
            double w = 180.0 * (double)cr_plan_part(b, k) / (double)peak;
            if (w > 0)
                cr_buf_addf(out,
                            "<rect x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"14\" fill=\"%s\"/>",
                            x, w, colors[k]);
            x += w;
        }
        cr_buf_adds(out, "</svg></td>");
        for (int k = 0; k < CR_PLAN_KINDS; k++)
            if (is_used[k])
                cr_buf_addf(out, "<td class=\"n\">%s</td>",
                            cr_plan_part(b, k) ? cr_size_text(cr_plan_part(b, k), size) : "");
        cr_buf_addf(out, "<td class=\"n\"><b>%s</b></td></tr>\n",
                    cr_size_text(cr_plan_sum(b), size));
    }
    cr_buf_adds(out, "</table>\n");
    if (r->host_bytes)
        cr_buf_addf(out, "<p>On the host (offload_policy): %s.</p>\n",
                    cr_size_text(r->host_bytes, size));
}

/* A row of the traffic table. sent: what a rank sends to the others of the link. */
static void traffic_row(cr_buf *out, const char *what, const char *link, int num_ranks, int64_t num,
                        int64_t bytes, double sent)
{
    char a[32], b[32];

    if (num == 0) return;
    cr_buf_addf(out,
                "<tr><td>%s</td><td>%s</td><td class=\"n\">%d</td><td class=\"n\">%lld</td><td "
                "class=\"n\">%s</td><td class=\"n\">%s</td></tr>\n",
                what, link, num_ranks, (long long)num, cr_size_text(bytes, a),
                cr_size_text((int64_t)sent, b));
}

static void traffic(cr_buf *out, const cr_plan_role *r)
{
    const cr_mesh_shape *m = &r->mesh;
    const cr_traffic *t = &r->step;
    double f = m->num_fsdp, d = m->num_ddp;
    char replicas[64];

    if (!t->gathers.num && !t->reduces.num && !r->all_to_alls.num && !r->synced.num) return;
    snprintf(replicas, sizeof replicas, "ddp: every %d%s rank", m->num_fsdp,
             m->num_fsdp == 1   ? "st"
             : m->num_fsdp == 2 ? "nd"
             : m->num_fsdp == 3 ? "rd"
                                : "th");
    cr_buf_adds(
        out, "<h3>Traffic of a step, by link</h3><table><tr><th>collective</th><th>between</th><th "
             "class=\"n\">ranks</th><th class=\"n\">number</th><th class=\"n\">whole "
             "buffers</th><th class=\"n\">a rank sends at least</th></tr>\n");
    traffic_row(out, "all-gather of units", "fsdp: neighbours", m->num_fsdp, t->gathers.num,
                t->gathers.num_bytes, (double)t->gathers.num_bytes * (f - 1) / f);
    traffic_row(out, "reduce-scatter of units", "fsdp: neighbours", m->num_fsdp, t->reduces.num,
                t->reduces.num_bytes, (double)t->reduces.num_bytes * (f - 1) / f);
    traffic_row(out, "all-reduce of shards", replicas, m->num_ddp, t->all_reduces.num,
                t->all_reduces.num_bytes, (double)t->all_reduces.num_bytes * 2 * (d - 1) / d);
    traffic_row(out, "all-to-all", m->num_ulysses > 1 ? "ulysses: neighbours" : "ep: neighbours",
                m->num_ulysses > 1 ? m->num_ulysses : m->num_ep, (int64_t)r->all_to_alls.num,
                (int64_t)r->all_to_alls.num_bytes, (double)r->all_to_alls.num_bytes);
    traffic_row(out, "small ones", "any", m->num_ranks, (int64_t)r->smalls.num - t->all_reduces.num,
                (int64_t)r->smalls.num_bytes - t->all_reduces.num_bytes,
                (double)r->smalls.num_bytes - (double)t->all_reduces.num_bytes);
    traffic_row(out, "weights, received", "from the trained role", m->num_ranks, r->synced.num,
                r->synced.num_bytes, 0);
    cr_buf_adds(out, "</table>\n");
}

static void tree(cr_buf *out, const cr_plan_role *r)
{
    if (!r->tree.num_bytes) return;
    cr_buf_addf(out, "<h3>Units: %zu, at most %d gathered at a time</h3><pre>", r->num_units,
                r->max_units_alive);
    for (const char *at = r->tree.data, *end; *at; at = end) {
        const char *mark;
        end = strchr(at, '\n') ? strchr(at, '\n') + 1 : at + strlen(at);
        mark = strstr(at, "FSDP[");
        if (mark && mark < end) cr_buf_adds(out, "<b>");
        cr_html_add(out, at, (size_t)(end - at));
        if (mark && mark < end) cr_buf_adds(out, "</b>");
    }
    cr_buf_adds(out, "</pre>\n");
}

/* ---- the page ---- */

static void box(cr_buf *out, const char *cls, const char *text, size_t num)
{
    cr_buf_addf(out, "<div class=\"%s\">", cls);
    cr_html_add(out, text, num);
    cr_buf_adds(out, "</div>\n");
}

static void warnings(cr_buf *out, const cr_plan *p)
{
    char a[32], b[32], *text = NULL;
    size_t num;

    if (p->memory) {
        text = p->device_peak <= p->memory
                   ? cr_asprintf("It fits in %s.", cr_size_text(p->memory, a))
                   : cr_asprintf("It does NOT fit in %s: %s too much.", cr_size_text(p->memory, a),
                                 cr_size_text(p->device_peak - p->memory, b));
        box(out, p->device_peak <= p->memory ? "good" : "bad", text, strlen(text));
        cr_free(text);
    }
    for (size_t r = 0; r < p->num_roles; r++) {
        const char *at = p->role[r].tree.data;
        for (const char *w; (w = cr_plan_next_warning(&at, &num));) {
            text = cr_asprintf("%s: %.*s", p->role[r].name, (int)num, w);
            box(out, "warn", text, strlen(text));
            cr_free(text);
        }
    }
    for (size_t i = 0; i < p->d.num; i++) {
        if (!strstr(p->d.items[i].text, "not available")) continue;
        text = cr_asprintf("left out: %s", p->d.items[i].text);
        box(out, "warn", text, strlen(text));
        cr_free(text);
    }
}

static void card(cr_buf *out, const char *value, const char *what)
{
    cr_buf_addf(out, "<div class=\"card\"><b>%s</b><span>%s</span></div>", value, what);
}

static void cards(cr_buf *out, const cr_plan *p)
{
    const cr_plan_batch *b = &p->batch;
    char text[160], size[32];

    cr_buf_adds(out, "<div class=\"cards\">");
    card(out, cr_size_text(p->device_peak, size), "fullest device");
    if (p->memory) {
        snprintf(text, sizeof text, "%s%lld", p->is_limit ? "at least " : "",
                 (long long)p->largest);
        card(out, p->largest ? text : "none", "largest per_device_train_batch_size that fits");
        snprintf(text, sizeof text, "%s%lld", p->is_limit ? "at least " : "",
                 (long long)p->largest_tokens);
        if (p->largest) card(out, text, "largest max_tokens_per_microbatch_in_train that fits");
    }
    snprintf(text, sizeof text, "%lld", (long long)p->num_samples);
    card(out, text, "samples a step");
    snprintf(text, sizeof text, "%lld x %lld", (long long)b->updates, (long long)b->micros);
    card(out, text, "updates x micro-batches a step");
    if (b->train_tokens) {
        snprintf(text, sizeof text, "%lld", (long long)b->train_tokens);
        card(out, text, "tokens of a micro-batch, at most");
    } else {
        snprintf(text, sizeof text, "%lld x %lld", (long long)b->num_samples,
                 (long long)b->sample_tokens);
        card(out, text, "samples x tokens of a micro-batch");
    }
    cr_buf_adds(out, "</div>\n");
}

/* "1.24 billion"; text holds 64 bytes. */
static const char *many(double x, char text[64])
{
    static const char *const names[] = {"",         " thousand", " million", " billion",
                                        " x 10^12", " x 10^15",  " x 10^18"};
    size_t i = 0;

    for (; x >= 1000 && i + 1 < CR_COUNT(names); i++)
        x /= 1000;
    snprintf(text, 64, "%.4g%s", x, names[i]);
    return text;
}

static void role(cr_buf *out, const cr_plan *p, size_t index)
{
    const cr_plan_role *r = &p->role[index];
    char text[64];

    cr_buf_adds(out, "<h2>");
    cr_html_adds(out, r->name);
    cr_buf_adds(out, "</h2><p class=\"under\">");
    cr_html_adds(out, cr_worker_runs(p->worker[index]));
    cr_buf_addf(out, " on %d rank%s, %s parameters", r->mesh.num_ranks,
                r->mesh.num_ranks == 1 ? "" : "s", many((double)r->num_elems, text));
    if (r->is_train && r->num_trained < r->num_elems)
        cr_buf_addf(out, ", %s of them trained (%.3g %%)", many((double)r->num_trained, text),
                    100 * (double)r->num_trained / (double)r->num_elems);
    if (r->num_adapters) cr_buf_addf(out, ": adapters of %lld modules", (long long)r->num_adapters);
    if (r->step_flops > 0)
        cr_buf_addf(out, ", %s operations of floating point a step and rank",
                    many(r->step_flops, text));
    cr_buf_adds(out, r->num_units ? "</p>\n" : "; each rank has the whole model</p>\n");
    if (r->num_units) say_mesh(out, r);
    sawtooth(out, p, r);
    phases(out, r);
    traffic(out, r);
    tree(out, r);
}

static void hosts(cr_buf *out, const cr_plan *p)
{
    cr_buf text = {0};

    if (!p->hosts.num) return;
    cr_plan_hosts_text(p, &text);
    cr_buf_adds(out, "<h2>Between hosts</h2><pre>");
    cr_html_adds(out, text.data + strspn(text.data, "\n"));
    cr_buf_adds(out, "</pre>\n");
    cr_buf_free(&text);
}

void cr_plan_html(const cr_plan *p, cr_buf *out)
{
    char *title = cr_asprintf("Plan of %s", p->config.exp_name ? p->config.exp_name : "a run"),
         *under = cr_asprintf(
             "%s, %s pipeline. Nothing was started: these are the numbers of the very code "
             "that will run, on a device that only counts.",
             p->path, cr_pipeline_names[p->config.kind]);

    cr_html_begin(out, title, under);
    warnings(out, p);
    cards(out, p);
    for (size_t r = 0; r < p->num_roles; r++)
        role(out, p, r);
    hosts(out, p);
    cr_html_end(out);
    cr_free(title);
    cr_free(under);
}
