/* args.h -- how a server is reached: what cr_exchange_open takes (exchange.h).
 */
#ifndef CR_EXCHANGE_ARGS_H
#define CR_EXCHANGE_ARGS_H

#include "base/base.h"

typedef struct cr_exchange_args {
    /* unix:/path/to.sock, redis://[user:password@]host[:port][/db], rediss:// the same with TLS */
    const char *url;
    const char *prefix; /* of all keys: separates runs that share a server */
    /* rediss://: the certificates that are trusted (NULL: the system's), and our own (NULL: none); PEM */
    const char *ca_file, *cert_file, *key_file;
    double deadline_s; /* bounds every call beyond its own block time */
    /* Wait for a server that is not there yet. Otherwise a refused connection or an unknown host is an error
     * at once, until the first answer; what waiting cannot cure (a wrong password, no TLS, a certificate, no
     * Redis at all) is one always. */
    bool may_be_starting;
} cr_exchange_args;

/* Called between attempts to reach a server that is away: whoever runs the server starts it again
 * there. A failure ends the command that waits. */
typedef cr_status (*cr_exchange_revive)(void *ctx, cr_err *err);

#endif
