/* start.c -- see start.h. */
#include "serve/models/start.h"
#include "base/hub.h"
#include "mesh/mesh.h"
#include "serve/models/models.h"
#include "serve/models/worker_keys.h"

#include <stdio.h>
#include <string.h>

#define FOLLOWER_WAITS_S 5 /* longer than rank 0, which says what has happened */

typedef struct serve {
    cr_session session;
    const cr_session_call *call;
    const cr_serve_args *args;
    cr_server *server;
    cr_serve_models models;
    char **names; /* owned, of words NAME=MODEL and of adapters; NULL-terminated */
    size_t num_names;
    cr_words words;    /* without them: the first model, and keys */
    cr_words adapters; /* folders */
} serve;

/* ---- options ---- */

static cr_status write_port(const serve *s, cr_err *err)
{
    const char *port = strrchr(cr_server_url(s->server), ':') + 1;

    if (!s->args->port_file) return CR_OK;
    if (strncmp(s->args->options.http.listen, "unix:", 5) == 0)
        return cr_fail(err, CR_EUSAGE, "--port-file: a unix socket has no port");
    return cr_file_write_atomic(s->args->port_file, port, strlen(port), err);
}

static cr_status check(const serve *s, cr_err *err)
{
    const cr_server_options *o = &s->args->options;
    const cr_http_options *h = &o->http;

    if (!h->tls_cert != !h->tls_key)
        return cr_fail(err, CR_EUSAGE, "--tls-cert and --tls-key are needed together");
    if (h->tls_ca && !h->tls_cert)
        return cr_fail(err, CR_EUSAGE, "--tls-ca needs --tls-cert and --tls-key");
    if (s->adapters.num && o->can_update)
        return cr_fail(err, CR_EUSAGE,
                       "--allow-updates replaces whole models: it is not there with --adapter");
    if (s->models.service.max_logprobs < 0)
        return cr_fail(err, CR_EUSAGE, "--max-logprobs must not be negative");
    if (h->max_connections < 1 || h->max_connections > 1000000)
        return cr_fail(err, CR_EUSAGE, "--max-connections must be from 1 to 1000000");
    if (s->args->options.max_queue < 1 || s->args->options.max_queue_tokens < 1)
        return cr_fail(err, CR_EUSAGE, "--max-queue and --max-queue-tokens must be at least 1");
    if (!(s->args->options.drain_s >= 0 && s->args->options.drain_s < 1e6 &&
          s->args->options.stall_s > 0))
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

/* What is before the '=' of a word. */
static const char *take_name(serve *s, const char *word, const char *equals)
{
    return s->names[s->num_names++] = cr_strndup(word, (size_t)(equals - word));
}

/* Words NAME=MODEL to models; the first one's folder stays for the keys. */
static cr_status take_named(serve *s, const cr_words *words, cr_err *err)
{
    s->words.word = CR_NEW_ARRAY(const char *, words->num + 1);
    for (size_t i = 0; i < words->num; i++) {
        const char *word = words->word[i], *equals = find_named(word);
        if (equals) {
            if (s->models.num == 0) s->words.word[s->words.num++] = equals + 1;
            CR_TRY(cr_serve_models_add(&s->models, take_name(s, word, equals), equals + 1, err));
        } else {
            s->words.word[s->words.num++] = word;
        }
    }
    if (s->models.num == 0) return CR_OK;
    if (s->words.word[0] != s->models.served[0]->folder)
        return cr_fail(err, CR_EUSAGE, "NAME=MODEL comes before all else, and not beside a MODEL");
    if (s->args->name)
        return cr_fail(err, CR_EUSAGE, "--served-model-name is for one MODEL without NAME=");
    return CR_OK;
}

/* Words [NAME=]DIR, where a DIR that is there may have a '=', too. */
static cr_status take_adapters(serve *s, cr_err *err)
{
    const cr_words *words = &s->args->adapters;

    if (words->num && s->models.num > 1)
        return cr_fail(err, CR_EUSAGE, "--adapter is for one MODEL, and there are %zu",
                       s->models.num);
    for (size_t i = 0; i < words->num; i++) {
        const char *word = words->word[i], *equals = strchr(word, '='), *name = word;
        if (equals && equals > word && !cr_file_exists(word)) {
            name = take_name(s, word, equals);
            word = equals + 1;
        }
        cr_words_add(&s->adapters, word);
        CR_TRY(cr_serve_models_adapt(&s->models, name, word, err));
    }
    cr_session_adapt(&s->session, s->adapters.word, s->adapters.num);
    return CR_OK;
}

/* MODEL or NAME=MODEL .. with worker keys, or FILE with keys of a run. */
static cr_status read_words(serve *s, const cr_words *words, cr_err *err)
{
    bool is_file = words->num > 0 && cr_file_exists(words->word[0]);
    const char *role = s->args->role ? s->args->role : "reference";

    if (!is_file && s->args->role)
        return cr_fail(err, CR_EUSAGE, "--role is for a run's FILE, and %s is none",
                       words->num ? words->word[0] : "nothing");
    if (s->args->role && strcmp(s->args->role, "reference") != 0 &&
        strcmp(s->args->role, "teacher") != 0 && strcmp(s->args->role, "actor_infer") != 0 &&
        strncmp(s->args->role, CR_ROLE_REWARDS, strlen(CR_ROLE_REWARDS)) != 0)
        return cr_fail(err, CR_EUSAGE,
                       "--role is reference, teacher, actor_infer or rewards.DOMAIN, not %s",
                       s->args->role);
    if (is_file && s->args->adapters.num)
        return cr_fail(err, CR_EUSAGE, "--adapter is for a MODEL, not for a run's FILE");
    s->names = CR_NEW_ARRAY(char *, words->num + s->args->adapters.num + 1);
    if (is_file) {
        CR_TRY(cr_session_read_role(&s->session, CR_SESSION_SERVE, role, words, s->args->is_quiet,
                                    err));
    } else {
        CR_TRY(take_named(s, words, err));
        CR_TRY(cr_session_read(&s->session, CR_SESSION_SERVE, &s->words, err));
        CR_TRY(cr_serve_keys_check(&s->words, err));
    }
    if (s->models.num == 0)
        CR_TRY(cr_serve_models_add(&s->models, s->args->name ? s->args->name : s->session.folder,
                                   s->session.folder, err));
    return take_adapters(s, err);
}

/* ---- the command ---- */

/* A rank that keeps the others waiting in a round is given up after twice the time after which /health is 503. */
static cr_status open_rank(serve *s, cr_err *err)
{
    cr_session *session = &s->session;

    CR_TRY(cr_session_open(session, s->call->device, err));
    s->models.session = session;
    CR_TRY(cr_serve_models_open(&s->models, err));
    cr_world_set_deadline(session->world,
                          2 * s->args->options.stall_s + (session->rank ? FOLLOWER_WAITS_S : 0));
    return CR_OK;
}

static cr_status run_service(serve *s, cr_err *err)
{
    cr_serve_models *m = &s->models;
    const cr_serve_updates updates = {cr_serve_models_update, m};

    m->can_update = s->args->options.can_update;
    CR_TRY(cr_server_open(&s->args->options, &s->server, err));
    m->server = s->server;
    CR_TRY(write_port(s, err));
    if (!s->args->is_quiet) printf("listening on %s\n", cr_server_url(s->server));
    fflush(stdout);
    CR_TRY(open_rank(s, err));
    CR_TRY(cr_serve_models_begin(m, err));
    for (size_t i = 0; i < m->num; i++)
        for (size_t k = 0; k < m->served[i]->num_names; k++) {
            const cr_serve_model *x = &m->served[i]->names[k].identity;
            printf("ready: %s, weights %.12s, %s, self-check %.12s\n", x->name, x->weights_sha256,
                   x->dtype, x->self_check);
        }
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
    cr_words_free(&s->adapters);
    return cr_session_leave(&s->session, s->call->command, code, err);
}

int cr_serve_run(const cr_session_call *call, const cr_serve_args *args)
{
    serve s = {.call = call,
               .args = args,
               .models = {.service = args->service, .may_be_random = args->may_be_random}};
    cr_err err = {0};
    int code = 0;

    if (read_words(&s, &call->words, &err) == CR_OK && check(&s, &err) == CR_OK &&
        !cr_session_launch(&s.session, call, &code)) {
        cr_note(run_rank(&s, &err));
        if (s.session.rank == 0) code = cr_exit_code(CR_ESIGNAL);
    }
    return finish(&s, code, &err);
}
