/* kernels.c -- argument checks and counting; forwards to the device's table. */
#include "kernels/kernels_impl.h"

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

cr_status cr_cast(cr_device *dev, cr_dtype to, cr_mem *dst, cr_dtype from, const cr_mem *src,
                  size_t num, cr_err *err)
{
    CR_TRY(check_act("cast", to, err));
    CR_TRY(check_act("cast", from, err));
    return dev->kernels->cast(dev, to, dst, from, src, num, err);
}

cr_status cr_scale(cr_device *dev, cr_mem *x, float factor, size_t num, cr_err *err)
{
    dev->stats.flops += (double)num;
    return dev->kernels->scale(dev, x, factor, num, err);
}

cr_status cr_square_sum(cr_device *dev, const cr_mem *x, size_t num, double *out, cr_err *err)
{
    dev->stats.flops += 2 * (double)num;
    return dev->kernels->square_sum(dev, x, num, out, err);
}

cr_status cr_checksum(cr_device *dev, const cr_mem *data, size_t num_bytes, uint64_t start,
                      uint64_t *out, cr_err *err)
{
    return dev->kernels->checksum(dev, data, num_bytes, start, out, err);
}

cr_status cr_adamw(cr_device *dev, const cr_adamw_args *a, cr_err *err)
{
    if (a->t < 1)
        return cr_fail(err, CR_EARG, "adamw: t is %lld, it counts from 1", (long long)a->t);
    dev->stats.flops += 14 * (double)a->num;
    return dev->kernels->adamw(dev, a, err);
}

/* ---- products ---- */

size_t cr_weight_packed_bytes(const cr_device *dev, const cr_weight *w)
{
    return dev->kernels->packed_bytes(dev, w);
}

cr_status cr_weight_pack(cr_device *dev, const cr_weight *w, cr_mem *packed, cr_err *err)
{
    CR_TRY(check_weight("weight_pack", w, err));
    return dev->kernels->pack(dev, w, packed, err);
}

static double product_flops(int64_t rows, const cr_weight *w)
{
    return 2.0 * (double)rows * (double)w->num_rows * (double)w->num_cols;
}

cr_status cr_linear(cr_device *dev, const cr_linear_args *a, cr_err *err)
{
    CR_TRY(check_weight("linear", a->w, err));
    if (a->num_rows <= 0) return CR_OK;
    dev->stats.flops += product_flops(a->num_rows, a->w);
    return dev->kernels->linear(dev, a, err);
}

cr_status cr_linear_grad(cr_device *dev, const cr_linear_grad_args *a, cr_err *err)
{
    CR_TRY(check_weight("linear_grad", a->w, err));
    if (a->num_rows <= 0) return CR_OK;
    dev->stats.flops += product_flops(a->num_rows, a->w) * ((a->dx != NULL) + (a->dw != NULL));
    return dev->kernels->linear_grad(dev, a, err);
}

/* ---- rows ---- */

cr_status cr_rmsnorm(cr_device *dev, const cr_rmsnorm_args *a, cr_err *err)
{
    CR_TRY(check_act("rmsnorm", a->dtype, err));
    dev->stats.flops += 4 * (double)(a->num_rows * a->num_cols);
    return dev->kernels->rmsnorm(dev, a, err);
}

cr_status cr_rmsnorm_grad(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err)
{
    CR_TRY(check_act("rmsnorm_grad", a->dtype, err));
    dev->stats.flops += 10 * (double)(a->num_rows * a->num_cols);
    return dev->kernels->rmsnorm_grad(dev, a, err);
}

cr_status cr_rope(cr_device *dev, const cr_rope_args *a, cr_err *err)
{
    CR_TRY(check_act("rope", a->dtype, err));
    if (a->head_dim % 2 || (a->sign != 1 && a->sign != -1))
        return cr_fail(err, CR_EARG, "rope: head_dim %lld, sign %d", (long long)a->head_dim,
                       a->sign);
    dev->stats.flops += 3 * (double)(a->num_tokens * a->num_heads * a->head_dim);
    return dev->kernels->rope(dev, a, err);
}

cr_status cr_swiglu(cr_device *dev, cr_dtype dtype, const cr_mem *gate, const cr_mem *up, cr_mem *h,
                    size_t num, cr_err *err)
{
    CR_TRY(check_act("swiglu", dtype, err));
    dev->stats.flops += 4 * (double)num;
    return dev->kernels->swiglu(dev, dtype, gate, up, h, num, err);
}

cr_status cr_swiglu_grad(cr_device *dev, cr_dtype dtype, const cr_mem *gate, const cr_mem *up,
                         const cr_mem *dh, cr_mem *dgate, cr_mem *dup, size_t num, cr_err *err)
{
    CR_TRY(check_act("swiglu_grad", dtype, err));
    dev->stats.flops += 10 * (double)num;
    return dev->kernels->swiglu_grad(dev, dtype, gate, up, dh, dgate, dup, num, err);
}

cr_status cr_embedding(cr_device *dev, const cr_weight *w, const int32_t *ids, int64_t num_tokens,
                       cr_mem *y, cr_err *err)
{
    CR_TRY(check_weight("embedding", w, err));
    return dev->kernels->embedding(dev, w, ids, num_tokens, y, err);
}

cr_status cr_embedding_grad(cr_device *dev, cr_dtype dtype, const cr_mem *dy, const int32_t *ids,
                            int64_t num_tokens, int64_t num_cols, cr_mem *dw, cr_err *err)
{
    CR_TRY(check_act("embedding_grad", dtype, err));
    return dev->kernels->embedding_grad(dev, dtype, dy, ids, num_tokens, num_cols, dw, err);
}

cr_status cr_rows_gather(cr_device *dev, cr_dtype dtype, const cr_mem *src, const cr_mem *index,
                         int64_t num_rows, int64_t num_cols, cr_mem *dst, cr_err *err)
{
    return dev->kernels->rows_gather(dev, dtype, src, index, num_rows, num_cols, dst, err);
}

cr_status cr_rows_scatter(cr_device *dev, cr_dtype dtype, const cr_mem *src, const cr_mem *index,
                          int64_t num_rows, int64_t num_cols, cr_mem *dst, cr_err *err)
{
    return dev->kernels->rows_scatter(dev, dtype, src, index, num_rows, num_cols, dst, err);
}

/* ---- vision ---- */

cr_status cr_rows_add(cr_device *dev, cr_dtype dtype, const cr_mem *src, const cr_mem *index,
                      int64_t num_rows, int64_t num_cols, cr_mem *dst, cr_err *err)
{
    CR_TRY(check_act("rows_add", dtype, err));
    dev->stats.flops += (double)(num_rows * num_cols);
    return dev->kernels->rows_add(dev, dtype, src, index, num_rows, num_cols, dst, err);
}

cr_status cr_layernorm(cr_device *dev, const cr_layernorm_args *a, cr_err *err)
{
    CR_TRY(check_act("layernorm", a->dtype, err));
    dev->stats.flops += 7 * (double)(a->num_rows * a->num_cols);
    return dev->kernels->layernorm(dev, a, err);
}

cr_status cr_layernorm_grad(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err)
{
    CR_TRY(check_act("layernorm_grad", a->dtype, err));
    dev->stats.flops += 14 * (double)(a->num_rows * a->num_cols);
    return dev->kernels->layernorm_grad(dev, a, err);
}

cr_status cr_gelu(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x, cr_mem *y,
                  size_t num, cr_err *err)
{
    CR_TRY(check_act("gelu", dtype, err));
    dev->stats.flops += 8 * (double)num;
    return dev->kernels->gelu(dev, kind, dtype, x, y, num, err);
}

cr_status cr_gelu_grad(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x,
                       const cr_mem *dy, cr_mem *dx, size_t num, cr_err *err)
{
    CR_TRY(check_act("gelu_grad", dtype, err));
    dev->stats.flops += 16 * (double)num;
    return dev->kernels->gelu_grad(dev, kind, dtype, x, dy, dx, num, err);
}

cr_status cr_embedding_bag_grad(cr_device *dev, const cr_embedding_bag_grad_args *a, cr_err *err)
{
    CR_TRY(check_act("embedding_bag_grad", a->dtype, err));
    dev->stats.flops += 2 * (double)(a->num_rows * a->per_row * a->num_cols);
    return dev->kernels->embedding_bag_grad(dev, a, err);
}

/* ---- experts ---- */

static cr_status check_router(const cr_router_args *a, cr_err *err)
{
    CR_TRY(check_act("router", a->dtype, err));
    if (a->top_k < 1 || a->top_k > a->num_experts)
        return cr_fail(err, CR_EARG, "router: %lld of %lld experts", (long long)a->top_k,
                       (long long)a->num_experts);
    return CR_OK;
}

cr_status cr_router(cr_device *dev, const cr_router_args *a, cr_err *err)
{
    CR_TRY(check_router(a, err));
    dev->stats.flops += 4 * (double)(a->num_rows * a->num_experts);
    return dev->kernels->router(dev, a, err);
}

cr_status cr_router_grad(cr_device *dev, const cr_router_grad_args *a, cr_err *err)
{
    CR_TRY(check_router(&a->fwd, err));
    dev->stats.flops += 4 * (double)(a->fwd.num_rows * a->fwd.num_experts);
    return dev->kernels->router_grad(dev, a, err);
}

cr_status cr_expert_sort(cr_device *dev, const cr_expert_sort_args *a, cr_err *err)
{
    if (a->num_rows * a->top_k > INT32_MAX)
        return cr_fail(err, CR_EARG, "expert_sort: %lld tokens with %lld experts each are too many",
                       (long long)a->num_rows, (long long)a->top_k);
    return dev->kernels->expert_sort(dev, a, err);
}

cr_status cr_rows_combine(cr_device *dev, const cr_rows_combine_args *a, cr_err *err)
{
    CR_TRY(check_act("rows_combine", a->dtype, err));
    dev->stats.flops += 2 * (double)(a->num_rows * a->top_k * a->num_cols);
    return dev->kernels->rows_combine(dev, a, err);
}

cr_status cr_rows_scale(cr_device *dev, cr_dtype dtype, const cr_mem *x, const cr_mem *factor,
                        int64_t num_rows, int64_t num_cols, cr_mem *y, cr_err *err)
{
    CR_TRY(check_act("rows_scale", dtype, err));
    dev->stats.flops += (double)(num_rows * num_cols);
    return dev->kernels->rows_scale(dev, dtype, x, factor, num_rows, num_cols, y, err);
}

cr_status cr_rows_dot(cr_device *dev, cr_dtype dtype, const cr_mem *a, const cr_mem *b,
                      int64_t num_rows, int64_t num_cols, cr_mem *out, cr_err *err)
{
    CR_TRY(check_act("rows_dot", dtype, err));
    dev->stats.flops += 2 * (double)(num_rows * num_cols);
    return dev->kernels->rows_dot(dev, dtype, a, b, num_rows, num_cols, out, err);
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

static cr_status check_packed(const cr_attention_args *a, cr_err *err)
{
    CR_TRY(check_heads(a->num_heads, a->num_kv_heads, a->head_dim, a->dtype, err));
    if (a->is_bidirectional && a->window > 0)
        return cr_fail(err, CR_EARG, "attention: bidirectional with a window of %lld",
                       (long long)a->window);
    return CR_OK;
}

static double attention_flops(const cr_attention_args *a)
{
    double sum = 0;

    for (int64_t s = 0; s < a->num_seqs; s++) {
        double n = a->cu_seqlens[s + 1] - a->cu_seqlens[s],
               seen = a->is_bidirectional ? 2 * n : n + 1;
        sum += 2 * n * seen * (double)(a->num_heads * a->head_dim);
    }
    return sum;
}

cr_status cr_attention(cr_device *dev, const cr_attention_args *a, cr_err *err)
{
    CR_TRY(check_packed(a, err));
    dev->stats.flops += attention_flops(a);
    return dev->kernels->attention(dev, a, err);
}

cr_status cr_attention_grad(cr_device *dev, const cr_attention_grad_args *a, cr_err *err)
{
    CR_TRY(check_packed(&a->fwd, err));
    if (!a->fwd.lse) return cr_fail(err, CR_EARG, "attention_grad needs the lse of its forward");
    dev->stats.flops += 2.5 * attention_flops(&a->fwd);
    return dev->kernels->attention_grad(dev, a, err);
}

size_t cr_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                         int64_t head_dim)
{
    return dev->kernels->kv_block_bytes(dev, dtype, num_kv_heads, head_dim);
}

cr_status cr_attention_cached(cr_device *dev, const cr_attention_cached_args *a, cr_err *err)
{
    CR_TRY(check_heads(a->num_heads, a->num_kv_heads, a->head_dim, a->dtype, err));
    for (int64_t r = 0; r < a->num_rows; r++)
        dev->stats.flops +=
            4.0 * (double)(a->row_pos[r] + 1) * (double)(a->num_heads * a->head_dim);
    return dev->kernels->attention_cached(dev, a, err);
}

cr_status cr_kv_block_copy(cr_device *dev, cr_mem *dst_block, const cr_mem *src_block,
                           size_t num_bytes, cr_err *err)
{
    return dev->kernels->copy(dev, dst_block, src_block, num_bytes, err);
}

static cr_status check_edits(const char *what, const cr_row_edits *e, cr_err *err)
{
    if (!e || (e->temperature > 0 && e->penalty > 0 && (e->penalty == 1 || e->seen_list)))
        return CR_OK;
    return cr_fail(err, CR_EARG, "%s: rows of temperature %g and repetition penalty %g%s", what,
                   (double)e->temperature, (double)e->penalty,
                   e->seen_list ? "" : " without their words");
}

cr_status cr_head(cr_device *dev, const cr_head_args *a, cr_err *err)
{
    CR_TRY(check_weight("head", a->w, err));
    CR_TRY(check_edits("head", a->edits, err));
    if (a->num_rows <= 0) return CR_OK;
    dev->stats.flops += product_flops(a->num_rows, a->w);
    return dev->kernels->head(dev, a, err);
}

cr_status cr_head_grad(cr_device *dev, const cr_head_grad_args *a, cr_err *err)
{
    CR_TRY(check_weight("head_grad", a->fwd.w, err));
    CR_TRY(check_edits("head_grad", a->fwd.edits, err));
    if (!a->fwd.lse || !a->fwd.mean_z)
        return cr_fail(err, CR_EARG, "head_grad needs lse and mean_z of its forward");
    if (a->fwd.num_rows <= 0) return CR_OK;
    dev->stats.flops += product_flops(a->fwd.num_rows, a->fwd.w) * (2 + (a->dw != NULL));
    return dev->kernels->head_grad(dev, a, err);
}

cr_status cr_logits(cr_device *dev, const cr_mem *x, const cr_weight *w, int64_t num_rows,
                    cr_mem *logits, cr_err *err)
{
    CR_TRY(check_weight("logits", w, err));
    if (num_rows <= 0) return CR_OK;
    dev->stats.flops += product_flops(num_rows, w);
    return dev->kernels->logits(dev, x, w, num_rows, logits, err);
}

cr_status cr_logits_log_prob(cr_device *dev, const cr_mem *logits, int64_t num_rows,
                             int64_t vocab_size, const int32_t *labels, const cr_row_edits *edits,
                             float *log_prob, float *entropy, cr_err *err)
{
    CR_TRY(check_edits("logits_log_prob", edits, err));
    return dev->kernels->logits_log_prob(dev, logits, num_rows, vocab_size, labels, edits, log_prob,
                                         entropy, err);
}

cr_status cr_logits_sample(cr_device *dev, const cr_mem *logits, int64_t vocab_size,
                           float temperature, float u, int32_t *id, cr_err *err)
{
    if (!(temperature >= 0))
        return cr_fail(err, CR_EARG, "temperature %g is not at least 0", (double)temperature);
    return dev->kernels->logits_sample(dev, logits, vocab_size, temperature, u, id, err);
}
