/* units.c -- from a tree and a policy to flat layouts (see strategies.h). */
#include "strategies/strategies.h"

#include <string.h>

/* ---- freezing ---- */

typedef struct name_list {
    const char **name;
    size_t num;
} name_list;

static cr_status add_name(void *ctx, cr_module *m, cr_err *err)
{
    name_list *n = ctx;

    (void)err;
    n->name = cr_realloc(n->name, n->num * sizeof *n->name, (n->num + 1) * sizeof *n->name);
    n->name[n->num++] = m->name;
    return CR_OK;
}

static cr_status no_such_prefix(cr_model *model, const char *prefix, size_t num_bytes, cr_err *err)
{
    char *given = cr_strndup(prefix, num_bytes);
    name_list n = {0};
    const char *near;

    if (num_bytes && given[num_bytes - 1] == '.') given[num_bytes - 1] = 0;
    cr_note(cr_module_walk(model->root, add_name, &n, err));
    near = cr_nearest(given, n.name, n.num);
    cr_fail(err, CR_ECONFIG, "freeze_module_prefix: no parameter begins with '%s' (%s %s)", given,
            near ? "the nearest module is" : "the first parameter is",
            near ? near : model->params[0]->name);
    cr_free(given);
    cr_free(n.name);
    return err->status;
}

cr_status cr_model_freeze(cr_model *model, const char *prefixes, cr_err *err)
{
    for (const char *p = prefixes; p && *p;) {
        size_t n = strcspn(p, ","), num = 0;
        while (n && *p == ' ')
            p++, n--;
        for (size_t i = 0; n && i < model->num_params; i++)
            if (strncmp(model->params[i]->name, p, n) == 0) {
                model->params[i]->is_trainable = false;
                num++;
            }
        if (num == 0) return no_such_prefix(model, p, n, err);
        p += n;
        p += *p == ',';
    }
    return CR_OK;
}

/* ---- units ---- */

typedef struct builder {
    const cr_wrap_policy *policy;
    cr_units *units;
    size_t *matched; /* [num_classes] */
    const char *const *classes;
    size_t num_classes;
} builder;

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

static void flat_close(cr_flat *flat, int num_shards, int64_t *first)
{
    int64_t cut = (int64_t)num_shards * CR_FLAT_ALIGN;

    flat->padded_elems = (flat->padded_elems + cut - 1) / cut * cut;
    flat->shard_elems = flat->padded_elems / num_shards;
    flat->first = *first;
    *first += flat->shard_elems;
}

/* A pass runs every module between hooks, but for lists of modules. */
static bool is_run(const cr_module *m)
{
    return strcmp(m->cls, "ModuleList") != 0;
}

/* A tied pair is one storage that two modules use: it belongs to the root, which is always there. */
static bool is_tied_pair(const cr_module *m)
{
    return m->model->config.is_tied &&
           (strcmp(m->cls, "Embedding") == 0 || strcmp(m->name, "lm_head") == 0);
}

static bool is_root_of_unit(builder *b, const cr_module *m)
{
    bool is_unit = false;

    for (size_t i = 0; i < b->num_classes && is_run(m); i++)
        if (strcmp(b->classes[i], m->cls) == 0) {
            b->matched[i]++;
            is_unit = true;
        }
    if (b->policy->should_wrap_embeddings && strcmp(m->cls, "Embedding") == 0) is_unit = true;
    if (b->policy->should_wrap_lm_output && strcmp(m->name, "lm_head") == 0) is_unit = true;
    return is_unit && !is_tied_pair(m);
}

static void collect(builder *b, cr_module *m, size_t unit)
{
    if (m->parent && is_root_of_unit(b, m)) {
        cr_units *u = b->units;
        u->unit = cr_realloc(u->unit, u->num * sizeof *u->unit, (u->num + 1) * sizeof *u->unit);
        unit = u->num++;
        u->unit[unit].module = m;
        u->unit[unit].name = cr_strdup(m->name);
    }
    for (size_t i = 0; i < m->num_params; i++) {
        cr_param *p = &m->params[i];
        cr_unit *u = &b->units->unit[is_tied_pair(m) ? 0 : unit];
        if (p->tied_to) continue;
        flat_add(p->is_trainable ? &u->trained : &u->frozen, p);
    }
    for (size_t i = 0; i < m->num_children; i++)
        collect(b, m->children[i], unit);
}

static bool is_listed(const cr_buf *names, const char *cls)
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
    if (!is_run(m) || !m->parent || is_listed(names, m->cls)) return CR_OK;
    cr_buf_addf(names, "%s%s", names->num_bytes ? ", " : "", m->cls);
    return CR_OK;
}

static cr_status check_matched(builder *b, cr_model *model, cr_err *err)
{
    cr_buf names = {0};

    for (size_t i = 0; i < b->num_classes && err->status == CR_OK; i++) {
        if (b->matched[i] || !b->policy->classes) continue; /* only what a person wrote */
        CR_TRY(cr_module_walk(model->root, add_class, &names, err));
        cr_fail(err, CR_ECONFIG, "wrap_policy: no module has the class %s (there are %s)",
                b->classes[i], names.data);
    }
    cr_buf_free(&names);
    return err->status;
}

cr_status cr_units_build(cr_model *model, const cr_wrap_policy *policy, int num_shards,
                         cr_units *out, cr_err *err)
{
    builder b = {.policy = policy,
                 .units = out,
                 .classes = policy->classes,
                 .num_classes = policy->num_classes};

    *out = (cr_units){0};
    if (!b.classes) {
        b.classes = model->no_split;
        while (b.classes && b.classes[b.num_classes])
            b.num_classes++;
    }
    b.matched = CR_NEW_ARRAY(size_t, b.num_classes + 1);
    out->unit = CR_NEW(cr_unit);
    out->num = 1;
    out->unit[0].module = model->root;
    out->unit[0].name = cr_strdup("root");
    collect(&b, model->root, 0);
    for (size_t i = 0; i < out->num; i++) {
        cr_unit *u = &out->unit[i];
        out->num_trained += u->trained.num_elems;
        out->num_frozen += u->frozen.num_elems;
        flat_close(&u->trained, num_shards, &out->trained_shard_elems);
        flat_close(&u->frozen, num_shards, &out->frozen_shard_elems);
    }
    check_matched(&b, model, err);
    cr_free(b.matched);
    if (err->status != CR_OK) cr_units_free(out);
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
