/* link.h -- one connection to a Redis server: its address, the socket, TLS, bytes out and replies in.
 *
 * Nothing here waits beyond the moment `until_s` (cr_now_s), but for the resolver, which has limits of its own
 * (resolv.conf). What went wrong is text in `why` and one of four outcomes: the caller decides what is tried
 * again. Internal to exchange/. One thread a link.
 */
#ifndef CRI_LINK_H
#define CRI_LINK_H

#include "exchange/args.h"

#include <hiredis.h>
#include <openssl/ssl.h>

typedef enum cri_outcome {
    CRI_DONE,
    CRI_AGAIN,  /* lost, busy or too slow: another attempt may do */
    CRI_ABSENT, /* no server is there: refused, unknown host, closed at once; it may be starting */
    CRI_NEVER   /* another attempt cannot help: no TLS, a certificate, no Redis, a wrong password */
} cri_outcome;

enum { CRI_WHY = 240 };

/* All texts are owned. */
typedef struct cri_address {
    char *socket_path; /* or host and port */
    char *host, *user, *password;
    char *shown; /* for messages: no user, no password */
    int port, db;
    bool is_tls;
} cri_address;
CR_MUST cr_status cri_address_parse(const char *url, cri_address *out, cr_err *err);
void cri_address_free(cri_address *address);

/* Certificates of rediss://, checked once: CR_ECONFIG when a file cannot be used. */
CR_MUST cr_status cri_tls_open(const cr_exchange_args *args, SSL_CTX **out, cr_err *err);

typedef struct cri_link cri_link;
/* Connect and, with tls, shake hands and check the server's certificate and name. *out: NULL unless done. */
cri_outcome cri_link_open(const cri_address *address, SSL_CTX *tls, double until_s, cri_link **out,
                          char why[CRI_WHY]);
void cri_link_close(cri_link *link); /* accepts NULL */
cri_outcome cri_link_send(cri_link *link, const void *data, size_t num_bytes, double until_s,
                          char why[CRI_WHY]);
/* The next reply, freed by the caller (freeReplyObject). */
cri_outcome cri_link_receive(cri_link *link, double until_s, redisReply **out, char why[CRI_WHY]);

#endif
