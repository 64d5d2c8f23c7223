/* client.c -- calls, their retries and deadlines (see client.h). */
#include "http/client_impl.h"

#include "base/json.h"
#include "base/rng.h"

#include <math.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FIRST_PAUSE_S 0.1
#define LAST_PAUSE_S  5.0
enum { HEADER_BYTES = 32 << 10, STATUS_LINE = 1024, KEY_BYTES = 4096, MIN_HIDDEN = 6 };

struct cr_http_client {
    char *url; /* for messages */
    cri_target target;
    cri_wire *wires; /* [num_wires] */
    size_t num_wires;
    cr_http_call **calls; /* added and not handed back, in that order */
    size_t num_calls, capacity;
    struct pollfd *polled; /* [num_wires + 1] */
    bool has_warned;       /* of failures since the last answer */
    double held_until_s;   /* the service has said Retry-After: no call before */
    uint64_t num_pauses;
};

/* ---- where to ---- */

static cr_status fail_url(const char *url, const char *why, cr_err *err)
{
    return cr_fail(err, CR_EUSAGE, "%.200s: %s (http://HOST:PORT/PATH, https://.. or unix:FILE)",
                   url, why);
}

/* HOST[:PORT], [ADDRESS][:PORT] */
static cr_status split_authority(const char *url, cri_target *t, cr_err *err)
{
    char *text = cr_strdup(t->authority), *host = text, *end;

    if (*host == '[') {
        host++;
        end = strchr(host, ']');
    } else {
        end = host + strcspn(host, ":");
    }
    if (!end || end == host) {
        fail_url(url, "it has no host", err);
    } else {
        const char *port = end + (*end == ']');
        bool has_port = *port == ':';
        port += has_port;
        if (*port && (!has_port || strspn(port, "0123456789") != strlen(port) || strlen(port) > 5 ||
                      atol(port) < 1 || atol(port) > 65535))
            fail_url(url, "its port is not a number from 1 to 65535", err);
        t->port = cr_strdup(has_port && *port ? port : t->is_tls ? "443" : "80");
        *end = 0;
        t->host = cr_strdup(host);
    }
    cr_free(text);
    return err->status;
}

static cr_status split_url(const char *url, cri_target *t, cr_err *err)
{
    static const char plain[] = "http://", tls[] = "https://", file[] = "unix:";
    const char *at = NULL;
    size_t num;

    t->prefix = cr_strdup("/v1");
    for (const char *c = url; *c; c++)
        if (*c <= ' ' || (unsigned char)*c >= 0x7f || strchr("?#\"<>\\", *c))
            return fail_url(url, "it has a character that a URL of a service has not", err);
    t->is_tls = strncmp(url, tls, strlen(tls)) == 0;
    t->is_unix = strncmp(url, file, strlen(file)) == 0;
    if (t->is_unix) {
        t->host = cr_strdup(url + strlen(file));
        t->authority = cr_strdup("localhost");
        num = strlen(t->host);
        if (num == 0 || num >= sizeof((struct sockaddr_un *)0)->sun_path)
            return fail_url(url, "the path of its socket is empty or too long", err);
        return CR_OK;
    }
    if (t->is_tls)
        at = url + strlen(tls);
    else if (strncmp(url, plain, strlen(plain)) == 0)
        at = url + strlen(plain);
    else
        return fail_url(url, "it is no URL of a service", err);
    num = strcspn(at, "/");
    t->authority = cr_strndup(at, num);
    if (strchr(t->authority, '@'))
        return fail_url("the URL", "a name or a password in it would be seen by everybody", err);
    at += num;
    num = strlen(at);
    while (num > 0 && at[num - 1] == '/')
        num--;
    if (num > 0) {
        cr_free(t->prefix);
        t->prefix = cr_strndup(at, num);
    }
    return split_authority(url, t, err);
}

static cr_status take_key(const char *from, const char *text, cri_target *t, cr_err *err)
{
    size_t num = strcspn(text, "\r\n");

    while (num > 0 && (text[num - 1] == ' ' || text[num - 1] == '\t'))
        num--;
    for (size_t i = 0; i < num; i++)
        if (text[i] <= ' ' || (unsigned char)text[i] >= 0x7f)
            return cr_fail(err, CR_EUSAGE, "%s: its first line is not a key", from);
    if (num == 0 || num > KEY_BYTES)
        return cr_fail(err, CR_EUSAGE, "%s: %s", from, num ? "the key is too long" : "it is empty");
    t->key = cr_strndup(text, num);
    return CR_OK;
}

static cr_status read_key(const cr_http_client_options *o, cri_target *t, cr_err *err)
{
    const char *value = o->key_env ? getenv(o->key_env) : NULL;
    cr_buf text = {0};

    if (o->key_env && !value)
        return cr_fail(err, CR_EUSAGE, "key_env: the environment has no variable %s", o->key_env);
    if (value) CR_TRY(take_key(o->key_env, value, t, err));
    if (!o->key_file) return CR_OK;
    if (cr_file_read(o->key_file, &text, err) == CR_OK)
        cr_note(take_key(o->key_file, text.data ? text.data : "", t, err));
    else
        err->status = CR_EUSAGE;
    if (text.data) OPENSSL_cleanse(text.data, text.num_bytes);
    cr_buf_free(&text);
    return cr_fail_add(err, "key_file");
}

static cr_status open_tls(const char *ca_file, cri_target *t, cr_err *err)
{
    bool is_loaded;

    t->tls = SSL_CTX_new(TLS_client_method());
    CR_CHECK(t->tls, "OpenSSL has no memory");
    SSL_CTX_set_min_proto_version(t->tls, TLS1_2_VERSION);
    SSL_CTX_set_mode(t->tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(t->tls, SSL_VERIFY_PEER, NULL);
    is_loaded = ca_file ? SSL_CTX_load_verify_locations(t->tls, ca_file, NULL) == 1
                        : SSL_CTX_set_default_verify_paths(t->tls) == 1;
    ERR_clear_error();
    if (is_loaded) return CR_OK;
    return cr_fail(err, CR_EUSAGE, "ca_file: %s has no certificates (PEM)",
                   ca_file ? ca_file : "the system");
}

cr_status cr_http_client_open(const cr_http_client_options *o, cr_http_client **out, cr_err *err)
{
    cr_http_client *c = CR_NEW(cr_http_client);
    cri_target *t = &c->target;

    *out = NULL;
    c->url = cr_strdup(o->url);
    c->has_warned = o->is_starting;
    t->limits = (cr_http_limits){
        .header_bytes = HEADER_BYTES, .target_bytes = STATUS_LINE, .body_bytes = o->answer_bytes};
    if (split_url(o->url, t, err) == CR_OK && read_key(o, t, err) == CR_OK && t->is_tls)
        cr_note(open_tls(o->ca_file, t, err));
    else if (o->ca_file && err->status == CR_OK)
        cr_fail(err, CR_EUSAGE, "ca_file: %s is not https", c->url);
    c->num_wires = o->max_connections;
    c->wires = CR_NEW_ARRAY(cri_wire, c->num_wires);
    c->polled = CR_NEW_ARRAY(struct pollfd, c->num_wires + 1);
    for (size_t i = 0; i < c->num_wires; i++) {
        c->wires[i] = (cri_wire){.target = t, .fd = -1};
        cri_wire_close(&c->wires[i]);
    }
    if (err->status == CR_OK)
        *out = c;
    else
        cr_http_client_close(c);
    return err->status;
}

void cr_http_client_close(cr_http_client *c)
{
    cri_target *t;

    if (!c) return;
    t = &c->target;
    for (size_t i = 0; i < c->num_wires; i++) {
        cri_wire_close(&c->wires[i]);
        if (c->wires[i].head.data)
            OPENSSL_cleanse(c->wires[i].head.data, c->wires[i].head.num_bytes);
        cr_buf_free(&c->wires[i].head);
    }
    if (t->key) OPENSSL_cleanse(t->key, strlen(t->key));
    SSL_CTX_free(t->tls);
    cr_free(t->host);
    cr_free(t->port);
    cr_free(t->prefix);
    cr_free(t->authority);
    cr_free(t->key);
    cr_free(c->wires);
    cr_free(c->polled);
    cr_free(c->calls);
    cr_free(c->url);
    cr_free(c);
}

/* ---- calls ---- */

void cr_http_client_add(cr_http_client *c, cr_http_call *call, double pause_s)
{
    call->status = call->num_tries = 0;
    call->failure = (cr_err){0};
    call->last[0] = 0;
    call->is_on_wire = call->is_done = false;
    call->added_s = cr_now_s();
    call->start_s = call->added_s + pause_s;
    call->pause_s = FIRST_PAUSE_S;
    c->calls = cr_grow(c->calls, c->num_calls, &c->capacity, sizeof(cr_http_call *));
    c->calls[c->num_calls++] = call;
}

void cr_http_call_free(cr_http_call *call)
{
    cr_buf_free(&call->body);
    cr_buf_free(&call->answer);
}

/* Later, and no two calls of a client, or of several, at the same moment. */
static void retry_later(cr_http_client *c, cr_http_call *call)
{
    double now = cr_now_s(), from = fmax(now, c->held_until_s);
    uint32_t words[4];

    cr_rng_philox((uint64_t)getpid(), CR_RNG_PAUSE, c->num_pauses++, (uint64_t)(1e9 * now), words);
    call->start_s = from + call->pause_s * (0.5 + 0.5 * (double)cr_rng_float(words[0]));
    call->pause_s = fmin(2 * call->pause_s, LAST_PAUSE_S);
    if (!c->has_warned)
        cr_log(CR_LOG_WARN, "http", "%s: %s; trying again for at most %.3g s", c->url, call->last,
               call->deadline_s - now);
    c->has_warned = true;
}

/* The seconds of Retry-After, which are a number or a date; 0: none. */
static double seconds_to_wait(const char *after)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT",
                                        "%a %b %d %H:%M:%S %Y"};

    if (!after || !*after) return 0;
    if (strspn(after, "0123456789") == strlen(after)) return atof(after);
    for (size_t i = 0; i < CR_COUNT(forms); i++) {
        struct tm date = {0};
        const char *end = strptime(after, forms[i], &date);
        if (end && !*end) return fmax((double)timegm(&date) - cr_wall_s(), 0);
    }
    return 0;
}

static bool is_passing(int status)
{
    return status == 408 || status == 429 || (status >= 500 && status != 501 && status != 505);
}

/* A service that repeats the key in an answer does not bring it into logs and files. */
static void hide_key(const char *key, cr_buf *text)
{
    size_t num = key ? strlen(key) : 0;

    for (char *at = text->data; num >= MIN_HIDDEN && at;) {
        at = memmem(at, text->num_bytes - (size_t)(at - text->data), key, num);
        if (at) memset(at, '*', num);
    }
}

static void take_answer(cr_http_client *c, cri_wire *w)
{
    cr_http_call *call = w->call;
    double wait_s = seconds_to_wait(cr_http_field(&w->parser, "retry-after"));

    hide_key(c->target.key, &call->answer);
    if (is_passing(call->status)) {
        snprintf(call->last, sizeof call->last, "it answered %d", call->status);
        if (wait_s > 0) { /* what it says to one call holds for all */
            snprintf(call->last, sizeof call->last, "it answered %d, Retry-After %.0f s",
                     call->status, wait_s);
            c->held_until_s = fmax(c->held_until_s, cr_now_s() + wait_s);
        }
        retry_later(c, call);
        return;
    }
    c->has_warned = false;
    call->is_done = true;
}

/* What became of the call on a wire. */
static void take(cr_http_client *c, cri_wire *w, cri_call_outcome outcome)
{
    cr_http_call *call = w->call;

    if (outcome == CRI_GOES_ON) return;
    w->call = NULL;
    call->is_on_wire = false;
    switch (outcome) {
    case CRI_GOES_ON:
        break;
    case CRI_ANSWERED:
        w->call = call;
        take_answer(c, w);
        w->call = NULL;
        break;
    case CRI_BROKEN:
        retry_later(c, call);
        break;
    case CRI_STALE: /* at once, on a new connection */
        break;
    case CRI_HOPELESS:
        call->is_done = true;
        cr_fail(&call->failure, CR_EPEER, "%s: %s", c->url, call->last);
        break;
    }
}

static void expire(cr_http_client *c, cr_http_call *call)
{
    for (size_t i = 0; i < c->num_wires; i++)
        if (c->wires[i].call == call) {
            c->wires[i].call = NULL;
            cri_wire_close(&c->wires[i]);
        }
    call->is_done = true;
    cr_fail(&call->failure, CR_ETIMEOUT, "%s gave no answer within %.3g s (%d tr%s%s%s)", c->url,
            call->deadline_s - call->added_s, call->num_tries, call->num_tries == 1 ? "y" : "ies",
            call->last[0] ? "; the last one: " : "", call->last);
}

/* Deadlines, and calls whose time has come on wires that are free. Returns when something has to be done next. */
static double manage(cr_http_client *c, double until)
{
    double now = cr_now_s(), next = until;
    size_t wire = 0;

    for (size_t i = 0; i < c->num_calls; i++) {
        cr_http_call *call = c->calls[i];
        if (!call->is_done && now >= call->deadline_s) expire(c, call);
        if (call->is_done) return now;
        next = fmin(next, call->deadline_s);
        if (call->is_on_wire) continue;
        while (wire < c->num_wires && c->wires[wire].call)
            wire++;
        if (wire == c->num_wires) continue;
        if (now < fmax(call->start_s, c->held_until_s)) {
            next = fmin(next, fmax(call->start_s, c->held_until_s));
            continue;
        }
        call->num_tries++;
        call->is_on_wire = true;
        take(c, &c->wires[wire], cri_wire_begin(&c->wires[wire], call));
        if (!call->is_on_wire) next = now;
    }
    for (size_t i = 0; i < c->num_wires; i++) {
        cri_wire *w = &c->wires[i];
        if (w->phase != CRI_WIRE_CONNECT && w->phase != CRI_WIRE_HANDSHAKE) continue;
        if (now >= w->deadline_s) take(c, w, cri_wire_late(w));
        next = fmin(next, w->phase == CRI_WIRE_CLOSED ? now : w->deadline_s);
    }
    return next;
}

/* Wait for events at most until then; false: other_fd can be read. */
static bool poll_wires(cr_http_client *c, double until, int other_fd)
{
    double left_s = until - cr_now_s();
    int wait_ms = left_s > 0 ? (int)ceil(1e3 * fmin(left_s, 1e6)) : 0;

    for (size_t i = 0; i < c->num_wires; i++)
        c->polled[i] = (struct pollfd){.fd = c->wires[i].fd, .events = c->wires[i].events};
    c->polled[c->num_wires] = (struct pollfd){.fd = other_fd, .events = POLLIN};
    if (poll(c->polled, c->num_wires + 1, wait_ms) <= 0) return true;
    for (size_t i = 0; i < c->num_wires; i++)
        if (c->polled[i].revents && c->wires[i].fd >= 0)
            take(c, &c->wires[i], cri_wire_step(&c->wires[i]));
    return !c->polled[c->num_wires].revents;
}

cr_http_call *cr_http_client_next(cr_http_client *c, double wait_s, int other_fd)
{
    double until = cr_now_s() + wait_s;
    bool is_over = false;

    for (;;) {
        double next = manage(c, until);
        for (size_t i = 0; i < c->num_calls; i++)
            if (c->calls[i]->is_done) {
                cr_http_call *call = c->calls[i];
                memmove(c->calls + i, c->calls + i + 1, (--c->num_calls - i) * sizeof call);
                return call;
            }
        if (is_over) return NULL;
        is_over = !poll_wires(c, next, other_fd) || cr_now_s() >= until;
    }
}

/* ---- answers ---- */

/* What an error's body says, without control characters: {"error": {"message": ..}}, {"error": ..}, {"message": ..}, or
 * its beginning. */
static void say_error(const cr_http_call *call, char *to, size_t num)
{
    static const char *const names[] = {"error", "message", "detail"};
    const char *from = call->answer.data;
    json_t *root = NULL, *value;
    cr_err ignored = {0};

    cr_note(cr_json_parse(from, call->answer.num_bytes, NULL, &root, &ignored));
    value = root;
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        json_t *inner = json_object_get(value, names[i]);
        if (inner) value = inner;
        if (json_is_string(value)) from = json_string_value(value);
    }
    snprintf(to, num, "%s", from);
    for (char *p = to; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = ' ';
    json_decref(root);
}

cr_status cr_http_call_check(const cr_http_client *c, const cr_http_call *call, cr_err *err)
{
    char text[200];

    if (call->failure.status) return cr_fail(err, call->failure.status, "%s", call->failure.msg);
    if (call->status == 200) return CR_OK;
    say_error(call, text, sizeof text);
    return cr_fail(err, CR_EPEER, "%s%s answered %d%s%s", c->url, call->path, call->status,
                   *text ? ": " : "", text);
}
