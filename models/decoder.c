/* decoder.c -- one decoder layer, and the whole model: ids to log-probs, and back.
 *
 * Stages of a pass, in order: 0 the vision tower and the embedding, 1 .. L the layers, L + 1 the last
 * norm, L + 2 the head. `lowest` is the first stage with a trainable parameter: stages below it keep
 * nothing and run in place, and no gradient goes below it. The norm and the head run on labelled rows
 * only.
 */
#include "base/rng.h"
#include "kernels/vision.h"
#include "models/parts/head.h"
#include "models/pass_impl.h"

#include <string.h>

/* ---- one layer, of the decoder or of a vision tower ---- */

static cr_status push_rstd(cr_pass *p, int64_t num, cr_mem **out, cr_err *err)
{
    *out = NULL;
    return p->tape ? cr_stack_push(p->tape, (size_t)num * sizeof(float), out, err) : CR_OK;
}

static cr_status norm_forward(const cr_module *norm, cr_pass *p, const cr_mem *x, const cr_mem *add,
                              cr_mem *y, cr_mem *rstd, cr_err *err)
{
    CR_TRY(cri_enter(norm, p, err));
    CR_TRY(cri_norm(norm, p, x, p->num_rows, add, y, rstd, err));
    return cri_leave(norm, p, err);
}

/* y = add + factor x by columns, if y is wanted. */
static cr_status scale_forward(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *add,
                               cr_mem *y, cr_err *err)
{
    const cr_param *factor = &m->params[0];

    if (!y) return CR_OK;
    CR_TRY(cri_enter(m, p, err));
    CR_TRY(cr_cols_scale(p->dev,
                         &(cr_cols_scale_args){p->dtype, x, factor->weight.data, add, y,
                                               p->num_rows, factor->num_elems},
                         err));
    return cri_leave(m, p, err);
}

static cr_status scale_back(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                            cr_mem *dx, cr_err *err)
{
    const cr_param *factor = &m->params[0];

    return cr_cols_scale_grad(p->dev,
                              &(cr_cols_scale_grad_args){p->dtype, x, factor->weight.data, dy, dx,
                                                         cri_grad(factor), p->num_rows,
                                                         factor->num_elems},
                              err);
}

/* What a half leaves for its backward: its input, and what its norms keep. */
typedef struct half_frame {
    const cr_mem *x;
    cr_mem *rstd, *y, *rstd_after; /* y: what the part computed, where `after` comes after it */
} half_frame;
typedef struct frame {
    half_frame half[CRI_HALVES];
} frame;

/* out = x + part(norm(x)), or x + after(part(norm(x))). out may be x; NULL: only what backward needs. */
static cr_status half_forward(const cri_half *half, cr_pass *p, const cr_mem *x, cr_mem *out,
                              half_frame *kept, cr_err *err)
{
    int64_t tokens = p->num_rows, cols = half->norm->weight->num_elems;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *normed;

    kept->x = x;
    CR_TRY(push_rstd(p, cri_norm_floats(half->norm, tokens), &kept->rstd, err));
    CR_TRY(cri_push(p->scratch, p, tokens, cols, &normed, err));
    CR_TRY(norm_forward(half->norm, p, x, NULL, normed, kept->rstd, err));
    if (!half->after) {
        CR_TRY(cr_module_forward(half->part, p, normed, x, out, err));
    } else {
        if (!half->is_scaled)
            CR_TRY(push_rstd(p, cri_norm_floats(half->after, tokens), &kept->rstd_after, err));
        CR_TRY(cri_push(cri_keep(p), p, tokens, cols, &kept->y, err));
        CR_TRY(cr_module_forward(half->part, p, normed, NULL, kept->y, err));
        if (half->is_scaled)
            CR_TRY(scale_forward(half->after, p, kept->y, x, out, err));
        else
            CR_TRY(norm_forward(half->after, p, kept->y, out ? x : NULL, out ? out : normed,
                                kept->rstd_after, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status layer_forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                               cr_mem *out, cr_err *err)
{
    const cri_layer *layer = m->impl;
    int64_t cols = layer->half[0].norm->weight->num_elems;
    const cr_mem *x = in;
    frame kept = {0};

    CR_CHECK(!add, "%s takes no stream to add to", m->name);
    for (int i = 0; i < CRI_HALVES; i++) {
        cr_mem *y = out;
        if (p->tape && i + 1 < CRI_HALVES) CR_TRY(cri_push(p->tape, p, p->num_rows, cols, &y, err));
        CR_TRY(half_forward(&layer->half[i], p, x, y, &kept.half[i], err));
        x = y;
    }
    if (p->tape) cri_frame_push(m, p, &kept, sizeof kept);
    return CR_OK;
}

/* grad is that of the half's output; dx is where that of its input is wanted: NULL, or grad itself, to which
 * it is added. */
static cr_status half_backward(const cri_half *half, cr_pass *p, const half_frame *kept,
                               const cr_mem *grad, cr_mem *dx, cr_err *err)
{
    const cr_module *norm = half->norm;
    int64_t tokens = p->num_rows, cols = norm->weight->num_elems;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *normed, *d_normed = NULL, *d_y;

    if (half->after) {
        CR_TRY(cri_push(p->scratch, p, tokens, cols, &d_y, err));
        CR_TRY(cri_enter(half->after, p, err));
        if (half->is_scaled)
            CR_TRY(scale_back(half->after, p, kept->y, grad, d_y, err));
        else
            CR_TRY(cri_norm_back(half->after, p, kept->y, kept->rstd_after, grad, tokens, d_y,
                                 CRI_DX_SET, err));
        CR_TRY(cri_leave(half->after, p, err));
        grad = d_y;
    }
    CR_TRY(cri_push(p->scratch, p, tokens, cols, &normed, err));
    if (dx || norm->has_trainable) CR_TRY(cri_push(p->scratch, p, tokens, cols, &d_normed, err));
    CR_TRY(cri_enter(norm, p, err));
    CR_TRY(cri_norm(norm, p, kept->x, tokens, NULL, normed, NULL, err));
    CR_TRY(cr_module_backward(half->part, p, normed, grad, d_normed, err));
    if (d_normed)
        CR_TRY(cri_norm_back(norm, p, kept->x, kept->rstd, d_normed, tokens, dx ? dx : d_normed,
                             dx ? CRI_DX_ADD : CRI_DX_SET, err));
    CR_TRY(cri_leave(norm, p, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static bool is_half_trained(const cri_half *half)
{
    return half->norm->has_trainable || half->part->has_trainable ||
           (half->after && half->after->has_trainable);
}

static cr_status layer_backward(const cr_module *m, cr_pass *p, const cr_mem *in,
                                const cr_mem *grad_out, cr_mem *grad_in, cr_err *err)
{
    const cri_layer *layer = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    size_t bytes =
        (size_t)(p->num_rows * layer->half[0].norm->weight->num_elems) * cr_dtype_bytes(p->dtype);
    int lowest = 0;         /* half that needs a backward */
    cr_mem *grad = grad_in; /* of the stream, changed in place */
    frame kept;

    cri_frame_pop(m, p, &kept, sizeof kept);
    kept.half[0].x = in;
    while (!grad_in && lowest + 1 < CRI_HALVES && !is_half_trained(&layer->half[lowest]))
        lowest++;
    if (lowest + 1 < CRI_HALVES && !grad) CR_TRY(cr_stack_push(p->scratch, bytes, &grad, err));
    if (grad && grad != grad_out) CR_TRY(cr_copy(p->dev, grad, grad_out, bytes, err));
    for (int i = CRI_HALVES; i-- > lowest;)
        CR_TRY(half_backward(&layer->half[i], p, &kept.half[i], grad ? grad : grad_out,
                             i > lowest ? grad : grad_in, err));
    for (int i = lowest; i-- > 0;)
        cri_frame_drop(layer->half[i].part, p);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_layer_ops = {layer_forward, layer_backward};

/* ---- before a pass ---- */

static bool is_marked(const cr_module *m)
{
    bool has_trainable = false;

    for (size_t i = 0; i < m->num_params; i++)
        has_trainable |= cri_own(&m->params[i])->is_trainable;
    for (size_t i = 0; i < m->num_children; i++) {
        if (!is_marked(m->children[i])) return false;
        has_trainable |= m->children[i]->has_trainable;
    }
    return m->has_trainable == has_trainable;
}

static int64_t find_lowest(const cr_model *model, const cr_pass *p)
{
    const cri_root *root = model->root->impl;
    int64_t num = model->config.num_layers;

    if (root->embed->has_trainable || cri_is_tower_back(model, p)) return 0;
    for (int64_t i = 0; i < num; i++)
        if (model->layers[i]->has_trainable) return i + 1;
    if (root->norm->has_trainable) return num + 1;
    return root->head->has_trainable ? num + 2 : num + 3;
}

static cr_status check_ids(const cr_model *model, const cr_batch *b, cr_err *err)
{
    int64_t vocab = model->config.vocab_size, limit = model->config.position_limit;

    for (int64_t t = 0; t < b->num_tokens; t++) {
        if (b->ids[t] < 0 || b->ids[t] >= vocab)
            return cr_fail(err, CR_EARG, "token %lld has id %d, outside the vocabulary of %lld",
                           (long long)t, b->ids[t], (long long)vocab);
        if (b->labels && b->labels[t] >= vocab)
            return cr_fail(err, CR_EARG, "token %lld has label %d, outside the vocabulary of %lld",
                           (long long)t, b->labels[t], (long long)vocab);
        if (b->positions[t] < 0 || (limit && b->positions[t] >= limit))
            return cr_fail(err, CR_EARG,
                           "token %lld stands at position %d; this model's rope (dynamic) ends at "
                           "max_position_embeddings %lld",
                           (long long)t, b->positions[t], (long long)limit);
    }
    return CR_OK;
}

static cr_status check_axes(const cr_model *model, const cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;

    if (!b->mrope) return CR_OK;
    if (!model->config.rope_axis)
        return cr_fail(err, CR_EARG, "positions along t, h and w, but a %s has one axis",
                       model->config.model_type);
    for (int64_t t = 0; t < 3 * b->num_tokens; t++)
        if (b->mrope[t] < 0 ||
            (model->config.position_limit && b->mrope[t] >= model->config.position_limit))
            return cr_fail(err, CR_EARG, "token %lld stands at position %d of axis %c",
                           (long long)(t % b->num_tokens), b->mrope[t], "thw"[t / b->num_tokens]);
    return CR_OK;
}

static cr_status check_batch(const cr_model *model, const cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;

    CR_TRY(check_ids(model, b, err));
    CR_TRY(check_axes(model, p, err));
    if (p->kv) return cri_check_images(model, p, err);
    for (int64_t s = 0; s < b->num_seqs; s++)
        if (b->cu_seqlens[s + 1] < b->cu_seqlens[s])
            return cr_fail(err, CR_EARG, "cu_seqlens falls at sequence %lld", (long long)s);
    if (b->cu_seqlens[0] != 0 || b->cu_seqlens[b->num_seqs] != b->num_tokens)
        return cr_fail(err, CR_EARG, "cu_seqlens ends at %d of %lld tokens",
                       b->cu_seqlens[b->num_seqs], (long long)b->num_tokens);
    return cri_check_images(model, p, err);
}

/* What is asked for of each labelled row. */
static cr_status check_outputs(const cr_model *model, const cri_head *h, const cr_outputs *out,
                               cr_err *err)
{
    const cri_root *root = model->root->impl;
    int64_t vocab = model->config.vocab_size, num = h->num_rows * out->num_candidates;

    for (int i = 0; i < CR_NUM_OUTPUTS; i++)
        if (out->of[i] && !cr_model_gives(model, (cr_output)i))
            return cr_fail(err, CR_EARG, "a %s gives no output %d", model->config.architecture, i);
    if (!root->head_ops->has_logits &&
        (out->rank || out->num_top || out->num_candidates || out->draw))
        return cr_fail(err, CR_EARG, "a %s has no logits", model->config.architecture);
    if (out->num_top < 0 || out->num_top > vocab || out->num_candidates < 0)
        return cr_fail(err, CR_EARG, "the %lld largest logits of %lld, %lld candidates",
                       (long long)out->num_top, (long long)vocab, (long long)out->num_candidates);
    for (int64_t i = 0; i < num; i++)
        if (out->candidates[i] < -1 || out->candidates[i] >= vocab)
            return cr_fail(
                err, CR_EARG, "labelled row %lld has candidate %d, outside the vocabulary of %lld",
                (long long)(i / out->num_candidates), out->candidates[i], (long long)vocab);
    return CR_OK;
}

static void list_labels(cri_head *h, const cr_batch *b)
{
    size_t num = (size_t)b->num_tokens;

    h->num_rows = 0;
    h->own_rows = cr_reserve(h->own_rows, &h->capacity_rows, num, sizeof *h->own_rows);
    h->labels = cr_reserve(h->labels, &h->capacity_labels, num, sizeof *h->labels);
    h->rows = h->own_rows;
    for (int64_t t = 0; b->labels && t < b->num_tokens; t++) {
        if (b->labels[t] < 0) continue;
        h->own_rows[h->num_rows] = (int32_t)t;
        h->labels[h->num_rows++] = b->labels[t];
    }
}

/* ---- forward ---- */

/* Embedding and layers: *x is the input of the last norm. */
static cr_status run_layers(const cr_model *model, cr_pass *p, cr_mem **x, cr_err *err)
{
    const cri_root *root = model->root->impl;
    const cr_pass_state *own = p->state;
    int64_t tokens = p->num_rows, cols = model->config.hidden_size;
    cr_stack *tape = p->tape;

    CR_TRY(cri_push(cri_keep(p), p, tokens, cols, x, err));
    CR_TRY(cr_module_forward(root->embed, p, NULL, NULL, *x, err));
    CR_TRY(cri_place_features(model, p, *x, err));
    for (int64_t i = 0; i < model->config.num_layers; i++) {
        cr_mem *y = *x;
        cr_status status;
        if (tape) own->layers[i].in = *x;
        p->tape = i + 1 >= own->lowest ? tape : NULL;
        if (p->tape) {
            own->layers[i].mark = cr_stack_mark(tape);
            CR_TRY(cri_push(tape, p, tokens, cols, &y, err));
        }
        status = cr_module_forward(model->layers[i], p, *x, NULL, y, err);
        p->tape = tape;
        CR_TRY(status);
        CR_TRY(cri_add_features(model, p, i, y, err));
        *x = y;
    }
    return CR_OK;
}

/* A part of the tree that not all families have. */
static cr_status enter_if(const cr_module *m, cr_pass *p, cr_err *err)
{
    return m ? cri_enter(m, p, err) : CR_OK;
}

static cr_status leave_if(const cr_module *m, cr_pass *p, cr_err *err)
{
    return m ? cri_leave(m, p, err) : CR_OK;
}

/* Rows of x for the head: x itself when all are wanted. */
static cr_status gather(const cr_model *model, cr_pass *p, cr_mem *x, cr_err *err)
{
    cri_head *h = &p->state->head;
    int64_t cols = model->config.hidden_size;

    h->in = x;
    if (h->num_rows == p->num_rows) return CR_OK;
    CR_TRY(cri_push(cri_keep(p), p, h->num_rows, cols, &h->in, err));
    if (h->num_rows == 0) return CR_OK;
    return cr_rows_gather(
        p->dev, &(cr_rows_move_args){p->dtype, x, p->index.head_rows, h->num_rows, cols, h->in},
        err);
}

static cr_status run_forward(const cr_model *model, cr_pass *p, const cri_head_want *want,
                             cr_err *err)
{
    const cri_root *root = model->root->impl;
    cri_head *h = &p->state->head;
    cr_mem *x, *normed;

    CR_TRY(cri_enter(model->root, p, err));
    CR_TRY(enter_if(root->base, p, err));
    CR_TRY(cri_run_tower(model, p, err));
    CR_TRY(enter_if(root->language, p, err));
    CR_TRY(enter_if(root->text, p, err));
    CR_TRY(run_layers(model, p, &x, err));
    CR_TRY(gather(model, p, x, err));
    CR_TRY(push_rstd(p, h->num_rows, &h->rstd, err));
    CR_TRY(push_rstd(p, h->num_rows, &h->lse, err));
    CR_TRY(push_rstd(p, h->num_rows, &h->mean_z, err));
    CR_TRY(cri_push(p->scratch, p, h->num_rows, model->config.hidden_size, &normed, err));
    CR_TRY(cri_enter(root->norm, p, err));
    CR_TRY(cri_norm(root->norm, p, h->in, h->num_rows, NULL, normed, h->rstd, err));
    CR_TRY(cri_leave(root->norm, p, err));
    CR_TRY(leave_if(root->text, p, err));
    CR_TRY(leave_if(root->base, p, err));
    CR_TRY(cri_enter(root->head, p, err));
    if (h->num_rows) CR_TRY(root->head_ops->forward(root->head, p, normed, want, err));
    CR_TRY(cri_leave(root->head, p, err));
    CR_TRY(leave_if(root->language, p, err));
    return cri_leave(model->root, p, err);
}

static cr_status start_pass(const cr_model *model, cr_pass *p, cr_err *err)
{
    cr_pass_state *own = p->state;

    cri_reset_pass(model, p);
    if (p->tape) {
        CR_CHECK(is_marked(model->root), "cr_model_mark_trainable after is_trainable has changed");
        own->lowest = find_lowest(model, p);
        own->start = cr_stack_mark(p->tape);
    }
    return cri_upload_index(model, p, err);
}

cr_status cr_model_forward(const cr_model *model, cr_pass *p, const cr_outputs *out, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cri_head_want want = {.out = out};
    cr_status status;

    CR_TRY(check_batch(model, p, err));
    list_labels(&p->state->head, p->batch);
    CR_TRY(check_outputs(model, &p->state->head, out, err));
    CR_TRY(start_pass(model, p, err));
    status = run_forward(model, p, &want, err);
    cr_stack_release(p->scratch, mark);
    if (p->tape && status != CR_OK) cr_stack_release(p->tape, p->state->start);
    p->state->is_kept = p->tape && status == CR_OK;
    return status;
}

/* What run_forward works on, for a graph. */
typedef struct forward_work {
    const cr_model *model;
    cr_pass *pass;
    const cri_head_want *want;
} forward_work;

static cr_status do_forward(void *ctx, cr_err *err)
{
    const forward_work *w = ctx;
    const cr_graph_pass *r = w->pass->graph;
    const cri_staging *arrays = &w->pass->state->staging;

    CR_TRY(cr_upload_async(w->pass->dev, arrays->all, r->host, arrays->num_bytes, err));
    CR_TRY(run_forward(w->model, w->pass, w->want, err));
    return r->then ? r->then(r->ctx, err) : CR_OK;
}

static void add_to_key(uint64_t *key, uint64_t word)
{
    const uint64_t words[] = {*key, word};

    *key = cr_hash64(words, sizeof words);
}

static void add_address(uint64_t *key, const cr_mem *mem)
{
    add_to_key(key, (uint64_t)(uintptr_t)mem);
}

/* All arguments of the operations of a forward that another one may have other values of: where things are, and sizes. Scratch is where it
 * was if it is as large and the arrays of the batch, which lie first, are where they were. */
static uint64_t key_of(const cr_model *model, const cr_pass *p, const cr_mem *logits)
{
    const cri_staging *arrays = &p->state->staging;
    uint64_t key = 0;

    add_to_key(&key, (uint64_t)p->dtype);
    add_to_key(&key, (uint64_t)p->num_rows);
    add_to_key(&key, (uint64_t)p->adapter);
    add_to_key(&key, (uint64_t)p->state->head.num_rows);
    add_to_key(&key, (uint64_t)(p->kv ? p->kv->max_blocks : 0));
    add_to_key(&key, cr_stack_reserved_bytes(p->scratch));
    add_to_key(&key, p->graph->key);
    add_to_key(&key, arrays->num_bytes);
    add_address(&key, p->graph->host);
    add_address(&key, logits);
    for (int i = 0; i < arrays->num; i++)
        add_address(&key, *arrays->item[i].to);
    for (int64_t l = 0; p->kv && l < model->config.num_layers; l++)
        add_address(&key, p->kv->layer_blocks[l]);
    for (size_t i = 0; i < model->num_params; i++) {
        add_address(&key, cri_own(model->params[i])->weight.data);
        add_address(&key, cri_own(model->params[i])->weight.packed);
    }
    return key;
}

cr_status cr_model_logits(const cr_model *model, cr_pass *p, const int32_t *rows, int64_t num_rows,
                          cr_mem *logits, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cri_head_want want = {.logits = logits};
    cr_stack *tape = p->tape;

    p->tape = NULL;
    if (!cr_model_gives(model, CR_LOG_PROB))
        CR_TRY_GOTO(out, cr_fail(err, CR_EARG, "a %s has no logits", model->config.architecture));
    CR_TRY_GOTO(out, check_batch(model, p, err));
    for (int64_t r = 0; r < num_rows; r++)
        if (rows[r] < 0 || rows[r] >= p->batch->num_tokens)
            CR_TRY_GOTO(out, cr_fail(err, CR_EARG, "logits of row %d of %lld", rows[r],
                                     (long long)p->batch->num_tokens));
    p->state->head.rows = rows;
    p->state->head.num_rows = num_rows;
    CR_TRY_GOTO(out, start_pass(model, p, err));
    if (p->graph) {
        forward_work work = {model, p, &want};
        CR_CHECK(!p->hooks && !p->batch->vision && !p->batch->num_runs,
                 "a pass with hooks or images is captured");
        CR_TRY_GOTO(out, cr_graph_run(p->dev, p->graph->graph, key_of(model, p, logits), do_forward,
                                      &work, err));
    } else {
        CR_TRY_GOTO(out, run_forward(model, p, &want, err));
    }
out:
    cr_stack_release(p->scratch, mark);
    p->tape = tape;
    return err->status;
}

/* ---- backward ---- */

/* Head and last norm: *grad [T, h] is that of the last layer's output, if it is wanted. */
static cr_status back_head(const cr_model *model, cr_pass *p, const cr_outputs *of_out,
                           cr_mem **grad, cr_err *err)
{
    const cri_root *root = model->root->impl;
    const cri_head *h = &p->state->head;
    int64_t cols = model->config.hidden_size, tokens = p->num_rows;
    size_t mark;
    cr_mem *normed, *dx;

    CR_TRY(cri_push(p->scratch, p, tokens, cols, grad, err));
    mark = cr_stack_mark(p->scratch);
    CR_TRY(cri_push(p->scratch, p, h->num_rows, cols, &normed, err));
    CR_TRY(cri_push(p->scratch, p, h->num_rows, cols, &dx, err));
    CR_TRY(cri_enter(root->norm, p, err));
    CR_TRY(cri_norm(root->norm, p, h->in, h->num_rows, NULL, normed, NULL, err));
    CR_TRY(cri_enter(root->head, p, err));
    if (h->num_rows) CR_TRY(root->head_ops->backward(root->head, p, normed, of_out, dx, err));
    CR_TRY(cri_leave(root->head, p, err));
    if (h->num_rows && p->state->lowest <= model->config.num_layers + 1)
        CR_TRY(cri_norm_back(root->norm, p, h->in, h->rstd, dx, h->num_rows, dx, CRI_DX_SET, err));
    CR_TRY(cri_leave(root->norm, p, err));
    CR_TRY(cr_zero(p->dev, *grad, (size_t)(tokens * cols) * cr_dtype_bytes(p->dtype), err));
    if (h->num_rows)
        CR_TRY(cr_rows_scatter(
            p->dev,
            &(cr_rows_move_args){p->dtype, dx, p->index.head_rows, h->num_rows, cols, *grad}, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status run_backward(const cr_model *model, cr_pass *p, const cr_outputs *of_out,
                              cr_err *err)
{
    const cri_root *root = model->root->impl;
    const cr_pass_state *own = p->state;
    cr_mem *grad;

    CR_TRY(cri_enter(model->root, p, err));
    CR_TRY(enter_if(root->base, p, err));
    CR_TRY(enter_if(root->language, p, err));
    CR_TRY(enter_if(root->text, p, err));
    CR_TRY(cri_reserve_features(model, p, err));
    CR_TRY(back_head(model, p, of_out, &grad, err));
    for (int64_t i = model->config.num_layers - 1; i >= 0 && i + 1 >= own->lowest; i--) {
        cr_mem *grad_in = i + 1 > own->lowest ? grad : NULL;
        CR_TRY(cri_back_features(model, p, i, grad, err));
        CR_TRY(cr_module_backward(model->layers[i], p, own->layers[i].in, grad, grad_in, err));
        cr_stack_release(p->tape, own->layers[i].mark);
    }
    CR_TRY(cri_back_features(model, p, -1, grad, err));
    if (root->embed->has_trainable)
        CR_TRY(cr_module_backward(root->embed, p, NULL, grad, NULL, err));
    CR_TRY(leave_if(root->text, p, err));
    CR_TRY(leave_if(root->language, p, err));
    CR_TRY(cri_back_tower(model, p, err));
    CR_TRY(leave_if(root->base, p, err));
    return cri_leave(model->root, p, err);
}

cr_status cr_model_backward(const cr_model *model, cr_pass *p, const cr_outputs *grad, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cr_status status = CR_OK;

    CR_CHECK(p->state->is_kept, "backward needs a forward with a tape before it");
    p->state->is_kept = false;
    p->phase = CR_BACKWARD;
    if (p->state->lowest <= model->config.num_layers + 2)
        status = run_backward(model, p, grad, err);
    p->phase = CR_FORWARD;
    cr_stack_release(p->scratch, mark);
    cr_stack_release(p->tape, p->state->start);
    CR_CHECK(status != CR_OK || p->state->frames.num_bytes == 0, "%zu bytes of frames are left",
             p->state->frames.num_bytes);
    return status;
}
