/* draw.c -- one id from each row of logits: processors, penalty, temperature, filters, draw (cr_draw).
 *
 * The same code for all instruction sets, so that they keep the same ids; sums over a whole row come
 * from the variant. Without filters it draws from the row itself. Filters work on the few largest
 * candidates, sorted once: largest first, equal ones by id. Without top_k the mass of all others is
 * known from the log-sum of the row, so only as many are sorted as top_p asks for. Penalty and division
 * by the temperature are single operations on a logit, so they round here as in cr_row_processors. */
#include "kernels/draw.h"
#include "kernels/cpu/slots.h"

#include <math.h>
#include <string.h>

typedef struct candidate {
    float z;
    int32_t id;
} candidate;

/* One row that is drawn from, in the memory of a thread. */
typedef struct sampler {
    int64_t n; /* vocabulary entries */
    cri_draw_fn draw;
    cri_log_prob_fn log_prob;
    float *weight; /* of the variant's draw */
    float *z;      /* the row: penalised, divided */
    int32_t *kept; /* before ids are kept: how often an id is in the response */
    candidate *candidates, *sorted;
    uint8_t *seen; /* a bit for each id */
} sampler;

static void *take(char **memory, size_t num_bytes)
{
    void *part = *memory;

    *memory += (num_bytes + 63) / 64 * 64;
    return part;
}

/* Tokens in whole groups of the variant's vectors. */
static size_t padded(int64_t vocab_size)
{
    return (size_t)(vocab_size + 15) / 16 * 16;
}

static size_t bytes_of_thread(int64_t vocab_size)
{
    size_t n = padded(vocab_size), num_arrays = 6,
           bytes = n / 16 * 17 * sizeof(float) + n * (sizeof(float) + sizeof(int32_t)) +
                   n * 2 * sizeof(candidate) + n / 8 + 64 * num_arrays;

    return (bytes + 63) / 64 * 64; /* so that all threads' arrays are aligned */
}

static sampler sampler_in(char *memory, int64_t vocab_size)
{
    sampler s = {.n = vocab_size};
    size_t n = padded(vocab_size);

    s.weight = take(&memory, n / 16 * 17 * sizeof *s.weight);
    s.z = take(&memory, n * sizeof *s.z);
    s.kept = take(&memory, n * sizeof *s.kept);
    s.candidates = take(&memory, n * sizeof *s.candidates);
    s.sorted = take(&memory, n * sizeof *s.sorted);
    s.seen = take(&memory, n / 8);
    return s;
}

/* Once per id however often it occurs: `seen` has a bit for each id. */
static void penalise(float *z, float penalty, const int32_t *ids, size_t num, uint8_t *seen)
{
    for (size_t i = 0; i < num; i++) {
        size_t at = (size_t)ids[i];
        if (seen[at / 8] >> at % 8 & 1) continue;
        seen[at / 8] |= (uint8_t)(1u << at % 8);
        z[at] = z[at] < 0 ? z[at] * penalty : z[at] / penalty;
    }
}

static void penalise_response(sampler *s, const cr_token_processors *e, const int32_t *ids,
                              size_t num)
{
    int32_t *count = s->kept;

    for (size_t i = 0; i < num; i++)
        count[ids[i]] = 0;
    for (size_t i = 0; i < num; i++)
        count[ids[i]]++;
    for (size_t i = 0; i < num; i++) {
        if (count[ids[i]] == 0) continue;
        s->z[ids[i]] -= e->frequency * (float)count[ids[i]];
        s->z[ids[i]] -= e->presence;
        count[ids[i]] = 0;
    }
}

static void allow(sampler *s, const int32_t *ids, size_t num)
{
    memset(s->seen, 0, ((size_t)s->n + 7) / 8);
    for (size_t i = 0; i < num; i++)
        s->seen[ids[i] / 8] |= (uint8_t)(1u << ids[i] % 8);
    for (int64_t i = 0; i < s->n; i++)
        if (!(s->seen[i / 8] >> i % 8 & 1)) s->z[i] = CRI_BANNED;
}

/* s->z: the logits, before the temperature. */
static void edit(sampler *s, const cr_draw_row *row)
{
    const cr_token_processors *e = &row->processors;

    for (size_t i = 0; i < e->num_biased; i++)
        s->z[e->biased[i]] += e->bias[i];
    if (row->penalty != 1) {
        memset(s->seen, 0, ((size_t)s->n + 7) / 8);
        for (int i = 0; i < 2; i++)
            penalise(s->z, row->penalty, row->history[i], row->num_history[i], s->seen);
    }
    if (e->presence != 0 || e->frequency != 0)
        penalise_response(s, e, row->history[1], row->num_history[1]);
    if (e->num_allowed) allow(s, e->allowed, e->num_allowed);
    for (size_t i = 0; i < e->num_banned; i++)
        s->z[e->banned[i]] = CRI_BANNED;
}

/* The k-th largest of z. */
static float kth_greatest(const float *z, size_t n, size_t k, candidate *heap)
{
    size_t num = 0; /* a min-heap of the k largest */

    for (size_t i = 0; i < n; i++) {
        size_t at;
        if (num < k) {
            at = num++;
            heap[at].z = z[i];
            while (at && heap[(at - 1) / 2].z > heap[at].z) {
                candidate swap = heap[at];
                heap[at] = heap[(at - 1) / 2];
                heap[(at - 1) / 2] = swap;
                at = (at - 1) / 2;
            }
            continue;
        }
        if (!(z[i] > heap[0].z)) continue;
        heap[0].z = z[i];
        for (at = 0; 2 * at + 1 < num;) {
            size_t child = 2 * at + 1;
            if (child + 1 < num && heap[child + 1].z < heap[child].z) child++;
            if (heap[at].z <= heap[child].z) break;
            candidate swap = heap[at];
            heap[at] = heap[child];
            heap[child] = swap;
            at = child;
        }
    }
    return heap[0].z;
}

/* Grows as z falls; -0 is 0. */
static uint32_t sort_key(float z)
{
    uint32_t bits;

    z += 0.0f;
    memcpy(&bits, &z, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

/* Those with z >= min, largest first, equal ones in order of ids (radix sort: stable). The result
 * is s->candidates again. */
static size_t collect(sampler *s, float min)
{
    candidate *from = s->candidates, *to = s->sorted;
    size_t num = 0;

    for (size_t i = 0; i < (size_t)s->n; i++)
        if (s->z[i] >= min) from[num++] = (candidate){s->z[i], (int32_t)i};
    for (int shift = 0; shift < 32; shift += 8) {
        size_t start[257] = {0};
        for (size_t i = 0; i < num; i++)
            start[(sort_key(from[i].z) >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++)
            start[b + 1] += start[b];
        for (size_t i = 0; i < num; i++)
            to[start[sort_key(from[i].z) >> shift & 255]++] = from[i];
        candidate *swap = from;
        from = to;
        to = swap;
    }
    return num;
}

/* Turn the first candidates into weights e^(z - max) until their mass reaches `wanted`; how many,
 * and which of them is last. */
static size_t take_mass(candidate *c, size_t num, float max, double wanted, double *mass,
                        candidate *last)
{
    size_t keep;

    *mass = 0;
    for (keep = 0; keep < num && (keep == 0 || *mass < wanted); keep++) {
        *last = c[keep];
        c[keep].z = expf(c[keep].z - max);
        *mass += c[keep].z;
    }
    return keep;
}

static double total_mass(const candidate *c, size_t num, float max)
{
    double total = 0;

    for (size_t i = 0; i < num; i++)
        total += expf(c[i].z - max);
    return total;
}

static int32_t draw_weighted(const candidate *weights, size_t keep, double mass, float u)
{
    double left = (double)u * mass;

    for (size_t i = 0; i + 1 < keep; i++) {
        left -= weights[i].z;
        if (left < 0) return weights[i].id;
    }
    return weights[keep - 1].id;
}

static float largest(const float *z, size_t n, int32_t *id)
{
    float lane[16], max = -INFINITY;
    size_t i = 0;

    for (int l = 0; l < 16; l++)
        lane[l] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++)
            lane[l] = z[i + l] > lane[l] ? z[i + l] : lane[l];
    for (int l = 0; l < 16; l++)
        max = lane[l] > max ? lane[l] : max;
    for (; i < n; i++)
        max = z[i] > max ? z[i] : max;
    for (i = 0; i < n && z[i] != max;)
        i++;
    *id = (int32_t)i;
    return max;
}

/* Ids, ascending, of the first `keep` entries in the order of collect; `last` is the last of them. */
static void list_kept(sampler *s, candidate last, size_t keep)
{
    uint32_t key = sort_key(last.z);
    size_t n = (size_t)s->n, num = 0;

    for (size_t i = 0; i < n; i += 16) {
        size_t end = i + 16 < n ? i + 16 : n;
        float max = -INFINITY;
        for (size_t k = i; k < end; k++)
            max = s->z[k] > max ? s->z[k] : max;
        for (size_t k = i; max >= last.z && k < end; k++)
            if (sort_key(s->z[k]) < key || (sort_key(s->z[k]) == key && (int32_t)k <= last.id))
                s->kept[num++] = (int32_t)k;
    }
    CR_CHECK(num == keep, "%zu ids are kept, and %zu are listed", keep, num);
}

/* top_k, top_p and min_p on s->z, which is divided by the temperature already: the id, the kept
 * ids and their mass. */
static void draw_filtered(sampler *s, const cr_draw_row *row, cr_drawn *out)
{
    candidate *c = s->candidates, last = {0};
    size_t n = (size_t)s->n, num, keep;
    bool has_k = row->top_k > 0 && row->top_k < s->n;
    float max = largest(s->z, n, &out->id), log_prob = 0, min_z = CRI_MAX_BANNED, width = 4;
    double mass, wanted = INFINITY;

    if (isfinite(max) && (!row->is_raw || (!has_k && row->top_p < 1)))
        log_prob = s->log_prob(s->z, s->n, out->id, NULL, row, NULL);
    if (!isfinite(max) || !isfinite(log_prob)) {
        out->id = -1;
        return;
    }
    if (row->min_p > 0) min_z = max + logf(row->min_p);
    if (has_k) {
        num = collect(s, kth_greatest(s->z, n, (size_t)row->top_k, c));
        if (row->top_p < 1) wanted = (double)row->top_p * total_mass(c, num, max);
    } else if (row->top_p < 1) { /* the smallest top set whose mass reaches top_p */
        wanted = (double)row->top_p * exp(-(double)log_prob);
        while ((num = collect(s, max - width)) < n && total_mass(c, num, max) < wanted)
            width = width < 64 ? width * 2 : INFINITY;
    } else {
        num = collect(s, min_z);
    }
    while (num > 1 && c[num - 1].z < min_z)
        num--;
    keep = take_mass(c, num, max, wanted, &mass, &last);
    out->id = draw_weighted(c, keep, mass, row->u);
    if (row->is_raw || keep == n) return;
    list_kept(s, last, keep);
    if (out->kept) cr_buf_add(out->kept, s->kept, keep * sizeof *s->kept);
    out->num_kept = keep;
    out->log_mass = (float)(log(mass) + (double)log_prob);
}

/* What has been drawn, from z: as the model has it, or as it was sampled. */
static void find_numbers(const sampler *s, const float *z, float temperature,
                         const cr_draw_row *row, cr_drawn *out)
{
    static const size_t first = 0;
    const int32_t num_kept = (int32_t)out->num_kept;
    const cr_row_processors processors = {.temperature = temperature,
                                          .penalty = 1,
                                          .kept_first = num_kept ? &first : NULL,
                                          .kept_num = &num_kept,
                                          .kept_ids = s->kept};

    if (out->id < 0 || out->id >= s->n) {
        out->id = -1;
        return;
    }
    out->log_prob =
        s->log_prob(z, s->n, out->id, temperature != 1 || num_kept ? &processors : NULL, row, out);
    for (int64_t i = 0; i < row->num_top; i++)
        if (out->top_log_probs[i] < CRI_MAX_BANNED) out->top_log_probs[i] = -INFINITY;
}

static void draw_row(sampler *s, const float *logits, const cr_draw_row *row, cr_drawn *out)
{
    bool has_processor = cri_draw_has_processor(row), has_filter = cri_draw_has_filter(row, s->n),
         is_raw = row->is_raw || row->temperature == 0;
    const float *z = logits;

    *out = (cr_drawn){
        .id = -1, .kept = out->kept, .top_ids = out->top_ids, .top_log_probs = out->top_log_probs};
    if (has_processor || has_filter) z = memcpy(s->z, logits, (size_t)s->n * sizeof *s->z);
    if (has_processor) edit(s, row);
    if (!has_filter) {
        out->id = s->draw(z, s->n, row->temperature, row->u, s->weight);
        find_numbers(s, is_raw ? logits : z, is_raw ? 1 : row->temperature, row, out);
        return;
    }
    if (row->temperature != 1)
        for (int64_t i = 0; i < s->n; i++)
            s->z[i] /= row->temperature;
    draw_filtered(s, row, out);
    find_numbers(s, is_raw ? logits : z, 1, row, out);
}

void cri_cpu_draw(cr_device *dev, const cr_draw_args *a, cri_draw_fn draw, cri_log_prob_fn log_prob)
{
    int threads = a->num_rows > 1 ? dev->num_threads : 1;
    size_t bytes = bytes_of_thread(a->vocab_size);
    char *memory = cri_scratch(dev, CRI_SLOT_DRAW, bytes * (size_t)threads);
    const float *logits = cr_mem_to_host(a->logits);

    CR_CHECK(a->part == CR_DRAW_ALL, "a part of a draw on a device without graphs");
    CRI_FOR(threads, r, a->num_rows, {
        sampler s = sampler_in(memory + bytes * (size_t)cri_thread(dev), a->vocab_size);
        s.draw = draw;
        s.log_prob = log_prob;
        draw_row(&s, logits + r * a->vocab_size, &a->rows[r], &a->out[r]);
    });
}
