/* sampling.c -- see sampling.h. Without filters the device draws from the row itself. Filters work
 * on the few largest candidates, sorted once: largest first, equal ones by id. Without top_k the
 * mass of all others is known from the device's log-sum, so only as many are sorted as top_p asks
 * for. Penalty and division by the temperature are single operations on a logit, so they round here
 * as they do in the device's cr_row_edits. */
#include "engine/sampling.h"
#include "kernels/attention.h"

#include <math.h>
#include <string.h>

void cr_sampler_free(cr_sampler *s)
{
    if (s->edited) cr_device_free(s->dev, s->edited, s->capacity * sizeof *s->z);
    cr_free(s->z);
    cr_free(s->kept);
    cr_free(s->seen);
    cr_free(s->candidates);
    cr_free(s->sorted);
    *s = (cr_sampler){0};
}

static cr_status reserve(cr_sampler *s, cr_device *dev, size_t num, cr_err *err)
{
    if (s->capacity >= num) return CR_OK;
    cr_sampler_free(s);
    s->dev = dev;
    CR_TRY(cr_device_alloc(dev, num * sizeof *s->z, &s->edited, err));
    s->z = CR_NEW_ARRAY(float, num);
    s->kept = CR_NEW_ARRAY(int32_t, num);
    s->seen = cr_alloc((num + 7) / 8);
    s->candidates = CR_NEW_ARRAY(struct cr_candidate, num);
    s->sorted = CR_NEW_ARRAY(struct cr_candidate, num);
    s->capacity = num;
    return CR_OK;
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

/* The k-th largest of z. */
static float kth_greatest(const float *z, size_t n, size_t k, struct cr_candidate *heap)
{
    size_t num = 0; /* a min-heap of the k largest */

    for (size_t i = 0; i < n; i++) {
        size_t at;
        if (num < k) {
            at = num++;
            heap[at].z = z[i];
            while (at && heap[(at - 1) / 2].z > heap[at].z) {
                struct cr_candidate swap = heap[at];
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
            struct cr_candidate swap = heap[at];
            heap[at] = heap[child];
            heap[child] = swap;
            at = child;
        }
    }
    return heap[0].z;
}

/* Grows as z falls. */
static uint32_t sort_key(float z)
{
    uint32_t bits;

    memcpy(&bits, &z, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

/* Those with z >= least, largest first, equal ones in order of ids (radix sort: stable). The result
 * is s->candidates again. */
static size_t collect(cr_sampler *s, size_t n, float least)
{
    struct cr_candidate *from = s->candidates, *to = s->sorted;
    size_t num = 0;

    for (size_t i = 0; i < n; i++)
        if (s->z[i] >= least) from[num++] = (struct cr_candidate){s->z[i], (int32_t)i};
    for (int shift = 0; shift < 32; shift += 8) {
        size_t start[257] = {0};
        for (size_t i = 0; i < num; i++)
            start[(sort_key(from[i].z) >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++)
            start[b + 1] += start[b];
        for (size_t i = 0; i < num; i++)
            to[start[sort_key(from[i].z) >> shift & 255]++] = from[i];
        struct cr_candidate *swap = from;
        from = to;
        to = swap;
    }
    return num;
}

/* Turn the first candidates into weights e^(z - most) until their mass reaches `wanted`; how many,
 * and which of them is last. */
static size_t take_mass(struct cr_candidate *c, size_t num, float most, double wanted, double *mass,
                        struct cr_candidate *last)
{
    size_t keep;

    *mass = 0;
    for (keep = 0; keep < num && (keep == 0 || *mass < wanted); keep++) {
        *last = c[keep];
        c[keep].z = expf(c[keep].z - most);
        *mass += c[keep].z;
    }
    return keep;
}

static double total_mass(const struct cr_candidate *c, size_t num, float most)
{
    double total = 0;

    for (size_t i = 0; i < num; i++)
        total += expf(c[i].z - most);
    return total;
}

static int32_t draw(const struct cr_candidate *weights, size_t keep, double mass, float u)
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
    float lane[16], most = -INFINITY;
    size_t i = 0;

    for (int l = 0; l < 16; l++)
        lane[l] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++)
            lane[l] = z[i + l] > lane[l] ? z[i + l] : lane[l];
    for (int l = 0; l < 16; l++)
        most = lane[l] > most ? lane[l] : most;
    for (; i < n; i++)
        most = z[i] > most ? z[i] : most;
    for (i = 0; i < n && z[i] != most;)
        i++;
    *id = (int32_t)i;
    return most;
}

/* Ids, ascending, of the first `keep` words in the order of collect; `last` is the last of them. */
static void list_kept(cr_sampler *s, size_t n, struct cr_candidate last, size_t keep)
{
    uint32_t key = sort_key(last.z);
    size_t num = 0;

    for (size_t i = 0; i < n; i += 16) {
        size_t end = i + 16 < n ? i + 16 : n;
        float most = -INFINITY;
        for (size_t k = i; k < end; k++)
            most = s->z[k] > most ? s->z[k] : most;
        for (size_t k = i; most >= last.z && k < end; k++)
            if (sort_key(s->z[k]) < key || (sort_key(s->z[k]) == key && (int32_t)k <= last.id))
                s->kept[num++] = (int32_t)k;
    }
    CR_CHECK(num == keep, "%zu words are kept, and %zu are listed", keep, num);
}

/* top_k, top_p and min_p on s->z, which is divided by the temperature already: the id, the kept
 * words and their mass. */
static cr_status draw_filtered(cr_sampler *s, cr_device *dev, const cr_sample_args *a,
                               cr_drawn *out, cr_err *err)
{
    const cr_generating *how = a->how;
    struct cr_candidate *c = s->candidates, last = {0};
    size_t n = (size_t)a->vocab_size, num, keep;
    bool has_k = how->top_k > 0 && (size_t)how->top_k < n,
         is_raw = how->log_probs == CR_LOG_PROBS_RAW;
    float most = largest(s->z, n, &out->id), log_prob = 0, min_z = -INFINITY, width = 4;
    double mass, wanted = INFINITY;

    if (isfinite(most) && (!is_raw || (!has_k && how->top_p < 1)))
        CR_TRY(cr_logits_log_prob(
            dev,
            &(cr_logits_log_prob_args){s->edited, 1, (int64_t)n, &out->id, NULL, &log_prob, NULL},
            err));
    if (!isfinite(most) || !isfinite(log_prob)) {
        out->id = -1;
        return CR_OK;
    }
    if (how->min_p > 0) min_z = most + logf(how->min_p);
    if (has_k) {
        num = collect(s, n, kth_greatest(s->z, n, (size_t)how->top_k, c));
        if (how->top_p < 1) wanted = (double)how->top_p * total_mass(c, num, most);
    } else if (how->top_p < 1) { /* the smallest top set whose mass reaches top_p */
        wanted = (double)how->top_p * exp(-(double)log_prob);
        while ((num = collect(s, n, most - width)) < n && total_mass(c, num, most) < wanted)
            width = width < 64 ? width * 2 : INFINITY;
    } else {
        num = collect(s, n, min_z);
    }
    while (num > 1 && c[num - 1].z < min_z)
        num--;
    keep = take_mass(c, num, most, wanted, &mass, &last);
    out->id = draw(c, keep, mass, a->u);
    if (is_raw || keep == n) return CR_OK;
    list_kept(s, n, last, keep);
    out->kept_ids = s->kept;
    out->num_kept = keep;
    out->log_mass = (float)(log(mass) + (double)log_prob);
    return CR_OK;
}

/* What has been drawn, from z: as the model has it, or as it was sampled. */
static cr_status find_log_prob(cr_device *dev, const cr_sample_args *a, const cr_mem *z,
                               float temperature, cr_drawn *out, cr_err *err)
{
    static const size_t first = 0;
    const int32_t num_kept = (int32_t)out->num_kept;
    const cr_row_edits edits = {.temperature = temperature,
                                .penalty = 1,
                                .kept_first = num_kept ? &first : NULL,
                                .kept_num = &num_kept,
                                .kept_ids = out->kept_ids};

    if (out->id < 0 || out->id >= a->vocab_size) {
        out->id = -1;
        return CR_OK;
    }
    return cr_logits_log_prob(
        dev,
        &(cr_logits_log_prob_args){z, 1, a->vocab_size, &out->id,
                                   temperature != 1 || num_kept ? &edits : NULL, &out->log_prob,
                                   NULL},
        err);
}

cr_status cr_sample_token(cr_sampler *s, cr_device *dev, const cr_sample_args *a, cr_drawn *out,
                          cr_err *err)
{
    const cr_generating *how = a->how;
    size_t n = (size_t)a->vocab_size;
    bool has_penalty = how->repetition_penalty != 1,
         has_filter = how->temperature > 0 && ((how->top_k > 0 && how->top_k < a->vocab_size) ||
                                               how->top_p < 1 || how->min_p > 0),
         is_raw = how->log_probs == CR_LOG_PROBS_RAW || how->temperature == 0;
    const cr_mem *z = a->logits;

    *out = (cr_drawn){.id = -1};
    if (has_penalty || has_filter) {
        CR_TRY(reserve(s, dev, n, err));
        CR_TRY(cr_download(dev, s->z, z, n * sizeof *s->z, err));
        z = s->edited;
    }
    if (has_penalty) {
        memset(s->seen, 0, (n + 7) / 8);
        penalise(s->z, how->repetition_penalty, a->prompt, a->num_prompt, s->seen);
        penalise(s->z, how->repetition_penalty, a->output, a->num_output, s->seen);
    }
    if (has_filter && how->temperature != 1)
        for (size_t i = 0; i < n; i++)
            s->z[i] /= how->temperature;
    if (has_penalty || has_filter) CR_TRY(cr_upload(dev, s->edited, s->z, n * sizeof *s->z, err));
    if (!has_filter) {
        CR_TRY(cr_logits_sample(
            dev, &(cr_logits_sample_args){z, a->vocab_size, how->temperature, a->u, &out->id},
            err));
        return find_log_prob(dev, a, is_raw ? a->logits : z, is_raw ? 1 : how->temperature, out,
                             err);
    }
    CR_TRY(draw_filtered(s, dev, a, out, err));
    return find_log_prob(dev, a, is_raw ? a->logits : z, 1, out, err);
}
