/* attention_wgmma.cu -- attention forward of bf16 heads of 64 and 128, packed and cached, by wgmma and TMA: for GPUs of compute capability
 * 9.0 alone (compiled for sm_90a; attention.cu chooses, for packed and cached rows alike).
 *
 * Mapping: a warpgroup takes 64 query rows that share their keys, which are the rows of a block of attention_mma.cu. A block of packed
 * rows has two warpgroups of neighbouring rows, one of cached rows has one (the heads of a kv head's group for one row of a
 * generation step), and each has one more warp, which loads (attention_wgmma.h). Keys come in tiles of 64 positions counted from the start of the
 * sequence, two stages a warpgroup, with two mbarriers: full, when K and V of a tile are there; empty, when all warps have read
 * them. A tile whose 64 rows are all of the sequence comes by TMA, as boxes of 64 x 64; its last one, if it has fewer, by
 * cp.async of the loading warp with zeros after them, so that nothing past a sequence, a cache or memory is read. A warpgroup skips
 * tiles that only the other one sees. Scores: wgmma.m64n64k16, q and the sums in registers; weights: rounded to bf16, A in registers of
 * wgmma.m64nDk16, V turned by its descriptor. Scores, softmax and sums go in the order of attention_mma.cu: in the simulation
 * both have the same bits (tests/cuda_sim/attention.c). On hardware wgmma and mma.sync may round sums differently, which no promise
 * needs, since a GPU uses one of them for all rows.
 *
 * FLOPs 4 D a pair of query and key; bytes 4 D a key and block: 128 FLOPs a byte from L2 packed. Shared memory: stages of
 * 256 D bytes, 129 KiB packed and 65 KiB cached for D 128, half of it for D 64; for stretches of keys (attention.h) 68 and 34 KiB more. Registers, D 128: 64 of O, 32 of q, 32 of scores, 16 of
 * weights a thread, 168 at most: one block an SM packed, two cached. Limit, packed, of an H100 or H200: L2, three quarters of the
 * tensor cores: one warpgroup multiplies while the other weighs, by their turns (bench/gpu_static). Cached: the bytes of the cache, read once a kv head.
 */
#include "kernels/cuda/attention/attention_stretches.h"
#include "kernels/cuda/attention/attention_wgmma.h"

static_assert((int)KEYS == (int)TILE_ROWS, "a tile of keys is one of a pair");

/* ---- where keys are: pair(k0), those from k0 on ---- */

struct packed_boxes {
    packed_keys rows;
    const CUtensorMap *k, *v;
    int column, row; /* of the head; of the sequence */

    __device__ __forceinline__ pair_rows pair(int k0) const
    {
        return pair_rows{rows.keys(k0), rows.values(k0), k,        v,
                         column,        row + k0,        row + k0, rows.end - k0};
    }
};

/* The cache is a matrix of rows of D, below 2^31 of them: 275 GB. */
struct cached_boxes {
    cached_keys rows;
    const CUtensorMap *blocks;

    __device__ __forceinline__ pair_rows pair(int k0) const
    {
        int row = (int)pair_of(*rows.a, rows.slot, k0, rows.kv) * 2 * KEYS;
        return pair_rows{rows.keys(k0), rows.values(k0), blocks,       blocks, 0,
                         row,           row + KEYS,      rows.end - k0};
    }
};

/* ---- the warpgroups ---- */

/* One tile of keys that some of the warp's rows, from `first` of `rows` on, see. */
template <int D, int GROUPS>
static __device__ __forceinline__ void
take_tile(warp_rows<D> &w, const unsigned char *keys, const unsigned char *values,
          const block_rows &rows, int first, int k0, float scale, const turns<GROUPS> &order)
{
    float s[KEYS / 8][4];
    uint32_t p[KEYS / 16][4];

    order.wait(0);
    wgmma_fence(w.q, s);
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wgmma<false>(s, w.q[i], tile_descriptor(keys + i / 4 * BOX) + 2 * (i % 4), i > 0);
    wgmma_commit();
    order.pass();
    wgmma_wait<0>(s);
    hide(s, rows, first, k0);
    weigh<D>(s, w, scale);
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        a_of_sums(p[i], s, i);
    order.wait(1);
    wgmma_fence(p, w.o);
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        wgmma<true>(w.o, p[i], tile_descriptor(values, BOX) + 128 * i, true);
    wgmma_commit();
    order.pass();
    wgmma_wait<0>(w.o);
}

/* rows: of the warpgroup; memory: room for stretches of keys, if there are several. */
template <int D, int NUM, int GROUPS>
static __device__ __forceinline__ void
take_keys(warp_rows<D> &w, const stages<D, NUM> &s, const turns<GROUPS> &order, void *memory,
          const block_rows &rows, int first, int num, float scale)
{
    const kept_rows<D> kept = kept_of_warp<D>(memory, threadIdx.x / 32);
    bool is_first = threadIdx.x % 32 == 0;
    int begin = first_key(rows), end = rows.num > 0 ? last_key(rows) : 0;

    for (int i = 0; i < num; i++) {
        int at = i % NUM, k0 = first + i * KEYS;
        barrier_wait(s.full + at, i / NUM & 1);
        if (k0 < end && k0 + KEYS > begin) {
            take_tile(w, s.x(at), s.y(at), rows, (int)threadIdx.x / 32 % 4 * 16, k0, scale, order);
            end_tile(w, kept, begin, k0 + KEYS, end, scale);
        } else {
            order.skip_tile();
        }
        if (is_first) barrier_arrive(s.empty + at);
    }
    if (end > 0) end_tiles(w, kept, begin, end, scale);
}

/* rows: of the block; mine: of the warpgroup, whose first one's q is the first of `q`. False: the warp has none, it has loaded. */
template <int D, int GROUPS, class Where>
static __device__ __forceinline__ bool attend(warp_rows<D> &w, const head_rows<bf16> &q,
                                              const Where &where, const block_rows &rows,
                                              const block_rows &mine, float scale)
{
    constexpr int NUM = 2 * GROUPS, WARPS = 4 * GROUPS;
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, NUM);
    SHARED(barrier, empty, NUM);
    SHARED(barrier, turn, GROUPS);
    const stages<D, NUM> s = {first_tile(memory), full, empty};
    const turns<GROUPS> order = {turn, group_of_warp()};
    int first = first_key(rows) / KEYS * KEYS, num = (last_key(rows) - first + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        s.init(WARPS);
        order.init();
        fence_async();
    }
    __syncthreads();
    if ((int)threadIdx.x / 32 == WARPS) {
        load_stages(s, num, [&](int i) { return where.pair(first + i * KEYS); });
        return false;
    }
    take_a<D>(w.q, q, (int)threadIdx.x / 32 % 4 * 16, mine.num);
    start(w);
    take_keys(w, s, order, s.memory + s.BYTES, mine, first, num, scale);
    return true;
}

template <int GROUPS> static constexpr int threads_of(void)
{
    return GROUPS * GROUP_THREADS + 32;
}
template <int D, int GROUPS> static int shared_bytes(bool has_stretches)
{
    return stages<D, 2 * GROUPS>::BYTES + TILE_ATOM +
           (has_stretches ? kept_bytes<D, GROUPS * GROUP_THREADS>() : 0);
}

/* ---- packed ---- */

enum { PACKED_GROUPS = WGMMA_ROWS / MMA_ROWS };
static_assert(CR_ROW_TILE == (int)WGMMA_ROWS, "a block takes a tile");

template <int D>
static __global__ void __launch_bounds__(threads_of<PACKED_GROUPS>(), 1)
    attend_packed_wgmma(const __grid_constant__ CUtensorMap k,
                        const __grid_constant__ CUtensorMap v, packed_args<bf16> a)
{
    int head = head_of_block(), kv = head / (a.num_heads / a.num_kv_heads),
        group = (int)threadIdx.x / GROUP_THREADS, warp = (int)threadIdx.x / 32 % 4;
    seq_piece piece = piece_of_block(a.cu_seqlens, WGMMA_ROWS, false);
    if (piece.first >= piece.len) return;
    const block_rows rows = rows_of_piece(piece, WGMMA_ROWS, a.window, a.is_bidirectional);
    piece.first += group * MMA_ROWS;
    const block_rows mine = rows_of_piece(piece, MMA_ROWS, a.window, a.is_bidirectional);
    int64_t q_stride = (int64_t)a.num_heads * D, kv_stride = (int64_t)a.num_kv_heads * D,
            row = (int64_t)piece.begin + piece.first, at = row * q_stride + (int64_t)head * D,
            from = (int64_t)piece.begin * kv_stride + (int64_t)kv * D;
    const packed_boxes where = {
        {a.k + from, a.v + from, kv_stride, piece.len}, &k, &v, kv * D, piece.begin};
    warp_rows<D> w;

    if (attend<D, PACKED_GROUPS>(w, {a.q + at, q_stride}, where, rows, mine, in_base_2(a.scale)))
        finish<D>(w, warp * 16, mine.num, a.o + at, q_stride,
                  a.lse ? a.lse + row * a.num_heads + head : NULL, a.num_heads, a.scale);
}

template <int D> static cudaError_t packed(cr_device *dev, const packed_args<bf16> &a)
{
    const dim3 grid = grid_of_pieces(a.num_heads, a.num_seqs, a.max_seqlen, WGMMA_ROWS);
    CUtensorMap k, v;
    cudaError_t code = map_of_rows(dev, &k, a.k, a.num_rows, a.num_kv_heads * D, KEYS);

    if (code == cudaSuccess) code = map_of_rows(dev, &v, a.v, a.num_rows, a.num_kv_heads * D, KEYS);
    if (code != cudaSuccess) return code;
    return launch_shared(dev, attend_packed_wgmma<D>, grid, threads_of<PACKED_GROUPS>(),
                         shared_bytes<D, PACKED_GROUPS>(a.max_seqlen > SPLIT), k, v, a);
}

cudaError_t attend_packed_by_wgmma(cr_device *dev, const packed_args<bf16> &a)
{
    return a.head_dim == 64 ? packed<64>(dev, a) : packed<128>(dev, a);
}

/* ---- cached ---- */

template <int D>
static __global__ void __launch_bounds__(threads_of<1>(), 2)
    attend_cached_wgmma(const __grid_constant__ CUtensorMap blocks, cached_args<bf16> a,
                        shares share)
{
    int64_t r = blockIdx.x;
    int end = a.row_pos[r] + 1;
    const group_part part = part_of_group(a, (int)blockIdx.y, MMA_ROWS);
    block_rows rows = {part.num, end, 0, a.window};
    const cached_boxes where = {{&a, a.row_slot[r], part.kv, end}, &blocks};
    int64_t at = (r * a.num_heads + part.head) * D;
    warp_rows<D> w;

    if (!take_share(&rows, share)) return;
    if (!attend<D, 1>(w, {a.q + at, D}, where, rows, rows, in_base_2(a.scale))) return;
    finish_cached<D>(w, rows.num, a.o + at, share, a.scale);
}

static cudaError_t map_of_cache(cr_device *dev, CUtensorMap *out, const cached_args<bf16> &a)
{
    const int64_t rows_a_block = 2 * CR_KV_BLOCK * (int64_t)a.num_kv_heads;

    return map_of_rows(dev, out, a.blocks, a.num_blocks * rows_a_block, a.head_dim, KEYS);
}

template <int D>
static cudaError_t cached(cr_device *dev, const cached_args<bf16> &a, const shares &s,
                          int64_t num_rows)
{
    const dim3 grid((unsigned)num_rows, num_group_parts(a, MMA_ROWS),
                    (unsigned)(s.sums ? s.num : 1));
    CUtensorMap blocks;
    cudaError_t code = map_of_cache(dev, &blocks, a);

    if (code != cudaSuccess) return code;
    return launch_shared(dev, attend_cached_wgmma<D>, grid, threads_of<1>(),
                         shared_bytes<D, 1>(!s.sums && s.num > 1), blocks, a, s);
}

cudaError_t attend_cached_by_wgmma(cr_device *dev, const cached_args<bf16> &a, const shares &s,
                                   int64_t num_rows)
{
    return a.head_dim == 64 ? cached<64>(dev, a, s, num_rows) : cached<128>(dev, a, s, num_rows);
}

/* ---- tiles of rows over the cache: the blocks of packed rows, keys where the table says ---- */

template <int D>
static __global__ void __launch_bounds__(threads_of<PACKED_GROUPS>(), 1)
    attend_tiles_wgmma(const __grid_constant__ CUtensorMap blocks, cached_args<bf16> a)
{
    int head = (int)blockIdx.y, kv = head / (a.num_heads / a.num_kv_heads),
        first = (int)threadIdx.x / GROUP_THREADS * MMA_ROWS, warp = (int)threadIdx.x / 32 % 4;
    const tile_rows all = rows_of_tile(a, blockIdx.x, 0, WGMMA_ROWS),
                    mine = rows_of_tile(a, blockIdx.x, first, MMA_ROWS);
    const cached_boxes where = {{&a, all.slot, kv, all.end}, &blocks};
    int64_t stride = (int64_t)a.num_heads * D, at = mine.row * stride + (int64_t)head * D;
    warp_rows<D> w;

    if (attend<D, PACKED_GROUPS>(w, {a.q + at, stride}, where, all.rows, mine.rows,
                                 in_base_2(a.scale)))
        finish<D>(w, warp * 16, mine.rows.num, a.o + at, stride, NULL, 0, a.scale);
}

template <int D>
static cudaError_t tiled(cr_device *dev, const cached_args<bf16> &a, bool has_stretches)
{
    const dim3 grid((unsigned)a.num_tiles, (unsigned)a.num_heads);
    CUtensorMap blocks;
    cudaError_t code = map_of_cache(dev, &blocks, a);

    if (code != cudaSuccess) return code;
    return launch_shared(dev, attend_tiles_wgmma<D>, grid, threads_of<PACKED_GROUPS>(),
                         shared_bytes<D, PACKED_GROUPS>(has_stretches), blocks, a);
}

cudaError_t attend_tiles_by_wgmma(cr_device *dev, const cached_args<bf16> &a, bool has_stretches)
{
    return a.head_dim == 64 ? tiled<64>(dev, a, has_stretches) : tiled<128>(dev, a, has_stretches);
}
