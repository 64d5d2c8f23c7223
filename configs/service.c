/* service.c -- a service in place of a role's ranks: its keys, and what they exclude. */
#include "configs/bind.h"

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

bool cri_bind_service(const cr_node *block, cr_worker_config *w, cr_diagnostics *d)
{
    const cr_node *n = cr_node_get(block, "service");
    cr_service_keys *s = &w->service;

    if (!n || n->kind != CR_NODE_MAP) return false;
    *s = (cr_service_keys){.url = cri_text_of(n, "url"),
                           .model = cri_text_of(n, "model"),
                           .key_file = cri_text_of(n, "key_file"),
                           .key_env = cri_text_of(n, "key_env"),
                           .ca_file = cri_text_of(n, "ca_file"),
                           .expect_weights = cri_text_of(n, "expect_weights"),
                           .timeout = cri_real_of(n, "timeout"),
                           .connections = cri_int_of(n, "connections")};
    if (strcmp(w->name, "reference") != 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "%s.service: only the reference may be a service (leave it out)", w->name);
    else if (!s->url || !is_url(s->url))
        cr_diagnose(d, CR_ERROR, n->place,
                    "%s.service: a URL is expected (http://HOST:PORT, https://.. or unix:FILE)",
                    w->name);
    if (s->key_file && s->key_env)
        cr_diagnose(d, CR_ERROR, cr_node_get(n, "key_env")->place,
                    "%s.service: key_file and key_env exclude each other", w->name);
    refuse_keys_of_ranks(block, w->name, d);
    return true;
}

void cri_check_service(const cr_config *c, cr_diagnostics *d)
{
    const cr_generating_args *g = &c->infer.generating;
    bool is_raw = g->temperature == 0 || c->logprobs_mode == CR_LOGPROBS_RAW;

    if (!c->reference.service.url || !c->reference.is_needed || is_raw) return;
    if (g->temperature == 1 && g->top_p >= 1 && g->top_k <= 0 && g->min_p <= 0 &&
        g->repetition_penalty == 1)
        return;
    cr_diagnose(d, CR_ERROR, cri_place_of(c, "reference.service"),
                "reference.service: a service gives log-probs of the model's softmax, and "
                "actor_infer samples with a temperature, penalty or filter (set logprobs_mode: "
                "raw, or temperature 1 without top_p, top_k, min_p and repetition_penalty)");
}
