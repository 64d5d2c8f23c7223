/* cmd_serve.c -- `croll serve`: models as a service over HTTP. The first line of stdout says where it listens, the
 * next ones, a model each, that they are there. With several ranks rank 0 has the server; the others follow its rounds of
 * scoring. */
#include "base/hub.h"
#include "commands/commands.h"
#include "commands/serve/keys.h"
#include "commands/serve/models.h"
#include "mesh/mesh.h"
#include "serve/server/server.h"

#include <stdio.h>
#include <string.h>

#define FOLLOWER_WAITS_S 5 /* longer than rank 0, which says what has happened */

typedef struct serve {
    cr_session session;
    cr_server *server;
    cr_server_options options;
    const char *name, *port_file, *device, *role;
    bool is_quiet;
    cr_serve_models models;
    char **names;   /* owned, of words NAME=MODEL */
    cr_words words; /* without them: the first model, and keys */
} serve;

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
    if (s->models.service.max_logprobs < 0)
        return cr_fail(err, CR_EUSAGE, "--max-logprobs must not be negative");
    if (h->max_connections < 1 || h->max_connections > 1000000)
        return cr_fail(err, CR_EUSAGE, "--max-connections must be from 1 to 1000000");
    if (s->options.max_queue < 1 || s->options.max_queue_tokens < 1)
        return cr_fail(err, CR_EUSAGE, "--max-queue and --max-queue-tokens must be at least 1");
    if (!(s->options.drain_s >= 0 && s->options.drain_s < 1e6 && s->options.stall_s > 0))
        return cr_fail(err, CR_EUSAGE, "--drain-s and --stall-s are seconds");
    return CR_OK;
}

/* ---- which models ---- */

/* NAME=MODEL, not key=value: MODEL is a folder, or looks like the path of one, which keys of a worker (a.b=..) do not. The
 * place of its '=', or NULL. */
static const char *find_named(const char *word)
{
    const char *equals = strchr(word, '=');
    char *folder =
        equals && equals > word && !cr_file_exists(word) ? cr_hub_find(equals + 1) : NULL;
    bool is_model = folder || (equals && equals > word && strchr(equals, '/') &&
                               !memchr(word, '.', (size_t)(equals - word)));

    cr_free(folder);
    return is_model ? equals : NULL;
}

/* Words NAME=MODEL to models; the first one's folder stays for the keys. */
static cr_status take_named(serve *s, const cr_words *words, cr_err *err)
{
    s->words.word = CR_NEW_ARRAY(const char *, words->num + 1);
    s->names = CR_NEW_ARRAY(char *, words->num + 1);
    for (size_t i = 0; i < words->num; i++) {
        const char *word = words->word[i], *equals = find_named(word);
        if (equals) {
            s->names[s->models.num] = cr_strndup(word, (size_t)(equals - word));
            if (s->models.num == 0) s->words.word[s->words.num++] = equals + 1;
            CR_TRY(cr_serve_models_add(&s->models, s->names[s->models.num], equals + 1, err));
        } else {
            s->words.word[s->words.num++] = word;
        }
    }
    if (s->models.num == 0) return CR_OK;
    if (s->words.word[0] != s->models.served[0]->folder)
        return cr_fail(err, CR_EUSAGE, "NAME=MODEL comes before all else, and not beside a MODEL");
    if (s->name)
        return cr_fail(err, CR_EUSAGE, "--served-model-name is for one MODEL without NAME=");
    return CR_OK;
}

/* MODEL or NAME=MODEL .. with worker keys, or FILE with keys of a run. */
static cr_status read_words(serve *s, const cr_words *words, cr_err *err)
{
    bool is_file = words->num > 0 && cr_file_exists(words->word[0]);
    const char *role = s->role ? s->role : "reference";

    if (!is_file && s->role)
        return cr_fail(err, CR_EUSAGE, "--role is for a run's FILE, and %s is none",
                       words->num ? words->word[0] : "nothing");
    if (s->role && strcmp(s->role, "reference") != 0 && strcmp(s->role, "teacher") != 0 &&
        strcmp(s->role, "actor_infer") != 0 &&
        strncmp(s->role, CR_ROLE_REWARDS, strlen(CR_ROLE_REWARDS)) != 0)
        return cr_fail(err, CR_EUSAGE,
                       "--role is reference, teacher, actor_infer or rewards.DOMAIN, not %s",
                       s->role);
    if (is_file) {
        CR_TRY(cr_session_read_role(&s->session, CR_SESSION_SERVE, role, words, s->is_quiet, err));
    } else {
        CR_TRY(take_named(s, words, err));
        CR_TRY(cr_session_read(&s->session, CR_SESSION_SERVE, &s->words, err));
        CR_TRY(cr_serve_keys_check(&s->words, err));
    }
    if (s->models.num) return CR_OK;
    return cr_serve_models_add(&s->models, s->name ? s->name : s->session.folder, s->session.folder,
                               err);
}

/* ---- the command ---- */

/* A rank that keeps the others waiting in a round is given up after twice the time after which /health is 503. */
static cr_status open_rank(serve *s, cr_err *err)
{
    cr_session *session = &s->session;

    CR_TRY(cr_session_open(session, s->device, err));
    s->models.session = session;
    CR_TRY(cr_serve_models_open(&s->models, err));
    cr_world_set_deadline(session->world,
                          2 * s->options.stall_s + (session->rank ? FOLLOWER_WAITS_S : 0));
    return CR_OK;
}

static cr_status run_service(serve *s, cr_err *err)
{
    cr_serve_models *m = &s->models;
    const cr_serve_updates updates = {cr_serve_models_update, m};

    m->can_update = s->options.can_update;
    CR_TRY(cr_server_open(&s->options, &s->server, err));
    m->server = s->server;
    CR_TRY(write_port(s, err));
    if (!s->is_quiet) printf("listening on %s\n", cr_server_url(s->server));
    fflush(stdout);
    CR_TRY(open_rank(s, err));
    CR_TRY(cr_serve_models_begin(m, err));
    for (size_t i = 0; i < m->num; i++)
        printf("ready: %s, weights %.12s, %s, self-check %.12s\n", m->served[i]->name,
               m->served[i]->weights, m->served[i]->identity.dtype,
               m->served[i]->self_check.digest);
    fflush(stdout);
    CR_TRY(cr_server_run(s->server, &m->compute, &updates, err));
    return cr_scoring_end(m->scoring, err);
}

static cr_status run_rank(serve *s, cr_err *err)
{
    cr_server_block_signals();
    CR_TRY(cr_session_join(&s->session, err));
    if (s->session.rank == 0) return run_service(s, err);
    CR_TRY(open_rank(s, err));
    return cr_serve_models_follow(&s->models, err);
}

static int finish(serve *s, int code, const cr_err *err)
{
    bool is_broken =
        err->status != CR_OK && s->session.num_ranks > 1; /* cr_session_leave ends it */

    cr_server_close(s->server);
    if (!is_broken) cr_serve_models_close(&s->models);
    for (size_t i = 0; s->names && s->names[i]; i++)
        cr_free(s->names[i]);
    cr_free(s->names);
    cr_words_free(&s->words);
    return cr_session_leave(&s->session, &cr_command_serve, code, err);
}

static int run(int argc, char **argv)
{
    serve s = {.models.service = {.max_prompts = 1024, .max_samples = 128, .max_logprobs = 128},
               .options = {.http = cr_http_defaults,
                           .access_log = "-",
                           .max_queue = 1024,
                           .max_queue_tokens = 8 << 20,
                           .drain_s = 30,
                           .stall_s = 60,
                           .metrics_prefix = "croll_",
                           .version = CR_VERSION}};
    cr_http_options *h = &s.options.http;
    cr_serve_service *service = &s.models.service;
    cr_hosts_args hosts = {NULL, NULL};
    const cr_option options[] = {
        {"listen", CR_OPT_STRING, &h->listen, "ADDRESS",
         "HOST:PORT (default 127.0.0.1:8000; port 0: any free one) or unix:PATH"},
        {"keys", CR_OPT_STRING, &s.options.keys, "FILE",
         "a line a user: NAME KEY SCOPES [REQUESTS/S [WEIGHT]]; scopes score,generate,admin"},
        {"allow-updates", CR_OPT_FLAG, &s.options.can_update, NULL,
         "users with the scope admin may replace weights while it runs; else they never change"},
        {"no-auth", CR_OPT_FLAG, &s.options.needs_no_keys, NULL,
         "no keys, although other machines reach the address"},
        {"tls-cert", CR_OPT_STRING, &h->tls_cert, "FILE",
         "HTTPS with this certificate chain (PEM)"},
        {"tls-key", CR_OPT_STRING, &h->tls_key, "FILE", "and its key"},
        {"tls-ca", CR_OPT_STRING, &h->tls_ca, "FILE",
         "clients must show a certificate of this authority; its CN is the user's name"},
        {"role", CR_OPT_STRING, &s.role, "NAME",
         "block of FILE: reference (default), teacher, actor_infer or rewards.DOMAIN"},
        {"served-model-name", CR_OPT_STRING, &s.name, "NAME", "name in requests (default: MODEL)"},
        {"max-queue", CR_OPT_INT, &s.options.max_queue, "N",
         "requests that may wait, more get 503 (default 1024)"},
        {"max-queue-tokens", CR_OPT_INT, &s.options.max_queue_tokens, "N",
         "and their tokens, as estimated by the size of a request (default 8388608)"},
        {"drain-s", CR_OPT_DOUBLE, &s.options.drain_s, "SECONDS",
         "that SIGTERM gives to requests that were taken (default 30)"},
        {"stall-s", CR_OPT_DOUBLE, &s.options.stall_s, "SECONDS",
         "after which work that does not move makes /health 503 (default 60)"},
        {"max-logprobs", CR_OPT_INT, &service->max_logprobs, "K",
         "most log-probs a place that a request may ask for (default 128)"},
        {"score-only", CR_OPT_FLAG, &service->only_scores, NULL,
         "at most one token is sampled; without the engine's copy of the weights"},
        {"allow-random", CR_OPT_FLAG, &s.models.may_be_random, NULL,
         "also a model that gives nearly equal chances to all tokens"},
        {"clamp-max-tokens", CR_OPT_FLAG, &service->clamps_max_tokens, NULL,
         "max_tokens beyond the context is cut instead of refused"},
        {"max-chat-tokens", CR_OPT_INT, &service->max_chat_tokens, "N",
         "of a chat without max_tokens (default: what is left of the context)"},
        {"max-connections", CR_OPT_INT, &h->max_connections, "N",
         "at the same time (default 4096)"},
        {"half-close", CR_OPT_FLAG, &h->is_half_close_fine, NULL,
         "a client that has closed its sending side still waits for the answer"},
        {"access-log", CR_OPT_STRING, &s.options.access_log, "FILE",
         "a JSON line a request; -: stderr (default); none"},
        {"metrics-prefix", CR_OPT_STRING, &s.options.metrics_prefix, "TEXT",
         "of names at /metrics (default croll_)"},
        {"quiet", CR_OPT_FLAG, &s.is_quiet, NULL,
         "no notes on FILE, no line that says where it listens"},
        {"port-file", CR_OPT_STRING, &s.port_file, "FILE", "gets the number of the port"},
        {"device", CR_OPT_STRING, &s.device, "NAME",
         "cpu, cuda (never run on a GPU: docs/cuda.md); default: device of FILE, cpu of a MODEL"},
        CR_HOSTS_OPTIONS(hosts),
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;
    int code = 0;

    h->listen = "127.0.0.1:8000";
    if (cr_args_parse(&cr_command_serve, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help && read_words(&s, &words, &err) == CR_OK && check(&s, &err) == CR_OK &&
        !cr_session_launch(&s.session, &cr_command_serve, &hosts, argc, argv, &code)) {
        cr_note(run_rank(&s, &err));
        if (s.session.rank == 0) code = cr_exit_code(CR_ESIGNAL);
    }
    code = finish(&s, code, &err);
    cr_words_free(&words);
    return code;
}

const cr_command cr_command_serve = {
    "serve",
    "serve MODEL|NAME=MODEL ..|FILE [key=value ..]",
    "A model, several by name, or the reference of a run's YAML file, as a service over HTTP, for "
    "clients of "
    "OpenAI, vLLM and SGLang: log-probs of prompts, "
    "samples, chats, streams. Ends with SIGTERM or Ctrl-C.",
    "croll serve output/quickstart/sft_model --listen 127.0.0.1:8000 model_args.dtype=fp32",
    run,
};
