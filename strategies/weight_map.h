/* weight_map.h -- which rank has which elements of each parameter, and where: one answer for sync, checkpoints and plans.
 *
 *     cri_map_kept       what a rank of a mesh has (fsdp_impl.h): of masters and moments, of frozen shards; cri_map_sent: what a sync sends
 *     cr_weight_map_add  what else has weights: the copy of an engine, the files of a checkpoint
 *     cr_redistribute    two maps meet: each run of elements that one has and the other wants, with its place in both
 *
 * Ownership: a map owns its ranges, {0} is empty. Threads: any, a map is not changed after it is made.
 */
#ifndef CR_WEIGHT_MAP_H
#define CR_WEIGHT_MAP_H

#include "models/models.h"

typedef struct cr_weight_range {
    int32_t param;      /* index in the model's parameters */
    int32_t holder;     /* a rank; 0 where there is one */
    int64_t begin, end; /* elements of the parameter */
    int64_t at;         /* byte of element `begin`, in the holder's buffer or file */
    int64_t
        elem_bytes; /* 0: all elements are found from `at` by other means (models/weights.h, cr_stacked) */
} cr_weight_range;

typedef struct cr_weight_map {
    cr_weight_range *range; /* owned */
    size_t num, capacity;
} cr_weight_map;

void cr_weight_map_add(cr_weight_map *map, const cr_weight_range *range);
/* num ranges as another rank wrote them. CR_EPEER: one of them is not of this model. */
CR_MUST cr_status cr_weight_map_take(cr_weight_map *map, const cr_model *model, int holder,
                                     const cr_weight_range *range, size_t num, cr_err *err);
void cr_weight_map_free(cr_weight_map *map);

/* Elements [begin, begin + num) of a parameter, at byte from_at of `from` and to_at of `to`. */
typedef struct cr_weight_move {
    int32_t param, from, to; /* from, to: holders */
    int64_t begin, num, from_at, to_at;
} cr_weight_move;

/* All elements that both maps have, by holder of `from`, then in the order of its ranges. Of a range of `from` in several of `to`, or of
 * several holders in one of `to`, each part is a move. The result is owned by the caller. */
cr_weight_move *cr_redistribute(const cr_weight_map *from, const cr_weight_map *to, size_t *num);

#endif
