/* freeze.c -- which parameters are trained: prefixes, and the stages of vision-language runs (see
 * units.h). */
#include "strategies/units.h"

#include <string.h>

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

static cr_status no_such_prefix(cr_model *model, const char *what, const char *prefix,
                                size_t num_bytes, cr_err *err)
{
    char *given = cr_strndup(prefix, num_bytes);
    name_list n = {0};
    const char *near;

    if (num_bytes && given[num_bytes - 1] == '.') given[num_bytes - 1] = 0;
    cr_note(cr_module_walk(model->root, add_name, &n, err));
    near = cr_nearest(given, n.name, n.num);
    cr_fail(err, CR_ECONFIG, "%s: no parameter begins with '%s' (%s %s)", what, given,
            near ? "the nearest module is" : "the first parameter is",
            near ? near : model->params[0]->name);
    cr_free(given);
    cr_free(n.name);
    return err->status;
}

static size_t set_prefix(cr_model *model, const char *prefix, size_t n, bool is_trainable)
{
    size_t num = 0;

    for (size_t i = 0; n && i < model->num_params; i++) {
        cr_param *param = model->params[i];
        if (strncmp(param->name, prefix, n) != 0 &&
            !(param->alias && strncmp(param->alias, prefix, n) == 0))
            continue;
        param->is_trainable = is_trainable;
        num++;
    }
    return num;
}

/* Sets is_trainable of what the prefixes name. vision_model, which ROLL's guide has and no parameter of
 * these models, is the vision tower. */
static cr_status set_prefixes(cr_model *model, const char *what, const char *prefixes,
                              bool is_trainable, cr_err *err)
{
    static const char tower[] = "vision_model";

    for (const char *p = prefixes; p && *p;) {
        size_t n = strcspn(p, ","), num;
        while (n && *p == ' ')
            p++, n--;
        num = set_prefix(model, p, n, is_trainable);
        if (num == 0 && model->tower && n == sizeof tower - 1 && strncmp(p, tower, n) == 0)
            num = set_prefix(model, model->tower->name, strlen(model->tower->name), is_trainable);
        if (num == 0) return no_such_prefix(model, what, p, n, err);
        p += n;
        p += *p == ',';
    }
    return CR_OK;
}

cr_status cr_model_freeze(cr_model *model, const char *prefixes, cr_err *err)
{
    CR_TRY(set_prefixes(model, "freeze_module_prefix", prefixes, false, err));
    for (size_t i = 0; i < model->num_params; i++)
        if (model->params[i]->is_trainable) return CR_OK;
    return cr_fail(err, CR_ECONFIG,
                   "freeze_module_prefix: %s is every parameter: nothing is left to train",
                   prefixes);
}

typedef enum part { NONE, LAST, ALL } part;

static const struct stage {
    const char *name;
    bool has_vision, has_projector;
    part language;
} stages[] = {
    {"align", false, true, NONE},
    {"finetune", false, true, ALL},
    {"vla-train", false, true, ALL},
    {"full-finetune", true, true, ALL},
    {"vla-full-train", true, true, ALL},
    {"last-layer-finetune", false, false, LAST},
    {"vla-sandwich-train", true, true, LAST},
};

static const struct stage *find_stage(const char *name, cr_err *err)
{
    const char *names[CR_COUNT(stages)], *near;

    for (size_t i = 0; i < CR_COUNT(stages); i++) {
        if (strcmp(stages[i].name, name) == 0) return &stages[i];
        names[i] = stages[i].name;
    }
    near = cr_nearest(name, names, CR_COUNT(names));
    cr_fail(err, CR_ECONFIG, "stage: there is no '%s' (%s %s)", name,
            near ? "the nearest is" : "the first is", near ? near : names[0]);
    return NULL;
}

static bool is_below(const cr_param *p, const cr_module *m)
{
    size_t n = strlen(m->name);

    return strncmp(p->name, m->name, n) == 0 && p->name[n] == '.';
}

void cr_model_set_precision(cr_model *model)
{
    const cr_towers *t = &model->towers;
    bool is_trained = false;

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        is_trained = is_trained || (p->is_trainable && cr_is_named(p->name, t->vision) &&
                                    !cr_is_named(p->name, t->projector));
    }
    if (is_trained) cr_module_set_fp32(model->tower);
}

cr_status cr_model_freeze_stage(cr_model *model, const char *name, cr_err *err)
{
    const struct stage *s = find_stage(name, err);
    const cr_module *last = model->layers[model->config.num_layers - 1];

    if (!s) return err->status;
    if ((s->has_vision && !model->towers.vision) || (s->has_projector && !model->towers.projector))
        return cr_fail(
            err, CR_ECONFIG,
            "stage: %s trains the %s, but a %s has none (last-layer-finetune needs none)", name,
            s->has_vision ? "vision tower" : "projector", model->config.model_type);
    for (size_t i = 0; i < model->num_params; i++) {
        cr_param *p = model->params[i];
        p->is_trainable = s->language == ALL || (s->language == LAST && is_below(p, last));
    }
    CR_TRY(set_prefixes(model, "vision", model->towers.vision, s->has_vision, err));
    return set_prefixes(model, "projector", model->towers.projector, s->has_projector, err);
}
