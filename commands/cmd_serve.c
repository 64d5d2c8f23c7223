/* cmd_serve.c -- `croll serve`: a model as a service over HTTP. The first line of stdout says where it listens, the
 * second that the model is there. With several ranks rank 0 has the server, and the engine with a whole copy of the
 * weights; the others follow its rounds of scoring. */
#include "base/digest.h"
#include "base/hub.h"
#include "base/limits.h"
#include "commands/commands.h"
#include "commands/worker.h"
#include "kernels/attention.h"
#include "serve/self_check.h"
#include "serve/server/server.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUND_TOKENS = 16384, MOST_SAMPLES = 64 /* at a time */ };
#define FOLLOWER_WAITS_S 5 /* longer than rank 0, which says what has happened */

typedef struct serve {
    cr_worker worker;
    cr_server *server;
    cr_server_options options;
    const char *name, *port_file, *device, *role;
    int64_t max_logprobs;
    bool only_scores, clamps, may_be_random;
    int64_t max_chat_tokens;
    cr_scoring *scoring;
    cr_model *sampled; /* the engine's copy of the model */
    cr_full_weights full;
    cr_engine *engine;
    cr_compute compute;
    cr_self_check self_check;
    cr_serve_model model;
    cr_serve_service service;
    cr_chat *chat;
    cr_buf tokenizer_config;
    char weights[CR_DIGEST_TEXT], tokenizer[CR_DIGEST_TEXT];
} serve;

/* ---- identity ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The digest of the sorted digests of all safetensors files: it does not depend on their names. */
static cr_status digest_weights(const char *folder, char hex[CR_DIGEST_TEXT], cr_err *err)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char(*digests)[CR_DIGEST_TEXT] = NULL;
    size_t num = 0, capacity = 0;

    while (dir && err->status == CR_OK && (entry = readdir(dir))) {
        const char *end = strrchr(entry->d_name, '.');
        char *path;
        if (!end || strcmp(end, ".safetensors") != 0) continue;
        path = cr_path_join(folder, entry->d_name);
        digests = cr_grow(digests, num, &capacity, sizeof *digests);
        cr_note(cr_digest_file(path, digests[num++], NULL, err));
        cr_free(path);
    }
    if (dir) closedir(dir);
    if (num) qsort(digests, num, sizeof *digests, by_text);
    cr_digest_bytes(num ? digests[0] : "", num * sizeof *digests, hex);
    cr_free(digests);
    return err->status;
}

/* Tokenizer, templates and tokenizer_config.json, where the model has them. */
static cr_status open_texts(serve *s, const char *folder, cr_err *err)
{
    char *tokenizer = cr_path_join(folder, "tokenizer.json"),
         *config = cr_path_join(folder, "tokenizer_config.json");
    cr_err absent = {0};

    if (cr_file_exists(tokenizer)) {
        CR_TRY_GOTO(out, cr_worker_need_tokenizer(&s->worker, err));
        CR_TRY_GOTO(out, cr_digest_file(tokenizer, s->tokenizer, NULL, err));
        s->model.tokenizer = s->worker.encoder.tokenizer;
        s->model.tokenizer_sha256 = s->tokenizer;
        if (cr_chat_open(folder, &s->chat, &absent) == CR_OK) s->model.chat = s->chat;
    }
    if (cr_file_exists(config)) {
        CR_TRY_GOTO(out, cr_file_read(config, &s->tokenizer_config, err));
        s->model.tokenizer_config = s->tokenizer_config.data;
    }
out:
    cr_free(tokenizer);
    cr_free(config);
    return err->status;
}

static cr_status describe(serve *s, cr_err *err)
{
    const cr_model_config *c = &s->worker.model->config;
    char *folder = cr_hub_find(s->worker.folder);

    s->model = (cr_serve_model){
        .name = s->name ? s->name : s->worker.folder,
        .root = s->worker.folder,
        .weights_sha256 = s->weights,
        .weight_version = "1",
        .dtype = cr_dtype_name(s->worker.dtype),
        .vocab_size = c->vocab_size,
        .max_model_len = c->position_limit ? c->position_limit : c->max_position_embeddings,
        .eos_ids = c->eos_ids,
        .num_eos = (size_t)c->num_eos,
        .created = time(NULL),
    };
    s->service = (cr_serve_service){.models = &s->model,
                                    .num_models = 1,
                                    .max_prompts = 1024,
                                    .max_samples = 128,
                                    .max_logprobs = s->max_logprobs,
                                    .max_chat_tokens = s->max_chat_tokens,
                                    .clamps_max_tokens = s->clamps,
                                    .only_scores = s->only_scores};
    if (digest_weights(folder, s->weights, err) == CR_OK) cr_note(open_texts(s, folder, err));
    cr_free(folder);
    return err->status;
}

/* ---- the model ---- */

/* The engine generates with packed copies of all weights, rounds are of the units. */
static cr_status open_engine(serve *s, cr_err *err)
{
    cr_worker *w = &s->worker;
    const cr_model_config *c = &w->model->config;
    int64_t bytes = cr_memory_limit() / 4;
    int64_t block =
        c->num_layers * (int64_t)cr_kv_block_bytes(w->dev, w->dtype, c->num_kv_heads, c->head_dim);
    cr_engine_limits limits = {.max_running = MOST_SAMPLES,
                               .max_model_len = s->model.max_model_len,
                               .kv_bytes = bytes,
                               .keeps_prefixes = true};

    if (limits.max_model_len > bytes / block * CR_KV_BLOCK)
        limits.max_model_len = bytes / block * CR_KV_BLOCK;
    s->model.max_model_len = limits.max_model_len;
    CR_TRY(cr_model_open(w->folder, &s->sampled, err));
    cr_experts_set(s->sampled, NULL);
    CR_TRY(cr_full_weights_load(&s->full, s->sampled, w->dev, w->dtype, w->folder, err));
    CR_TRY(cr_engine_create(s->sampled, w->dev, &limits, &s->engine, err));
    cr_engine_set_tokenizer(s->engine, s->model.tokenizer);
    return cr_engine_set_weights(s->engine, err);
}

/* A rank that keeps the others waiting in a round is given up after twice the time after which /health is 503. */
static cr_status open_rank(serve *s, cr_err *err)
{
    cr_worker *w = &s->worker;

    CR_TRY(cr_worker_open(w, s->device, err));
    cr_world_set_deadline(w->world, 2 * s->options.stall_s + (w->rank ? FOLLOWER_WAITS_S : 0));
    s->scoring = cr_scoring_create(w->world, w->mesh, w->model, w->fsdp);
    return cr_fsdp_check_finite(w->fsdp, err);
}

static cr_status open_model(serve *s, cr_err *err)
{
    CR_TRY(open_rank(s, err));
    CR_TRY(describe(s, err));
    CR_TRY(cr_self_check_run(s->scoring, s->model.vocab_size, s->model.max_model_len,
                             s->may_be_random, &s->self_check, err));
    s->model.self_check = s->self_check.digest;
    if (!s->only_scores) CR_TRY(open_engine(s, err));
    cr_compute_init(&s->compute, s->scoring, s->engine, ROUND_TOKENS, MOST_SAMPLES);
    return CR_OK;
}

/* ---- the command ---- */

static cr_status write_port(const serve *s, cr_err *err)
{
    const char *port = strrchr(cr_server_url(s->server), ':') + 1;

    if (!s->port_file) return CR_OK;
    if (strncmp(s->options.http.listen, "unix:", 5) == 0)
        return cr_fail(err, CR_EUSAGE, "--port-file: a unix socket has no port");
    return cr_file_write_atomic(s->port_file, port, strlen(port), err);
}

static cr_status check(const serve *s, cr_err *err)
{
    const cr_http_options *h = &s->options.http;

    if (!h->tls_cert != !h->tls_key)
        return cr_fail(err, CR_EUSAGE, "--tls-cert and --tls-key are needed together");
    if (h->tls_ca && !h->tls_cert)
        return cr_fail(err, CR_EUSAGE, "--tls-ca needs --tls-cert and --tls-key");
    if (s->max_logprobs < 0) return cr_fail(err, CR_EUSAGE, "--max-logprobs must not be negative");
    if (h->max_connections < 1 || h->max_connections > 1000000)
        return cr_fail(err, CR_EUSAGE, "--max-connections must be from 1 to 1000000");
    if (s->options.max_queue < 1 || s->options.max_queue_tokens < 1)
        return cr_fail(err, CR_EUSAGE, "--max-queue and --max-queue-tokens must be at least 1");
    if (!(s->options.drain_s >= 0 && s->options.drain_s < 1e6 && s->options.stall_s > 0))
        return cr_fail(err, CR_EUSAGE, "--drain-s and --stall-s are seconds");
    return CR_OK;
}

/* MODEL with worker keys, or FILE with keys of a run. */
static cr_status read_words(serve *s, const cr_words *words, cr_err *err)
{
    bool is_file = words->num > 0 && cr_file_exists(words->word[0]);

    if (!is_file && s->role)
        return cr_fail(err, CR_EUSAGE, "--role is for a run's FILE, and %s is none",
                       words->num ? words->word[0] : "nothing");
    if (!is_file) return cr_worker_read(&s->worker, CR_WORKER_SERVE, words, err);
    if (s->role && strcmp(s->role, "reference") != 0 && strcmp(s->role, "actor_infer") != 0)
        return cr_fail(err, CR_EUSAGE, "--role is reference or actor_infer, not %s", s->role);
    return cr_worker_read_role(&s->worker, CR_WORKER_SERVE, s->role ? s->role : "reference", words,
                               err);
}

static cr_status run_service(serve *s, cr_err *err)
{
    CR_TRY(cr_server_open(&s->options, &s->server, err));
    CR_TRY(write_port(s, err));
    printf("listening on %s\n", cr_server_url(s->server));
    fflush(stdout);
    CR_TRY(open_model(s, err));
    cr_server_ready(s->server, &s->service);
    printf("ready: %s, weights %.12s, %s, self-check %.12s\n", s->model.name, s->weights,
           s->model.dtype, s->self_check.digest);
    fflush(stdout);
    CR_TRY(cr_server_run(s->server, &s->compute, err));
    return cr_scoring_end(s->scoring, err);
}

static cr_status run_rank(serve *s, cr_err *err)
{
    cr_server_block_signals();
    CR_TRY(cr_worker_join(&s->worker, err));
    if (s->worker.rank == 0) return run_service(s, err);
    CR_TRY(open_rank(s, err));
    return cr_scoring_follow(s->scoring, err);
}

static int finish(serve *s, int code, const cr_err *err)
{
    cr_server_close(s->server);
    cr_compute_free(&s->compute);
    cr_engine_destroy(s->engine);
    cr_full_weights_fini(&s->full);
    cr_model_free(s->sampled);
    cr_scoring_destroy(s->scoring);
    cr_chat_close(s->chat);
    cr_buf_free(&s->tokenizer_config);
    return cr_worker_leave(&s->worker, &cr_command_serve, code, err);
}

static int run(int argc, char **argv)
{
    serve s = {.max_logprobs = 128,
               .options = {.http = cr_http_defaults,
                           .access_log = "-",
                           .max_queue = 1024,
                           .max_queue_tokens = 8 << 20,
                           .drain_s = 30,
                           .stall_s = 60,
                           .metrics_prefix = "croll_",
                           .version = CR_VERSION}};
    cr_http_options *h = &s.options.http;
    const cr_option options[] = {
        {"listen", CR_OPT_STRING, &h->listen, "ADDRESS",
         "HOST:PORT (default 127.0.0.1:8000; port 0: any free one) or unix:PATH"},
        {"keys", CR_OPT_STRING, &s.options.keys, "FILE",
         "a line a user: NAME KEY SCOPES [REQUESTS/S [WEIGHT]]; scopes score,generate,admin"},
        {"no-auth", CR_OPT_FLAG, &s.options.needs_no_keys, NULL,
         "no keys, although other machines reach the address"},
        {"tls-cert", CR_OPT_STRING, &h->tls_cert, "FILE",
         "HTTPS with this certificate chain (PEM)"},
        {"tls-key", CR_OPT_STRING, &h->tls_key, "FILE", "and its key"},
        {"tls-ca", CR_OPT_STRING, &h->tls_ca, "FILE",
         "clients must show a certificate of this authority; its CN is the user's name"},
        {"role", CR_OPT_STRING, &s.role, "NAME",
         "block of FILE: reference (default) or actor_infer"},
        {"served-model-name", CR_OPT_STRING, &s.name, "NAME", "name in requests (default: MODEL)"},
        {"max-queue", CR_OPT_INT, &s.options.max_queue, "N",
         "requests that may wait, more get 503 (default 1024)"},
        {"max-queue-tokens", CR_OPT_INT, &s.options.max_queue_tokens, "N",
         "and their tokens, as estimated by the size of a request (default 8388608)"},
        {"drain-s", CR_OPT_DOUBLE, &s.options.drain_s, "SECONDS",
         "that SIGTERM gives to requests that were taken (default 30)"},
        {"stall-s", CR_OPT_DOUBLE, &s.options.stall_s, "SECONDS",
         "after which work that does not move makes /health 503 (default 60)"},
        {"max-logprobs", CR_OPT_INT, &s.max_logprobs, "K",
         "most log-probs a place that a request may ask for (default 128)"},
        {"score-only", CR_OPT_FLAG, &s.only_scores, NULL,
         "at most one token is sampled; without the engine's copy of the weights"},
        {"allow-random", CR_OPT_FLAG, &s.may_be_random, NULL,
         "also a model that gives nearly equal chances to all tokens"},
        {"clamp-max-tokens", CR_OPT_FLAG, &s.clamps, NULL,
         "max_tokens beyond the context is cut instead of refused"},
        {"max-chat-tokens", CR_OPT_INT, &s.max_chat_tokens, "N",
         "of a chat without max_tokens (default: what is left of the context)"},
        {"max-connections", CR_OPT_INT, &h->max_connections, "N",
         "at the same time (default 4096)"},
        {"half-close", CR_OPT_FLAG, &h->is_half_close_fine, NULL,
         "a client that has closed its sending side still waits for the answer"},
        {"access-log", CR_OPT_STRING, &s.options.access_log, "FILE",
         "a JSON line a request; -: stderr (default); none"},
        {"metrics-prefix", CR_OPT_STRING, &s.options.metrics_prefix, "TEXT",
         "of names at /metrics (default croll_)"},
        {"port-file", CR_OPT_STRING, &s.port_file, "FILE", "gets the number of the port"},
        {"device", CR_OPT_STRING, &s.device, "NAME", "cpu (default); cuda is not available yet"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;
    int code = 0;

    h->listen = "127.0.0.1:8000";
    if (cr_args_parse(&cr_command_serve, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help && read_words(&s, &words, &err) == CR_OK && check(&s, &err) == CR_OK &&
        !cr_worker_launch(&s.worker, &cr_command_serve, argc, argv, &code)) {
        cr_note(run_rank(&s, &err));
        if (s.worker.rank == 0) code = cr_exit_code(CR_ESIGNAL);
    }
    code = finish(&s, code, &err);
    cr_words_free(&words);
    return code;
}

const cr_command cr_command_serve = {
    "serve",
    "serve MODEL|FILE [key=value ..]",
    "A model, or the reference of a run's YAML file, as a service over HTTP, for clients of "
    "OpenAI, vLLM and SGLang: log-probs of prompts, "
    "samples, chats, streams. Ends with SIGTERM or Ctrl-C.",
    "croll serve output/quickstart/sft_model --listen 127.0.0.1:8000 model_args.dtype=fp32",
    run,
};
