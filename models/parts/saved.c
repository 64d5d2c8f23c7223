/* saved.c -- modules that are trained in full beside adapters: PEFT's modules_to_save. */
#include "models/parts/adapters.h"

#include <string.h>

/* Of a list with commas. */
typedef struct entry {
    const char *end; /* of names; not only after a dot, as PEFT has it */
    bool is_found;
} entry;

typedef struct finder {
    cr_model *model;
    bool keeps_originals;
    entry *entries; /* owned */
    size_t num_entries;
    const char **names; /* last parts of those of modules with parameters; owned */
    size_t num_names;
    cr_buf found; /* names, with commas between */
} finder;

static entry *find_entry(const finder *f, const char *name)
{
    size_t num = strlen(name);

    for (size_t i = 0; i < f->num_entries; i++) {
        size_t end = strlen(f->entries[i].end);
        if (end && num >= end && strcmp(name + num - end, f->entries[i].end) == 0)
            return &f->entries[i];
    }
    return NULL;
}

/* Does the name end in the middle of a part of it? */
static bool is_torn(const char *name, const char *end)
{
    size_t num = strlen(name), n = strlen(end);

    return num > n && strcmp(name + num - n, end) == 0 && name[num - n - 1] != '.';
}

static bool is_in_tower(const cr_module *m)
{
    while (m && m != m->model->tower)
        m = m->parent;
    return m != NULL;
}

static void keep_original(cr_module *m)
{
    cr_module *copy;

    cri_make_room(m);
    copy = cri_module_add(m->model, m, "original_module", m->cls, 0, m->num_params);
    for (size_t i = 0; i < m->num_params; i++) {
        cr_param *p = &m->params[i];
        cr_param *c = cri_param_add(copy, strrchr(p->name, '.') + 1, p->init, p->shape[0],
                                    p->num_dims > 1 ? p->shape[1] : 0);
        c->copy_of = p;
        c->is_product = p->is_product;
    }
    m->original = copy;
}

static cr_status check(const cr_module *m, const entry *by, cr_err *err)
{
    if (m->expert >= 0)
        return cr_fail(err, CR_EABSENT,
                       "additional_target '%s': experts (%s) are not trained in full beside "
                       "adapters",
                       by->end, m->name);
    if (is_in_tower(m))
        return cr_fail(err, CR_EABSENT,
                       "additional_target '%s' takes %s, too, and vision towers are not trained "
                       "beside adapters (name modules of the language model in full)",
                       by->end, m->name);
    if (m->params[0].is_shared)
        return cr_fail(err, CR_ECONFIG,
                       "additional_target '%s': %s has tied word embeddings, of which PEFT would "
                       "train one, and they would not be tied any more",
                       by->end, m->model->config.model_type);
    if (strcmp(m->cls, "Linear") == 0 && is_torn(m->name, by->end))
        return cr_fail(err, CR_ECONFIG,
                       "additional_target '%s' is a part of a name, and PEFT takes all that end "
                       "with it, as %s does (write whole names)",
                       by->end, m->name);
    return CR_OK;
}

/* by: the entry that takes it, or what it is in; NULL: none. */
static cr_status find(finder *f, cr_module *m, entry *by, cr_err *err)
{
    size_t num = m->num_children; /* without the original */
    entry *own = find_entry(f, m->name);
    const char *dot = strrchr(m->name, '.');

    if (own) by = own;
    if (m->num_params) {
        f->names = cr_realloc(f->names, f->num_names * sizeof *f->names,
                              (f->num_names + 1) * sizeof *f->names);
        f->names[f->num_names++] = dot ? dot + 1 : m->name;
    }
    if (by && m->num_params && !m->params[0].is_added) {
        CR_TRY(check(m, by, err));
        by->is_found = true;
        for (size_t i = 0; i < m->num_params; i++)
            m->params[i].is_adapter = true; /* of the only one, number 0 */
        if (f->keeps_originals) keep_original(m);
        cr_buf_addf(&f->found, "%s%s", f->found.num_bytes ? "," : "", m->name);
    }
    for (size_t i = 0; i < num; i++)
        CR_TRY(find(f, m->children[i], by, err));
    return CR_OK;
}

static cr_status find_all(finder *f, cr_err *err)
{
    CR_TRY(find(f, f->model->root, NULL, err));
    for (size_t i = 0; i < f->num_entries; i++) {
        const char *end = f->entries[i].end, *dot = strrchr(end, '.'), *nearest;
        if (f->entries[i].is_found) continue;
        nearest = cr_nearest(dot ? dot + 1 : end, f->names, f->num_names);
        return cr_fail(err, CR_ECONFIG,
                       "additional_target '%s' matches no module of the model that has "
                       "parameters%s%s%s",
                       end, nearest ? " (is it '" : "", nearest ? nearest : "",
                       nearest ? "'?)" : "");
    }
    return CR_OK;
}

cr_status cri_saved_add(cr_model *model, cr_adapter_options *own, cr_err *err)
{
    finder f = {.model = model, .keeps_originals = own->keeps_originals};
    char *list, *rest;

    if (!own->saved) return CR_OK;
    list = rest = cr_strdup(own->saved);
    while (rest) {
        char *end = strsep(&rest, ",");
        end += strspn(end, " ");
        end[strcspn(end, " ")] = 0;
        f.entries = cr_realloc(f.entries, f.num_entries * sizeof *f.entries,
                               (f.num_entries + 1) * sizeof *f.entries);
        f.entries[f.num_entries++] = (entry){.end = end};
    }
    if (find_all(&f, err) == CR_OK && model->tower)
        own->saved = cr_arena_strndup(model->own->arena, f.found.data, f.found.num_bytes);
    cr_free(list);
    cr_free(f.entries);
    cr_free(f.names);
    cr_buf_free(&f.found);
    return err->status;
}
