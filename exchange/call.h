/* call.h -- Redis commands and their replies over a connection that is made again when it is lost. One or many
 * commands travel together (cri_request), so that a far server costs one way there and back a call. Internal to
 * exchange/.
 */
#ifndef CRI_CALL_H
#define CRI_CALL_H

#include "exchange/link.h"

typedef struct cri_request {
    cr_buf bytes;
    int num; /* commands */
    char verb[16];
} cri_request;

typedef struct cr_exchange {
    cri_address address;
    SSL_CTX *tls; /* NULL: none */
    cri_link *link;
    char *prefix;
    double deadline_s, claimed_s; /* claimed_s: when it looked for entries that others left */
    double busy_s;                /* when it last answered that it cannot answer yet: it loads */
    cr_exchange_revive revive;    /* NULL: only wait */
    void *revive_ctx;
    cri_request later; /* sent with the next call */
    char
        move_sha[48]; /* the name that Redis has for cri_move_script, loaded with each connection */
    bool may_be_starting, has_connected;
    bool
        should_read_pending; /* a connection was made: what was being delivered may have been lost */
} cr_exchange;

/* The script by which an entry moves on. ARGV: prefix, number of messages, of each one the stream to append to, id and
 * data, and if an entry is to be finished: its stream, the group, its id in the stream. The number of messages whose
 * ids were not there. */
extern const char cri_move_script[];

/* One command of words (texts), ended by NULL. */
void cri_add(cri_request *q, ...);
/* One command, word by word. */
void cri_begin(cri_request *q, size_t num_words, const char *verb);
void cri_word(cri_request *q, const void *data, size_t num_bytes);
void cri_text(cri_request *q, const char *text);
void cri_int(cri_request *q, long long value);

/* Send x->later and q, wait for all replies until the deadline plus block_s; frees q. replies [q->num]: owned by the
 * caller, all NULL after a failure; NULL: not wanted. A reply that is an error is a failure, but for one that
 * begins with `accepted` (NULL: none). */
CR_MUST cr_status cri_call(cr_exchange *x, cri_request *q, double block_s, const char *accepted,
                           redisReply **replies, cr_err *err);

char *cri_key(const cr_exchange *x, const char *kind, const char *name); /* owned by the caller */

#endif
