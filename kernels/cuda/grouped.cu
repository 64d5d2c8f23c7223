/* grouped.cu -- products of the rows of several experts, each with its own weight, in one launch: y = x W^T, dx = dy W, dw += dy^T x.
 *
 * Mapping: the tiles and sums of linear.cu (product_mma.h). A block makes a 64 x 128 tile of the rows of one expert, which it finds by its
 * number among the tiles of all of them; of dw, a block makes a tile of one expert's gradient. Where rows begin comes with the launch:
 * no table on the device, no wait. Sums go over ascending k, of dw over the expert's rows in their order, so that a row's result depends
 * on neither its place nor how many rows its expert got, and dw on no other expert.
 * FLOPs a byte of L2: 43; of shared memory: 21. Shared memory 72 KiB, at most 212 registers, two blocks an SM. Limit of an H100 or H200, many rows an expert:
 * mma.sync, as linear.cu; few rows (generation): the bytes of the weights, 2 N K an expert, read once a tile of 64 rows.
 * bf16 of sizes that are multiples of 8; others go expert by expert the way of linear.cu.
 */
#include "kernels/cuda/product_mma.h"

/* Rows of expert e: first_row[e] .. first_row[e + 1] - 1, in tiles first_tile[e] .. */
struct groups {
    int num, first_row[CR_EXPERTS_A_CALL + 1], first_tile[CR_EXPERTS_A_CALL + 1];

    __device__ __forceinline__ int expert_of(int tile) const
    {
        int low = 0, high = num; /* first_tile[low] <= tile < first_tile[high] */

        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (first_tile[middle] <= tile)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};

static groups groups_of(const int64_t *rows, int64_t num)
{
    groups g;

    g.num = (int)num;
    g.first_row[0] = g.first_tile[0] = 0;
    for (int e = 0; e < g.num; e++) {
        g.first_row[e + 1] = g.first_row[e] + (int)rows[e];
        g.first_tile[e + 1] = g.first_tile[e] + (int)((rows[e] + TM - 1) / TM);
    }
    return g;
}

/* c [rows, n] = a [rows, k] times the weight of each row's expert, [n, k], or [k, n] if it is turned (+ add). */
struct rows_args {
    const bf16 *a;
    const bf16 *w[CR_EXPERTS_A_CALL];
    bf16 *c;
    const bf16 *add; /* c or NULL */
    int64_t n, k;
    groups at;
};

template <bool IS_TURNED>
static __global__ void __launch_bounds__(MMA_THREADS, 2) grouped_rows(rows_args g)
{
    int tile = (int)blockIdx.x, e = g.at.expert_of(tile);
    int64_t first = g.at.first_row[e], rows = g.at.first_row[e + 1] - first;
    const bf16 *weight = g.w[e];
    const lying a = {g.a + first * g.k, rows, g.k, g.k},
                b = {weight, IS_TURNED ? g.k : g.n, IS_TURNED ? g.n : g.k, IS_TURNED ? g.n : g.k};
    const ending<bf16, bf16> end = {
        g.c + first * g.n, NULL, g.add ? g.add + first * g.n : NULL, rows, g.n, g.n, 1.0f};

    mma_tile<false, IS_TURNED>(a, b, g.k, end, (int64_t)(tile - g.at.first_tile[e]) * TM,
                               (int64_t)blockIdx.y * TN);
}

/* dw[e] [n, k] += dy^T x over the rows of expert e. */
struct weights_args {
    const bf16 *dy, *x;
    float *dw[CR_EXPERTS_A_CALL]; /* NULL: not wanted */
    int64_t n, k;
    groups at;
};

static __global__ void __launch_bounds__(MMA_THREADS, 2) grouped_weights(weights_args g)
{
    int e = (int)blockIdx.z;
    int64_t first = g.at.first_row[e], rows = g.at.first_row[e + 1] - first;

    if (rows == 0 || !g.dw[e]) return;
    const bf16 *from = g.dy + first * g.n;
    const lying dy = {from, rows, g.n, g.n}, x = {g.x + first * g.k, rows, g.k, g.k};
    const ending<float, float> end = {g.dw[e], NULL, g.dw[e], g.n, g.k, g.k, 1.0f};
    mma_tile<true, true>(dy, x, rows, end, (int64_t)blockIdx.x * TM, (int64_t)blockIdx.y * TN);
}

template <class Kernel, class Args>
static cudaError_t launch(cr_device *dev, Kernel kernel, dim3 grid, const Args &a)
{
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_SHARED);

    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(kernel, grid, dim3(MMA_THREADS), MMA_SHARED, cri_cuda_stream(dev), a);
}

static unsigned num_tiles(int64_t num, int side)
{
    return (unsigned)((num + side - 1) / side);
}

/* By the weight alone, whatever the rows are. */
static bool is_grouped(const cr_weight *w)
{
    return w->dtype == CR_BF16 && (w->num_rows | w->num_cols) % 8 == 0;
}

static cr_status check_aligned(const char *op, const cr_mem *a, const cr_mem *b,
                               const cr_weight *const *w, int64_t num, cr_err *err)
{
    bool is_aligned = is_wide(a) && is_wide(b);

    for (int64_t e = 0; e < num; e++)
        is_aligned = is_aligned && is_wide(w[e]->data);
    if (is_aligned) return CR_OK;
    return cr_fail(err, CR_EARG, "%s on device cuda: bf16 matrices begin at multiples of 16 bytes",
                   op);
}

static cr_status multiply_rows(cr_device *dev, const char *op, const cr_mem *a,
                               const cr_weight *const *w, bool is_turned, cr_mem *c, bool is_added,
                               const int64_t *rows, int64_t num, cr_err *err)
{
    rows_args g;

    CR_TRY(check_aligned(op, a, c, w, num, err));
    g.a = in<bf16>(a);
    g.c = out<bf16>(c);
    g.add = is_added ? g.c : NULL;
    g.n = is_turned ? w[0]->num_cols : w[0]->num_rows;
    g.k = is_turned ? w[0]->num_rows : w[0]->num_cols;
    g.at = groups_of(rows, num);
    for (int64_t e = 0; e < num; e++)
        g.w[e] = in<bf16>(w[e]->data);
    const dim3 grid((unsigned)g.at.first_tile[num], num_tiles(g.n, TN));
    return launched(op,
                    is_turned ? launch(dev, grouped_rows<true>, grid, g)
                              : launch(dev, grouped_rows<false>, grid, g),
                    err);
}

cr_status cri_cuda_expert_linear(cr_device *dev, const cr_expert_linear_args *a, cr_err *err)
{
    int64_t row = 0;

    if (is_grouped(a->w[0]))
        return multiply_rows(dev, "expert_linear", a->x, a->w, false, a->y, false, a->rows,
                             a->num_experts, err);
    for (int64_t e = 0; e < a->num_experts; row += a->rows[e++]) {
        const cr_linear_args one = cri_linear_of_expert(a, e, row);
        if (one.num_rows) CR_TRY(cri_cuda_linear(dev, &one, err));
    }
    return CR_OK;
}

static cr_status add_weights(cr_device *dev, const cr_expert_linear_grad_args *a, cr_err *err)
{
    weights_args g;

    CR_TRY(check_aligned("expert_linear_grad", a->dy, a->x, a->w, a->num_experts, err));
    g.dy = in<bf16>(a->dy);
    g.x = in<bf16>(a->x);
    g.n = a->w[0]->num_rows;
    g.k = a->w[0]->num_cols;
    g.at = groups_of(a->rows, a->num_experts);
    for (int64_t e = 0; e < a->num_experts; e++)
        g.dw[e] = out<float>(a->dw[e]);
    const dim3 grid(num_tiles(g.n, TM), num_tiles(g.k, TN), (unsigned)a->num_experts);
    return launched("expert_linear_grad", launch(dev, grouped_weights, grid, g), err);
}

cr_status cri_cuda_expert_linear_grad(cr_device *dev, const cr_expert_linear_grad_args *a,
                                      cr_err *err)
{
    int64_t row = 0;

    if (is_grouped(a->w[0])) {
        if (a->dx)
            CR_TRY(multiply_rows(dev, "expert_linear_grad", a->dy, a->w, true, a->dx,
                                 a->is_dx_added, a->rows, a->num_experts, err));
        return a->dw ? add_weights(dev, a, err) : CR_OK;
    }
    for (int64_t e = 0; e < a->num_experts; row += a->rows[e++]) {
        const cr_linear_grad_args one = cri_linear_grad_of_expert(a, e, row);
        if (one.num_rows) CR_TRY(cri_cuda_linear_grad(dev, &one, err));
    }
    return CR_OK;
}
