/* metrics.c -- see metrics.h. */
#include "serve/server/metrics.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const double buckets[CR_NUM_BUCKETS] = {50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3,
                                               5e-3,  10e-3,  20e-3,  50e-3,  0.1,  0.2,
                                               0.5,   1,      2,      5,      10,   60};

void cr_serve_metrics_free(cr_serve_metrics *m)
{
    cr_free(m->series);
    *m = (cr_serve_metrics){0};
}

static void observe(cr_serve_histogram *h, double x)
{
    size_t i = 0;

    while (i < CR_NUM_BUCKETS && x > buckets[i])
        i++;
    h->count[i]++;
    h->sum += x;
}

void cr_serve_metrics_request(cr_serve_metrics *m, const char *route, int status,
                              const char *tenant, double seconds)
{
    observe(&m->latency, seconds);
    for (size_t i = 0; i < m->num_series; i++) {
        cr_serve_series *s = &m->series[i];
        if (s->status == status && strcmp(s->route, route) == 0 && strcmp(s->tenant, tenant) == 0) {
            s->num++;
            return;
        }
    }
    if (m->num_series == CR_MAX_SERIES) {
        m->num_others++;
        return;
    }
    m->series = cr_grow(m->series, m->num_series, &m->capacity, sizeof *m->series);
    m->series[m->num_series] = (cr_serve_series){.route = route, .status = status, .num = 1};
    snprintf(m->series[m->num_series++].tenant, sizeof m->series->tenant, "%s", tenant);
}

void cr_serve_metrics_job(cr_serve_metrics *m, const cr_serve_job *job)
{
    observe(&m->queued, job->begin_s - job->put_s);
    observe(&m->worked, job->end_s - job->begin_s);
    m->num_prompt_tokens += job->prompt_tokens;
    m->num_cached_tokens += job->cached_tokens;
}

/* ---- text ---- */

typedef struct page {
    const char *prefix;
    cr_buf *out;
} page;

static void add_head(page *p, const char *name, const char *type, const char *help)
{
    cr_buf_addf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix, name,
                type);
}

static void add_label(cr_buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') cr_buf_addc(out, '\\');
        if (*text == '\n')
            cr_buf_adds(out, "\\n");
        else
            cr_buf_addc(out, *text);
    }
}

static void add_value(page *p, const char *name, const char *type, const char *help, double value)
{
    add_head(p, name, type, help);
    cr_buf_addf(p->out, "%s%s %.17g\n", p->prefix, name, value);
}

static void add_requests(page *p, const cr_serve_metrics *m)
{
    add_head(p, "requests_total", "counter", "Requests that were answered, or whose client left.");
    for (size_t i = 0; i < m->num_series; i++) {
        const cr_serve_series *s = &m->series[i];
        cr_buf_addf(p->out, "%srequests_total{route=\"%s\",status=\"%d\",tenant=\"", p->prefix,
                    s->route, s->status);
        add_label(p->out, s->tenant);
        cr_buf_addf(p->out, "\"} %lld\n", (long long)s->num);
    }
    if (m->num_others)
        cr_buf_addf(p->out, "%srequests_total{route=\"\",status=\"\",tenant=\"\"} %lld\n",
                    p->prefix, (long long)m->num_others);
}

static void add_histogram(page *p, const char *name, const char *help, const cr_serve_histogram *h)
{
    int64_t num = 0;

    add_head(p, name, "histogram", help);
    for (size_t i = 0; i < CR_NUM_BUCKETS; i++) {
        num += h->count[i];
        cr_buf_addf(p->out, "%s%s_bucket{le=\"%g\"} %lld\n", p->prefix, name, buckets[i],
                    (long long)num);
    }
    num += h->count[CR_NUM_BUCKETS];
    cr_buf_addf(p->out, "%s%s_bucket{le=\"+Inf\"} %lld\n%s%s_sum %.9g\n%s%s_count %lld\n",
                p->prefix, name, (long long)num, p->prefix, name, h->sum, p->prefix, name,
                (long long)num);
}

static void add_models(page *p, const cr_serve_service *service)
{
    add_head(p, "weights_info", "gauge", "Identity of the weights of each model.");
    for (size_t i = 0; service && i < service->num_models; i++) {
        cr_buf_addf(p->out, "%sweights_info{model=\"", p->prefix);
        add_label(p->out, service->models[i].name);
        cr_buf_addf(p->out, "\",sha256=\"%s\",version=\"", service->models[i].weights_sha256);
        add_label(p->out, service->models[i].weight_version);
        cr_buf_adds(p->out, "\"} 1\n");
    }
}

/* Names without prefix: what every program of Prometheus calls its process. */
static void add_process(cr_buf *out)
{
    page p = {"process_", out};
    struct rusage usage = {0};
    FILE *file = fopen("/proc/self/statm", "r");
    long all = 0, resident = 0;

    if (file) {
        if (fscanf(file, "%ld %ld", &all, &resident) != 2) all = resident = 0;
        fclose(file);
    }
    getrusage(RUSAGE_SELF, &usage);
    add_value(&p, "cpu_seconds_total", "counter", "CPU time of all threads.",
              (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec));
    add_value(&p, "resident_memory_bytes", "gauge", "Memory of the process.",
              (double)resident * (double)sysconf(_SC_PAGESIZE));
}

void cr_serve_metrics_print(const cr_serve_metrics *m, const char *prefix, const char *version,
                            const cr_http_counts *http, const cr_serve_load *load,
                            const cr_serve_service *service, cr_buf *out)
{
    page p = {prefix, out};

    add_requests(&p, m);
    add_histogram(&p, "e2e_request_latency_seconds", "From a request's fields to its answer.",
                  &m->latency);
    add_histogram(&p, "request_queue_time_seconds", "Time that a request waited to be worked on.",
                  &m->queued);
    add_histogram(&p, "request_inference_time_seconds", "Time that a request was worked on.",
                  &m->worked);
    add_value(&p, "num_requests_waiting", "gauge", "Requests in the queue.",
              (double)load->num_waiting);
    add_value(&p, "num_requests_running", "gauge", "Requests that are worked on.",
              (double)load->num_running);
    add_value(&p, "waiting_tokens", "gauge", "Tokens of requests in the queue, as estimated.",
              (double)load->waiting_tokens);
    add_value(&p, "prefix_cache_queries_total", "counter",
              "Tokens of prompts that were looked for in the cache.", (double)m->num_prompt_tokens);
    add_value(&p, "prefix_cache_hits_total", "counter", "Those of them that were there.",
              (double)m->num_cached_tokens);
    add_value(&p, "cancelled_total", "counter", "Requests whose client left before the answer.",
              (double)m->num_gone);
    add_head(&p, "admission_rejections_total", "counter", "Requests that were not taken.");
    cr_buf_addf(out, "%sadmission_rejections_total{reason=\"key\"} %lld\n", prefix,
                (long long)m->num_rejected_keys);
    cr_buf_addf(out, "%sadmission_rejections_total{reason=\"quota\"} %lld\n", prefix,
                (long long)m->num_rejected_quota);
    cr_buf_addf(out, "%sadmission_rejections_total{reason=\"queue\"} %lld\n", prefix,
                (long long)m->num_rejected_queue);
    cr_buf_addf(out, "%sadmission_rejections_total{reason=\"deadline\"} %lld\n", prefix,
                (long long)m->num_late);
    add_value(&p, "connections", "gauge", "Connections that are open.",
              (double)http->num_connections);
    add_value(&p, "connections_refused_total", "counter", "Connections beyond the limits.",
              (double)http->num_refused);
    add_value(&p, "buffered_bytes", "gauge", "Bodies and unsent answers in memory.",
              (double)http->buffered_bytes);
    add_head(&p, "tls_handshakes_total", "counter", "Handshakes of TLS.");
    cr_buf_addf(out, "%stls_handshakes_total{result=\"ok\"} %lld\n", prefix,
                (long long)http->num_handshakes);
    cr_buf_addf(out, "%stls_handshakes_total{result=\"failed\"} %lld\n", prefix,
                (long long)http->num_failed_handshakes);
    add_value(&p, "access_log_lost_lines_total", "counter", "Lines that the log could not take.",
              (double)m->num_lost_lines);
    add_head(&p, "build_info", "gauge", "Version of croll.");
    cr_buf_addf(out, "%sbuild_info{version=\"%s\"} 1\n", prefix, version);
    add_models(&p, service);
    add_process(out);
}

static void add_tenant_value(page *p, const char *name, const char *tenant, double value)
{
    cr_buf_addf(p->out, "%s%s{tenant=\"", p->prefix, name);
    add_label(p->out, tenant);
    cr_buf_addf(p->out, "\"} %.17g\n", value);
}

void cr_serve_metrics_print_tenants(const char *prefix, const cr_tenant_counts *tenants, size_t num,
                                    cr_buf *out)
{
    page p = {prefix, out};

    add_head(&p, "tenant_requests_waiting", "gauge", "Requests for the model in the queue.");
    for (size_t i = 0; i < num; i++)
        add_tenant_value(&p, "tenant_requests_waiting", tenants[i].name,
                         (double)tenants[i].num_waiting);
    add_head(&p, "tenant_tokens_total", "counter", "Tokens of prompts and samples worked on.");
    for (size_t i = 0; i < num; i++)
        add_tenant_value(&p, "tenant_tokens_total", tenants[i].name, (double)tenants[i].num_tokens);
    add_head(&p, "tenant_queue_seconds_total", "counter",
             "Time that requests waited, all together.");
    for (size_t i = 0; i < num; i++)
        add_tenant_value(&p, "tenant_queue_seconds_total", tenants[i].name, tenants[i].queued_s);
    add_head(&p, "tenant_rejections_total", "counter", "Requests that a full queue refused.");
    for (size_t i = 0; i < num; i++)
        add_tenant_value(&p, "tenant_rejections_total", tenants[i].name,
                         (double)tenants[i].num_refused);
}
