/* stacked.c -- parameters that files have in tensors with others (weights.h). */
#include "models/models_impl.h"
#include "models/weights.h"

#include <stdio.h>
#include <string.h>

static char *tensor_name(cr_model *model, const char *parent, const char *name)
{
    size_t num = strlen(parent) + strlen(name) + 2;
    char *full = cri_alloc(model, num);

    snprintf(full, num, "%s.%s", parent, name);
    return full;
}

/* Where files have the three parameters of an expert. */
static void stack_expert(cr_model *model, cr_module *m)
{
    static const char *const tensors[] = {"gate_up_proj", "gate_up_proj", "down_proj"};
    const cri_mlp *mlp = m->impl;
    cr_param *const params[] = {mlp->gate->weight, mlp->up->weight, mlp->down->weight};
    int64_t num = model->config.num_experts;

    for (int i = 0; i < 3; i++) {
        int64_t rows = params[i]->shape[0], cols = params[i]->shape[1], wide = i < 2 ? 2 : 1;
        cr_stacked *s = cri_alloc(model, sizeof *s);
        s->tensor = tensor_name(model, m->parent->name, tensors[i]);
        s->shape[0] = num;
        s->shape[1] = cols;
        s->shape[2] = wide * rows;
        s->first = m->expert * wide * rows * cols + (i == 1 ? rows : 0);
        params[i]->stacked = s;
    }
}

void cri_stack_experts(cr_model *model)
{
    for (int64_t i = 0; i < model->config.num_layers; i++) {
        const cri_layer *layer = model->layers[i]->impl;
        const cri_sparse *sparse = layer->half[1].part->impl;
        for (size_t e = 0; model->config.layers[i].is_sparse && e < sparse->list->num_children; e++)
            stack_expert(model, sparse->list->children[e]);
    }
}

cr_column cr_stacked_column(const cr_param *param, int64_t begin, int64_t end, int64_t col)
{
    int64_t cols = param->shape[1];
    int64_t row = begin > col ? (begin - col + cols - 1) / cols : 0,
            stop = end > col ? (end - col + cols - 1) / cols : 0;

    return (cr_column){.elem = row * cols + col,
                       .step = cols,
                       .at = param->stacked->first + col * param->stacked->shape[2] + row,
                       .num = stop > row ? stop - row : 0};
}
