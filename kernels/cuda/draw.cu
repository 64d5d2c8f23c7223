/* draw.cu -- one id from each row of logits: edits, temperature, filters, draw, and the numbers of what was drawn (cr_draw).
 * The logits stay on the device; ids, numbers and the lists of kept ids come to the host.
 *
 * Mapping: a block of 512 threads a row. Probabilities are whole numbers, e^(z - most) in units of 2^-42, so that their sums
 * are exact and any order of threads, and of atomics in shared memory, gives the same bits: a row does not depend on the
 * other rows. Without filters the id is found in the order of ids: sums of 2048 stretches, then inside of one. With
 * filters words are in the order of falling logits, equal ones by id: three histograms of 2048 bins (11, 11, 10 bits of the
 * key) find the place where a count (top_k) or a mass (top_p, u) is reached; nothing is sorted. A kept word is one up to that
 * place, which is all that words.cu needs to know for the log-prob, rank and largest words: the bits of head.cu. The same ids
 * as on the cpu but where the last bits of a sum decide.
 *
 * Bytes: rows with edits are copied (8 bytes a logit, and as many for marks). Then a row is read 2 times without filters, 10
 * with top_p, 13 with top_k and top_p, once by words.cu: 0.6 MB a row of 152k words. 128 rows are 78 MB: those that L2 (50 MB)
 * does not hold come from memory, 1.0 GB in all for top_p: 0.3 ms on H100 (3.35 TB/s), 0.2 ms on H200 (4.8 TB/s); 0.05 ms
 * without filters. FLOPs: an expf a logit and pass, below a tenth of that. Atomics in shared memory: two a
 * logit and histogram; the first digit of logits has about 30 bins in use, so about 4 lanes of a warp meet in one: this is
 * the likely limit of filtered rows. Shared memory 24.3 KiB, 64 registers: 2 blocks an SM.
 */
#include "kernels/cuda/words.h"

#include "kernels/draw.h"

#include <math.h>

enum { CHUNK = 128, WIDTH = 512, WARPS = WIDTH / 32, BINS = 2048 };
#define ALL_LANES 0xffffffffu

typedef unsigned long long mass_t; /* of words, in units of 2^-42 */

enum list { PROMPT, RESPONSE, ALLOWED, BANNED, BIASED, NUM_LISTS };
/* What edits have to do with a word: so often in the response, and a bit for each other list. */
enum {
    COUNT = (1 << 24) - 1,
    MARK_PROMPT = 1 << 24,
    MARK_ALLOWED = 1 << 25,
    MARK_BANNED = 1 << 26,
    MARK_BIASED = 1 << 27
};

/* A row of cr_draw_row as kernels read it. */
struct draw_row {
    const float *logits, *z; /* z: the logits, or `edited` */
    float *edited;           /* [V] and [V]; NULL: no edits */
    int32_t *marks;
    const int32_t *ids[NUM_LISTS];
    size_t num_ids[NUM_LISTS];
    const float *bias;                                                /* of ids[BIASED] */
    float temperature, penalty, presence, frequency, top_p, min_p, u; /* temperature 0: 1 here */
    int64_t top_k;                                                    /* 0: off */
    bool is_greedy, has_filter, is_raw, is_listed;                    /* listed: its kept ids */
};

struct chosen {
    int32_t id; /* -1: the logits are not finite */
    float log_mass;
    int64_t num_kept; /* 0: all, or is_raw */
};

/* ---- edits ---- */

static __global__ void mark_words(const draw_row *rows)
{
    const draw_row &d = rows[blockIdx.x];
    const int marks[NUM_LISTS] = {MARK_PROMPT, 0, MARK_ALLOWED, MARK_BANNED, MARK_BIASED};

    if (!d.edited) return;
    for (int list = 0; list < NUM_LISTS; list++)
        for (size_t i = threadIdx.x; i < d.num_ids[list]; i += blockDim.x)
            if (list == RESPONSE)
                atomicAdd(d.marks + d.ids[list][i], 1);
            else
                atomicOr(d.marks + d.ids[list][i], marks[list]);
}

/* Each operation rounds by itself, as on the cpu. */
static __global__ void edit_words(const draw_row *rows, int64_t vocab_size)
{
    const draw_row &d = rows[blockIdx.y];
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (!d.edited || i >= vocab_size) return;
    int32_t mark = d.marks[i], count = mark & COUNT;
    float z = d.logits[i];
    if (mark & MARK_BIASED) {
        size_t at = 0;
        while (d.ids[BIASED][at] != i)
            at++;
        z = __fadd_rn(z, d.bias[at]);
    }
    if (d.penalty != 1.0f && (count || mark & MARK_PROMPT))
        z = z < 0.0f ? z * d.penalty : z / d.penalty;
    if (count && (d.presence != 0.0f || d.frequency != 0.0f)) {
        z = __fadd_rn(z, -__fmul_rn(d.frequency, (float)count));
        z = __fadd_rn(z, -d.presence);
    }
    if ((d.num_ids[ALLOWED] && !(mark & MARK_ALLOWED)) || mark & MARK_BANNED) z = CRI_BANNED;
    d.edited[i] = z;
}

/* ---- sums of a block ---- */

/* What is drawn from: z / temperature. */
struct source {
    const float *z;
    float temperature;
    int64_t num;
};

static __device__ __forceinline__ float word(const source &s, int64_t i)
{
    return s.temperature != 1.0f ? s.z[i] / s.temperature : s.z[i];
}

static __device__ __forceinline__ mass_t mass_of(float z, float most)
{
    return (mass_t)(expf(z - most) * 0x1p42f);
}

/* Sums of lanes 0 .. this one. */
static __device__ __forceinline__ mass_t sum_up_to(mass_t x)
{
    for (int d = 1; d < 32; d *= 2) {
        mass_t other = __shfl_up_sync(ALL_LANES, x, d);
        if ((int)(threadIdx.x % 32) >= d) x += other;
    }
    return x;
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

/* ---- the place where a sum reaches its goal ---- */

/* Words of one key, or of one bin; count and mass of all words before them. */
struct place {
    uint32_t key;
    mass_t count_before, mass_before, count, mass;
};

struct bins {
    int32_t *count; /* [BINS], as mass */
    mass_t *mass;
    place *found;
    int32_t *counts; /* [WARPS] */
};

/* The bin where the running count, or mass, is goal or more; if none is, the last that has words. goal > 0. */
static __device__ place find_bin(const bins &b, bool is_by_mass, mass_t goal)
{
    enum { EACH = BINS / 32 };
    int lane = threadIdx.x % 32, first = lane * EACH;
    mass_t count = 0, mass = 0;

    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < EACH; i++) { /* lanes begin in different banks */
            count += (mass_t)b.count[first + (i + lane) % EACH];
            mass += b.mass[first + (i + lane) % EACH];
        }
        mass_t before = sum_up_to(count), mass_before = sum_up_to(mass);
        uint32_t reached = __ballot_sync(ALL_LANES, (is_by_mass ? mass_before : before) >= goal),
                 filled = __ballot_sync(ALL_LANES, count > 0);
        before -= count;
        mass_before -= mass;
        for (int i = first; lane == (reached ? __ffs((int)reached) - 1 : 31 - __clz((int)filled));
             i++) {
            mass_t here = (mass_t)b.count[i], mass_here = b.mass[i];
            if (here == 0) continue;
            count -= here;
            if (count == 0 || (is_by_mass ? mass_before + mass_here : before + here) >= goal) {
                *b.found = place{(uint32_t)i, before, mass_before, here, mass_here};
                break;
            }
            before += here;
            mass_before += mass_here;
        }
    }
    __syncthreads();
    return *b.found; /* written again after a barrier */
}

/* The same for words with keys up to `limit`, in the order of keys. */
static __device__ place find_key(const bins &b, const source &s, float most, uint32_t limit,
                                 bool is_by_mass, mass_t goal)
{
    place at = {};

    for (int level = 0; level < 3; level++) {
        int shift = level == 2 ? 0 : 21 - 11 * level, bits = level == 2 ? 10 : 11;
        for (int i = threadIdx.x; i < BINS; i += WIDTH) {
            b.count[i] = 0;
            b.mass[i] = 0;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < s.num; i += WIDTH) {
            float z = word(s, i);
            uint32_t key = falling_key(z);
            if (key > limit || (level && key >> (shift + bits) != at.key)) continue;
            atomicAdd(&b.count[key >> shift & ((1u << bits) - 1)], 1);
            atomicAdd(&b.mass[key >> shift & ((1u << bits) - 1)], mass_of(z, most));
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

/* The id of word number nth of those with this key, by id. */
static __device__ int32_t nth_id(const bins &b, const source &s, uint32_t key, mass_t nth)
{
    for (int64_t i0 = 0;; i0 += WIDTH) {
        int64_t i = i0 + threadIdx.x;
        int total, before;
        bool is_one = i < s.num && falling_key(word(s, i)) == key;
        before = place_among(is_one, b.counts, total);
        if (nth >= (mass_t)total) {
            nth -= (mass_t)total;
            continue;
        }
        if (is_one && (mass_t)before == nth) b.found->key = (uint32_t)i;
        __syncthreads();
        uint32_t id = b.found->key;
        __syncthreads(); /* found may be used again */
        return (int32_t)id;
    }
}

/* ---- one row ---- */

/* The first id, in the order of ids, whose running mass is above u of all. */
static __device__ int32_t draw_in_order(const bins &b, const source &s, float most, float u,
                                        mass_t *shared)
{
    int64_t stretch = ((s.num + BINS - 1) / BINS + 31) / 32 * 32;
    int lane = threadIdx.x % 32;
    mass_t all = 0, goal;

    for (int bin = threadIdx.x / 32; bin < BINS; bin += WARPS) {
        int64_t begin = bin * stretch, end = begin + stretch < s.num ? begin + stretch : s.num;
        mass_t sum = 0;
        for (int64_t i = begin + lane; i < end; i += 32)
            sum += mass_of(word(s, i), most);
        if (begin < s.num) sum = group_sum<32>(sum, (mass_t *)NULL);
        if (lane == 0) {
            b.mass[bin] = sum;
            b.count[bin] = begin < end ? (int32_t)(end - begin) : 0;
            all += sum;
        }
    }
    all = group_sum<WIDTH>(all, shared);
    goal = (mass_t)((double)u * (double)all) + 1;
    place at = find_bin(b, /*is_by_mass=*/true, goal);
    goal -= at.mass_before;
    __syncthreads(); /* found may be used again */
    if (threadIdx.x < 32)
        for (int64_t i0 = (int64_t)at.key * stretch;; i0 += 32) {
            int64_t i = i0 + lane;
            mass_t sum = sum_up_to(i < s.num ? mass_of(word(s, i), most) : 0),
                   last = __shfl_sync(ALL_LANES, sum, 31);
            uint32_t reached = __ballot_sync(ALL_LANES, sum >= goal);
            if (reached) {
                if (lane == __ffs((int)reached) - 1) b.found->key = (uint32_t)i;
                break;
            }
            goal -= last;
        }
    __syncthreads();
    return (int32_t)b.found->key;
}

/* top_k with ties, top_p, min_p, then the draw, in the order of falling z. last: of the kept words. */
static __device__ chosen draw_filtered(const bins &b, const source &s, const draw_row &d,
                                       float most, mass_t *shared, word_limit *last)
{
    float min_z = d.min_p > 0.0f ? most + logf(d.min_p) : CRI_MOST_BANNED;
    uint32_t limit = max(falling_key(most), falling_key(min_z));
    mass_t all = 0, base, wanted = ~0ull, goal, each, take, mass;
    place at;
    chosen c = {};

    for (int64_t i = threadIdx.x; i < s.num; i += WIDTH)
        all += mass_of(word(s, i), most);
    base = all = group_sum<WIDTH>(all, shared);
    if (d.top_k > 0) {
        at = find_key(b, s, most, UINT32_MAX, /*is_by_mass=*/false, (mass_t)d.top_k);
        base = at.mass_before + at.mass;
        limit = min(limit, at.key);
    }
    if (d.top_p < 1.0f) wanted = max((mass_t)ceil((double)d.top_p * (double)base), (mass_t)1);
    at = find_key(b, s, most, limit, /*is_by_mass=*/true, wanted);
    each = at.mass / at.count;
    take = at.count;
    if (wanted - at.mass_before < at.mass) take = (wanted - at.mass_before + each - 1) / each;
    mass = at.mass_before + take * each;
    c.num_kept = (int64_t)(at.count_before + take);
    last->key = at.key;
    last->id = nth_id(b, s, at.key, take - 1);
    goal = (mass_t)((double)d.u * (double)mass) + 1;
    at = find_key(b, s, most, last->key, /*is_by_mass=*/true, goal);
    c.id = nth_id(b, s, at.key, (goal - at.mass_before - 1) / (at.mass / at.count));
    c.log_mass = (float)log((double)mass / (double)all);
    if (!d.is_raw && c.num_kept < s.num) return c;
    c.num_kept = 0;
    c.log_mass = 0.0f;
    *last = word_limit{UINT32_MAX, INT32_MAX};
    return c;
}

static __global__ void __launch_bounds__(WIDTH, 2)
    draw_words(const draw_row *rows, int64_t vocab_size, chosen *out, word_limit *limits,
               int32_t *labels)
{
    SHARED(int32_t, count, BINS);
    SHARED(mass_t, mass, BINS);
    SHARED(mass_t, sums, WARPS);
    SHARED(place, found, 1);
    SHARED(float, zs, WARPS);
    SHARED(int32_t, ids, WARPS);
    const draw_row &d = rows[blockIdx.x];
    const source s = {d.z, d.temperature, vocab_size};
    const bins b = {count, mass, found, ids};
    word_limit last = {UINT32_MAX, INT32_MAX};
    chosen c = {};
    float most = -INFINITY;
    int32_t id = INT32_MAX;

    for (int64_t i = threadIdx.x; i < vocab_size; i += WIDTH) {
        float z = word(s, i);
        if (isnan(z)) z = INFINITY;
        if (is_before(z, (int32_t)i, most, id)) most = z, id = (int32_t)i;
    }
    block_first<WIDTH>(most, id, zs, ids);
    if (!(fabsf(most) < INFINITY))
        c.id = -1;
    else if (d.is_greedy)
        c.id = id;
    else if (!d.has_filter)
        c.id = draw_in_order(b, s, most, d.u, sums);
    else
        c = draw_filtered(b, s, d, most, sums, &last);
    if (threadIdx.x) return;
    out[blockIdx.x] = c;
    limits[blockIdx.x] = last;
    labels[blockIdx.x] = c.id < 0 ? 0 : c.id;
}

/* The logit of what was drawn, before all others: for its rank. */
static __global__ void take_labels(cri_word_rows w, word_state *state)
{
    int64_t r = threadIdx.x;
    float x, slope;

    if (r >= w.num_rows) return;
    x = w.sources[r][w.labels[r]];
    (void)edit_word(w.edits, r, w.labels[r], x, slope);
    state[r].label = x;
}

/* The kept ids of all listed rows, one row's after the other's, ascending. */
static __global__ void __launch_bounds__(WIDTH)
    list_kept(const draw_row *rows, const chosen *all, const word_limit *limits, int64_t vocab_size,
              int32_t *list)
{
    SHARED(int32_t, counts, WARPS);
    const draw_row &d = rows[blockIdx.x];
    const source s = {d.z, d.temperature, vocab_size};
    const word_limit last = limits[blockIdx.x];

    if (!d.is_listed || all[blockIdx.x].num_kept == 0) return;
    for (unsigned r = 0; r < blockIdx.x; r++)
        list += rows[r].is_listed ? all[r].num_kept : 0;
    for (int64_t i0 = 0; i0 < vocab_size; i0 += WIDTH) {
        int64_t i = i0 + threadIdx.x;
        uint32_t key = i < vocab_size ? falling_key(word(s, i)) : 0;
        bool is_kept = i < vocab_size && (key < last.key || (key == last.key && i <= last.id));
        int total, before = place_among(is_kept, counts, total);
        if (is_kept) list[before] = (int32_t)i;
        list += total;
    }
}

/* ---- the operation ---- */

/* Rows first .. first + num - 1 of a call, and the scratch of their kernels. */
struct chunk {
    const cr_draw_args *a;
    int64_t first, num, num_edited, num_listed, num_top;
    bool has_rank;
    size_t num_ids; /* of all lists, as words of 4 bytes; a bias is one, too */
    draw_row *rows;
    chosen *all;
    word_limit *limits;
    word_state *state;
    const float **sources;
    float *temperatures, *log_prob, *top_log_probs, *edited;
    int32_t *labels, *rank, *top_ids, *ids, *words; /* words: marks, then kept ids */
};

static const cr_draw_row *row_of(const chunk *c, int64_t r)
{
    return &c->a->rows[c->first + r];
}

/* The ids that edits of this row need. */
static void lists_of(const cr_draw_row *row, const int32_t **ids, size_t *num)
{
    const cr_word_edits *e = &row->edits;
    bool has_counts = row->penalty != 1 || e->presence != 0 || e->frequency != 0;
    const int32_t *lists[NUM_LISTS] = {row->history[0], row->history[1], e->allowed, e->banned,
                                       e->biased};
    const size_t nums[NUM_LISTS] = {row->penalty != 1 ? row->num_history[0] : 0,
                                    has_counts ? row->num_history[1] : 0, e->num_allowed,
                                    e->num_banned, e->num_biased};

    memcpy(ids, lists, sizeof lists);
    memcpy(num, nums, sizeof nums);
}

/* The next array of num in scratch that begins at `base`; NULL: only `at` moves. */
template <class T> static void carve(char *base, size_t *at, T **array, int64_t num)
{
    *array = base ? (T *)(void *)(base + *at) : NULL;
    *at += ((size_t)num * sizeof(T) + 255) / 256 * 256;
}

static size_t lay_out(chunk *c, char *base)
{
    int64_t v = c->a->vocab_size, tops = c->num * c->num_top,
            num_words = c->num_edited > c->num_listed ? c->num_edited : c->num_listed;
    size_t at = 0;

    carve(base, &at, &c->rows, c->num);
    carve(base, &at, &c->all, c->num);
    carve(base, &at, &c->limits, c->num);
    carve(base, &at, &c->state, c->num);
    carve(base, &at, &c->sources, c->num);
    carve(base, &at, &c->temperatures, c->num);
    carve(base, &at, &c->log_prob, c->num);
    carve(base, &at, &c->labels, c->num);
    carve(base, &at, &c->rank, c->num);
    carve(base, &at, &c->top_ids, tops);
    carve(base, &at, &c->top_log_probs, tops);
    carve(base, &at, &c->ids, (int64_t)c->num_ids);
    carve(base, &at, &c->edited, c->num_edited * v);
    carve(base, &at, &c->words, num_words * v);
    return at;
}

static cr_status make_chunk(cr_device *dev, chunk *c, cr_err *err)
{
    void *mem;

    for (int64_t r = 0; r < c->num; r++) {
        const cr_draw_row *row = row_of(c, r);
        const int32_t *ids[NUM_LISTS];
        size_t num[NUM_LISTS];
        c->has_rank |= row->has_rank;
        c->num_top = c->num_top > row->num_top ? c->num_top : row->num_top;
        c->num_listed += c->a->out[c->first + r].kept && cri_draw_has_filter(row, c->a->vocab_size);
        if (!cri_draw_has_edit(row)) continue;
        c->num_edited++;
        lists_of(row, ids, num);
        for (int list = 0; list < NUM_LISTS; list++)
            c->num_ids += num[list] * (list == BIASED ? 2 : 1);
    }
    CR_TRY(cri_cuda_scratch(dev, lay_out(c, NULL), &mem, err));
    (void)lay_out(c, (char *)mem);
    return CR_OK;
}

/* Words of 4 bytes to the next place in c->ids, which *at counts. */
static cr_status upload_words(cr_device *dev, const chunk *c, size_t *at, const void *words,
                              size_t num, cr_err *err)
{
    int32_t *to = c->ids + *at;

    *at += num;
    return num ? dev->kernels->upload(dev, cr_mem_of_host(to), words, num * 4, err) : CR_OK;
}

/* Rows and the lists of their edits go to the device. */
static cr_status upload_rows(cr_device *dev, const chunk *c, cr_err *err)
{
    draw_row rows[CHUNK];
    const float *sources[CHUNK];
    float temperatures[CHUNK];
    int64_t v = c->a->vocab_size, edited = 0;
    size_t at = 0;

    for (int64_t r = 0; r < c->num; r++) {
        const cr_draw_row *row = row_of(c, r);
        const cr_word_edits *e = &row->edits;
        const int32_t *ids[NUM_LISTS];
        draw_row d = {};
        d.z = d.logits = in<float>(c->a->logits) + (c->first + r) * v;
        d.temperature = row->temperature == 0 ? 1 : row->temperature;
        d.penalty = row->penalty, d.presence = e->presence, d.frequency = e->frequency;
        d.top_p = row->top_p, d.min_p = row->min_p, d.u = row->u;
        d.top_k = row->top_k < v ? row->top_k : 0;
        d.is_greedy = row->temperature == 0;
        d.is_raw = row->is_raw || d.is_greedy;
        d.has_filter = cri_draw_has_filter(row, v);
        d.is_listed = d.has_filter && c->a->out[c->first + r].kept;
        if (cri_draw_has_edit(row)) {
            d.z = d.edited = c->edited + edited * v;
            d.marks = c->words + edited++ * v;
            lists_of(row, ids, d.num_ids);
            for (int list = 0; list < NUM_LISTS; list++) {
                d.ids[list] = c->ids + at;
                CR_TRY(upload_words(dev, c, &at, ids[list], d.num_ids[list], err));
            }
            d.bias = (const float *)(const void *)(c->ids + at);
            CR_TRY(upload_words(dev, c, &at, e->bias, e->num_biased, err));
        }
        rows[r] = d;
        sources[r] = d.is_raw ? d.logits : d.z;
        temperatures[r] = d.is_raw ? 1 : d.temperature;
    }
    CR_TRY(dev->kernels->upload(dev, cr_mem_of_host(c->rows), rows, (size_t)c->num * sizeof *rows,
                                err));
    CR_TRY(dev->kernels->upload(dev, cr_mem_of_host(c->sources), sources,
                                (size_t)c->num * sizeof *sources, err));
    return dev->kernels->upload(dev, cr_mem_of_host(c->temperatures), temperatures,
                                (size_t)c->num * sizeof *temperatures, err);
}

static cudaError_t edit_rows(const chunk *c, cudaStream_t stream)
{
    int64_t v = c->a->vocab_size;
    cudaError_t code;

    if (c->num_edited == 0) return cudaSuccess;
    code = cudaMemsetAsync(c->words, 0, (size_t)(c->num_edited * v) * sizeof *c->words, stream);
    if (code != cudaSuccess) return code;
    code = CUDA_LAUNCH(mark_words, dim3((unsigned)c->num), dim3(256), 0, stream,
                       (const draw_row *)c->rows);
    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(edit_words, dim3((unsigned)((v + 255) / 256), (unsigned)c->num), dim3(256),
                       0, stream, (const draw_row *)c->rows, v);
}

/* Log-probs, ranks and largest words of what was drawn, and the lists of kept ids. */
static cudaError_t find_numbers(const chunk *c, cudaStream_t stream)
{
    cri_word_rows w = {};
    cudaError_t code;

    w.num_rows = c->num;
    w.vocab_size = c->a->vocab_size;
    w.sources = c->sources;
    w.labels = c->labels;
    w.edits.is_on = true;
    w.edits.penalty = 1.0f;
    w.edits.temperatures = c->temperatures;
    w.edits.limits = c->limits;
    w.log_prob = c->log_prob;
    w.rank = c->has_rank ? c->rank : NULL;
    w.num_top = c->num_top;
    w.top_ids = c->top_ids;
    w.top_log_prob = c->top_log_probs;
    code = cri_cuda_words_begin(&w, c->state, stream);
    if (code == cudaSuccess && c->has_rank)
        code = CUDA_LAUNCH(take_labels, dim3(1), dim3(CHUNK), 0, stream, w, c->state);
    if (code == cudaSuccess)
        code = cri_cuda_words_take(&w, c->state, NULL, 0, 0, w.vocab_size, stream);
    if (code == cudaSuccess) code = cri_cuda_words_end(&w, c->state, stream);
    if (code == cudaSuccess && c->num_listed)
        code = CUDA_LAUNCH(list_kept, dim3((unsigned)c->num), dim3(WIDTH), 0, stream,
                           (const draw_row *)c->rows, (const chosen *)c->all,
                           (const word_limit *)c->limits, w.vocab_size, c->words);
    return code;
}

static cr_status download(cr_device *dev, void *to, const void *from, size_t num_bytes, cr_err *err)
{
    if (num_bytes == 0) return CR_OK;
    return dev->kernels->download(dev, to, cr_mem_of_host((void *)(uintptr_t)from), num_bytes, err);
}

/* Results that rows have many of. */
struct many {
    int32_t *top_ids;
    float *top_log_probs;
    int32_t *kept;
};

static void put_row(const chunk *c, int64_t r, const chosen *got, const many *host,
                    size_t first_kept, cr_drawn *out)
{
    const cr_draw_row *row = row_of(c, r);
    size_t num_top = (size_t)row->num_top;

    out->log_mass = got->log_mass;
    out->num_kept = (size_t)got->num_kept;
    if (out->kept && out->num_kept)
        cr_buf_add(out->kept, host->kept + first_kept, out->num_kept * sizeof *host->kept);
    if (num_top == 0) return;
    memcpy(out->top_ids, host->top_ids + r * c->num_top, num_top * sizeof *out->top_ids);
    for (size_t i = 0; i < num_top; i++) {
        float x = host->top_log_probs[(size_t)(r * c->num_top) + i];
        out->top_log_probs[i] = x < CRI_MOST_BANNED ? -INFINITY : x;
    }
}

static cr_status download_many(cr_device *dev, const chunk *c, size_t num_kept, void *memory,
                               many *host, cr_err *err)
{
    size_t tops = (size_t)(c->num * c->num_top);

    host->top_ids = (int32_t *)memory;
    host->top_log_probs = (float *)memory + tops;
    host->kept = (int32_t *)memory + 2 * tops;
    CR_TRY(download(dev, host->top_ids, c->top_ids, tops * 4, err));
    CR_TRY(download(dev, host->top_log_probs, c->top_log_probs, tops * 4, err));
    return download(dev, host->kept, c->words, num_kept * 4, err);
}

static cr_status download_rows(cr_device *dev, const chunk *c, cr_err *err)
{
    chosen all[CHUNK];
    float log_prob[CHUNK];
    int32_t rank[CHUNK] = {0};
    size_t num = (size_t)c->num, num_kept = 0, first_kept = 0;
    cr_drawn *out = c->a->out + c->first;
    many host;
    void *memory;

    CR_TRY(download(dev, all, c->all, num * sizeof *all, err));
    CR_TRY(download(dev, log_prob, c->log_prob, num * sizeof *log_prob, err));
    if (c->has_rank) CR_TRY(download(dev, rank, c->rank, num * sizeof *rank, err));
    for (size_t r = 0; r < num; r++)
        num_kept += out[r].kept ? (size_t)all[r].num_kept : 0;
    memory = cr_alloc((2 * num * (size_t)c->num_top + num_kept) * 4 + 1);
    if (download_many(dev, c, num_kept, memory, &host, err) == CR_OK)
        for (size_t r = 0; r < num; r++) {
            out[r].id = all[r].id;
            out[r].log_prob = log_prob[r];
            out[r].rank = row_of(c, (int64_t)r)->has_rank ? rank[r] : 0;
            if (out[r].id >= 0) put_row(c, (int64_t)r, &all[r], &host, first_kept, &out[r]);
            first_kept += out[r].kept ? (size_t)all[r].num_kept : 0;
        }
    cr_free(memory);
    return err->status;
}

cr_status cri_cuda_draw(cr_device *dev, const cr_draw_args *a, cr_err *err)
{
    cudaStream_t stream = cri_cuda_stream(dev);

    for (int64_t first = 0; first < a->num_rows; first += CHUNK) {
        chunk c = {};
        c.a = a;
        c.first = first;
        c.num = a->num_rows - first < CHUNK ? a->num_rows - first : (int64_t)CHUNK;
        CR_TRY(make_chunk(dev, &c, err));
        CR_TRY(upload_rows(dev, &c, err));
        CR_TRY(launched("draw", edit_rows(&c, stream), err));
        CR_TRY(launched("draw",
                        CUDA_LAUNCH(draw_words, dim3((unsigned)c.num), dim3(WIDTH), 0, stream,
                                    (const draw_row *)c.rows, a->vocab_size, c.all, c.limits,
                                    c.labels),
                        err));
        CR_TRY(launched("draw", find_numbers(&c, stream), err));
        CR_TRY(download_rows(dev, &c, err));
    }
    return CR_OK;
}
