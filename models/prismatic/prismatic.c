/* prismatic.c -- images to rows of the language model through the vision backbone and the projector, and back.
 *
 * Each vision transformer runs by itself, one sequence an image, in float32 if the backbone is_fp32; its blocks keep what
 * vision.c says of towers: nothing below `lowest`, the first that gradients reach. The projector computes in the dtype of the
 * pass, from features that lie side by side. Stages of blocks (cr_pass_state.blocks) are those of the first
 * transformer, then of the second.
 */
#include "models/prismatic/prismatic.h"

#include <string.h>

/* What is left of a transformer for its backward: rows of its tokens, and where they go. */
typedef struct vit_rows {
    cr_patches patches; /* sequences; nothing of it is on the host */
    struct {
        cr_mem *slot, *weight; /* [rows] of the table's, and 1 or 0 */
    } table[CRI_VIT_TABLES];
    cr_mem *patch_row; /* [patches] row of each patch; NULL: patches are all rows */
    cr_mem
        *piece; /* [patches * hidden_size / piece_cols] where pieces of features lie side by side */
} vit_rows;

typedef struct frame {
    vit_rows vit[CR_MAX_VITS];
    cr_mem *features; /* [patches, all hidden sizes] in the dtype of the pass */
    cr_mem *y[2];     /* what Linears of the projector give, but for the last */
} frame;

/* One call, of one transformer. */
typedef struct vit_pass {
    const cri_vit *vit;
    const cr_vit_config *c;
    const cr_vision_input *in;
    const cr_vision_config *all;
    vit_rows *rows;
    cr_pass pass;
    cr_dtype dtype;                                          /* of features */
    int64_t images, patches, lowest, first_col, first_stage; /* patches of all images */
} vit_pass;

static int64_t piece_cols(const cr_vision_config *c)
{
    int64_t a = c->vit[0].hidden_size, b = c->num_vits > 1 ? c->vit[1].hidden_size : 0;

    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool are_tables_trained(const cri_vit *v)
{
    bool is_any = false;

    for (int i = 0; i < v->num_tables; i++)
        is_any = is_any || v->tables[i].param->is_trainable;
    return is_any;
}

static bool is_embed_trained(const cri_vit *v)
{
    return v->patch_embed->has_trainable || are_tables_trained(v);
}

static int64_t find_lowest(const cri_vit *v)
{
    int64_t i = 0;

    if (is_embed_trained(v)) return 0;
    while (i < v->c->num_blocks && !v->blocks[i]->has_trainable)
        i++;
    return i;
}

/* A pass on patches: without what belongs to tokens. */
static cr_pass pass_on(const cr_pass *p, int64_t num_rows)
{
    cr_pass own = *p;

    own.batch = NULL;
    own.kv = NULL;
    own.split = NULL;
    own.experts = NULL;
    own.mlp_tiles = 0;
    own.num_rows = num_rows;
    return own;
}

static int64_t tokens_before(const cr_vit_config *c)
{
    return c->num_class + c->num_reg;
}

static vit_pass open_vit(const cr_module *visual, cr_pass *p, const cr_vision_input *in, int k,
                         frame *kept)
{
    const cri_prismatic *parts = visual->impl;
    const cri_vit *v = &parts->vit[k];
    vit_pass t = {.vit = v,
                  .c = v->c,
                  .in = in,
                  .all = visual->model->config.vision,
                  .rows = &kept->vit[k],
                  .dtype = p->dtype,
                  .images = in->num_items,
                  .patches = in->num_patches};

    for (int i = 0; i < k; i++) {
        t.first_col += parts->vit[i].c->hidden_size;
        t.first_stage += parts->vit[i].c->num_blocks;
    }
    t.pass = pass_on(p, t.patches + t.images * tokens_before(v->c));
    if (!v->module->has_trainable) t.pass.tape = NULL;
    if (visual->is_fp32) t.pass.dtype = CR_F32;
    t.pass.patches = &t.rows->patches;
    t.lowest = t.pass.tape ? find_lowest(v) : v->c->num_blocks;
    return t;
}

/* ---- rows ---- */

static cr_status push_tables(vit_pass *t, cr_err *err)
{
    int64_t rows = t->pass.num_rows, each = rows / t->images;
    int32_t *slot = CR_NEW_ARRAY(int32_t, rows);
    float *weight = CR_NEW_ARRAY(float, rows);

    for (int i = 0; i < t->vit->num_tables; i++) {
        const cri_vit_table *table = &t->vit->tables[i];
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r % each - table->first;
            bool has_row = at >= 0 && at < table->num;
            slot[r] = has_row ? (int32_t)at : 0;
            weight[r] = has_row ? 1 : 0;
        }
        CR_TRY_GOTO(out, cr_stack_push_copy(cri_keep(&t->pass), slot, (size_t)rows * sizeof *slot,
                                            &t->rows->table[i].slot, err));
        CR_TRY_GOTO(out,
                    cr_stack_push_copy(cri_keep(&t->pass), weight, (size_t)rows * sizeof *weight,
                                       &t->rows->table[i].weight, err));
    }
out:
    cr_free(slot);
    cr_free(weight);
    return err->status;
}

/* Sequences of images, and where patches and pieces of their features are. */
static cr_status push_places(vit_pass *t, cr_err *err)
{
    int64_t before = tokens_before(t->c), each = t->patches / t->images, cols = piece_cols(t->all),
            pieces = t->c->hidden_size / cols, wide = t->all->hidden_size / cols;
    int32_t *cu = CR_NEW_ARRAY(int32_t, t->images + 1), *row = CR_NEW_ARRAY(int32_t, t->patches),
            *piece = CR_NEW_ARRAY(int32_t, t->patches * pieces);
    cr_patches *r = &t->rows->patches;
    cr_stack *keep = cri_keep(&t->pass);

    for (int64_t i = 0; i <= t->images; i++)
        cu[i] = (int32_t)(i * (before + each));
    for (int64_t i = 0; i < t->patches; i++) {
        row[i] = (int32_t)(i + (i / each + 1) * before);
        for (int64_t k = 0; k < pieces; k++)
            piece[i * pieces + k] = (int32_t)(i * wide + t->first_col / cols + k);
    }
    r->num = t->pass.num_rows;
    r->num_frames = t->images;
    r->frame_sizes = cri_seq_sizes(cu, t->images, /*is_bidirectional=*/true);
    CR_TRY_GOTO(out, cr_stack_push_copy(keep, cu, (size_t)(t->images + 1) * sizeof *cu,
                                        &r->on_device.frames, err));
    if (before)
        CR_TRY_GOTO(out, cr_stack_push_copy(keep, row, (size_t)t->patches * sizeof *row,
                                            &t->rows->patch_row, err));
    CR_TRY_GOTO(out, cr_stack_push_copy(keep, piece, (size_t)(t->patches * pieces) * sizeof *piece,
                                        &t->rows->piece, err));
out:
    cr_free(cu);
    cr_free(row);
    cr_free(piece);
    return err->status;
}

/* The tower's columns of the pixels, in its dtype; on scratch. */
static cr_status pixel_rows(vit_pass *t, const cr_mem **out, cr_err *err)
{
    cr_pass *p = &t->pass;
    int64_t cols = t->c->patch_dim, all = t->all->patch_dim,
            first = t->vit->c == &t->all->vit[0] ? 0 : all - cols;
    size_t num = (size_t)(t->patches * cols);
    float *host = CR_NEW_ARRAY(float, num);
    cr_mem *wide, *rows;
    cr_status status;

    for (int64_t i = 0; i < t->patches; i++)
        memcpy(host + i * cols, t->in->pixels + i * all + first, (size_t)cols * sizeof *host);
    status = cr_stack_push_copy(p->scratch, host, num * sizeof *host, &wide, err);
    cr_free(host);
    *out = wide;
    if (status != CR_OK || p->dtype == CR_F32) return status;
    CR_TRY(cri_push(p->scratch, p, t->patches, cols, &rows, err));
    *out = rows;
    return cr_cast(p->dev, &(cr_cast_args){p->dtype, rows, CR_F32, wide, num}, err);
}

/* ---- tokens ---- */

static cr_status embed(vit_pass *t, cr_mem *x, cr_err *err)
{
    const cri_vit *v = t->vit;
    cr_pass *p = &t->pass, patches = *p;
    size_t mark = cr_stack_mark(p->scratch);
    int64_t cols = t->c->hidden_size;
    const cr_mem *pixels;
    cr_mem *y = x;

    patches.num_rows = t->patches;
    CR_TRY(pixel_rows(t, &pixels, err));
    if (t->rows->patch_row) CR_TRY(cri_push(p->scratch, p, t->patches, cols, &y, err));
    CR_TRY(cri_enter(v->patch_embed, p, err));
    CR_TRY(cri_linear(v->patch_proj, &patches, pixels, NULL, y, err));
    CR_TRY(cri_leave(v->patch_embed, p, err));
    if (t->rows->patch_row) {
        CR_TRY(cr_zero(p->dev, x, (size_t)(p->num_rows * cols) * cr_dtype_bytes(p->dtype), err));
        CR_TRY(cr_rows_scatter(
            p->dev, &(cr_rows_move_args){p->dtype, y, t->rows->patch_row, t->patches, cols, x},
            err));
    }
    for (int i = 0; i < v->num_tables; i++)
        CR_TRY(cr_rows_combine(p->dev,
                               &(cr_rows_combine_args){.x = v->tables[i].param->weight.data,
                                                       .add = x,
                                                       .slot = t->rows->table[i].slot,
                                                       .weight = t->rows->table[i].weight,
                                                       .y = x,
                                                       .dtype = p->dtype,
                                                       .num_rows = p->num_rows,
                                                       .top_k = 1,
                                                       .num_cols = cols},
                               err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status back_embed(vit_pass *t, const cr_mem *grad, cr_err *err)
{
    const cri_vit *v = t->vit;
    cr_pass *p = &t->pass, patches = *p;
    int64_t cols = t->c->hidden_size;
    const cr_mem *pixels;
    cr_mem *rows;

    for (int i = 0; i < v->num_tables; i++) {
        if (!v->tables[i].param->is_trainable) continue;
        CR_TRY(
            cr_embedding_bag_grad(p->dev,
                                  &(cr_embedding_bag_grad_args){.dy = grad,
                                                                .dtype = p->dtype,
                                                                .index = t->rows->table[i].slot,
                                                                .weight = t->rows->table[i].weight,
                                                                .dw = cri_grad(v->tables[i].param),
                                                                .num_rows = p->num_rows,
                                                                .per_row = 1,
                                                                .num_cols = cols},
                                  err));
    }
    if (!v->patch_embed->has_trainable) return CR_OK;
    patches.num_rows = t->patches;
    CR_TRY(pixel_rows(t, &pixels, err));
    if (t->rows->patch_row) {
        CR_TRY(cri_push(p->scratch, p, t->patches, cols, &rows, err));
        CR_TRY(cr_rows_gather(
            p->dev,
            &(cr_rows_move_args){p->dtype, grad, t->rows->patch_row, t->patches, cols, rows}, err));
        grad = rows;
    }
    CR_TRY(cri_enter(v->patch_embed, p, err));
    CR_TRY(cri_linear_back(v->patch_proj, &patches, pixels, grad, NULL, CRI_DX_SET, err));
    return cri_leave(v->patch_embed, p, err);
}

/* ---- features ---- */

/* Patches among the rows, in the dtype of the pass, beside the other tower's. */
static cr_status put_features(vit_pass *t, const cr_mem *x, cr_mem *features, cr_err *err)
{
    cr_pass *p = &t->pass;
    int64_t cols = t->c->hidden_size, piece = piece_cols(t->all);
    size_t num = (size_t)(t->patches * cols);
    cr_mem *rows;

    if (t->rows->patch_row) {
        CR_TRY(cri_push(p->scratch, p, t->patches, cols, &rows, err));
        CR_TRY(cr_rows_gather(
            p->dev, &(cr_rows_move_args){p->dtype, x, t->rows->patch_row, t->patches, cols, rows},
            err));
        x = rows;
    }
    if (p->dtype != t->dtype) {
        CR_TRY(cr_stack_push(p->scratch, num * cr_dtype_bytes(t->dtype), &rows, err));
        CR_TRY(cr_cast(p->dev, &(cr_cast_args){t->dtype, rows, p->dtype, x, num}, err));
        x = rows;
    }
    return cr_rows_scatter(p->dev,
                           &(cr_rows_move_args){t->dtype, x, t->rows->piece,
                                                t->patches * (cols / piece), piece, features},
                           err);
}

/* The way back: *out [rows, hidden_size] of all tokens, on scratch. */
static cr_status take_gradient(vit_pass *t, const cr_mem *of_features, cr_mem **out, cr_err *err)
{
    cr_pass *p = &t->pass;
    int64_t cols = t->c->hidden_size, piece = piece_cols(t->all);
    size_t num = (size_t)(t->patches * cols);
    cr_mem *rows, *cast;

    CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, out, err));
    CR_TRY(cr_stack_push(p->scratch, num * cr_dtype_bytes(t->dtype), &rows, err));
    CR_TRY(cr_rows_gather(p->dev,
                          &(cr_rows_move_args){t->dtype, of_features, t->rows->piece,
                                               t->patches * (cols / piece), piece, rows},
                          err));
    cast = t->rows->patch_row ? NULL : *out;
    if (!cast) CR_TRY(cri_push(p->scratch, p, t->patches, cols, &cast, err));
    CR_TRY(cr_cast(p->dev, &(cr_cast_args){p->dtype, cast, t->dtype, rows, num}, err));
    if (!t->rows->patch_row) return CR_OK;
    CR_TRY(cr_zero(p->dev, *out, (size_t)(p->num_rows * cols) * cr_dtype_bytes(p->dtype), err));
    return cr_rows_scatter(
        p->dev, &(cr_rows_move_args){p->dtype, cast, t->rows->patch_row, t->patches, cols, *out},
        err);
}

/* ---- one transformer ---- */

/* Is the input of block i kept? */
static bool is_kept(const vit_pass *t, int64_t i)
{
    return t->pass.tape && i >= t->lowest && i < t->c->num_blocks;
}

static cr_status push_input(const vit_pass *t, int64_t i, cr_mem **x, cr_err *err)
{
    return cri_push(is_kept(t, i) ? t->pass.tape : t->pass.scratch, &t->pass, t->pass.num_rows,
                    t->c->hidden_size, x, err);
}

static cr_status run_vit(vit_pass *t, cr_mem *features, cr_err *err)
{
    const cri_vit *v = t->vit;
    cr_pass *p = &t->pass;
    cri_stage *kept = p->state->blocks + t->first_stage;
    cr_stack *tape = p->tape;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *x, *y;

    CR_TRY(push_tables(t, err));
    CR_TRY(push_places(t, err));
    CR_TRY(cri_enter(v->module, p, err));
    CR_TRY(push_input(t, 0, &x, err));
    CR_TRY(embed(t, x, err));
    for (int64_t i = 0; i < t->c->num_blocks; i++) {
        cr_status status;
        if (tape) {
            kept[i].in = x;
            kept[i].mark = cr_stack_mark(tape);
        }
        y = x;
        if (is_kept(t, i) || is_kept(t, i + 1)) CR_TRY(push_input(t, i + 1, &y, err));
        p->tape = i >= t->lowest ? tape : NULL;
        status = cr_module_forward(v->blocks[i], p, x, NULL, y, err);
        p->tape = tape;
        CR_TRY(status);
        x = y;
    }
    CR_TRY(put_features(t, x, features, err));
    CR_TRY(cri_leave(v->module, p, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status back_vit(vit_pass *t, const cr_mem *of_features, cr_err *err)
{
    const cri_vit *v = t->vit;
    cr_pass *p = &t->pass;
    const cri_stage *kept = p->state->blocks + t->first_stage;
    bool is_embed = is_embed_trained(v);
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *grad;

    if (!v->module->has_trainable) return CR_OK;
    CR_TRY(cri_enter(v->module, p, err));
    CR_TRY(take_gradient(t, of_features, &grad, err));
    for (int64_t i = t->c->num_blocks - 1; i >= t->lowest; i--) {
        CR_TRY(cr_module_backward(v->blocks[i], p, kept[i].in, grad,
                                  i > t->lowest || is_embed ? grad : NULL, err));
        cr_stack_release(p->tape, kept[i].mark);
    }
    if (is_embed) CR_TRY(back_embed(t, grad, err));
    CR_TRY(cri_leave(v->module, p, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* ---- the projector ---- */

static bool is_trained(const cr_module *visual)
{
    const cri_prismatic *parts = visual->impl;

    return visual->has_trainable || parts->projector->has_trainable;
}

static cr_status gelu(const cr_pass *p, const cr_mem *x, cr_mem *y, int64_t cols, cr_err *err)
{
    return cr_gelu(p->dev,
                   &(cr_gelu_args){CR_GELU_ERF, p->dtype, x, y, (size_t)(p->num_rows * cols)}, err);
}

static cr_status project(const cri_prismatic *parts, cr_pass *p, frame *kept, cr_mem *out,
                         cr_err *err)
{
    const cr_mem *x = kept->features;

    CR_TRY(cri_enter(parts->projector, p, err));
    for (int i = 0; i < parts->num_linears; i++) {
        int64_t cols = parts->linears[i]->weight->shape[0];
        bool is_last = i + 1 == parts->num_linears;
        cr_mem *y = out, *h;
        if (!is_last) {
            CR_TRY(cri_push(cri_keep(p), p, p->num_rows, cols, &y, err));
            kept->y[i] = y;
        }
        CR_TRY(cri_linear(parts->linears[i], p, x, NULL, y, err));
        if (is_last) break;
        CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, &h, err));
        CR_TRY(gelu(p, y, h, cols, err));
        x = h;
    }
    return cri_leave(parts->projector, p, err);
}

/* *of_features is on scratch; NULL if no transformer is trained. */
static cr_status back_project(const cr_module *visual, cr_pass *p, const frame *kept,
                              const cr_mem *grad, cr_mem **of_features, cr_err *err)
{
    const cri_prismatic *parts = visual->impl;
    bool is_wanted = visual->has_trainable;

    *of_features = NULL;
    CR_TRY(cri_enter(parts->projector, p, err));
    for (int i = parts->num_linears - 1; i >= 0; i--) {
        const cr_module *m = parts->linears[i];
        int64_t cols = m->weight->shape[1];
        bool is_below = is_wanted;
        cr_mem *x = kept->features, *dx = NULL;
        for (int k = 0; k < i; k++)
            is_below = is_below || parts->linears[k]->has_trainable;
        if (i > 0 && m->has_trainable) {
            CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, &x, err));
            CR_TRY(gelu(p, kept->y[i - 1], x, cols, err));
        }
        if (is_below) CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, &dx, err));
        CR_TRY(cri_linear_back(m, p, x, grad, dx, CRI_DX_SET, err));
        if (!is_below) break;
        if (i > 0)
            CR_TRY(cr_gelu_grad(p->dev,
                                &(cr_gelu_grad_args){CR_GELU_ERF, p->dtype, kept->y[i - 1], dx, dx,
                                                     (size_t)(p->num_rows * cols)},
                                err));
        else
            *of_features = dx;
        grad = dx;
    }
    return cri_leave(parts->projector, p, err);
}

/* ---- the whole ---- */

static cr_status forward(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                         cr_mem *out, cr_mem *const *deepstack, cr_err *err)
{
    const cri_prismatic *parts = visual->impl;
    cr_pass own = pass_on(p, in->num_patches);
    size_t mark = cr_stack_mark(p->scratch);
    frame kept = {0};

    (void)deepstack;
    if (!is_trained(visual)) own.tape = NULL;
    CR_TRY(cri_push(cri_keep(&own), p, in->num_patches, visual->model->config.vision->hidden_size,
                    &kept.features, err));
    CR_TRY(cri_enter(visual, &own, err));
    for (int k = 0; k < parts->num_vits; k++) {
        vit_pass t = open_vit(visual, &own, in, k, &kept);
        CR_TRY(run_vit(&t, kept.features, err));
    }
    CR_TRY(cri_leave(visual, &own, err));
    CR_TRY(project(parts, &own, &kept, out, err));
    if (own.tape) cri_frame_push(visual, p, &kept, sizeof kept);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status backward(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                          const cr_mem *grad_out, cr_mem *const *grad_deepstack, cr_err *err)
{
    const cri_prismatic *parts = visual->impl;
    cr_pass own = pass_on(p, in->num_patches);
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *of_features;
    frame kept;

    (void)grad_deepstack;
    if (!is_trained(visual)) return CR_OK;
    cri_frame_pop(visual, p, &kept, sizeof kept);
    CR_TRY(back_project(visual, &own, &kept, grad_out, &of_features, err));
    if (of_features) {
        CR_TRY(cri_enter(visual, &own, err));
        for (int k = parts->num_vits - 1; k >= 0; k--) {
            vit_pass t = open_vit(visual, &own, in, k, &kept);
            CR_TRY(back_vit(&t, of_features, err));
        }
        CR_TRY(cri_leave(visual, &own, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cri_tower_ops cri_prismatic_ops = {forward, backward};
