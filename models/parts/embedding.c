/* embedding.c -- the embedding table: ids to rows of the stream, with its adapter, and back. */
#include "models/parts/adapters.h"

/* y = x times the factor that the model's embeddings have; nothing where they have none. */
static cr_status scale_rows(const cr_module *m, const cr_pass *p, const cr_mem *x, cr_mem *y,
                            cr_err *err)
{
    if (!p->index.embed_scales) return CR_OK;
    return cr_rows_scale(p->dev,
                         &(cr_rows_scale_args){p->dtype, x, p->index.embed_scales, p->num_rows,
                                               m->weight->shape[1], y},
                         err);
}

/* What the adapter leaves for its backward, when the table is not there: its rows of A, scaled, and B. */
typedef struct frame {
    cr_mem *h, *b;
} frame;

/* y += scale B A[id]. */
static cr_status adapt(const cr_module *m, cr_pass *p, cr_mem *y, cr_err *err)
{
    const cr_adapter *own = cri_adapter_of(m, p);
    const cr_weight *a = &own->a->weight->weight, *b = &own->b->weight->weight;
    size_t mark = cr_stack_mark(p->scratch);
    bool is_kept = p->tape && m->has_trainable;
    int64_t tokens = p->num_rows, rank = a->num_cols;
    frame kept;

    CR_TRY(cri_push(is_kept ? p->tape : p->scratch, p, tokens, rank, &kept.h, err));
    CR_TRY(cr_embedding(p->dev, &(cr_embedding_args){a, p->index.ids, tokens, kept.h}, err));
    CR_TRY(cr_rows_scale(
        p->dev,
        &(cr_rows_scale_args){p->dtype, kept.h, p->index.table_scales, tokens, rank, kept.h}, err));
    CR_TRY(cr_linear(
        p->dev,
        &(cr_linear_args){
            .x = kept.h, .w = b, .add = y, .y = y, .out_dtype = p->dtype, .num_rows = tokens},
        err));
    if (is_kept) {
        CR_TRY(cri_push(p->tape, p, b->num_rows, rank, &kept.b, err));
        CR_TRY(cr_copy(p->dev, kept.b, b->data,
                       (size_t)(b->num_rows * rank) * cr_dtype_bytes(p->dtype), err));
        cri_frame_push(m, p, &kept, sizeof kept);
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                         cr_mem *out, cr_err *err)
{
    const cr_weight *table = &cri_now(m, p)->weight->weight;

    (void)in;
    (void)add;
    CR_TRY(cr_embedding(p->dev, &(cr_embedding_args){table, p->index.ids, p->num_rows, out}, err));
    if (cri_is_adapted(m, p)) CR_TRY(adapt(m, p, out, err));
    return scale_rows(m, p, out, out, err);
}

/* The end of the run of tokens from t on that get a gradient: not `without`, nor those that have an image's features. */
static int64_t run_end(const cr_pass *p, int64_t t, int32_t without)
{
    const cr_batch *b = p->batch;

    while (t < b->num_tokens && b->ids[t] != without && !cri_is_placed(p, t))
        t++;
    return t;
}

/* Rows of grad [T, cols] are added to those of a table. As in torch, the row of pad_token_id gets none. */
static cr_status add_rows(const cr_module *m, const cr_pass *p, const cr_mem *grad, int64_t cols,
                          cr_mem *table, cr_err *err)
{
    for (int64_t t = 0, end; table && t < p->batch->num_tokens; t = end + 1) {
        end = run_end(p, t, m->model->config.pad_id);
        if (end > t)
            CR_TRY(cr_embedding_grad(
                p->dev,
                &(cr_embedding_grad_args){
                    p->dtype, cr_at_const(p->dtype, grad, t * cols),
                    cr_mem_add_const(p->index.ids, (size_t)t * sizeof *p->batch->ids), end - t,
                    cols, table},
                err));
    }
    return CR_OK;
}

/* Of A and B, from that of the rows, grad [T, cols]. */
static cr_status back_adapter(const cr_module *m, cr_pass *p, const cr_mem *grad, cr_err *err)
{
    const cr_adapter *own = cri_adapter_of(m, p);
    cr_param *b = own->b->weight;
    int64_t cols = b->shape[0], rank = b->shape[1];
    cr_weight w = {.dtype = p->dtype, .num_rows = cols, .num_cols = rank};
    cr_mem *dh;
    frame kept;

    cri_frame_pop(m, p, &kept, sizeof kept);
    w.data = kept.b;
    CR_TRY(cri_push(p->scratch, p, p->num_rows, rank, &dh, err));
    for (int64_t t = 0, end; t < p->batch->num_tokens; t = end + 1) {
        cr_mem *of_run = cr_at(p->dtype, dh, t * rank);
        end = run_end(p, t, /*without=*/-1);
        if (end == t) continue;
        CR_TRY(cr_linear_grad(p->dev,
                              &(cr_linear_grad_args){.x = cr_at_const(p->dtype, kept.h, t * rank),
                                                     .dy = cr_at_const(p->dtype, grad, t * cols),
                                                     .w = &w,
                                                     .dx = of_run,
                                                     .dw = cri_grad(b),
                                                     .num_rows = end - t},
                              err));
        CR_TRY(cr_rows_scale(
            p->dev,
            &(cr_rows_scale_args){p->dtype, of_run, p->index.table_scales, end - t, rank, of_run},
            err));
    }
    return add_rows(m, p, dh, rank, cri_grad(own->a->weight), err);
}

static cr_status backward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *grad_out,
                          cr_mem *grad_in, cr_err *err)
{
    int64_t cols = m->weight->shape[1];
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *scaled;

    (void)in;
    (void)grad_in;
    if (p->index.embed_scales) {
        CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, &scaled, err));
        CR_TRY(scale_rows(m, p, grad_out, scaled, err));
        grad_out = scaled;
    }
    if (cri_is_adapted(m, p)) CR_TRY(back_adapter(m, p, grad_out, err));
    CR_TRY(add_rows(m, p, grad_out, cols, cri_grad(m->weight), err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_embedding_ops = {forward, backward};
