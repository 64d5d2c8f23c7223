/* attention_mma.cu -- attention forward of bf16 heads of 64 and 128 on tensor cores, packed and cached.
 *
 * Mapping: a block of 4 warps takes 64 query rows that share their keys, a warp 16 of them: neighbouring rows of one sequence
 * and head, or the heads of one kv head's group for one row of a generation step, where the warps without rows only load.
 * Keys come in tiles of 64 positions counted from the start of the sequence, packed and cached alike, two stages of
 * cp.async; scores, weights and sums stay in registers. Scores: mma.m16n8k16 over ascending head_dim; an online softmax in float32; weights
 * rounded to bf16 for the product with V, mma over ascending keys; a row's sum of weights in float32, of 16 columns a lane, then over
 * four lanes. So a row's bits depend on its own keys alone, as far as one mma gives one result for an element. Sums of more than SPLIT keys
 * are those of stretches (attention.h): a packed block keeps them in shared memory between two, blocks that share a row's keys leave
 * them for add_stretches.
 *
 * FLOPs 4 D a pair of query and key; bytes 4 D a key and block of 64 rows: 64 FLOPs a byte from L2. Shared memory 4 tiles of 64 x D
 * (K and V twice; Q passes through the first): 32 KiB for D 64, 64 KiB for D 128, swizzled; for stretches 18 and 34 KiB more. Limit, packed, of an H100 or H200: a
 * warp reads each fragment of K and V for 16 rows alone, 32 ldmatrix for 64 mma at D 128: about the rate of mma.sync on sm_80, 0.8
 * of it on sm_90, where mma.sync itself is about 0.6 of wgmma's. Cached: the bytes of the cache, read once a kv head.
 */
#include "kernels/cuda/attention/attention_stretches.h"

enum { TILES = 4 * KEYS * (int)sizeof(bf16) }; /* shared bytes a column of head_dim */

template <int D>
static __device__ __forceinline__ void take_queries(warp_rows<D> &w, bf16 *tile,
                                                    const head_rows<bf16> &q, int some)
{
    int warp = (int)threadIdx.x / 32;

    load_tile<KEYS, D>(tile, q, some);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        a_fragment<D>(w.q[i], tile, warp * 16, i);
    __syncthreads(); /* keys overwrite it */
    start(w);
}

/* s: scores of 64 keys, not scaled; -inf where a row does not see the key. */
template <int D>
static __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], const warp_rows<D> &w,
                                              const bf16 *keys, const block_rows &rows, int k0)
{
    int warp = (int)threadIdx.x / 32;

    set_zero(s);
#pragma unroll
    for (int i = 0; i < D / 16; i++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2)
            multiply_rows<D>(s, w.q[i], keys, n, i);
    hide(s, rows, warp * 16, k0);
}

/* o += s V */
template <int D>
static __device__ __forceinline__ void take_values(warp_rows<D> &w, const float (&s)[KEYS / 8][4],
                                                   const bf16 *values)
{
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
        uint32_t p[4];
        a_of_sums(p, s, i);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2)
            multiply_cols<D>(w.o, p, values, d, i);
    }
}

/* keys(k0) and values(k0) say where a tile's rows lie. After the tiles there is room for stretches, if there are several. */
template <int D, class Where>
static __device__ __forceinline__ void attend(warp_rows<D> &w, bf16 *tiles, const Where &where,
                                              const block_rows &rows, float scale)
{
    constexpr int TILE = KEYS * D;
    const kept_rows<D> kept = kept_of_warp<D>(tiles + 4 * TILE, threadIdx.x / 32);
    int first = first_key(rows) / KEYS * KEYS, end = last_key(rows),
        num = (end - first + KEYS - 1) / KEYS;
    bool has_rows = (int)threadIdx.x / 32 * 16 < rows.num;

    load_tile<KEYS, D>(tiles, where.keys(first), where.end - first);
    load_tile<KEYS, D>(tiles + 2 * TILE, where.values(first), where.end - first);
    cp_async_commit();
    for (int i = 0; i < num; i++) {
        int k0 = first + i * KEYS, next = k0 + KEYS;
        if (i + 1 < num) {
            load_tile<KEYS, D>(tiles + (~i & 1) * TILE, where.keys(next), where.end - next);
            load_tile<KEYS, D>(tiles + (2 + (~i & 1)) * TILE, where.values(next), where.end - next);
        }
        cp_async_commit(); /* empty at the end */
        cp_async_wait<1>();
        __syncthreads();
        if (has_rows) {
            float s[KEYS / 8][4];
            scores<D>(s, w, tiles + (i & 1) * TILE, rows, k0);
            weigh<D>(s, w, scale);
            take_values<D>(w, s, tiles + (2 + (i & 1)) * TILE);
            end_tile(w, kept, first, next, end, scale);
        }
        __syncthreads(); /* the load after next overwrites this stage */
    }
    if (has_rows) end_tiles(w, kept, first, end, scale);
}

/* ---- packed ---- */

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) attend_packed_mma(packed_args<bf16> a)
{
    DYNAMIC_SHARED(memory);
    bf16 *tiles = (bf16 *)(void *)memory; /* K, K, V, V */
    int head = head_of_block(), kv = head / (a.num_heads / a.num_kv_heads);
    seq_piece piece = piece_of_block(a.cu_seqlens, MMA_ROWS, false);
    if (piece.first >= piece.len) return;
    const block_rows rows = rows_of_piece(piece, MMA_ROWS, a.window, a.is_bidirectional);
    int64_t q_stride = (int64_t)a.num_heads * D, kv_stride = (int64_t)a.num_kv_heads * D,
            row = (int64_t)piece.begin + piece.first,
            from = (int64_t)piece.begin * kv_stride + (int64_t)kv * D;
    const packed_keys where = {a.k + from, a.v + from, kv_stride, piece.len};
    const head_rows<bf16> q = {a.q + row * q_stride + (int64_t)head * D, q_stride};
    warp_rows<D> w;

    take_queries<D>(w, tiles, q, rows.num);
    attend<D>(w, tiles, where, rows, in_base_2(a.scale));
    finish<D>(w, (int)threadIdx.x / 32 * 16, rows.num, a.o + row * q_stride + (int64_t)head * D,
              q_stride, a.lse ? a.lse + row * a.num_heads + head : NULL, a.num_heads, a.scale);
}

template <int D> static int shared_bytes(bool has_stretches)
{
    return TILES * D + (has_stretches ? kept_bytes<D, MMA_THREADS>() : 0);
}

template <int D> static cudaError_t packed(cr_device *dev, const packed_args<bf16> &a)
{
    const dim3 grid = grid_of_pieces(a.num_heads, a.num_seqs, a.max_seqlen, MMA_ROWS);

    return launch_shared(dev, attend_packed_mma<D>, grid, MMA_THREADS,
                         shared_bytes<D>(a.max_seqlen > SPLIT), a);
}

cudaError_t attend_packed_on_tensor_cores(cr_device *dev, const packed_args<bf16> &a)
{
    return a.head_dim == 64 ? packed<64>(dev, a) : packed<128>(dev, a);
}

/* ---- cached ---- */

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    attend_cached_mma(cached_args<bf16> a, shares share)
{
    DYNAMIC_SHARED(memory);
    bf16 *tiles = (bf16 *)(void *)memory;
    int64_t r = blockIdx.x;
    int end = a.row_pos[r] + 1;
    const group_part part = part_of_group(a, (int)blockIdx.y, MMA_ROWS);
    block_rows rows = {part.num, end, 0, a.window};
    const cached_keys where = {&a, a.row_slot[r], part.kv, end};
    int64_t at = (r * a.num_heads + part.head) * D;
    const head_rows<bf16> q = {a.q + at, D};
    warp_rows<D> w;

    if (!take_share(&rows, share)) return;
    take_queries<D>(w, tiles, q, rows.num);
    attend<D>(w, tiles, where, rows, in_base_2(a.scale));
    finish_cached<D>(w, rows.num, a.o + at, share, a.scale);
}

template <int D>
static cudaError_t cached(cr_device *dev, const cached_args<bf16> &a, const shares &s,
                          int64_t num_rows)
{
    const dim3 grid((unsigned)num_rows, num_group_parts(a, MMA_ROWS),
                    (unsigned)(s.sums ? s.num : 1));

    return launch_shared(dev, attend_cached_mma<D>, grid, MMA_THREADS,
                         shared_bytes<D>(!s.sums && s.num > 1), a, s);
}

cudaError_t attend_cached_on_tensor_cores(cr_device *dev, const cached_args<bf16> &a,
                                          const shares &s, int64_t num_rows)
{
    return a.head_dim == 64 ? cached<64>(dev, a, s, num_rows) : cached<128>(dev, a, s, num_rows);
}

/* ---- tiles of rows over the cache: the blocks of packed rows, keys where the table says ---- */

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) attend_tiles_mma(cached_args<bf16> a)
{
    constexpr int PIECES = CR_ROW_TILE / MMA_ROWS;
    DYNAMIC_SHARED(memory);
    bf16 *tiles = (bf16 *)(void *)memory;
    int head = (int)blockIdx.y, kv = head / (a.num_heads / a.num_kv_heads);
    const tile_rows t =
        rows_of_tile(a, blockIdx.x / PIECES, (int)(blockIdx.x % PIECES) * MMA_ROWS, MMA_ROWS);
    const cached_keys where = {&a, t.slot, kv, t.end};
    int64_t stride = (int64_t)a.num_heads * D, at = t.row * stride + (int64_t)head * D;
    const head_rows<bf16> q = {a.q + at, stride};
    warp_rows<D> w;

    if (t.rows.num <= 0) return;
    take_queries<D>(w, tiles, q, t.rows.num);
    attend<D>(w, tiles, where, t.rows, in_base_2(a.scale));
    finish<D>(w, (int)threadIdx.x / 32 * 16, t.rows.num, a.o + at, stride, NULL, 0, a.scale);
}

template <int D>
static cudaError_t tiled(cr_device *dev, const cached_args<bf16> &a, bool has_stretches)
{
    const dim3 grid((unsigned)(a.num_tiles * (CR_ROW_TILE / MMA_ROWS)), (unsigned)a.num_heads);

    return launch_shared(dev, attend_tiles_mma<D>, grid, MMA_THREADS,
                         shared_bytes<D>(has_stretches), a);
}

cudaError_t attend_tiles_on_tensor_cores(cr_device *dev, const cached_args<bf16> &a,
                                         bool has_stretches)
{
    return a.head_dim == 64 ? tiled<64>(dev, a, has_stretches) : tiled<128>(dev, a, has_stretches);
}

/* ---- what blocks that share a row's keys have left ---- */

/* Bytes: those of the sums, which are written and read once: 1/15 of the stretch's in the cache for a group of up to 16 heads. */
template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    add_stretches(cached_args<bf16> a, shares share)
{
    DYNAMIC_SHARED(memory);
    const kept_rows<D> kept = kept_of_warp<D>(memory, threadIdx.x / 32);
    int64_t r = blockIdx.x;
    int first_row = (int)threadIdx.x / 32 * 16;
    const group_part part = part_of_group(a, (int)blockIdx.y, MMA_ROWS);
    const block_rows rows = {part.num, a.row_pos[r] + 1, 0, a.window};
    int first = first_key(rows) / SPLIT, last = (last_key(rows) - 1) / SPLIT;
    warp_rows<D> w;

    if (first_row >= part.num) return;
    take_back(w, kept_share<D>(share, first));
    for (int i = first + 1; i <= last; i++) {
        keep(kept, w);
        take_back(w, kept_share<D>(share, i));
        add_to(kept, w, in_base_2(a.scale));
    }
    finish<D>(w, first_row, part.num, a.o + (r * a.num_heads + part.head) * D, D, NULL, 0, a.scale);
}

cudaError_t add_shares(cr_device *dev, const cached_args<bf16> &a, const shares &s,
                       int64_t num_rows)
{
    const dim3 grid((unsigned)num_rows, num_group_parts(a, MMA_ROWS));

    return a.head_dim == 64 ? launch_shared(dev, add_stretches<64>, grid, s.warps * 32,
                                            kept_bytes<64, MMA_THREADS>(), a, s)
                            : launch_shared(dev, add_stretches<128>, grid, s.warps * 32,
                                            kept_bytes<128, MMA_THREADS>(), a, s);
}
