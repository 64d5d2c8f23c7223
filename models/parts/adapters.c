/* adapters.c -- LoRA: which Linears have one, and their products. */
#include "models/parts/adapters.h"

#include "base/pattern.h"
#include "base/rng.h"
#include "kernels/dropout.h"
#include "models/files/peft.h"

#include <math.h>
#include <string.h>

/* ---- which Linears ---- */

typedef struct linears {
    cr_module **m;
    size_t num;
} linears;

/* All but the head's. */
static void list_linears(cr_module *m, linears *out)
{
    const cri_root *root = m->model->root->impl;

    if (strcmp(m->cls, "Linear") == 0 && m != root->head) {
        out->m = cr_realloc(out->m, out->num * sizeof(*out->m), (out->num + 1) * sizeof(*out->m));
        out->m[out->num++] = m;
    }
    for (size_t i = 0; i < m->num_children; i++)
        list_linears(m->children[i], out);
}

static cr_status add_one(cr_module *m, const cr_adapter_options *o, cr_err *err)
{
    cr_adapter *adapter;
    int64_t in = m->weight->shape[1], out = m->weight->shape[0];
    cr_param *a, *b;

    if (m->adapter) return CR_OK;
    if (m->layer < 0 || m->expert >= 0 || m->parent->ops == &cri_sparse_ops)
        return cr_fail(err, CR_EABSENT, "an adapter of '%s' is not available (those of %s are not)",
                       m->name,
                       m->layer < 0     ? "vision towers"
                       : m->expert >= 0 ? "experts"
                                        : "routers");
    m->adapter = adapter = cri_alloc(m->model, sizeof *adapter);
    adapter->a = cri_linear_add(m, "lora_A", in, o->rank, false);
    adapter->b = cri_linear_add(m, "lora_B", o->rank, out, false);
    adapter->scale = (float)(o->alpha / (o->use_rslora ? sqrt((double)o->rank) : (double)o->rank));
    adapter->dropout = o->dropout;
    adapter->key = cr_hash64(m->name, strlen(m->name));
    a = adapter->a->weight;
    b = adapter->b->weight;
    a->init = CR_INIT_UNIFORM; /* kaiming_uniform with a = sqrt(5) */
    a->init_std = (float)(1 / sqrt((double)in));
    b->init = CR_INIT_ZEROS;
    a->is_added = b->is_added = a->is_adapter = b->is_adapter = true;
    return CR_OK;
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? dot + 1 : name;
}

static cr_status no_match(const linears *all, const char *target, cr_err *err)
{
    const char **names = CR_NEW_ARRAY(const char *, all->num + 1), *nearest;

    for (size_t i = 0; i < all->num; i++)
        names[i] = last_part(all->m[i]->name);
    nearest = cr_nearest(last_part(target), names, all->num);
    cr_fail(err, CR_ECONFIG, "target '%s' matches no Linear of the model%s%s%s", target,
            nearest ? " (is it '" : "", nearest ? nearest : "", nearest ? "'?)" : "");
    cr_free(names);
    return err->status;
}

/* Is it the name, or an end of it after a dot? */
static bool is_named(const char *name, const char *entry)
{
    size_t num = strlen(name), end = strlen(entry);

    return num >= end && strcmp(name + num - end, entry) == 0 &&
           (num == end || name[num - end - 1] == '.');
}

static cr_status add_named(const linears *all, const char *entry, const cr_adapter_options *o,
                           cr_err *err)
{
    bool is_all = strcmp(entry, "all-linear") == 0, is_found = false;

    for (size_t i = 0; i < all->num; i++) {
        if (!is_all && !is_named(all->m[i]->name, entry)) continue;
        is_found = true;
        CR_TRY(add_one(all->m[i], o, err));
    }
    return is_found ? CR_OK : no_match(all, entry, err);
}

static cr_status add_listed(const linears *all, const cr_adapter_options *o, cr_err *err)
{
    char *list = cr_strdup(o->target), *rest = list, *entry;

    while (err->status == CR_OK && (entry = strsep(&rest, ",")) != NULL) {
        entry += strspn(entry, " ");
        entry[strcspn(entry, " ")] = 0;
        cr_note(add_named(all, entry, o, err));
    }
    cr_free(list);
    return err->status;
}

static cr_status add_like(const linears *all, const cr_adapter_options *o, cr_err *err)
{
    char *whole = cr_asprintf("\\A(?:%s)\\z", o->target);
    bool is_any = false;
    cr_pattern *pattern = NULL;

    if (cr_pattern_open(whole, &pattern, err) != CR_OK) cr_fail_add(err, "target '%s'", o->target);
    for (size_t i = 0; i < all->num && err->status == CR_OK; i++) {
        size_t at = 0;
        bool is_found = false;
        cr_note(cr_pattern_next(pattern, all->m[i]->name, strlen(all->m[i]->name), &at, &is_found,
                                err));
        if (err->status == CR_OK && is_found) cr_note(add_one(all->m[i], o, err));
        is_any = is_any || is_found;
    }
    cr_pattern_close(pattern);
    cr_free(whole);
    return err->status == CR_OK && !is_any ? no_match(all, o->target, err) : err->status;
}

static void freeze_base(cr_module *m)
{
    for (size_t i = 0; i < m->num_params; i++)
        m->params[i].is_trainable = m->params[i].is_added;
    for (size_t i = 0; i < m->num_children; i++)
        freeze_base(m->children[i]);
}

static void keep_options(cr_model *model, const cr_adapter_options *o)
{
    cr_adapter_options *own = cri_alloc(model, sizeof *own);
    cr_arena *arena = model->own->arena;

    *own = *o;
    own->target = cr_arena_strndup(arena, o->target, strlen(o->target));
    if (o->folder) own->folder = cr_arena_strndup(arena, o->folder, strlen(o->folder));
    model->adapters = own;
}

/* What o leaves open is as its folder says; what it says is not otherwise there. Which modules those are, their tensors tell. */
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
    if (!o->target) o->target = there->target;
    o->rank = there->rank;
    o->alpha = there->alpha;
    o->use_rslora = there->use_rslora;
    o->folder = there->folder;
    if (o->dropout < 0) o->dropout = there->dropout;
    return CR_OK;
}

static cr_status take_options(cr_model *model, const cr_adapter_options *o, cr_err *err)
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
    if (err->status == CR_OK) keep_options(model, &all);
    cr_peft_options_fini(&there);
    cr_free(base);
    return err->status;
}

bool cr_adapter_is_pattern(const char *target)
{
    return strpbrk(target, "*$|(") != NULL;
}

const char *cr_model_adapter_folder(const cr_model *model)
{
    return model->adapters ? model->adapters->folder : NULL;
}

cr_status cri_adapters_add(cr_model *model, const cr_adapter_options *o, cr_err *err)
{
    linears all = {0};

    CR_TRY(take_options(model, o, err));
    o = model->adapters;
    list_linears(model->root, &all);
    cr_note(cr_adapter_is_pattern(o->target) ? add_like(&all, o, err) : add_listed(&all, o, err));
    freeze_base(model->root);
    cr_free(all.m);
    return err->status;
}

/* ---- products ---- */

/* to (dtype of the pass) = scale x; x is float32 and may be to. */
static cr_status put_scaled(const cr_adapter *a, const cr_pass *p, cr_mem *x, cr_mem *to,
                            size_t num, cr_err *err)
{
    CR_TRY(cr_scale(p->dev, &(cr_scale_args){x, a->scale, num}, err));
    if (x == to) return CR_OK;
    return cr_cast(p->dev, &(cr_cast_args){p->dtype, to, CR_F32, x, num}, err);
}

/* [num_rows, rank] on scratch, and the same in float32, which is the same memory if the pass is in it. */
static cr_status push_inner(const cr_adapter *a, cr_pass *p, cr_mem **h, cr_mem **wide, cr_err *err)
{
    int64_t rank = a->a->weight->shape[0];

    CR_TRY(cri_push(p->scratch, p, p->num_rows, rank, h, err));
    *wide = *h;
    return p->dtype == CR_F32 ? CR_OK : cri_push_32bit(p->scratch, p->num_rows * rank, wide, err);
}

/* *h = scale A x. */
static cr_status multiply_inner(const cr_adapter *a, cr_pass *p, const cr_mem *x, cr_mem **h,
                                cr_err *err)
{
    cr_linear_args l = {
        .x = x, .w = &a->a->weight->weight, .out_dtype = CR_F32, .num_rows = p->num_rows};
    cr_mem *wide;

    CR_TRY(push_inner(a, p, h, &wide, err));
    l.y = wide;
    CR_TRY(cr_linear(p->dev, &l, err));
    return put_scaled(a, p, wide, *h, (size_t)(p->num_rows * a->a->weight->shape[0]), err);
}

static bool is_dropped(const cr_adapter *a, const cr_pass *p)
{
    return p->index.drop_keys && a->dropout > 0;
}

/* y = add + x with dropout, [num_rows, in]. */
static cr_status drop(const cr_adapter *a, const cr_pass *p, const cr_mem *x, const cr_mem *add,
                      cr_mem *y, cr_err *err)
{
    return cr_rows_drop(p->dev,
                        &(cr_rows_drop_args){.dtype = p->dtype,
                                             .x = x,
                                             .add = add,
                                             .keys = p->index.drop_keys,
                                             .module_key = a->key,
                                             .rate = a->dropout,
                                             .num_rows = p->num_rows,
                                             .num_cols = a->a->weight->shape[1],
                                             .y = y},
                        err);
}

/* *to: what A is given for x: the same in forward, recompute and backward. */
static cr_status input_of(const cr_adapter *a, cr_pass *p, const cr_mem *x, const cr_mem **to,
                          cr_err *err)
{
    cr_mem *dropped;

    *to = x;
    if (!is_dropped(a, p) || !x) return CR_OK;
    CR_TRY(cri_push(p->scratch, p, p->num_rows, a->a->weight->shape[1], &dropped, err));
    *to = dropped;
    return drop(a, p, x, NULL, dropped, err);
}

cr_status cri_adapter_forward(const cr_module *m, cr_pass *p, const cr_mem *x, cr_mem *y,
                              cr_err *err)
{
    const cr_adapter *a = m->adapter;
    size_t mark = cr_stack_mark(p->scratch);
    cr_linear_args l = {.w = &a->b->weight->weight,
                        .add = y,
                        .y = y,
                        .out_dtype = p->dtype,
                        .num_rows = p->num_rows};
    cr_mem *h;

    CR_TRY(input_of(a, p, x, &x, err));
    CR_TRY(multiply_inner(a, p, x, &h, err));
    l.x = h;
    CR_TRY(cr_linear(p->dev, &l, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* dA += dh^T x; dx += dh A, where x was not dropped. */
static cr_status back_inner(const cr_adapter *a, cr_pass *p, const cr_mem *x, const cr_mem *dh,
                            cr_mem *dx, cr_err *err)
{
    const cr_param *w = a->a->weight;
    bool has_own = is_dropped(a, p) && dx; /* the gradient of what A was given */
    cr_linear_grad_args inner = {.x = x,
                                 .dy = dh,
                                 .w = &w->weight,
                                 .dx = dx,
                                 .is_dx_added = !has_own,
                                 .dw = cri_grad(w),
                                 .num_rows = p->num_rows};

    if (has_own) CR_TRY(cri_push(p->scratch, p, p->num_rows, w->shape[1], &inner.dx, err));
    CR_TRY(cr_linear_grad(p->dev, &inner, err));
    return has_own ? drop(a, p, inner.dx, dx, dx, err) : CR_OK;
}

cr_status cri_adapter_backward(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                               cr_mem *dx, cr_err *err)
{
    const cr_adapter *a = m->adapter;
    size_t mark = cr_stack_mark(p->scratch), num;
    cr_mem *h = NULL, *dh, *wide;
    cr_linear_grad_args outer;

    num = (size_t)(p->num_rows * a->a->weight->shape[0]);
    CR_TRY(input_of(a, p, m->has_trainable ? x : NULL, &x, err));
    if (m->has_trainable) CR_TRY(multiply_inner(a, p, x, &h, err));
    CR_TRY(push_inner(a, p, &dh, &wide, err));
    outer = (cr_linear_grad_args){.x = h,
                                  .dy = dy,
                                  .w = &a->b->weight->weight,
                                  .dx = dh,
                                  .dw = cri_grad(a->b->weight),
                                  .num_rows = p->num_rows};
    CR_TRY(cr_linear_grad(p->dev, &outer, err));
    if (wide != dh) CR_TRY(cr_cast(p->dev, &(cr_cast_args){CR_F32, wide, p->dtype, dh, num}, err));
    CR_TRY(put_scaled(a, p, wide, dh, num, err));
    CR_TRY(back_inner(a, p, x, dh, dx, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}
