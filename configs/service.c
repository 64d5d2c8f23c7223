/* service.c -- services that a run uses: their keys, and, as its reference or teacher, what they exclude. */
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

static void refuse_key(const cr_node *block, const char *name, const char *key, cr_diagnostics *d)
{
    cr_diagnose(d, CR_ERROR, cr_node_get(block, key)->place,
                "%s.%s: the service has the model and its devices (leave this key out, or service)",
                name, key);
}

/* Keys of ranks: those without a default, and those with another value than it. */
static void refuse_keys_of_ranks(const cr_node *block, const char *name, cr_diagnostics *d)
{
    static const char *const of_ranks[] = {"device_mapping", "model_args", "strategy_args",
                                           "max_tokens_per_microbatch_in_infer"};
    const cr_node *envs = cr_node_get(block, "system_envs");

    for (size_t i = 0; i < CR_COUNT(of_ranks); i++)
        if (cri_is_in_file(block, of_ranks[i])) refuse_key(block, name, of_ranks[i], d);
    if (cri_int_of(block, "infer_batch_size") != 16) refuse_key(block, name, "infer_batch_size", d);
    if (cri_flag_of(block, "use_dynamic_batching_in_infer"))
        refuse_key(block, name, "use_dynamic_batching_in_infer", d);
    if (envs && envs->kind == CR_NODE_MAP && envs->num) refuse_key(block, name, "system_envs", d);
}

/* Does it begin as the URL of a service? The rest is looked at where it is used. */
static bool is_url(const char *text)
{
    return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0 ||
           strncmp(text, "unix:", 5) == 0;
}

void cri_check_service_keys(const cr_node *n, const cr_service_keys *s, const char *where,
                            cr_diagnostics *d)
{
    const char *host = s->url ? strstr(s->url, "://") : NULL;

    if (!s->url || !is_url(s->url))
        cr_diagnose(d, CR_ERROR, n->place,
                    "%s: a URL is expected (http://HOST:PORT, https://.. or unix:FILE)", where);
    else if (host && memchr(host, '@', strcspn(host + 3, "/") + 3))
        cr_diagnose(d, CR_ERROR, n->place,
                    "%s: a name or a password in a URL would be seen by everybody (key_file, or "
                    "key_env)",
                    where);
    else if (strstr(s->url, "/completions"))
        cr_diagnose(d, CR_ERROR, n->place,
                    "%s: the URL before /chat/completions is expected (https://HOST/v1)", where);
    if (s->key_file && s->key_env)
        cr_diagnose(d, CR_ERROR, cr_node_get(n, "key_env")->place,
                    "%s: key_file and key_env exclude each other", where);
}

/* Is it a role that gives log-probs? */
static bool is_scored(const char *name)
{
    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (cr_role_kinds[r].task == CR_TASK_SCORE && strcmp(cr_role_kinds[r].name, name) == 0)
            return true;
    return false;
}

bool cri_bind_service(const cr_node *block, cr_worker_config *w, cr_diagnostics *d)
{
    const cr_node *n = cr_node_get(block, "service");
    cr_service_keys *s = &w->service;
    char where[64];

    if (!n || n->kind != CR_NODE_MAP) return false;
    snprintf(where, sizeof where, "%s.service", w->name);
    if (!is_scored(w->name)) { /* the rest of the block is checked all the same */
        cr_diagnose(d, CR_ERROR, n->place,
                    "%s: only a reference or a teacher may be a service (leave it out)", where);
        return false;
    }
    *s = (cr_service_keys){.url = cri_text_of(n, "url"),
                           .model = cri_text_of(n, "model"),
                           .key_file = cri_text_of(n, "key_file"),
                           .key_env = cri_text_of(n, "key_env"),
                           .ca_file = cri_text_of(n, "ca_file"),
                           .expect_weights = cri_text_of(n, "expect_weights"),
                           .timeout = cri_real_of(n, "timeout"),
                           .connections = cri_int_of(n, "connections")};
    cri_check_service_keys(n, s, where, d);
    refuse_keys_of_ranks(block, w->name, d);
    return true;
}

/* Are log-probs of these samples the model's softmax? */
static bool is_softmax(const cr_generating_args *g)
{
    return g->temperature == 0 || (g->temperature == 1 && g->top_p >= 1 && g->top_k <= 0 &&
                                   g->min_p <= 0 && g->repetition_penalty == 1);
}

void cri_check_service(cr_config *c, cr_diagnostics *d)
{
    bool is_raw = is_softmax(&c->infer.generating);

    for (size_t i = 0; i < c->infer.num_domains; i++)
        is_raw &= is_softmax(&c->infer.domains[i].args);
    if (is_raw || c->logprobs_mode == CR_LOGPROBS_RAW) return;
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = cr_role_worker((cr_role)r, c);
        char where[64];
        if (!w->service.url || !w->is_needed || !is_scored(w->name)) continue;
        snprintf(where, sizeof where, "%s.service", w->name);
        cr_diagnose(d, CR_ERROR, cri_place_of(c, where),
                    "%s: a service gives log-probs of the model's softmax, and "
                    "actor_infer samples with a temperature, penalty or filter (set logprobs_mode: "
                    "raw, or temperature 1 without top_p, top_k, min_p and repetition_penalty)",
                    where);
    }
}
