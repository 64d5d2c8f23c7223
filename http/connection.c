/* connection.c -- one connection from phase to phase. Only cri_connection_close frees it, which is called at the end of a
 * callback of libevent or by the tick, never from an answer. */
#include "http/server_impl.h"

#include <string.h>
#include <sys/socket.h>

#define LINGER_S 2.0
enum { LINGER_BYTES = 1 << 20, READ_AHEAD = 16 << 10, MAX_ID = 128 };

void cri_connection_charge(cri_connection *c)
{
    size_t bytes = c->parser.body.num_bytes + evbuffer_get_length(bufferevent_get_output(c->bev));

    c->server->counts.buffered_bytes += bytes - c->charged_bytes;
    c->charged_bytes = bytes;
}

/* ---- exchanges ---- */

static void choose_id(cri_connection *c)
{
    const char *given = cr_http_field(&c->parser, "x-request-id");
    size_t num = given ? strlen(given) : 0;
    cr_http_server *s = c->server;

    for (size_t i = 0; i < num; i++)
        if (given[i] <= ' ' || given[i] >= 0x7f) num = 0;
    if (num > 0 && num <= MAX_ID) {
        memcpy(c->x.id, given, num + 1);
        return;
    }
    snprintf(c->x.id, sizeof c->x.id, "%08x-%08llx", s->process_id,
             (unsigned long long)++s->num_exchanges);
}

static void begin_exchange(cri_connection *c)
{
    c->has_exchange = true;
    c->x.request = &c->parser;
    c->x.user = NULL;
    c->x.status = 0;
    c->x.is_gone = false;
    c->x.sent_bytes = 0;
    c->x.begin_s = cri_now(c->server);
    c->x.end_s = 0;
    cr_buf_clear(&c->x.fields);
    choose_id(c);
}

/* What was refused may go on coming: it is dropped for a while, so that the client reads the answer. */
static void begin_linger(cri_connection *c)
{
    c->phase = CRI_LINGER;
    c->deadline_s = c->server->now_s + (c->has_ended ? 0 : LINGER_S);
    if (c->ssl) SSL_shutdown(c->ssl);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void end_exchange(cri_connection *c)
{
    c->server->app.on_end(c->server->app.ctx, &c->x);
    c->has_exchange = false;
    if (c->should_close) {
        begin_linger(c);
        return;
    }
    cr_http_parser_next(&c->parser);
    cri_connection_charge(c);
    c->phase = CRI_IDLE;
    c->deadline_s = c->server->now_s + c->server->options.idle_s;
}

/* ---- requests ---- */

static void fail_now(cri_connection *c, int status, const char *message)
{
    if (!c->has_exchange) begin_exchange(c);
    c->should_close = true;
    cr_buf_free(&c->parser.body); /* its memory is for others at once */
    cri_connection_charge(c);
    if (status == 503) cr_http_set(&c->x, "Retry-After", "1");
    cr_http_fail(&c->x, status, NULL, NULL, message);
}

static void on_head(cri_connection *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const cr_http_options *o = &c->server->options;
    size_t body_bytes = c->parser.content_bytes ? c->parser.content_bytes : o->limits.body_bytes;

    begin_exchange(c);
    c->is_body_left = c->parser.state != CRI_HTTP_END;
    c->phase = CRI_BODY;
    c->deadline_s = c->x.begin_s + o->body_s + (double)body_bytes / (1 << 20);
    c->server->app.on_head(c->server->app.ctx, &c->x);
    if (!c->x.status && c->parser.expects_continue &&
        evbuffer_get_length(bufferevent_get_input(c->bev)) == 0)
        bufferevent_write(c->bev, go_on, sizeof go_on - 1);
}

static void on_parsed(cri_connection *c, cr_http_event event)
{
    cr_http_server *s = c->server;

    switch (event) {
    case CR_HTTP_MORE:
        if (c->phase == CRI_IDLE) {
            c->phase = CRI_HEAD;
            c->deadline_s = cri_now(s) + s->options.head_s;
        }
        cri_connection_charge(c);
        if (c->phase == CRI_BODY && s->counts.buffered_bytes > s->options.buffered_bytes)
            fail_now(c, 503, "requests and answers take too much memory, try again later");
        break;
    case CR_HTTP_HEAD:
        on_head(c);
        break;
    case CR_HTTP_WHOLE:
        c->is_body_left = false;
        c->phase = CRI_WORK;
        c->deadline_s = 0;
        cri_connection_charge(c);
        s->app.on_request(s->app.ctx, &c->x);
        break;
    case CR_HTTP_REFUSED:
        fail_now(c, c->parser.status, c->parser.message);
        break;
    }
}

/* Read on; false: there is nothing to read, or it is not the time. */
static bool parse_input(cri_connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct evbuffer_iovec piece = {0};
    cr_http_event event;
    size_t used;

    evbuffer_peek(in, -1, NULL, &piece, 1);
    if (piece.iov_len == 0 && c->parser.state != CRI_HTTP_END) return false;
    event = cr_http_parse(&c->parser, piece.iov_base, piece.iov_len, &used);
    evbuffer_drain(in, used);
    on_parsed(c, event);
    return true;
}

static bool step(cri_connection *c)
{
    if (c->phase == CRI_FLUSH) {
        if (cr_http_unsent_bytes(&c->x) > 0) return false;
        end_exchange(c);
        return true;
    }
    if (c->phase != CRI_IDLE && c->phase != CRI_HEAD && c->phase != CRI_BODY) return false;
    return parse_input(c);
}

void cri_connection_go_on(cri_connection *c)
{
    if (c->is_running) return; /* from an answer given within on_head or on_request */
    c->is_running = true;
    while (step(c))
        continue;
    c->is_running = false;
}

void cr_http_take_body(cr_http_exchange *x, cr_buf *out)
{
    cri_connection *c = (cri_connection *)(void *)x;

    *out = c->parser.body;
    c->parser.body = (cr_buf){0};
    cri_connection_charge(c);
}

/* ---- callbacks of libevent ---- */

static void on_read(struct bufferevent *bev, void *ctx)
{
    cri_connection *c = ctx;
    struct evbuffer *in = bufferevent_get_input(bev);

    if (c->phase != CRI_LINGER) {
        cri_connection_go_on(c);
        return;
    }
    c->num_dropped += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->num_dropped > LINGER_BYTES) cri_connection_close(c);
}

static void on_written(struct bufferevent *bev, void *ctx)
{
    cri_connection *c = ctx;

    (void)bev;
    cri_connection_charge(c);
    cri_connection_go_on(c);
}

static void on_event(struct bufferevent *bev, short what, void *ctx)
{
    cri_connection *c = ctx;
    cr_http_server *s = c->server;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED) { /* TLS is agreed on */
        s->counts.num_handshakes++;
        c->x.client_name = cri_http_tls_client_name(c->ssl);
        c->phase = CRI_IDLE;
        c->deadline_s = cri_now(s) + s->options.idle_s;
        return;
    }
    c->has_ended = true;
    if ((what & BEV_EVENT_EOF) &&
        (c->phase == CRI_FLUSH || (c->phase == CRI_WORK && s->options.is_half_close_fine))) {
        c->should_close = true;
        return;
    }
    cri_connection_close(c);
}

/* ---- life ---- */

void cri_connection_open(cr_http_server *s, struct bufferevent *bev, SSL *ssl, const char *client,
                         const uint8_t *address)
{
    cri_connection *c = CR_NEW(cri_connection);

    c->server = s;
    c->bev = bev;
    c->ssl = ssl;
    c->parser.limits = s->options.limits;
    c->phase = ssl ? CRI_HANDSHAKE : CRI_IDLE;
    c->deadline_s = cri_now(s) + (ssl ? s->options.handshake_s : s->options.idle_s);
    c->moved_s = s->now_s;
    snprintf(c->x.client, sizeof c->x.client, "%s", client);
    if (address) memcpy(c->address, address, sizeof c->address);
    c->has_address = address != NULL;
    c->next = s->connections;
    if (c->next) c->next->prev = c;
    s->connections = c;
    s->counts.num_connections++;
    bufferevent_setcb(bev, on_read, on_written, on_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, READ_AHEAD);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

void cri_connection_close(cri_connection *c)
{
    cr_http_server *s = c->server;

    if (c->phase == CRI_HANDSHAKE) s->counts.num_failed_handshakes++;
    if (c->has_exchange) {
        c->x.is_gone = true;
        c->is_running = true; /* an answer now changes nothing */
        if (c->phase != CRI_FLUSH) s->app.on_gone(s->app.ctx, &c->x);
        s->app.on_end(s->app.ctx, &c->x);
    }
    *(c->prev ? &c->prev->next : &s->connections) = c->next;
    if (c->next) c->next->prev = c->prev;
    s->counts.num_connections--;
    s->counts.buffered_bytes -= c->charged_bytes;
    bufferevent_free(c->bev); /* closes the socket, frees ssl */
    cr_http_parser_free(&c->parser);
    cr_buf_free(&c->x.fields);
    cr_free((void *)(uintptr_t)c->x.client_name);
    cr_free(c);
}

void cri_connection_tick(cri_connection *c)
{
    cr_http_server *s = c->server;
    size_t unsent = cr_http_unsent_bytes(&c->x);

    if (unsent == 0 || unsent != c->unsent_bytes) c->moved_s = s->now_s;
    c->unsent_bytes = unsent;
    if (s->now_s - c->moved_s >= s->options.stall_s ||
        (s->is_stopping && (c->phase == CRI_IDLE || c->phase == CRI_HANDSHAKE))) {
        cri_connection_close(c);
        return;
    }
    if (c->deadline_s == 0 || s->now_s < c->deadline_s) return;
    if (c->phase == CRI_HEAD || c->phase == CRI_BODY)
        fail_now(c, 408, "the request did not arrive in time");
    else
        cri_connection_close(c);
}
