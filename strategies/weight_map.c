/* weight_map.c -- see weight_map.h. */
#include "strategies/weight_map.h"

#include <stdlib.h>

void cr_weight_map_add(cr_weight_map *map, const cr_weight_range *range)
{
    map->range = cr_grow(map->range, map->num, &map->capacity, sizeof *map->range);
    map->range[map->num++] = *range;
}

cr_status cr_weight_map_take(cr_weight_map *map, const cr_model *model, int holder,
                             const cr_weight_range *range, size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++) {
        cr_weight_range r = range[i];
        if (r.param < 0 || (size_t)r.param >= model->num_params || r.begin < 0 ||
            r.begin >= r.end || r.end > model->params[r.param]->num_elems || r.at < 0)
            return cr_fail(
                err, CR_EPEER,
                "rank %d has elements %lld to %lld of parameter %d, which are none of this model",
                holder, (long long)r.begin, (long long)r.end, r.param);
        r.holder = holder;
        cr_weight_map_add(map, &r);
    }
    return CR_OK;
}

void cr_weight_map_free(cr_weight_map *map)
{
    cr_free(map->range);
    *map = (cr_weight_map){0};
}

static int by_param(const void *a, const void *b)
{
    const cr_weight_range *x = a, *y = b;

    if (x->param != y->param) return x->param < y->param ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The first range of the parameter. */
static size_t find(const cr_weight_range *sorted, size_t num, int32_t param)
{
    size_t low = 0, high = num;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (sorted[mid].param < param)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

cr_weight_move *cr_redistribute(const cr_weight_map *from, const cr_weight_map *to, size_t *num)
{
    cr_weight_range *sorted = CR_NEW_ARRAY(cr_weight_range, to->num);
    cr_weight_move *moves = NULL;
    size_t capacity = 0;

    *num = 0;
    for (size_t i = 0; i < to->num; i++)
        sorted[i] = to->range[i];
    if (to->num) qsort(sorted, to->num, sizeof *sorted, by_param);
    for (size_t i = 0; i < from->num; i++) {
        const cr_weight_range *a = &from->range[i], *end = sorted + to->num;
        for (const cr_weight_range *b = sorted + find(sorted, to->num, a->param);
             b < end && b->param == a->param; b++) {
            int64_t begin = a->begin > b->begin ? a->begin : b->begin,
                    stop = a->end < b->end ? a->end : b->end;
            if (begin >= stop) continue;
            moves = cr_grow(moves, *num, &capacity, sizeof *moves);
            moves[(*num)++] =
                (cr_weight_move){.param = a->param,
                                 .from = a->holder,
                                 .to = b->holder,
                                 .begin = begin,
                                 .num = stop - begin,
                                 .from_at = a->at + (begin - a->begin) * a->elem_bytes,
                                 .to_at = b->at + (begin - b->begin) * b->elem_bytes};
        }
    }
    cr_free(sorted);
    return moves;
}
