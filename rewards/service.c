/* service.c -- see service.h. */
#include "rewards/service.h"

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
