/* loss.c -- the policy loss, its correction and micro-batches by tokens (see bind.h). */
#include "configs/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_range(const cr_node *map, const char *low, const char *high, cr_diagnostics *d)
{
    if (cri_real_of(map, low) > cri_real_of(map, high))
        cr_diagnose(d, CR_ERROR, cr_node_get(map, low)->place, "%s is %g, above %s %g", low,
                    cri_real_of(map, low), high, cri_real_of(map, high));
}

/* ---- ActorWorker and ActorPGWorker ---- */

static bool is_class(const char *path, const char *name)
{
    const char *last = strrchr(path, '.');

    return strcmp(last ? last + 1 : path, name) == 0;
}

/* ROLL's ActorWorker is ppo and does not read pg_variant; its ActorPGWorker has no default. */
static void check_class(const cr_node *block, bool has_variant, cr_diagnostics *d)
{
    const cr_node *cls = cr_node_get(block, "worker_cls");

    if (cls->kind != CR_NODE_TEXT) return;
    if (is_class(cls->text, "ActorPGWorker") && !has_variant)
        cr_diagnose(d, CR_ERROR, cls->place, "actor_train: ActorPGWorker needs pg_variant");
    if (is_class(cls->text, "ActorWorker") && has_variant)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "pg_variant")->place,
                    "actor_train: pg_variant is of ActorPGWorker, and worker_cls is ActorWorker "
                    "(leave one of them out)");
}

static bool is_default(const struct cr_item *item)
{
    const char *standard = cri_find_key("worker", item->key)->standard;

    if (!standard) return item->value->kind == CR_NODE_NULL;
    return item->value->kind == CR_NODE_BOOL ? !item->value->flag
                                             : item->value->real == strtod(standard, NULL);
}

/* Which variant reads a key of a worker block; CR_NUM_VARIANTS: it is not a coefficient. */
static cr_variant reader_of(const char *key)
{
    static const char *const prefixes[CR_NUM_VARIANTS] = {
        [CR_PG_TIS] = "tis_",       [CR_PG_TOPR] = "topr_",    [CR_PG_CISPO] = "cispo_",
        [CR_PG_KIMI15] = "kimi15_", [CR_PG_DPPO_TV] = "dppo_", [CR_PG_SAPO] = "sapo_"};
    cr_variant v = CR_PG_PPO;

    while (v < CR_NUM_VARIANTS &&
           !(prefixes[v] && strncmp(key, prefixes[v], strlen(prefixes[v])) == 0))
        v++;
    return v;
}

/* Coefficients of a variant that does not train. */
static void note_unused(const cr_node *block, cr_variant variant, cr_diagnostics *d)
{
    for (size_t i = 0; i < block->num; i++) {
        const struct cr_item *item = &block->items[i];
        cr_variant reader = reader_of(item->key);
        if (reader != variant && reader != CR_NUM_VARIANTS && !is_default(item))
            cr_diagnose_unused(d, item->place, item->key, "pg_variant is another one");
    }
}

void cri_note_loss(const cr_node *block, const char *role, cr_diagnostics *d)
{
    for (size_t i = 0; i < block->num; i++) {
        const struct cr_item *item = &block->items[i];
        char dotted[120];
        if (reader_of(item->key) == CR_NUM_VARIANTS && strcmp(item->key, "pg_variant") != 0)
            continue;
        snprintf(dotted, sizeof dotted, "%.40s.%.70s", role, item->key);
        if (!is_default(item))
            cr_diagnose_unused(d, item->place, dotted,
                               "only actor_train of rlvr has a policy loss");
    }
}

static void bind_variant(const cr_node *block, cr_loss_config *l, cr_diagnostics *d)
{
    bool has_variant = cri_is_given(block, "pg_variant");

    if (has_variant) l->pg_variant = (cr_variant)(cri_choice_of("worker", block, "pg_variant") - 1);
    l->topr_positive_weight = cri_real_of(block, "topr_positive_weight");
    l->topr_negative_weight = cri_real_of(block, "topr_negative_weight");
    l->tis_lower_bound = cri_real_of(block, "tis_lower_bound");
    l->tis_upper_bound = cri_real_of(block, "tis_upper_bound");
    l->cispo_epsilon_low = cri_real_of(block, "cispo_epsilon_low");
    l->cispo_epsilon_high = cri_real_of(block, "cispo_epsilon_high");
    l->cispo_use_unified_mask = cri_flag_of(block, "cispo_use_unified_mask");
    l->kimi15_tau = cri_real_of(block, "kimi15_tau");
    l->dppo_mask_low = cri_real_of(block, "dppo_mask_low");
    l->dppo_mask_high = cri_real_of(block, "dppo_mask_high");
    l->dppo_clip_ratio_c = cri_real_of(block, "dppo_clip_ratio_c");
    l->sapo_temperature_pos = cri_real_of(block, "sapo_temperature_pos");
    l->sapo_temperature_neg = cri_real_of(block, "sapo_temperature_neg");
    check_class(block, has_variant, d);
    note_unused(block, l->pg_variant, d);
    check_range(block, "tis_lower_bound", "tis_upper_bound", d);
}

void cri_bind_loss(const cr_node *root, cr_loss_config *l, cr_diagnostics *d)
{
    const cr_node *block = cr_node_get(root, "actor_train");

    l->is_sequence_ratio = cri_choice_of("rlvr", root, "importance_sampling") == CR_RATIO_SEQ;
    l->loss_agg_mode = (cr_agg)cri_choice_of("rlvr", root, "loss_agg_mode");
    l->pg_clip = cri_real_of(root, "pg_clip");
    l->pg_clip_low = cri_real_of(root, "pg_clip_low");
    l->pg_clip_high = cri_real_of(root, "pg_clip_high");
    l->use_pg_clip_range = cri_flag_of(root, "use_pg_clip_range");
    l->dual_clip_loss = cri_flag_of(root, "dual_clip_loss");
    l->use_kl_loss = cri_flag_of(root, "use_kl_loss");
    l->kl_loss_coef = cri_real_of(root, "kl_loss_coef");
    l->rl_loss_coef = cri_real_of(root, "rl_loss_coef");
    l->entropy_loss_coef = cri_real_of(root, "entropy_loss_coef");
    if (block && block->kind == CR_NODE_MAP) bind_variant(block, l, d);
}

/* ---- train_infer_correction ---- */

void cri_bind_correction(cr_config *c, cr_node *root, cr_correction_config *k, cr_diagnostics *d)
{
    cr_node *block = cri_block_of(c, root, "train_infer_correction", "correction", d),
            *weight = cri_block_of(c, block, "is_weight", "is_weight", d),
            *filters = cr_node_get(block, "filters");

    k->has_weight = cri_flag_of(weight, "enabled");
    k->weight_type = (cr_grain)cri_choice_of("is_weight", weight, "weight_type");
    k->upper_bound = cri_real_of(weight, "upper_bound");
    for (size_t i = 0; filters->kind == CR_NODE_LIST && i < filters->num; i++) {
        const cr_node *filter = filters->items[i].value;
        if (!cri_flag_of(filter, "enabled")) continue;
        if (k->num_filters == CR_COUNT(k->filters)) {
            cr_diagnose(d, CR_ERROR, filter->place, "filters: at most %zu are possible",
                        CR_COUNT(k->filters));
            return;
        }
        check_range(filter, "ratio_low", "ratio_high", d);
        check_range(filter, "diff_low", "diff_high", d);
        k->filters[k->num_filters++] =
            (struct cr_correction_filter){true,
                                          cri_flag_of(filter, "ratio_enabled"),
                                          cri_flag_of(filter, "diff_enabled"),
                                          (cr_grain)cri_choice_of("filter", filter, "agg_type"),
                                          cri_real_of(filter, "ratio_low"),
                                          cri_real_of(filter, "ratio_high"),
                                          cri_real_of(filter, "diff_low"),
                                          cri_real_of(filter, "diff_high")};
    }
}

/* ---- the whole loss ---- */

void cri_check_loss(const cr_config *c, cr_diagnostics *d)
{
    const cr_algorithm *a = &c->algorithm;

    if (a->loss.is_sequence_ratio && a->loss.pg_variant != CR_PG_PPO)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "importance_sampling"),
                    "importance_sampling: seq goes with the ppo loss; the ratios of this "
                    "pg_variant are of tokens");
    if (a->critic_warmup > 0 && !c->critic.is_needed)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "critic_warmup"),
                    "actor_train makes no updates in the first %lld steps, as in ROLL, although "
                    "there is no critic to warm up (critic_warmup)",
                    (long long)a->critic_warmup);
}

/* ---- micro-batches by tokens ---- */

static int64_t bind_tokens(const cr_node *block, const char *flag, const char *key,
                           const char *role, cr_diagnostics *d)
{
    int64_t tokens = cri_int_of(block, key);

    if (!cri_flag_of(block, flag)) {
        if (cri_is_in_file(block, key) && tokens > 0)
            cr_diagnose(d, CR_NOTE, cr_node_get(block, key)->place, "%s has no effect without %s",
                        key, flag);
        return 0;
    }
    if (tokens == 0)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, flag)->place,
                    "%s.%s needs %s (croll plan --memory names the largest that fits)", role, flag,
                    key);
    return tokens;
}

void cri_bind_batching(const cr_node *block, cr_worker_config *w, cr_diagnostics *d)
{
    w->batching.train_tokens = bind_tokens(block, "use_dynamic_batching_in_train",
                                           "max_tokens_per_microbatch_in_train", w->name, d);
    w->batching.infer_tokens = bind_tokens(block, "use_dynamic_batching_in_infer",
                                           "max_tokens_per_microbatch_in_infer", w->name, d);
}

void cri_check_batching(const cr_config *c, const cr_worker_config *w, cr_diagnostics *d)
{
    const struct {
        int64_t tokens;
        const char *key;
    } limits[] = {{w->batching.train_tokens, "max_tokens_per_microbatch_in_train"},
                  {w->batching.infer_tokens, "max_tokens_per_microbatch_in_infer"}};

    for (size_t i = 0; i < CR_COUNT(limits); i++)
        if (limits[i].tokens > 0 && limits[i].tokens < c->sequence_length)
            cr_diagnose(d, CR_ERROR, cri_place_of(c, w->name),
                        "%s.%s is %lld, and a sample may have sequence_length %lld tokens: it must "
                        "fit into a micro-batch",
                        w->name, limits[i].key, (long long)limits[i].tokens,
                        (long long)c->sequence_length);
}
