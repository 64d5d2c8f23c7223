/* endpoint.h -- where a run's exchange is and which keys are its own.
 *
 * An embedded server is private: the prefix is "croll:". A server that others use, too (exchange.url), is reached
 * before anything is written or started, and the run holds a prefix there: exchange.prefix, or one that no other run
 * has. Held by a lease in Redis that a thread of the launcher renews: a run that was killed gives its prefix up after
 * 30 s, and its own resume takes it at once. OUTPUT_DIR/exchange/owner.json says which run that is:
 *
 *     {"prefix": "croll:my_run:0123456789abcdef:", "run": "0123456789abcdef", "of": "host:/path/of/output_dir"}
 *
 * A copy of the folder elsewhere is another run (`of`). At the end of a run its keys are removed, but a killed one's stay
 * until it is resumed or the next run with that prefix starts.
 *
 * One thread (the launcher's), and one of its own.
 */
#ifndef CR_ENDPOINT_H
#define CR_ENDPOINT_H

#include "base/digest.h"
#include "configs/configs.h"
#include "exchange/heartbeat.h"

typedef struct cr_endpoint {
    cr_exchange_args args; /* of the run's processes; url: NULL until an embedded server has one */
    cr_exchange *x;        /* the launcher's connection */
    char *prefix, *run_id, *of;
    cr_heartbeat *holder; /* NULL: an embedded server */
} cr_endpoint;

/* Reach the server of exchange.url; nothing to do for an embedded one. */
CR_MUST cr_status cr_endpoint_open(cr_endpoint *e, const cr_config *config, cr_err *err);
/* Find the prefix and hold it. output_dir is there and locked; nothing is written. */
CR_MUST cr_status cr_endpoint_claim(cr_endpoint *e, const cr_config *config, cr_err *err);
/* Write owner.json, for `croll reward` and for a resume. */
CR_MUST cr_status cr_endpoint_write(const cr_endpoint *e, const char *output_dir, cr_err *err);
/* Remove the run's keys from a server of others and end; accepts {0}. */
void cr_endpoint_close(cr_endpoint *e);

/* How a process of the run reaches it (twice exchange.timeout for each call; texts are borrowed). */
cr_exchange_args cr_endpoint_args(const cr_config *config, const char *url, const char *prefix);

/* The configuration's text goes to the ranks through the exchange, so that they need no file of the launcher's; its
 * SHA-256 goes with the words that start them. CR_ECONFIG: the exchange has another text, or none within the deadline. */
CR_MUST cr_status cr_endpoint_put_config(const cr_endpoint *e, const char *path,
                                         char digest[CR_DIGEST_TEXT], cr_err *err);
CR_MUST cr_status cr_endpoint_get_config(const cr_exchange_args *args, const char *digest,
                                         cr_buf *text, cr_err *err);

/* The prefix of the run whose resolved configuration (OUTPUT_DIR/config.yaml) this is, owned by the caller: "croll:" if
 * nothing says otherwise. */
char *cr_endpoint_prefix_beside(const char *config_path);

#endif
