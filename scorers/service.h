/* service.h -- a client of the service that a block of the configuration names (a judge, a reference). */
#ifndef CR_SCORERS_SERVICE_H
#define CR_SCORERS_SERVICE_H

#include "configs/configs.h"
#include "http/client.h"

/* answer_bytes: of a body, at most. CR_EUSAGE: as cr_http_client_open. */
/* url: NULL for that of keys. */
CR_MUST cr_status cr_service_open(const cr_service_keys *keys, const char *url, size_t answer_bytes,
                                  cr_http_client **out, cr_err *err);

/* Does a service of this machine still answer? It is asked for /health each second. */
typedef struct cr_pulse cr_pulse;
CR_MUST cr_status cr_pulse_open(const char *url, double limit_s, cr_pulse **out, cr_err *err);
void cr_pulse_close(cr_pulse *p); /* accepts NULL */
/* False: it has not answered for limit_s. Never waits. */
bool cr_pulse_is_there(cr_pulse *p);
/* When it first answered that it is well, 0: not yet. */
double cr_pulse_first_s(const cr_pulse *p);

#endif
