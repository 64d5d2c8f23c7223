/* build_prismatic.c -- the tree of a Prismatic model beside its language model: names of the port to Transformers, classes of
 * timm and of the original, which its wrap policy names.
 *
 * The last block of a vision transformer, its last norm and its pool have no part in what the model computes: they are not
 * in the tree, and a checkpoint's are left alone.
 */
#include "models/prismatic/prismatic.h"

#include <stdio.h>

static cr_module *add(cr_module *parent, const char *name, const char *cls, size_t max_children,
                      size_t max_params)
{
    return cri_module_add(parent->model, parent, name, cls, max_children, max_params);
}

static cr_module *add_norm(cr_module *parent, const char *name, const cr_vit_config *c)
{
    cr_module *m = add(parent, name, "LayerNorm", 0, 2);

    cri_param_add(m, "weight", CR_INIT_ONES, c->hidden_size, 0);
    cri_param_add(m, "bias", CR_INIT_ZEROS, c->hidden_size, 0);
    m->impl = &c->norm_eps;
    return m;
}

static cr_module *add_scale(cr_module *parent, const char *name, const cr_vit_config *c)
{
    cr_module *m = add(parent, name, "LayerScale", 0, 1);

    cri_param_add(m, "scale_factor", CR_INIT_ONES, c->hidden_size, 0);
    return m;
}

static cr_module *add_attention(cr_module *block, const cr_vit_config *c)
{
    cr_module *m = add(block, "attn", "Attention", 2, 0);
    cri_vision_attention *a = cri_alloc(m->model, sizeof *a);

    m->impl = a;
    m->ops = &cri_vision_attention_ops;
    a->qkv = cri_linear_add(m, "qkv", c->hidden_size, 3 * c->hidden_size, true);
    a->proj = cri_linear_add(m, "proj", c->hidden_size, c->hidden_size, true);
    a->num_heads = c->num_heads;
    a->is_full = true;
    return m;
}

static cr_module *add_mlp(cr_module *block, const cr_vit_config *c)
{
    cr_module *m = add(block, "mlp", "Mlp", 3, 0);
    cri_gelu_mlp *mlp = cri_alloc(m->model, sizeof *mlp);

    m->impl = mlp;
    m->ops = &cri_gelu_mlp_ops;
    mlp->fc1 = cri_linear_add(m, "fc1", c->hidden_size, c->intermediate_size, true);
    add(m, "act", c->has_tanh ? "GELUTanh" : "GELU", 0, 0);
    mlp->fc2 = cri_linear_add(m, "fc2", c->intermediate_size, c->hidden_size, true);
    mlp->kind = c->has_tanh ? CR_GELU_TANH : CR_GELU_ERF;
    return m;
}

static cr_module *add_block(cr_module *list, int64_t at, const cr_vit_config *c)
{
    char name[24];
    cr_module *m;
    cri_layer *layer;

    snprintf(name, sizeof name, "%lld", (long long)at);
    m = add(list, name, "Block", 6, 0);
    m->impl = layer = cri_alloc(m->model, sizeof *layer);
    m->ops = &cri_layer_ops;
    m->is_checkpointed = true;
    layer->half[0].norm = add_norm(m, "norm1", c);
    layer->half[0].part = add_attention(m, c);
    if (c->has_layer_scale) layer->half[0].after = add_scale(m, "ls1", c);
    layer->half[1].norm = add_norm(m, "norm2", c);
    layer->half[1].part = add_mlp(m, c);
    if (c->has_layer_scale) layer->half[1].after = add_scale(m, "ls2", c);
    layer->half[0].is_scaled = layer->half[1].is_scaled = c->has_layer_scale;
    return m;
}

/* [1, num, hidden_size] */
static void add_table(cri_vit *v, const char *name, int64_t first, int64_t num)
{
    cr_param *p = cri_param_add(v->module, name, CR_INIT_NORMAL, num, v->c->hidden_size);

    p->num_dims = 3;
    p->shape[0] = 1;
    p->shape[1] = num;
    p->shape[2] = v->c->hidden_size;
    v->tables[v->num_tables++] = (cri_vit_table){p, first, num};
}

static void add_patch_embed(cri_vit *v)
{
    const cr_vit_config *c = v->c;
    cr_param *p;

    v->patch_embed = add(v->module, "patch_embed", "PatchEmbed", 1, 0);
    v->patch_proj = add(v->patch_embed, "proj", "Conv2d", 0, 2);
    p = cri_param_add(v->patch_proj, "weight", CR_INIT_NORMAL, c->hidden_size, c->patch_dim);
    p->num_dims = 4;
    p->shape[1] = 3;
    p->shape[2] = p->shape[3] = c->patch_size;
    cri_param_add(v->patch_proj, "bias", CR_INIT_ZEROS, c->hidden_size, 0);
}

static void add_vit(cr_module *parent, const char *name, const cr_vit_config *c, cri_vit *v)
{
    int64_t before = c->num_class + c->num_reg, patches = c->side * c->side;

    v->c = c;
    v->module = add(parent, name, "VisionTransformer", 2, CRI_VIT_TABLES);
    v->module->impl = v;
    if (c->num_class) add_table(v, "cls_token", 0, c->num_class);
    if (c->num_reg) add_table(v, "reg_token", c->num_class, c->num_reg);
    add_table(v, "pos_embed", before + patches - c->num_positions, c->num_positions);
    add_patch_embed(v);
    v->list = cri_list_add(v->module, "blocks", (size_t)c->num_blocks);
    v->list->cls = "Sequential";
    v->blocks = cri_alloc(parent->model, (size_t)c->num_blocks * sizeof *v->blocks);
    for (int64_t i = 0; i < c->num_blocks; i++)
        v->blocks[i] = add_block(v->list, i, c);
}

static const char *add_projector(cr_model *model, cri_prismatic *parts)
{
    static const char *const classes[] = {"LinearProjector", "MLPProjector", "FusedMLPProjector"};
    const cr_vision_config *c = model->config.vision;
    int64_t wide = c->projector == CR_PROJECTOR_FUSED_MLP ? 4 * c->hidden_size : c->out_hidden_size,
            in = c->hidden_size;
    cr_module *m = add(model->root, "projector", classes[c->projector], 5, 0);

    parts->projector = m;
    parts->num_linears = (int)c->projector + 1;
    for (int i = 0; i < parts->num_linears; i++) {
        int64_t out = i == 0 ? wide : c->out_hidden_size;
        char name[24];
        snprintf(name, sizeof name, "fc%d", i + 1);
        parts->linears[i] = cri_linear_add(m, name, in, out, true);
        in = out;
        snprintf(name, sizeof name, "act_fn%d", i + 1);
        if (i + 1 < parts->num_linears) add(m, cri_class(model, name, ""), "GELU", 0, 0);
    }
    return m->cls;
}

/* What files have of a tower and the tree has not. */
static void list_unused(const cri_vit *v, cr_buf *out)
{
    const char *name = v->module->name;

    cr_buf_addf(out, "%s%s.%lld.,%s.norm.,%s.attn_pool.,%s.fc_norm.", out->num_bytes ? "," : "",
                v->list->name, (long long)v->c->num_blocks, name, name, name);
}

void cri_prismatic_add(cr_model *model, cri_root *root)
{
    static const char *const names[] = {"featurizer", "fused_featurizer"};
    const cr_vision_config *c = model->config.vision;
    cr_module *m = add(model->root, "vision_backbone", "PrismaticVisionBackbone", CR_MAX_VITS, 0);
    cri_prismatic *parts = cri_alloc(model, sizeof *parts);
    const char **no_split = cri_alloc(model, 5 * sizeof *no_split);
    cr_buf unused = {0};

    m->impl = parts;
    root->visual = model->tower = m;
    root->tower_ops = &cri_prismatic_ops;
    parts->num_vits = c->num_vits;
    for (int i = 0; i < c->num_vits; i++) {
        add_vit(m, names[i], &c->vit[i], &parts->vit[i]);
        list_unused(&parts->vit[i], &unused);
    }
    no_split[0] = "LlamaDecoderLayer";
    no_split[1] = "VisionTransformer";
    no_split[2] = "Block";
    no_split[3] = add_projector(model, parts);
    root->projector = parts->projector;
    model->no_split = no_split;
    model->is_no_split_nested = true;
    model->towers =
        (cr_towers){"vision_backbone.", "projector.", cri_class(model, unused.data, "")};
    cr_buf_free(&unused);
}
