/* cost.c -- see cost.h. */
#include "models/vision/cost.h"

/* Passes over a Linear. */
static double passes(const cr_param *p, bool is_text)
{
    return p->is_trainable ? 3 : is_text ? 2 : 1;
}

typedef struct sums {
    double patch, merged, text; /* FLOPs */
    bool does_tower_train;
} sums;

/* A matrix that all rows are multiplied by: Linears and the convolution that embeds patches; no table, not the head. */
static bool is_counted(const cr_module *m)
{
    return m->weight && !m->is_lookup && !m->is_lm_head &&
           (m->weight->is_product || m->weight->num_dims > 3);
}

static void add_module(const cr_model *model, const cr_module *m, sums *s)
{
    const cr_model_config *c = &model->config;
    double flops;

    for (size_t i = 0; i < m->num_children; i++)
        add_module(model, m->children[i], s);
    if (!is_counted(m)) return;
    flops = 2.0 * (double)m->weight->num_elems;
    if (cr_is_named(m->weight->name, model->towers.projector)) {
        s->merged += flops * passes(m->weight, false);
    } else if (cr_is_named(m->weight->name, model->towers.vision)) {
        s->patch += flops * passes(m->weight, false);
        s->does_tower_train = s->does_tower_train || m->weight->is_trainable;
    } else {
        if (m->expert >= 0) flops *= (double)c->num_experts_per_tok / (double)c->num_experts;
        s->text += flops * passes(m->weight, true);
    }
}

void cr_image_cost_of(const cr_model *model, cr_image_cost *out)
{
    const cr_vision_config *v = model->config.vision;
    sums s = {0};
    double pair;

    *out = (cr_image_cost){0};
    if (!v) return;
    add_module(model, model->root, &s);
    pair = (s.does_tower_train ? 3 : 1) * 4 / s.text;
    out->patch = s.patch / s.text;
    out->merged = s.merged / s.text;
    out->merge = v->merge;
    if (v->window_size) out->window = v->window_size / v->patch_size;
    for (int64_t i = 0; i < v->depth && !v->num_vits; i++)
        *(v->is_full[i] ? &out->frame_pair : &out->window_pair) += pair * (double)v->hidden_size;
    for (int i = 0; i < v->num_vits; i++)
        out->frame_pair += pair * (double)(v->vit[i].num_blocks * v->vit[i].hidden_size);
}

/* Of a side that is cut at every `window`: pairs of places in the same piece. */
static double pairs(int64_t side, int64_t window)
{
    const int64_t rest = side % window;

    return (double)(side / window * window * window + rest * rest);
}

double cr_image_cost_tokens(const cr_image_cost *c, const int32_t grid[3])
{
    const double patches = (double)grid[1] * grid[2];
    double frame = c->patch * patches + c->frame_pair * patches * patches;

    if (!c->merge) return 0;
    frame += c->merged * patches / (double)(c->merge * c->merge);
    if (c->window) frame += c->window_pair * pairs(grid[1], c->window) * pairs(grid[2], c->window);
    return grid[0] * frame;
}
