/* show.c -- what a pre-flight found: for people, for programs, for `croll plan`. */
#include "launch/preflight/preflight_impl.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ALL_LINKS = 4, MAX_COLUMNS = CRI_TOPICS + ALL_LINKS, CELL_BYTES = 72 };

const char *cri_bytes(double num, char text[CRI_BYTES_TEXT])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    size_t u = 0;

    for (; num >= 999.5 && u + 1 < CR_COUNT(units); u++)
        num /= 1000;
    snprintf(text, CRI_BYTES_TEXT, num < 9.95 && u ? "%.1f %s" : "%.0f %s", num, units[u]);
    return text;
}

static void write_link(const cr_agent_rate *r, char *cell, size_t size)
{
    char rate[CRI_BYTES_TEXT];

    if (r->latency_s <= 0)
        snprintf(cell, size, "-");
    else if (r->latency_s < 1e-3)
        snprintf(cell, size, "%s/s %.0f us", cri_bytes(r->bytes_per_s, rate), 1e6 * r->latency_s);
    else
        snprintf(cell, size, "%s/s %.1f ms", cri_bytes(r->bytes_per_s, rate), 1e3 * r->latency_s);
}

/* The slowest link away from a host; NULL: none was measured. */
static const cr_agent_rate *slowest_from(const cr_preflight *p, size_t from, size_t *to)
{
    const cr_agent_rate *worst = NULL;

    for (size_t k = 0; k < p->num; k++) {
        const cr_agent_rate *r = cri_rate(p, from, k);
        if (r->latency_s <= 0 || (worst && r->bytes_per_s >= worst->bytes_per_s)) continue;
        worst = r;
        *to = k;
    }
    return worst;
}

/* ---- the table ---- */

typedef struct column {
    cri_topic topic;
    size_t to; /* of CRI_LINK: the host where the link ends; p->num: the slowest one */
    char title[CELL_BYTES];
    size_t width;
} column;

typedef struct table {
    const cr_preflight *p;
    column column[MAX_COLUMNS];
    size_t num_columns;
    char (*cell)[CELL_BYTES]; /* [p->num * MAX_COLUMNS] */
} table;

static bool has_finding(const cr_preflight *p, size_t node, cri_topic topic)
{
    for (size_t k = 0; k < p->num_findings; k++)
        if (p->finding[k].node == node && p->finding[k].topic == topic) return true;
    return false;
}

/* Has it the launcher's output_dir? The launcher's is one of its own where no other host has it. */
static bool is_shared(const cr_preflight *p, size_t node)
{
    bool has_others = false;

    for (size_t i = 0; i < p->num; i++)
        has_others |= i != p->here && p->node[i].look.has_mark;
    return p->node[node].look.has_mark && has_others;
}

/* Models of one host in one word. */
static void write_models(const cri_preflight_node *node, char *cell)
{
    const cr_agent_look *look = &node->look;
    size_t at = 0;

    if (!node->has_ranks || look->num_models == 0) snprintf(cell, CELL_BYTES, "-");
    for (size_t k = 0; k < look->num_models && at + 12 < CELL_BYTES && node->has_ranks; k++)
        at += (size_t)snprintf(cell + at, CELL_BYTES - at, "%s%.8s", k ? " " : "",
                               look->model[k].error[0] ? "missing" : look->model[k].digest);
}

static void write_cell(const cr_preflight *p, size_t i, const column *c, char *cell)
{
    const cri_preflight_node *node = &p->node[i];
    const cr_agent_look *look = &node->look;
    char text[CRI_BYTES_TEXT], link[48];
    size_t to = c->to;

    snprintf(cell, CELL_BYTES, "-");
    switch (c->topic) {
    case CRI_HOST:
        snprintf(cell, CELL_BYTES, "%.50s%s", node->name, node->has_ranks ? "" : " (launcher)");
        return;
    case CRI_CROLL:
        if (node->has_hello) snprintf(cell, CELL_BYTES, "%.8s", node->hello.digest);
        return;
    case CRI_CLOCK:
        if (i == p->here)
            snprintf(cell, CELL_BYTES, "0");
        else if (node->round_trip_s > 0)
            snprintf(cell, CELL_BYTES, "%+.2f ms", 1e3 * node->offset_s);
        return;
    case CRI_LINK:
        if (c->to < p->num) {
            write_link(cri_rate(p, i, to), cell, CELL_BYTES);
        } else if (slowest_from(p, i, &to)) {
            write_link(cri_rate(p, i, to), link, sizeof link);
            snprintf(cell, CELL_BYTES, "%s to %.20s", link, p->node[to].name);
        }
        return;
    default:
        break;
    }
    if (!node->has_looked) return;
    switch (c->topic) {
    case CRI_MODEL:
        write_models(node, cell);
        return;
    case CRI_SHM:
        snprintf(cell, CELL_BYTES, "%s", cri_bytes((double)look->shm, text));
        return;
    case CRI_MEMORY:
        snprintf(cell, CELL_BYTES, "%s", cri_bytes((double)look->memory, text));
        return;
    case CRI_FILES:
        snprintf(cell, CELL_BYTES, "%lld", (long long)look->files);
        return;
    case CRI_GPUS:
        if (look->num_gpus)
            snprintf(cell, CELL_BYTES, "%d %.50s", look->num_gpus, look->gpu);
        else
            snprintf(cell, CELL_BYTES, "none");
        return;
    case CRI_CORES:
        snprintf(cell, CELL_BYTES, "%d/%d", look->num_cores, look->num_nodes);
        return;
    case CRI_CPU:
        snprintf(cell, CELL_BYTES, "%.40s", cri_best_cpu(look));
        return;
    default:
        if (look->disk >= 0)
            snprintf(cell, CELL_BYTES, "%s, %s", is_shared(p, i) ? "shared" : "own",
                     cri_bytes((double)look->disk, text));
    }
}

static void add_column(table *t, cri_topic topic, const char *title, size_t to)
{
    column *c = &t->column[t->num_columns++];

    *c = (column){.topic = topic, .to = to};
    if (topic == CRI_LINK && to < t->p->num)
        snprintf(c->title, sizeof c->title, "to %.50s", t->p->node[to].name);
    else
        snprintf(c->title, sizeof c->title, "%s", title);
    c->width = strlen(c->title);
    for (size_t i = 0; i < t->p->num; i++) {
        char *cell = t->cell[i * MAX_COLUMNS + t->num_columns - 1];
        size_t n;
        write_cell(t->p, i, c, cell);
        n = strlen(cell);
        if (has_finding(t->p, i, topic) && topic != CRI_LINK && n + 1 < CELL_BYTES) {
            cell[n++] = '!';
            cell[n] = 0;
        }
        if (n > c->width) c->width = n;
    }
}

static void add_columns(table *t)
{
    bool has_links = t->p->chosen && !t->p->needs->is_brief;
    static const struct {
        cri_topic topic;
        const char *title;
    } columns[] = {{CRI_HOST, "host"},   {CRI_CROLL, "croll"},      {CRI_MODEL, "model"},
                   {CRI_CLOCK, "clock"}, {CRI_SHM, "/dev/shm"},     {CRI_MEMORY, "free mem"},
                   {CRI_FILES, "files"}, {CRI_CORES, "cores"},      {CRI_CPU, "CPU"},
                   {CRI_GPUS, "GPUs"},   {CRI_OUTPUT, "output_dir"}};

    for (size_t k = 0; k < CR_COUNT(columns); k++)
        if ((columns[k].topic != CRI_MODEL || t->p->needs->num_models) &&
            (columns[k].topic != CRI_OUTPUT || t->p->needs->output_dir))
            add_column(t, columns[k].topic, columns[k].title, 0);
    for (size_t k = 0; k < t->p->num && t->p->num <= ALL_LINKS && has_links; k++)
        add_column(t, CRI_LINK, NULL, k);
    if (t->p->num > ALL_LINKS && has_links) add_column(t, CRI_LINK, "slowest link", t->p->num);
}

void cr_preflight_table(const cr_preflight *p, cr_buf *out)
{
    table t = {.p = p, .cell = cr_alloc(p->num * MAX_COLUMNS * CELL_BYTES)};

    add_columns(&t);
    for (size_t row = 0; row <= p->num; row++) /* the titles first */
        for (size_t c = 0; c < t.num_columns; c++) {
            const char *text = row ? t.cell[(row - 1) * MAX_COLUMNS + c] : t.column[c].title;
            if (c + 1 < t.num_columns)
                cr_buf_addf(out, "%-*s  ", (int)t.column[c].width, text);
            else
                cr_buf_addf(out, "%s\n", text);
        }
    cr_free(t.cell);
}

void cr_preflight_findings(const cr_preflight *p, cr_buf *out)
{
    for (size_t k = 0; k < p->num_findings; k++)
        cr_buf_addf(out, "%s: host %s: %s\n", p->finding[k].is_error ? "error" : "warning",
                    p->node[p->finding[k].node].name, p->finding[k].text);
}

/* ---- one line ---- */

void cr_preflight_summary(const cr_preflight *p, cr_buf *out)
{
    double seconds = 0, latency_s = 0;
    const cr_agent_rate *worst = NULL;
    size_t from = 0, to = 0;
    char rate[CRI_BYTES_TEXT];

    for (size_t i = 0; i < p->num_parts; i++)
        seconds += p->part[i].seconds;
    for (size_t i = 0; i < p->num; i++) {
        size_t other = 0;
        const cr_agent_rate *r = slowest_from(p, i, &other);
        for (size_t k = 0; k < p->num; k++)
            latency_s = fmax(latency_s, cri_rate(p, i, k)->latency_s);
        if (!r || (worst && r->bytes_per_s >= worst->bytes_per_s)) continue;
        worst = r;
        from = i;
        to = other;
    }
    cr_buf_addf(out, "hosts: %zu", p->hosts->num);
    if (p->chosen) cr_buf_addf(out, ", %s (%s)", p->chosen->cidr, p->chosen->interface);
    if (worst)
        cr_buf_addf(out, ", slowest link %s/s (%s to %s), latency up to %.2f ms",
                    cri_bytes(worst->bytes_per_s, rate), p->node[from].name, p->node[to].name,
                    1e3 * latency_s);
    cr_buf_addf(out, "; checked in %.1f s\n", seconds);
}

cr_status cr_preflight_run(cr_hosts *hosts, const cr_preflight_needs *needs, cr_preflight **out,
                           cr_err *err)
{
    cr_buf text = {0}, line = {0};
    size_t at = 0, n;

    *out = NULL;
    if (hosts->by == CR_HOSTS_HERE) return CR_OK;
    *out = cr_preflight_make(hosts, needs);
    if (cr_preflight_check(*out, err) == CR_ESIGNAL) return err->status;
    if (err->status != CR_OK)
        cr_preflight_table(*out, &text);
    else if (!needs->is_brief)
        cr_preflight_summary(*out, &text);
    cr_preflight_findings(*out, &text);
    for (const char *part; (part = cr_line_next(&text, &at, &n)); cr_buf_clear(&line)) {
        cr_buf_add(&line, part, n);
        cr_log_line(line.data);
    }
    cr_buf_free(&text);
    cr_buf_free(&line);
    return err->status;
}

/* ---- JSON ---- */

static void add_text(cr_buf *out, const char *key, const char *text)
{
    cr_buf_addf(out, "\"%s\":", key);
    cr_json_add_string(out, text, strlen(text));
}

static void add_host_object(const cr_preflight *p, size_t i, cr_buf *out)
{
    const cri_preflight_node *node = &p->node[i];
    const cr_agent_look *look = &node->look;

    cr_buf_addc(out, '{');
    add_text(out, "host", node->name);
    cr_buf_addf(out, ",\"has_ranks\":%s", node->has_ranks ? "true" : "false");
    if (node->has_hello) cr_buf_addf(out, ",\"croll\":\"%s\"", node->hello.digest);
    if (node->round_trip_s > 0)
        cr_buf_addf(out, ",\"clock_offset_s\":%.6f,\"clock_error_s\":%.6f", node->offset_s,
                    node->round_trip_s / 2);
    if (node->has_looked) {
        cr_buf_addf(
            out, ",\"shm_bytes\":%lld,\"memory_bytes\":%lld,\"files\":%lld,\"num_gpus\":%d,",
            (long long)look->shm, (long long)look->memory, (long long)look->files, look->num_gpus);
        add_text(out, "gpu", look->gpu);
        cr_buf_addf(out, ",\"num_cores\":%d,\"num_nodes\":%d,", look->num_cores, look->num_nodes);
        add_text(out, "cpu", cri_best_cpu(look));
        if (look->disk >= 0)
            cr_buf_addf(out, ",\"disk_bytes\":%lld,\"is_output_dir_shared\":%s",
                        (long long)look->disk, is_shared(p, i) ? "true" : "false");
        cr_buf_adds(out, ",\"models\":[");
        for (size_t k = 0; k < look->num_models; k++)
            cr_buf_addf(out, "%s\"%s\"", k ? "," : "", look->model[k].digest);
        cr_buf_addc(out, ']');
    }
    cr_buf_adds(out, "}\n");
}

static void add_links(const cr_preflight *p, cr_buf *out)
{
    bool is_first = true;

    cr_buf_adds(out, "\"links\":[");
    for (size_t i = 0; i < p->num; i++)
        for (size_t k = 0; k < p->num; k++) {
            const cr_agent_rate *r = cri_rate(p, i, k);
            if (r->latency_s <= 0) continue;
            cr_buf_addc(out, is_first ? '{' : ',');
            if (!is_first) cr_buf_addc(out, '{');
            is_first = false;
            add_text(out, "from", p->node[i].name);
            cr_buf_addc(out, ',');
            add_text(out, "to", p->node[k].name);
            cr_buf_addf(out, ",\"bytes_per_s\":%.6g,\"latency_s\":%.6g}", r->bytes_per_s,
                        r->latency_s);
        }
    cr_buf_addc(out, ']');
}

static void add_network(const cr_preflight *p, cr_buf *out)
{
    cr_buf_adds(out, "{\"hosts\":[");
    for (size_t i = 0; i < p->num; i++) {
        if (i) cr_buf_addc(out, ',');
        cr_json_add_string(out, p->node[i].name, strlen(p->node[i].name));
    }
    cr_buf_addf(out, "],\"network\":\"%s\",\"clock_offset_s\":[", p->chosen ? p->chosen->cidr : "");
    for (size_t i = 0; i < p->num; i++)
        cr_buf_addf(out, "%s%.6f", i ? "," : "", p->node[i].offset_s);
    cr_buf_adds(out, "],");
    add_links(p, out);
    cr_buf_adds(out, "}\n");
}

void cr_preflight_json(const cr_preflight *p, cr_buf *out)
{
    for (size_t i = 0; i < p->num; i++)
        add_host_object(p, i, out);
    add_network(p, out);
    for (size_t k = 0; k < p->num_findings; k++) {
        cr_buf_addf(out, "{\"finding\":\"%s\",", p->finding[k].is_error ? "error" : "warning");
        add_text(out, "host", p->node[p->finding[k].node].name);
        cr_buf_addc(out, ',');
        add_text(out, "text", p->finding[k].text);
        cr_buf_adds(out, "}\n");
    }
    cr_buf_adds(out, "{\"seconds\":{");
    for (size_t i = 0; i < p->num_parts; i++)
        cr_buf_addf(out, "%s\"%s\":%.3f", i ? "," : "", p->part[i].name, p->part[i].seconds);
    cr_buf_adds(out, "}}\n");
}

cr_status cr_preflight_write(const cr_preflight *p, const char *path, cr_err *err)
{
    cr_buf text = {0};

    add_network(p, &text);
    cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    cr_buf_free(&text);
    return err->status;
}
