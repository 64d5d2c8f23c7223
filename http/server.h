/* server.h -- HTTP/1.1 on sockets for one application: connections, limits, deadlines, TLS; no routes of its own.
 *
 * One thread runs everything (cr_http_run): libevent's core (epoll) and bufferevents carry the bytes, parser.h reads
 * them, the application answers, at once or later. What other threads have ready, they put where the application finds
 * it and call cr_http_wake, the one function here that any thread may call.
 *
 *     on_head      method, path and fields are known; an answer now means that the body is not read
 *     on_request   the request is complete: answer it, now or from on_wake or on_tick
 *     on_gone      the client is gone, or too slow, before its answer was complete: stop working for it
 *     on_end       last of every exchange, whose answer is written (or is_gone): for the log
 *
 * A connection has one exchange at a time; requests sent ahead of their answers wait unread (16 KiB of them are in memory).
 * A client that shuts down its sending side is taken as gone, as uvicorn does, unless is_half_close_fine; while more
 * than 16 KiB of later requests wait its end is seen only when the answer is written.
 *
 * All deadlines but `idle_s` and `stall_s` are totals. What is refused before its body was read is answered, and the
 * connection closed after a short reading of the rest, so that the client sees the answer and not a reset. Answers
 * are JSON where an error of HTTP is found here: {"error":{"message","type","param","code"}}.
 *
 * Ownership: the server owns connections and exchanges; an exchange is valid until on_end. Options and app are
 * borrowed for the server's life.
 */
#ifndef CR_HTTP_SERVER_H
#define CR_HTTP_SERVER_H

#include "http/parser.h"

typedef struct cr_http_server cr_http_server;

typedef struct cr_http_options {
    const char *listen; /* "HOST:PORT" ("[::1]:80"; port 0: any) or "unix:PATH" (mode 0600) */
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS */
    const char *tls_ca;             /* client certificates are asked for and checked by it */
    cr_http_limits limits;
    int64_t max_connections, max_per_address; /* loopback and unix sockets are of no address */
    size_t buffered_bytes; /* bodies and unsent answers of all connections: beyond it 503 */
    size_t stream_bytes;   /* unsent of one stream: beyond it the client is too slow, and gone */
    double head_s, body_s; /* body_s: and a second for each MiB */
    double idle_s, stall_s, handshake_s;
    bool is_half_close_fine;
} cr_http_options;
/* Everything but listen and TLS: 16 KiB of header, 4 KiB of target, 32 MiB of body, 4096 connections, .. */
extern const cr_http_options cr_http_defaults;

typedef struct cr_http_exchange {
    const cr_http_parser *request;
    const char *client_name; /* CN of the client's certificate, NULL: none */
    char client[64];         /* its address */
    char id[132];            /* x-request-id: the client's, or a new one */
    void *user;              /* the application's */
    int status;              /* of the answer; 0: not yet */
    bool is_gone;
    size_t sent_bytes;     /* of the answer, with its head */
    double begin_s, end_s; /* cr_now_s: request line complete; answer handed over */
    cr_buf fields;         /* private: of the answer, beside the usual ones */
} cr_http_exchange;

typedef struct cr_http_app {
    void *ctx;
    void (*on_head)(void *ctx, cr_http_exchange *x);
    void (*on_request)(void *ctx, cr_http_exchange *x);
    void (*on_gone)(void *ctx, cr_http_exchange *x); /* on_end follows */
    void (*on_end)(void *ctx, cr_http_exchange *x);
    void (*on_wake)(void *ctx);
    void (*on_tick)(void *ctx); /* four times a second */
    void (*on_signal)(void *ctx, int number);
} cr_http_app;

typedef struct cr_http_counts {
    int64_t num_connections; /* now */
    int64_t num_accepted, num_refused, num_handshakes, num_failed_handshakes;
    size_t buffered_bytes; /* now */
} cr_http_counts;

/* Binds and listens. Every thread of the process must have the `num_signals` signals blocked (pthread_sigmask); they
 * come as on_signal. CR_EUSAGE: an address or TLS files that cannot be used. */
CR_MUST cr_status cr_http_open(const cr_http_options *options, const cr_http_app *app,
                               const int *signals, size_t num_signals, cr_http_server **out,
                               cr_err *err);
/* "http://127.0.0.1:8000", "https://..", "unix:PATH". */
const char *cr_http_url(const cr_http_server *server);
/* Does it listen where only processes of this machine reach it: loopback, a unix socket? */
bool cr_http_is_local(const cr_http_server *server);
/* Returns after cr_http_stop. */
void cr_http_run(cr_http_server *server);
void cr_http_wake(cr_http_server *server); /* on_wake soon; from any thread */
/* Something will come within these seconds: until then the thread does not sleep, for being woken takes longer. */
void cr_http_expect(cr_http_server *server, double seconds);
/* From now on every answer closes its connection. */
void cr_http_drain(cr_http_server *server);
/* No more connections; those without an exchange close, the others after its answer (at most 5 s); then run returns. */
void cr_http_stop(cr_http_server *server);
void cr_http_close(cr_http_server *server);        /* after run; accepts NULL */
void cr_http_unlink(const cr_http_server *server); /* its unix socket: before a sudden end */
/* Read certificate and key again; new connections use them. A failure leaves the old ones. */
CR_MUST cr_status cr_http_reload_tls(cr_http_server *server, cr_err *err);
cr_http_counts cr_http_count(const cr_http_server *server);

/* The body of a complete request, which has none afterwards. */
void cr_http_take_body(cr_http_exchange *x, cr_buf *out);

/* ---- answers ---- */

/* A field of the answer; before it. */
void cr_http_set(cr_http_exchange *x, const char *name, const char *value);
/* The whole answer. The body of a HEAD's answer is counted and not sent. */
void cr_http_answer(cr_http_exchange *x, int status, const char *type, const void *body,
                    size_t num_bytes);
/* {"error":..}. code, param: NULL for what the status says, and null. 405 needs its Allow. */
void cr_http_fail(cr_http_exchange *x, int status, const char *code, const char *param,
                  const char *message);
/* Its type, and its body: for errors within a stream. param: NULL for null. */
const char *cr_http_error_type(int status);
void cr_http_error_body(const char *type, const char *code, const char *param, const char *message,
                        cr_buf *out);
/* An answer in parts, as they come: chunked, or until the connection closes for HTTP/1.0. */
void cr_http_stream(cr_http_exchange *x, int status, const char *type);
void cr_http_stream_add(cr_http_exchange *x, const void *data, size_t num_bytes);
void cr_http_stream_end(cr_http_exchange *x);
size_t cr_http_unsent_bytes(const cr_http_exchange *x);

#endif
