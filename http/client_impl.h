/* client_impl.h -- a client inside http/: client.c has the calls and their retries, client_wire.c one connection. */
#ifndef CR_HTTP_CLIENT_IMPL_H
#define CR_HTTP_CLIENT_IMPL_H

#include "http/client.h"

#include <netdb.h>
#include <openssl/ssl.h>
#include <sys/un.h>

/* Where a client connects to, and what it says there. */
typedef struct cri_target {
    bool is_tls, is_unix;
    char *host, *port, *prefix; /* owned; of a unix socket host is its file */
    char *authority;            /* owned: of the field Host */
    char *key;                  /* owned, or NULL */
    SSL_CTX *tls;
    cr_http_limits limits; /* of answers */
} cri_target;

typedef enum cri_wire_phase {
    CRI_WIRE_CLOSED,
    CRI_WIRE_CONNECT,
    CRI_WIRE_HANDSHAKE,
    CRI_WIRE_EXCHANGE,
    CRI_WIRE_KEPT
} cri_wire_phase;

typedef struct cri_wire {
    const cri_target *target;
    cri_wire_phase phase;
    int fd;
    SSL *ssl;
    short events;               /* of poll, that it waits for */
    double deadline_s;          /* of connection and handshake */
    struct addrinfo *list, *at; /* addresses; the one that is tried */
    cr_http_call *call;
    cr_buf head;
    size_t num_sent; /* of head and body */
    bool was_kept;   /* the call came on a connection that an earlier one had opened */
    bool has_answer, cannot_send;
    cr_http_parser parser;
} cri_wire;

typedef enum cri_call_outcome {
    CRI_GOES_ON,
    CRI_ANSWERED,
    CRI_BROKEN, /* another try may do better; why is in call->last */
    CRI_STALE,  /* a kept connection that the service had closed */
    CRI_HOPELESS
} cri_call_outcome;

void cri_wire_close(cri_wire *w);
/* Begin a call; then step whenever one of w->events has come. */
cri_call_outcome cri_wire_begin(cri_wire *w, cr_http_call *call);
cri_call_outcome cri_wire_step(cri_wire *w);
/* The deadline of connecting has passed: the next address. */
cri_call_outcome cri_wire_late(cri_wire *w);

#endif
