/* units.c -- from a tree and a policy to flat layouts (see units.h). */
#include "strategies/units.h"

#include <string.h>

typedef enum mark { MARK_NONE, MARK_UNIT, MARK_EXPERT } mark;

typedef struct builder {
    cr_model *model;
    const cr_wrap_policy *policy;
    cr_units *units;
    const char *const *classes; /* of the policy, or the model's */
    size_t num_classes;
    size_t *matched, *matched_experts, *matched_modules; /* how many modules each name marked */
    bool is_roll, is_nested;
    const cr_ep_layout *ep; /* NULL: none */
    const cr_param *misplaced, *mixed;
    mark *marks; /* of each module, parents before children */
    size_t at;   /* where a walk in that order is */
} builder;

/* ---- which modules ---- */

/* In float32, inside a module that is not: a unit, so that units have one dtype. */
static bool begins_fp32(const cr_module *m)
{
    const cr_module *up = m->parent;

    while (up && up->is_container)
        up = up->parent;
    return up && !m->is_container && m->is_fp32 && !up->is_fp32;
}

/* A tied pair is one storage that two modules use: it belongs to the root, which is always there. */
static bool is_tied_pair(const cr_module *m)
{
    for (size_t i = 0; i < m->num_params; i++)
        if (m->params[i].is_shared) return true;
    return false;
}

/* Without hooks of its own: A or B of an adapter, or an original. */
static bool is_of_parent(const cr_module *m)
{
    const cr_param *w = m->weight;

    return w && ((w->is_adapter && w->is_added) || w->copy_of);
}

/* "model.layers.*.mlp": a part "*" is any one part. */
static bool is_name_like(const char *name, const char *pattern)
{
    for (;;) {
        size_t n = strcspn(name, "."), k = strcspn(pattern, ".");
        if (!(k == 1 && *pattern == '*' && n) && (n != k || strncmp(name, pattern, n) != 0))
            return false;
        name += n;
        pattern += k;
        if (*name != *pattern) return false;
        if (!*name) return true;
        name++;
        pattern++;
    }
}

static bool is_listed_class(const char *const *classes, size_t num, const cr_module *m,
                            size_t *matched)
{
    bool is_listed = false;

    for (size_t i = 0; i < num && !m->is_container; i++)
        if (strcmp(classes[i], m->cls) == 0) {
            matched[i]++;
            is_listed = true;
        }
    return is_listed;
}

static bool is_listed_module(builder *b, const cr_module *m)
{
    bool is_listed = false;

    for (size_t i = 0; i < b->policy->num_modules && !m->is_container; i++)
        if (is_name_like(m->name, b->policy->modules[i])) {
            b->matched_modules[i]++;
            is_listed = true;
        }
    return is_listed;
}

/* Marks m and what is below it. Returns the elements that no unit has taken; *has_layer: a module
 * that one of the classes names is here. */
static int64_t mark_below(builder *b, const cr_module *m, bool *has_layer)
{
    const cr_wrap_policy *p = b->policy;
    size_t index = b->at++;
    bool is_below = false, is_layer, is_unit, is_expert;
    int64_t left = 0;

    for (size_t i = 0; i < m->num_params && !is_tied_pair(m); i++)
        left += m->params[i].tied_to ? 0 : m->params[i].num_elems;
    for (size_t i = 0; i < m->num_children; i++)
        left += mark_below(b, m->children[i], &is_below);
    is_expert = is_listed_class(p->expert_classes, p->num_expert_classes, m, b->matched_experts);
    is_layer = is_listed_class(b->classes, b->num_classes, m, b->matched) ||
               (b->is_roll && !p->should_wrap_embeddings && m->is_lookup && !is_tied_pair(m));
    is_unit = is_expert || is_listed_module(b, m) || (is_layer && (b->is_nested || !is_below)) ||
              (p->should_wrap_embeddings && m->is_lookup) ||
              (p->should_wrap_lm_output && m->is_lm_head) ||
              (p->min_elems > 0 && left >= p->min_elems) || (left > 0 && begins_fp32(m));
    *has_layer = *has_layer || is_below || is_layer;
    if (!is_unit || !m->parent || m->is_container || is_tied_pair(m) || is_of_parent(m))
        return left;
    b->marks[index] = is_expert ? MARK_EXPERT : MARK_UNIT;
    return 0;
}

/* ---- layouts ---- */

static void flat_add(cr_flat *flat, cr_param *param)
{
    size_t n = flat->num_params;

    flat->params =
        cr_realloc(flat->params, n * sizeof *flat->params, (n + 1) * sizeof *flat->params);
    flat->offset =
        cr_realloc(flat->offset, n * sizeof *flat->offset, (n + 1) * sizeof *flat->offset);
    flat->params[n] = param;
    flat->offset[n] = flat->padded_elems;
    flat->num_params = n + 1;
    flat->num_elems += param->num_elems;
    flat->padded_elems += (param->num_elems + CR_FLAT_ALIGN - 1) / CR_FLAT_ALIGN * CR_FLAT_ALIGN;
}

static void flat_close(cr_flat *flat, int num_shards, cr_extent *first)
{
    int64_t cut = (int64_t)num_shards * CR_FLAT_ALIGN;

    flat->padded_elems = (flat->padded_elems + cut - 1) / cut * cut;
    flat->shard_elems = flat->padded_elems / num_shards;
    flat->first = *first;
    first->elems += flat->shard_elems;
    if (flat->is_fp32) first->fp32 += flat->shard_elems;
}

enum { NOWHERE = -1 }; /* of an expert of another rank */

static int64_t add_unit(cr_units *u, cr_module *m, bool is_expert, bool is_ep)
{
    u->unit = cr_realloc(u->unit, u->num * sizeof *u->unit, (u->num + 1) * sizeof *u->unit);
    u->unit[u->num] = (cr_unit){.module = m,
                                .name = cr_strdup(m->parent ? m->name : "root"),
                                .is_expert = is_expert,
                                .is_ep = is_ep,
                                .trained = {.is_fp32 = m->is_fp32},
                                .frozen = {.is_fp32 = m->is_fp32}};
    return (int64_t)u->num++;
}

static int owner_of(const builder *b, const cr_module *m)
{
    return (int)(m->expert * b->ep->num_ranks / b->model->config.num_experts);
}

/* An expert or a list of them; a dense MLP may have the experts' class. */
static bool has_experts(const cr_module *m)
{
    return m->expert >= 0 || (m->num_children && m->children[0]->expert >= 0);
}

/* The unit of a module of expert_classes. */
static int64_t add_ep_unit(builder *b, cr_module *m)
{
    if (m->expert >= 0 && owner_of(b, m) != b->ep->rank) return NOWHERE;
    return add_unit(b->units, m, true, /*is_ep=*/true);
}

/* Of a module below an expert-parallel list of experts. */
static int64_t unit_in_list(const builder *b, const cr_module *m, int64_t unit)
{
    if (unit < 0 || b->units->unit[unit].module == m) return unit;
    return owner_of(b, m) == b->ep->rank ? unit : NOWHERE;
}

static void collect_param(builder *b, cr_module *m, cr_param *p, int64_t unit)
{
    cr_unit *u;

    if (p->tied_to || unit < 0) return;
    u = &b->units->unit[is_tied_pair(m) ? 0 : unit];
    if (b->ep && (u->is_ep) != (m->expert >= 0)) b->misplaced = p;
    if (m->is_fp32 != u->trained.is_fp32) b->mixed = p;
    flat_add(p->is_trainable ? &u->trained : &u->frozen, p);
}

static void collect(builder *b, cr_module *m, int64_t unit)
{
    mark how = b->marks[b->at++];
    bool is_expert = how == MARK_EXPERT;

    if (b->ep && is_expert && has_experts(m))
        unit = add_ep_unit(b, m);
    else if (how != MARK_NONE || !m->parent)
        unit = add_unit(b->units, m, is_expert, /*is_ep=*/false);
    else if (b->ep && m->expert >= 0 && m->parent->expert < 0 && unit >= 0 &&
             b->units->unit[unit].is_ep)
        unit = unit_in_list(b, m, unit);
    for (size_t i = 0; i < m->num_params; i++)
        collect_param(b, m, &m->params[i], unit);
    for (size_t i = 0; i < m->num_children; i++)
        collect(b, m->children[i], unit);
}

/* Expert-parallel units come last in the buffers. */
static void close_units(builder *b)
{
    cr_units *out = b->units;

    for (int is_ep = 0; is_ep < 2; is_ep++) {
        for (size_t i = 0; i < out->num; i++) {
            cr_unit *u = &out->unit[i];
            if ((u->is_ep) != is_ep) continue;
            u->num_shards = is_ep ? b->ep->num_shards : out->num_shards;
            u->trained.is_ep = u->frozen.is_ep = is_ep;
            out->num_trained += u->trained.num_elems;
            out->num_frozen += u->frozen.num_elems;
            flat_close(&u->trained, u->num_shards, &out->trained_shard);
            flat_close(&u->frozen, u->num_shards, &out->frozen_shard);
        }
        if (is_ep) continue;
        out->common_trained = out->trained_shard;
        out->common_frozen = out->frozen_shard;
    }
}

/* ---- names that match nothing ---- */

static bool is_in_list(const cr_buf *names, const char *cls)
{
    size_t n = strlen(cls);

    for (const char *p = names->data; p && (p = strstr(p, cls)); p += n)
        if ((p == names->data || p[-1] == ' ') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

static cr_status add_class(void *ctx, cr_module *m, cr_err *err)
{
    cr_buf *names = ctx;

    (void)err;
    if (m->is_container || !m->parent || is_in_list(names, m->cls)) return CR_OK;
    cr_buf_addf(names, "%s%s", names->num_bytes ? ", " : "", m->cls);
    return CR_OK;
}

static cr_status check_classes(builder *b, const char *key, const char *const *classes, size_t num,
                               const size_t *matched, cr_err *err)
{
    for (size_t i = 0; i < num; i++) {
        cr_buf names = {0};
        if (matched[i]) continue;
        if (strcmp(classes[i], "ModuleList") == 0)
            return cr_fail(err, CR_ECONFIG,
                           "wrap_policy: %s: a ModuleList never runs (name the class of its "
                           "elements)",
                           key);
        CR_TRY(cr_module_walk(b->model->root, add_class, &names, err));
        cr_fail(err, CR_ECONFIG, "wrap_policy: %s: no module has the class %s (there are %s)", key,
                classes[i], names.data);
        cr_buf_free(&names);
        return err->status;
    }
    return CR_OK;
}

typedef struct nearest {
    const char **names;
    size_t num;
} nearest;

static cr_status add_module(void *ctx, cr_module *m, cr_err *err)
{
    nearest *n = ctx;

    (void)err;
    n->names = cr_realloc(n->names, n->num * sizeof *n->names, (n->num + 1) * sizeof *n->names);
    n->names[n->num++] = m->name;
    return CR_OK;
}

static cr_status check_modules(builder *b, cr_err *err)
{
    for (size_t i = 0; i < b->policy->num_modules; i++) {
        nearest n = {0};
        const char *near;
        if (b->matched_modules[i]) continue;
        CR_TRY(cr_module_walk(b->model->root, add_module, &n, err));
        near = cr_nearest(b->policy->modules[i], n.names, n.num);
        cr_fail(err, CR_ECONFIG, "wrap_policy: no module has the name %s%s%s%s",
                b->policy->modules[i], near ? " (the nearest is " : "", near ? near : "",
                near ? ")" : "");
        cr_free(n.names);
        return err->status;
    }
    return CR_OK;
}

static cr_status check_matched(builder *b, cr_err *err)
{
    const cr_wrap_policy *p = b->policy;

    if (p->classes) /* only what a person wrote */
        CR_TRY(check_classes(b, "transformer_layer_cls_to_wrap", b->classes, b->num_classes,
                             b->matched, err));
    CR_TRY(check_classes(b, "moe_experts", p->expert_classes, p->num_expert_classes,
                         b->matched_experts, err));
    CR_TRY(check_modules(b, err));
    if (b->misplaced)
        return cr_fail(err, CR_ECONFIG,
                       "M9: with ep_size %d wrap_policy.moe_experts must name the class of the "
                       "experts (%s is in another unit)",
                       b->ep->num_ranks, b->misplaced->name);
    if (b->mixed)
        return cr_fail(err, CR_ECONFIG,
                       "%s cannot be in float32 while the rest of its unit is not: it is tied",
                       b->mixed->name);
    if (p->min_elems > 0 && b->units->num == 1)
        return cr_fail(err, CR_ECONFIG,
                       "wrap_policy: no module has %lld elements of its own or left by others: the "
                       "whole model has %lld",
                       (long long)p->min_elems,
                       (long long)(b->units->num_trained + b->units->num_frozen));
    return CR_OK;
}

static cr_status count_module(void *ctx, cr_module *m, cr_err *err)
{
    size_t *num = ctx;

    (void)m;
    (void)err;
    (*num)++;
    return CR_OK;
}

cr_status cr_units_build(cr_model *model, const cr_wrap_policy *policy, int num_shards,
                         cr_units *out, cr_err *err)
{
    return cr_units_build_ep(model, policy, num_shards, NULL, out, err);
}

cr_status cr_units_build_ep(cr_model *model, const cr_wrap_policy *policy, int num_shards,
                            const cr_ep_layout *ep, cr_units *out, cr_err *err)
{
    builder b = {.model = model,
                 .policy = policy,
                 .units = out,
                 .classes = policy->classes,
                 .num_classes = policy->num_classes,
                 .ep = ep && ep->num_ranks > 1 ? ep : NULL,
                 .is_nested = policy->is_nested,
                 .is_roll =
                     !policy->is_nested && policy->num_modules == 0 && policy->min_elems <= 0};
    size_t num_modules = 0;
    bool has_layer = false;

    *out = (cr_units){.num_shards = num_shards};
    if (!b.classes && b.is_roll) {
        b.classes = model->no_split;
        b.is_nested = model->is_no_split_nested;
        b.is_roll = !b.is_nested;
        while (b.classes && b.classes[b.num_classes])
            b.num_classes++;
    }
    CR_TRY(cr_module_walk(model->root, count_module, &num_modules, err));
    b.marks = CR_NEW_ARRAY(mark, num_modules);
    b.matched = CR_NEW_ARRAY(size_t, b.num_classes + 1);
    b.matched_experts = CR_NEW_ARRAY(size_t, policy->num_expert_classes + 1);
    b.matched_modules = CR_NEW_ARRAY(size_t, policy->num_modules + 1);
    mark_below(&b, model->root, &has_layer);
    b.at = 0;
    collect(&b, model->root, 0);
    close_units(&b);
    if (check_matched(&b, err) != CR_OK) cr_units_free(out);
    cr_free(b.marks);
    cr_free(b.matched);
    cr_free(b.matched_experts);
    cr_free(b.matched_modules);
    return err->status;
}

static void flat_free(cr_flat *flat)
{
    cr_free(flat->params);
    cr_free(flat->offset);
}

void cr_units_free(cr_units *units)
{
    for (size_t i = 0; i < units->num; i++) {
        flat_free(&units->unit[i].trained);
        flat_free(&units->unit[i].frozen);
        cr_free(units->unit[i].name);
    }
    cr_free(units->unit);
    *units = (cr_units){0};
}

bool cr_units_can_diverge(const cr_units *units, const cr_model *model)
{
    if (!model->skips_idle_experts || units->num_shards == 1) return false;
    for (size_t i = 0; i < units->num; i++)
        if (units->unit[i].module->expert >= 0) return true;
    return false;
}
