/* timeline_html.c -- see timeline_html.h. A rank has a bar of phases and below it three lanes: gathers,
 * reductions, all other collectives. A collective is light while it is under way and dark at its end for
 * as long as the rank slept for it: light alone was hidden under compute.
 */
#include "reports/timeline_html.h"
#include "reports/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 950, LEFT = 140, PHASE_HEIGHT = 17, LANE_HEIGHT = 9, LANES = 3, MAX_RANKS = 16 };

static const char *const lane_light[LANES] = {"#f3d595", "#f0b5a2", "#c9cfd8"},
                         *const lane_dark[LANES] = {"#c98500", "#b8391a", "#667080"},
                         *const lane_name[LANES] = {"all-gather", "reduce-scatter",
                                                    "other collectives"};

static int lane_of(uint32_t coll)
{
    return coll == CR_COLL_ALL_GATHER ? 0 : coll == CR_COLL_REDUCE_SCATTER ? 1 : 2;
}

static bool is_training(const char *phase)
{
    return strcmp(phase, "train_step") == 0 || strcmp(phase, "sft_step") == 0 ||
           strcmp(phase, "dpo_step") == 0 || strcmp(phase, "distill_step") == 0;
}

static const char *color_of(const char *phase)
{
    static const char *const known[][2] = {
        {"train_step", "#5b8fd6"}, {"sft_step", "#5b8fd6"},
        {"dpo_step", "#5b8fd6"},   {"distill_step", "#5b8fd6"},
        {"generate", "#6bb58a"},   {"log_probs", "#a68bd1"},
        {"sync", "#e3b04b"},       {"save", "#8f98a5"},
        {"starting", "#dfe3e9"},   {"waiting for a command", "#eef1f5"}};
    static const char *const others[] = {"#7fb7be", "#c9a0b8", "#b5bd7c", "#a3a9c9"};
    uint32_t h = 0;

    for (size_t i = 0; i < CR_COUNT(known); i++)
        if (strcmp(known[i][0], phase) == 0) return known[i][1];
    for (const char *c = phase; *c; c++)
        h = h * 31 + (uint8_t)*c;
    return others[h % CR_COUNT(others)];
}

/* ---- findings ---- */

void cr_timeline_html_findings(const cr_timeline *t, cr_buf *out)
{
    size_t num = 0;

    if (!t->findings.num_bytes) {
        cr_buf_addf(
            out,
            "<div class=\"good\">No difference in the records of %zu rank%s: calls that several "
            "ranks made are the same, in the same order (where a rank ends between two calls, "
            "nothing is recorded of it).</div>\n",
            t->num_logs, t->num_logs == 1 ? "" : "s");
        return;
    }
    for (const char *at = t->findings.data, *end; *at && num < 20; at = end + 1, num++) {
        end = strchr(at, '\n');
        cr_buf_adds(out, "<div class=\"bad\">");
        cr_html_add(out, at, (size_t)(end - at));
        cr_buf_adds(out, "</div>\n");
    }
}

/* ---- pictures ---- */

typedef struct view {
    const cr_timeline *t;
    double from_s, to_s; /* since 1970 */
    bool has_lanes;
    cr_buf *out;
} view;

static double x_of(const view *v, double s)
{
    double x = LEFT + (WIDTH - LEFT) * (s - v->from_s) / (v->to_s - v->from_s);

    return x < LEFT ? LEFT : x > WIDTH ? WIDTH : x;
}

static void rect(const view *v, double from_s, double to_s, double y, int height, const char *color)
{
    double x = x_of(v, from_s), w = x_of(v, to_s) - x;

    cr_buf_addf(v->out, "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>", x,
                y, w < 0.4 ? 0.4 : w, height, color);
}

static void title_begin(const view *v, double width)
{
    if (width > 2) cr_buf_adds(v->out, "<g><title>");
}

static void phase_bar(const view *v, const char *name, double begin, double end, bool is_open,
                      double y)
{
    double width = x_of(v, end) - x_of(v, begin);
    char time[32];

    if (end < v->from_s || begin > v->to_s) return;
    cr_buf_adds(v->out, "<g><title>");
    cr_html_adds(v->out, name);
    cr_buf_addf(v->out, ", %s%s</title>", cr_seconds_text(end - begin, time),
                is_open ? ", not ended" : "");
    rect(v, begin, end, y, PHASE_HEIGHT, color_of(name));
    if (width > 7.0 * (double)strlen(name)) {
        cr_buf_addf(v->out, "<text x=\"%.1f\" y=\"%.0f\" class=\"small\">", x_of(v, begin) + 4,
                    y + PHASE_HEIGHT - 5);
        cr_html_adds(v->out, name);
        cr_buf_adds(v->out, "</text>");
    }
    cr_buf_adds(v->out, "</g>\n");
}

static void call_bar(const view *v, const cr_flight_event *e, double begin, double end, double y)
{
    double width = x_of(v, end) - x_of(v, begin), waited = e->end_s > 0 ? e->waited_s : 0;
    int lane = lane_of(e->coll);
    char time[32], sleep[32], size[32];

    title_begin(v, width);
    if (width > 2) {
        cr_buf_addf(v->out, "%s ", cr_coll_name((cr_coll)e->coll));
        cr_html_adds(v->out, e->name);
        cr_buf_addf(v->out, ", call %u of ", e->sequence);
        cr_html_adds(v->out, e->group[0] ? e->group : "no group");
        cr_buf_addf(v->out, ", %s, %s, waited %s%s</title>",
                    cr_size_text((int64_t)(e->num_bytes & INT64_MAX), size),
                    cr_seconds_text(end - begin, time), cr_seconds_text(waited, sleep),
                    e->end_s > 0 ? "" : ", NOT ENDED");
    }
    rect(v, begin, end, y, LANE_HEIGHT - 1, e->end_s > 0 ? lane_light[lane] : "#e02020");
    if (waited > 0 && end - waited < v->to_s)
        rect(v, end - waited < begin ? begin : end - waited, end, y, LANE_HEIGHT - 1,
             lane_dark[lane]);
    if (width > 2) cr_buf_adds(v->out, "</g>\n");
}

static void add_role(cr_buf *out, const cr_flight_log *log)
{
    cr_html_adds(out, log->role);
    if (log->host[0]) cr_buf_adds(out, " on ");
    cr_html_adds(out, log->host);
}

static void rank_lanes(const view *v, size_t index, double y)
{
    const cr_flight_log *log = &v->t->log[index];
    double shift = v->t->shift_s[index], drawn[LANES] = {0, 0, 0};
    bool has_now = false;

    cr_buf_addf(v->out, "<text x=\"0\" y=\"%.0f\">rank %d ", y + PHASE_HEIGHT - 4, log->rank);
    add_role(v->out, log);
    cr_buf_adds(v->out, "</text>\n");
    for (size_t i = 0; i < log->num_events; i++) {
        const cr_flight_event *e = &log->event[i];
        bool is_open = e->end_s <= 0;
        double begin = e->begin_s + shift, end = is_open ? v->t->end_s : e->end_s + shift;
        int lane = lane_of(e->coll);
        if (e->coll == CR_COLL_PHASE) {
            phase_bar(v, e->name, begin, end, is_open, y);
            has_now = has_now || is_open;
            continue;
        }
        if (!v->has_lanes || end < v->from_s || begin > v->to_s) continue;
        if (x_of(v, end) < drawn[lane] + 0.5) continue; /* narrower than half a pixel */
        drawn[lane] = x_of(v, end);
        call_bar(v, e, begin, end, y + PHASE_HEIGHT + 1 + LANE_HEIGHT * lane);
    }
    if (!has_now && log->phase_now[0])
        phase_bar(v, log->phase_now, log->phase_begin_s + shift, v->t->end_s, true, y);
}

static void time_axis(const view *v, double y)
{
    double length = v->to_s - v->from_s, step = cr_axis_step(length, 8);

    for (double at = 0; at <= length; at += step) {
        double x = x_of(v, v->from_s + at);
        cr_buf_addf(v->out, "<path class=\"axis\" d=\"M%.1f 0V%.0f\"/>", x, y);
        if (length < 1.5)
            cr_buf_addf(v->out, "<text x=\"%.1f\" y=\"%.0f\" class=\"small\">%.4g ms</text>", x + 2,
                        y + 12, at * 1e3);
        else
            cr_buf_addf(v->out, "<text x=\"%.1f\" y=\"%.0f\" class=\"small\">%.4g s</text>", x + 2,
                        y + 12, at);
    }
    cr_buf_adds(v->out, "\n");
}

/* Has a collective in the view, or everything is shown. */
static bool is_seen(const view *v, size_t index)
{
    const cr_flight_log *log = &v->t->log[index];
    double shift = v->t->shift_s[index];

    for (size_t i = 0; i < log->num_events; i++) {
        const cr_flight_event *e = &log->event[i];
        double end = e->end_s > 0 ? e->end_s + shift : v->t->end_s;
        if (e->coll != CR_COLL_PHASE && end >= v->from_s && e->begin_s + shift <= v->to_s)
            return true;
    }
    return !v->has_lanes;
}

static void picture(cr_buf *out, const cr_timeline *t, double from_s, double to_s, bool has_lanes,
                    const char *title, const char *text)
{
    view v = {t, from_s, to_s > from_s ? to_s : from_s + 1e-3, has_lanes, out};
    size_t num = 0, rank[MAX_RANKS], all = 0;
    double each = PHASE_HEIGHT + (has_lanes ? LANES * LANE_HEIGHT + 9 : 4), height;

    for (size_t i = 0; i < t->num_logs; i++) {
        if (!is_seen(&v, i)) continue;
        if (num < MAX_RANKS) rank[num++] = i;
        all++;
    }
    height = each * (double)num;
    cr_buf_addf(out, "<h3>%s</h3><p class=\"quiet\">%s", title, text);
    if (num < all) cr_buf_addf(out, " The first %zu of %zu ranks.", num, all);
    cr_buf_addf(out,
                "</p>\n<svg width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
                "shape-rendering=\"crispEdges\">\n",
                WIDTH, height + 16, WIDTH, height + 16);
    time_axis(&v, height);
    for (size_t i = 0; i < num; i++)
        rank_lanes(&v, rank[i], each * (double)i);
    cr_buf_adds(out, "</svg>\n");
}

/* The last training step of the first rank that has one; its end is the record's if it did not end. */
static bool last_step(const cr_timeline *t, size_t *log, double *from_s, double *to_s)
{
    for (size_t i = 0; i < t->num_logs; i++)
        for (size_t k = t->log[i].num_events; k-- > 0;) {
            const cr_flight_event *e = &t->log[i].event[k];
            if (e->coll != CR_COLL_PHASE || !is_training(e->name)) continue;
            *log = i;
            *from_s = e->begin_s + t->shift_s[i];
            *to_s = e->end_s > 0 ? e->end_s + t->shift_s[i] : t->end_s;
            return true;
        }
    return false;
}

/* Begin of the last calls of a rank before to_s. */
static double begin_of_last(const cr_timeline *t, size_t log, double to_s, size_t num)
{
    const cr_flight_log *l = &t->log[log];
    double begin = to_s;

    for (size_t k = l->num_events; k-- > 0 && num > 0;) {
        double s = l->event[k].begin_s + t->shift_s[log];
        if (l->event[k].coll == CR_COLL_PHASE || s > to_s) continue;
        begin = s;
        num--;
    }
    return begin;
}

static void legend(cr_buf *out)
{
    static const char *const phases[] = {"train_step", "log_probs", "generate",
                                         "sync",       "save",      "waiting for a command"};

    cr_buf_adds(out, "<div class=\"legend\">");
    for (size_t i = 0; i < CR_COUNT(phases); i++)
        cr_buf_addf(out, "<span><i style=\"background:%s\"></i>%s</span>", color_of(phases[i]),
                    phases[i]);
    cr_buf_adds(out, "</div><div class=\"legend\">");
    for (int i = 0; i < LANES; i++)
        cr_buf_addf(out,
                    "<span><i style=\"background:%s\"></i>%s under way <i style=\"background:%s;"
                    "margin-left:6px\"></i>asleep for it</span>",
                    lane_light[i], lane_name[i], lane_dark[i]);
    cr_buf_adds(out, "</div>\n");
}

void cr_timeline_html_pictures(const cr_timeline *t, cr_buf *out)
{
    double from, to, end_from;
    size_t log;

    cr_buf_adds(out, "<h2>Timeline</h2>\n");
    cr_buf_adds(out, "<p class=\"under\">");
    if (t->error_s > 0)
        cr_buf_addf(out,
                    "Clocks of several hosts are aligned by round trips, within %.2f ms of each "
                    "other.",
                    1e3 * t->error_s);
    else
        cr_buf_adds(out, t->has_hosts
                             ? "Ranks of several hosts are aligned by their hosts' wall clocks, "
                               "which may differ by a millisecond or more."
                             : "All ranks share one clock.");
    cr_buf_adds(out, " Point at a bar for its name, bytes and times.</p>\n");
    legend(out);
    picture(out, t, t->begin_s, t->end_s, false, "What each rank did",
            "Phases, as far back as the records go (the last 4095 entries of a rank).");
    if (!last_step(t, &log, &from, &to)) {
        picture(out, t, t->end_s - (t->end_s - t->begin_s) / 10, t->end_s, true, "The end", "");
        return;
    }
    picture(out, t, from, to, true, "The last training step",
            "Below each rank: gathers, reductions, other collectives.");
    end_from = begin_of_last(t, log, to, 60);
    if (end_from > from)
        picture(out, t, end_from, to, true, "The end of that step",
                "Its last 60 collectives, close enough to see what compute hides.");
}

/* ---- tables ---- */

/* Sums of the ranks of one role. */
typedef struct role_sums {
    const char *role;
    size_t num_ranks;
    cr_flight_count count[CR_NUM_COLLS];
    cr_flight_phase phase[4 * CR_FLIGHT_PHASES];
    size_t num_phases;
    double total_s; /* of all phases */
} role_sums;

static void add_phase(role_sums *sums, const cr_flight_phase *p)
{
    size_t i = 0;

    while (i < sums->num_phases && strcmp(sums->phase[i].name, p->name) != 0)
        i++;
    if (i == CR_COUNT(sums->phase)) return;
    if (i == sums->num_phases) {
        sums->num_phases++;
        memcpy(sums->phase[i].name, p->name, sizeof p->name);
    }
    sums->phase[i].num += p->num;
    sums->phase[i].total_s += p->total_s;
    for (int k = 0; k < CR_NUM_COLLS; k++)
        sums->phase[i].waited_s[k] += p->waited_s[k];
    sums->total_s += p->total_s;
}

/* Of ranks first.. with the role of that one. *next: the first rank of another role that comes later and
 * was not summed; ranks of a role are neighbours. */
static size_t sum_role(const cr_timeline *t, size_t first, role_sums *sums)
{
    size_t i = first;

    *sums = (role_sums){.role = t->log[first].role};
    for (; i < t->num_logs && strcmp(t->log[i].role, sums->role) == 0; i++) {
        const cr_flight_log *log = &t->log[i];
        sums->num_ranks++;
        for (int k = 0; k < CR_NUM_COLLS; k++) {
            sums->count[k].num += log->count[k].num;
            sums->count[k].num_bytes += log->count[k].num_bytes;
            sums->count[k].waited_s += log->count[k].waited_s;
            sums->count[k].total_s += log->count[k].total_s;
        }
        for (size_t p = 0; p < log->num_phases; p++)
            add_phase(sums, &log->phase[p]);
    }
    return i;
}

static double others_s(const cr_flight_phase *p)
{
    double s = 0;

    for (int k = 0; k < CR_NUM_COLLS; k++)
        if (k != CR_COLL_ALL_GATHER && k != CR_COLL_REDUCE_SCATTER) s += p->waited_s[k];
    return s;
}

static double percent(double part, double all)
{
    return all > 0 ? 100 * part / all : 0;
}

static void phase_rows(cr_buf *out, const role_sums *s)
{
    double n = (double)s->num_ranks;
    char time[32], each[32];

    for (size_t i = 0; i < s->num_phases; i++) {
        const cr_flight_phase *p = &s->phase[i];
        cr_buf_adds(out, "<tr><td>");
        cr_html_adds(out, s->role);
        cr_buf_addf(
            out,
            "</td><td><i style=\"display:inline-block;width:10px;height:10px;background:%s\">"
            "</i> ",
            color_of(p->name));
        cr_html_adds(out, p->name);
        cr_buf_addf(
            out,
            "</td><td class=\"n\">%.0f</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td "
            "class=\"n\">%.1f %%</td><td class=\"n\">%.1f %%</td><td class=\"n\">%.1f %%</td><td "
            "class=\"n\">%.1f %%</td></tr>\n",
            (double)p->num / n, cr_seconds_text(p->total_s / n, time),
            cr_seconds_text(p->num ? p->total_s / (double)p->num : 0, each),
            percent(p->total_s, s->total_s), percent(p->waited_s[CR_COLL_ALL_GATHER], p->total_s),
            percent(p->waited_s[CR_COLL_REDUCE_SCATTER], p->total_s),
            percent(others_s(p), p->total_s));
    }
}

static void call_rows(cr_buf *out, const role_sums *s)
{
    double n = (double)s->num_ranks;
    char size[32], time[32], wait[32];

    for (int k = 0; k < CR_NUM_COLLS; k++) {
        const cr_flight_count *c = &s->count[k];
        if (!c->num) continue;
        cr_buf_adds(out, "<tr><td>");
        cr_html_adds(out, s->role);
        cr_buf_addf(out,
                    "</td><td>%s</td><td class=\"n\">%.0f</td><td class=\"n\">%s</td><td "
                    "class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%.0f %%</td></tr>\n",
                    cr_coll_name((cr_coll)k), (double)c->num / n,
                    cr_size_text((int64_t)((double)c->num_bytes / n), size),
                    cr_seconds_text(c->total_s / n, time), cr_seconds_text(c->waited_s / n, wait),
                    percent(c->total_s - c->waited_s, c->total_s));
    }
}

static void say_last(cr_buf *out, const cr_timeline *t, size_t index)
{
    const cr_flight_log *log = &t->log[index];
    const cr_flight_event *e = cr_timeline_last(log);
    char ago[32];

    cr_buf_addf(out, "<tr><td class=\"n\">%d</td><td>", log->rank);
    add_role(out, log);
    cr_buf_adds(out, "</td><td>");
    cr_html_adds(out, log->phase_now);
    cr_buf_adds(out, "</td><td>");
    if (e) {
        double at = (e->end_s > 0 ? e->end_s : e->begin_s) + t->shift_s[index];
        cr_buf_addf(out, "%s ", cr_coll_name((cr_coll)e->coll));
        cr_html_adds(out, e->name);
        if (e->group[0]) {
            cr_buf_addf(out, " (call %u of ", e->sequence);
            cr_html_adds(out, e->group);
            cr_buf_adds(out, ")");
        }
        cr_buf_addf(out, "</td><td>%s</td><td class=\"n\">%s</td></tr>\n",
                    e->end_s > 0 ? "ended" : "<b>not ended</b>",
                    cr_seconds_text(t->end_s - at > 0 ? t->end_s - at : 0, ago));
    } else {
        cr_buf_adds(out, "none</td><td></td><td></td></tr>\n");
    }
}

void cr_timeline_html_tables(const cr_timeline *t, cr_buf *out)
{
    static role_sums sums;

    cr_buf_adds(
        out,
        "<h3>Phases, whole run, mean of a role's ranks</h3><p class=\"quiet\">Waiting: asleep "
        "because another rank or its data had not come. What is not waited for is hidden "
        "under compute.</p><table><tr><th>role</th><th>phase</th><th class=\"n\">times</th><th "
        "class=\"n\">together</th><th class=\"n\">each</th><th class=\"n\">share</th><th "
        "class=\"n\">waits for gathers</th><th class=\"n\">for reductions</th><th "
        "class=\"n\">for others</th></tr>\n");
    for (size_t i = 0; i < t->num_logs;) {
        i = sum_role(t, i, &sums);
        phase_rows(out, &sums);
    }
    cr_buf_adds(
        out,
        "</table>\n<h3>Collectives, whole run, a rank</h3><table><tr><th>role</th><th>kind</th>"
        "<th class=\"n\">number</th><th class=\"n\">bytes</th><th class=\"n\">under way</th>"
        "<th class=\"n\">asleep for it</th><th class=\"n\">hidden</th></tr>\n");
    for (size_t i = 0; i < t->num_logs;) {
        i = sum_role(t, i, &sums);
        call_rows(out, &sums);
    }
    cr_buf_adds(
        out,
        "</table>\n<h3>Where each rank was last</h3><table><tr><th class=\"n\">rank</th><th>role"
        "</th><th>phase</th><th>last collective</th><th></th><th class=\"n\">before the end"
        "</th></tr>\n");
    for (size_t i = 0; i < t->num_logs; i++)
        say_last(out, t, i);
    cr_buf_adds(out, "</table>\n");
}

bool cr_timeline_wait_share(const cr_timeline *t, double *gathers, double *reductions)
{
    double all = 0;

    *gathers = *reductions = 0;
    for (size_t i = 0; i < t->num_logs; i++)
        for (size_t k = 0; k < t->log[i].num_phases; k++) {
            const cr_flight_phase *p = &t->log[i].phase[k];
            if (!is_training(p->name)) continue;
            all += p->total_s;
            *gathers += p->waited_s[CR_COLL_ALL_GATHER];
            *reductions += p->waited_s[CR_COLL_REDUCE_SCATTER];
        }
    if (all <= 0) return false;
    *gathers /= all;
    *reductions /= all;
    return true;
}
