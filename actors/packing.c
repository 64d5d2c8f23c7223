/* packing.c -- see packing.h. Dealing is longest-processing-time first: the sample with the most work goes to
 * the cell with the least that still has room, so that every rank gets the same number of samples (or one more) where micro-batches count samples. */
#include "actors/packing.h"
#include "base/rng.h"

#include <stdlib.h>

typedef struct load {
    uint32_t sample;
    size_t at; /* place in the order */
    double work;
} load;

static int by_work(const void *a, const void *b)
{
    const load *x = a, *y = b;

    if (x->work != y->work) return x->work < y->work ? 1 : -1;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/* cell[num]: where each sample of the order goes. Every cell takes at most `room` samples. */
static void fill_cells(load *loads, size_t num, size_t num_cells, size_t room, size_t *cell)
{
    size_t *count = CR_NEW_ARRAY(size_t, num_cells);
    double *work = CR_NEW_ARRAY(double, num_cells);

    qsort(loads, num, sizeof *loads, by_work);
    for (size_t i = 0; i < num; i++) {
        size_t best = num_cells;
        for (size_t c = 0; c < num_cells; c++)
            if (count[c] < room && (best == num_cells || work[c] < work[best])) best = c;
        work[best] += loads[i].work;
        count[best]++;
        cell[loads[i].at] = best;
    }
    cr_free(work);
    cr_free(count);
}

/* Cells are micro-batch 0 of each rank, then micro-batch 1 of each rank, .. */
void cr_packing_deal_mini(const double *work, int num_dp, size_t micro_size, uint32_t *order,
                          size_t num, int32_t *out_rank)
{
    size_t dp = (size_t)num_dp, full = dp * micro_size,
           num_micros = full == 0 || num % full ? 1 : num / full, num_cells = num_micros * dp,
           room = micro_size ? (num + num_cells - 1) / num_cells : num;
    size_t *cell = CR_NEW_ARRAY(size_t, num), at = 0;
    load *loads = CR_NEW_ARRAY(load, num);

    for (size_t i = 0; i < num; i++)
        loads[i] = (load){order[i], i, work[order[i]]};
    fill_cells(loads, num, num_cells, room, cell);
    for (size_t i = 0; i < num; i++) {
        loads[i].sample = order[i];
        out_rank[order[i]] = (int32_t)(cell[i] % dp);
    }
    for (size_t m = 0; m < num_micros; m++)
        for (size_t i = 0; i < num; i++)
            if (cell[i] / dp == m) order[at++] = loads[i].sample;
    cr_free(cell);
    cr_free(loads);
}

void cr_packing_deal(const double *work, size_t num_samples, size_t group_size, int num_dp,
                     size_t micro_size, size_t mini_size, uint64_t seed, uint64_t epoch,
                     uint32_t *out_order, int32_t *out_mini, int32_t *out_rank)
{
    size_t num_groups = num_samples / group_size;
    uint32_t *group = CR_NEW_ARRAY(uint32_t, num_groups);

    CR_CHECK(num_groups * group_size == num_samples, "%zu samples in groups of %zu", num_samples,
             group_size);
    for (size_t g = 0; g < num_groups; g++)
        group[g] = (uint32_t)g;
    cr_rng_shuffle(seed ^ 0x6d696e69, epoch, group, num_groups);
    for (size_t i = 0; i < num_samples; i++)
        out_order[i] = group[i / group_size] * (uint32_t)group_size + (uint32_t)(i % group_size);
    cr_free(group);
    for (size_t first = 0; first < num_samples; first += mini_size) {
        size_t num = num_samples - first < mini_size ? num_samples - first : mini_size;
        for (size_t i = 0; i < num; i++)
            out_mini[out_order[first + i]] = (int32_t)(first / mini_size);
        cr_packing_deal_mini(work, num_dp, micro_size, out_order + first, num, out_rank);
    }
}

/* First fit of samples that are sorted by falling work; the number of micro-batches. */
static size_t first_fit(const load *loads, const size_t *tokens, size_t num, size_t max_tokens,
                        size_t *out_micro)
{
    size_t *used = CR_NEW_ARRAY(size_t, num ? num : 1), num_micros = 0;

    for (size_t i = 0; i < num; i++) {
        size_t n = tokens[loads[i].at], m = 0;
        while (m < num_micros && used[m] + n > max_tokens)
            m++;
        num_micros += m == num_micros;
        used[m] += n;
        out_micro[loads[i].at] = m;
    }
    cr_free(used);
    return num_micros;
}

size_t cr_packing_cut(const size_t *tokens, size_t num, size_t max_tokens, size_t min_micros,
                      size_t *out_micro)
{
    load *loads = CR_NEW_ARRAY(load, num ? num : 1);
    size_t num_micros, *even = CR_NEW_ARRAY(size_t, num ? num : 1), *used;
    bool does_fit = true;

    for (size_t i = 0; i < num; i++)
        loads[i] = (load){(uint32_t)i, i, (double)tokens[i]};
    qsort(loads, num, sizeof *loads, by_work);
    num_micros = first_fit(loads, tokens, num, max_tokens, out_micro);
    if (num_micros < min_micros) num_micros = min_micros;
    used = CR_NEW_ARRAY(size_t, num_micros ? num_micros : 1);
    if (num_micros) fill_cells(loads, num, num_micros, num, even);
    for (size_t i = 0; i < num; i++)
        used[even[i]] += tokens[i];
    for (size_t m = 0; m < num_micros; m++)
        does_fit = does_fit && used[m] <= max_tokens;
    for (size_t i = 0; i < num && does_fit; i++)
        out_micro[i] = even[i];
    cr_free(used);
    cr_free(even);
    cr_free(loads);
    return num_micros;
}
