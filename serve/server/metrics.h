/* metrics.h -- counters of a service, as Prometheus reads them (text format 0.0.4).
 *
 * Names are vLLM's where it has one, with another prefix. Threads: the I/O thread counts and prints.
 */
#ifndef CR_SERVE_METRICS_H
#define CR_SERVE_METRICS_H

#include "http/server.h"
#include "serve/server/queue.h"

enum { CR_NUM_BUCKETS = 18, CR_MAX_SERIES = 1024 };

typedef struct cr_serve_histogram {
    int64_t count[CR_NUM_BUCKETS + 1];
    double sum;
} cr_serve_histogram;

/* Requests of one route, status and tenant. */
typedef struct cr_serve_series {
    const char *route; /* constant */
    int status;
    char tenant[64];
    int64_t num;
} cr_serve_series;

typedef struct cr_serve_metrics {
    cr_serve_series *series; /* owned [num_series] */
    size_t num_series, capacity;
    int64_t num_others; /* beyond CR_MAX_SERIES */
    int64_t num_gone, num_rejected_keys, num_rejected_quota, num_rejected_queue, num_late;
    int64_t num_lost_lines;                       /* of the access log */
    int64_t num_prompt_tokens, num_cached_tokens; /* of sampled requests */
    cr_serve_histogram latency, queued, worked;
} cr_serve_metrics;

void cr_serve_metrics_free(cr_serve_metrics *m);
/* route: a constant. */
void cr_serve_metrics_request(cr_serve_metrics *m, const char *route, int status,
                              const char *tenant, double seconds);
/* A job that was worked on. */
void cr_serve_metrics_job(cr_serve_metrics *m, const cr_serve_job *job);
/* service: NULL while the model is being loaded. */
void cr_serve_metrics_print(const cr_serve_metrics *m, const char *prefix, const char *version,
                            const cr_http_counts *http, const cr_serve_load *load,
                            const cr_serve_service *service, cr_buf *out);
void cr_serve_metrics_print_tenants(const char *prefix, const cr_tenant_counts *tenants, size_t num,
                                    cr_buf *out);

#endif
