/* kernels.c -- what each operation checks and counts; then it goes to the device's table.
 *
 * An operation `x` of the list (ops.h) has one function here, check_x: it refuses arguments that no
 * device can work with, and says how many rows or elements there are and what they cost. */
#include "kernels/kernels_impl.h"
#include "kernels/sampling_ranges.h"

/* Of one call. */
typedef struct work {
    int64_t num;                                /* rows or elements; 0: there is nothing to do */
    double flops, attention_flops, moved_bytes; /* as in cr_device_stats */
    int64_t max_elems;
} work;

/* bytes_an_elem: read and written, in all arrays together. */
static work elems(size_t num, double flops_an_elem, size_t bytes_an_elem)
{
    return (work){.num = (int64_t)num,
                  .flops = flops_an_elem * (double)num,
                  .moved_bytes = (double)num * (double)bytes_an_elem,
                  .max_elems = (int64_t)num};
}

static work cells(int64_t num_rows, int64_t num_cols, double flops_a_cell, size_t bytes_a_cell)
{
    return elems((size_t)(num_rows * num_cols), flops_a_cell, bytes_a_cell);
}

static bool is_act(cr_dtype dtype)
{
    return dtype == CR_F32 || dtype == CR_BF16 || dtype == CR_F16;
}

/* What every device here computes in. */
static cr_status check_act(const char *op, cr_dtype dtype, cr_err *err)
{
    if (is_act(dtype)) return CR_OK;
    return cr_fail(err, CR_EABSENT, "%s in %s is not available yet (fp32, bf16 and fp16 are)", op,
                   cr_dtype_name(dtype));
}

static cr_status check_weight(const char *op, const cr_weight *w, cr_err *err)
{
    CR_TRY(check_act(op, w->dtype, err));
    if (w->num_rows < 1 || w->num_cols < 1 || !w->data)
        return cr_fail(err, CR_EARG, "%s: a weight of %lld x %lld", op, (long long)w->num_rows,
                       (long long)w->num_cols);
    return CR_OK;
}

/* ---- flat ranges ---- */

static cr_status check_cast(const cr_cast_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 0, cr_dtype_bytes(a->to) + cr_dtype_bytes(a->from));
    CR_TRY(check_act("cast", a->to, err));
    return check_act("cast", a->from, err);
}

static cr_status check_scale(const cr_scale_args *a, work *w, cr_err *err)
{
    (void)err;
    *w = elems(a->num, 1, 2 * sizeof(float));
    return CR_OK;
}

static cr_status check_sum_parts(const cr_sum_parts_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, (double)a->num_parts - !a->is_added,
               a->num_parts * cr_dtype_bytes(a->dtype) + sizeof(float));
    if (a->num_parts < 1 || a->num_parts > UINT16_MAX)
        return cr_fail(err, CR_EARG, "sum_parts: %zu parts, not 1 to 65535", a->num_parts);
    if (a->dtype != CR_F32 && a->dtype != CR_BF16)
        return cr_fail(err, CR_EARG, "sum_parts: parts in %s, not fp32 or bf16",
                       cr_dtype_name(a->dtype));
    return CR_OK;
}

static cr_status check_square_sum(const cr_square_sum_args *a, work *w, cr_err *err)
{
    (void)err;
    *w = elems(a->num, 2, sizeof(float));
    return CR_OK;
}

static cr_status check_checksum(const cr_checksum_args *a, work *w, cr_err *err)
{
    (void)err;
    *w = elems(a->num_bytes, 0, 1);
    return CR_OK;
}

static cr_status check_adamw(const cr_adamw_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 14, 7 * sizeof(float) + (a->rounded ? cr_dtype_bytes(a->rounded_dtype) : 0));
    if (a->t < 1)
        return cr_fail(err, CR_EARG, "adamw: t is %lld, it counts from 1", (long long)a->t);
    if (a->rounded && a->rounded_dtype != CR_BF16 && a->rounded_dtype != CR_F16)
        return cr_fail(err, CR_EARG, "adamw: rounded to %s, not bf16 or fp16",
                       cr_dtype_name(a->rounded_dtype));
    return CR_OK;
}

static cr_status check_blend(const cr_blend_args *a, work *w, cr_err *err)
{
    (void)err;
    *w = elems(a->num, 3, 3 * sizeof(float));
    return CR_OK;
}

/* ---- products ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* `times` products of rows with w. */
static work product(int64_t num_rows, const cr_weight *w, int times)
{
    return (work){
        .num = num_rows,
        .flops = 2.0 * times * (double)num_rows * (double)w->num_rows * (double)w->num_cols,
        .max_elems =
            larger(num_rows * larger(w->num_rows, w->num_cols), w->num_rows * w->num_cols)};
}

static cr_status check_weight_pack(const cr_weight_pack_args *a, work *w, cr_err *err)
{
    *w = cells(a->w->num_rows, a->w->num_cols, 0, 2 * cr_dtype_bytes(a->w->dtype));
    return check_weight("weight_pack", a->w, err);
}

static cr_status check_linear(const cr_linear_args *a, work *w, cr_err *err)
{
    *w = product(a->num_rows, a->w, 1);
    return check_weight("linear", a->w, err);
}

static cr_status check_linears(const cr_linears_args *a, work *w, cr_err *err)
{
    *w = (work){.num = a->num_rows};
    if (a->num < 1 || a->num > CR_LINEARS)
        return cr_fail(err, CR_EARG, "linears: %d products", a->num);
    for (int i = 0; i < a->num; i++) {
        const work one = product(a->num_rows, &a->w[i], 1);
        CR_TRY(check_weight("linears", &a->w[i], err));
        if (a->w[i].num_cols != a->w[0].num_cols || a->w[i].dtype != a->w[0].dtype)
            return cr_fail(err, CR_EARG,
                           "linears: weights of several dtypes or numbers of columns");
        w->flops += one.flops;
        w->max_elems = larger(w->max_elems, one.max_elems);
    }
    return CR_OK;
}

/* Adds what `times` products with A and with B of each are, and looks at their sizes. */
static cr_status check_low_ranks(const char *op, const cr_low_rank *low, const cr_weight *base,
                                 int num, int times, work *w, cr_err *err)
{
    for (int i = 0; i < num; i++) {
        const cr_weight *a = &low[i].a, *b = &low[i].b;
        if (!a->data) continue;
        CR_TRY(check_weight(op, a, err));
        CR_TRY(check_weight(op, b, err));
        if (a->num_cols != base[i].num_cols || b->num_rows != base[i].num_rows ||
            a->num_rows != b->num_cols || a->dtype != base[i].dtype || b->dtype != base[i].dtype)
            return cr_fail(err, CR_EARG,
                           "%s: adapters of %lld x %lld and %lld x %lld on a weight of %lld x %lld",
                           op, (long long)a->num_rows, (long long)a->num_cols,
                           (long long)b->num_rows, (long long)b->num_cols,
                           (long long)base[i].num_rows, (long long)base[i].num_cols);
        w->flops += product(w->num, a, times).flops + product(w->num, b, times).flops;
    }
    return CR_OK;
}

static cr_status check_adapted_linears(const cr_adapted_linears_args *a, work *w, cr_err *err)
{
    CR_TRY(check_linears(&a->base, w, err));
    if (a->add && a->base.num != 1)
        return cr_fail(err, CR_EARG, "adapted_linears: %d products with an addend", a->base.num);
    if (a->is_base_made) w->flops = 0;
    return check_low_ranks("adapted_linears", a->low, a->base.w, a->base.num, 1, w, err);
}

/* A: h again, its gradient, and dx; B: its gradient, and dh. */
static cr_status check_adapted_linears_grad(const cr_adapted_linears_grad_args *a, work *w,
                                            cr_err *err)
{
    cr_linears_args base = {.num = a->num, .num_rows = a->num_rows};

    for (int i = 0; i < a->num && i < CR_LINEARS; i++)
        base.w[i] = a->w[i];
    CR_TRY(check_linears(&base, w, err));
    if (!a->dx || a->is_base_made) w->flops = 0;
    return check_low_ranks("adapted_linears_grad", a->low, a->w, a->num, 2 + (a->dx != NULL), w,
                           err);
}

static cr_status check_linear_grad(const cr_linear_grad_args *a, work *w, cr_err *err)
{
    *w = product(a->num_rows, a->w, (a->dx != NULL) + (a->dw != NULL));
    return check_weight("linear_grad", a->w, err);
}

/* ---- rows ---- */

static cr_status check_rmsnorm(const cr_rmsnorm_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 4, (a->add ? 3 : 2) * cr_dtype_bytes(a->dtype));
    return check_act("rmsnorm", a->dtype, err);
}

static cr_status check_rmsnorm_grad(const cr_rmsnorm_grad_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 10, 3 * cr_dtype_bytes(a->dtype));
    return check_act("rmsnorm_grad", a->dtype, err);
}

static cr_status check_rope(const cr_rope_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_tokens, a->num_heads * a->head_dim, 3, 2 * cr_dtype_bytes(a->dtype));
    CR_TRY(check_act("rope", a->dtype, err));
    if (a->head_dim % 2 || (a->sign != 1 && a->sign != -1))
        return cr_fail(err, CR_EARG, "rope: head_dim %lld, sign %d", (long long)a->head_dim,
                       a->sign);
    return CR_OK;
}

static cr_status check_qk_heads(const cr_qk_heads_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_tokens, (a->num_heads + a->num_kv_heads) * a->head_dim, a->q_weight ? 7 : 3,
               2 * cr_dtype_bytes(a->dtype));
    CR_TRY(check_act("qk_heads", a->dtype, err));
    if (a->head_dim % 2 || (a->sign != 1 && a->sign != -1) || !a->q_weight != !a->k_weight ||
        (!a->q_weight && (a->q != a->q_in || a->k != a->k_in)))
        return cr_fail(
            err, CR_EARG,
            "qk_heads: head_dim %lld, sign %d, norms of one side, or none and other places",
            (long long)a->head_dim, a->sign);
    return CR_OK;
}

static cr_status check_swiglu(const cr_swiglu_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 4, 3 * cr_dtype_bytes(a->dtype));
    return check_act("swiglu", a->dtype, err);
}

static cr_status check_swiglu_grad(const cr_swiglu_grad_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 10, (a->h ? 6 : 5) * cr_dtype_bytes(a->dtype));
    return check_act("swiglu_grad", a->dtype, err);
}

static cr_status check_embedding(const cr_embedding_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_tokens, a->w->num_cols, 0, 2 * cr_dtype_bytes(a->w->dtype));
    w->max_elems = larger(w->max_elems, a->w->num_rows * a->w->num_cols);
    return check_weight("embedding", a->w, err);
}

static cr_status check_embedding_grad(const cr_embedding_grad_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_tokens, a->num_cols, 0, cr_dtype_bytes(a->dtype) + 2 * sizeof(float));
    return check_act("embedding_grad", a->dtype, err);
}

static cr_status check_rows_gather(const cr_rows_move_args *a, work *w, cr_err *err)
{
    (void)err;
    *w = cells(a->num_rows, a->num_cols, 0, 2 * cr_dtype_bytes(a->dtype));
    return CR_OK;
}

static cr_status check_rows_scatter(const cr_rows_move_args *a, work *w, cr_err *err)
{
    return check_rows_gather(a, w, err);
}

static cr_status check_rows_add(const cr_rows_move_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 1, 3 * cr_dtype_bytes(a->dtype));
    return check_act("rows_add", a->dtype, err);
}

/* ---- attention and head ---- */

static cr_status check_heads(int64_t heads, int64_t kv_heads, int64_t head_dim, cr_dtype dtype,
                             cr_err *err)
{
    CR_TRY(check_act("attention", dtype, err));
    if (kv_heads < 1 || heads % kv_heads || head_dim < 1 || head_dim > 256)
        return cr_fail(err, CR_EARG,
                       "attention: %lld heads, %lld kv heads, head_dim %lld (at most 256)",
                       (long long)heads, (long long)kv_heads, (long long)head_dim);
    return CR_OK;
}

static work attention(int64_t num, int64_t num_rows, const cr_seq_sizes *sizes, int64_t row_elems)
{
    double flops = 4 * sizes->num_pairs * (double)row_elems;

    return (work){
        .num = num, .flops = flops, .attention_flops = flops, .max_elems = num_rows * row_elems};
}

static cr_status check_attention(const cr_attention_args *a, work *w, cr_err *err)
{
    *w = attention(a->num_seqs, a->num_seqs * a->sizes.max_seqlen, &a->sizes,
                   a->num_heads * a->head_dim);
    CR_TRY(check_heads(a->num_heads, a->num_kv_heads, a->head_dim, a->dtype, err));
    if (a->is_bidirectional && a->window > 0)
        return cr_fail(err, CR_EARG, "attention: bidirectional with a window of %lld",
                       (long long)a->window);
    return CR_OK;
}

static cr_status check_attention_grad(const cr_attention_grad_args *a, work *w, cr_err *err)
{
    CR_TRY(check_attention(&a->fwd, w, err));
    if (!a->fwd.lse) return cr_fail(err, CR_EARG, "attention_grad needs the lse of its forward");
    if (a->fwd.sizes.num_rows < a->fwd.sizes.max_seqlen)
        return cr_fail(err, CR_EARG, "attention_grad: %lld rows with a sequence of %lld",
                       (long long)a->fwd.sizes.num_rows, (long long)a->fwd.sizes.max_seqlen);
    w->flops *= 2.5, w->attention_flops *= 2.5;
    return CR_OK;
}

static bool is_next(const int32_t *row_slot, const int32_t *row_pos, int64_t row)
{
    return row_slot[row] == row_slot[row - 1] && row_pos[row] == row_pos[row - 1] + 1;
}

int64_t cr_row_tiles(const int32_t *row_slot, const int32_t *row_pos, int64_t num_rows,
                     cr_row_tile *tiles)
{
    int64_t num = 0, first = 1;

    while (first < num_rows && !is_next(row_slot, row_pos, first))
        first++;
    for (int64_t r = first - 1; first < num_rows && r < num_rows; num++) {
        int64_t end = r + 1;
        while (end < num_rows && end - r < CR_ROW_TILE && is_next(row_slot, row_pos, end))
            end++;
        tiles[num] = (cr_row_tile){(int32_t)r, (int32_t)(end - r)};
        r = end;
    }
    return num;
}

static cr_status check_attention_cached(const cr_attention_cached_args *a, work *w, cr_err *err)
{
    *w = attention(a->num_rows, a->num_rows, &a->sizes, a->num_heads * a->head_dim);
    if (a->heads.q_in) {
        work heads;
        CR_TRY(check_qk_heads(&a->heads, &heads, err));
        w->flops += heads.flops, w->moved_bytes += heads.moved_bytes;
    }
    if (a->num_blocks < 1)
        return cr_fail(err, CR_EARG, "attention_cached: a cache of %lld blocks",
                       (long long)a->num_blocks);
    if (a->num_tiles > 0 && (a->num_alone < 0 || a->num_alone >= a->num_rows))
        return cr_fail(err, CR_EARG, "attention_cached: tiles of rows after %lld of %lld",
                       (long long)a->num_alone, (long long)a->num_rows);
    return check_heads(a->num_heads, a->num_kv_heads, a->head_dim, a->dtype, err);
}

static cr_status check_processors(const char *what, const cr_row_processors_mem *e, cr_err *err)
{
    if (!e || (e->temperature > 0 && e->penalty > 0 && (e->penalty == 1 || e->seen_list)))
        return CR_OK;
    return cr_fail(err, CR_EARG, "%s: rows of temperature %g and repetition penalty %g%s", what,
                   (double)e->temperature, (double)e->penalty,
                   e->seen_list ? "" : " without their tokens");
}

static cr_status check_head(const cr_head_args *a, work *w, cr_err *err)
{
    *w = product(a->num_rows, a->w, 1);
    CR_TRY(check_weight("head", a->w, err));
    if (a->num_top < 0 || a->num_top > a->w->num_rows || a->num_chosen < 0)
        return cr_fail(err, CR_EARG, "head: the %lld largest and %lld chosen of %lld tokens",
                       (long long)a->num_top, (long long)a->num_chosen, (long long)a->w->num_rows);
    return check_processors("head", a->processors, err);
}

static cr_status check_head_grad(const cr_head_grad_args *a, work *w, cr_err *err)
{
    *w = product(a->fwd.num_rows, a->fwd.w, 2 + (a->dw != NULL));
    CR_TRY(check_weight("head_grad", a->fwd.w, err));
    CR_TRY(check_processors("head_grad", a->fwd.processors, err));
    if (!a->fwd.lse || !a->fwd.mean_z)
        return cr_fail(err, CR_EARG, "head_grad needs lse and mean_z of its forward");
    if (a->chosen && (a->fwd.processors || a->fwd.num_chosen < 1 || !(a->chosen->temperature > 0)))
        return cr_fail(err, CR_EARG, "head_grad: %lld tokens at temperature %g%s",
                       (long long)a->fwd.num_chosen, (double)a->chosen->temperature,
                       a->fwd.processors ? ", with processors" : "");
    return CR_OK;
}

static cr_status check_logits(const cr_logits_args *a, work *w, cr_err *err)
{
    *w = product(a->num_rows, a->w, 1);
    return check_weight("logits", a->w, err);
}

static cr_status check_draw(const cr_draw_args *a, work *w, cr_err *err)
{
    bool has_work = a->part == CR_DRAW_ALL || a->part == CR_DRAW_QUEUE;

    *w = cells(has_work ? a->num_rows : 0, a->vocab_size, 0, sizeof(float));
    for (int64_t r = 0; r < a->num_rows; r++) {
        const cr_draw_row *row = &a->rows[r];
        if (!(row->temperature == 0 || row->temperature >= CR_MIN_TEMPERATURE) ||
            !(row->penalty > 0))
            return cr_fail(err, CR_EARG, "draw: row %lld has temperature %g, penalty %g",
                           (long long)r, (double)row->temperature, (double)row->penalty);
        if (row->num_top < 0 || row->num_top > a->vocab_size)
            return cr_fail(err, CR_EARG, "draw: the %lld largest of %lld tokens",
                           (long long)row->num_top, (long long)a->vocab_size);
    }
    return CR_OK;
}

static cr_status check_logits_log_prob(const cr_logits_log_prob_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->vocab_size, 0, sizeof(float));
    return check_processors("logits_log_prob", a->processors, err);
}

/* ---- experts ---- */

static cr_status check_router(const cr_router_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_experts, 4, 2 * sizeof(float));
    CR_TRY(check_act("router", a->dtype, err));
    if (a->top_k < 1 || a->top_k > a->num_experts)
        return cr_fail(err, CR_EARG, "router: %lld of %lld experts", (long long)a->top_k,
                       (long long)a->num_experts);
    return CR_OK;
}

static cr_status check_router_grad(const cr_router_grad_args *a, work *w, cr_err *err)
{
    return check_router(&a->fwd, w, err);
}

static cr_status check_expert_sort(const cr_expert_sort_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->top_k, 0, 2 * sizeof(int32_t));
    if (a->num_rows * a->top_k > INT32_MAX)
        return cr_fail(err, CR_EARG, "expert_sort: %lld tokens with %lld experts each are too many",
                       (long long)a->num_rows, (long long)a->top_k);
    return CR_OK;
}

/* `times` products of the rows of all experts. */
static cr_status check_expert_products(const char *op, const cr_weight *const *w,
                                       const int64_t *rows, int64_t num, int times, work *out,
                                       cr_err *err)
{
    int64_t all = 0;

    if (num < 1 || num > CR_EXPERTS_A_CALL)
        return cr_fail(err, CR_EARG, "%s: %lld experts, not 1 to %d", op, (long long)num,
                       CR_EXPERTS_A_CALL);
    for (int64_t e = 0; e < num; e++) {
        CR_TRY(check_weight(op, w[e], err));
        if (w[e]->dtype != w[0]->dtype || w[e]->num_rows != w[0]->num_rows ||
            w[e]->num_cols != w[0]->num_cols)
            return cr_fail(err, CR_EARG, "%s: weights of several shapes or dtypes", op);
        all += rows[e];
    }
    if (all > INT32_MAX)
        return cr_fail(err, CR_EARG, "%s: %lld rows are too many", op, (long long)all);
    *out = product(all, w[0], times);
    return CR_OK;
}

static cr_status check_expert_linear(const cr_expert_linear_args *a, work *w, cr_err *err)
{
    return check_expert_products("expert_linear", a->w, a->rows, a->num_experts, 1, w, err);
}

static cr_status check_expert_linear_grad(const cr_expert_linear_grad_args *a, work *w, cr_err *err)
{
    return check_expert_products("expert_linear_grad", a->w, a->rows, a->num_experts,
                                 (a->dx != NULL) + (a->dw != NULL), w, err);
}

static cr_status check_rows_combine(const cr_rows_combine_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->top_k * a->num_cols, 2, cr_dtype_bytes(a->dtype));
    return check_act("rows_combine", a->dtype, err);
}

static cr_status check_rows_scale(const cr_rows_scale_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 1, 2 * cr_dtype_bytes(a->dtype));
    return check_act("rows_scale", a->dtype, err);
}

static cr_status check_rows_dot(const cr_rows_dot_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 2, 2 * cr_dtype_bytes(a->dtype));
    return check_act("rows_dot", a->dtype, err);
}

static cr_status check_rows_drop(const cr_rows_drop_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 2, (a->add ? 3 : 2) * cr_dtype_bytes(a->dtype));
    if (!(a->rate >= 0 && a->rate < 1))
        return cr_fail(err, CR_EARG, "rows_drop: a rate of %g", a->rate);
    return check_act("rows_drop", a->dtype, err);
}

/* ---- vision ---- */

static cr_status check_layernorm(const cr_layernorm_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 7, 2 * cr_dtype_bytes(a->dtype));
    return check_act("layernorm", a->dtype, err);
}

static cr_status check_layernorm_grad(const cr_layernorm_grad_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 14, 3 * cr_dtype_bytes(a->dtype));
    return check_act("layernorm_grad", a->dtype, err);
}

static cr_status check_gelu(const cr_gelu_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 8, 2 * cr_dtype_bytes(a->dtype));
    return check_act("gelu", a->dtype, err);
}

static cr_status check_gelu_grad(const cr_gelu_grad_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 16, 3 * cr_dtype_bytes(a->dtype));
    return check_act("gelu_grad", a->dtype, err);
}

static cr_status check_geglu(const cr_geglu_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 9, 3 * cr_dtype_bytes(a->dtype));
    return check_act("geglu", a->dtype, err);
}

static cr_status check_geglu_grad(const cr_geglu_grad_args *a, work *w, cr_err *err)
{
    *w = elems(a->num, 20, 5 * cr_dtype_bytes(a->dtype));
    return check_act("geglu_grad", a->dtype, err);
}

static cr_status check_embedding_bag_grad(const cr_embedding_bag_grad_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->per_row * a->num_cols, 2, 2 * sizeof(float));
    return check_act("embedding_bag_grad", a->dtype, err);
}

static cr_status check_cols_scale(const cr_cols_scale_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 2, (a->add ? 3 : 2) * cr_dtype_bytes(a->dtype));
    return check_act("cols_scale", a->dtype, err);
}

static cr_status check_cols_scale_grad(const cr_cols_scale_grad_args *a, work *w, cr_err *err)
{
    *w = cells(a->num_rows, a->num_cols, 3, 3 * cr_dtype_bytes(a->dtype));
    return check_act("cols_scale_grad", a->dtype, err);
}

/* ---- calls ---- */

static void count(cr_device *dev, const char *name, const work *w)
{
    cr_device_stats *s = &dev->streams[0]->stats;

    s->flops += w->flops;
    s->attention_flops += w->attention_flops;
    s->moved_bytes += w->moved_bytes;
    if (w->max_elems > s->max_elems) s->max_elems = w->max_elems, s->max_elems_in = name;
}

#define FORWARD(name, args, should_skip)                            \
    cr_status cr_##name(cr_device *dev, const args *a, cr_err *err) \
    {                                                               \
        work w;                                                     \
                                                                    \
        CR_TRY(check_##name(a, &w, err));                           \
        if ((should_skip) && w.num <= 0) return CR_OK;              \
        count(dev, #name, &w);                                      \
        return dev->kernels->name(dev, a, err);                     \
    }
#define OP(name, args)         FORWARD(name, args, true)
#define OP_TO_HOST(name, args) FORWARD(name, args, false)
CR_OPS(OP, OP_TO_HOST)

size_t cr_weight_packed_bytes(const cr_device *dev, const cr_weight *w)
{
    return dev->kernels->packed_bytes(dev, w);
}

size_t cr_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                         int64_t head_dim)
{
    return dev->kernels->kv_block_bytes(dev, dtype, num_kv_heads, head_dim);
}
