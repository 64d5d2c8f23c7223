/* targets.c -- LoRA: which modules have adapters, in the words of PEFT, and their parameters in the tree. */
#include "base/pattern.h"
#include "base/rng.h"
#include "models/files/peft.h"
#include "models/parts/adapters.h"
#include "models/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what there is ---- */

/* A block of experts, and how many experts each target has taken there. */
typedef struct block {
    cr_module *m;
    int64_t num_gate, num_up, num_down;
    bool is_gate_up; /* the one parameter that gate_proj and up_proj are for PEFT */
    bool has_router;
} block;

typedef struct targets {
    const cr_adapter_options *o;
    cr_module **linears; /* of layers, but those of blocks; owned */
    block *blocks;       /* owned */
    size_t num_linears, num_blocks;
    cr_module *table, *head; /* of the vocabulary */
    const char **names;      /* of all that may be named; owned */
    size_t num_names;
} targets;

/* Number of the adapter whose options (of the model) these are. */
static int number_of(const cr_model *model, const cr_adapter_options *o)
{
    return (int)(o - model->adapters);
}

static bool has_it(const targets *t, const cr_module *m)
{
    return m->adapters && m->adapters[number_of(m->model, t->o)].a;
}

static void add_name(targets *t, const char *name)
{
    t->names = cr_realloc(t->names, t->num_names * sizeof *t->names,
                          (t->num_names + 1) * sizeof *t->names);
    t->names[t->num_names++] = name;
}

static void add_block(targets *t, cr_module *m)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj", "gate_up_proj"};

    t->blocks = cr_realloc(t->blocks, t->num_blocks * sizeof *t->blocks,
                           (t->num_blocks + 1) * sizeof *t->blocks);
    t->blocks[t->num_blocks++] = (block){.m = m};
    for (size_t i = 0; i < CR_COUNT(names); i++)
        add_name(t, names[i]);
}

/* All but the head's and those of towers. */
static void list_targets(cr_module *m, targets *t)
{
    const char *dot = strrchr(m->name, '.');

    if (m->layer >= 0 && m->ops == &cri_sparse_ops) {
        add_block(t, m);
        return;
    }
    if (m->layer >= 0 && strcmp(m->cls, "Linear") == 0) {
        size_t n = t->num_linears;
        t->linears = cr_realloc(t->linears, n * sizeof *t->linears, (n + 1) * sizeof *t->linears);
        t->linears[t->num_linears++] = m;
        add_name(t, dot ? dot + 1 : m->name);
        return; /* what is below is of other adapters */
    }
    for (size_t i = 0; i < m->num_children; i++)
        list_targets(m->children[i], t);
}

/* ---- matching ---- */

/* An entry of a list, or a regular expression of whole names. */
typedef struct matcher {
    const char *entry;
    cr_pattern *pattern;   /* NULL: the entry is a name, or an end of it after a dot */
    bool is_of_parameters; /* it does not take Linears, but parameters of blocks */
    bool is_found;
} matcher;

static bool is_named(const char *name, const char *entry)
{
    size_t num = strlen(name), end = strlen(entry);

    return num >= end && strcmp(name + num - end, entry) == 0 &&
           (num == end || name[num - end - 1] == '.');
}

static cr_status match(matcher *m, const char *name, bool *is_match, cr_err *err)
{
    size_t at = 0;

    *is_match = false;
    if (!m->pattern)
        *is_match = is_named(name, m->entry);
    else
        CR_TRY(cr_pattern_next(m->pattern, name, strlen(name), &at, is_match, err));
    m->is_found |= *is_match;
    return CR_OK;
}

static cr_status match_below(matcher *m, const char *of, const char *name, bool *is_match,
                             cr_err *err)
{
    char *whole = cr_asprintf("%s.%s", of, name);

    cr_note(match(m, whole, is_match, err));
    cr_free(whole);
    return err->status;
}

static cr_status count_match(matcher *m, const cr_module *linear, int64_t *num, cr_err *err)
{
    bool is_match;

    CR_TRY(match(m, linear->name, &is_match, err));
    *num += is_match;
    return CR_OK;
}

static cr_status match_block(matcher *m, block *b, cr_err *err)
{
    const cri_sparse *parts = b->m->impl;
    const cr_module *list = parts->list;
    int64_t num[3] = {0}, *const taken[] = {&b->num_gate, &b->num_up, &b->num_down};
    bool is_gate_up, is_down, is_router;

    CR_TRY(match_below(m, list->name, "gate_up_proj", &is_gate_up, err));
    CR_TRY(match_below(m, list->name, "down_proj", &is_down, err));
    CR_TRY(match_below(m, parts->gate->name, "weight", &is_router, err));
    if (!is_router && !m->is_of_parameters) CR_TRY(match(m, parts->gate->name, &is_router, err));
    for (size_t e = 0; e < list->num_children && !m->is_of_parameters; e++) {
        const cri_mlp *expert = list->children[e]->impl;
        CR_TRY(count_match(m, expert->gate, &num[0], err));
        CR_TRY(count_match(m, expert->up, &num[1], err));
        CR_TRY(count_match(m, expert->down, &num[2], err));
    }
    if (is_down) num[2] = (int64_t)list->num_children;
    b->is_gate_up |= is_gate_up;
    b->has_router |= is_router;
    for (int i = 0; i < 3; i++)
        *taken[i] = cr_max64(*taken[i], num[i]);
    return CR_OK;
}

static cr_status no_match(const targets *all, const char *target, cr_err *err)
{
    const char *dot = strrchr(target, '.'),
               *nearest = cr_nearest(dot ? dot + 1 : target, all->names, all->num_names);

    return cr_fail(err, CR_ECONFIG, "target '%s' matches no Linear of the model%s%s%s", target,
                   nearest ? " (is it '" : "", nearest ? nearest : "", nearest ? "'?)" : "");
}

/* ---- parameters ---- */

/* Of factors. */
enum { FACTOR_NAME = 64 };

static void name_factor(char text[FACTOR_NAME], const char *name, int at)
{
    snprintf(text, FACTOR_NAME, at ? "%s_%d" : "%s", name, at);
}

static char *peft_name(const cr_module *parent, const char *name, const char *end)
{
    size_t num_bytes = strlen(parent->name) + strlen(name) + strlen(end) + sizeof ".";
    char *text = cri_alloc(parent->model, num_bytes);

    snprintf(text, num_bytes, "%s.%s%s", parent->name, name, end);
    return text;
}

void cri_make_room(cr_module *parent)
{
    size_t num = parent->num_children;
    cr_module **children = cri_alloc(parent->model, (num + 1) * sizeof *children);

    if (num) memcpy(children, parent->children, num * sizeof *children);
    parent->children = children;
}

/* name: PEFT's. */
static cr_module *add_factor(cr_module *parent, const char *name, int64_t in, int64_t out,
                             bool is_a, const cr_adapter_options *o)
{
    int at = number_of(parent->model, o);
    char text[FACTOR_NAME];
    cr_module *m;
    cr_param *p;

    cri_make_room(parent);
    name_factor(text, name, at);
    m = cri_linear_add(parent, text, in, out, false);
    p = m->weight;
    p->init = is_a ? CR_INIT_UNIFORM : CR_INIT_ZEROS; /* kaiming_uniform with a = sqrt(5) */
    if (is_a) p->init_std = (float)(1 / sqrt((double)in));
    p->is_added = p->is_adapter = true;
    p->adapter = at;
    if (at == 0) return m;
    p->file_name = p->alias = peft_name(parent, name, ".weight");
    return m;
}

static float scale_of(const cr_adapter_options *o, int64_t times)
{
    double rank = (double)(o->rank * times), alpha = o->alpha * (double)times;

    return (float)(alpha / (o->use_rslora ? sqrt(rank) : rank));
}

/* Room for the adapter of these options among those of a module. */
static cr_adapter *adapter_of(cr_module *m, const cr_adapter_options *o)
{
    const cr_model *model = m->model;
    cr_adapter *all = cri_alloc(model, (size_t)model->num_adapters * sizeof *all);

    if (m->adapters) memcpy(all, m->adapters, (size_t)model->num_adapters * sizeof *all);
    m->adapters = all;
    return &all[number_of(model, o)];
}

/* times: of rank and alpha. a: NULL: its own. */
static const cr_adapter *adapt(cr_module *m, cr_module *a, int64_t times,
                               const cr_adapter_options *o)
{
    int64_t in = m->weight->shape[1], out = m->weight->shape[0], rank = o->rank * times;
    cr_adapter *adapter = adapter_of(m, o);

    if (!a) a = add_factor(m, "lora_A", in, rank, true, o); /* before B in the tree */
    *adapter = (cr_adapter){.a = a,
                            .b = add_factor(m, "lora_B", rank, out, false, o),
                            .scale = scale_of(o, times),
                            .dropout = o->dropout,
                            .key = cr_hash64(m->name, strlen(m->name))};
    return adapter;
}

static cr_module *add_of_table(cr_module *table, const char *name, int64_t rows, cr_init_kind init,
                               const cr_adapter_options *o)
{
    char text[FACTOR_NAME];
    cr_module *m;
    cr_param *p;

    name_factor(text, name, number_of(table->model, o));
    cri_make_room(table);
    m = cri_module_add(table->model, table, text, "Embedding", 0, 1);
    p = cri_param_add(m, "weight", init, rows, o->rank);
    p->file_name = p->alias = peft_name(table, name, ""); /* PEFT's have no end */
    p->init_std = 1;
    p->is_added = p->is_adapter = true;
    p->adapter = number_of(table->model, o);
    return m;
}

/* A is looked up as the table is; PEFT's is [rank, rows]. B begins with normal numbers, A with zeros. */
static void adapt_table(cr_module *table, const cr_adapter_options *o)
{
    int64_t rows = table->weight->shape[0], cols = table->weight->shape[1];
    cr_stacked *s = cri_alloc(table->model, sizeof *s);
    cr_module *a = add_of_table(table, "lora_embedding_A", rows, CR_INIT_ZEROS, o),
              *b = add_of_table(table, "lora_embedding_B", cols, CR_INIT_NORMAL, o);

    *s = (cr_stacked){.tensor = a->weight->file_name,
                      .num_dims = 2,
                      .shape = {o->rank, rows},
                      .row_step = 1,
                      .col_step = rows};
    a->weight->stacked = s;
    b->weight->is_product = true;
    *adapter_of(table, o) = (cr_adapter){.a = a, .b = b, .scale = scale_of(o, 1)};
}

/* A of expert e of PEFT's tensor [E rank, in], and B, rows `row` on of its [out, rank E]. */
static void stack_a(const cr_model *model, cr_param *p, const char *of, int64_t e)
{
    int64_t rank = p->shape[0], in = p->shape[1];
    cr_stacked *s = cri_alloc(model, sizeof *s);

    *s = (cr_stacked){.tensor = cri_class(model, of, ".lora_A.weight"),
                      .num_dims = 2,
                      .shape = {model->config.num_experts * rank, in},
                      .first = e * rank * in,
                      .row_step = in,
                      .col_step = 1};
    p->stacked = s;
}

static void stack_b(const cr_model *model, cr_param *p, const char *of, int64_t e, int64_t out,
                    int64_t row)
{
    int64_t num = model->config.num_experts, cols = p->shape[1] * num;
    cr_stacked *s = cri_alloc(model, sizeof *s);

    *s = (cr_stacked){.tensor = cri_class(model, of, ".lora_B.weight"),
                      .num_dims = 2,
                      .shape = {out, cols},
                      .first = row * cols + e,
                      .row_step = cols,
                      .col_step = num};
    p->stacked = s;
}

/* For PEFT an adapter of down_proj is around the one of gate_up_proj, if both are there. */
static void adapt_expert(const block *b, cr_module *m, int64_t times, const cr_adapter_options *o)
{
    const cr_model *model = m->model;
    const cri_mlp *parts = m->impl;
    bool has_gate_up = b->is_gate_up || b->num_gate, has_down = b->num_down;
    const char *of = m->parent->name, *inner = has_down ? cri_class(model, of, ".base_layer") : of;
    int64_t width = parts->width, in = parts->gate->weight->shape[1];

    if (has_gate_up) {
        cr_module *shared = add_factor(m, "gate_up_proj.lora_A", in, o->rank * times, true, o);
        stack_a(model, shared->weight, inner, m->expert);
        stack_b(model, adapt(parts->gate, shared, times, o)->b->weight, inner, m->expert, 2 * width,
                0);
        stack_b(model, adapt(parts->up, shared, times, o)->b->weight, inner, m->expert, 2 * width,
                width);
    }
    if (has_down) {
        const cr_adapter *down = adapt(parts->down, NULL, 1, o);
        stack_a(model, down->a->weight, of, m->expert);
        stack_b(model, down->b->weight, of, m->expert, in, 0);
    }
}

/* All experts have one, or none has; their gate_proj and up_proj are one parameter. */
static cr_status check_block(const block *b, cr_err *err)
{
    const cri_sparse *parts = b->m->impl;
    int64_t num = (int64_t)parts->list->num_children;
    const int64_t taken[] = {b->num_gate, b->num_up, b->num_down};

    for (int i = 0; i < 3; i++)
        if (taken[i] && taken[i] != num)
            return cr_fail(err, CR_EABSENT,
                           "adapters of %lld of the %lld experts of %s are not available: all of a "
                           "block have one, or none has",
                           (long long)taken[i], (long long)num, parts->list->name);
    if (!b->num_gate != !b->num_up)
        return cr_fail(err, CR_ECONFIG,
                       "target: %s of experts goes with %s: they are one parameter, gate_up_proj",
                       b->num_gate ? "gate_proj" : "up_proj",
                       b->num_gate ? "up_proj" : "gate_proj");
    return CR_OK;
}

static cr_status adapt_block(const block *b, const cr_adapter_options *o, cr_err *err)
{
    const cri_sparse *parts = b->m->impl;
    bool has_experts = b->is_gate_up || b->num_gate || b->num_down;

    CR_TRY(check_block(b, err));
    if ((has_experts || b->has_router) && o->dropout > 0)
        return cr_fail(err, CR_ECONFIG,
                       "adapters of experts and routers have no dropout, as in PEFT (%s)",
                       b->m->name);
    if (has_experts && parts->list->num_children &&
        ((const cri_mlp *)parts->list->children[0]->impl)->gate->weight->stacked)
        return cr_fail(err, CR_EABSENT, "adapters of experts of a %s are not available",
                       b->m->model->config.model_type);
    if (b->has_router && !parts->gate->weight->is_adapter) adapt(parts->gate, NULL, 1, o);
    for (size_t e = 0; e < parts->list->num_children && has_experts; e++)
        adapt_expert(b, parts->list->children[e], o->is_gate_up_twice ? 2 : 1, o);
    return CR_OK;
}

/* ---- targets ---- */

/* Unless it has one, or is trained itself. */
static void take_linear(const targets *t, cr_module *m)
{
    if (!has_it(t, m) && !m->weight->is_adapter) adapt(m, NULL, 1, t->o);
}

static cr_status take_all(const targets *t, bool is_router)
{
    for (size_t i = 0; i < t->num_linears && !is_router; i++)
        take_linear(t, t->linears[i]);
    for (size_t i = 0; i < t->num_blocks; i++) {
        block *b = &t->blocks[i];
        const cri_sparse *parts = b->m->impl;
        if (is_router)
            b->has_router = true;
        else
            b->num_gate = b->num_up = b->num_down = (int64_t)parts->list->num_children;
    }
    return CR_OK;
}

static cr_status take_table(const targets *t, matcher *m, bool is_all, cr_err *err)
{
    bool is_match = is_all;

    if (!is_all) CR_TRY(match(m, t->head->name, &is_match, err));
    if (!is_all && is_match)
        return cr_fail(
            err, CR_EABSENT,
            "target '%s': adapters of %s are not available (additional_target: %s trains "
            "it in full)",
            m->entry, t->head->name, t->head->name);
    if (!is_all) CR_TRY(match(m, t->table->name, &is_match, err));
    if (!is_match || has_it(t, t->table) || t->table->weight->is_adapter) return CR_OK;
    if (t->table->weight->is_shared)
        return cr_fail(
            err, CR_ECONFIG,
            "target '%s': %s has tied word embeddings, whose adapter PEFT would apply to "
            "%s alone, and merge into both",
            m->entry, t->table->model->config.model_type, t->table->name);
    adapt_table(t->table, t->o);
    return CR_OK;
}

static cr_status take(const targets *t, matcher *m, cr_err *err)
{
    bool is_match;

    if (!m->pattern && strcmp(m->entry, "all-linear") == 0) return take_all(t, false);
    if (!m->pattern && strcmp(m->entry, "all-router") == 0 && t->num_blocks)
        return take_all(t, true);
    if (!m->pattern && strcmp(m->entry, "all-embedding") == 0)
        return take_table(t, m, /*is_all=*/true, err);
    for (size_t i = 0; i < t->num_linears && !m->is_of_parameters; i++) {
        CR_TRY(match(m, t->linears[i]->name, &is_match, err));
        if (is_match) take_linear(t, t->linears[i]);
    }
    if (!m->is_of_parameters) CR_TRY(take_table(t, m, /*is_all=*/false, err));
    for (size_t i = 0; i < t->num_blocks; i++)
        CR_TRY(match_block(m, &t->blocks[i], err));
    return m->is_found ? CR_OK : no_match(t, m->entry, err);
}

static cr_status take_list(const targets *t, const char *text, bool is_of_parameters, cr_err *err)
{
    char *list = cr_strdup(text), *rest = list;

    while (err->status == CR_OK && rest) {
        matcher m = {.entry = strsep(&rest, ","), .is_of_parameters = is_of_parameters};
        char *entry = (char *)(uintptr_t)m.entry;
        m.entry = entry += strspn(entry, " ");
        entry[strcspn(entry, " ")] = 0;
        cr_note(take(t, &m, err));
    }
    cr_free(list);
    return err->status;
}

static cr_status take_pattern(const targets *t, const char *text, cr_err *err)
{
    char *whole = cr_asprintf("\\A(?:%s)\\z", text);
    matcher m = {.entry = text};

    if (cr_pattern_open(whole, &m.pattern, err) != CR_OK)
        cr_fail_add(err, "target '%s'", text);
    else
        cr_note(take(t, &m, err));
    cr_pattern_close(m.pattern);
    cr_free(whole);
    return err->status;
}

static cr_status take_targets(targets *t, cr_adapter_options *own, cr_err *err)
{
    const cr_adapter_options *o = t->o;

    if (o->target && cr_adapter_is_pattern(o->target))
        CR_TRY(take_pattern(t, o->target, err));
    else if (o->target)
        CR_TRY(take_list(t, o->target, false, err));
    if (o->parameters) CR_TRY(take_list(t, o->parameters, true, err));
    for (size_t i = 0; i < t->num_blocks; i++)
        own->is_gate_up_twice |= t->blocks[i].num_gate > 0;
    for (size_t i = 0; i < t->num_blocks; i++)
        CR_TRY(adapt_block(&t->blocks[i], o, err));
    return CR_OK;
}

/* ---- options ---- */

static void freeze_base(cr_module *m)
{
    for (size_t i = 0; i < m->num_params; i++)
        m->params[i].is_trainable = m->params[i].is_added || m->params[i].is_adapter;
    for (size_t i = 0; i < m->num_children; i++)
        freeze_base(m->children[i]);
}

static const char *keep_text(const cr_model *model, const char *text)
{
    return text ? cr_arena_strndup(model->own->arena, text, strlen(text)) : NULL;
}

static void keep_options(const cr_model *model, const cr_adapter_options *o,
                         cr_adapter_options *own)
{
    *own = *o;
    own->next = NULL;
    own->target = keep_text(model, o->target);
    own->folder = keep_text(model, o->folder);
    own->parameters = keep_text(model, o->parameters);
    own->saved = keep_text(model, o->saved);
}

/* What has an adapter by its names, where a target alone would say something else to PEFT: it has parameters for experts and
 * routers, takes towers, too, and knows one word alone. */
static void list_adapted(const targets *t, const cr_model *model, cr_adapter_options *own)
{
    cr_buf modules = {0}, parameters = {0};

    if (has_it(t, t->table)) cr_buf_adds(&modules, t->table->name);
    for (size_t i = 0; i < t->num_linears; i++)
        if (has_it(t, t->linears[i]))
            cr_buf_addf(&modules, "%s%s", modules.num_bytes ? "," : "", t->linears[i]->name);
    for (size_t i = 0; i < t->num_blocks; i++) {
        const block *b = &t->blocks[i];
        const cri_sparse *parts = b->m->impl;
        const char *list = parts->list->name;
        if (b->is_gate_up || b->num_gate) cr_buf_addf(&parameters, ",%s.gate_up_proj", list);
        if (b->num_down) cr_buf_addf(&parameters, ",%s.down_proj", list);
        if (has_it(t, parts->gate)) cr_buf_addf(&parameters, ",%s.weight", parts->gate->name);
    }
    own->parameters = parameters.num_bytes ? keep_text(model, parameters.data + 1) : NULL;
    if (own->parameters || model->tower || has_it(t, t->table))
        own->modules = keep_text(model, modules.num_bytes ? modules.data : "");
    cr_buf_free(&modules);
    cr_buf_free(&parameters);
}

/* What o leaves open is as its folder says; what it says is not otherwise there. Which modules those are follows from their tensors. */
static cr_status complete(const cr_adapter_options *there, cr_adapter_options *o, cr_err *err)
{
    const bool has_alpha = o->alpha < 0 || o->alpha > 0;

    if (o->rank && o->rank != there->rank)
        return cr_fail(err, CR_ECONFIG, "%s has an adapter of rank %lld, not %lld", there->folder,
                       (long long)there->rank, (long long)o->rank);
    if (has_alpha && (o->alpha < there->alpha || o->alpha > there->alpha))
        return cr_fail(err, CR_ECONFIG, "%s has an adapter of alpha %.10g, not %.10g",
                       there->folder, there->alpha, o->alpha);
    if (o->use_rslora && !there->use_rslora)
        return cr_fail(err, CR_ECONFIG, "%s has an adapter without rslora", there->folder);
    if (!o->target) {
        o->target = there->target;
        o->parameters = there->parameters;
    }
    if (!o->saved) o->saved = there->saved;
    o->is_gate_up_twice = there->is_gate_up_twice;
    o->rank = there->rank;
    o->alpha = there->alpha;
    o->use_rslora = there->use_rslora;
    o->folder = there->folder;
    if (o->dropout < 0) o->dropout = there->dropout;
    return CR_OK;
}

static cr_status take_options(const cr_model *model, const cr_adapter_options *o,
                              cr_adapter_options *own, cr_err *err)
{
    cr_adapter_options all = *o, there = {0};
    char *base = NULL;

    if (o->folder && cr_peft_config_read(o->folder, &there, &base, err) == CR_OK)
        cr_note(complete(&there, &all, err));
    if (err->status == CR_OK && (all.rank < 1 || !isfinite(all.alpha)))
        cr_fail(err, CR_ECONFIG, "adapters of rank %lld and alpha %g", (long long)all.rank,
                all.alpha);
    if (err->status == CR_OK && !(all.dropout >= 0 && all.dropout < 1))
        cr_fail(err, CR_ECONFIG, "adapters with a dropout of %g", all.dropout);
    if (err->status == CR_OK) keep_options(model, &all, own);
    cr_peft_options_fini(&there);
    cr_free(base);
    return err->status;
}

bool cr_adapter_is_pattern(const char *target)
{
    return strpbrk(target, "*$|(") != NULL;
}

/* own: in model->adapters. */
static cr_status add_adapter(cr_model *model, const cr_adapter_options *o, cr_adapter_options *own,
                             cr_err *err)
{
    const cri_root *root = model->root->impl;
    targets t = {.o = own, .table = root->embed, .head = root->head};

    CR_TRY(take_options(model, o, own, err));
    if (own->saved && model->num_adapters > 1)
        return cr_fail(err, CR_EABSENT,
                       "%s: an adapter with modules in full (modules_to_save: %s) is not available "
                       "beside other adapters of the model",
                       own->folder ? own->folder : "additional_target", own->saved);
    CR_TRY(cri_saved_add(model, own, err));
    add_name(&t, "embed_tokens");
    list_targets(model->root, &t);
    if (take_targets(&t, own, err) == CR_OK)
        list_adapted(&t, model, own);
    else if (own->folder)
        cr_fail_add(err, "%s", own->folder);
    cr_free(t.linears);
    cr_free(t.blocks);
    cr_free(t.names);
    return err->status;
}

cr_status cri_adapters_add(cr_model *model, const cr_adapter_options *o, cr_err *err)
{
    cr_adapter_options *own;
    int at = 0;

    for (const cr_adapter_options *each = o; each; each = each->next)
        model->num_adapters++;
    model->adapters = own = cri_alloc(model, (size_t)model->num_adapters * sizeof *own);
    for (; o; o = o->next)
        CR_TRY(add_adapter(model, o, &own[at++], err));
    freeze_base(model->root);
    return CR_OK;
}
