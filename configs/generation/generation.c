/* generation.c -- generating_args of a role, domain_generating_args, tag_to_template. */
#include "configs/bind.h"
#include "kernels/sampling_ranges.h"

#include <string.h>

static int32_t *ids_of(const cr_node *g, const char *key, size_t *num)
{
    const cr_node *n = cr_node_get(g, key);
    int32_t *out;

    *num = 0;
    if (!n || n->kind == CR_NODE_NULL) return NULL;
    if (n->kind == CR_NODE_INT) {
        out = CR_NEW_ARRAY(int32_t, 1);
        out[(*num)++] = (int32_t)n->integer;
        return out;
    }
    out = CR_NEW_ARRAY(int32_t, n->num + 1);
    for (size_t i = 0; i < n->num; i++)
        if (n->items[i].value->kind == CR_NODE_INT)
            out[(*num)++] = (int32_t)n->items[i].value->integer;
    return out;
}

void cri_bind_generating(const cr_node *g, cr_generating_args *out, cr_diagnostics *d)
{
    out->temperature = cri_flag_of(g, "do_sample") ? cri_real_of(g, "temperature") : 0;
    out->top_p = cri_real_of(g, "top_p");
    out->min_p = cri_real_of(g, "min_p");
    out->top_k = cri_int_of(g, "top_k");
    out->repetition_penalty = cri_real_of(g, "repetition_penalty");
    out->max_new_tokens = cri_int_of(g, "max_new_tokens");
    out->num_return_sequences = cri_int_of(g, "num_return_sequences");
    out->stop_strings = cri_texts_of(g, "stop_strings", &out->num_stop_strings);
    out->include_stop_str_in_output = cri_flag_of(g, "include_stop_str_in_output");
    out->stop_token_ids = ids_of(g, "stop_token_ids", &out->num_stop_token_ids);
    if (out->temperature != 0 && !((float)out->temperature >= CR_MIN_TEMPERATURE))
        cr_diagnose(d, CR_ERROR, cr_node_get(g, "temperature")->place,
                    "temperature: 0 (greedy) or a number of at least %g is expected, not %g",
                    (double)CR_MIN_TEMPERATURE, out->temperature);
}

void cri_generating_free(cr_generating_args *g)
{
    for (size_t i = 0; i < g->num_stop_strings; i++)
        cr_free(g->stop_strings[i]);
    cr_free(g->stop_strings);
    cr_free(g->stop_token_ids);
}

/* ---- domain_generating_args ---- */

const cr_generating_args *cr_worker_generating(const cr_worker_config *w, int domain)
{
    for (size_t i = 0; i < w->num_domains; i++)
        if ((int)w->domains[i].domain == domain) return &w->domains[i].args;
    return &w->generating;
}

/* What the block of a domain does not say is as in the role's generating_args. */
static void inherit(cr_config *c, cr_node *to, const cr_node *from)
{
    for (size_t i = 0; i < from->num; i++)
        if (!cri_is_in_file(to, from->items[i].key))
            cr_node_set(&c->yaml, to, from->items[i].key, (cr_place){c->path, 0, 0},
                        from->items[i].value);
}

/* Lengths and numbers of samples are the same for all domains. */
static void refuse_lengths(const cr_node *block, const cr_node *all, const char *role,
                           const char *domain, cr_diagnostics *d)
{
    static const char *const of_all[] = {"max_new_tokens", "num_return_sequences"};

    for (size_t i = 0; i < CR_COUNT(of_all); i++)
        if (cri_is_in_file(block, of_all[i]) &&
            cri_int_of(block, of_all[i]) != cri_int_of(all, of_all[i]))
            cr_diagnose(d, CR_ERROR, cr_node_get(block, of_all[i])->place,
                        "%s.domain_generating_args.%s.%s: one for all domains (leave it out)", role,
                        domain, of_all[i]);
}

void cri_bind_domains(cr_config *c, cr_node *root, cr_worker_config *w, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, w->name), *all = cr_node_get(block, "generating_args"),
            *map = cr_node_get(block, "domain_generating_args");

    if (!map || map->kind != CR_NODE_MAP || !all || all->kind != CR_NODE_MAP) return;
    w->domains = CR_NEW_ARRAY(cr_domain_generating, map->num + 1);
    for (size_t i = 0; i < map->num; i++) {
        const struct cr_item *item = &map->items[i];
        const cr_reward_config *r = cr_config_find_reward(c, item->key);
        if (item->value->kind != CR_NODE_MAP) continue; /* the schema has refused it */
        if (!r) {
            cr_diagnose(d, CR_ERROR, item->place,
                        "%s.domain_generating_args: rewards has no domain %.60s", w->name,
                        item->key);
            continue;
        }
        refuse_lengths(item->value, all, w->name, item->key, d);
        inherit(c, item->value, all);
        w->domains[w->num_domains].domain = (size_t)(r - c->rewards);
        cri_bind_generating(item->value, &w->domains[w->num_domains++].args, d);
    }
}

/* The penalty that its samples' log-probs have. */
static double penalty_of(const cr_generating_args *g)
{
    return g->temperature != 0 ? g->repetition_penalty : 1;
}

void cri_check_domains(const cr_config *c, cr_diagnostics *d)
{
    const cr_worker_config *w = &c->infer;
    const double penalty = penalty_of(&w->generating);

    if (c->logprobs_mode == CR_LOGPROBS_RAW) return;
    for (size_t i = 0; i < w->num_domains; i++)
        if (penalty_of(&w->domains[i].args) < penalty || penalty_of(&w->domains[i].args) > penalty)
            cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_infer.domain_generating_args"),
                        "actor_infer.domain_generating_args.%s: a repetition_penalty is of all "
                        "domains, or of none: log-probs of a batch have one (greedy samples have "
                        "none; logprobs_mode: raw has none at all)",
                        c->rewards[w->domains[i].domain].domain);
}

/* ---- tag_to_template ---- */

void cri_bind_templates(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    const cr_node *map = cr_node_get(root, "tag_to_template");

    if (!map || map->kind != CR_NODE_MAP || map->num == 0) return;
    if (c->train.data.prompt && (!c->has_validation || c->validation.data.prompt)) {
        cr_diagnose_unused(d, map->place, "tag_to_template",
                           "data_args.prompt is ready text, without a template");
        return;
    }
    c->templates.of_tag = CR_NEW_ARRAY(struct cr_tag_template, map->num);
    for (size_t i = 0; i < map->num; i++) {
        const char *tag = map->items[i].key;
        c->templates.of_tag[c->templates.num_tags++] =
            (struct cr_tag_template){cr_strdup(tag), cri_text_of(map, tag)};
    }
}
