/* library.c -- see library.h. cuBLASLt's matrices are column-major: C [m, n] of product.h, rows one after another, is its
 * D [n, m], the weight its A and the activations its B.
 *
 * Sums in float32, then bias, then the addend, then one rounding. dw: k is the number of rows there, so that only the
 * same bits for the same call are promised, and nothing is probed. */
#include "kernels/cuda/library.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MANY_ROWS = 8192, /* for which the algorithm is asked */
    ALIGNED = 16,
    PROBE_BYTES = 128 << 20, /* of rows, and of their products */
    OWN_ROWS = 256           /* of the probe, each different; further ones repeat them */
};

/* The sizes and types that one algorithm is kept for. m is that of dw alone, whose k is the number of rows. */
typedef struct sizes {
    cr_dtype dtype, c_dtype;
    bool is_a_turned, is_b_turned, has_bias, has_add;
    int64_t m, n, k, lda, ldb, ldc;
} sizes;

typedef struct kept {
    sizes of;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t weight, rows, out; /* A, B, C and D */
    int64_t num_rows;                         /* that the layouts have now; -1: not sure */
    cublasLtMatmulAlgo_t algo;
    char refusal[sizeof((cr_gpu_products){0}.refusal)]; /* "": taken */
    struct kept *next;
} kept;

struct cri_library {
    cublasLtHandle_t handle;
    kept *first;
};

static cr_status check(const char *what, cublasStatus_t code, cr_err *err)
{
    if (code == CUBLAS_STATUS_SUCCESS) return CR_OK;
    return cr_fail(err, CR_EIO, "device cuda: %s: cuBLAS status %d", what, (int)code);
}

static cr_status check_cuda(const char *what, cudaError_t code, cr_err *err)
{
    if (code == cudaSuccess) return CR_OK;
    return cr_fail(err, CR_EIO, "device cuda: %s: %s", what, cudaGetErrorString(code));
}

/* ---- one call ---- */

static cudaDataType_t type_of(cr_dtype dtype)
{
    return dtype == CR_F32 ? CUDA_R_32F : dtype == CR_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasStatus_t layout(cublasLtMatrixLayout_t *out, cr_dtype dtype, int64_t rows,
                             int64_t cols, int64_t ld)
{
    return cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld);
}

static int64_t rows_of(const cri_product *p)
{
    return p->is_a_turned ? p->k : p->m;
}

static cublasStatus_t describe_matrices(kept *k, const cri_product *p)
{
    cublasStatus_t code = layout(&k->weight, p->dtype, p->is_b_turned ? p->n : p->k,
                                 p->is_b_turned ? p->k : p->n, p->ldb);

    k->num_rows = rows_of(p);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = layout(&k->rows, p->dtype, p->is_a_turned ? p->m : p->k,
                      p->is_a_turned ? p->k : p->m, p->lda);
    return code == CUBLAS_STATUS_SUCCESS ? layout(&k->out, p->c_dtype, p->n, p->m, p->ldc) : code;
}

/* Rows are the columns of B and D, of dw those of A and B. */
static cublasStatus_t set_rows(kept *k, int64_t num)
{
    const uint64_t cols = (uint64_t)num;
    const cublasLtMatrixLayout_t other = k->of.is_a_turned ? k->weight : k->out;
    cublasStatus_t code;

    if (k->num_rows == num) return CUBLAS_STATUS_SUCCESS;
    k->num_rows = -1;
    code =
        cublasLtMatrixLayoutSetAttribute(k->rows, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof cols);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutSetAttribute(other, CUBLASLT_MATRIX_LAYOUT_COLS, &cols,
                                                sizeof cols);
    if (code == CUBLAS_STATUS_SUCCESS) k->num_rows = num;
    return code;
}

static cublasStatus_t set_bias(const kept *k, const void *bias)
{
    return cublasLtMatmulDescSetAttribute(k->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias);
}

static cublasStatus_t multiply(cri_library *l, kept *k, const cri_product *p, cudaStream_t stream)
{
    const float one = 1, beta = p->add ? 1 : 0;
    cublasStatus_t code = p->bias ? set_bias(k, p->bias) : CUBLAS_STATUS_SUCCESS;

    if (code == CUBLAS_STATUS_SUCCESS) code = set_rows(k, rows_of(p));
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    return cublasLtMatmul(l->handle, k->desc, &one, p->b, k->weight, p->a, k->rows, &beta,
                          p->add ? p->add : p->c, k->out, p->c, k->out, &k->algo, NULL, 0, stream);
}

/* ---- choosing the algorithm ---- */

/* A call that does not succeed before the first product is a refusal: croll's own kernels multiply. */
static bool is_refused(kept *k, const char *what, cublasStatus_t code)
{
    if (code == CUBLAS_STATUS_SUCCESS) return false;
    snprintf(k->refusal, sizeof k->refusal, "%s: cuBLAS status %d", what, (int)code);
    return true;
}

/* With the bias, whose address the heuristic looks at. */
static cublasStatus_t describe(kept *k, const void *bias)
{
    const cublasOperation_t weight = k->of.is_b_turned ? CUBLAS_OP_N : CUBLAS_OP_T,
                            rows = k->of.is_a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t code = cublasLtMatmulDescCreate(&k->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(k->desc, CUBLASLT_MATMUL_DESC_TRANSA, &weight,
                                              sizeof weight);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(k->desc, CUBLASLT_MATMUL_DESC_TRANSB, &rows,
                                              sizeof rows);
    if (code == CUBLAS_STATUS_SUCCESS && bias)
        code = cublasLtMatmulDescSetAttribute(k->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof epilogue);
    return code == CUBLAS_STATUS_SUCCESS && bias ? set_bias(k, bias) : code;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t *out)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = 0;
    const uint32_t schemes = 0, aligned = ALIGNED;
    cublasStatus_t code = cublasLtMatmulPreferenceCreate(out);

    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace, sizeof workspace);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulPreferenceSetAttribute(
            *out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (size_t i = 0; i < CR_COUNT(alignments) && code == CUBLAS_STATUS_SUCCESS; i++)
        code = cublasLtMatmulPreferenceSetAttribute(*out, alignments[i], &aligned, sizeof aligned);
    return code;
}

/* The algorithm for the rows of k's layouts into k->algo, or k->refusal. */
static void ask(cri_library *l, kept *k, cublasLtMatmulPreference_t preference)
{
    cublasLtMatmulHeuristicResult_t found;
    int num = 0, parts = 0;
    cublasStatus_t code = cublasLtMatmulAlgoGetHeuristic(
        l->handle, k->desc, k->weight, k->rows, k->out, k->out, preference, 1, &found, &num);

    if (is_refused(k, "it has no algorithm without workspace", code)) return;
    if (num < 1)
        snprintf(k->refusal, sizeof k->refusal, "it has no algorithm without workspace");
    else if (!is_refused(k, "it has no algorithm without workspace", found.state) &&
             !is_refused(k, "its algorithm does not say into how many parts it splits k",
                         cublasLtMatmulAlgoConfigGetAttribute(&found.algo,
                                                              CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                              &parts, sizeof parts, NULL)) &&
             parts > 1)
        snprintf(k->refusal, sizeof k->refusal, "its algorithm splits k into %d parts", parts);
    if (num) k->algo = found.algo;
}

/* With many rows. */
static void choose(cri_library *l, kept *k, const cri_product *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    cri_product many = *p;

    if (p->is_a_turned)
        many.k = MANY_ROWS;
    else
        many.m = MANY_ROWS;
    if (!is_refused(k, "a product of cuBLASLt", describe(k, p->bias)) &&
        !is_refused(k, "what cuBLASLt may choose", prefer(&preference)) &&
        !is_refused(k, "a matrix of cuBLASLt", describe_matrices(k, &many)))
        ask(l, k, preference);
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
}

/* ---- the probe ---- */

static const int64_t probe_rows[] = {1, 2, 16, 17, 64, 257, 2048, MANY_ROWS};

typedef struct probe {
    cri_product p; /* of its own memory */
    cr_mem *rows, *out;
    size_t row_bytes, out_bytes; /* of one row */
    int64_t most;
    char *alone, *company; /* [out_bytes] */
} probe;

/* The row that is looked at lies first and wherever it is the last; the others are different numbers near 1. */
static cr_status upload_rows(cr_device *dev, probe *x, cr_err *err)
{
    uint16_t *bits = cr_alloc((size_t)x->most * x->row_bytes);
    int64_t k = x->p.lda, num = x->most < OWN_ROWS ? x->most : OWN_ROWS;
    uint32_t state = 1;

    for (int64_t i = 0; i < num * k; i++) {
        state = state * 1664525u + 1013904223u;
        bits[i] = (uint16_t)((x->p.dtype == CR_BF16 ? 0x3f00 : 0x3800) | state >> 24 |
                             (state >> 8 & 0x8000)); /* 0.5 to 2, either sign */
    }
    for (int64_t row = num; row < x->most; row++)
        memcpy(bits + row * k, bits + row % num * k, x->row_bytes);
    for (size_t i = 1; i < CR_COUNT(probe_rows) && probe_rows[i] <= x->most; i++)
        memcpy(bits + (probe_rows[i] - 1) * k, bits, x->row_bytes);
    cr_note(dev->kernels->upload(dev, x->rows, bits, (size_t)x->most * x->row_bytes, err));
    cr_free(bits);
    return err->status;
}

static cr_status probe_open(cr_device *dev, const cri_product *p, probe *x, cr_err *err)
{
    size_t larger;

    *x = (probe){.p = *p, .row_bytes = (size_t)p->lda * cr_dtype_bytes(p->dtype)};
    x->out_bytes = (size_t)p->ldc * cr_dtype_bytes(p->c_dtype);
    larger = x->row_bytes > x->out_bytes ? x->row_bytes : x->out_bytes;
    for (size_t i = 0; i < CR_COUNT(probe_rows); i++)
        if (i == 0 || (size_t)probe_rows[i] * larger <= PROBE_BYTES) x->most = probe_rows[i];
    x->alone = cr_alloc(2 * x->out_bytes);
    x->company = x->alone + x->out_bytes;
    CR_TRY(dev->kernels->alloc(dev, (size_t)x->most * x->row_bytes, &x->rows, err));
    CR_TRY(dev->kernels->alloc(dev, (size_t)x->most * x->out_bytes, &x->out, err));
    CR_TRY(upload_rows(dev, x, err));
    x->p.a = cr_mem_to_host(x->rows);
    x->p.c = cr_mem_to_host(x->out);
    if (p->add) x->p.add = x->p.c;
    return CR_OK;
}

static void probe_close(cr_device *dev, probe *x)
{
    if (x->rows) dev->kernels->release(dev, x->rows, (size_t)x->most * x->row_bytes);
    if (x->out) dev->kernels->release(dev, x->out, (size_t)x->most * x->out_bytes);
    cr_free(x->alone);
}

static cr_status try_rows(cr_device *dev, cri_library *l, kept *k, probe *x, int64_t num,
                          cr_err *err)
{
    const int64_t places[] = {0, num - 1};
    char what[32];

    x->p.m = num;
    CR_TRY(dev->kernels->zero(dev, x->out, (size_t)num * x->out_bytes, err)); /* the addend */
    snprintf(what, sizeof what, "it refuses %lld rows", (long long)num);
    if (is_refused(k, what, multiply(l, k, &x->p, cri_cuda_stream(dev)))) return CR_OK;
    for (int i = 0; i < 2 && !k->refusal[0]; i++) {
        CR_TRY(dev->kernels->download(dev, num == 1 ? x->alone : x->company,
                                      cr_mem_add(x->out, (size_t)places[i] * x->out_bytes),
                                      x->out_bytes, err));
        if (num > 1 && memcmp(x->alone, x->company, x->out_bytes) != 0)
            snprintf(k->refusal, sizeof k->refusal,
                     "row %lld of %lld has other bits than the same row alone",
                     (long long)places[i], (long long)num);
    }
    return CR_OK;
}

static cr_status check_rows(cr_device *dev, cri_library *l, kept *k, const cri_product *p,
                            cr_err *err)
{
    probe x;

    if (probe_open(dev, p, &x, err) == CR_OK)
        for (size_t i = 0; i < CR_COUNT(probe_rows) && !k->refusal[0]; i++) {
            if (probe_rows[i] > x.most) break;
            if (try_rows(dev, l, k, &x, probe_rows[i], err) != CR_OK) break;
        }
    probe_close(dev, &x);
    return err->status;
}

/* ---- sizes that were met ---- */

static bool is_same(const sizes *a, const sizes *b)
{
    return a->dtype == b->dtype && a->c_dtype == b->c_dtype && a->is_a_turned == b->is_a_turned &&
           a->is_b_turned == b->is_b_turned && a->has_bias == b->has_bias &&
           a->has_add == b->has_add && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc;
}

static cr_status meet(cr_device *dev, cri_library *l, const sizes *of, const cri_product *p,
                      kept **out, cr_err *err)
{
    kept *k = CR_NEW(kept);

    k->of = *of;
    k->next = l->first;
    l->first = *out = k;
    choose(l, k, p);
    if (!k->refusal[0] && !p->is_a_turned) CR_TRY(check_rows(dev, l, k, p, err));
    if (k->refusal[0])
        cr_log(CR_LOG_WARN, "cuda",
               "products of a weight [%lld, %lld] are left to croll's own kernels, not cuBLASLt: "
               "%s",
               (long long)(p->is_b_turned ? p->k : p->n), (long long)(p->is_b_turned ? p->n : p->k),
               k->refusal);
    return CR_OK;
}

/* Of 16-bit numbers whose rows are whole 16-byte pieces everywhere. */
static bool is_for_library(const cri_product *p)
{
    int64_t c_piece = p->c_dtype == CR_F32 ? 4 : 8;

    return p->dtype != CR_F32 && p->is_b_turned >= p->is_a_turned &&
           (p->n | p->lda | p->ldb | (p->is_a_turned ? p->m : p->k)) % 8 == 0 &&
           p->ldc % c_piece == 0 && (!p->bias || p->aux_dtype == p->c_dtype) &&
           (!p->add || p->aux_dtype == p->c_dtype);
}

/* cuBLASLt reads a bias in pieces of 16 bytes: from a copy where it lies elsewhere. */
static cr_status align_bias(cr_device *dev, cri_product *p, cr_err *err)
{
    size_t num_bytes = (size_t)p->n * cr_dtype_bytes(p->aux_dtype);
    void *copy;

    if (!p->bias || (uintptr_t)p->bias % ALIGNED == 0) return CR_OK;
    CR_TRY(cri_cuda_scratch(dev, num_bytes, &copy, err));
    CR_TRY(check_cuda(
        "a bias",
        cudaMemcpyAsync(copy, p->bias, num_bytes, cudaMemcpyDeviceToDevice, cri_cuda_stream(dev)),
        err));
    p->bias = copy;
    return CR_OK;
}

cr_status cri_library_product(cr_device *dev, cri_library *l, const char *op, const cri_product *p,
                              bool *is_taken, cr_err *err)
{
    /* dw's k, and the m of the others, is the number of rows: one algorithm for all of them */
    const sizes of = {p->dtype,
                      p->c_dtype,
                      p->is_a_turned,
                      p->is_b_turned,
                      p->bias != NULL,
                      p->add != NULL,
                      p->is_a_turned ? p->m : 0,
                      p->n,
                      p->is_a_turned ? 0 : p->k,
                      p->lda,
                      p->ldb,
                      p->ldc};
    cri_product now = *p;
    kept *k = l ? l->first : NULL;

    *is_taken = false;
    if (!l || !is_for_library(p) || p->m <= 0 || p->n <= 0 || p->k <= 0) return CR_OK;
    if (((uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)p->add) % ALIGNED)
        return cr_fail(err, CR_EARG,
                       "%s on device cuda: 16-bit matrices begin at multiples of 16 bytes", op);
    CR_TRY(align_bias(dev, &now, err));
    while (k && !is_same(&k->of, &of))
        k = k->next;
    if (!k) CR_TRY(meet(dev, l, &of, &now, &k, err));
    if (k->refusal[0]) return CR_OK;
    *is_taken = true;
    return check("a product that cuBLASLt has accepted before",
                 multiply(l, k, &now, cri_cuda_stream(dev)), err);
}

/* ---- the library ---- */

cr_status cri_library_open(cri_library **out, cr_err *err)
{
    const char *wanted = getenv("CROLL_CUDA_PRODUCTS");
    cri_library *l;

    *out = NULL;
    if (wanted && strcmp(wanted, "own") == 0) return CR_OK;
    if (wanted && strcmp(wanted, "library") != 0)
        return cr_fail(err, CR_EUSAGE, "CROLL_CUDA_PRODUCTS is \"%s\" (use library or own)",
                       wanted);
    l = CR_NEW(cri_library);
    if (check("cublasLtCreate", cublasLtCreate(&l->handle), err) != CR_OK) {
        cr_free(l);
        return err->status;
    }
    *out = l;
    return CR_OK;
}

void cri_library_close(cri_library *l)
{
    if (!l) return;
    while (l->first) {
        kept *k = l->first;
        l->first = k->next;
        if (k->desc) cublasLtMatmulDescDestroy(k->desc);
        if (k->weight) cublasLtMatrixLayoutDestroy(k->weight);
        if (k->rows) cublasLtMatrixLayoutDestroy(k->rows);
        if (k->out) cublasLtMatrixLayoutDestroy(k->out);
        cr_free(k);
    }
    cublasLtDestroy(l->handle);
    cr_free(l);
}

cr_gpu_products cri_library_products(const cri_library *l)
{
    cr_gpu_products all = {0};

    for (const kept *k = l ? l->first : NULL; k; k = k->next) {
        all.num_sizes++;
        all.num_taken += !k->refusal[0];
        if (k->refusal[0]) snprintf(all.refusal, sizeof all.refusal, "%s", k->refusal);
    }
    return all;
}
