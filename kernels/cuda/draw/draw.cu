/* draw.cu -- one id from each row of logits: processors, temperature, filters, draw, and the numbers of what was drawn (cr_draw).
 *
 * Probabilities are whole numbers, e^(z - max) in units of 2^-42, so that their sums are exact: any number of blocks, order of
 * threads and of atomics gives the same bits, and a row does not depend on the other rows. The same ids as on the cpu but where the last
 * bits of a sum decide.
 *
 * Mapping: pieces of 8192 tokens of a row are blocks of 512 threads. find_max: the largest token of each. weigh: the mass of each, and
 * of a row with filters a histogram over max - z in 64ths, of counts (top_k) or masses, 2048 bins. collect: the ids of the tokens up to the bin
 * where top_k or top_p is reached, in the order of ids, hardly more than are kept. Then draw_tokens, a block a row: without filters the
 * piece, and in it the token, where u is reached; with filters, among the collected tokens in the order of falling logits, equal ones by
 * id: three histograms of 2048 bins (11, 11, 10 bits of the key) find the place where a count (top_k) or a mass (top_p, u) is reached;
 * nothing is sorted. A kept token is one up to that place, which is all that log_probs.cu needs to know for the log-prob, rank and
 * largest tokens: the bits of head.cu; and the kept ids are those of the collected tokens.
 *
 * Bytes: rows with processors are copied (8 bytes a logit, and as many for marks). Then a row is read 2 times without filters, 3 with them, and
 * twice by log_probs.cu: 0.6 MB a row of 152k tokens each, from L2 (50 MB) up to 80 rows. 19 blocks a row: 7 rows fill an H100. FLOPs: an
 * expf a logit and pass, below a tenth of that. Atomics: one of 32 bits in shared memory a logit of a filtered row (two where a mass has more
 * than 32 bits, or the sum of a bin has a carry); of 64 bits in memory one a bin in use and block.
 * If nearly all tokens are kept (a flat distribution with top_p alone) one block goes over all of them nine times: that is slow.
 * Shared memory up to 26 KiB; pieces below 64 registers: 2 blocks an SM.
 */
#include "kernels/cuda/draw/draw.h"

#include <math.h>

enum { WIDTH = 512, WARPS = WIDTH / 32, BINS = CRI_DRAW_BINS, EACH = 16, PIECE = WIDTH * EACH };
#define ALL_LANES 0xffffffffu

typedef unsigned long long mass_t; /* of tokens, in units of 2^-42 */

/* What processors have to do with a token: so often in the response, and a bit for each other list. */
enum {
    COUNT = (1 << 24) - 1,
    MARK_PROMPT = 1 << 24,
    MARK_ALLOWED = 1 << 25,
    MARK_BANNED = 1 << 26,
    MARK_BIASED = 1 << 27
};

/* ---- processors ---- */

static __global__ void mark_tokens(draw_rows a)
{
    const draw_row &d = a.rows[blockIdx.x];
    int32_t *marks = a.tokens + blockIdx.x * a.vocab_size;
    const int bits[NUM_LISTS] = {MARK_PROMPT, 0, MARK_ALLOWED, MARK_BANNED, MARK_BIASED};

    if (!d.has_processor) return;
    for (int list = 0; list < NUM_LISTS; list++)
        for (int64_t i = threadIdx.x; i < d.num_ids[list]; i += blockDim.x) {
            int32_t *mark = marks + a.ids[d.first_id[list] + i];
            if (list == RESPONSE)
                atomicAdd(mark, 1);
            else
                atomicOr(mark, bits[list]);
        }
}

/* Each operation rounds by itself, as on the cpu. */
static __global__ void process_logits(draw_rows a)
{
    const draw_row &d = a.rows[blockIdx.y];
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, at = blockIdx.y * a.vocab_size + i;

    if (!d.has_processor || i >= a.vocab_size) return;
    int32_t mark = a.tokens[at], count = mark & COUNT;
    float z = a.logits[at];
    if (mark & MARK_BIASED) {
        int64_t n = 0;
        while (a.ids[d.first_id[BIASED] + n] != i)
            n++;
        z = __fadd_rn(z, as_float((uint32_t)a.ids[d.first_bias + n]));
    }
    if (d.penalty != 1.0f && (count || mark & MARK_PROMPT))
        z = z < 0.0f ? z * d.penalty : z / d.penalty;
    if (count && (d.presence != 0.0f || d.frequency != 0.0f)) {
        z = __fadd_rn(z, -__fmul_rn(d.frequency, (float)count));
        z = __fadd_rn(z, -d.presence);
    }
    if ((d.num_ids[ALLOWED] && !(mark & MARK_ALLOWED)) || mark & MARK_BANNED) z = CRI_BANNED;
    a.edited[at] = z;
}

/* ---- tokens and sums ---- */

/* What is drawn from: z / temperature of `num` tokens; ids NULL: token i is id i. */
struct source {
    const float *z;
    const int32_t *ids;
    float temperature;
    int64_t num;
};

static __device__ __forceinline__ source source_of(const draw_rows &a, int64_t row)
{
    const draw_row &d = a.rows[row];

    return source{(d.has_processor ? a.edited : a.logits) + row * a.vocab_size, NULL, d.temperature,
                  a.vocab_size};
}

static __device__ __forceinline__ float heated(const source &s, float z)
{
    return s.temperature != 1.0f ? z / s.temperature : z;
}

static __device__ __forceinline__ int32_t id_of(const source &s, int64_t i)
{
    return s.ids ? s.ids[i] : (int32_t)i;
}

static __device__ __forceinline__ float token(const source &s, int64_t i)
{
    return heated(s, s.z[id_of(s, i)]);
}

static __device__ __forceinline__ mass_t mass_of(float z, float largest)
{
    return (mass_t)(expf(z - largest) * 0x1p42f);
}

/* Tokens number threadIdx.x + i WIDTH of this block's piece, all loaded at once; i < the result. */
static __device__ __forceinline__ int load_piece(const source &s, float (&z)[EACH])
{
    int64_t first = (int64_t)blockIdx.x * PIECE + threadIdx.x, left = s.num - first;

#pragma unroll
    for (int i = 0; i < EACH; i++)
        z[i] = i * WIDTH < left ? s.z[first + i * WIDTH] : 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        z[i] = heated(s, z[i]);
    return left <= 0 ? 0 : (int)min((left + WIDTH - 1) / WIDTH, (int64_t)EACH);
}

/* Sums of threads 0 .. before this one, and of all, in every thread. */
static __device__ __forceinline__ mass_t sum_before(mass_t x, mass_t &all, mass_t *shared)
{
    mass_t up = x, before = 0;
    int warp = threadIdx.x / 32;

    for (int d = 1; d < 32; d *= 2) {
        mass_t other = __shfl_up_sync(ALL_LANES, up, d);
        if ((int)(threadIdx.x % 32) >= d) up += other;
    }
    if (threadIdx.x % 32 == 31) shared[warp] = up;
    __syncthreads();
    all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? shared[w] : 0;
        all += shared[w];
    }
    __syncthreads(); /* shared may be used again */
    return before + up - x;
}

/* Of a row, in every thread: the largest token, and the mass of all. */
static __device__ __forceinline__ float max_of(const draw_rows &a, int64_t row)
{
    float largest = -INFINITY;

    for (int64_t p = threadIdx.x % 32; p < a.num_pieces; p += 32)
        largest = fmaxf(largest, a.max_piece[row * a.num_pieces + p]);
    return warp_max(largest);
}

static __device__ __forceinline__ mass_t mass_of_row(const draw_rows &a, int64_t row)
{
    mass_t mass = 0;

    for (int64_t p = threadIdx.x % 32; p < a.num_pieces; p += 32)
        mass += a.piece_mass[row * a.num_pieces + p];
    return group_sum<32>(mass, (mass_t *)NULL);
}

/* A mass is two halves of 32 bits: shared memory adds no 64 bits at once. */
struct halves {
    uint32_t *low, *high; /* [BINS] */
};

static __device__ __forceinline__ void add_to_bin(const halves &h, int bin, mass_t x)
{
    uint32_t low = (uint32_t)x, high = (uint32_t)(x >> 32), old = atomicAdd(&h.low[bin], low);

    if (old + low < old) high++;
    if (high) atomicAdd(&h.high[bin], high);
}

static __device__ __forceinline__ mass_t in_bin(const halves &h, int bin)
{
    return (mass_t)h.high[bin] << 32 | h.low[bin];
}

/* ---- pieces ---- */

static __global__ void __launch_bounds__(WIDTH, 2) find_max(draw_rows a)
{
    SHARED(float, zs, WARPS);
    SHARED(int32_t, ids, WARPS);
    int64_t row = blockIdx.y, piece = row * a.num_pieces + blockIdx.x;
    const source s = source_of(a, row);
    float z[EACH], largest = -INFINITY;
    int num = load_piece(s, z);
    int32_t id = INT32_MAX, first = (int32_t)(blockIdx.x * PIECE + threadIdx.x);

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float x = isnan(z[i]) ? INFINITY : z[i];
        if (i < num && is_before(x, first + i * WIDTH, largest, id))
            largest = x, id = first + i * WIDTH;
    }
    block_first<WIDTH>(largest, id, zs, ids);
    for (int64_t i = blockIdx.x * WIDTH + threadIdx.x; a.has_filter && i < BINS;
         i += (int64_t)gridDim.x * WIDTH)
        a.bins[row * BINS + i] = 0;
    if (threadIdx.x) return;
    a.max_piece[piece] = largest;
    a.piece_id[piece] = id;
}

/* Where a token is in a row's histogram: it grows as z falls. */
static __device__ __forceinline__ int bin_of(float z, float largest)
{
    return (int)fminf((largest - z) * 64.0f, (float)(BINS - 1));
}

static __global__ void __launch_bounds__(WIDTH, 2) weigh(draw_rows a)
{
    SHARED(uint32_t, low, BINS);
    SHARED(uint32_t, high, BINS);
    SHARED(mass_t, sums, WARPS);
    int64_t row = blockIdx.y;
    const draw_row &d = a.rows[row];
    const source s = source_of(a, row);
    const halves bins = {low, high};
    float z[EACH], largest = max_of(a, row);
    mass_t mass = 0;

    if (d.is_greedy || !(fabsf(largest) < INFINITY)) return;
    int num = load_piece(s, z);
    for (int i = threadIdx.x; i < BINS; i += WIDTH)
        low[i] = high[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i >= num) continue;
        mass_t x = mass_of(z[i], largest);
        mass += x;
        if (d.has_filter) add_to_bin(bins, bin_of(z[i], largest), d.top_k > 0 ? 1 : x);
    }
    mass = group_sum<WIDTH>(mass, sums); /* after its barriers all tokens are in their bins */
    if (threadIdx.x == 0) a.piece_mass[row * a.num_pieces + blockIdx.x] = mass;
    if (!d.has_filter) return;
    for (int i = threadIdx.x; i < BINS; i += WIDTH) {
        mass_t x = in_bin(bins, i);
        if (x) atomicAdd(&a.bins[row * BINS + i], x);
    }
}

static __device__ __forceinline__ mass_t mass_wanted(const draw_row &d, mass_t base)
{
    if (!(d.top_p < 1.0f)) return ~0ull;
    return max((mass_t)ceil((double)d.top_p * (double)base), (mass_t)1);
}

/* The bin of a row's histogram where top_k, or top_p, is reached; if it is not, the last. */
static __device__ int last_bin(const draw_rows &a, int64_t row, int32_t *found, mass_t *sums)
{
    enum { SOME = BINS / WIDTH };
    const draw_row &d = a.rows[row];
    const mass_t *bins = a.bins + row * BINS + threadIdx.x * SOME;
    mass_t goal = d.top_k > 0 ? (mass_t)d.top_k : mass_wanted(d, mass_of_row(a, row)), mine = 0,
           all;

    for (int i = 0; i < SOME; i++)
        mine += bins[i];
    mass_t before = sum_before(mine, all, sums);
    if (threadIdx.x == 0 && all < goal) *found = BINS - 1;
    for (int i = 0; i < SOME; before += bins[i++])
        if (before < goal && before + bins[i] >= goal) *found = (int32_t)threadIdx.x * SOME + i;
    __syncthreads();
    return *found;
}

/* The key of the last token that min_p keeps. The largest token is always kept, banned ones never. */
static __device__ __forceinline__ uint32_t key_limit(float min_p, float largest)
{
    float min_z = min_p > 0.0f ? largest + logf(min_p) : CRI_MAX_BANNED;

    return max(falling_key(largest), falling_key(min_z));
}

/* The ids of the tokens that filters may keep, and the place where they end, ascending from the piece's place in a.tokens on.
 * top_k counts tokens that min_p does not keep. */
static __global__ void __launch_bounds__(WIDTH, 2) collect(draw_rows a)
{
    SHARED(int32_t, found, 1);
    SHARED(int32_t, counts, EACH * WARPS);
    SHARED(mass_t, sums, WARPS);
    int64_t row = blockIdx.y;
    const draw_row &d = a.rows[row];
    const source s = source_of(a, row);
    float z[EACH], largest = max_of(a, row);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t masks[EACH];

    if (!d.has_filter || !(fabsf(largest) < INFINITY)) return;
    int num = load_piece(s, z), bin = last_bin(a, row, found, sums);
    uint32_t limit = key_limit(d.top_k > 0 ? 0.0f : d.min_p, largest);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool is_one = i < num && bin_of(z[i], largest) <= bin && falling_key(z[i]) <= limit;
        masks[i] = __ballot_sync(ALL_LANES, is_one);
        if (lane == 0) counts[i * WARPS + warp] = __popc(masks[i]);
    }
    __syncthreads();
    mass_t all, mine = threadIdx.x < EACH * WARPS ? (mass_t)counts[threadIdx.x] : 0,
                before = sum_before(mine, all, sums);
    if (threadIdx.x < EACH * WARPS) counts[threadIdx.x] = (int32_t)before;
    if (threadIdx.x == 0) a.piece_found[row * a.num_pieces + blockIdx.x] = (int32_t)all;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * PIECE;
    int32_t *list = a.tokens + row * a.vocab_size + first;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (masks[i] >> lane & 1)
            list[counts[i * WARPS + warp] + __popc(masks[i] & ((1u << lane) - 1))] =
                (int32_t)(first + i * WIDTH + threadIdx.x);
}

/* ---- the place where a sum reaches its goal ---- */

/* Tokens of one key, or of one bin; count and mass of all tokens before them. */
struct place {
    uint32_t key;
    mass_t count_before, mass_before, count, mass;
};

struct bins {
    int32_t *count; /* [BINS] */
    halves mass;
    place *found;
    mass_t *sums;    /* [WARPS] */
    int32_t *counts; /* the same */
};

/* The bin where the running count, or mass, is goal or more; if none is, the last that has tokens. goal > 0. */
static __device__ place find_bin(const bins &b, bool is_by_mass, mass_t goal)
{
    enum { SOME = BINS / WIDTH };
    int first = (int)threadIdx.x * SOME;
    mass_t count = 0, mass = 0, all, all_mass;

    __syncthreads();
    for (int i = first; i < first + SOME; i++) {
        count += (mass_t)b.count[i];
        mass += in_bin(b.mass, i);
    }
    mass_t before = sum_before(count, all, b.sums),
           mass_before = sum_before(mass, all_mass, b.sums);
    if ((is_by_mass ? all_mass : all) < goal) {
        is_by_mass = false;
        goal = all;
    }
    for (int i = first; i < first + SOME; i++) {
        mass_t here = (mass_t)b.count[i], mass_here = in_bin(b.mass, i);
        mass_t sum = is_by_mass ? mass_before : before, more = is_by_mass ? mass_here : here;
        if (sum < goal && sum + more >= goal)
            *b.found = place{(uint32_t)i, before, mass_before, here, mass_here};
        before += here;
        mass_before += mass_here;
    }
    __syncthreads();
    return *b.found; /* written again after a barrier */
}

/* The same for tokens with keys up to `limit`, in the order of keys. */
static __device__ place find_key(const bins &b, const source &s, float largest, uint32_t limit,
                                 bool is_by_mass, mass_t goal)
{
    place at = {};

    for (int level = 0; level < 3; level++) {
        int shift = level == 2 ? 0 : 21 - 11 * level, bits = level == 2 ? 10 : 11;
        for (int i = threadIdx.x; i < BINS; i += WIDTH) {
            b.count[i] = 0;
            b.mass.low[i] = b.mass.high[i] = 0;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < s.num; i += WIDTH) {
            float z = token(s, i);
            uint32_t key = falling_key(z);
            if (key > limit || (level && key >> (shift + bits) != at.key)) continue;
            int bin = (int)(key >> shift & ((1u << bits) - 1));
            atomicAdd(&b.count[bin], 1);
            add_to_bin(b.mass, bin, mass_of(z, largest));
        }
        place in = find_bin(b, is_by_mass, goal - (is_by_mass ? at.mass_before : at.count_before));
        at.key = at.key << bits | in.key;
        at.count_before += in.count_before;
        at.mass_before += in.mass_before;
        at.count = in.count;
        at.mass = in.mass;
    }
    return at;
}

/* How many threads before this one say so, and in the block. */
static __device__ __forceinline__ int place_among(bool is_one, int32_t *counts, int &total)
{
    uint32_t mask = __ballot_sync(ALL_LANES, is_one);
    int warp = threadIdx.x / 32, before = __popc(mask & ((1u << threadIdx.x % 32) - 1));

    if (threadIdx.x % 32 == 0) counts[warp] = __popc(mask);
    __syncthreads();
    total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? counts[w] : 0;
        total += counts[w];
    }
    __syncthreads(); /* counts may be used again */
    return before;
}

/* The id of token number nth of those with this key, by id. */
static __device__ int32_t nth_id(const bins &b, const source &s, uint32_t key, mass_t nth)
{
    for (int64_t i0 = 0;; i0 += WIDTH) {
        int64_t i = i0 + threadIdx.x;
        int total, before;
        bool is_one = i < s.num && falling_key(token(s, i)) == key;
        before = place_among(is_one, b.counts, total);
        if (nth >= (mass_t)total) {
            nth -= (mass_t)total;
            continue;
        }
        if (is_one && (mass_t)before == nth) b.found->key = (uint32_t)id_of(s, i);
        __syncthreads();
        return (int32_t)b.found->key; /* written again after a barrier: find_key has some */
    }
}

/* ---- one row ---- */

/* The first id, in the order of ids, whose running mass is above u of all. */
static __device__ int32_t draw_in_order(const draw_rows &a, const bins &b, const source &s,
                                        int64_t row, float largest)
{
    const mass_t *masses = a.piece_mass + row * a.num_pieces;
    mass_t goal = (mass_t)((double)a.rows[row].u * (double)mass_of_row(a, row)) + 1, mine = 0, all;
    int64_t piece = 0;

    for (; masses[piece] < goal; piece++)
        goal -= masses[piece];
    int64_t begin = piece * PIECE + (int64_t)threadIdx.x * EACH, end = min(begin + EACH, s.num);
    for (int64_t i = begin; i < end; i++)
        mine += mass_of(token(s, i), largest);
    mass_t before = sum_before(mine, all, b.sums);
    for (int64_t i = begin; before < goal && i < end; i++) {
        before += mass_of(token(s, i), largest);
        if (before >= goal) b.found->key = (uint32_t)i;
    }
    __syncthreads();
    return (int32_t)b.found->key;
}

/* The tokens that were collected in the pieces of a row, one after the other, in their place. */
static __device__ source gather(const draw_rows &a, int64_t row)
{
    const int32_t *found = a.piece_found + row * a.num_pieces;
    int32_t *list = a.tokens + row * a.vocab_size;
    source s = source_of(a, row);
    int64_t piece = 0, before = 0;

    s.ids = list;
    s.num = 0;
    for (int64_t p = threadIdx.x % 32; p < a.num_pieces; p += 32)
        s.num += found[p];
    s.num = group_sum<32>(s.num, (int64_t *)NULL);
    for (int64_t i0 = 0; i0 < s.num; i0 += WIDTH) { /* none moves up */
        int64_t i = i0 + threadIdx.x;
        for (; i < s.num && i >= before + found[piece]; piece++)
            before += found[piece];
        int32_t id = i < s.num ? list[piece * PIECE + i - before] : 0;
        __syncthreads();
        if (i < s.num) list[i] = id; /* later turns read past it, find_key after a barrier */
    }
    return s;
}

/* top_k with ties, top_p, min_p, then the draw, in the order of falling z. last: of the kept tokens. */
static __device__ chosen draw_filtered(const draw_rows &a, const bins &b, const source &s,
                                       const draw_row &d, float largest, mass_t all,
                                       token_limit *last)
{
    uint32_t limit = key_limit(d.min_p, largest);
    mass_t base = all, wanted, goal, each, take, mass;
    place at;
    chosen c = {};

    if (d.top_k > 0) {
        at = find_key(b, s, largest, UINT32_MAX, /*is_by_mass=*/false, (mass_t)d.top_k);
        base = at.mass_before + at.mass;
        limit = min(limit, at.key);
    }
    wanted = mass_wanted(d, base);
    at = find_key(b, s, largest, limit, /*is_by_mass=*/true, wanted);
    each = at.mass / at.count;
    take = at.count;
    if (wanted - at.mass_before < at.mass) take = (wanted - at.mass_before + each - 1) / each;
    mass = at.mass_before + take * each;
    c.num_kept = (int64_t)(at.count_before + take);
    last->key = at.key;
    last->id = nth_id(b, s, at.key, take - 1);
    goal = (mass_t)((double)d.u * (double)mass) + 1;
    at = find_key(b, s, largest, last->key, /*is_by_mass=*/true, goal);
    c.id = nth_id(b, s, at.key, (goal - at.mass_before - 1) / (at.mass / at.count));
    c.log_mass = (float)log((double)mass / (double)all);
    if (!d.is_raw && c.num_kept < a.vocab_size) return c;
    c.num_kept = 0;
    c.log_mass = 0.0f;
    *last = token_limit{UINT32_MAX, INT32_MAX};
    return c;
}

/* The kept ids, ascending, to the head of the list of collected ones, and the first to the results. */
static __device__ void list_kept(const draw_rows &a, const bins &b, const source &s, int64_t row,
                                 const token_limit &last)
{
    int32_t *list = a.tokens + row * a.vocab_size, *first = a.kept + row * CRI_DRAW_KEPT;
    int64_t num = 0;

    for (int64_t i0 = 0; i0 < s.num; i0 += WIDTH) { /* none moves up */
        int64_t i = i0 + threadIdx.x;
        int32_t id = i < s.num ? s.ids[i] : 0;
        uint32_t key = falling_key(heated(s, s.z[id]));
        bool is_kept = i < s.num && (key < last.key || (key == last.key && id <= last.id));
        int total, before = place_among(is_kept, b.counts, total);
        if (is_kept) list[num + before] = id;
        if (is_kept && num + before < CRI_DRAW_KEPT) first[num + before] = id;
        num += total;
    }
}

static __global__ void __launch_bounds__(WIDTH, 1) draw_tokens(draw_rows a)
{
    SHARED(int32_t, count, BINS);
    SHARED(uint32_t, low, BINS);
    SHARED(uint32_t, high, BINS);
    SHARED(mass_t, sums, WARPS);
    SHARED(place, found, 1);
    SHARED(float, zs, WARPS);
    SHARED(int32_t, ids, WARPS);
    int64_t row = blockIdx.x;
    const draw_row &d = a.rows[row];
    const bins b = {count, {low, high}, found, sums, ids};
    token_limit last = {UINT32_MAX, INT32_MAX};
    chosen c = {};
    float largest = -INFINITY;
    int32_t id = INT32_MAX;

    for (int64_t p = threadIdx.x; p < a.num_pieces; p += WIDTH) {
        int64_t piece = row * a.num_pieces + p;
        if (is_before(a.max_piece[piece], a.piece_id[piece], largest, id))
            largest = a.max_piece[piece], id = a.piece_id[piece];
    }
    block_first<WIDTH>(largest, id, zs, ids);
    if (!(fabsf(largest) < INFINITY))
        c.id = -1;
    else if (d.is_greedy)
        c.id = id;
    else if (!d.has_filter)
        c.id = draw_in_order(a, b, source_of(a, row), row, largest);
    else {
        const source s = gather(a, row);
        c = draw_filtered(a, b, s, d, largest, mass_of_row(a, row), &last);
        if (d.is_listed && c.num_kept) list_kept(a, b, s, row, last);
    }
    if (threadIdx.x) return;
    a.all[row] = c;
    a.limits[row] = last;
    a.labels[row] = c.id < 0 ? 0 : c.id;
}

/* ---- the operation ---- */

int64_t cri_cuda_draw_pieces(int64_t vocab_size)
{
    return (vocab_size + PIECE - 1) / PIECE;
}

static cudaError_t queue_processors(const draw_rows *a, cudaStream_t stream)
{
    int64_t v = a->vocab_size;
    cudaError_t code;

    if (!a->has_processor) return cudaSuccess;
    code = cudaMemsetAsync(a->tokens, 0, (size_t)(a->num * v) * sizeof *a->tokens, stream);
    if (code != cudaSuccess) return code;
    code = CUDA_LAUNCH(mark_tokens, dim3((unsigned)a->num), dim3(256), 0, stream, *a);
    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(process_logits, dim3((unsigned)((v + 255) / 256), (unsigned)a->num),
                       dim3(256), 0, stream, *a);
}

cri_log_prob_rows cri_cuda_draw_numbers(const draw_rows *a)
{
    cri_log_prob_rows w = {};

    w.num_rows = a->num;
    w.vocab_size = a->vocab_size;
    w.labels = a->labels;
    w.processors.is_on = true;
    w.processors.penalty = 1.0f;
    w.processors.temperatures = a->temperatures;
    w.processors.limits = a->limits;
    w.log_prob = a->log_prob;
    w.rank = a->has_rank ? a->rank : NULL;
    w.num_top = a->num_top;
    w.top_ids = a->top_ids;
    w.top_log_prob = a->top_log_probs;
    return w;
}

/* Log-probs, ranks and largest tokens of what was drawn. */
static cudaError_t queue_numbers(const draw_rows *a, cudaStream_t stream)
{
    cri_log_prob_rows w = cri_cuda_draw_numbers(a);

    return cri_cuda_log_probs_whole(&w, logit_source{a->logits, a->edited, a->flags}, a->tiles,
                                    stream);
}

cudaError_t cri_cuda_draw_queue(const draw_rows *a, cudaStream_t stream)
{
    const dim3 pieces((unsigned)a->num_pieces, (unsigned)a->num), rows((unsigned)a->num),
        block(WIDTH);
    cudaError_t code = queue_processors(a, stream);

    if (code == cudaSuccess) code = CUDA_LAUNCH(find_max, pieces, block, 0, stream, *a);
    if (code == cudaSuccess && a->has_draw) code = CUDA_LAUNCH(weigh, pieces, block, 0, stream, *a);
    if (code == cudaSuccess && a->has_filter)
        code = CUDA_LAUNCH(collect, pieces, block, 0, stream, *a);
    if (code == cudaSuccess) code = CUDA_LAUNCH(draw_tokens, rows, block, 0, stream, *a);
    return code == cudaSuccess ? queue_numbers(a, stream) : code;
}
