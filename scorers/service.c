/* service.c -- see service.h. */
#include "scorers/service.h"

cr_status cr_service_open(const cr_service_keys *keys, const char *url, size_t answer_bytes,
                          cr_http_client **out, cr_err *err)
{
    const cr_http_client_options options = {.url = url ? url : keys->url,
                                            .key_file = keys->key_file,
                                            .key_env = keys->key_env,
                                            .ca_file = keys->ca_file,
                                            .max_connections = (size_t)keys->connections,
                                            .answer_bytes = answer_bytes,
                                            .is_starting = url != NULL};

    return cr_http_client_open(&options, out, err);
}

/* ---- a sign of life ---- */

enum { PULSE_BYTES = 4096 };

struct cr_pulse {
    cr_http_client *client;
    cr_http_call call;
    double limit_s, first_s;
};

static void ask(cr_pulse *p, double pause_s)
{
    p->call.deadline_s = cr_now_s() + pause_s + p->limit_s;
    cr_http_client_add(p->client, &p->call, pause_s);
}

cr_status cr_pulse_open(const char *url, double limit_s, cr_pulse **out, cr_err *err)
{
    const cr_http_client_options options = {
        .url = url, .max_connections = 1, .answer_bytes = PULSE_BYTES, .is_starting = true};
    cr_http_client *client;

    *out = NULL;
    CR_TRY(cr_http_client_open(&options, &client, err));
    *out = CR_NEW(cr_pulse);
    **out = (cr_pulse){
        .client = client, .limit_s = limit_s, .call = {.method = "GET", .path = "/health"}};
    ask(*out, 0);
    return CR_OK;
}

void cr_pulse_close(cr_pulse *p)
{
    if (!p) return;
    cr_http_client_close(p->client);
    cr_http_call_free(&p->call);
    cr_free(p);
}

bool cr_pulse_is_there(cr_pulse *p)
{
    if (!cr_http_client_next(p->client, 0, -1)) return true;
    if (p->call.failure.status == CR_ETIMEOUT) return false;
    if (p->call.status == 200 && p->first_s == 0) p->first_s = cr_now_s();
    ask(p, 1);
    return true;
}

double cr_pulse_first_s(const cr_pulse *p)
{
    return p->first_s;
}
