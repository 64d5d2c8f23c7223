/* packing.c -- see packing.h. Dealing is longest-processing-time first on ROLL's workload
 * 24576 L + L^2 (rlvr.md 2.7): the longest sample goes to the rank with the least work that still has
 * room, so that every rank gets the same number of samples (or one more). */
#include "actors/packing.h"
#include "base/rng.h"

#include <stdlib.h>

typedef struct load {
    uint32_t sample;
    double work;
} load;

static int by_work(const void *a, const void *b)
{
    const load *x = a, *y = b;

    if (x->work != y->work) return x->work < y->work ? 1 : -1;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

static void deal_mini(load *loads, size_t num, int num_dp, int32_t *out_rank)
{
    double *work = CR_NEW_ARRAY(double, num_dp);
    size_t *count = CR_NEW_ARRAY(size_t, num_dp),
           room = (num + (size_t)num_dp - 1) / (size_t)num_dp;

    qsort(loads, num, sizeof *loads, by_work);
    for (size_t i = 0; i < num; i++) {
        int best = -1;
        for (int r = 0; r < num_dp; r++)
            if (count[r] < room && (best < 0 || work[r] < work[best])) best = r;
        work[best] += loads[i].work;
        count[best]++;
        out_rank[loads[i].sample] = best;
    }
    cr_free(work);
    cr_free(count);
}

void cr_packing_deal(const size_t *tokens, size_t num_samples, int num_dp, size_t mini_size,
                     uint64_t seed, uint64_t epoch, uint32_t *out_order, int32_t *out_mini,
                     int32_t *out_rank)
{
    load *loads = CR_NEW_ARRAY(load, num_samples);

    for (size_t i = 0; i < num_samples; i++)
        out_order[i] = (uint32_t)i;
    cr_rng_shuffle(seed ^ 0x6d696e69, epoch, out_order, num_samples);
    for (size_t first = 0; first < num_samples; first += mini_size) {
        size_t num = num_samples - first < mini_size ? num_samples - first : mini_size;
        for (size_t i = 0; i < num; i++) {
            uint32_t s = out_order[first + i];
            double length = (double)tokens[s];
            loads[i] = (load){s, 24576 * length + length * length};
            out_mini[s] = (int32_t)(first / mini_size);
        }
        deal_mini(loads, num, num_dp, out_rank);
    }
    cr_free(loads);
}
