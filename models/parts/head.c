/* head.c -- heads: log-probs of labels or logits over the vocabulary, and a value. */
#include "models/parts/head.h"

#include "models/parts/adapters.h"

bool cr_model_gives(const cr_model *model, cr_output output)
{
    const cri_root *root = model->root->impl;

    return root->head_ops->gives[output];
}

/* A host array with a number for each row of the head. */
static cr_status push_rows(cr_stack *stack, const cri_head *h, const float *host, cr_mem **out,
                           cr_err *err)
{
    return cr_stack_push_copy(stack, host, (size_t)h->num_rows * sizeof *host, out, err);
}

/* ---- a language model's ---- */

/* An output of the head: memory of the device for num_cols elements a row, and where they go. */
typedef struct head_value {
    void *host; /* NULL: not wanted */
    int64_t num_cols;
    cr_mem **dev;
    size_t elem_bytes;
} head_value;

/* Log-probs of the candidates and the log-sum at another temperature: the head once more. */
static cr_status temper(cr_pass *p, const cr_head_args *all, const cr_outputs *out, cr_err *err)
{
    const size_t rows = (size_t)all->num_rows * sizeof(float),
                 chosen = rows * (size_t)out->num_candidates;
    const cr_row_processors_mem processors = {.temperature = out->temperature, .penalty = 1};
    cr_head_args a = *all;

    if (out->temperature < 1 || out->temperature > 1) {
        a.processors = &processors;
        a.log_prob = a.entropy = a.mean_z = NULL;
        CR_TRY(cri_push_numbers(p->scratch, a.num_rows, &a.lse, err));
        CR_TRY(cri_push_numbers(p->scratch, a.num_rows * a.num_chosen, &a.chosen_log_prob, err));
        CR_TRY(cr_head(p->dev, &a, err));
    }
    if (chosen) CR_TRY(cr_download(p->dev, out->tempered, a.chosen_log_prob, chosen, err));
    return cr_download(p->dev, out->log_sum, a.lse, rows, err);
}

static cr_status give_states(cr_pass *p, const cr_head_args *a, float *states, cr_err *err)
{
    size_t num = (size_t)(a->num_rows * a->w->num_cols);
    cr_mem *wide;

    CR_TRY(cri_push_numbers(p->scratch, (int64_t)num, &wide, err));
    CR_TRY(cr_cast(p->dev, &(cr_cast_args){CR_F32, wide, p->dtype, a->x, num}, err));
    return cr_download(p->dev, states, wide, num * sizeof *states, err);
}

static cr_status outputs(cr_pass *p, cr_head_args *a, const cr_outputs *out, cr_err *err)
{
    cr_mem *candidates = NULL;
    const head_value values[] = {
        {out->of[CR_LOG_PROB], 1, &a->log_prob, sizeof(float)},
        {out->of[CR_ENTROPY], 1, &a->entropy, sizeof(float)},
        {out->rank, 1, &a->rank, sizeof *out->rank},
        {out->num_top ? out->top_ids : NULL, out->num_top, &a->top_ids, sizeof *out->top_ids},
        {out->num_top ? out->top_log_probs : NULL, out->num_top, &a->top_log_prob, sizeof(float)},
        {out->num_candidates ? out->candidate_log_probs : NULL, out->num_candidates,
         &a->chosen_log_prob, sizeof(float)},
    };

    for (size_t i = 0; i < CR_COUNT(values); i++)
        if (values[i].host)
            CR_TRY(
                cri_push_numbers(p->scratch, a->num_rows * values[i].num_cols, values[i].dev, err));
    if (out->num_candidates)
        CR_TRY(cr_stack_push_copy(p->scratch, out->candidates,
                                  (size_t)(a->num_rows * out->num_candidates) * sizeof(int32_t),
                                  &candidates, err));
    a->num_top = out->num_top;
    a->num_chosen = out->num_candidates;
    a->chosen_ids = candidates;
    CR_TRY(cr_head(p->dev, a, err));
    for (size_t i = 0; i < CR_COUNT(values); i++)
        if (values[i].host)
            CR_TRY(cr_download(p->dev, values[i].host, *values[i].dev,
                               (size_t)(a->num_rows * values[i].num_cols) * values[i].elem_bytes,
                               err));
    if (out->states) CR_TRY(give_states(p, a, out->states, err));
    return out->temperature > 0 ? temper(p, a, out, err) : CR_OK;
}

/* Labels of some rows, from their logits. */
static cr_status draw_some(cr_pass *p, const cr_weight *w, const cr_mem *normed,
                           const cr_outputs *out, const int32_t *rows, int64_t num, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cr_draw_row *how = CR_NEW_ARRAY(cr_draw_row, num);
    cr_drawn *drawn = CR_NEW_ARRAY(cr_drawn, num);
    int32_t *labels = p->state->head.labels;
    cr_draw_args a = {NULL, num, w->num_rows, how, drawn};
    cr_mem *index, *x, *logits;

    for (int64_t i = 0; i < num; i++)
        how[i] = *out->draw[rows[i]];
    CR_TRY_GOTO(out, cr_stack_push_copy(p->scratch, rows, (size_t)num * sizeof *rows, &index, err));
    CR_TRY_GOTO(out, cri_push(p->scratch, p, num, w->num_cols, &x, err));
    CR_TRY_GOTO(out, cri_push_numbers(p->scratch, num * w->num_rows, &logits, err));
    CR_TRY_GOTO(
        out, cr_rows_gather(
                 p->dev, &(cr_rows_move_args){p->dtype, normed, index, num, w->num_cols, x}, err));
    CR_TRY_GOTO(out, cr_logits(p->dev, &(cr_logits_args){x, w, num, logits}, err));
    a.logits = logits;
    CR_TRY_GOTO(out, cr_draw(p->dev, &a, err));
    for (int64_t i = 0; i < num; i++) {
        out->drawn[rows[i]] = drawn[i].id;
        labels[rows[i]] = drawn[i].id < 0 ? 0 : drawn[i].id;
    }
out:
    cr_stack_release(p->scratch, mark);
    cr_free(how);
    cr_free(drawn);
    return err->status;
}

/* The labels that are drawn become those of the pass. Logits of as many rows at a time as MAX_BYTES hold. */
static cr_status draw_labels(cr_pass *p, const cr_weight *w, const cr_mem *normed,
                             const cr_outputs *out, cr_err *err)
{
    enum { MAX_BYTES = 16 << 20 };
    const cri_head *h = &p->state->head;
    int64_t num = 0, max = cr_max64(1, MAX_BYTES / (w->num_rows * (int64_t)sizeof(float)));
    int32_t *rows = CR_NEW_ARRAY(int32_t, h->num_rows);
    cr_mem *labels;

    CR_CHECK(!p->tape, "labels are drawn in a pass with a tape");
    for (int64_t r = 0; r < h->num_rows; r++) {
        out->drawn[r] = h->labels[r];
        if (out->draw[r]) rows[num++] = (int32_t)r;
    }
    for (int64_t i = 0; i < num; i += max)
        CR_TRY_GOTO(out,
                    draw_some(p, w, normed, out, rows + i, num - i < max ? num - i : max, err));
    CR_TRY_GOTO(out, cr_stack_push_copy(p->scratch, h->labels,
                                        (size_t)h->num_rows * sizeof *h->labels, &labels, err));
    p->index.labels = labels;
out:
    cr_free(rows);
    return err->status;
}

static cr_head_args head_args(const cr_module *m, const cr_pass *p, const cr_mem *normed)
{
    const cri_head *h = &p->state->head;

    return (cr_head_args){.x = normed,
                          .w = &cri_own(cri_now(m, p)->weight)->weight,
                          .labels = p->index.labels,
                          .num_rows = h->num_rows,
                          .lse = h->lse,
                          .mean_z = h->mean_z,
                          .processors = p->batch->processors ? &p->index.processors : NULL};
}

static cr_status vocab_forward(const cr_module *m, cr_pass *p, const cr_mem *normed,
                               const cri_head_want *want, cr_err *err)
{
    const cr_weight *w = &cri_own(cri_now(m, p)->weight)->weight;
    cr_head_args a;

    if (want->logits)
        return cr_logits(p->dev,
                         &(cr_logits_args){normed, w, p->state->head.num_rows, want->logits}, err);
    if (want->out->draw) CR_TRY(draw_labels(p, w, normed, want->out, err));
    a = head_args(m, p, normed);
    return outputs(p, &a, want->out, err);
}

/* A loss over ids, from the host. */
static cr_status push_chosen(cr_pass *p, const cr_outputs *grad, cr_head_grad_args *a,
                             cr_head_chosen *chosen, cr_err *err)
{
    const cri_head *h = &p->state->head;
    const size_t num = (size_t)(h->num_rows * grad->num_candidates), bytes = num * sizeof(float);
    cr_mem *ids, *log_probs, *dz, *rest, *log_sum;

    CR_TRY(cr_stack_push_copy(p->scratch, grad->candidates, num * sizeof *grad->candidates, &ids,
                              err));
    CR_TRY(cr_stack_push_copy(p->scratch, grad->candidate_log_probs, bytes, &log_probs, err));
    CR_TRY(cr_stack_push_copy(p->scratch, grad->tempered, bytes, &dz, err));
    CR_TRY(push_rows(p->scratch, h, grad->rest, &rest, err));
    CR_TRY(push_rows(p->scratch, h, grad->log_sum, &log_sum, err));
    *chosen = (cr_head_chosen){dz, rest, log_sum, grad->temperature};
    a->fwd.num_chosen = grad->num_candidates;
    a->fwd.chosen_ids = ids;
    a->fwd.chosen_log_prob = log_probs;
    a->chosen = chosen;
    return CR_OK;
}

/* Some rows of the head: their logits in z, dz in the dtype of the pass, and both on the host. */
typedef struct some_logits {
    int64_t first, num;
    cr_mem *z, *dz;
    float *host;
} some_logits;

static cr_status back_some(cr_pass *p, const cr_head_grad_args *a, const cr_outputs *grad,
                           const some_logits *s, cr_err *err)
{
    const cr_weight *w = a->fwd.w;
    const cr_logits_loss *loss = grad->logits_loss;
    const cr_mem *x = cr_at_const(p->dtype, a->fwd.x, s->first * w->num_cols);
    size_t chosen = (size_t)(s->num * w->num_rows);
    float *back = s->host + chosen;

    CR_TRY(cr_logits(p->dev, &(cr_logits_args){x, w, s->num, s->z}, err));
    CR_TRY(cr_download(p->dev, s->host, s->z, chosen * sizeof *back, err));
    CR_TRY(loss->run(loss->ctx, grad->first_row + s->first, s->num, s->host, back, err));
    for (size_t i = 0; i < chosen && loss->scale != 1; i++)
        back[i] *= loss->scale;
    CR_TRY(cr_upload(p->dev, s->z, back, chosen * sizeof *back, err));
    CR_TRY(cr_cast(p->dev, &(cr_cast_args){p->dtype, s->dz, CR_F32, s->z, chosen}, err));
    return cr_linear_grad(
        p->dev,
        &(cr_linear_grad_args){.x = x,
                               .dy = s->dz,
                               .w = w,
                               .dx = cr_at(p->dtype, a->dx, s->first * w->num_cols),
                               .is_dx_added = true,
                               .dw = a->dw,
                               .num_rows = s->num},
        err);
}

int64_t cr_logits_loss_rows(int64_t vocab_size, int64_t num_rows)
{
    enum { MAX_BYTES = 16 << 20 };
    const int64_t max = cr_max64(1, MAX_BYTES / (vocab_size * (int64_t)sizeof(float)));

    return num_rows < max ? num_rows : max;
}

/* A loss over all logits, of some rows at a time. It adds to dx and dw. */
static cr_status back_logits(cr_pass *p, const cr_head_grad_args *a, const cr_outputs *grad,
                             cr_err *err)
{
    const int64_t vocab = a->fwd.w->num_rows, rows = a->fwd.num_rows,
                  max = cr_logits_loss_rows(vocab, rows);
    size_t mark = cr_stack_mark(p->scratch);
    some_logits s = {.host = CR_NEW_ARRAY(float, 2 * max * vocab)};

    CR_TRY_GOTO(out, cri_push_numbers(p->scratch, max * vocab, &s.z, err));
    CR_TRY_GOTO(out, cri_push(p->scratch, p, max, vocab, &s.dz, err));
    for (; s.first < rows; s.first += max) {
        s.num = rows - s.first < max ? rows - s.first : max;
        CR_TRY_GOTO(out, back_some(p, a, grad, &s, err));
    }
out:
    cr_stack_release(p->scratch, mark);
    cr_free(s.host);
    return err->status;
}

static cr_status vocab_backward(const cr_module *m, cr_pass *p, const cr_mem *normed,
                                const cr_outputs *grad, cr_mem *dx, cr_err *err)
{
    const cri_head *h = &p->state->head;
    cr_mem *of[CR_NUM_OUTPUTS] = {NULL};
    cr_head_chosen chosen;
    cr_head_grad_args a;

    for (int i = 0; i < CR_NUM_OUTPUTS; i++)
        if (grad->of[i]) CR_TRY(push_rows(p->scratch, h, grad->of[i], &of[i], err));
    a = (cr_head_grad_args){.fwd = head_args(m, p, normed),
                            .grad_log_prob = of[CR_LOG_PROB],
                            .grad_entropy = of[CR_ENTROPY],
                            .dx = dx,
                            .dw = cri_grad(m->weight)};
    if (grad->num_candidates) CR_TRY(push_chosen(p, grad, &a, &chosen, err));
    CR_TRY(cr_head_grad(p->dev, &a, err));
    return grad->logits_loss ? back_logits(p, &a, grad, err) : CR_OK;
}

const cri_head_ops cri_vocab_head_ops = {.gives = {[CR_LOG_PROB] = true, [CR_ENTROPY] = true},
                                         .has_logits = true,
                                         .forward = vocab_forward,
                                         .backward = vocab_backward};

/* ---- a value ---- */

static cr_status value_forward(const cr_module *m, cr_pass *p, const cr_mem *normed,
                               const cri_head_want *want, cr_err *err)
{
    int64_t num = p->state->head.num_rows;
    float *values = want->out->of[CR_VALUE];
    cr_mem *y;
    cr_linear_args a;

    if (!values) return CR_OK;
    CR_TRY(cri_push_numbers(p->scratch, num, &y, err));
    a = (cr_linear_args){.x = normed,
                         .w = &m->weight->weight,
                         .bias = m->bias->weight.data,
                         .y = y,
                         .out_dtype = CR_F32,
                         .num_rows = num};
    CR_TRY(cr_linear(p->dev, &a, err));
    return cr_download(p->dev, values, y, (size_t)num * sizeof *values, err);
}

static cr_status value_backward(const cr_module *m, cr_pass *p, const cr_mem *normed,
                                const cr_outputs *grad, cr_mem *dx, cr_err *err)
{
    const cri_head *h = &p->state->head;
    size_t num = (size_t)h->num_rows;
    cr_mem *wide, *dy;
    cr_linear_grad_args a;

    if (!grad->of[CR_VALUE])
        return cr_zero(p->dev, dx, num * (size_t)m->weight->shape[1] * cr_dtype_bytes(p->dtype),
                       err);
    CR_TRY(push_rows(p->scratch, h, grad->of[CR_VALUE], &wide, err));
    CR_TRY(cri_push(p->scratch, p, h->num_rows, 1, &dy, err));
    CR_TRY(cr_cast(p->dev, &(cr_cast_args){p->dtype, dy, CR_F32, wide, num}, err));
    a = (cr_linear_grad_args){.x = normed,
                              .dy = dy,
                              .w = &m->weight->weight,
                              .dx = dx,
                              .dw = cri_grad(m->weight),
                              .dbias = cri_grad(m->bias),
                              .num_rows = h->num_rows};
    return cr_linear_grad(p->dev, &a, err);
}

const cri_head_ops cri_value_head_ops = {
    .gives = {[CR_VALUE] = true}, .forward = value_forward, .backward = value_backward};
