/* answer.c -- the heads and bodies of answers. A plain socket that takes the whole answer gets it in one call,
 * without a turn of the event loop. */
#include "http/server_impl.h"

#include "base/json.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static const struct {
    int status;
    const char *reason, *type, *code;
} statuses[] = {
    {200, "OK", NULL, NULL},
    {400, "Bad Request", "invalid_request_error", "invalid_http"},
    {401, "Unauthorized", "authentication_error", "invalid_api_key"},
    {403, "Forbidden", "permission_error", "not_allowed"},
    {404, "Not Found", "not_found_error", "not_found"},
    {405, "Method Not Allowed", "invalid_request_error", "method_not_allowed"},
    {408, "Request Timeout", "invalid_request_error", "request_timeout"},
    {409, "Conflict", "invalid_request_error", "conflict"},
    {411, "Length Required", "invalid_request_error", "length_required"},
    {413, "Content Too Large", "invalid_request_error", "content_too_large"},
    {414, "URI Too Long", "invalid_request_error", "uri_too_long"},
    {415, "Unsupported Media Type", "invalid_request_error", "unsupported_media_type"},
    {417, "Expectation Failed", "invalid_request_error", "expectation_failed"},
    {429, "Too Many Requests", "rate_limit_error", "rate_limit_exceeded"},
    {431, "Request Header Fields Too Large", "invalid_request_error", "header_too_large"},
    {501, "Not Implemented", "server_error", "not_implemented"},
    {503, "Service Unavailable", "server_error", "server_overloaded"},
    {504, "Gateway Timeout", "server_error", "deadline_exceeded"},
    {505, "HTTP Version Not Supported", "server_error", "http_version_not_supported"},
    {500, "Internal Server Error", "server_error", "internal_error"}, /* and any other */
};

static size_t find_status(int status)
{
    size_t i = 0;

    while (i + 1 < CR_COUNT(statuses) && statuses[i].status != status)
        i++;
    return i;
}

static cri_connection *connection_of(cr_http_exchange *x)
{
    return (cri_connection *)(void *)x;
}

/* ---- bytes out ---- */

static void send_bytes(cri_connection *c, const void *data, size_t num)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    ssize_t n = 0;

    c->x.sent_bytes += num;
    if (!c->ssl && evbuffer_get_length(out) == 0) {
        n = send(bufferevent_getfd(c->bev), data, num, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) n = 0; /* a failure is found again by the bufferevent */
    }
    if ((size_t)n < num) evbuffer_add(out, (const char *)data + n, num - (size_t)n);
    cri_connection_charge(c);
}

static void begin_head(cri_connection *c, int status, const char *type)
{
    cr_http_server *s = c->server;
    cr_buf *head = &s->head;

    cr_buf_clear(head);
    cr_buf_addf(head, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\nx-request-id: %s\r\n",
                status, statuses[find_status(status)].reason, s->date, type, c->x.id);
    if (c->x.fields.num_bytes) cr_buf_add(head, c->x.fields.data, c->x.fields.num_bytes);
    c->x.status = status;
    /* a body that is not read would be taken for the next request */
    c->should_close |= c->parser.should_close || c->is_body_left || s->is_draining;
    if (c->should_close)
        cr_buf_adds(head, "Connection: close\r\n");
    else if (c->parser.is_http_1_0)
        cr_buf_adds(head, "Connection: keep-alive\r\n");
}

static void end_answer(cri_connection *c)
{
    c->x.end_s = cri_now(c->server);
    c->phase = CRI_FLUSH;
    c->deadline_s = 0;
    c->is_streaming = false;
    cri_connection_go_on(c);
}

void cr_http_set(cr_http_exchange *x, const char *name, const char *value)
{
    cr_buf_addf(&x->fields, "%s: %s\r\n", name, value);
}

void cr_http_answer(cr_http_exchange *x, int status, const char *type, const void *body,
                    size_t num_bytes)
{
    cri_connection *c = connection_of(x);
    cr_buf *head = &c->server->head;

    CR_CHECK(!x->status, "a second answer");
    begin_head(c, status, type);
    cr_buf_addf(head, "Content-Length: %zu\r\n\r\n", num_bytes);
    if (strcmp(c->parser.method, "HEAD") != 0) cr_buf_add(head, body, num_bytes);
    send_bytes(c, head->data, head->num_bytes);
    end_answer(c);
}

const char *cr_http_error_type(int status)
{
    const char *type = statuses[find_status(status)].type;

    return type ? type : "server_error";
}

void cr_http_error_body(const char *type, const char *code, const char *param, const char *message,
                        cr_buf *out)
{
    cr_buf_adds(out, "{\"error\":{\"message\":");
    cr_json_add_string(out, message, strlen(message));
    cr_buf_addf(out, ",\"type\":\"%s\",\"param\":", type);
    if (param)
        cr_json_add_string(out, param, strlen(param));
    else
        cr_buf_adds(out, "null");
    cr_buf_addf(out, ",\"code\":\"%s\"}}", code);
}

void cr_http_fail(cr_http_exchange *x, int status, const char *code, const char *param,
                  const char *message)
{
    cr_buf body = {0};

    cr_http_error_body(cr_http_error_type(status), code ? code : statuses[find_status(status)].code,
                       param, message, &body);
    cr_buf_addc(&body, '\n');
    /* for clients that would try again: it is of no use */
    if (status == 409 || status == 501 || status == 505) cr_http_set(x, "x-should-retry", "false");
    cr_http_answer(x, status, "application/json", body.data, body.num_bytes);
    cr_buf_free(&body);
}

/* ---- streams ---- */

void cr_http_stream(cr_http_exchange *x, int status, const char *type)
{
    cri_connection *c = connection_of(x);

    CR_CHECK(!x->status, "a second answer");
    c->is_chunked = !c->parser.is_http_1_0;
    c->is_streaming = true;
    if (!c->is_chunked) c->should_close = true;
    begin_head(c, status, type);
    cr_buf_adds(&c->server->head, c->is_chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    send_bytes(c, c->server->head.data, c->server->head.num_bytes);
}

void cr_http_stream_add(cr_http_exchange *x, const void *data, size_t num_bytes)
{
    cri_connection *c = connection_of(x);
    cr_buf *part = &c->server->head;

    CR_CHECK(c->is_streaming, "no stream");
    if (num_bytes == 0 || strcmp(c->parser.method, "HEAD") == 0) return;
    cr_buf_clear(part);
    if (c->is_chunked) cr_buf_addf(part, "%zx\r\n", num_bytes);
    cr_buf_add(part, data, num_bytes);
    if (c->is_chunked) cr_buf_adds(part, "\r\n");
    send_bytes(c, part->data, part->num_bytes);
    if (cr_http_unsent_bytes(x) > c->server->options.stream_bytes)
        c->deadline_s = c->server->now_s; /* too slow: gone at the next tick */
}

void cr_http_stream_end(cr_http_exchange *x)
{
    cri_connection *c = connection_of(x);

    CR_CHECK(c->is_streaming, "no stream");
    if (c->is_chunked && strcmp(c->parser.method, "HEAD") != 0) send_bytes(c, "0\r\n\r\n", 5);
    end_answer(c);
}

size_t cr_http_unsent_bytes(const cr_http_exchange *x)
{
    const cri_connection *c = (const cri_connection *)(const void *)x;

    return evbuffer_get_length(bufferevent_get_output(c->bev));
}
