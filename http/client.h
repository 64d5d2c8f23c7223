/* client.h -- requests of croll's own to other services: HTTP/1.1 over TCP, TLS or a unix socket.
 *
 * A client has one URL and a few connections, which are kept. Calls are added and come back when they are done. What
 * fails on the way (no connection, one that breaks, 408, 429, 5xx) is tried again, after a random pause of up to 0.1 s,
 * which doubles to 5 s, until the deadline of the call, which is a total. Retry-After, in seconds or as a date, holds up
 * all calls of the client for as long as it says. So a call may reach the service more than once: its repetition must be
 * harmless. An answer that is not HTTP, is too large, or comes under a certificate that does not hold is not asked for
 * again.
 *
 *     cr_http_client_open(&options, &client, err)
 *     cr_http_client_add(client, &call, 0)           any number; each is the client's until it comes back
 *     cr_http_client_next(client, wait_s, -1)        the next one that is done, or NULL
 *     cr_http_call_check(client, call, err)          CR_OK: its status is 200
 *
 * Ownership: the caller owns calls and their bodies, the client everything else. A key is never printed, and an answer
 * that repeats it has stars instead. One thread, in which SIGPIPE is ignored. Names are looked up by getaddrinfo, whose
 * deadlines are the system's; there are no proxies.
 */
#ifndef CR_HTTP_CLIENT_H
#define CR_HTTP_CLIENT_H

#include "http/parser.h"

typedef struct cr_http_client cr_http_client;

typedef struct cr_http_client_options {
    /* "http://HOST[:PORT][/PATH]", "https://..", "unix:FILE". PATH (default /v1) comes before those of calls. */
    const char *url;
    const char *key_file,
        *key_env; /* the key of "Authorization: Bearer": a file's first line, or a variable's value */
    const char *ca_file;    /* PEM, of the authorities to trust; NULL: the system's */
    size_t max_connections; /* calls at once */
    size_t answer_bytes;    /* of a body, at most */
    bool is_starting;       /* the service may not be there yet: that is no warning */
} cr_http_client_options;

typedef struct cr_http_call {
    const char *method, *path; /* "POST", "/completions"; borrowed */
    cr_buf body;               /* JSON */
    double deadline_s;         /* on the clock of cr_now_s, for all tries */
    size_t index;              /* the caller's */
    /* when it is done */
    int status;    /* of the answer; 0: no answer */
    cr_buf answer; /* its body, also one of no bytes: data is not NULL */
    cr_err
        failure; /* CR_ETIMEOUT: no answer, or 408, 429, 5xx until the deadline; CR_EPEER: never one */
    int num_tries;
    /* private */
    char last[200]; /* why the last try failed */
    double pause_s, start_s, added_s;
    bool is_on_wire, is_done;
} cr_http_call;

/* CR_EUSAGE: a URL, a key or a file of authorities that cannot be used. */
CR_MUST cr_status cr_http_client_open(const cr_http_client_options *options, cr_http_client **out,
                                      cr_err *err);
void cr_http_client_close(cr_http_client *client); /* accepts NULL; forgets its calls */

/* pause_s: it is sent then at the earliest. */
void cr_http_client_add(cr_http_client *client, cr_http_call *call, double pause_s);
/* A call that is done, waited for at most wait_s; NULL: none, or other_fd (if it is not -1) can be read. */
cr_http_call *cr_http_client_next(cr_http_client *client, double wait_s, int other_fd);
/* CR_OK: it was answered with 200. Else its failure, or what the service says of the error (CR_EPEER). */
CR_MUST cr_status cr_http_call_check(const cr_http_client *client, const cr_http_call *call,
                                     cr_err *err);
void cr_http_call_free(cr_http_call *call); /* its body and answer */

#endif
