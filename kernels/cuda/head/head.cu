/* head.cu -- the vocabulary head: log-probs and entropies of rows against all tokens, and their gradients, without an array of all
 * logits.
 *
 * For 2048 rows at a time, and as many tiles of 1024 tokens as leave z at most 24 MB (3072 tokens of 2048 rows, 65,536 of up to 96 rows):
 * z = x W^T by the product of linear.cu, which log_probs.cu reduces. The backward makes z again, of 4096 rows and 6144 tokens at a time; the product's epilogue
 * turns it into dz (ending.h: the log-sum is known), rounded to the act dtype, and dx += dz W (float32 until all tokens are in) and dw += dz^T x
 * are products by cuBLASLt where it is taken (library.h). Generation reduces whole rows of the same logits, so its log-probs have the same bits.
 *
 * FLOPs 2 h a logit forward, 6 h backward (8 h with dw): products, whose limits are those of linear.cu and cuBLASLt; by the tiles of linear_wgmma.cu,
 * of 256 rows and 192 tokens, these sizes are 128 and 512 blocks: 97 % of one and of four rounds of an H100's 132 multiprocessors. Bytes beside W, read
 * once in 2048 rows, backward in 4096: forward a tile of z written and read, 8 bytes a logit, 24 MB that stay in L2 (50 MB); backward 2 bytes a logit
 * written and twice read, and 8 bytes an element of dx for each 6144 tokens. Launches for 8192 rows of 152k tokens: 400 forward, 150 backward.
 * Scratch: 24 MB, or 48 MB + 4 bytes an element of dx of 4096 rows.
 */
#include "kernels/cuda/ending.h"

#include <math.h>

enum {
    ROWS = 2048,
    LABELS = 64,
    MAX_Z = 6 << 20, /* logits in memory */
    MAX_TILES = 64,  /* of tokens, a launch */
    GRAD_ROWS = 4096,
    GRAD_COLS = 6144 /* of a tile of dz, for any number of rows: a row's dx depends on it */
};

/* z [num, cols] of rows of x against tokens v0 .. v0 + cols - 1. */
static cri_product logits_of(const cr_weight *w, const void *x, int64_t num, int64_t v0,
                             int64_t cols, void *z, int64_t ld)
{
    const char *data = (const char *)cr_mem_to_host(w->data);
    cri_product p = {};

    p.dtype = w->dtype;
    p.a = x;
    p.b = data + (size_t)(v0 * w->num_cols) * cr_dtype_bytes(w->dtype);
    p.m = num;
    p.n = cols;
    p.k = p.lda = p.ldb = w->num_cols;
    p.c_dtype = CR_F32;
    p.c = z;
    p.ldc = ld;
    p.aux_dtype = w->dtype;
    p.factor = 1.0f;
    return p;
}

static const char *row_at(const cr_head_args *a, int64_t row)
{
    return (const char *)cr_mem_to_host(a->x) +
           (size_t)(row * a->w->num_cols) * cr_dtype_bytes(a->w->dtype);
}

static int64_t at_most(int64_t num, int64_t max)
{
    return num < max ? num : max;
}

/* ---- the label's logit before all others, for its rank ---- */

template <class T>
static __global__ void gather_tokens(T *to, const T *w, const int32_t *labels, int64_t num_cols)
{
    const T *from = w + labels[blockIdx.x] * num_cols;

    for (int64_t i = threadIdx.x; i < num_cols; i += blockDim.x)
        to[blockIdx.x * num_cols + i] = from[i];
}

/* z [num, LABELS] of LABELS rows against their own labels' tokens: the diagonal. */
static __global__ void take_diagonal(const float *z, int64_t num, int64_t row0, int64_t row,
                                     row_processors e, const int32_t *labels, log_prob_state *state)
{
    int64_t i = threadIdx.x;
    float x, slope;

    if (i >= num) return;
    x = z[i * LABELS + i];
    (void)process_logit(e, row + i, labels[row + i], x, slope);
    state[row - row0 + i].label = x;
}

template <class T>
static cr_status find_labels(cr_device *dev, const cr_head_args *a, const cri_log_prob_rows *rows,
                             log_prob_state *state, void *tokens, float *z, cr_err *err)
{
    cudaStream_t stream = cri_cuda_stream(dev);
    const cr_weight *w = a->w;
    auto gather = gather_tokens<T>;

    for (int64_t i = 0; i < rows->num_rows; i += LABELS) {
        int64_t num = at_most(rows->num_rows - i, LABELS), row = rows->first_row + i;
        cri_product p = logits_of(w, row_at(a, row), num, 0, num, z, LABELS);
        p.b = tokens;
        CR_TRY(launched("head",
                        CUDA_LAUNCH(gather, dim3((unsigned)num), dim3(128), 0, stream, (T *)tokens,
                                    in<T>(w->data), rows->labels + row, w->num_cols),
                        err));
        CR_TRY(cri_cuda_product(dev, "head", &p, err));
        CR_TRY(
            launched("head",
                     CUDA_LAUNCH(take_diagonal, dim3(1), dim3(LABELS), 0, stream, (const float *)z,
                                 num, rows->first_row, row, rows->processors, rows->labels, state),
                     err));
    }
    return CR_OK;
}

/* ---- forward ---- */

static cri_log_prob_rows rows_of(const cr_head_args *a)
{
    cri_log_prob_rows w = {};

    w.vocab_size = a->w->num_rows;
    w.labels = in<int32_t>(a->labels);
    w.processors = cri_cuda_processors(a->processors);
    w.log_prob = out<float>(a->log_prob);
    w.entropy = out<float>(a->entropy);
    w.lse = out<float>(a->lse);
    w.mean_z = out<float>(a->mean_z);
    w.rank = out<int32_t>(a->rank);
    w.num_top = a->num_top;
    w.top_ids = out<int32_t>(a->top_ids);
    w.top_log_prob = out<float>(a->top_log_prob);
    w.num_chosen = a->num_chosen;
    w.chosen_ids = in<int32_t>(a->chosen_ids);
    w.chosen_log_prob = out<float>(a->chosen_log_prob);
    return w;
}

/* Whole tiles of log_probs.cu, as many as rows leave room for. Results do not depend on it. */
static int64_t ids_a_launch(const cr_weight *w, int64_t num_rows)
{
    int64_t all = (w->num_rows + CRI_TILE_TOKENS - 1) / CRI_TILE_TOKENS,
            room = MAX_Z / CRI_TILE_TOKENS / (num_rows < 1 ? 1 : num_rows);

    return at_most(all, at_most(room, MAX_TILES)) * CRI_TILE_TOKENS;
}

cr_status cri_cuda_head(cr_device *dev, const cr_head_args *a, cr_err *err)
{
    const cr_weight *w = a->w;
    int64_t max = at_most(a->num_rows, ROWS), width = ids_a_launch(w, max);
    size_t z_bytes = (size_t)(max * width) * sizeof(float),
           tokens_bytes = (size_t)(LABELS * w->num_cols) * sizeof(float);
    cudaStream_t stream = cri_cuda_stream(dev);
    cri_log_prob_rows rows = rows_of(a);
    void *mem;

    CR_TRY(cri_cuda_scratch(dev, z_bytes + tokens_bytes + (size_t)max * sizeof(log_prob_state),
                            &mem, err));
    float *z = (float *)mem;
    void *tokens = (char *)mem + z_bytes;
    log_prob_state *state = (log_prob_state *)(void *)((char *)tokens + tokens_bytes);
    for (; rows.first_row < a->num_rows; rows.first_row += ROWS) {
        rows.num_rows = at_most(a->num_rows - rows.first_row, ROWS);
        CR_TRY(launched("head", cri_cuda_log_probs_begin(&rows, state, stream), err));
        if (a->rank)
            CR_TRY(CRI_BY_DTYPE(w->dtype, find_labels, dev, a, &rows, state, tokens, z, err));
        for (int64_t v0 = 0; v0 < w->num_rows; v0 += width) {
            int64_t cols = at_most(w->num_rows - v0, width);
            cri_product p =
                logits_of(w, row_at(a, rows.first_row), rows.num_rows, v0, cols, z, width);
            CR_TRY(cri_cuda_product(dev, "head", &p, err));
            CR_TRY(launched(
                "head", cri_cuda_log_probs_take(&rows, state, z, width, v0, cols, stream), err));
        }
        CR_TRY(launched("head", cri_cuda_log_probs_end(&rows, state, stream), err));
    }
    return CR_OK;
}

/* ---- backward ---- */

template <class T> static __global__ void round_rows(T *to, const float *from, int64_t num)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < num) to[i] = from_float<T>(from[i]);
}

/* What the products of the backward share. */
struct backward_memory {
    void *dz; /* [rows, GRAD_COLS] */
    float *dx;
};

static cri_dz dz_of(const cr_head_grad_args *a, int64_t first, int64_t v0)
{
    return {in<float>(a->fwd.lse),
            in<float>(a->fwd.mean_z),
            in<float>(a->grad_log_prob),
            in<float>(a->grad_entropy),
            in<int32_t>(a->fwd.labels),
            cri_cuda_processors(a->fwd.processors),
            first,
            v0,
            a->chosen ? in<float>(a->chosen->rest) : NULL,
            a->chosen ? in<float>(a->chosen->log_sum) : NULL,
            a->chosen ? a->chosen->temperature : 1.0f};
}

/* dz of the chosen tokens, which the product's epilogue does not know: from their log-probs, so that it is rounded once. */
template <class T>
static __global__ void put_chosen(T *dz, cri_dz how, int64_t num_rows, int64_t cols, int64_t num,
                                  const int32_t *ids, const float *log_prob, const float *add)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, r = i / num,
            row = how.first_row + r, at = row * num + i % num;
    float g, ge, z_mean, d;

    if (r >= num_rows) return;
    int64_t col = ids[at] - how.first_token;
    if (ids[at] < 0 || col < 0 || col >= cols) return;
    g = how.grad_log_prob[row];
    ge = how.grad_entropy ? how.grad_entropy[row] : 0.0f;
    z_mean = log_prob[at] + how.lse[row] - how.mean_z[row];
    d = -(expf(log_prob[at]) * fmaf(ge, z_mean, g));
    if (ids[at] == how.labels[row]) d += g;
    dz[r * GRAD_COLS + col] = from_float<T>(d + add[at]);
}

template <class T>
static cr_status place_chosen(cr_device *dev, const cr_head_grad_args *a, const cri_dz *how,
                              void *dz, int64_t num_rows, int64_t cols, cr_err *err)
{
    int64_t num = a->fwd.num_chosen;
    auto put = put_chosen<T>;

    return launched("head_grad",
                    CUDA_LAUNCH(put, blocks_for(num_rows * num, 256, INT32_MAX), dim3(256), 0,
                                cri_cuda_stream(dev), (T *)dz, *how, num_rows, cols, num,
                                in<int32_t>(a->fwd.chosen_ids), in<float>(a->fwd.chosen_log_prob),
                                in<float>(a->chosen->dz)),
                    err);
}

/* Tokens v0 .. of rows first .. first + num - 1. */
static cr_status take_back(cr_device *dev, const cr_head_grad_args *a, const backward_memory *m,
                           int64_t first, int64_t num, int64_t v0, cr_err *err)
{
    const cr_weight *w = a->fwd.w;
    int64_t cols = at_most(w->num_rows - v0, GRAD_COLS), h = w->num_cols;
    const cri_dz how = dz_of(a, first, v0);
    cri_product z = logits_of(w, row_at(&a->fwd, first), num, v0, cols, m->dz, GRAD_COLS), dx = z,
                dw;

    z.c_dtype = w->dtype;
    z.dz = &how;
    CR_TRY(cri_cuda_product(dev, "head_grad", &z, err));
    if (a->chosen)
        CR_TRY(CRI_BY_DTYPE(w->dtype, place_chosen, dev, a, &how, m->dz, num, cols, err));
    dx.a = m->dz;
    dx.is_b_turned = true;
    dx.n = dx.ldc = h;
    dx.k = cols;
    dx.lda = GRAD_COLS;
    dx.aux_dtype = CR_F32;
    dx.c = m->dx;
    dx.add = m->dx;
    CR_TRY(cri_cuda_product_anyhow(dev, "head_grad", &dx, err));
    if (!a->dw) return CR_OK;
    dw = dx;
    dw.is_a_turned = true;
    dw.b = row_at(&a->fwd, first);
    dw.m = cols;
    dw.k = num;
    dw.c = out<float>(a->dw) + v0 * h;
    dw.add = dw.c;
    return cri_cuda_product_anyhow(dev, "head_grad", &dw, err);
}

template <class T>
static cr_status head_grad(cr_device *dev, const cr_head_grad_args *a, cr_err *err)
{
    int64_t num = a->fwd.num_rows, max = at_most(num, GRAD_ROWS), h = a->fwd.w->num_cols;
    size_t dz_bytes = (size_t)(max * GRAD_COLS) * sizeof(T);
    cudaStream_t stream = cri_cuda_stream(dev);
    auto round = round_rows<T>;
    void *mem;

    CR_TRY(cri_cuda_scratch(dev, dz_bytes + (size_t)(max * h) * sizeof(float), &mem, err));
    const backward_memory m = {mem, (float *)(void *)((char *)mem + dz_bytes)};
    for (int64_t first = 0; first < num; first += GRAD_ROWS) {
        int64_t rows = at_most(num - first, GRAD_ROWS);
        CR_TRY(
            dev->kernels->zero(dev, cr_mem_of_host(m.dx), (size_t)(rows * h) * sizeof(float), err));
        for (int64_t v0 = 0; v0 < a->fwd.w->num_rows; v0 += GRAD_COLS)
            CR_TRY(take_back(dev, a, &m, first, rows, v0, err));
        CR_TRY(
            launched("head_grad",
                     CUDA_LAUNCH(round, blocks_for(rows * h, 256, INT32_MAX), dim3(256), 0, stream,
                                 out<T>(a->dx) + first * h, (const float *)m.dx, rows * h),
                     err));
    }
    return CR_OK;
}

cr_status cri_cuda_head_grad(cr_device *dev, const cr_head_grad_args *a, cr_err *err)
{
    return CRI_BY_DTYPE(a->fwd.w->dtype, head_grad, dev, a, err);
}

/* ---- rows of logits that generation has ---- */

cr_status cri_cuda_logits_log_prob(cr_device *dev, const cr_logits_log_prob_args *a, cr_err *err)
{
    cri_log_prob_rows rows = {};
    size_t bytes = (size_t)a->num_rows * sizeof(float), at = 0;
    void *mem;

    if (a->num_rows <= 0) return CR_OK;
    rows.num_rows = a->num_rows;
    rows.vocab_size = a->vocab_size;
    rows.labels = in<int32_t>(a->labels);
    rows.processors = cri_cuda_processors(a->processors);
    CR_TRY(cri_cuda_scratch(dev, 2 * (bytes + 256) + cri_cuda_log_probs_tiles(&rows), &mem, err));
    carve((char *)mem, &at, &rows.log_prob, a->num_rows);
    carve((char *)mem, &at, &rows.entropy, a->num_rows);
    CR_TRY(launched("logits_log_prob",
                    cri_cuda_log_probs_whole(&rows, logit_source{in<float>(a->logits), NULL, NULL},
                                             (char *)mem + at, cri_cuda_stream(dev)),
                    err));
    if (a->log_prob)
        CR_TRY(dev->kernels->download(dev, a->log_prob, cr_mem_of_host(rows.log_prob), bytes, err));
    if (a->entropy)
        CR_TRY(dev->kernels->download(dev, a->entropy, cr_mem_of_host(rows.entropy), bytes, err));
    return CR_OK;
}
