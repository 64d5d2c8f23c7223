/* heads.cu -- what happens to heads between the products of q, k, v and attention: RMSNorm of q and k (families with it),
 * the rotary embedding, and their place in the cache. Also the rotary embedding alone, forward and back.
 *
 * Mapping: a block has the heads of one token, a warp two of them at a time; a lane has two neighbouring pairs (i, i + D / 2) in each 64. cos
 * and sin of the token's angles are made once a block, in float64 as on the cpu, while the first heads are loaded. A head's numbers are in
 * registers from the norm to the rotation, rounded where separate operations would store them.
 * Bytes an element in bf16: 4, in pieces of 4 (a warp's 32 are one line of 128 bytes); v of the cache 4. Bound by memory with many tokens
 * (H100 0.84 elements/ps), by latency in decode (a block a row: about 2 us). Shared memory: 8 bytes a pair. Registers: below 64.
 */
#include "kernels/cuda/attention/heads.h"

#include <math.h>

enum {
    MAX_DIM = 256,
    CHUNKS = MAX_DIM / 128,
    FEW_TOKENS = 256,
    FEW_WARPS = 8,
    MAX_WARPS = 32,
    AT_ONCE = 2
};

/* Two neighbours of a row. */
template <class T> struct pair_bits {
    typedef uint32_t type;
};
template <> struct pair_bits<float> {
    typedef uint2 type;
};

template <class T>
static __device__ __forceinline__ void store2(T *p, int at, int end, bool is_even,
                                              const float (&f)[2])
{
    const T t[2] = {from_float<T>(f[0]), from_float<T>(f[1])};

    if (is_even && at < end) {
        typename pair_bits<T>::type bits;
        memcpy(&bits, t, sizeof bits);
        *(typename pair_bits<T>::type *)(void *)(p + at) = bits;
    } else {
        if (at < end) p[at] = t[0];
        if (at + 1 < end) p[at + 1] = t[1];
    }
}

/* The heads of q or k; weight NULL: no norm. */
template <class T> struct side {
    const T *from, *weight;
    T *to;
    float *rstd;
    int num;
};

template <class T> struct heads_args {
    side<T> q, k;
    const int32_t *positions;
    const float *inv_freq, *angles; /* positions and angles NULL: no rotation */
    float scaling, sign, eps, offset;
    bool is_even;         /* D / 2 is */
    cached_args<T> cache; /* blocks NULL: none */
};

/* A half of a head in a lane's registers. */
typedef float half_head[CHUNKS][2];

/* N heads, NULL: none there. All of them are asked for before the first is used. */
template <class T, int N>
static __device__ __forceinline__ void load_heads(half_head (&low)[N], half_head (&high)[N],
                                                  const T *const (&from)[N], int half, bool is_even)
{
    typedef typename pair_bits<T>::type pair;
    pair bits[N][CHUNKS][2] = {};
    int first = 2 * (int)(threadIdx.x % 32);

    if (is_even) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (from[i] && first + 64 * c < half)
                        bits[i][c][h] =
                            *(const pair *)(const void *)(from[i] + h * half + first + 64 * c);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int at = first + 64 * c;
                    const T *p = from[i] + h * half + at;
                    if (!from[i] || at >= half) continue;
                    const T two[2] = {p[0], at + 1 < half ? p[1] : T()};
                    memcpy(&bits[i][c][h], two, sizeof two);
                }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            T t[2][2];
            memcpy(t, bits[i][c], sizeof t);
            for (int e = 0; e < 2; e++) {
                low[i][c][e] = to_float(t[0][e]);
                high[i][c][e] = to_float(t[1][e]);
            }
        }
}

template <class T>
static __device__ __forceinline__ void store_head(T *p, int half, bool is_even,
                                                  const half_head &low, const half_head &high)
{
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int at = 64 * c + 2 * (int)(threadIdx.x % 32);
        store2(p, at, half, is_even, low[c]);
        store2(p + half, at, half, is_even, high[c]);
    }
}

/* As cr_rmsnorm: a head times offset + weight, rounded. */
template <class T>
static __device__ __forceinline__ float times_weight(float x, float weight, float offset)
{
    return rounded<T>(offset == 0.0f ? rounded<T>(x) * weight : x * (offset + weight));
}

/* Returns the inverse of the root. */
template <class T>
static __device__ __forceinline__ float norm_head(half_head &low, half_head &high, const T *weight,
                                                  int half, float eps, float offset, bool is_even)
{
    const T *const of_weight[1] = {weight};
    half_head w_low[1], w_high[1];
    float sum = 0.0f, rstd;

    load_heads(w_low, w_high, of_weight, half, is_even);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            sum = fmaf(high[c][e], high[c][e], fmaf(low[c][e], low[c][e], sum));
    rstd = 1.0f / sqrtf(group_sum<32>(sum, (float *)nullptr) / (float)(2 * half) + eps);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            low[c][e] = times_weight<T>(low[c][e] * rstd, w_low[0][c][e], offset);
            high[c][e] = times_weight<T>(high[c][e] * rstd, w_high[0][c][e], offset);
        }
    return rstd;
}

/* turns: cosines, then sines, of the pairs. */
static __device__ __forceinline__ void turn_head(half_head &low, half_head &high,
                                                 const float *turns, int half)
{
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int i = 64 * c + 2 * (int)(threadIdx.x % 32) + e;
            float x = low[c][e], y = high[c][e];
            if (i >= half) break;
            low[c][e] = fmaf(x, turns[i], -(y * turns[half + i]));
            high[c][e] = fmaf(y, turns[i], x * turns[half + i]);
        }
}

/* Of the block's token. */
template <class T>
static __device__ __forceinline__ void find_turns(const heads_args<T> &a, float *turns, int half)
{
    for (int j = (int)threadIdx.x; j < 2 * half; j += (int)blockDim.x) {
        int i = j < half ? j : j - half;
        float angle = a.angles ? a.angles[(int64_t)blockIdx.x * half + i]
                               : (float)a.positions[blockIdx.x] * a.inv_freq[i];
        turns[j] = j < half ? (float)cos((double)angle) * a.scaling
                            : (float)sin((double)angle) * a.scaling * a.sign;
    }
    __syncthreads();
}

/* Which head of a token is head h of q, k and v: those of v are there for the cache. */
template <class T> struct head_at {
    const side<T> &s; /* k's for v */
    bool is_q, is_v;
    int of_side;
    int64_t at; /* of its side's rows */

    __device__ __forceinline__ head_at(const heads_args<T> &a, int h)
        : s(h < a.q.num ? a.q : a.k), is_q(h < a.q.num), is_v(h >= a.q.num + a.k.num),
          of_side(is_q ? h : (h - a.q.num) % a.k.num), at(blockIdx.x * (int64_t)s.num + of_side)
    {
    }
};

/* turns NULL: no rotation. */
template <class T>
static __device__ __forceinline__ void finish_head(const heads_args<T> &a, const head_at<T> &h,
                                                   half_head &low, half_head &high,
                                                   const float *turns, int half)
{
    if (!h.is_v && h.s.weight) {
        float rstd = norm_head(low, high, h.s.weight, half, a.eps, a.offset, a.is_even);
        if (h.s.rstd && threadIdx.x % 32 == 0) h.s.rstd[h.at] = rstd;
    }
    if (!h.is_v && turns) turn_head(low, high, turns, half);
    if (!h.is_v && h.s.to) store_head(h.s.to + h.at * 2 * half, half, a.is_even, low, high);
    if (!a.cache.blocks || h.is_q) return;
    int pos = a.cache.row_pos[blockIdx.x];
    T *to = tiles_of(a.cache, a.cache.row_slot[blockIdx.x], pos, h.of_side) +
            (int64_t)(pos % CR_KV_BLOCK + (h.is_v ? CR_KV_BLOCK : 0)) * 2 * half;
    store_head(to, half, a.is_even, low, high);
}

template <class T> static __global__ void __launch_bounds__(32 * MAX_WARPS) heads(heads_args<T> a)
{
    SHARED(float, turns, MAX_DIM);
    int D = a.cache.head_dim, half = D / 2, warps = (int)blockDim.x / 32,
        num = a.q.num + a.k.num + (a.cache.blocks ? a.k.num : 0);
    bool is_turned = a.positions || a.angles;

    if (is_turned) find_turns(a, turns, half);
    for (int h = (int)threadIdx.x / 32; h < num; h += AT_ONCE * warps) {
        half_head low[AT_ONCE], high[AT_ONCE];
        const T *from[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            from[i] = NULL;
            if (h + i * warps >= num) continue;
            const head_at<T> at(a, h + i * warps);
            from[i] = (at.is_v ? a.cache.v : at.s.from) + at.at * D;
        }
        load_heads(low, high, from, half, a.is_even);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (h + i * warps < num)
                finish_head(a, head_at<T>(a, h + i * warps), low[i], high[i],
                            is_turned ? turns : NULL, half);
    }
}

template <class T>
static cudaError_t launch(cr_device *dev, const heads_args<T> &a, int64_t num_tokens)
{
    int num = a.q.num + (a.cache.blocks ? 2 : 1) * a.k.num,
        max = num_tokens > FEW_TOKENS ? FEW_WARPS : MAX_WARPS;
    auto kernel = heads<T>;

    return CUDA_LAUNCH(kernel, dim3((unsigned)num_tokens),
                       dim3(32u * (unsigned)(num < max ? num : max)), 0, cri_cuda_stream(dev), a);
}

template <class T> static heads_args<T> heads_of(const cr_qk_heads_args *a)
{
    heads_args<T> h = {};

    h.q = {in<T>(a->q_in), in<T>(a->q_weight), out<T>(a->q), out<float>(a->q_rstd),
           (int)a->num_heads};
    h.k = {in<T>(a->k_in), in<T>(a->k_weight), out<T>(a->k), out<float>(a->k_rstd),
           (int)a->num_kv_heads};
    h.positions = in<int32_t>(a->positions);
    h.inv_freq = in<float>(a->inv_freq);
    h.angles = in<float>(a->angles);
    h.scaling = a->scaling;
    h.sign = (float)a->sign;
    h.eps = a->eps;
    h.offset = a->offset;
    h.is_even = a->head_dim % 4 == 0;
    h.cache.head_dim = (int)a->head_dim;
    return h;
}

template <class T>
cudaError_t cri_cuda_heads_to_cache(cr_device *dev, const cr_qk_heads_args *a,
                                    const cached_args<T> &cache, int64_t num_tokens)
{
    heads_args<T> h = {};

    if (a->q_in)
        h = heads_of<T>(a);
    else /* as they are */
        h.k = {cache.k, NULL, NULL, NULL, cache.num_kv_heads}, h.is_even = cache.head_dim % 4 == 0;
    h.cache = cache;
    return launch(dev, h, num_tokens);
}
template cudaError_t cri_cuda_heads_to_cache(cr_device *, const cr_qk_heads_args *,
                                             const cached_args<bf16> &, int64_t);
template cudaError_t cri_cuda_heads_to_cache(cr_device *, const cr_qk_heads_args *,
                                             const cached_args<f16> &, int64_t);
template cudaError_t cri_cuda_heads_to_cache(cr_device *, const cr_qk_heads_args *,
                                             const cached_args<float> &, int64_t);

template <class T> static cudaError_t heads_alone(cr_device *dev, const cr_qk_heads_args *a)
{
    return launch(dev, heads_of<T>(a), a->num_tokens);
}

static cr_status check_dim(const char *op, int64_t head_dim, cr_err *err)
{
    if (head_dim <= MAX_DIM) return CR_OK;
    return cr_fail(err, CR_EABSENT,
                   "%s of heads of %lld is not available on device cuda (at most %d)", op,
                   (long long)head_dim, MAX_DIM);
}

cr_status cri_cuda_qk_heads(cr_device *dev, const cr_qk_heads_args *a, cr_err *err)
{
    CR_TRY(check_dim("qk_heads", a->head_dim, err));
    return launched("qk_heads", CRI_BY_DTYPE(a->dtype, heads_alone, dev, a), err);
}

cr_status cri_cuda_rope(cr_device *dev, const cr_rope_args *a, cr_err *err)
{
    cr_qk_heads_args heads = {};

    heads.q = a->x;
    heads.q_in = a->x;
    heads.dtype = a->dtype;
    heads.positions = a->positions;
    heads.inv_freq = a->inv_freq;
    heads.angles = a->angles;
    heads.scaling = a->scaling;
    heads.sign = a->sign;
    heads.num_tokens = a->num_tokens;
    heads.num_heads = a->num_heads;
    heads.head_dim = a->head_dim;
    CR_TRY(check_dim("rope", a->head_dim, err));
    return launched("rope", CRI_BY_DTYPE(a->dtype, heads_alone, dev, &heads), err);
}
