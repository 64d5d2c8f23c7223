/* attention_grad_wgmma.cu -- backward of attention for bf16 heads of 64 and 128 by wgmma and TMA: for GPUs of compute capability 9.0 alone
 * (compiled for sm_90a; attention_grad.cu chooses, and says what is computed).
 *
 * Mapping: two kernels, blocks of three warpgroups. Two of them keep 64 rows each, while tiles of 64 rows of the other side pass by both, in four stages
 * that one warp of the third loads (attention_wgmma.h); its registers are given to the others. A warpgroup skips tiles that only the other one sees.
 *   dK and dV: 128 keys of a sequence and kv head, in shared memory; q and dO pass, head after head of the group, rows upwards, and each
 *   warp fetches their lse and delta for itself a tile ahead;
 *   dq: 128 rows of a head, q and dO in registers; K and V pass, upwards.
 * S and dP (or their transposes): wgmma.m64n64k16 over ascending head_dim; the products that are summed:
 * wgmma.m64nDk16, A in registers, what passes as B turned by its descriptor. P and dS, what is rounded and all sums are in the order of
 * attention_grad_mma.cu: in the simulation both have the same bits (tests/cuda_sim/attention.c).
 *
 * FLOPs 14 D a pair of query and key: 8 D for dK and dV, 6 D for dq. Bytes from L2 a row that passes: 4 D (and 8 a warpgroup's warp for dK, dV, most
 * of them from L1): 256 and 192 FLOPs a byte. Shared memory of D 128: stages of 32 KiB, and K and V (64 KiB): 197 KiB (dK, dV) and 129 KiB (dq),
 * half of it for D 64. Registers of D 128: 128 of sums, 64 of S and dP a thread (dK, dV), 64, 64 and 64 of q and dO (dq): 232 at most, one block an
 * SM. Limit of an H100 or H200: tensor cores: one warpgroup multiplies while the other one weighs, by their turns (attention_wgmma.h), which leave
 * out 6 % of the time in dq (bench/gpu_static). A batch with few kv heads has few blocks of dK and dV: T / 128 x kv heads.
 */
#include "kernels/cuda/attention/attention_grad_rows.h"
#include "kernels/cuda/attention/attention_wgmma.h"

enum {
    GROUPS = 2, /* that multiply */
    WARPS = 4 * GROUPS,
    BLOCK_ROWS = GROUPS * TILE_ROWS,
    STAGES = 4,
    N = TILE_ROWS / 8,
    GRAD_THREADS = (GROUPS + 1) * GROUP_THREADS,
    MULTIPLY_REGISTERS = 232,
    LOAD_REGISTERS = 40
};
static_assert(GROUPS * MULTIPLY_REGISTERS + LOAD_REGISTERS <= (GROUPS + 1) * 168,
              "what the launch bounds leave a thread");

struct grad_maps {
    CUtensorMap q, d_o, k, v;
};

/* s = A B^T, between a fence and a commit. A: 64 rows along k, in shared memory or in registers; b: a tile, its rows along k. */
template <int D>
static __device__ __forceinline__ void multiply(float (&s)[N][4], const unsigned char *a,
                                                const unsigned char *b)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        int at = i / 4 * BOX;
        wgmma(s, tile_descriptor(a + at) + 2 * (i % 4), tile_descriptor(b + at) + 2 * (i % 4),
              i > 0);
    }
}
template <int D>
static __device__ __forceinline__ void multiply(float (&s)[N][4], const uint32_t (&a)[D / 16][4],
                                                const unsigned char *b)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wgmma<false>(s, a[i], tile_descriptor(b + i / 4 * BOX) + 2 * (i % 4), i > 0);
}

/* c += A B, 16 rows of tile b at a time, upwards; likewise. */
template <int D>
static __device__ __forceinline__ void
add_product(float (&c)[D / 8][4], const uint32_t (&a)[TILE_ROWS / 16][4], const unsigned char *b)
{
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 16; i++)
        wgmma<true>(c, a[i], tile_descriptor(b, BOX) + 128 * i, true);
}

/* bf16 of sums, as A. */
static __device__ __forceinline__ void round_sums(uint32_t (&a)[TILE_ROWS / 16][4],
                                                  const float (&s)[N][4])
{
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 16; i++)
        a_of_sums(a[i], s, i);
}

/* ---- dK and dV ---- */

typedef row_sums<TILE_ROWS> sums_of_tile;

/* lse and delta of a tile's rows, for a warp: a lane fetches those of two rows. */
struct fetched_sums {
    float lse[2], delta[2];

    __device__ __forceinline__ void fetch(const sequence<bf16> &seq, int row)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int i = row + (int)threadIdx.x % 32 + 32 * h;
            lse[h] = lse_of(seq, i);
            delta[h] = delta_of(seq, i);
        }
    }
    __device__ __forceinline__ void put(sums_of_tile *sums) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int i = (int)threadIdx.x % 32 + 32 * h;
            sums->lse[i] = lse[h];
            sums->delta[i] = delta[h];
        }
    }
};

template <int D> struct key_grads {
    float dk[D / 8][4], dv[D / 8][4];
};

/* A tile of rows from `row` on, some of which see some of the warpgroup's keys; k, v: those keys' tiles; key: the warp's first. */
template <int D>
static __device__ __forceinline__ void
take_rows(key_grads<D> &g, const unsigned char *k, const unsigned char *v, const unsigned char *q,
          const unsigned char *d_o, const sums_of_tile &sums, const sight &see, int key, int row,
          float scale, const turns<GROUPS> &order)
{
    float s[N][4], d[N][4];
    uint32_t p[TILE_ROWS / 16][4], ds[TILE_ROWS / 16][4];

    order.wait(0);
    wgmma_fence(s, d);
    multiply<D>(s, k, q);
    multiply<D>(d, v, d_o);
    wgmma_commit();
    order.pass();
    wgmma_wait<0>(s, d);
    weigh_keys(s, d, sums, see, key, row, scale);
    round_sums(p, s);
    round_sums(ds, d);
    order.wait(1);
    wgmma_fence(p, ds, g.dv, g.dk);
    add_product<D>(g.dv, p, d_o);
    add_product<D>(g.dk, ds, q);
    wgmma_commit();
    order.pass();
    wgmma_wait<0>(g.dv, g.dk);
}

/* The warps that multiply. stays: K and V of each warpgroup; sums: of the warp. */
template <int D>
static __device__ __forceinline__ void
take_all_rows(key_grads<D> &g, const stages<D, STAGES> &s, const stages<D, GROUPS> &stays,
              const turns<GROUPS> &order, sums_of_tile *sums, const grad_args<bf16> &a,
              const seq_piece &piece, rows_to_come<N> next)
{
    const int group = order.group, key = piece.first + (int)threadIdx.x / 32 * WARP_ROWS;
    const seq_piece my_piece = {piece.begin, piece.len, piece.first + group * TILE_ROWS};
    const row_range mine =
        my_piece.first < piece.len ? rows_of_keys(a, my_piece, TILE_ROWS) : row_range{0, 0};
    const sight see = {piece.len, a.window, a.is_bidirectional};
    fetched_sums ahead;

    ahead.fetch(sequence_of(a, piece, next.head), next.row);
    barrier_wait(stays.full + group, 0);
    for (int i = 0; i < next.num; i++) {
        int at = i % STAGES, row = next.row;
        ahead.put(sums);
        __syncwarp();
        next.step();
        if (i + 1 < next.num) ahead.fetch(sequence_of(a, piece, next.head), next.row);
        barrier_wait(s.full + at, i / STAGES & 1);
        if (row + TILE_ROWS > mine.first && row < mine.end)
            take_rows<D>(g, stays.x(group), stays.y(group), s.x(at), s.y(at), *sums, see, key, row,
                         in_base_2(a.scale), order);
        else
            order.skip_tile();
        __syncwarp(); /* the next sums overwrite these */
        if (threadIdx.x % 32 == 0) barrier_arrive(s.empty + at);
    }
}

template <int D>
static __global__ void __launch_bounds__(GRAD_THREADS, 1)
    grad_of_keys_wgmma(const __grid_constant__ grad_maps maps, grad_args<bf16> a)
{
    DYNAMIC_SHARED(memory);
    SHARED(sums_of_tile, sums, WARPS);
    SHARED(barrier, full, STAGES);
    SHARED(barrier, empty, STAGES);
    SHARED(barrier, stay, GROUPS);
    SHARED(barrier, turn, GROUPS);
    const stages<D, STAGES> s = {first_tile(memory), full, empty};
    const turns<GROUPS> order = {turn, group_of_warp()};
    const stages<D, GROUPS> stays = {s.memory + s.BYTES, stay, NULL};
    int kv = head_of_block(), warp = (int)threadIdx.x / 32;
    const seq_piece piece = piece_of_block(a.cu_seqlens, BLOCK_ROWS, true);
    if (piece.first >= piece.len) return;
    rows_to_come<N> next = tiles_of_rows<N>(a, rows_of_keys(a, piece, BLOCK_ROWS), kv);

    if (threadIdx.x == 0) {
        s.init(WARPS);
        order.init();
        for (int i = 0; i < GROUPS; i++)
            barrier_init(stay + i, 1);
        fence_async();
    }
    __syncthreads();
    if (warp >= WARPS) {
        set_registers<LOAD_REGISTERS, false>();
        if (warp > WARPS) return;
        const sequence<bf16> seq = sequence_of(a, piece, next.head);
        for (int i = 0; i < GROUPS; i++) {
            int first = piece.first + i * TILE_ROWS;
            const pair_rows keys = {{seq.k.x + first * seq.k.stride, seq.k.stride},
                                    {seq.v.x + first * seq.v.stride, seq.v.stride},
                                    &maps.k,
                                    &maps.v,
                                    kv * D,
                                    piece.begin + first,
                                    piece.begin + first,
                                    piece.len - first};
            load_pair<D>(stays.x(i), stays.y(i), stay + i, keys, is_elected());
        }
        load_stages(s, next.num, [&](int) {
            const sequence<bf16> of = sequence_of(a, piece, next.head);
            int row = next.row, head = next.head;
            next.step();
            return pair_rows{{of.q.x + row * of.q.stride, of.q.stride},
                             {of.d_o.x + row * of.d_o.stride, of.d_o.stride},
                             &maps.q,
                             &maps.d_o,
                             head * D,
                             piece.begin + row,
                             piece.begin + row,
                             piece.len - row};
        });
        return;
    }
    set_registers<MULTIPLY_REGISTERS, true>();
    key_grads<D> g;
    set_zero(g.dk);
    set_zero(g.dv);
    take_all_rows<D>(g, s, stays, order, sums + warp, a, piece, next);
    store_keys<D>(a, piece, kv, piece.first + warp * WARP_ROWS, g.dk, g.dv);
}

/* ---- dq ---- */

/* q and dO of a warp's rows, and what they sum. */
template <int D> struct row_grads {
    uint32_t q[D / 16][4], d_o[D / 16][4];
    float dq[D / 8][4];
};

/* A tile of keys from `key` on, some of which some of the warpgroup's rows see; row: the warp's first. */
template <int D>
static __device__ __forceinline__ void
take_keys(row_grads<D> &g, const unsigned char *k, const unsigned char *v, const lane_sums &sums,
          const sight &see, int row, int key, float scale, const turns<GROUPS> &order)
{
    float s[N][4], d[N][4];
    uint32_t ds[TILE_ROWS / 16][4];

    order.wait(0);
    wgmma_fence(g.q, g.d_o, s, d);
    multiply<D>(s, g.q, k);
    multiply<D>(d, g.d_o, v);
    wgmma_commit();
    order.pass();
    wgmma_wait<0>(s, d);
    weigh_rows(s, d, sums, see, row, key, scale);
    round_sums(ds, d);
    order.wait(1);
    wgmma_fence(ds, g.dq);
    add_product<D>(g.dq, ds, k);
    wgmma_commit();
    order.pass();
    wgmma_wait<0>(g.dq);
}

template <int D>
static __global__ void __launch_bounds__(GRAD_THREADS, 1)
    grad_of_rows_wgmma(const __grid_constant__ grad_maps maps, grad_args<bf16> a)
{
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, STAGES);
    SHARED(barrier, empty, STAGES);
    SHARED(barrier, turn, GROUPS);
    const stages<D, STAGES> s = {first_tile(memory), full, empty};
    const turns<GROUPS> order = {turn, group_of_warp()};
    int head = head_of_block(), warp = (int)threadIdx.x / 32;
    seq_piece piece = piece_of_block(a.cu_seqlens, BLOCK_ROWS, false);
    if (piece.first >= piece.len) return;
    const sequence<bf16> seq = sequence_of(a, piece, head);
    const block_rows rows = rows_of_piece(piece, BLOCK_ROWS, a.window, a.is_bidirectional);
    int first = first_key(rows) / TILE_ROWS * TILE_ROWS,
        num = (last_key(rows) - first + TILE_ROWS - 1) / TILE_ROWS;

    if (threadIdx.x == 0) {
        s.init(WARPS);
        order.init();
        fence_async();
    }
    __syncthreads();
    if (warp >= WARPS) {
        set_registers<LOAD_REGISTERS, false>();
        if (warp > WARPS) return;
        load_stages(s, num, [&](int i) {
            int key = first + i * TILE_ROWS;
            return pair_rows{{seq.k.x + key * seq.k.stride, seq.k.stride},
                             {seq.v.x + key * seq.v.stride, seq.v.stride},
                             &maps.k,
                             &maps.v,
                             head / (a.num_heads / a.num_kv_heads) * D,
                             piece.begin + key,
                             piece.begin + key,
                             piece.len - key};
        });
        return;
    }
    set_registers<MULTIPLY_REGISTERS, true>();
    int row = piece.first + warp * WARP_ROWS;
    const lane_sums sums = sums_of_lane(seq, row);
    row_grads<D> g;
    take_a<D>(g.q, seq.q, row, piece.len);
    take_a<D>(g.d_o, seq.d_o, row, piece.len);
    set_zero(g.dq);
    piece.first += warp / 4 * TILE_ROWS;
    const block_rows mine = rows_of_piece(piece, TILE_ROWS, a.window, a.is_bidirectional);
    int begin = first_key(mine), end = mine.num > 0 ? last_key(mine) : 0;
    for (int i = 0; i < num; i++) {
        int at = i % STAGES, key = first + i * TILE_ROWS;
        barrier_wait(s.full + at, i / STAGES & 1);
        if (key < end && key + TILE_ROWS > begin)
            take_keys<D>(g, s.x(at), s.y(at), sums, seq.see, row, key, in_base_2(a.scale), order);
        else
            order.skip_tile();
        if (threadIdx.x % 32 == 0) barrier_arrive(s.empty + at);
    }
    store_rows<D>(a, piece, head, row, g.dq);
}

template <int D> static cudaError_t gradient(cr_device *dev, const grad_args<bf16> &a)
{
    const int shared = stages<D, STAGES>::BYTES + TILE_ATOM, stay = stages<D, GROUPS>::BYTES;
    const int64_t cols = (int64_t)a.num_heads * D, kv_cols = (int64_t)a.num_kv_heads * D;
    grad_maps maps;
    cudaError_t code = map_of_rows(dev, &maps.q, a.q, a.num_rows, cols, TILE_ROWS);

    if (code == cudaSuccess) code = map_of_rows(dev, &maps.d_o, a.d_o, a.num_rows, cols, TILE_ROWS);
    if (code == cudaSuccess) code = map_of_rows(dev, &maps.k, a.k, a.num_rows, kv_cols, TILE_ROWS);
    if (code == cudaSuccess) code = map_of_rows(dev, &maps.v, a.v, a.num_rows, kv_cols, TILE_ROWS);
    if (code == cudaSuccess)
        code = launch_shared(dev, grad_of_keys_wgmma<D>,
                             grid_of_pieces(a.num_kv_heads, a.num_seqs, a.max_seqlen, BLOCK_ROWS),
                             GRAD_THREADS, shared + stay, maps, a);
    if (code != cudaSuccess) return code;
    return launch_shared(dev, grad_of_rows_wgmma<D>,
                         grid_of_pieces(a.num_heads, a.num_seqs, a.max_seqlen, BLOCK_ROWS),
                         GRAD_THREADS, shared, maps, a);
}

cudaError_t grad_by_wgmma(cr_device *dev, const grad_args<bf16> &a)
{
    return a.head_dim == 64 ? gradient<64>(dev, a) : gradient<128>(dev, a);
}
