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
    MANY_ROWS = 8192, /* for which the first algorithm is asked */
    MAX_ASKED = 4,    /* algorithms */
    ALIGNED = 16,
    PROBE_BYTES = 128 << 20, /* of rows, and of their products */
    OWN_ROWS = 256           /* of the probe, each different; further ones repeat them */
};

/* Numbers of rows up to which an algorithm may be another one than that of many rows, the last. */
static const int64_t up_to[] = {1, 16, 64, 256, 1024, MANY_ROWS};
enum { MANY = CR_COUNT(up_to) - 1, FEW_PROBED = 1024 };

/* The sizes and types that algorithms are kept for. m is that of dw alone, whose k is the number of rows. */
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
    cublasLtMatmulAlgo_t algos[CR_COUNT(up_to)];
    int num_fitted; /* of those before the last that are not the last */
    bool is_few;    /* up to CRI_FEW_ROWS rows are few.cu's */
    char refusal[sizeof((cr_gpu_products){0}.refusal)]; /* "": many rows are cuBLASLt's */
    struct kept *next;
} kept;

struct cri_library {
    cublasLtHandle_t handle; /* NULL: CROLL_CUDA_PRODUCTS=own */
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

/* Own kernels round a product before the addend comes to it, cuBLASLt does not. */
static bool is_rounded(const kept *k)
{
    return k->refusal[0] != 0;
}

static const cublasLtMatmulAlgo_t *algo_of(const kept *k, int64_t num_rows)
{
    int i = 0;

    while (i < (int)MANY && up_to[i] < num_rows)
        i++;
    return &k->algos[i];
}

static cublasStatus_t multiply(cri_library *l, kept *k, const cublasLtMatmulAlgo_t *algo,
                               const cri_product *p, cudaStream_t stream)
{
    const float one = 1, beta = p->add ? 1 : 0;
    cublasStatus_t code = p->bias ? set_bias(k, p->bias) : CUBLAS_STATUS_SUCCESS;

    if (code == CUBLAS_STATUS_SUCCESS) code = set_rows(k, rows_of(p));
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    return cublasLtMatmul(l->handle, k->desc, &one, p->b, k->weight, p->a, k->rows, &beta,
                          p->add ? p->add : p->c, k->out, p->c, k->out, algo, NULL, 0, stream);
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

/* Does the algorithm split k? Its refusal, then. */
static bool is_split(kept *k, const cublasLtMatmulHeuristicResult_t *found)
{
    int parts = 0;
    cublasStatus_t code = cublasLtMatmulAlgoConfigGetAttribute(
        &found->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, NULL);

    if (is_refused(k, "it has no algorithm without workspace", found->state) ||
        is_refused(k, "its algorithm does not say into how many parts it splits k", code))
        return true;
    if (parts > 1)
        snprintf(k->refusal, sizeof k->refusal, "its algorithm splits k into %d parts", parts);
    return parts > 1;
}

/* Algorithms for the rows of k's layouts that do not split k, best first: how many. 0: k->refusal says why. */
static int ask(cri_library *l, kept *k, cublasLtMatmulPreference_t preference,
               cublasLtMatmulAlgo_t algos[MAX_ASKED])
{
    cublasLtMatmulHeuristicResult_t found[MAX_ASKED];
    int num = 0, num_whole = 0;
    cublasStatus_t code = cublasLtMatmulAlgoGetHeuristic(
        l->handle, k->desc, k->weight, k->rows, k->out, k->out, preference, MAX_ASKED, found, &num);

    if (is_refused(k, "it has no algorithm without workspace", code)) return 0;
    if (num < 1) snprintf(k->refusal, sizeof k->refusal, "it has no algorithm without workspace");
    for (int i = 0; i < num; i++)
        if (!is_split(k, &found[i])) algos[num_whole++] = found[i].algo;
    if (num_whole) k->refusal[0] = 0;
    return num_whole;
}

/* Describes the product for many rows. */
static bool is_described(kept *k, const cri_product *p, cublasLtMatmulPreference_t *preference)
{
    cri_product many = *p;

    if (p->is_a_turned)
        many.k = MANY_ROWS;
    else
        many.m = MANY_ROWS;
    return !is_refused(k, "a product of cuBLASLt", describe(k, p->bias)) &&
           !is_refused(k, "what cuBLASLt may choose", prefer(preference)) &&
           !is_refused(k, "a matrix of cuBLASLt", describe_matrices(k, &many));
}

/* ---- the probe ---- */

static const int64_t probe_rows[] = {1, 2, 16, 17, 64, 257, 2048, MANY_ROWS};

/* Its numbers are 2^0 to 2^8 in the rows and 2^-4 to 2^4 in the weight, either sign, and those of the second half of k are those of the first in
 * reverse, in the rows with the other sign: all sums are 0 but for what rounding leaves, which depends on the order of sums in every
 * element and is not hidden by C's fewer bits. Bias and addend are about as small. */
enum { ROWS, WEIGHT, BIAS, ADD, OUT, NUM_PARTS };
static const int exponents[OUT] = {[ROWS] = 0, [WEIGHT] = -4, [BIAS] = -12, [ADD] = -12};

typedef struct probe {
    cri_product p; /* of its own memory */
    cr_mem *mem[NUM_PARTS];
    size_t bytes[NUM_PARTS];
    size_t row_bytes, out_bytes; /* of one row */
    int64_t max, few;            /* rows; few: of want */
    char *alone, *company;       /* [out_bytes] */
    char *want, *got;            /* [few, out_bytes] */
} probe;

static uint16_t number(cr_dtype dtype, int exponent, uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    exponent += (int)(*state >> 29);
    return (uint16_t)((*state >> 13 & 0x8000) |
                      (dtype == CR_BF16
                           ? (uint32_t)(127 + exponent) << 7 | (*state >> 16 & 0x7f)
                           : (uint32_t)(15 + exponent) << 10 | (*state >> 16 & 0x3ff)));
}

/* Rows of k numbers: those of the second half, in reverse, become those of the first, times -1 if is_turned. */
static void mirror(uint16_t *bits, int64_t num, int64_t k, int64_t ld, bool is_turned)
{
    for (int64_t row = 0; row < num; row++)
        for (int64_t i = 0; i < k / 2; i++)
            bits[row * ld + k - 1 - i] = bits[row * ld + i] ^ (is_turned ? 0x8000 : 0);
}

/* The row that is looked at lies first and wherever it is the last; the others are different. */
static void fill_rows(uint16_t *bits, int64_t num, size_t row_bytes)
{
    for (int64_t row = OWN_ROWS; row < num; row++)
        memcpy((char *)bits + (size_t)row * row_bytes,
               (char *)bits + (size_t)(row % OWN_ROWS) * row_bytes, row_bytes);
    for (size_t i = 1; i < CR_COUNT(probe_rows) && probe_rows[i] <= num; i++)
        memcpy((char *)bits + (size_t)(probe_rows[i] - 1) * row_bytes, bits, row_bytes);
}

static cr_status fill(cr_device *dev, const probe *x, int part, cr_err *err)
{
    const cri_product *p = &x->p;
    uint16_t *bits = cr_alloc(x->bytes[part]);
    uint32_t state = (uint32_t)part;

    for (size_t i = 0; i < x->bytes[part] / sizeof *bits; i++)
        bits[i] = number(p->dtype, exponents[part], &state);
    if (part == ROWS) mirror(bits, x->max, p->k, p->lda, true);
    if (part == ROWS) fill_rows(bits, x->max, x->row_bytes);
    if (part == ADD) fill_rows(bits, x->max, x->out_bytes);
    if (part == WEIGHT && !p->is_b_turned) mirror(bits, p->n, p->k, p->ldb, false);
    for (int64_t k = 0; part == WEIGHT && p->is_b_turned && k < p->k / 2; k++)
        memcpy(bits + (p->k - 1 - k) * p->ldb, bits + k * p->ldb, (size_t)p->ldb * sizeof *bits);
    cr_note(dev->kernels->upload(dev, x->mem[part], bits, x->bytes[part], err));
    cr_free(bits);
    return err->status;
}

static void find_sizes(const cri_product *p, probe *x)
{
    size_t larger;

    *x = (probe){.p = *p, .row_bytes = (size_t)p->lda * cr_dtype_bytes(p->dtype)};
    x->out_bytes = (size_t)p->ldc * cr_dtype_bytes(p->c_dtype);
    larger = x->row_bytes > x->out_bytes ? x->row_bytes : x->out_bytes;
    for (size_t i = 0; i < CR_COUNT(probe_rows); i++)
        if (i == 0 || (size_t)probe_rows[i] * larger <= PROBE_BYTES) x->max = probe_rows[i];
    x->few = x->max < FEW_PROBED ? x->max : FEW_PROBED;
    x->bytes[ROWS] = (size_t)x->max * x->row_bytes;
    x->bytes[WEIGHT] = (size_t)((p->is_b_turned ? p->k : p->n) * p->ldb) * cr_dtype_bytes(p->dtype);
    x->bytes[BIAS] = p->bias ? (size_t)p->n * cr_dtype_bytes(p->aux_dtype) : 0;
    x->bytes[ADD] = p->add ? (size_t)x->max * x->out_bytes : 0;
    x->bytes[OUT] = (size_t)x->max * x->out_bytes;
}

static cr_status probe_open(cr_device *dev, const cri_product *p, probe *x, cr_err *err)
{
    find_sizes(p, x);
    x->alone = cr_alloc(2 * (size_t)(1 + x->few) * x->out_bytes);
    x->company = x->alone + x->out_bytes;
    x->want = x->company + x->out_bytes;
    x->got = x->want + (size_t)x->few * x->out_bytes;
    for (int i = 0; i < NUM_PARTS; i++) {
        if (!x->bytes[i]) continue;
        CR_TRY(dev->kernels->alloc(dev, x->bytes[i], &x->mem[i], err));
        if (i < OUT) CR_TRY(fill(dev, x, i, err));
    }
    x->p.a = cr_mem_to_host(x->mem[ROWS]);
    x->p.b = cr_mem_to_host(x->mem[WEIGHT]);
    x->p.bias = p->bias ? cr_mem_to_host(x->mem[BIAS]) : NULL;
    x->p.add = p->add ? cr_mem_to_host(x->mem[ADD]) : NULL;
    x->p.c = cr_mem_to_host(x->mem[OUT]);
    return CR_OK;
}

static void probe_close(cr_device *dev, probe *x)
{
    for (int i = 0; i < NUM_PARTS; i++)
        if (x->mem[i]) dev->kernels->release(dev, x->mem[i], x->bytes[i]);
    cr_free(x->alone);
}

static cr_status try_rows(cr_device *dev, cri_library *l, kept *k, const cublasLtMatmulAlgo_t *algo,
                          probe *x, int64_t num, cr_err *err)
{
    const int64_t places[] = {0, num - 1};
    char what[32];

    x->p.m = num;
    snprintf(what, sizeof what, "it refuses %lld rows", (long long)num);
    if (is_refused(k, what, multiply(l, k, algo, &x->p, cri_cuda_stream(dev)))) return CR_OK;
    for (int i = 0; i < 2 && !k->refusal[0]; i++) {
        CR_TRY(dev->kernels->download(dev, num == 1 ? x->alone : x->company,
                                      cr_mem_add(x->mem[OUT], (size_t)places[i] * x->out_bytes),
                                      x->out_bytes, err));
        if (num > 1 && memcmp(x->alone, x->company, x->out_bytes) != 0)
            snprintf(k->refusal, sizeof k->refusal,
                     "row %lld of %lld has other bits than the same row alone",
                     (long long)places[i], (long long)num);
    }
    return CR_OK;
}

/* Is the algorithm one for all numbers of rows? If not, k->refusal says why. */
static cr_status check_rows(cr_device *dev, cri_library *l, kept *k,
                            const cublasLtMatmulAlgo_t *algo, probe *x, cr_err *err)
{
    for (size_t i = 0; i < CR_COUNT(probe_rows) && !k->refusal[0]; i++) {
        if (probe_rows[i] > x->max) break;
        CR_TRY(try_rows(dev, l, k, algo, x, probe_rows[i], err));
    }
    return CR_OK;
}

/* ---- few rows ---- */

/* A way to make products: an algorithm of cuBLASLt, or croll's own kernel for few rows or for any. */
typedef struct way {
    const cublasLtMatmulAlgo_t *algo;
    bool is_few;
} way;

/* The first num rows by this way, into out. *is_there: it took them. */
static cr_status fetch_rows(cr_device *dev, cri_library *l, kept *k, probe *x, const way *by,
                            int64_t num, char *out, bool *is_there, cr_err *err)
{
    x->p.m = num;
    *is_there = true;
    if (by->algo)
        *is_there = multiply(l, k, by->algo, &x->p, cri_cuda_stream(dev)) == CUBLAS_STATUS_SUCCESS;
    else if (by->is_few)
        CR_TRY(cri_cuda_product_few(dev, "products of few rows", &x->p, 1, is_rounded(k), err));
    else
        CR_TRY(cri_cuda_product(dev, "products of few rows", &x->p, err));
    return *is_there
               ? dev->kernels->download(dev, out, x->mem[OUT], (size_t)num * x->out_bytes, err)
               : CR_OK;
}

/* Have these numbers of rows the bits that want says? */
static cr_status compare_rows(cr_device *dev, cri_library *l, kept *k, probe *x, const way *by,
                              const int64_t *nums, int num_nums, bool *is_same, cr_err *err)
{
    *is_same = true;
    for (int i = 0; i < num_nums && *is_same && nums[i] <= x->few; i++) {
        CR_TRY(fetch_rows(dev, l, k, x, by, nums[i], x->got, is_same, err));
        *is_same = *is_same && memcmp(x->got, x->want, (size_t)nums[i] * x->out_bytes) == 0;
    }
    return CR_OK;
}

/* For the rows up to up_to[i]: the first algorithm whose rows have the bits of those of many rows. */
static cr_status fit_one(cr_device *dev, cri_library *l, kept *k, probe *x,
                         cublasLtMatmulPreference_t preference, int i, cr_err *err)
{
    const int64_t first = i ? up_to[i - 1] + 1 : 1,
                  nums[] = {first, (first + up_to[i]) / 2, up_to[i]};
    cublasLtMatmulAlgo_t algos[MAX_ASKED];
    bool is_same = false;
    int num = 0;

    if (first > x->few) return CR_OK;
    if (set_rows(k, up_to[i]) == CUBLAS_STATUS_SUCCESS) num = ask(l, k, preference, algos);
    k->refusal[0] = 0; /* that of many rows is there */
    for (int a = 0; a < num && !is_same; a++) {
        const way by = {.algo = &algos[a]};
        if (memcmp(by.algo, &k->algos[MANY], sizeof *by.algo) == 0) break;
        CR_TRY(compare_rows(dev, l, k, x, &by, nums, CR_COUNT(nums), &is_same, err));
        if (is_same) k->algos[i] = *by.algo;
    }
    k->num_fitted += is_same;
    return CR_OK;
}

/* Few rows: by few.cu, or by algorithms of their own, where these have the bits that many rows have. */
static cr_status fit(cr_device *dev, cri_library *l, kept *k, probe *x,
                     cublasLtMatmulPreference_t preference, cr_err *err)
{
    static const int64_t nums[] = {1, 16, 17, CRI_FEW_ROWS};
    const way many = {.algo = k->refusal[0] ? NULL : &k->algos[MANY]}, few = {.is_few = true};
    bool is_there, is_few = false;

    if (!many.algo && x->few > CRI_FEW_ROWS) x->few = CRI_FEW_ROWS;
    CR_TRY(fetch_rows(dev, l, k, x, &many, x->few, x->want, &is_there, err));
    if (!is_there) return CR_OK;
    if (cri_cuda_is_for_few(&x->p))
        CR_TRY(compare_rows(dev, l, k, x, &few, nums, CR_COUNT(nums), &is_few, err));
    k->is_few = is_few;
    for (int i = 0; many.algo && i < (int)MANY; i++)
        if (!is_few || up_to[i] > CRI_FEW_ROWS) CR_TRY(fit_one(dev, l, k, x, preference, i, err));
    return CR_OK;
}

static cr_status try_algorithms(cr_device *dev, cri_library *l, kept *k, probe *x,
                                cublasLtMatmulPreference_t preference, cr_err *err)
{
    cublasLtMatmulAlgo_t algos[MAX_ASKED];
    int num = ask(l, k, preference, algos);

    for (int a = 0; a < num && (a == 0 || k->refusal[0]); a++) {
        k->refusal[0] = 0;
        if (!k->of.is_a_turned) CR_TRY(check_rows(dev, l, k, &algos[a], x, err));
        for (size_t i = 0; i < CR_COUNT(up_to); i++)
            k->algos[i] = algos[a];
    }
    return CR_OK;
}

/* The algorithm of many rows, and what few rows take. */
static cr_status choose(cr_device *dev, cri_library *l, kept *k, const cri_product *p, cr_err *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    probe x = {0};

    if (!p->is_a_turned) cr_note(probe_open(dev, p, &x, err));
    if (!l->handle)
        snprintf(k->refusal, sizeof k->refusal, "CROLL_CUDA_PRODUCTS=own");
    else if (err->status == CR_OK && is_described(k, p, &preference))
        cr_note(try_algorithms(dev, l, k, &x, preference, err));
    if (err->status == CR_OK && !p->is_a_turned && !p->is_b_turned &&
        (!k->refusal[0] || cri_cuda_is_for_few(p)))
        cr_note(fit(dev, l, k, &x, preference, err));
    probe_close(dev, &x);
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
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
    CR_TRY(choose(dev, l, k, p, err));
    if (l->handle && k->refusal[0])
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

static sizes sizes_of(const cri_product *p)
{
    /* dw's k, and the m of the others, is the number of rows: one size for all of them */
    return (sizes){p->dtype,
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
}

/* What was chosen for its sizes; *out NULL: they are linear.cu's. */
static cr_status find(cr_device *dev, cri_library *l, const char *op, const cri_product *p,
                      kept **out, cr_err *err)
{
    const sizes of = sizes_of(p);
    cri_product now = *p;

    *out = NULL;
    if (!is_for_library(p) || p->m <= 0 || p->n <= 0 || p->k <= 0) return CR_OK;
    if (!l->handle && !cri_cuda_is_for_few(p)) return CR_OK;
    if (((uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)p->add) % ALIGNED)
        return cr_fail(err, CR_EARG,
                       "%s on device cuda: 16-bit matrices begin at multiples of 16 bytes", op);
    for (*out = l->first; *out && !is_same(&(*out)->of, &of);)
        *out = (*out)->next;
    if (*out) return CR_OK;
    CR_TRY(align_bias(dev, &now, err));
    return meet(dev, l, &of, &now, out, err);
}

cr_status cri_library_few(cr_device *dev, cri_library *l, const char *op, const cri_product *p,
                          int num, bool *is_taken, cr_err *err)
{
    bool is_sum_rounded = false;

    *is_taken = false;
    if (p->m > CRI_FEW_ROWS || num > CRI_FEW_PRODUCTS) return CR_OK;
    for (int i = 0; i < num; i++) {
        kept *k;
        CR_TRY(find(dev, l, op, &p[i], &k, err));
        if (!k || !k->is_few) return CR_OK;
        if (p[i].add) is_sum_rounded = is_rounded(k);
    }
    *is_taken = true;
    return cri_cuda_product_few(dev, op, p, num, is_sum_rounded, err);
}

cr_status cri_library_product(cr_device *dev, cri_library *l, const char *op, const cri_product *p,
                              bool *is_taken, cr_err *err)
{
    cri_product now = *p;
    kept *k;

    CR_TRY(cri_library_few(dev, l, op, p, 1, is_taken, err));
    if (*is_taken) return CR_OK;
    CR_TRY(find(dev, l, op, p, &k, err));
    if (!k || k->refusal[0]) return CR_OK;
    *is_taken = true;
    CR_TRY(align_bias(dev, &now, err));
    return check("a product that cuBLASLt has accepted before",
                 multiply(l, k, algo_of(k, rows_of(p)), &now, cri_cuda_stream(dev)), err);
}

/* ---- the library ---- */

cr_status cri_library_open(cri_library **out, cr_err *err)
{
    const char *wanted = getenv("CROLL_CUDA_PRODUCTS");
    bool is_own = wanted && strcmp(wanted, "own") == 0;
    cri_library *l;

    *out = NULL;
    if (wanted && !is_own && strcmp(wanted, "library") != 0)
        return cr_fail(err, CR_EUSAGE, "CROLL_CUDA_PRODUCTS is \"%s\" (use library or own)",
                       wanted);
    l = CR_NEW(cri_library);
    if (!is_own && check("cublasLtCreate", cublasLtCreate(&l->handle), err) != CR_OK) {
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
    if (l->handle) cublasLtDestroy(l->handle);
    cr_free(l);
}

cr_gpu_products cri_library_products(const cri_library *l)
{
    cr_gpu_products all = {0};

    for (const kept *k = l ? l->first : NULL; k; k = k->next) {
        all.num_few += k->is_few;
        if (!l->handle) continue;
        all.num_sizes++;
        all.num_taken += !k->refusal[0];
        all.num_fitted += k->num_fitted;
        if (k->refusal[0]) snprintf(all.refusal, sizeof all.refusal, "%s", k->refusal);
    }
    return all;
}
