/* client_wire.c -- one connection of a client: addresses, TLS, bytes out and in. Nothing here waits. */
#include "http/client_impl.h"

#include "base/lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_S 10.0 /* one address, with TLS */
enum { PIECE = 64 << 10, IDLE_S = 30, PROBE_S = 10, PROBES = 3 };

static cri_call_outcome fail(cri_wire *w, cri_call_outcome outcome, const char *fmt, ...)
    CR_PRINTF(3, 4);

static cri_call_outcome fail(cri_wire *w, cri_call_outcome outcome, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(w->call->last, sizeof w->call->last, fmt, args);
    va_end(args);
    if (outcome == CRI_BROKEN && w->was_kept && !w->has_answer) outcome = CRI_STALE;
    cri_wire_close(w);
    return outcome;
}

static void close_socket(cri_wire *w)
{
    SSL_free(w->ssl);
    if (w->fd >= 0) close(w->fd);
    w->ssl = NULL;
    w->fd = -1;
    w->phase = CRI_WIRE_CLOSED;
    w->events = 0;
}

void cri_wire_close(cri_wire *w)
{
    close_socket(w);
    if (w->list) freeaddrinfo(w->list);
    w->list = w->at = NULL;
    cr_http_parser_free(&w->parser);
    w->parser = (cr_http_parser){.limits = w->target->limits, .is_answer = true};
    w->was_kept = false;
}

/* ---- connecting ---- */

/* A peer that is gone without a word is noticed by the kernel. */
static void set_options(int fd)
{
    const struct {
        int level, name, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_NODELAY, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, PROBES},
                   {IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * (IDLE_S + PROBES * PROBE_S)}};

    for (size_t i = 0; i < CR_COUNT(options); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

static bool connect_to(cri_wire *w, int family, const struct sockaddr *address, socklen_t num)
{
    w->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    w->phase = CRI_WIRE_CONNECT;
    w->events = POLLOUT;
    w->deadline_s = cr_now_s() + CONNECT_S;
    if (w->fd < 0) return false;
    if (family != AF_UNIX) set_options(w->fd);
    return connect(w->fd, address, num) == 0 || errno == EINPROGRESS;
}

/* The next address that can be tried. */
static cri_call_outcome connect_next(cri_wire *w, int why)
{
    for (; w->at; w->at = w->at->ai_next) {
        close_socket(w);
        if (connect_to(w, w->at->ai_family, w->at->ai_addr, w->at->ai_addrlen)) return CRI_GOES_ON;
        why = errno;
    }
    return fail(w, CRI_BROKEN, "cannot connect: %s", strerror(why));
}

static cri_call_outcome open_wire(cri_wire *w)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    const cri_target *t = w->target;
    int why;

    if (t->is_unix) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        memcpy(address.sun_path, t->host, strlen(t->host)); /* fits: cr_http_client_open */
        if (connect_to(w, AF_UNIX, (const struct sockaddr *)&address, sizeof address))
            return CRI_GOES_ON;
        return fail(w, CRI_BROKEN, "cannot connect: %s", strerror(errno));
    }
    why = cr_lookup(t->host, t->port, &hints, &w->list);
    if (why) {
        w->list = NULL;
        return fail(w, CRI_BROKEN, "the name cannot be looked up: %s", gai_strerror(why));
    }
    w->at = w->list;
    return connect_next(w, 0);
}

cri_call_outcome cri_wire_late(cri_wire *w)
{
    if (w->at) w->at = w->at->ai_next;
    return connect_next(w, ETIMEDOUT);
}

/* The name in the certificate must be that of the URL, which is sent to the server at once (SNI). OpenSSL's macro
 * for the latter casts const away. */
static void expect_name(SSL *ssl, const char *host)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1) return;
    CR_CHECK(SSL_set1_host(ssl, host) == 1 &&
                 SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                          (void *)(uintptr_t)host) == 1,
             "OpenSSL has no memory");
}

static cri_call_outcome begin_exchange(cri_wire *w)
{
    w->phase = CRI_WIRE_EXCHANGE;
    w->events = POLLIN | POLLOUT;
    return CRI_GOES_ON;
}

static cri_call_outcome shake_hands(cri_wire *w)
{
    int n, why;
    long verdict;
    char text[120] = "the connection broke";

    ERR_clear_error();
    n = SSL_connect(w->ssl);
    if (n == 1) return begin_exchange(w);
    why = SSL_get_error(w->ssl, n);
    w->events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return CRI_GOES_ON;
    verdict = SSL_get_verify_result(w->ssl);
    if (verdict != X509_V_OK)
        return fail(w, CRI_HOPELESS, "its certificate is not accepted: %s",
                    X509_verify_cert_error_string(verdict));
    if (why != SSL_ERROR_SSL) return fail(w, CRI_BROKEN, "TLS: %s", text);
    ERR_error_string_n(ERR_peek_error(), text, sizeof text);
    return fail(w,
                ERR_GET_REASON(ERR_get_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING
                    ? CRI_BROKEN
                    : CRI_HOPELESS,
                "TLS: %s", text);
}

static cri_call_outcome end_connect(cri_wire *w)
{
    int why = 0;
    socklen_t num = sizeof why;

    if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &why, &num) != 0) why = errno;
    if (why) {
        if (w->at) w->at = w->at->ai_next;
        return connect_next(w, why);
    }
    if (!w->target->is_tls) return begin_exchange(w);
    w->ssl = SSL_new(w->target->tls);
    CR_CHECK(w->ssl && SSL_set_fd(w->ssl, w->fd) == 1, "OpenSSL has no memory");
    expect_name(w->ssl, w->target->host);
    w->phase = CRI_WIRE_HANDSHAKE;
    return shake_hands(w);
}

/* ---- bytes ---- */

/* As send and recv: -1 with errno EAGAIN if it is not the time; *why: what else failed. */
static ssize_t move(cri_wire *w, void *to, const void *from, size_t num, const char **why)
{
    ssize_t n;
    int error;

    *why = NULL;
    if (!w->ssl) {
        n = to ? recv(w->fd, to, num, 0) : send(w->fd, from, num, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) errno = EAGAIN;
        if (n < 0 && errno != EAGAIN) *why = strerror(errno);
        return n;
    }
    ERR_clear_error();
    error = to ? SSL_read(w->ssl, to, (int)num) : SSL_write(w->ssl, from, (int)num);
    if (error > 0) return error;
    error = SSL_get_error(w->ssl, error);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        errno = EAGAIN;
    else
        *why = "the TLS connection broke";
    return -1;
}

/* As much as goes. A service that refuses may answer before it has read all: then its answer counts. */
static void send_some(cri_wire *w)
{
    const cr_buf *parts[] = {&w->head, &w->call->body};
    size_t skipped = 0;

    for (size_t i = 0; i < CR_COUNT(parts); skipped += parts[i++]->num_bytes)
        while (!w->cannot_send && w->num_sent < skipped + parts[i]->num_bytes) {
            size_t at = w->num_sent - skipped, left = parts[i]->num_bytes - at;
            const char *why;
            ssize_t n = move(w, NULL, parts[i]->data + at, left < PIECE ? left : PIECE, &why);
            if (n < 0 && !why) return;
            if (n <= 0)
                w->cannot_send = true;
            else
                w->num_sent += (size_t)n;
        }
    w->events = POLLIN;
}

/* The answer is there; num_more bytes came after it. */
static cri_call_outcome end_exchange(cri_wire *w, size_t num_more)
{
    bool was_sent = w->num_sent == w->head.num_bytes + w->call->body.num_bytes;

    w->call->status = w->parser.code;
    cr_buf_free(&w->call->answer);
    w->call->answer = w->parser.body;
    cr_buf_adds(&w->call->answer, ""); /* never NULL */
    w->parser.body = (cr_buf){0};
    if (w->parser.should_close || num_more || !was_sent) close_socket(w);
    if (w->phase == CRI_WIRE_CLOSED) return CRI_ANSWERED;
    w->phase = CRI_WIRE_KEPT;
    w->events = POLLIN;
    return CRI_ANSWERED;
}

static cri_call_outcome parse(cri_wire *w, const char *bytes, size_t num)
{
    size_t at = 0, used;

    w->has_answer = true;
    for (;;) {
        cr_http_event event = cr_http_parse(&w->parser, bytes + at, num - at, &used);
        at += used;
        if (event == CR_HTTP_MORE) return CRI_GOES_ON;
        if (event == CR_HTTP_WHOLE) return end_exchange(w, num - at);
        if (event == CR_HTTP_REFUSED)
            return fail(w, CRI_HOPELESS, "its answer cannot be read: %s", w->parser.message);
    }
}

static cri_call_outcome receive(cri_wire *w)
{
    char bytes[PIECE];
    const char *why;
    cri_call_outcome outcome = CRI_GOES_ON;

    while (outcome == CRI_GOES_ON) {
        ssize_t n = move(w, bytes, NULL, sizeof bytes, &why);
        if (n < 0 && !why) return CRI_GOES_ON;
        if (n < 0) return fail(w, CRI_BROKEN, "the connection broke: %s", why);
        if (n > 0) {
            outcome = parse(w, bytes, (size_t)n);
        } else if (cr_http_parse_end(&w->parser) == CR_HTTP_WHOLE) {
            return end_exchange(w, 0);
        } else {
            return fail(w, CRI_BROKEN, "it closed the connection %s",
                        w->has_answer ? "within its answer" : "without an answer");
        }
    }
    return outcome;
}

/* ---- steps ---- */

static void write_head(cri_wire *w)
{
    const cr_http_call *call = w->call;
    const cri_target *t = w->target;
    double left_s = call->deadline_s - cr_now_s();

    cr_buf_clear(&w->head);
    cr_buf_addf(&w->head,
                "%s %s%s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\n"
                "x-croll-deadline-ms: %.0f\r\n",
                call->method, t->prefix, call->path, t->authority,
                left_s > 0.001 ? 1e3 * left_s : 1.0);
    if (t->key) cr_buf_addf(&w->head, "Authorization: Bearer %s\r\n", t->key);
    if (call->body.num_bytes)
        cr_buf_addf(&w->head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                    call->body.num_bytes);
    cr_buf_adds(&w->head, "\r\n");
}

/* Has the service closed it, or sent something without a request? */
static bool is_stale(cri_wire *w)
{
    const char *why;
    char byte;

    return move(w, &byte, NULL, 1, &why) >= 0 || why;
}

cri_call_outcome cri_wire_begin(cri_wire *w, cr_http_call *call)
{
    w->call = call;
    w->num_sent = 0;
    w->has_answer = w->cannot_send = false;
    write_head(w);
    if (w->phase == CRI_WIRE_KEPT && is_stale(w)) cri_wire_close(w);
    w->was_kept = w->phase == CRI_WIRE_KEPT;
    if (!w->was_kept) {
        cri_wire_close(w);
        return open_wire(w);
    }
    cr_http_parser_next(&w->parser);
    return begin_exchange(w);
}

cri_call_outcome cri_wire_step(cri_wire *w)
{
    if (w->phase == CRI_WIRE_CONNECT) return end_connect(w);
    if (w->phase == CRI_WIRE_HANDSHAKE) return shake_hands(w);
    if (w->phase != CRI_WIRE_EXCHANGE) { /* kept, and it has ended or says something */
        if (is_stale(w)) cri_wire_close(w);
        return CRI_GOES_ON;
    }
    send_some(w);
    return receive(w);
}
