/* vision.c -- the vision tower: patches to rows of merged tokens, and back.
 *
 * Patches are embedded, run through the blocks in the tower's order (window by window) and merged four to
 * one; deepstack features are merged from the outputs of some blocks. `lowest` is the first block that
 * gradients reach (depth: none); blocks below it keep nothing and run in place.
 */
#include "models/vision/vision_impl.h"

#include <string.h>

enum { TOKEN = CR_MERGE * CR_MERGE };

/* One call. */
typedef struct tower {
    const cr_module *visual;
    const cri_vision *parts;
    const cr_vision_config *c;
    const cr_vision_input *in;
    cr_patches *patches;
    cr_pass pass;   /* on patches */
    cr_dtype dtype; /* of what goes in and out */
    int64_t lowest;
} tower;

static bool is_embed_trainable(const cri_vision *v)
{
    return v->patch_embed->has_trainable || (v->pos_embed && v->pos_embed->has_trainable);
}

static int64_t find_lowest(const cri_vision *v)
{
    int64_t i = 0;

    if (is_embed_trainable(v)) return 0;
    while (i < v->config->depth && !v->blocks[i]->has_trainable)
        i++;
    return i;
}

static cr_status upload_patches(cr_patches *r, const cr_vision_config *c, cr_stack *stack,
                                cr_err *err)
{
    size_t patches = (size_t)r->num, half = (size_t)(c->hidden_size / c->num_heads / 2);

    r->frame_sizes = cri_seq_sizes(r->frames, r->num_frames, /*is_bidirectional=*/true);
    if (r->windows)
        r->window_sizes = cri_seq_sizes(r->windows, r->num_windows, /*is_bidirectional=*/true);
    CR_TRY(cr_stack_push_copy(stack, r->angles, patches * half * sizeof(float),
                              &r->on_device.angles, err));
    if (r->order)
        CR_TRY(cr_stack_push_copy(stack, r->order, patches / TOKEN * sizeof(int32_t),
                                  &r->on_device.order, err));
    CR_TRY(cr_stack_push_copy(stack, r->frames, (size_t)(r->num_frames + 1) * sizeof(int32_t),
                              &r->on_device.frames, err));
    if (r->windows)
        CR_TRY(cr_stack_push_copy(stack, r->windows, (size_t)(r->num_windows + 1) * sizeof(int32_t),
                                  &r->on_device.windows, err));
    if (!r->corner) return CR_OK;
    CR_TRY(cr_stack_push_copy(stack, r->corner, 4 * patches * sizeof(int32_t), &r->on_device.corner,
                              err));
    return cr_stack_push_copy(stack, r->corner_weight, 4 * patches * sizeof(float),
                              &r->on_device.corner_weight, err);
}

static tower tower_of(const cr_module *visual, const cr_pass *p, const cr_vision_input *in)
{
    tower t = {.visual = visual,
               .parts = visual->impl,
               .c = visual->model->config.vision,
               .in = in,
               .patches = p->state->patches,
               .pass = *p,
               .dtype = p->dtype};

    if (!visual->has_trainable) t.pass.tape = NULL;
    t.lowest = t.pass.tape ? find_lowest(t.parts) : t.c->depth;
    t.pass.batch = NULL;
    t.pass.kv = NULL;
    t.pass.split = NULL;
    t.pass.experts = NULL;
    t.pass.mlp_tiles = 0;
    if (visual->is_fp32) t.pass.dtype = CR_F32;
    t.pass.patches = t.patches;
    t.pass.num_rows = t.patches->num;
    return t;
}

/* Number of the deepstack feature after block i, or -1. */
static int64_t deepstack_at(const tower *t, int64_t i)
{
    for (int64_t j = 0; j < t->c->num_deepstack; j++)
        if (t->c->deepstack[j] == i) return j;
    return -1;
}

/* Has a merger of the output of block i a backward? */
static bool goes_back(const tower *t, const cri_vision_merger *merger, int64_t i)
{
    return t->pass.tape && (t->lowest <= i || merger->module->has_trainable);
}

/* Is the output of block i (-1: of the embedding) kept? */
static bool is_kept(const tower *t, int64_t i)
{
    int64_t j = deepstack_at(t, i);

    if (!t->pass.tape) return false;
    if (i + 1 == t->c->depth && goes_back(t, &t->parts->merger, i)) return true;
    if (j >= 0 && goes_back(t, &t->parts->deepstack[j], i)) return true;
    return i + 1 >= t->lowest && i + 1 < t->c->depth;
}

static cr_status push_output(const tower *t, int64_t i, cr_mem **x, cr_err *err)
{
    return cri_push(is_kept(t, i) ? t->pass.tape : t->pass.scratch, &t->pass, t->patches->num,
                    t->c->hidden_size, x, err);
}

/* ---- embedding ---- */

/* Rows of pixels in the tower's order and dtype; on scratch, or the caller's. */
static cr_status pixel_rows(tower *t, const cr_mem **out, cr_err *err)
{
    cr_pass *p = &t->pass;
    int64_t patches = t->patches->num, cols = t->c->patch_dim;
    size_t num = (size_t)(patches * cols);
    cr_mem *rows;

    CR_TRY(cr_stack_push_copy(p->scratch, t->in->pixels, num * sizeof(float), &rows, err));
    *out = rows;
    if (t->patches->order) {
        CR_TRY(cr_stack_push(p->scratch, num * sizeof(float), &rows, err));
        CR_TRY(cr_rows_gather(p->dev,
                              &(cr_rows_move_args){CR_F32, *out, t->patches->on_device.order,
                                                   t->patches->num_merged, TOKEN * cols, rows},
                              err));
        *out = rows;
    }
    if (p->dtype == CR_F32) return CR_OK;
    CR_TRY(cri_push(p->scratch, p, patches, cols, &rows, err));
    CR_TRY(cr_cast(p->dev, &(cr_cast_args){p->dtype, rows, CR_F32, *out, num}, err));
    *out = rows;
    return CR_OK;
}

static cr_status embed(tower *t, cr_mem *x, cr_err *err)
{
    const cri_vision *v = t->parts;
    cr_pass *p = &t->pass;
    size_t mark = cr_stack_mark(p->scratch);
    cr_rows_combine_args a;
    const cr_mem *pixels;

    CR_TRY(pixel_rows(t, &pixels, err));
    CR_TRY(cri_enter(v->patch_embed, p, err));
    CR_TRY(cri_linear(v->patch_proj, p, pixels, NULL, x, err));
    CR_TRY(cri_leave(v->patch_embed, p, err));
    cr_stack_release(p->scratch, mark);
    if (!v->pos_embed) return CR_OK;
    CR_TRY(cri_enter(v->pos_embed, p, err));
    a = (cr_rows_combine_args){.x = v->pos_embed->weight->weight.data,
                               .add = x,
                               .slot = t->patches->on_device.corner,
                               .weight = t->patches->on_device.corner_weight,
                               .y = x,
                               .dtype = p->dtype,
                               .num_rows = t->patches->num,
                               .top_k = 4,
                               .num_cols = t->c->hidden_size};
    CR_TRY(cr_rows_combine(p->dev, &a, err));
    return cri_leave(v->pos_embed, p, err);
}

static cr_status back_embed(tower *t, const cr_mem *grad, cr_err *err)
{
    const cri_vision *v = t->parts;
    cr_pass *p = &t->pass;
    cr_embedding_bag_grad_args a;
    const cr_mem *pixels;

    if (v->pos_embed && v->pos_embed->has_trainable) {
        CR_TRY(cri_enter(v->pos_embed, p, err));
        a = (cr_embedding_bag_grad_args){.dy = grad,
                                         .dtype = p->dtype,
                                         .index = t->patches->on_device.corner,
                                         .weight = t->patches->on_device.corner_weight,
                                         .dw = cri_grad(v->pos_embed->weight),
                                         .num_rows = t->patches->num,
                                         .per_row = 4,
                                         .num_cols = t->c->hidden_size};
        CR_TRY(cr_embedding_bag_grad(p->dev, &a, err));
        CR_TRY(cri_leave(v->pos_embed, p, err));
    }
    if (!v->patch_embed->has_trainable) return CR_OK;
    CR_TRY(pixel_rows(t, &pixels, err));
    CR_TRY(cri_enter(v->patch_embed, p, err));
    CR_TRY(cri_linear_back(v->patch_proj, p, pixels, grad, NULL, CRI_DX_SET, err));
    return cri_leave(v->patch_embed, p, err);
}

/* ---- mergers ---- */

static int64_t norm_rows(const tower *t, const cri_vision_merger *m)
{
    return t->patches->num * t->c->hidden_size / m->norm->weight->num_elems;
}

static cr_status enter_products(const cri_vision_merger *m, cr_pass *p, cr_err *err)
{
    return m->sequential ? cri_enter(m->sequential, p, err) : CR_OK;
}

static cr_status leave_products(const cri_vision_merger *m, cr_pass *p, cr_err *err)
{
    return m->sequential ? cri_leave(m->sequential, p, err) : CR_OK;
}

typedef struct frame {
    cr_mem *rstd, *fc1; /* of the norm; what fc1 gives */
} frame;

/* Merged rows in the tower's order, y [merged, out]. */
static cr_status merge(tower *t, const cri_vision_merger *m, bool is_back, const cr_mem *x,
                       cr_mem *y, cr_err *err)
{
    cr_pass pass = t->pass, *p = &pass;
    int64_t patches = t->patches->num, d = t->c->hidden_size, rows = norm_rows(t, m);
    size_t num = (size_t)(patches * d);
    frame kept = {0};
    cr_mem *normed, *h;

    p->num_rows = t->patches->num_merged;
    if (!is_back) p->tape = NULL;
    if (p->tape) CR_TRY(cri_push_numbers(p->tape, cri_norm_floats(m->norm, rows), &kept.rstd, err));
    CR_TRY(cri_push(cri_keep(p), p, patches, d, &kept.fc1, err));
    CR_TRY(cri_push(p->scratch, p, patches, d, &normed, err));
    CR_TRY(cri_enter(m->module, p, err));
    CR_TRY(cri_enter(m->norm, p, err));
    CR_TRY(cri_norm(m->norm, p, x, rows, NULL, normed, kept.rstd, err));
    CR_TRY(cri_leave(m->norm, p, err));
    CR_TRY(enter_products(m, p, err));
    CR_TRY(cri_linear(m->fc1, p, normed, NULL, kept.fc1, err));
    h = normed; /* has done its work */
    CR_TRY(cr_gelu(p->dev, &(cr_gelu_args){CR_GELU_ERF, p->dtype, kept.fc1, h, num}, err));
    CR_TRY(cri_linear(m->fc2, p, h, NULL, y, err));
    CR_TRY(leave_products(m, p, err));
    if (p->tape) cri_frame_push(m->module, p, &kept, sizeof kept);
    return cri_leave(m->module, p, err);
}

/* From merged rows to those of the caller: its order and its dtype. */
static cr_status merge_out(tower *t, const cri_vision_merger *m, int64_t i, const cr_mem *x,
                           cr_mem *out, cr_err *err)
{
    cr_pass *p = &t->pass;
    size_t mark = cr_stack_mark(p->scratch);
    int64_t rows = t->patches->num_merged, cols = t->c->out_hidden_size;
    bool is_cast = p->dtype != t->dtype;
    cr_mem *y = out, *placed = out;

    if (is_cast) CR_TRY(cri_push(p->scratch, p, rows, cols, &placed, err));
    y = placed;
    if (t->patches->order) CR_TRY(cri_push(p->scratch, p, rows, cols, &y, err));
    CR_TRY(merge(t, m, goes_back(t, m, i), x, y, err));
    if (t->patches->order)
        CR_TRY(cr_rows_scatter(
            p->dev,
            &(cr_rows_move_args){p->dtype, y, t->patches->on_device.order, rows, cols, placed},
            err));
    if (is_cast)
        CR_TRY(cr_cast(
            p->dev, &(cr_cast_args){t->dtype, out, p->dtype, placed, (size_t)(rows * cols)}, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* dx (NULL: not wanted) as `how` says, from the gradient of merged rows in the tower's order. */
static cr_status back_merge(tower *t, const cri_vision_merger *m, const cr_mem *x,
                            const cr_mem *grad, cr_mem *dx, cri_dx how, cr_err *err)
{
    cr_pass pass = t->pass, *p = &pass;
    int64_t patches = t->patches->num, d = t->c->hidden_size, rows = norm_rows(t, m);
    cr_mem *normed, *d_normed = NULL;
    frame kept;

    cri_frame_pop(m->module, p, &kept, sizeof kept);
    p->num_rows = t->patches->num_merged;
    CR_TRY(cri_push(p->scratch, p, patches, d, &normed, err));
    if (dx || m->norm->has_trainable) CR_TRY(cri_push(p->scratch, p, patches, d, &d_normed, err));
    CR_TRY(cri_enter(m->module, p, err));
    CR_TRY(cri_enter(m->norm, p, err));
    CR_TRY(cri_norm(m->norm, p, x, rows, NULL, normed, NULL, err));
    CR_TRY(enter_products(m, p, err));
    CR_TRY(cri_gelu_back(m->fc1, m->fc2, CR_GELU_ERF, p, normed, kept.fc1, grad, d_normed, err));
    CR_TRY(leave_products(m, p, err));
    if (d_normed)
        CR_TRY(cri_norm_back(m->norm, p, x, kept.rstd, d_normed, rows, dx ? dx : d_normed,
                             dx ? how : CRI_DX_SET, err));
    CR_TRY(cri_leave(m->norm, p, err));
    return cri_leave(m->module, p, err);
}

/* The output of block i gets its part of the gradient of a merger's rows, which are the caller's. */
static cr_status back_merge_out(tower *t, const cri_vision_merger *m, int64_t i,
                                const cr_mem *grad_out, cr_mem *grad, cri_dx how, cr_err *err)
{
    cr_pass *p = &t->pass;
    size_t mark = cr_stack_mark(p->scratch);
    int64_t rows = t->patches->num_merged, cols = t->c->out_hidden_size;
    cr_mem *there;

    if (!goes_back(t, m, i)) return CR_OK;
    if (p->dtype != t->dtype) {
        CR_TRY(cri_push(p->scratch, p, rows, cols, &there, err));
        CR_TRY(cr_cast(p->dev,
                       &(cr_cast_args){p->dtype, there, t->dtype, grad_out, (size_t)(rows * cols)},
                       err));
        grad_out = there;
    }
    if (t->patches->order) {
        CR_TRY(cri_push(p->scratch, p, rows, cols, &there, err));
        CR_TRY(cr_rows_gather(p->dev,
                              &(cr_rows_move_args){p->dtype, grad_out, t->patches->on_device.order,
                                                   rows, cols, there},
                              err));
        grad_out = there;
    }
    CR_TRY(back_merge(t, m, t->pass.state->blocks[i + 1].in, grad_out, t->lowest <= i ? grad : NULL,
                      how, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* ---- the whole ---- */

static cr_status run_forward(tower *t, cr_mem *out, cr_mem *const *deepstack, cr_err *err)
{
    const cri_vision *v = t->parts;
    cr_pass *p = &t->pass;
    cri_stage *kept = p->state->blocks;
    cr_stack *tape = p->tape;
    cr_mem *x, *y;

    CR_TRY(cri_enter(t->visual, p, err));
    CR_TRY(push_output(t, -1, &x, err));
    CR_TRY(embed(t, x, err));
    for (int64_t i = 0; i < t->c->depth; i++) {
        int64_t j = deepstack_at(t, i);
        cr_status status;
        if (tape) {
            kept[i].in = x;
            kept[i].mark = cr_stack_mark(tape);
        }
        y = x;
        if (is_kept(t, i - 1) || is_kept(t, i)) CR_TRY(push_output(t, i, &y, err));
        p->tape = i >= t->lowest ? tape : NULL;
        status = cr_module_forward(v->blocks[i], p, x, NULL, y, err);
        p->tape = tape;
        CR_TRY(status);
        x = y;
        if (j >= 0) CR_TRY(merge_out(t, &v->deepstack[j], i, x, deepstack[j], err));
    }
    if (tape) kept[t->c->depth].in = x;
    CR_TRY(merge_out(t, &v->merger, t->c->depth - 1, x, out, err));
    return cri_leave(t->visual, p, err);
}

cr_status cri_vision_forward(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                             cr_mem *out, cr_mem *const *deepstack, cr_err *err)
{
    const cr_vision_config *c = visual->model->config.vision;
    cr_pass_state *own = p->state;
    size_t mark = cr_stack_mark(p->scratch);
    cr_status status;
    tower t;

    if (!own->patches) own->patches = CR_NEW(cr_patches);
    CR_TRY(cri_patches_init(own->patches, c, in, err));
    t = tower_of(visual, p, in);
    status = upload_patches(own->patches, c, cri_keep(&t.pass), err);
    if (status == CR_OK) status = run_forward(&t, out, deepstack, err);
    cr_stack_release(p->scratch, mark);
    return status;
}

static cr_status run_backward(tower *t, const cr_mem *grad_out, cr_mem *const *grad_deepstack,
                              cr_err *err)
{
    const cri_vision *v = t->parts;
    cr_pass *p = &t->pass;
    const cri_stage *kept = p->state->blocks;
    bool is_embed = is_embed_trainable(v);
    cr_mem *grad = NULL;

    CR_TRY(cri_enter(t->visual, p, err));
    if (t->lowest < t->c->depth)
        CR_TRY(cri_push(p->scratch, p, t->patches->num, t->c->hidden_size, &grad, err));
    CR_TRY(back_merge_out(t, &v->merger, t->c->depth - 1, grad_out, grad, CRI_DX_SET, err));
    for (int64_t i = t->c->depth - 1; i >= 0; i--) {
        int64_t j = deepstack_at(t, i);
        if (j >= 0)
            CR_TRY(
                back_merge_out(t, &v->deepstack[j], i, grad_deepstack[j], grad, CRI_DX_ADD, err));
        if (i >= t->lowest)
            CR_TRY(cr_module_backward(v->blocks[i], p, kept[i].in, grad,
                                      i > t->lowest || is_embed ? grad : NULL, err));
        cr_stack_release(p->tape, kept[i].mark);
    }
    if (is_embed) CR_TRY(back_embed(t, grad, err));
    return cri_leave(t->visual, p, err);
}

cr_status cri_vision_backward(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                              const cr_mem *grad_out, cr_mem *const *grad_deepstack, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cr_status status;
    tower t;

    if (!visual->has_trainable) return CR_OK;
    t = tower_of(visual, p, in);
    status = run_backward(&t, grad_out, grad_deepstack, err);
    cr_stack_release(p->scratch, mark);
    return status;
}

const cri_tower_ops cri_qwen_tower_ops = {cri_vision_forward, cri_vision_backward};
