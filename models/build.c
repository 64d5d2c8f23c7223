/* build.c -- config.json to the tree of modules, with the names and classes of Transformers. */
#include "base/hub.h"
#include "models/parts/adapters.h"
#include "models/parts/head.h"
#include "models/prismatic/prismatic.h"
#include "models/vision/vision_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- pieces of a tree ---- */

void *cri_alloc(const cr_model *model, size_t num_bytes)
{
    void *ptr = cr_arena_alloc(model->own->arena, num_bytes ? num_bytes : 1);

    memset(ptr, 0, num_bytes);
    return ptr;
}

static char *join_name(const cr_model *model, const char *parent, const char *name)
{
    size_t num = strlen(parent) + strlen(name) + 2;
    char *full = cri_alloc(model, num);

    snprintf(full, num, "%s%s%s", parent, *parent ? "." : "", name);
    return full;
}

const char *cri_class(const cr_model *model, const char *prefix, const char *suffix)
{
    size_t num = strlen(prefix) + strlen(suffix) + 1;
    char *name = cri_alloc(model, num);

    snprintf(name, num, "%s%s", prefix, suffix);
    return name;
}

cr_module *cri_module_add(const cr_model *model, cr_module *parent, const char *name,
                          const char *cls, size_t max_children, size_t max_params)
{
    cr_module *m = cri_alloc(model, sizeof *m);

    m->name = join_name(model, parent ? parent->name : "", name);
    m->cls = cls;
    m->parent = parent;
    m->model = model;
    m->layer = parent ? parent->layer : -1;
    m->expert = parent ? parent->expert : -1;
    m->children = cri_alloc(model, max_children * sizeof *m->children);
    m->params = cri_alloc(model, max_params * sizeof *m->params);
    if (parent) parent->children[parent->num_children++] = m;
    return m;
}

cr_param *cri_param_add(cr_module *m, const char *name, cr_init_kind init, int64_t rows,
                        int64_t cols)
{
    cr_param *param = &m->params[m->num_params++];

    if (strcmp(name, "weight") == 0) m->weight = param;
    if (strcmp(name, "bias") == 0) m->bias = param;
    param->name = join_name(m->model, m->name, name);
    param->file_name = param->name;
    param->init_std = m->model->config.initializer_range;
    param->num_dims = cols ? 2 : 1;
    param->shape[0] = rows;
    param->shape[1] = cols;
    param->num_elems = cols ? rows * cols : rows;
    param->init = init;
    param->is_trainable = true;
    param->weight.num_rows = cols ? rows : 1;
    param->weight.num_cols = cols ? cols : rows;
    return param;
}

cr_param *cri_conv_add(cr_module *m, const char *name, const int64_t shape[CR_PARAM_MAX_DIMS])
{
    int64_t cols = 1;
    cr_param *param;

    for (int i = 1; i < CR_PARAM_MAX_DIMS; i++)
        cols *= shape[i];
    param = cri_param_add(m, name, CR_INIT_NORMAL, shape[0], cols);
    param->num_dims = CR_PARAM_MAX_DIMS;
    memcpy(param->shape, shape, sizeof param->shape);
    return param;
}

cr_module *cri_linear_add(cr_module *parent, const char *name, int64_t in, int64_t out,
                          bool has_bias)
{
    cr_module *m = cri_module_add(parent->model, parent, name, "Linear", 0, 2);

    cri_param_add(m, "weight", CR_INIT_NORMAL, out, in)->is_product = true;
    if (has_bias) cri_param_add(m, "bias", CR_INIT_ZEROS, out, 0);
    return m;
}

/* One that runs through cri_linear_back or a decoder layer's cri_mlp_ops. */
static cr_module *add_product(cr_module *parent, const char *name, int64_t in, int64_t out,
                              bool has_bias)
{
    cr_module *m = cri_linear_add(parent, name, in, out, has_bias);

    m->weight->can_be_set = true;
    return m;
}

cr_module *cri_lookup_add(cr_module *parent, const char *name, int64_t rows, int64_t cols)
{
    cr_module *m = cri_module_add(parent->model, parent, name, "Embedding", 0, 1);

    m->is_lookup = true;
    cri_param_add(m, "weight", CR_INIT_NORMAL, rows, cols);
    return m;
}

cr_module *cri_list_add(cr_module *parent, const char *name, size_t max_children)
{
    cr_module *m = cri_module_add(parent->model, parent, name, "ModuleList", max_children, 0);

    m->is_container = true;
    return m;
}

static void tie(cr_param *param, cr_param *to)
{
    param->tied_to = to;
    param->is_shared = to->is_shared = true;
    to->is_product |= param->is_product;
}

cr_module *cri_norm_add(cr_module *parent, const char *name, const char *cls, int64_t cols)
{
    cr_module *m = cri_module_add(parent->model, parent, name, cls, 0, 1);

    cri_param_add(m, "weight", parent->model->config.norm_offset > 0 ? CR_INIT_ZEROS : CR_INIT_ONES,
                  cols, 0);
    return m;
}

/* ---- the common decoder ---- */

/* Class names that repeat in every layer. */
typedef struct classes {
    const char *layer, *attention, *mlp, *norm, *sparse, *experts;
} classes;

static cr_module *add_attention(cr_module *layer, const classes *cls)
{
    const cr_model *model = layer->model;
    const cr_model_config *c = &model->config;
    int64_t h = c->hidden_size, q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    cr_module *m = cri_module_add(model, layer, "self_attn", cls->attention, 6, 0);
    cri_attention *a = cri_alloc(model, sizeof *a);

    m->impl = a;
    m->ops = &cri_attention_ops;
    m->is_attention = true;
    a->q = add_product(m, "q_proj", h, q, c->has_qkv_bias);
    a->k = add_product(m, "k_proj", h, kv, c->has_qkv_bias);
    a->v = add_product(m, "v_proj", h, kv, c->has_qkv_bias);
    a->o = add_product(m, "o_proj", q, h, c->has_o_bias);
    if (c->has_qk_norm) {
        a->q_norm = cri_norm_add(m, "q_norm", cls->norm, c->head_dim);
        a->k_norm = cri_norm_add(m, "k_norm", cls->norm, c->head_dim);
    }
    return m;
}

static cr_module *add_mlp(cr_module *parent, const char *name, const classes *cls, int64_t f)
{
    const cr_model *model = parent->model;
    const cr_model_config *c = &model->config;
    int64_t h = c->hidden_size;
    cr_module *m = cri_module_add(model, parent, name, cls->mlp, 4, 0);
    cri_mlp *mlp = cri_alloc(model, sizeof *mlp);

    m->impl = mlp;
    m->ops = &cri_mlp_ops;
    mlp->gate = add_product(m, "gate_proj", h, f, c->has_mlp_bias);
    mlp->up = add_product(m, "up_proj", h, f, c->has_mlp_bias);
    mlp->down = add_product(m, "down_proj", f, h, c->has_mlp_bias);
    mlp->width = f;
    mlp->is_geglu = c->has_geglu;
    cri_module_add(model, m, "act_fn", c->has_geglu ? "GELUTanh" : "SiLUActivation", 0, 0);
    return m;
}

static void mark_expert(cr_module *m, int expert)
{
    m->expert = expert;
    if (m->weight) m->weight->can_be_set = false; /* experts' products add */
    for (size_t i = 0; i < m->num_children; i++)
        mark_expert(m->children[i], expert);
}

static void add_expert(cr_module *list, const char *name, const classes *cls, int expert)
{
    mark_expert(add_mlp(list, name, cls, list->model->config.moe_intermediate_size), expert);
}

/* Names as in files: experts one by one. The class of their list is that of Transformers 5. */
static cr_module *add_sparse(cr_module *layer, const classes *cls)
{
    const cr_model *model = layer->model;
    const cr_model_config *c = &model->config;
    cr_module *m = cri_module_add(model, layer, "mlp", cls->sparse, 2, 0);
    cri_sparse *sparse = cri_alloc(model, sizeof *sparse);

    m->impl = sparse;
    m->ops = &cri_sparse_ops;
    sparse->gate = cri_linear_add(m, "gate", c->hidden_size, c->num_experts, false);
    sparse->list = cri_module_add(model, m, "experts", cls->experts, (size_t)c->num_experts, 0);
    for (int64_t e = 0; e < c->num_experts; e++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)e);
        add_expert(sparse->list, name, cls, (int)e);
    }
    return m;
}

/* The norms of a layer, by the names of Transformers: before attention, after it (families that have
 * norms there), before the MLP and after it. */
static void add_norms(cr_module *m, cri_layer *layer, const classes *cls)
{
    const cr_model_config *c = &m->model->config;
    int64_t h = c->hidden_size;

    layer->half[0].norm = cri_norm_add(m, "input_layernorm", cls->norm, h);
    if (!c->has_norms_after) {
        layer->half[1].norm = cri_norm_add(m, "post_attention_layernorm", cls->norm, h);
        return;
    }
    layer->half[0].after = cri_norm_add(m, "post_attention_layernorm", cls->norm, h);
    layer->half[1].norm = cri_norm_add(m, "pre_feedforward_layernorm", cls->norm, h);
    layer->half[1].after = cri_norm_add(m, "post_feedforward_layernorm", cls->norm, h);
}

static void add_layer(cr_module *list, int64_t at, const classes *cls)
{
    const cr_model *model = list->model;
    cr_module *m;
    cri_layer *layer;
    char name[24];

    snprintf(name, sizeof name, "%lld", (long long)at);
    m = cri_module_add(model, list, name, cls->layer, 6, 0);
    m->impl = layer = cri_alloc(model, sizeof *layer);
    m->ops = &cri_layer_ops;
    m->layer = (int)at;
    m->is_checkpointed = true;
    layer->half[0].part = add_attention(m, cls);
    layer->half[1].part = model->config.layers[at].is_sparse
                              ? add_sparse(m, cls)
                              : add_mlp(m, "mlp", cls, model->config.intermediate_size);
    add_norms(m, layer, cls);
    model->layers[at] = m;
}

static void add_decoder(cri_root *root, cr_module *base, const cri_family *family,
                        const classes *cls)
{
    const cr_model *model = base->model;
    const cr_model_config *c = &model->config;
    cr_module *list;

    root->embed = cri_lookup_add(base, "embed_tokens", c->vocab_size, c->hidden_size);
    root->embed->ops = &cri_embedding_ops;
    if (family->scales_embedding)
        root->embed->cls = cri_class(model, family->text_prefix, "TextScaledWordEmbedding");
    list = cri_list_add(base, "layers", (size_t)c->num_layers);
    for (int64_t i = 0; i < c->num_layers; i++)
        add_layer(list, i, cls);
    root->norm = cri_norm_add(base, "norm", cls->norm, c->hidden_size);
    cri_module_add(model, base, "rotary_emb",
                   cri_class(model, family->text_prefix, "RotaryEmbedding"), 0, 0);
}

/* Without values in files it begins as Transformers would, normal with bias 0, or as TRL, uniform within 1 / sqrt(in). */
static void add_value_head(cr_model *model, cri_root *root, cr_head_kind kind)
{
    const int64_t num_in = model->config.hidden_size;
    cr_module *m = root->head = cri_linear_add(model->root, "score", num_in, 1, true);

    root->head_ops = &cri_value_head_ops;
    if (kind == CR_HEAD_SCORE) { /* its bias stays 0 */
        m->bias->is_added = true;
        return;
    }
    m->weight->alias = join_name(model, "v_head", "summary.weight");
    m->bias->alias = join_name(model, "v_head", "summary.bias");
    m->weight->is_added = m->bias->is_added = true;
    if (kind != CR_HEAD_VALUE_TRL) return;
    m->weight->init = m->bias->init = CR_INIT_UNIFORM;
    m->weight->init_std = m->bias->init_std = (float)(1 / sqrt((double)num_in));
}

static void add_head(cr_model *model, cri_root *root, cr_head_kind kind)
{
    const cr_model_config *c = &model->config;

    if (kind != CR_HEAD_WORDS) {
        add_value_head(model, root, kind);
        return;
    }
    root->head = cri_linear_add(root->language ? root->language : model->root, "lm_head",
                                c->hidden_size, c->vocab_size, false);
    root->head_ops = &cri_vocab_head_ops;
    root->head->is_lm_head = true;
    if (c->is_tied) tie(root->head->weight, root->embed->weight);
}

static void add_qwen_tower(cr_model *model, cri_root *root, const cri_family *family,
                           const char **no_split)
{
    root->visual = cri_vision_add(root->base, family);
    root->tower_ops = &cri_qwen_tower_ops;
    no_split[1] = cri_class(model, family->prefix, "VisionBlock");
    model->towers.vision = "model.visual.";
    model->tower = root->visual;
    model->towers.projector =
        family->vision == CRI_VISION_DEEPSTACK && model->config.vision->num_deepstack
            ? "model.visual.merger.,model.visual.deepstack_merger_list."
            : "model.visual.merger.";
    root->text = cri_module_add(model, root->base, "language_model",
                                cri_class(model, family->prefix, "TextModel"), 4, 0);
}

static void build_tree(cr_model *model, cr_head_kind head)
{
    const cr_model_config *c = &model->config;
    const cri_family *family = cri_family_find(c->model_type);
    const char *text = family->text_prefix;
    classes cls = {cri_class(model, text, "DecoderLayer"),
                   cri_class(model, text, "Attention"),
                   family->mlp ? family->mlp : cri_class(model, text, "MLP"),
                   cri_class(model, text, "RMSNorm"),
                   cri_class(model, text, "SparseMoeBlock"),
                   cri_class(model, text, "Experts")};
    const char **no_split = cri_alloc(model, 3 * sizeof *no_split);
    cri_root *root;

    no_split[0] = cls.layer;
    model->no_split = no_split;
    model->layers = cri_alloc(model, (size_t)c->num_layers * sizeof *model->layers);
    model->root = cri_module_add(model, NULL, "", cri_class(model, c->architecture, ""), 3, 0);
    model->root->impl = root = cri_alloc(model, sizeof *root);
    if (family->vision == CRI_VISION_PRISMATIC) {
        cri_prismatic_add(model, root);
        root->language = cri_module_add(model, model->root, "language_model",
                                        cri_class(model, text, "ForCausalLM"), 2, 0);
        root->text =
            cri_module_add(model, root->language, "model", cri_class(model, text, "Model"), 4, 0);
    } else {
        root->base = cri_module_add(
            model, model->root, "model",
            family->base ? family->base : cri_class(model, family->prefix, "Model"), 4, 0);
        if (c->vision) add_qwen_tower(model, root, family, no_split);
    }
    add_decoder(root, root->text ? root->text : root->base, family, &cls);
    add_head(model, root, head);
}

/* The other spelling of names below model.visual and model.language_model; files of Qwen2.5-VL have
 * it. */
static void name_params(cr_model *model, cr_module *m)
{
    static const char visual[] = "model.visual.", text[] = "model.language_model.";
    const cri_family *family = cri_family_find(model->config.model_type);

    for (size_t i = 0; i < m->num_params; i++) {
        cr_param *p = &m->params[i];
        if (p->is_adapter && p->is_added) continue; /* PEFT has the names of the modules */
        if (strncmp(p->name, visual, sizeof visual - 1) == 0)
            p->alias = p->name + sizeof "model." - 1;
        else if (strncmp(p->name, text, sizeof text - 1) == 0)
            p->alias = join_name(model, "model", p->name + sizeof text - 1);
        if (p->alias && !p->is_adapter && family->vision == CRI_VISION_WINDOWS)
            p->file_name = p->alias;
    }
    for (size_t i = 0; i < m->num_children; i++)
        name_params(model, m->children[i]);
}

static void make_idle(cr_model *model)
{
    const cr_vision_config *c = model->config.vision;
    int32_t side = c->num_vits ? (int32_t)c->vit[0].side : CR_MERGE, (*grid)[3];
    cr_vision_input *idle = cri_alloc(model, sizeof *idle);
    size_t num = (size_t)side * (size_t)side * (size_t)c->patch_dim;

    grid = cri_alloc(model, sizeof *grid);
    (*grid)[0] = 1;
    (*grid)[1] = (*grid)[2] = side;
    *idle = (cr_vision_input){.pixels = cri_alloc(model, num * sizeof(float)),
                              .grid = (const int32_t(*)[3])grid,
                              .num_items = 1,
                              .num_patches = (int64_t)side * side,
                              .is_idle = true};
    model->own->idle = idle;
}

/* ---- walking ---- */

cr_status cr_module_walk(cr_module *module, cr_module_visit visit, void *ctx, cr_err *err)
{
    CR_TRY(visit(ctx, module, err));
    for (size_t i = 0; i < module->num_children; i++)
        CR_TRY(cr_module_walk(module->children[i], visit, ctx, err));
    return CR_OK;
}

static void list_some(cr_model *model, cr_module *m, bool are_copies)
{
    for (size_t i = 0; i < m->num_params; i++) {
        if (m->params[i].tied_to || !m->params[i].copy_of == are_copies) continue;
        if (model->params) model->params[model->num_params] = &m->params[i];
        m->params[i].index = model->num_params;
        model->num_params++;
    }
    for (size_t i = 0; i < m->num_children; i++)
        list_some(model, m->children[i], are_copies);
}

/* Copies come last: a tree without them has the same numbers. */
static void list_params(cr_model *model)
{
    model->num_params = 0;
    list_some(model, model->root, false);
    list_some(model, model->root, true);
}

/* The module whose full name is the first num_bytes of name. */
static cr_module *find_module(cr_module *m, const char *name, size_t num_bytes)
{
    for (size_t i = 0; i < m->num_children; i++) {
        cr_module *child = m->children[i];
        size_t num = strlen(child->name);
        if (num > num_bytes || strncmp(child->name, name, num) != 0) continue;
        if (num == num_bytes) return child;
        if (name[num] == '.') return find_module(child, name, num_bytes);
    }
    return NULL;
}

cr_module *cr_model_find_module(const cr_model *model, const char *name)
{
    return *name ? find_module(model->root, name, strlen(name)) : model->root;
}

cr_param *cr_model_find_param(const cr_model *model, const char *name)
{
    const char *dot = strrchr(name, '.');
    cr_module *m = dot ? find_module(model->root, name, (size_t)(dot - name)) : NULL;

    for (size_t i = 0; m && i < m->num_params; i++)
        if (strcmp(m->params[i].name, name) == 0)
            return m->params[i].tied_to ? m->params[i].tied_to : &m->params[i];
    return NULL;
}

static bool mark_trainable(cr_module *m)
{
    m->has_trainable = false;
    for (size_t i = 0; i < m->num_params; i++)
        m->has_trainable |= cri_own(&m->params[i])->is_trainable;
    for (size_t i = 0; i < m->num_children; i++)
        m->has_trainable |= mark_trainable(m->children[i]);
    return m->has_trainable;
}

bool cr_is_named(const char *name, const char *prefixes)
{
    for (const char *p = prefixes; p && *p;) {
        size_t n = strcspn(p, ",");
        while (n && *p == ' ')
            p++, n--;
        if (n && strncmp(name, p, n) == 0) return true;
        p += n;
        p += *p == ',';
    }
    return false;
}

void cr_model_mark_trainable(cr_model *model)
{
    mark_trainable(model->root);
}

/* ---- life ---- */

cr_status cr_model_build_with(const json_t *config, const json_t *generation_config,
                              const cr_model_options *options, cr_model **out, cr_err *err)
{
    static const cr_model_options none;
    const cr_model_options *with = options ? options : &none;
    cr_model *model = CR_NEW(cr_model);

    *out = NULL;
    model->own = CR_NEW(cr_model_parts);
    model->own->arena = cr_arena_create(1 << 16);
    model->config.json = json_deep_copy(config);
    if (cri_config_read(&model->config, model->config.json, generation_config, with->head, err) !=
        CR_OK) {
        cr_model_free(model);
        return cr_fail_add(err, "config.json");
    }
    build_tree(model, with->head);
    if (cri_family_find(model->config.model_type)->is_stacked) cri_stack_experts(model);
    if (cr_has_adapters(&with->adapters) &&
        cri_adapters_add(model, &with->adapters, err) != CR_OK) {
        cr_model_free(model);
        return err->status;
    }
    if (model->config.vision) {
        name_params(model, model->root);
        make_idle(model);
    }
    list_params(model);
    model->params = cri_alloc(model, model->num_params * sizeof(cr_param *));
    list_params(model);
    cr_model_mark_trainable(model);
    *out = model;
    return CR_OK;
}

cr_status cr_model_build(const json_t *config, const json_t *generation_config, cr_model **out,
                         cr_err *err)
{
    return cr_model_build_with(config, generation_config, NULL, out, err);
}

cr_status cr_model_open_with(const char *name, const cr_model_options *options, cr_model **out,
                             cr_err *err)
{
    char *folder = cr_hub_find(name), *path = cr_path_join(folder ? folder : "", "config.json"),
         *generation_path = cr_path_join(folder ? folder : "", "generation_config.json");
    json_t *config = NULL, *generation = NULL;

    *out = NULL;
    if (!folder)
        cr_note(cr_hub_absent(name, err));
    else if (!cr_file_exists(path))
        cr_fail(err, CR_EFORMAT, "%s has no config.json", folder);
    if (err->status != CR_OK) goto out;
    CR_TRY_GOTO(out, cr_json_read_file(path, &config, err));
    if (cr_file_exists(generation_path))
        CR_TRY_GOTO(out, cr_json_read_file(generation_path, &generation, err));
    if (cr_model_build_with(config, generation, options, out, err) != CR_OK)
        cr_fail_add(err, "%s", folder);
out:
    json_decref(config);
    json_decref(generation);
    cr_free(folder);
    cr_free(path);
    cr_free(generation_path);
    return err->status;
}

cr_status cr_model_open(const char *name, cr_model **out, cr_err *err)
{
    return cr_model_open_with(name, NULL, out, err);
}

void cr_model_free(cr_model *model)
{
    if (!model) return;
    cri_config_fini(&model->config);
    cr_arena_destroy(model->own->arena);
    cr_free(model->own);
    cr_free(model);
}
