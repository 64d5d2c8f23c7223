/* agent_lines.c -- see agent_lines.h. */
#include "launch/preflight/agent_lines.h"
#include "base/json.h"

#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NUM = 65536 /* of anything in one line */, MAX_SECONDS = 60 };

static const char *const asks[CR_AGENT_ASKS] = {"hello", "clock", "look", "connect", "measure"};

/* ---- values of an object ---- */

static cr_status get_text(const json_t *object, const char *key, char *out, size_t size,
                          cr_err *err)
{
    const json_t *value = json_object_get(object, key);

    out[0] = 0;
    if (!json_is_string(value)) return cr_fail(err, CR_EFORMAT, "%s is not a text", key);
    if (json_string_length(value) >= size || strlen(json_string_value(value)) >= size)
        return cr_fail(err, CR_EFORMAT, "%s has more than %zu bytes", key, size - 1);
    snprintf(out, size, "%s", json_string_value(value));
    return CR_OK;
}

static cr_status get_int(const json_t *object, const char *key, int64_t min, int64_t max,
                         int64_t *out, cr_err *err)
{
    const json_t *value = json_object_get(object, key);

    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= min && *out <= max) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "%s is not an integer of %lld to %lld", key, (long long)min,
                   (long long)max);
}

static cr_status get_number(const json_t *object, const char *key, double max, double *out,
                            cr_err *err)
{
    const json_t *value = json_object_get(object, key);

    *out = json_number_value(value);
    if (json_is_number(value) && *out >= 0 && *out <= max) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "%s is not a number of 0 to %g", key, max);
}

static cr_status get_array(const json_t *object, const char *key, const json_t **out, size_t *num,
                           cr_err *err)
{
    *out = json_object_get(object, key);
    *num = json_array_size(*out);
    if (json_is_array(*out) && *num <= MAX_NUM) return CR_OK;
    *num = 0;
    return cr_fail(err, CR_EFORMAT, "%s is not a list of at most %d", key, (int)MAX_NUM);
}

static cr_status get_address(const json_t *object, char out[CR_AGENT_ADDRESS], cr_err *err)
{
    struct in_addr number;

    CR_TRY(get_text(object, "address", out, CR_AGENT_ADDRESS, err));
    if (inet_pton(AF_INET, out, &number) != 1)
        return cr_fail(err, CR_EFORMAT, "address is not one of IPv4");
    return CR_OK;
}

static cr_status get_hex(const json_t *object, const char *key, char *out, size_t size, cr_err *err)
{
    CR_TRY(get_text(object, key, out, size, err));
    if (strlen(out) != size - 1 || out[strspn(out, "0123456789abcdef")])
        return cr_fail(err, CR_EFORMAT, "%s is not %zu hexadecimal digits", key, size - 1);
    return CR_OK;
}

/* NULL where there is no such key. */
static char *take_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? cr_strdup(text) : NULL;
}

static cr_status get_texts(const json_t *object, const char *key, char ***out, size_t *num,
                           cr_err *err)
{
    const json_t *list;
    size_t n;

    *out = NULL;
    *num = 0;
    CR_TRY(get_array(object, key, &list, &n, err));
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(list, i)))
            return cr_fail(err, CR_EFORMAT, "%s has something that is not a text", key);
    *out = CR_NEW_ARRAY(char *, n);
    *num = n;
    for (size_t i = 0; i < n; i++)
        (*out)[i] = cr_strdup(json_string_value(json_array_get(list, i)));
    return CR_OK;
}

/* The object of a line; an answer that reports an error is a failure. */
static cr_status open_line(const char *line, size_t num_bytes, json_t **out, cr_err *err)
{
    const char *error;

    CR_TRY(cr_json_parse(line, num_bytes, NULL, out, err));
    error = json_string_value(json_object_get(*out, "error"));
    if (error)
        cr_fail(err, CR_EPEER, "%s", error);
    else if (!json_is_object(*out))
        cr_fail(err, CR_EFORMAT, "not a JSON object");
    if (err->status == CR_OK) return CR_OK;
    json_decref(*out);
    *out = NULL;
    return err->status;
}

/* ---- requests ---- */

static void add_pair(cr_buf *line, const char *key, const char *text)
{
    if (!text) return;
    cr_buf_addf(line, ",\"%s\":", key);
    cr_json_add_string(line, text, strlen(text));
}

void cr_agent_request_write(const cr_agent_request *r, cr_buf *line)
{
    cr_buf_addf(line, "{\"ask\":\"%s\"", asks[r->ask]);
    if (r->ask == CR_AGENT_HELLO) {
        cr_buf_addf(line, ",\"node\":%d", r->node);
        add_pair(line, "token", r->token);
    } else if (r->ask == CR_AGENT_LOOK) {
        cr_buf_adds(line, ",\"models\":[");
        for (size_t i = 0; i < r->num_models; i++) {
            if (i) cr_buf_addc(line, ',');
            cr_json_add_string(line, r->model[i], strlen(r->model[i]));
        }
        cr_buf_addc(line, ']');
        add_pair(line, "folder", r->folder);
        add_pair(line, "mark", r->mark);
        add_pair(line, "text", r->text);
        cr_buf_addf(line, ",\"seconds\":%.3f", r->seconds);
    } else if (r->ask != CR_AGENT_CLOCK) {
        cr_buf_addf(line, ",\"seconds\":%.3f,\"to\":[", r->seconds);
        for (size_t i = 0; i < r->num_to; i++)
            cr_buf_addf(line, "%s{\"node\":%d,\"address\":\"%s\",\"port\":%d}", i ? "," : "",
                        r->to[i].node, r->to[i].address, r->to[i].port);
        cr_buf_addc(line, ']');
    }
    cr_buf_adds(line, "}\n");
}

static cr_status read_peers(const json_t *object, cr_agent_request *out, cr_err *err)
{
    const json_t *list;
    size_t num;

    CR_TRY(get_array(object, "to", &list, &num, err));
    out->to = CR_NEW_ARRAY(cr_agent_peer, num);
    out->num_to = num;
    for (size_t i = 0; i < num; i++) {
        const json_t *peer = json_array_get(list, i);
        int64_t node, port;
        CR_TRY(get_int(peer, "node", 0, MAX_NUM, &node, err));
        CR_TRY(get_int(peer, "port", 1, 65535, &port, err));
        CR_TRY(get_address(peer, out->to[i].address, err));
        out->to[i].node = (int)node;
        out->to[i].port = (int)port;
    }
    if (out->ask == CR_AGENT_MEASURE && num != 1)
        return cr_fail(err, CR_EFORMAT, "to is not one address");
    return CR_OK;
}

static cr_status read_request(const json_t *object, cr_agent_request *out, cr_err *err)
{
    char ask[16];
    int64_t node;

    CR_TRY(get_text(object, "ask", ask, sizeof ask, err));
    out->ask = 0;
    while (out->ask < CR_AGENT_ASKS && strcmp(ask, asks[out->ask]) != 0)
        out->ask++;
    switch (out->ask) {
    case CR_AGENT_HELLO:
        CR_TRY(get_int(object, "node", 0, MAX_NUM, &node, err));
        out->node = (int)node;
        return get_hex(object, "token", out->token, sizeof out->token, err);
    case CR_AGENT_CLOCK:
        return CR_OK;
    case CR_AGENT_LOOK:
        out->folder = take_text(object, "folder");
        out->mark = take_text(object, "mark");
        out->text = take_text(object, "text");
        CR_TRY(get_number(object, "seconds", MAX_SECONDS, &out->seconds, err));
        return get_texts(object, "models", &out->model, &out->num_models, err);
    case CR_AGENT_CONNECT:
    case CR_AGENT_MEASURE:
        CR_TRY(get_number(object, "seconds", MAX_SECONDS, &out->seconds, err));
        return read_peers(object, out, err);
    default:
        return cr_fail(err, CR_EFORMAT, "ask is not one that this agent knows");
    }
}

cr_status cr_agent_request_read(const char *line, size_t num_bytes, cr_agent_request *out,
                                cr_err *err)
{
    json_t *object;

    *out = (cr_agent_request){.ask = CR_AGENT_ASKS};
    CR_TRY(open_line(line, num_bytes, &object, err));
    if (read_request(object, out, err) != CR_OK) cr_agent_request_free(out);
    json_decref(object);
    return err->status;
}

void cr_agent_request_free(cr_agent_request *r)
{
    cr_agent_texts_free(r->model, r->num_models);
    cr_free(r->folder);
    cr_free(r->mark);
    cr_free(r->text);
    cr_free(r->to);
    *r = (cr_agent_request){0};
}

/* ---- answers ---- */

cr_status cr_agent_hello_read(const char *line, size_t num_bytes, cr_agent_hello *out, cr_err *err)
{
    json_t *object;
    int64_t port = 0;

    *out = (cr_agent_hello){0};
    CR_TRY(open_line(line, num_bytes, &object, err));
    if (get_hex(object, "digest", out->digest, sizeof out->digest, err) == CR_OK &&
        get_text(object, "host", out->host, sizeof out->host, err) == CR_OK)
        cr_note(get_int(object, "port", 1, 65535, &port, err));
    out->port = (int)port;
    json_decref(object);
    return err->status;
}

cr_status cr_agent_clock_read(const char *line, size_t num_bytes, double *wall_s, cr_err *err)
{
    json_t *object;

    *wall_s = 0;
    CR_TRY(open_line(line, num_bytes, &object, err));
    cr_note(get_number(object, "wall_s", 1e12, wall_s, err));
    json_decref(object);
    return err->status;
}

static cr_status read_addresses(const json_t *object, cr_agent_look *out, cr_err *err)
{
    const json_t *list;
    size_t num;

    CR_TRY(get_array(object, "addresses", &list, &num, err));
    out->address = CR_NEW_ARRAY(cr_agent_address, num);
    out->num_addresses = num;
    for (size_t i = 0; i < num; i++) {
        const json_t *item = json_array_get(list, i);
        cr_agent_address *a = &out->address[i];
        int64_t bits;
        CR_TRY(get_text(item, "name", a->name, sizeof a->name, err));
        CR_TRY(get_address(item, a->address, err));
        CR_TRY(get_int(item, "bits", 0, 32, &bits, err));
        CR_TRY(get_int(item, "mbits", 0, INT32_MAX, &a->mbits, err));
        a->bits = (int)bits;
    }
    return CR_OK;
}

static cr_status read_models(const json_t *object, cr_agent_look *out, cr_err *err)
{
    const json_t *list;
    size_t num;

    CR_TRY(get_array(object, "models", &list, &num, err));
    out->model = CR_NEW_ARRAY(cr_agent_model, num);
    out->num_models = num;
    for (size_t i = 0; i < num; i++) {
        const json_t *item = json_array_get(list, i);
        cr_agent_model *m = &out->model[i];
        CR_TRY(get_text(item, "error", m->error, sizeof m->error, err));
        if (m->error[0]) continue;
        CR_TRY(get_hex(item, "digest", m->digest, sizeof m->digest, err));
        CR_TRY(get_int(item, "bytes", 0, INT64_MAX, &m->num_bytes, err));
    }
    return CR_OK;
}

static cr_status read_look(const json_t *object, cr_agent_look *out, cr_err *err)
{
    int64_t gpus, cores, nodes;

    CR_TRY(read_addresses(object, out, err));
    CR_TRY(read_models(object, out, err));
    CR_TRY(get_int(object, "shm", 0, INT64_MAX, &out->shm, err));
    CR_TRY(get_int(object, "memory", 0, INT64_MAX, &out->memory, err));
    CR_TRY(get_int(object, "disk", -1, INT64_MAX, &out->disk, err));
    CR_TRY(get_int(object, "files", 0, INT64_MAX, &out->files, err));
    CR_TRY(get_int(object, "gpus", 0, MAX_NUM, &gpus, err));
    out->num_gpus = (int)gpus;
    CR_TRY(get_int(object, "cores", 1, MAX_NUM, &cores, err));
    CR_TRY(get_int(object, "nodes", 1, MAX_NUM, &nodes, err));
    out->num_cores = (int)cores;
    out->num_nodes = (int)nodes;
    CR_TRY(get_text(object, "cpus", out->cpus, sizeof out->cpus, err));
    out->has_mark = json_is_true(json_object_get(object, "has_mark"));
    out->has_orted = json_is_true(json_object_get(object, "has_orted"));
    return get_text(object, "gpu", out->gpu, sizeof out->gpu, err);
}

cr_status cr_agent_look_read(const char *line, size_t num_bytes, cr_agent_look *out, cr_err *err)
{
    json_t *object;

    *out = (cr_agent_look){0};
    CR_TRY(open_line(line, num_bytes, &object, err));
    if (read_look(object, out, err) != CR_OK) cr_agent_look_free(out);
    json_decref(object);
    return err->status;
}

void cr_agent_look_write(const cr_agent_look *look, cr_buf *line)
{
    cr_buf_adds(line, "{\"addresses\":[");
    for (size_t i = 0; i < look->num_addresses; i++) {
        const cr_agent_address *a = &look->address[i];
        cr_buf_adds(line, i ? ",{\"name\":" : "{\"name\":");
        cr_json_add_string(line, a->name, strlen(a->name));
        cr_buf_addf(line, ",\"address\":\"%s\",\"bits\":%d,\"mbits\":%lld}", a->address, a->bits,
                    (long long)a->mbits);
    }
    cr_buf_adds(line, "],\"models\":[");
    for (size_t i = 0; i < look->num_models; i++) {
        const cr_agent_model *m = &look->model[i];
        cr_buf_addf(line, "%s{\"digest\":\"%s\",\"bytes\":%lld", i ? "," : "", m->digest,
                    (long long)m->num_bytes);
        add_pair(line, "error", m->error);
        cr_buf_addc(line, '}');
    }
    cr_buf_addf(line,
                "],\"shm\":%lld,\"memory\":%lld,\"disk\":%lld,\"files\":%lld,\"has_mark\":%s,"
                "\"has_orted\":%s,\"gpus\":%d,\"cores\":%d,\"nodes\":%d",
                (long long)look->shm, (long long)look->memory, (long long)look->disk,
                (long long)look->files, look->has_mark ? "true" : "false",
                look->has_orted ? "true" : "false", look->num_gpus, look->num_cores,
                look->num_nodes);
    add_pair(line, "cpus", look->cpus);
    add_pair(line, "gpu", look->gpu);
    cr_buf_adds(line, "}\n");
}

void cr_agent_look_free(cr_agent_look *look)
{
    cr_free(look->address);
    cr_free(look->model);
    *look = (cr_agent_look){0};
}

cr_status cr_agent_tries_read(const char *line, size_t num_bytes, size_t num, char ***out,
                              cr_err *err)
{
    json_t *object;
    size_t n = 0;

    *out = NULL;
    CR_TRY(open_line(line, num_bytes, &object, err));
    if (get_texts(object, "tries", out, &n, err) == CR_OK && n != num) {
        cr_agent_texts_free(*out, n);
        *out = NULL;
        cr_fail(err, CR_EFORMAT, "tries has %zu results of %zu", n, num);
    }
    json_decref(object);
    return err->status;
}

cr_status cr_agent_rate_read(const char *line, size_t num_bytes, cr_agent_rate *out, cr_err *err)
{
    json_t *object;

    *out = (cr_agent_rate){0};
    CR_TRY(open_line(line, num_bytes, &object, err));
    if (get_number(object, "latency_s", 1e3, &out->latency_s, err) == CR_OK)
        cr_note(get_number(object, "bytes_per_s", 1e15, &out->bytes_per_s, err));
    json_decref(object);
    return err->status;
}

void cr_agent_texts_free(char **texts, size_t num)
{
    for (size_t i = 0; i < num && texts; i++)
        cr_free(texts[i]);
    cr_free(texts);
}
