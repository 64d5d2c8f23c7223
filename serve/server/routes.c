/* routes.c -- what a service answers where, and who may ask. Everything that can be refused without the body is
 * refused before it is read. */
#include "serve/server/server_impl.h"

#include "serve/answer.h"

#include <math.h>
#include <string.h>
#include <strings.h>

typedef void answer_function(cr_server *s, cr_http_exchange *x);

typedef struct route {
    const char *method, *path; /* a path that ends in '*' is a beginning */
    const char *name;          /* in the log and metrics */
    answer_function *answer;   /* NULL: its body goes to another thread */
    unsigned scopes;           /* one of them is needed; 0: none */
    cr_serve_route body;       /* of a POST */
    bool is_open;              /* to everyone, without key; also while the model is being loaded */
    const char *type, *help;   /* of a GET, for openapi.json */
} route;

static const char json[] = "application/json",
                  prometheus[] = "text/plain; version=0.0.4; charset=utf-8";

static void answer_json(cr_http_exchange *x, int status, const cr_buf *body)
{
    cr_http_answer(x, status, json, body->data, body->num_bytes);
}

/* ---- routes ---- */

/* Of both threads that work on bodies. */
static cr_serve_load load_of(const cr_server *s)
{
    cr_serve_load a = cr_serve_queue_load(s->texts), b = cr_serve_queue_load(s->compute);

    return (cr_serve_load){.num_waiting = a.num_waiting + b.num_waiting,
                           .num_running = a.num_running + b.num_running,
                           .waiting_tokens = a.waiting_tokens + b.waiting_tokens,
                           .waiting_bytes = a.waiting_bytes + b.waiting_bytes,
                           .stuck_s = a.stuck_s > b.stuck_s ? a.stuck_s : b.stuck_s};
}

static void answer_health(cr_server *s, cr_http_exchange *x)
{
    static const char ok[] = "{\"status\":\"ok\"}\n";

    if (s->has_failed)
        cr_http_fail(x, 503, "failed", NULL, "the model has failed, and the service ends");
    else if (!s->is_updating && load_of(s).stuck_s > s->options.stall_s)
        cr_http_fail(x, 503, "stalled", NULL, "requests wait, and no work has moved for too long");
    else
        cr_http_answer(x, 200, json, ok, sizeof ok - 1);
}

static void refuse_while_loading(cr_http_exchange *x)
{
    cr_http_set(x, "Retry-After", "2");
    cr_http_fail(x, 503, "loading", NULL, "the model is being loaded");
}

static void answer_ready(cr_server *s, cr_http_exchange *x)
{
    static const char ready[] = "{\"status\":\"ready\"}\n";

    if (s->is_draining)
        cri_refuse_draining(x);
    else if (!s->service)
        refuse_while_loading(x);
    else if (s->is_paused)
        cri_refuse_paused(x);
    else
        cr_http_answer(x, 200, json, ready, sizeof ready - 1);
}

static void answer_models(cr_server *s, cr_http_exchange *x)
{
    cr_buf body = {0};

    cr_serve_models_body(s->service, &body);
    answer_json(x, 200, &body);
    cr_buf_free(&body);
}

static void answer_no_model(const cr_server *s, cr_http_exchange *x, const char *name)
{
    char text[480];

    cr_serve_no_model(s->service, name, text, sizeof text);
    cr_http_fail(x, 404, "model_not_found", "model", text);
}

static void answer_model(cr_server *s, cr_http_exchange *x)
{
    const char *name = cr_http_path(x->request) + strlen("/v1/models/");
    const cr_serve_model *model = cr_serve_find_model(s->service, name);
    cr_buf body = {0};

    if (!model) {
        answer_no_model(s, x, name);
        return;
    }
    cr_serve_model_body(model, &body);
    answer_json(x, 200, &body);
    cr_buf_free(&body);
}

static void answer_version(cr_server *s, cr_http_exchange *x)
{
    cr_buf body = {0};

    cr_buf_adds(&body, "{\"version\":");
    cr_json_add_string(&body, s->options.version, strlen(s->options.version));
    cr_buf_adds(&body, "}\n");
    answer_json(x, 200, &body);
    cr_buf_free(&body);
}

static void answer_load(cr_server *s, cr_http_exchange *x)
{
    cr_serve_load load = load_of(s);
    cr_buf body = {0};

    cr_buf_addf(&body, "{\"server_load\":%lld}\n",
                (long long)(load.num_waiting + load.num_running));
    answer_json(x, 200, &body);
    cr_buf_free(&body);
}

static void answer_metrics(cr_server *s, cr_http_exchange *x)
{
    cr_http_counts counts = cr_http_count(s->http);
    cr_serve_load load = load_of(s);
    cr_tenant_counts *tenants = CR_NEW_ARRAY(cr_tenant_counts, CR_MAX_TENANTS);
    size_t num_tenants = cr_serve_queue_tenants(s->compute, tenants, CR_MAX_TENANTS);
    cr_buf body = {0};

    cr_serve_metrics_print(&s->metrics, s->options.metrics_prefix, s->options.version, &counts,
                           &load, s->service, &body);
    cr_serve_metrics_print_tenants(s->options.metrics_prefix, tenants, num_tenants, &body);
    cr_free(tenants);
    cr_http_answer(x, 200, prometheus, body.data, body.num_bytes);
    cr_buf_free(&body);
}

static answer_function answer_openapi;

/* Of ?model=NAME, else of the default model. */
static void answer_tokenizer_info(cr_server *s, cr_http_exchange *x)
{
    const cr_serve_model *model = s->service->models;
    char name[1024];
    cr_buf body = {0};
    cr_err err = {0};

    if (cr_http_query(x->request, "model", name, sizeof name))
        model = cr_serve_find_model(s->service, name);
    if (!model) {
        answer_no_model(s, x, name);
        return;
    }
    if (cr_serve_tokenizer_info(model, &body, &err) == CR_OK)
        answer_json(x, 200, &body);
    else
        cr_http_fail(x, 500, NULL, NULL, err.msg);
    cr_buf_free(&body);
}

enum { ANY = CR_SCOPE_SCORE | CR_SCOPE_GENERATE };

static const route routes[] = {
    {"GET", "/", "/", cri_answer_page, .is_open = true, .type = "text/html",
     .help = "a page with the state of the service"},
    {"GET", "/health", "/health", answer_health, .is_open = true, .type = json,
     .help = "alive, and its work moves on"},
    {"GET", "/v1/health", "/v1/health", answer_health, .is_open = true, .type = json,
     .help = "the same"},
    {"GET", "/ready", "/ready", answer_ready, .is_open = true, .type = json,
     .help = "takes requests: not while it loads or drains"},
    {"GET", "/v1/models", "/v1/models", answer_models, .type = json,
     .help = "the models, the default one first"},
    {"GET", "/v1/models/*", "/v1/models/{model}", answer_model, .type = json, .help = "one model"},
    {"GET", "/version", "/version", answer_version, .type = json, .help = "version of croll"},
    {"GET", "/load", "/load", answer_load, .type = json,
     .help = "requests that wait or are worked on"},
    {"GET", "/metrics", "/metrics", answer_metrics, .type = prometheus,
     .help = "counters for Prometheus"},
    {"GET", "/openapi.json", "/openapi.json", answer_openapi, .type = json,
     .help = "this description"},
    {"GET", "/tokenizer_info", "/tokenizer_info", answer_tokenizer_info, .type = json,
     .help = "tokenizer_config.json with tokens as strings; ?model=NAME: of that model"},
    {"GET", "/weight_info", "/weight_info", cri_answer_versions, .type = json,
     .help = "version of the weights of each model"},
    {"GET", "/get_world_size", "/get_world_size", cri_answer_world_size, .type = json,
     .help = "number of ranks"},
    {"GET", "/is_paused", "/is_paused", cri_answer_is_paused, .type = json,
     .help = "are requests for models refused?"},
    {"POST", "/pause", "/pause", cri_answer_pause, .scopes = CR_SCOPE_ADMIN, .type = json,
     .help =
         "refuse requests for models; ?mode=abort (default) ends those that were taken with 503, "
         "?mode=wait answers them; answered when none is left"},
    {"POST", "/resume", "/resume", cri_answer_resume, .scopes = CR_SCOPE_ADMIN, .type = json,
     .help = "take requests again"},
    {"POST", "/update_weights_from_disk", "/update_weights_from_disk", NULL, CR_SCOPE_ADMIN,
     CR_SERVE_UPDATE},
    {"POST", "/tokenize", "/tokenize", NULL, ANY, CR_SERVE_TOKENIZE},
    {"POST", "/detokenize", "/detokenize", NULL, ANY, CR_SERVE_DETOKENIZE},
    {"POST", "/v1/completions", "/v1/completions", NULL, ANY, CR_SERVE_COMPLETIONS},
    {"POST", "/v1/chat/completions", "/v1/chat/completions", NULL, CR_SCOPE_GENERATE,
     CR_SERVE_CHAT},
    {"POST", "/generate", "/generate", NULL, ANY, CR_SERVE_GENERATE},
    {"POST", "/inference/v1/generate", "/inference/v1/generate", NULL, ANY, CR_SERVE_TOKENS_IN},
};

static void answer_openapi(cr_server *s, cr_http_exchange *x)
{
    cr_serve_get gets[CR_COUNT(routes)];
    size_t num = 0;
    cr_buf body = {0};

    (void)s;
    for (size_t i = 0; i < CR_COUNT(routes); i++)
        if (routes[i].answer)
            gets[num++] = (cr_serve_get){strcmp(routes[i].method, "GET") == 0 ? "get" : "post",
                                         routes[i].name, routes[i].help, routes[i].type};
    cr_serve_openapi(gets, num, &body);
    answer_json(x, 200, &body);
    cr_buf_free(&body);
}

/* NULL: there is no such path. */
static const route *find_route(const char *path)
{
    for (size_t i = 0; i < CR_COUNT(routes); i++) {
        size_t num = strlen(routes[i].path) - 1;
        if (routes[i].path[num] == '*' ? strncmp(path, routes[i].path, num) == 0 && path[num]
                                       : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    }
    return NULL;
}

const char *cri_route_name(const cr_http_exchange *x)
{
    const route *r = find_route(cr_http_path(x->request));

    return r ? r->name : "";
}

/* ---- who may ---- */

/* Of one field; "": of another scheme than Bearer. */
static const char *secret_of(const char *value, bool is_bearer)
{
    if (!is_bearer) return value;
    return strncasecmp(value, "Bearer ", 7) == 0 ? value + 7 + strspn(value + 7, " ") : "";
}

/* *secret: NULL: none was sent. False: several that differ, of which a proxy may have looked at another one. */
static bool find_secret(const cr_http_parser *request, const char **secret)
{
    static const char *const names[] = {"authorization", "x-api-key"};
    const char *value;

    *secret = NULL;
    for (size_t k = 0; k < CR_COUNT(names); k++)
        for (size_t i = 0; (value = cr_http_field_at(request, names[k], i)); i++) {
            value = secret_of(value, k == 0);
            if (*secret && strcmp(*secret, value) != 0) return false;
            *secret = value;
        }
    if (*secret && !**secret) *secret = NULL;
    return true;
}

/* False: it was answered. */
static bool is_allowed(cr_server *s, cr_http_exchange *x, const route *r)
{
    cri_server_call *call = x->user;
    const char *secret;
    cr_serve_key *key;
    double wait_s;
    char seconds[24];

    call->may_generate = true;
    if (!s->options.keys && r->scopes == CR_SCOPE_ADMIN) {
        cr_http_fail(x, 403, NULL, NULL, "this needs --keys with a user that has the scope admin");
        return false;
    }
    if (!s->options.keys) {
        if (x->client_name) snprintf(call->tenant, sizeof call->tenant, "%s", x->client_name);
        return true;
    }
    if (!find_secret(x->request, &secret)) {
        s->metrics.num_rejected_keys++;
        cr_http_fail(x, 400, "invalid_value", NULL,
                     "the request has several keys that differ (Authorization, X-Api-Key)");
        return false;
    }
    key = secret ? cr_serve_keys_find(&s->keys, secret) : NULL;
    if (!key && !secret && x->client_name) key = cr_serve_keys_named(&s->keys, x->client_name);
    if (!key) {
        s->metrics.num_rejected_keys++;
        cr_http_set(x, "WWW-Authenticate", "Bearer");
        cr_http_fail(x, 401, NULL, NULL,
                     secret ? "the key is not valid here"
                            : "a key is needed: Authorization: Bearer KEY");
        return false;
    }
    strcpy(call->tenant, key->name);
    call->weight = key->weight;
    call->may_generate = (key->scopes & CR_SCOPE_GENERATE) != 0;
    if (r->scopes && !(key->scopes & r->scopes)) {
        s->metrics.num_rejected_keys++;
        cr_http_fail(x, 403, NULL, NULL, "the key may not be used for this");
        return false;
    }
    if ((wait_s = cr_serve_key_take(key, cr_now_s())) > 0) {
        s->metrics.num_rejected_quota++;
        snprintf(seconds, sizeof seconds, "%.0f", ceil(wait_s));
        cr_http_set(x, "Retry-After", seconds);
        cr_http_fail(x, 429, NULL, NULL, "rate limit: the key's requests a second are used up");
        return false;
    }
    return true;
}

/* Is the method that of the route? A HEAD is answered as its GET, without the body. False: it was answered. */
static bool is_method(cr_http_exchange *x, const route *r)
{
    const char *method = x->request->method;
    bool is_get = strcmp(r->method, "GET") == 0;

    if (strcmp(method, r->method) == 0 || (is_get && strcmp(method, "HEAD") == 0)) return true;
    cr_http_set(x, "Allow", is_get ? "GET, HEAD" : r->method);
    cr_http_fail(x, 405, NULL, NULL, "this path has another method (see Allow)");
    return false;
}

/* ---- requests ---- */

void cri_on_head(void *ctx, cr_http_exchange *x)
{
    cr_server *s = ctx;
    const route *r = find_route(cr_http_path(x->request));
    cri_server_call *call = CR_NEW(cri_server_call);

    x->user = call;
    call->route = r ? r->name : "";
    strcpy(call->tenant, CRI_NO_TENANT);
    call->weight = 1;
    if (r && r->is_open) {
        is_method(x, r);
        return;
    }
    if (!r) { /* what is there and what is not is no secret: openapi.json is published */
        cr_http_fail(x, 404, NULL, NULL, "there is no such path (see /openapi.json)");
        return;
    }
    if (!is_method(x, r) || !is_allowed(s, x, r)) return;
    if (!s->service && r->answer != answer_metrics && r->answer != answer_version)
        refuse_while_loading(x);
    else if (!r->answer && s->is_draining)
        cri_refuse_draining(x);
    else if (!r->answer && s->is_paused && cr_serve_is_for_model(r->body))
        cri_refuse_paused(x);
    else if (!r->answer && r->body == CR_SERVE_UPDATE && !s->options.can_update)
        cr_http_fail(x, 409, "frozen", NULL,
                     "the weights of this service are never replaced (--allow-updates)");
    else if (!r->answer && !x->request->has_body)
        cr_http_fail(x, 411, NULL, NULL, "a body with its Content-Length is needed");
}

/* curl -d says that JSON is a form: it is taken where it can only be JSON. */
static bool is_json(const cr_http_parser *request)
{
    const char *type = cr_http_field(request, "content-type");

    if (!type || strncasecmp(type, "application/json", 16) == 0) return true;
    return strncasecmp(type, "application/x-www-form-urlencoded", 33) == 0 &&
           request->body.num_bytes > 0 && request->body.data[0] == '{';
}

void cri_on_request(void *ctx, cr_http_exchange *x)
{
    const route *r = find_route(cr_http_path(x->request));
    cr_server *s = ctx;

    if (r->answer) {
        pthread_rwlock_rdlock(&s->service_lock);
        r->answer(s, x);
        pthread_rwlock_unlock(&s->service_lock);
    } else if (is_json(x->request))
        cri_work_put(ctx, x, r->body);
    else
        cr_http_fail(x, 415, NULL, NULL, "the body must be JSON: Content-Type: application/json");
}
