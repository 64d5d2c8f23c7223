/* sampling.c -- see sampling.h. Without filters the device draws from the row itself; filters sort
 * their candidates once, greatest first, ties by id. */
#include "actors/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cr_sampler_free(cr_sampler *s)
{
    cr_free(s->z);
    cr_free(s->candidates);
    *s = (cr_sampler){0};
}

static int by_logit(const void *a, const void *b)
{
    const struct cr_candidate *x = a, *y = b;

    if (x->z != y->z) return x->z < y->z ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static void penalise(float *z, float penalty, const int32_t *ids, size_t num, const float *raw)
{
    for (size_t i = 0; i < num; i++) { /* from the raw value: once per id however often it occurs */
        float x = raw[ids[i]];
        z[ids[i]] = x < 0 ? x * penalty : x / penalty;
    }
}

/* The k-th greatest of z. */
static float kth_greatest(const float *z, size_t n, size_t k, struct cr_candidate *heap)
{
    size_t num = 0; /* a min-heap of the k greatest */

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

/* top_k, top_p and min_p on logits that are already divided by the temperature. */
static int32_t draw_filtered(cr_sampler *s, const float *z, size_t n, const cr_generating *how,
                             float u)
{
    struct cr_candidate *c = s->candidates;
    size_t num = 0, keep;
    float least = -INFINITY, most;
    double total = 0, mass = 0, left;

    if (how->top_k > 0 && (size_t)how->top_k < n) least = kth_greatest(z, n, (size_t)how->top_k, c);
    for (size_t i = 0; i < n; i++)
        if (z[i] >= least) c[num++] = (struct cr_candidate){z[i], (int32_t)i};
    qsort(c, num, sizeof *c, by_logit);
    most = c[0].z;
    for (size_t i = 0; i < num; i++)
        total += expf(c[i].z - most);
    keep = num;
    if (how->top_p < 1) { /* the smallest top set whose mass reaches top_p; at least one */
        for (keep = 0; keep < num && (keep == 0 || mass < (double)how->top_p * total); keep++)
            mass += expf(c[keep].z - most);
        total = mass;
    }
    if (how->min_p > 0) {
        size_t k = 1;
        while (k < keep && expf(c[k].z - most) >= how->min_p)
            k++;
        keep = k;
        total = 0;
        for (size_t i = 0; i < keep; i++)
            total += expf(c[i].z - most);
    }
    left = (double)u * total;
    for (size_t i = 0; i + 1 < keep; i++) {
        left -= expf(c[i].z - most);
        if (left < 0) return c[i].id;
    }
    return c[keep - 1].id;
}

cr_status cr_sample_token(cr_sampler *s, cr_device *dev, const float *logits, int64_t vocab_size,
                          const cr_generating *how, const int32_t *prompt, size_t num_prompt,
                          const int32_t *output, size_t num_output, float u, int32_t *id,
                          cr_err *err)
{
    size_t n = (size_t)vocab_size;
    bool has_penalty = how->repetition_penalty != 1;
    bool has_filter = how->temperature > 0 && ((how->top_k > 0 && how->top_k < vocab_size) ||
                                               how->top_p < 1 || how->min_p > 0);

    if (!has_penalty && !has_filter)
        return cr_logits_sample(dev, logits, vocab_size, how->temperature, u, id, err);
    if (s->capacity < n) {
        cr_sampler_free(s);
        s->z = CR_NEW_ARRAY(float, n);
        s->candidates = CR_NEW_ARRAY(struct cr_candidate, n);
        s->capacity = n;
    }
    memcpy(s->z, logits, n * sizeof *s->z);
    if (has_penalty) {
        penalise(s->z, how->repetition_penalty, prompt, num_prompt, logits);
        penalise(s->z, how->repetition_penalty, output, num_output, logits);
    }
    if (!has_filter) return cr_logits_sample(dev, s->z, vocab_size, how->temperature, u, id, err);
    if (how->temperature != 1)
        for (size_t i = 0; i < n; i++)
            s->z[i] /= how->temperature;
    *id = draw_filtered(s, s->z, n, how, u);
    return CR_OK;
}
