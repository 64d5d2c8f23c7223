/* server_impl.h -- a connection and its server, inside http/: connection.c moves a connection through its phases,
 * answer.c writes, server.c listens and keeps time, tls.c has the certificates. */
#ifndef CR_HTTP_SERVER_IMPL_H
#define CR_HTTP_SERVER_IMPL_H

#include "http/server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <openssl/ssl.h>

typedef enum cri_phase {
    CRI_HANDSHAKE, /* of TLS */
    CRI_IDLE,      /* waits for a request */
    CRI_HEAD,
    CRI_BODY,
    CRI_WORK,  /* the application has the request */
    CRI_FLUSH, /* the answer is complete and being written */
    CRI_LINGER /* everything is written; the rest that comes is dropped */
} cri_phase;

typedef struct cri_connection cri_connection;
struct cri_connection {
    cr_http_exchange x; /* first: an exchange is its connection */
    cr_http_server *server;
    cri_connection *prev, *next;
    struct bufferevent *bev;
    SSL *ssl; /* of bev; NULL: plain */
    cr_http_parser parser;
    cri_phase phase;
    double deadline_s; /* of the phase; 0: none */
    double moved_s;    /* output was written, or was empty */
    size_t unsent_bytes, charged_bytes, num_dropped;
    bool has_exchange, has_ended, is_running, is_streaming, is_chunked, should_close, is_body_left;
    uint8_t address[16];
    bool has_address;
};

struct cr_http_server {
    cr_http_options options;
    cr_http_app app;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *tick, *wake, *signals;
    int wake_fd, signal_fd;
    SSL_CTX *tls;
    cri_connection *connections;
    cr_http_counts counts;
    char *url, *socket_path;
    char date[40];
    int64_t date_s;
    uint64_t num_exchanges;
    uint32_t process_id;           /* of ids of requests */
    double now_s, stop_s, awake_s; /* awake_s: no sleep until then */
    bool is_draining, is_stopping;
    cr_buf head; /* of the answer that is being written */
};

/* server.c */
double cri_now(cr_http_server *server);

/* connection.c */
void cri_connection_open(cr_http_server *server, struct bufferevent *bev, SSL *ssl,
                         const char *client, const uint8_t *address);
void cri_connection_close(cri_connection *c); /* frees it */
/* After an answer: what comes next on its connection. */
void cri_connection_go_on(cri_connection *c);
void cri_connection_tick(cri_connection *c); /* deadlines; may free it */
void cri_connection_charge(cri_connection *c);

/* tls.c */
CR_MUST cr_status cri_http_tls_open(const cr_http_options *options, SSL_CTX **out, cr_err *err);
/* CN of the certificate that the client has shown, owned by the caller; NULL: none. */
char *cri_http_tls_client_name(SSL *ssl);

#endif
