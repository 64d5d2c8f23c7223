/* keys.h -- who may use a service: a file of keys with a name, what each may do, and how often.
 *
 *     # name    key            scopes            requests/s (none or -: as many as there are)   weight (1)
 *     alice     sk-4f1c...     score             50
 *     judge     sk-9be0...     score,generate    -                                              4
 *
 * Only digests of keys are kept, and every one is compared in full: the time that it takes says nothing about a
 * key. Ownership: cr_serve_keys_free frees all. Threads: one caller.
 */
#ifndef CR_SERVE_KEYS_H
#define CR_SERVE_KEYS_H

#include "base/base.h"

enum { CR_SCOPE_SCORE = 1, CR_SCOPE_GENERATE = 2, CR_SCOPE_ADMIN = 4, CR_KEY_NAME = 64 };

typedef struct cr_serve_key {
    char name[CR_KEY_NAME];
    unsigned scopes;
    double per_s;            /* requests; 0: no quota */
    double weight;           /* its share of the work, beside other tenants' */
    double left, measured_s; /* requests that may come at once, at that time */
    uint8_t digest[32];
} cr_serve_key;

typedef struct cr_serve_keys {
    cr_serve_key *key; /* owned */
    size_t num, capacity;
} cr_serve_keys;

/* CR_EUSAGE: no such file; with the line: a wrong one, a name or key that is there twice, or no key at all. */
CR_MUST cr_status cr_serve_keys_read(const char *path, cr_serve_keys *out, cr_err *err);
void cr_serve_keys_free(cr_serve_keys *keys);                              /* {0} is fine */
cr_serve_key *cr_serve_keys_find(cr_serve_keys *keys, const char *secret); /* NULL: none */
cr_serve_key *cr_serve_keys_named(cr_serve_keys *keys, const char *name);
/* Take one request of the quota: 0, or the seconds until there is one. */
double cr_serve_key_take(cr_serve_key *key, double now_s);

#endif
