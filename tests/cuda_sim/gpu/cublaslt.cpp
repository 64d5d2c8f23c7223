/* cublaslt.cpp -- see include/cublasLt.h. Column-major matrices, sums in float32 over steps of k as the algorithm says. */
#include "kernels/cuda/elements.h"
#include "tests/cuda_sim/gpu/impl.h"

#include <cublasLt.h>

struct cublasLtContext {
    int unused;
};
struct cublasLtMatmulDesc {
    int32_t op_a = 0, op_b = 0, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr; /* in the type of D */
};
struct cublasLtLayout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublasLtPreference {
    uint64_t workspace = 0;
    uint32_t schemes = 7, alignment[4] = {256, 256, 256, 256};
};
enum {
    MAGIC = 0x51b1a5
}; /* in an algorithm's data: MAGIC, id, parts of k, length of a step of k, alignment of matrices in bytes, is fickle */

/* How it is to break its word: see cublasLt.h. */
static bool is_wrong(const char *how)
{
    const char *chosen = getenv("CROLL_SIM_CUBLASLT");

    if (!chosen) return false;
    for (const char *known : {"split", "none", "fickle", "late", "product", "matrix", "choice",
                              "parts", "chain", "third"})
        if (strcmp(chosen, known) == 0) return strcmp(chosen, how) == 0;
    cri_sim_die("CROLL_SIM_CUBLASLT=%s: see tests/cuda_sim/gpu/include/cublasLt.h", chosen);
}

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? 13 : 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptions ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t c,
                                        cudaDataType_t s)
{
    if (c != CUBLAS_COMPUTE_32F || s != CUDA_R_32F || is_wrong("product"))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = new cublasLtMatmulDesc();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t a, const void *value,
                                              size_t n)
{
    if (n != (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? 8 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    if (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        memcpy(&d->bias, value, 8);
    else
        memcpy(a == CUBLASLT_MATMUL_DESC_TRANSA   ? &d->op_a
               : a == CUBLASLT_MATMUL_DESC_TRANSB ? &d->op_b
                                                  : &d->epilogue,
               value, 4);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t t, uint64_t r,
                                          uint64_t c, int64_t ld)
{
    if (is_wrong("matrix")) return CUBLAS_STATUS_INVALID_VALUE;
    *out = new cublasLtLayout{t, r, c, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t a,
                                                const void *value, size_t n)
{
    if (a != CUBLASLT_MATRIX_LAYOUT_COLS || n != 8) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&l->cols, value, 8);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = new cublasLtPreference();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a,
                                                    const void *value, size_t n)
{
    if (is_wrong("choice")) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && n == 8)
        memcpy(&p->workspace, value, 8);
    else if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && n == 4)
        memcpy(&p->schemes, value, 4);
    else if (a >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES && n == 4)
        memcpy(&p->alignment[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, 4);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- algorithms ---- */

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *num)
{
    uint64_t n =
        D->cols < D->rows ? D->cols : D->rows; /* real heuristics split k when it is small */
    bool may_split = p->schemes && p->workspace;

    *num = wanted < 1 || is_wrong("none") ? 0 : is_wrong("third") && wanted > 2 ? 3 : 1;
    if (!*num) return CUBLAS_STATUS_SUCCESS;
    if (d->epilogue == CUBLASLT_EPILOGUE_BIAS && !d->bias) {
        *num = 0; /* which algorithms there are depends on how the bias is aligned */
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (int i = 0; i < *num; i++) {
        uint64_t *data = out[i].algo.data;
        bool splits = is_wrong("split") || (is_wrong("third") && i == 0) || (may_split && n <= 64);
        memset((void *)&out[i], 0, sizeof *out);
        data[0] = MAGIC;
        data[1] = n <= 16 ? 10 : 21;
        data[2] = splits ? (n <= 16 ? 4 : 2) : 1;
        data[3] = n <= 16 ? 128 : n <= 128 ? 64 : 32;
        data[4] = p->alignment[0];
        for (uint32_t a : p->alignment)
            if (a > data[4]) data[4] = a;
        data[5] = is_wrong("fickle") || (is_wrong("third") && i == 1);
        out[i].workspaceSize = may_split ? p->workspace : 0;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Leading dimensions must be multiples of 16 bytes, as the real tensor-core algorithms ask. */
static bool is_aligned(const cublasLtLayout *l)
{
    return l->ld % (l->type == CUDA_R_32F ? 4 : 8) == 0;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t D,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *out)
{
    if (algo->data[0] != MAGIC) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_aligned(A) || !is_aligned(B) || !is_aligned(D)) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset((void *)out, 0, sizeof *out);
    out->algo = *algo;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t a,
                                                    void *value, size_t n, size_t *written)
{
    int index = a == CUBLASLT_ALGO_CONFIG_ID ? 1 : a == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? 2 : 3;
    int32_t v = (int32_t)algo->data[index];

    if (n != 4 || is_wrong("parts")) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &v, 4);
    if (written) *written = 4;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

namespace
{
struct product {
    cublasLtLayout a, b, c, d;
    cublasLtMatmulDesc desc;
    const void *A, *B, *C, *bias;
    void *D;
    float alpha, beta;
    int64_t m, n, k, per, step; /* per: of k, a part; step: one tree of sums */
    bool is_chain;              /* instead, as the models of mma and wgmma */
};
} // namespace

static size_t bytes_of(const cublasLtLayout &l)
{
    return l.type == CUDA_R_32F ? 4 : 2;
}

static void touch(const void *data, const cublasLtLayout &l, bool is_write)
{
    for (uint64_t j = 0; j < l.cols; j++)
        cri_sim_touch((const char *)data + j * (uint64_t)l.ld * bytes_of(l), l.rows * bytes_of(l),
                      is_write);
}

static float get(const void *p, const cublasLtLayout &l, int64_t i)
{
    return l.type == CUDA_R_32F   ? ((const float *)p)[i]
           : l.type == CUDA_R_16F ? to_float(((const f16 *)p)[i])
                                  : cri_sim_from_bf16(((const uint16_t *)p)[i]);
}

static void put(void *p, const cublasLtLayout &l, int64_t i, float v)
{
    if (l.type == CUDA_R_32F)
        ((float *)p)[i] = v;
    else if (l.type == CUDA_R_16F)
        ((f16 *)p)[i] = to_f16(v);
    else
        ((uint16_t *)p)[i] = cri_sim_to_bf16(v);
}

/* `count` vectors over k, one after another. */
static std::vector<float> vectors_of(const void *p, const cublasLtLayout &l, int64_t count,
                                     int64_t k, bool is_row)
{
    std::vector<float> v((size_t)(count * k));

    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < k; j++)
            v[(size_t)(i * k + j)] = get(p, l, is_row ? i * l.ld + j : j * l.ld + i);
    return v;
}

/* Eight chains, then a tree. Eight at a time are one instruction: it is a third of what tests of products take. */
static float sum_of_step(const float *x, const float *y, int64_t num)
{
    float lane[8] = {0};
    int64_t i = 0;

    for (; i + 8 <= num; i += 8)
        for (int64_t l = 0; l < 8; l++)
            lane[l] += x[i + l] * y[i + l];
    for (; i < num; i++)
        lane[i & 7] += x[i] * y[i];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static float dot(const product &p, const float *x, const float *y)
{
    float sum = 0.0f;

    if (p.is_chain) {
        for (int64_t i = 0; i < p.k; i++)
            sum = fmaf(x[i], y[i], sum);
        return sum;
    }
    for (int64_t first = 0; first < p.k; first += p.per) {
        float part = 0.0f;
        int64_t end = first + p.per < p.k ? first + p.per : p.k;
        for (int64_t l = first; l < end; l += p.step)
            part += sum_of_step(x + l, y + l, l + p.step < end ? p.step : end - l);
        sum += part;
    }
    return sum;
}

static void multiply(const product &p)
{
    touch(p.A, p.a, false);
    touch(p.B, p.b, false);
    if (p.beta != 0.0f) touch(p.C, p.c, false);
    if (p.bias) cri_sim_touch(p.bias, (size_t)p.m * bytes_of(p.d), false);
    touch(p.D, p.d, true);
    std::vector<float> x = vectors_of(p.A, p.a, p.m, p.k, p.desc.op_a != 0);
    std::vector<float> y = vectors_of(p.B, p.b, p.n, p.k, p.desc.op_b == 0);
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) {
            float v = p.alpha * dot(p, &x[(size_t)(i * p.k)], &y[(size_t)(j * p.k)]);
            if (p.bias) v += get(p.bias, p.d, i);
            if (p.beta != 0.0f) v += p.beta * get(p.C, p.c, j * p.c.ld + i);
            put(p.D, p.d, j * p.d.ld + i, v);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t lA, const void *B,
                              cublasLtMatrixLayout_t lB, const void *beta, const void *C,
                              cublasLtMatrixLayout_t lC, void *D, cublasLtMatrixLayout_t lD,
                              const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t stream)
{
    cri_sim_enter enter;
    product p = {*lA,
                 *lB,
                 *lC,
                 *lD,
                 *d,
                 A,
                 B,
                 C,
                 nullptr,
                 D,
                 *(const float *)alpha,
                 *(const float *)beta,
                 0,
                 0,
                 0,
                 0,
                 0,
                 is_wrong("chain")};
    int64_t parts;
    cri_sim_op op;

    if (!algo || algo->data[0] != MAGIC)
        cri_sim_die("cublasLtMatmul without an algorithm: its choice would depend on the number of "
                    "rows");
    p.m = (int64_t)p.d.rows;
    p.n = (int64_t)p.d.cols;
    p.k = (int64_t)(d->op_a ? p.a.rows : p.a.cols);
    if ((int64_t)(d->op_a ? p.a.cols : p.a.rows) != p.m ||
        (int64_t)(d->op_b ? p.b.rows : p.b.cols) != p.n ||
        (int64_t)(d->op_b ? p.b.cols : p.b.rows) != p.k)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (d->epilogue == CUBLASLT_EPILOGUE_BIAS) p.bias = d->bias;
    if (((uintptr_t)A | (uintptr_t)B | (uintptr_t)C | (uintptr_t)D | (uintptr_t)p.bias) %
        algo->data[4])
        cri_sim_die("cublasLtMatmul: a matrix or bias is not aligned to the %d bytes that its "
                    "algorithm was asked for",
                    (int)algo->data[4]);
    if (is_wrong("late") && p.n > 8192) return CUBLAS_STATUS_NOT_SUPPORTED;
    parts = (int64_t)algo->data[2];
    p.step = algo->data[5] && p.n <= 64 ? 8 : (int64_t)algo->data[3];
    p.per = ((p.k + parts - 1) / parts + p.step - 1) / p.step * p.step;
    cri_sim_counts.few += algo->data[1] == 10;
    op.name = "cublasLtMatmul";
    op.is_submitted = true;
    op.run = [p] { multiply(p); };
    cri_sim_enqueue(stream, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}
