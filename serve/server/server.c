/* server.c -- see server.h. */
#include "serve/server/server_impl.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CLIENT_GONE = 499 /* in the log: no answer was wanted any more */ };

/* ---- log ---- */

static void add_time(cr_buf *out)
{
    double now_s = cr_wall_s();
    time_t whole = (time_t)now_s;
    struct tm tm;
    char text[32];

    gmtime_r(&whole, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    cr_buf_addf(out, "\"%s.%03dZ\"", text, (int)((now_s - (double)whole) * 1000));
}

static void add_text(cr_buf *out, const char *name, const char *text)
{
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_string(out, text, strlen(text));
}

/* Probes that found all well are not worth a line. */
static bool is_probe(const cri_server_call *call, int status)
{
    return status == 200 && (strstr(call->route, "/health") || strcmp(call->route, "/ready") == 0);
}

static void log_request(cr_server *s, const cr_http_exchange *x, const cri_server_call *call,
                        int status)
{
    cr_buf *out = &s->log;

    if (s->log_fd < 0 || is_probe(call, status)) return;
    cr_buf_adds(out, "{\"time\":");
    add_time(out);
    add_text(out, "id", x->id);
    add_text(out, "client", x->client);
    add_text(out, "tenant", call->tenant);
    add_text(out, "method", x->request->method);
    add_text(out, "route", call->route);
    cr_buf_addf(out,
                ",\"status\":%d,\"queue_ms\":%.3f,\"compute_ms\":%.3f,\"model_ms\":%.3f,"
                "\"total_ms\":%.3f,\"bytes\":%zu}\n",
                status, 1e3 * call->queued_s, 1e3 * call->worked_s, 1e3 * call->model_s,
                1e3 * (cr_now_s() - x->begin_s), x->sent_bytes);
}

static void write_log(cr_server *s)
{
    size_t at = 0, lines = 0;

    while (at < s->log.num_bytes) {
        ssize_t n = write(s->log_fd, s->log.data + at, s->log.num_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* a full disk must not end the service */
        at += (size_t)n;
    }
    if (at < s->log.num_bytes && !s->is_log_broken)
        cr_log(CR_LOG_WARN, "serve", "access log %s: %s: its lines are lost, answers go on",
               s->options.access_log, strerror(errno));
    if (s->log.num_bytes) s->is_log_broken = at < s->log.num_bytes;
    for (; at < s->log.num_bytes; at++)
        lines += s->log.data[at] == '\n';
    s->metrics.num_lost_lines += (int64_t)lines;
    cr_buf_clear(&s->log);
}

/* ---- callbacks of http/ ---- */

static void on_gone(void *ctx, cr_http_exchange *x)
{
    cr_server *s = ctx;

    s->metrics.num_gone++;
    cri_admin_gone(s, x);
    cri_work_gone(s, x);
}

static void on_end(void *ctx, cr_http_exchange *x)
{
    cr_server *s = ctx;
    const cri_server_call refused = {.route = cri_route_name(x),
                                     .tenant = CRI_NO_TENANT}; /* by the parser */
    const cri_server_call *call = x->user ? x->user : &refused;
    int status = x->status && !x->is_gone ? x->status : CLIENT_GONE;

    cr_serve_metrics_request(&s->metrics, call->route, status, call->tenant,
                             cr_now_s() - x->begin_s);
    log_request(s, x, call, status);
    cr_free(x->user);
    x->user = NULL;
}

static void on_wake(void *ctx)
{
    cr_server *s = ctx;

    cri_work_collect(s);
    if (!s->should_stop) return;
    s->is_draining = true; /* for no time: the next tick answers those that still wait */
    cr_http_stop(s->http);
}

static void on_tick(void *ctx)
{
    cr_server *s = ctx;

    cri_work_tick(s);
    if (s->is_draining && cr_now_s() >= s->drain_until_s) cri_work_fail_all(s);
    if (s->is_draining && !cri_work_is_open(s)) cr_http_stop(s->http);
    write_log(s);
}

static void reload(cr_server *s)
{
    cr_err err = {0};
    cr_serve_keys keys;

    if (s->options.keys && cr_serve_keys_read(s->options.keys, &keys, &err) == CR_OK) {
        for (size_t i = 0; i < keys.num; i++) { /* what was used of a quota is not given again */
            const cr_serve_key *old = cr_serve_keys_named(&s->keys, keys.key[i].name);
            if (old && old->left < keys.key[i].left) keys.key[i].left = old->left;
        }
        cr_serve_keys_free(&s->keys);
        s->keys = keys;
    }
    if (err.status == CR_OK) cr_note(cr_http_reload_tls(s->http, &err));
    if (err.status == CR_OK)
        cr_log(CR_LOG_INFO, "serve", "keys and certificate were read again");
    else
        cr_log(CR_LOG_ERROR, "serve", "the old keys or certificate stay: %s", err.msg);
}

static void on_signal(void *ctx, int number)
{
    cr_server *s = ctx;

    if (number == SIGHUP) {
        reload(s);
        return;
    }
    if (s->num_signals++ > 0 || !s->service) {
        write_log(s);
        cr_http_unlink(s->http);
        _exit(cr_exit_code(CR_ESIGNAL));
    }
    s->is_draining = true;
    s->drain_until_s = cr_now_s() + s->options.drain_s;
    cr_http_drain(s->http);
}

/* ---- life ---- */

static void wake(void *ctx)
{
    cr_server *s = ctx;

    cr_http_wake(s->http);
}

static void *run_thread(void *ctx)
{
    cr_server *s = ctx;

    cr_http_run(s->http);
    cr_serve_queue_end(s->compute);
    return NULL;
}

static cr_status open_log(cr_server *s, cr_err *err)
{
    const char *path = s->options.access_log;

    s->log_fd = -1;
    if (strcmp(path, "none") == 0) return CR_OK;
    s->log_fd = strcmp(path, "-") == 0
                    ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                    : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (s->log_fd < 0)
        return cr_fail(err, CR_EUSAGE, "cannot write the log %s: %s", path, strerror(errno));
    return CR_OK;
}

static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

void cr_server_block_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < CR_COUNT(signals); i++)
        sigaddset(&set, signals[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static cr_status start(cr_server *s, cr_err *err)
{
    const cr_http_app app = {s,      cri_on_head, cri_on_request, on_gone,
                             on_end, on_wake,     on_tick,        on_signal};
    const cr_server_options *o = &s->options;
    cr_serve_bounds bounds = {o->max_queue, o->max_queue_tokens, o->http.buffered_bytes, 0};

    if (o->can_update && !o->keys)
        return cr_fail(err, CR_EUSAGE,
                       "--allow-updates needs --keys FILE with a user that has the scope admin");
    if (o->keys) CR_TRY(cr_serve_keys_read(o->keys, &s->keys, err));
    CR_TRY(open_log(s, err));
    cr_server_block_signals();
    CR_TRY(cr_http_open(&o->http, &app, signals, CR_COUNT(signals), &s->http, err));
    if (!cr_http_is_local(s->http) && !o->keys && !o->http.tls_ca && !o->needs_no_keys)
        return cr_fail(err, CR_EUSAGE,
                       "%s can be reached from other machines, and there are no keys: give --keys "
                       "FILE (or --tls-ca FILE), or --no-auth if everyone may use it",
                       o->http.listen);
    s->texts = cr_serve_queue_create(&bounds, wake, s);
    bounds.max_running_each = CRI_MAX_TASKS - CRI_MAX_TASKS / 8; /* some are left for others */
    s->can_spin = cr_num_cores() > 1;
    bounds.spin_s = s->can_spin ? CRI_SPIN_S : 0;
    s->compute = cr_serve_queue_create(&bounds, wake, s);
    s->has_text_thread = pthread_create(&s->text_thread, NULL, cri_work_thread, s) == 0;
    s->has_thread = pthread_create(&s->thread, NULL, run_thread, s) == 0;
    CR_CHECK(s->has_text_thread && s->has_thread, "no thread can be started");
    return CR_OK;
}

cr_status cr_server_open(const cr_server_options *options, cr_server **out, cr_err *err)
{
    cr_server *s = CR_NEW(cr_server);

    *out = NULL;
    s->options = *options;
    s->log_fd = -1;
    pthread_rwlock_init(&s->service_lock, NULL);
    if (start(s, err) == CR_OK)
        *out = s;
    else
        cr_server_close(s);
    return err->status;
}

const char *cr_server_url(const cr_server *s)
{
    return cr_http_url(s->http);
}

void cr_server_ready(cr_server *s, const cr_serve_service *service)
{
    pthread_rwlock_wrlock(&s->service_lock);
    s->service = service;
    pthread_rwlock_unlock(&s->service_lock);
}

cr_status cr_server_run(cr_server *s, cr_compute *compute, const cr_serve_updates *updates,
                        cr_err *err)
{
    if (cri_compute_run(s, compute, updates, err) != CR_OK) { /* those that wait get an answer */
        s->has_failed = s->should_stop = true;
        cr_http_wake(s->http);
    }
    cr_server_wait(s);
    return err->status;
}

void cr_server_wait(cr_server *s)
{
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = false;
}

void cr_server_close(cr_server *s)
{
    if (!s) return;
    s->should_stop = true;
    if (s->has_thread) cr_http_wake(s->http);
    cr_server_wait(s);
    if (s->has_text_thread) {
        cr_serve_queue_end(s->texts);
        pthread_join(s->text_thread, NULL);
    }
    cr_http_close(s->http);
    if (s->log_fd >= 0) {
        write_log(s);
        close(s->log_fd);
    }
    cr_buf_free(&s->log);
    cri_work_free(s);
    cr_serve_keys_free(&s->keys);
    cr_serve_metrics_free(&s->metrics);
    cr_free(s->pausing);
    pthread_rwlock_destroy(&s->service_lock);
    cr_free(s);
}
