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
        s->num_dims = 3;
        s->row_step = 1;
        s->col_step = wide * rows;
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

int64_t cr_stacked_num_columns(const cr_param *p)
{
    const cr_stacked *s = p->stacked;

    return s->row_step == 1 ? p->shape[1] : s->col_step == 1 ? p->shape[0] : p->num_elems;
}

/* Rows [.., stop) of a column. */
static cr_column column_of(const cr_param *p, int64_t begin, int64_t end, int64_t col)
{
    int64_t cols = p->shape[1];
    int64_t row = begin > col ? (begin - col + cols - 1) / cols : 0,
            stop = end > col ? (end - col + cols - 1) / cols : 0;

    return (cr_column){.elem = row * cols + col,
                       .step = cols,
                       .at = p->stacked->first + col * p->stacked->col_step + row,
                       .num = stop > row ? stop - row : 0};
}

cr_column cr_stacked_column(const cr_param *p, int64_t begin, int64_t end, int64_t index)
{
    const cr_stacked *s = p->stacked;
    int64_t cols = p->shape[1], num = s->col_step == 1 ? cols : 1, first = index * num,
            elem = cr_max64(begin, first), stop = end < first + num ? end : first + num;

    if (s->row_step == 1) return column_of(p, begin, end, index);
    return (cr_column){.elem = elem,
                       .step = 1,
                       .at = s->first + elem / cols * s->row_step + elem % cols * s->col_step,
                       .num = stop > elem ? stop - elem : 0};
}
