/* build_vision.c -- the vision tower's part of the tree, with the names and classes of Transformers. */
#include "models/vision/vision_impl.h"

#include <stdio.h>

typedef struct tower {
    const cr_model *model;
    const cri_family *family;
    const cr_vision_config *c;
    const char *norm; /* class */
    bool is_layer_norm;
} tower;

static cr_module *add_norm(const tower *t, cr_module *parent, const char *name, int64_t cols)
{
    cr_module *m = cri_module_add(t->model, parent, name, t->norm, 0, 2);

    cri_param_add(m, "weight", CR_INIT_ONES, cols, 0);
    if (t->is_layer_norm) cri_param_add(m, "bias", CR_INIT_ZEROS, cols, 0);
    m->impl = &t->model->config.vision->norm_eps;
    return m;
}

static void add_patch_embed(const tower *t, cr_module *visual, cri_vision *impl)
{
    const cr_vision_config *c = t->c;
    cr_module *m = cri_module_add(
        t->model, visual, "patch_embed",
        cri_class(t->model, t->is_layer_norm ? t->family->prefix : "Qwen2_5_", "VisionPatchEmbed"),
        1, 0);
    const int64_t shape[CR_PARAM_MAX_DIMS] = {c->hidden_size, c->in_channels,
                                              c->temporal_patch_size, c->patch_size, c->patch_size};

    impl->patch_embed = m;
    impl->patch_proj = cri_module_add(t->model, m, "proj", "Conv3d", 0, 2);
    cri_conv_add(impl->patch_proj, "weight", shape);
    if (t->is_layer_norm) cri_param_add(impl->patch_proj, "bias", CR_INIT_ZEROS, c->hidden_size, 0);
}

static cr_module *add_attention(const tower *t, cr_module *block, int64_t at)
{
    int64_t d = t->c->hidden_size;
    cr_module *m = cri_module_add(t->model, block, "attn",
                                  cri_class(t->model, t->family->prefix, "VisionAttention"), 2, 0);
    cri_vision_attention *a = cri_alloc(t->model, sizeof *a);

    m->impl = a;
    m->ops = &cri_vision_attention_ops;
    a->qkv = cri_linear_add(m, "qkv", d, 3 * d, true);
    a->proj = cri_linear_add(m, "proj", d, d, true);
    a->num_heads = t->c->num_heads;
    a->is_full = t->c->is_full[at];
    return m;
}

static cr_module *add_gelu_mlp(const tower *t, cr_module *block)
{
    int64_t d = t->c->hidden_size, f = t->c->intermediate_size;
    cr_module *m = cri_module_add(t->model, block, "mlp",
                                  cri_class(t->model, t->family->prefix, "VisionMLP"), 4, 0);
    cri_gelu_mlp *mlp = cri_alloc(t->model, sizeof *mlp);

    m->impl = mlp;
    m->ops = &cri_gelu_mlp_ops;
    mlp->fc1 = cri_linear_add(m, "linear_fc1", d, f, true);
    mlp->fc2 = cri_linear_add(m, "linear_fc2", f, d, true);
    mlp->kind = CR_GELU_TANH;
    cri_module_add(t->model, m, "act_fn", "GELUTanh", 0, 0);
    return m;
}

static cr_module *add_swiglu_mlp(const tower *t, cr_module *block)
{
    int64_t d = t->c->hidden_size, f = t->c->intermediate_size;
    cr_module *m =
        cri_module_add(t->model, block, "mlp", cri_class(t->model, t->family->prefix, "MLP"), 4, 0);
    cri_mlp *mlp = cri_alloc(t->model, sizeof *mlp);

    m->impl = mlp;
    m->ops = &cri_mlp_ops;
    mlp->gate = cri_linear_add(m, "gate_proj", d, f, true);
    mlp->up = cri_linear_add(m, "up_proj", d, f, true);
    mlp->down = cri_linear_add(m, "down_proj", f, d, true);
    mlp->width = f;
    cri_module_add(t->model, m, "act_fn", "SiLUActivation", 0, 0);
    return m;
}

static cr_module *add_block(const tower *t, cr_module *list, int64_t at)
{
    int64_t d = t->c->hidden_size;
    char name[24];
    cr_module *m;
    cri_layer *layer;

    snprintf(name, sizeof name, "%lld", (long long)at);
    m = cri_module_add(t->model, list, name, cri_class(t->model, t->family->prefix, "VisionBlock"),
                       4, 0);
    m->impl = layer = cri_alloc(t->model, sizeof *layer);
    m->ops = &cri_layer_ops;
    m->is_checkpointed = true;
    layer->half[0].norm = add_norm(t, m, "norm1", d);
    layer->half[1].norm = add_norm(t, m, "norm2", d);
    layer->half[0].part = add_attention(t, m, at);
    layer->half[1].part = t->is_layer_norm ? add_gelu_mlp(t, m) : add_swiglu_mlp(t, m);
    return m;
}

/* norm_cols: those of a row, or of the four that become one. */
static void add_merger(const tower *t, cr_module *parent, const char *name, int64_t norm_cols,
                       cri_vision_merger *out)
{
    int64_t wide = CR_MERGE * CR_MERGE * t->c->hidden_size;
    cr_module *m = cri_module_add(t->model, parent, name,
                                  cri_class(t->model, t->family->prefix,
                                            t->is_layer_norm ? "VisionPatchMerger" : "PatchMerger"),
                                  4, 0);

    out->module = m;
    out->norm = add_norm(t, m, t->is_layer_norm ? "norm" : "ln_q", norm_cols);
    if (!t->is_layer_norm)
        m = out->sequential = cri_module_add(t->model, m, "mlp", "Sequential", 3, 0);
    out->fc1 = cri_linear_add(m, t->is_layer_norm ? "linear_fc1" : "0", wide, wide, true);
    cri_module_add(t->model, m, t->is_layer_norm ? "act_fn" : "1", "GELU", 0, 0);
    out->fc2 =
        cri_linear_add(m, t->is_layer_norm ? "linear_fc2" : "2", wide, t->c->out_hidden_size, true);
}

static void add_deepstack(const tower *t, cr_module *visual, cri_vision *impl)
{
    size_t num = (size_t)t->c->num_deepstack;
    char name[24];

    impl->deepstack_list = cri_list_add(visual, "deepstack_merger_list", num);
    impl->deepstack = cri_alloc(t->model, num * sizeof *impl->deepstack);
    for (size_t i = 0; i < num; i++) {
        snprintf(name, sizeof name, "%zu", i);
        add_merger(t, impl->deepstack_list, name, CR_MERGE * CR_MERGE * t->c->hidden_size,
                   &impl->deepstack[i]);
    }
}

static void set_std(cr_module *m, float std)
{
    for (size_t i = 0; i < m->num_params; i++)
        m->params[i].init_std = std;
    for (size_t i = 0; i < m->num_children; i++)
        set_std(m->children[i], std);
}

cr_module *cri_vision_add(cr_module *parent, const cri_family *family)
{
    const cr_model *model = parent->model;
    const cr_vision_config *c = model->config.vision;
    bool is_layer_norm = family->vision == CRI_VISION_DEEPSTACK;
    tower t = {model, family, c,
               is_layer_norm ? "LayerNorm" : cri_class(model, family->prefix, "RMSNorm"),
               is_layer_norm};
    cr_module *m = cri_module_add(model, parent, "visual", family->vision_class, 6, 0);
    cri_vision *impl = cri_alloc(model, sizeof *impl);

    m->impl = impl;
    impl->config = c;
    add_patch_embed(&t, m, impl);
    if (c->position_side) {
        impl->pos_embed =
            cri_lookup_add(m, "pos_embed", c->position_side * c->position_side, c->hidden_size);
    }
    cri_module_add(model, m, "rotary_pos_emb",
                   cri_class(model, family->prefix, "VisionRotaryEmbedding"), 0, 0);
    impl->list = cri_list_add(m, "blocks", (size_t)c->depth);
    impl->blocks = cri_alloc(model, (size_t)c->depth * sizeof *impl->blocks);
    for (int64_t i = 0; i < c->depth; i++)
        impl->blocks[i] = add_block(&t, impl->list, i);
    add_merger(&t, m, "merger", c->hidden_size, &impl->merger);
    if (is_layer_norm) add_deepstack(&t, m, impl);
    set_std(m, c->initializer_range);
    return m;
}
