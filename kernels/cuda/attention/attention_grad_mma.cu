/* attention_grad_mma.cu -- backward of attention for bf16 heads of 64 and 128 on tensor cores (attention_grad.cu says what is computed).
 *
 * Mapping: blocks of 4 warps, two kernels. A block keeps 64 rows, a warp 16 of them, while tiles of 32 rows of the other side
 * pass by in two stages of cp.async:
 *   dK and dV: 64 keys of a sequence and kv head; q and dO pass, head after head of the group, rows upwards;
 *   dq: 64 rows of a head; K and V pass, upwards.
 * S and dP (or their transposes) are mma.m16n8k16 over ascending head_dim; P from lse in float32; P and P (dP - delta), rounded to
 * bf16, are the next products' A from the registers they are in. The scale is multiplied at the end. Each sum is taken in one order, in
 * float32, by mma over ascending rows or keys from the beginning of the sequence: no atomics, and no other sequence, head or
 * row in it. Where a row sees no key of its block's tiles it adds zeros.
 *
 * FLOPs 14 D a pair of query and key (S and dP are made twice): 8 D for dK and dV, 6 D for dq. Bytes from L2 a row that passes: 4 D (and 8 for dK,
 * dV): 128 and 96 FLOPs a byte. Shared memory 2 x 64 x D and two stages of 2 x 32 x D: 64 KiB for D 128, 32 KiB for D 64. Registers
 * (dK, dV: 2 x 16 x D sums a warp): below 256, two blocks an SM. Limit of an H100 or H200: ldmatrix, since a warp reads
 * each fragment for 16 rows alone; dK and dV of D 128 read K and V anew for each tile, all others keep them in
 * registers: 0.72 (dK, dV) and 0.88 (dq) of tensor cores on sm_80 by the loop's instructions, 0.36 and 0.43 of wgmma's rate on sm_90, where
 * mma.sync itself stops at about 0.62 (bench/gpu_static). A batch with few kv heads has few blocks of dK and dV: T / 64 x kv heads.
 */
#include "kernels/cuda/attention/attention_grad_rows.h"

enum { STAY = 64, PASS = 32, TILES_OF = 2 * (STAY + 2 * PASS) /* rows in shared memory */ };

/* The block's two tiles that stay, and fragments of a warp's rows of them: in registers where they have room. */
template <int D, bool IS_KEPT> struct staying {
    const bf16 *tiles; /* [2][STAY, D] */
    uint32_t kept[IS_KEPT ? D / 8 : 1][4];

    __device__ __forceinline__ void fragment(uint32_t (&a)[4], int which, int i) const
    {
        a_fragment<D>(a, tiles + which * STAY * D, (int)threadIdx.x / 32 * WARP_ROWS, i);
    }
    __device__ __forceinline__ void take(const bf16 *from)
    {
        tiles = from;
        if constexpr (IS_KEPT) {
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                fragment(kept[i], i / (D / 16), i % (D / 16));
        }
    }
};

/* s[0] and s[1]: products of the rows that stay and those that pass. passing: [2][PASS, D]. */
template <int D, bool IS_KEPT>
static __device__ __forceinline__ void
two_products(float (&s)[2][PASS / 8][4], const staying<D, IS_KEPT> &stay, const bf16 *passing)
{
#pragma unroll
    for (int which = 0; which < 2; which++) {
        set_zero(s[which]);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t a[4];
            if constexpr (IS_KEPT) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[e] = stay.kept[which * (D / 16) + i][e];
            } else {
                stay.fragment(a, which, i);
            }
#pragma unroll
            for (int n = 0; n < PASS / 8; n += 2)
                multiply_rows<D>(s[which], a, passing + which * PASS * D, n, i);
        }
    }
}

/* c += s X, X the rows that pass. */
template <int D>
static __device__ __forceinline__ void add_product(float (&c)[D / 8][4],
                                                   const float (&s)[PASS / 8][4], const bf16 *x)
{
#pragma unroll
    for (int i = 0; i < PASS / 16; i++) {
        uint32_t a[4];
        a_of_sums(a, s, i);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2)
            multiply_cols<D>(c, a, x, d, i);
    }
}

template <int ROWS, int D>
static __device__ __forceinline__ void load_two(bf16 *tiles, const head_rows<bf16> &x,
                                                const head_rows<bf16> &y, int first, int len)
{
    load_tile<ROWS, D>(tiles, {x.x + first * x.stride, x.stride}, len - first);
    load_tile<ROWS, D>(tiles + ROWS * D, {y.x + first * y.stride, y.stride}, len - first);
}

/* ---- dK and dV ---- */

typedef row_sums<PASS> sums_of_tile;
typedef rows_to_come<PASS / 8> tiles_to_come;

/* The next tile. */
template <int D>
static __device__ __forceinline__ void load_rows(bf16 *tiles, sums_of_tile *sums,
                                                 const grad_args<bf16> &a, const seq_piece &piece,
                                                 const tiles_to_come &next)
{
    const sequence<bf16> seq = sequence_of(a, piece, next.head);
    int i = (int)threadIdx.x % PASS;

    load_two<PASS, D>(tiles, seq.q, seq.d_o, next.row, piece.len);
    if ((int)threadIdx.x < PASS)
        sums->lse[i] = lse_of(seq, next.row + i);
    else if ((int)threadIdx.x < 2 * PASS)
        sums->delta[i] = delta_of(seq, next.row + i);
}

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) grad_of_keys_mma(grad_args<bf16> a)
{
    constexpr int PAIR = 2 * PASS * D;
    DYNAMIC_SHARED(memory);
    SHARED(sums_of_tile, sums, 2);
    bf16 *stays = (bf16 *)(void *)memory, *stages = stays + 2 * STAY * D;
    int kv = head_of_block();
    const seq_piece piece = piece_of_block(a.cu_seqlens, STAY, true);
    if (piece.first >= piece.len) return;
    tiles_to_come next = tiles_of_rows<PASS / 8>(a, rows_of_keys(a, piece, STAY), kv);
    const sequence<bf16> seq = sequence_of(a, piece, next.head);
    int k0 = piece.first, key = k0 + (int)threadIdx.x / 32 * WARP_ROWS; /* the warp's first */
    float dk[D / 8][4], dv[D / 8][4];
    staying<D, D == 64> stay;

    set_zero(dk);
    set_zero(dv);
    load_two<STAY, D>(stays, seq.k, seq.v, k0, piece.len);
    cp_async_commit();
    int left = next.num; /* its last bit is the tile's stage */
    load_rows<D>(stages + (left & 1) * PAIR, sums + (left & 1), a, piece, next);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    stay.take(stays);
    for (; left > 0; left--) {
        int row = next.row;
        next.step();
        if (left > 1) load_rows<D>(stages + (~left & 1) * PAIR, sums + (~left & 1), a, piece, next);
        cp_async_commit(); /* empty at the end */
        cp_async_wait<1>();
        __syncthreads();
        const bf16 *q = stages + (left & 1) * PAIR, *d_o = q + PASS * D;
        const sums_of_tile &of_rows = sums[left & 1];
        float s[2][PASS / 8][4];
        two_products<D>(s, stay, q);
        weigh_keys(s[0], s[1], of_rows, seq.see, key, row, in_base_2(a.scale));
        add_product<D>(dv, s[0], d_o);
        add_product<D>(dk, s[1], q);
        __syncthreads(); /* the load after next overwrites this stage */
    }
    store_keys<D>(a, piece, kv, key, dk, dv);
}

/* ---- dq ---- */

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) grad_of_rows_mma(grad_args<bf16> a)
{
    constexpr int PAIR = 2 * PASS * D;
    DYNAMIC_SHARED(memory);
    bf16 *stays = (bf16 *)(void *)memory, *stages = stays + 2 * STAY * D;
    int head = head_of_block();
    const seq_piece piece = piece_of_block(a.cu_seqlens, STAY, false);
    if (piece.first >= piece.len) return;
    const sequence<bf16> seq = sequence_of(a, piece, head);
    const block_rows rows = rows_of_piece(piece, STAY, a.window, a.is_bidirectional);
    int first = first_key(rows) / PASS * PASS, num = (last_key(rows) - first + PASS - 1) / PASS;
    int row = piece.first + (int)threadIdx.x / 32 * WARP_ROWS; /* the warp's first */
    const lane_sums sums = sums_of_lane(seq, row);
    float dq[D / 8][4];
    staying<D, true> stay;

    set_zero(dq);
    load_two<STAY, D>(stays, seq.q, seq.d_o, piece.first, piece.len);
    cp_async_commit();
    load_two<PASS, D>(stages, seq.k, seq.v, first, piece.len);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    stay.take(stays);
    for (int i = 0; i < num; i++) {
        int k0 = first + i * PASS;
        if (i + 1 < num)
            load_two<PASS, D>(stages + (~i & 1) * PAIR, seq.k, seq.v, k0 + PASS, piece.len);
        cp_async_commit(); /* empty at the end */
        cp_async_wait<1>();
        __syncthreads();
        const bf16 *k = stages + (i & 1) * PAIR;
        float s[2][PASS / 8][4];
        two_products<D>(s, stay, k);
        weigh_rows(s[0], s[1], sums, seq.see, row, k0, in_base_2(a.scale));
        add_product<D>(dq, s[1], k);
        __syncthreads(); /* the load after next overwrites this stage */
    }
    store_rows<D>(a, piece, head, row, dq);
}

template <int D> static cudaError_t gradient(cr_device *dev, const grad_args<bf16> &a)
{
    const int shared = TILES_OF * D * (int)sizeof(bf16);
    cudaError_t code = launch_shared(dev, grad_of_keys_mma<D>,
                                     grid_of_pieces(a.num_kv_heads, a.num_seqs, a.max_seqlen, STAY),
                                     MMA_THREADS, shared, a);

    if (code != cudaSuccess) return code;
    return launch_shared(dev, grad_of_rows_mma<D>,
                         grid_of_pieces(a.num_heads, a.num_seqs, a.max_seqlen, STAY), MMA_THREADS,
                         shared, a);
}

cudaError_t grad_on_tensor_cores(cr_device *dev, const grad_args<bf16> &a)
{
    return a.head_dim == 64 ? gradient<64>(dev, a) : gradient<128>(dev, a);
}
