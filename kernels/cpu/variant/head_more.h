/* head_more.h -- what else the head says of a row, taken in tile by tile: the rank of the label, the largest
 * logits, and those of chosen tokens.
 *
 * Logits are kept where their log-probs will be, and become log-probs when the log-sum of the row is known.
 * The largest ones of a row are a heap whose root is the one to go next: the smallest, of equal ones the one
 * with the largest id. Tiles come in the order of ids, so an equal logit that comes later never replaces one.
 */
#ifndef CR_HEAD_MORE_H
#define CR_HEAD_MORE_H

#include "kernels/cpu/variant/row_processors.h"

#include <math.h>

/* Of one row; NULL: not wanted. */
typedef struct head_more {
    int32_t *rank;
    float *top_z; /* [max_top] */
    int32_t *top_ids;
    int64_t num_top, max_top; /* so far; at most */
    float *chosen_z;          /* [num_chosen] */
    const int32_t *chosen_ids;
    int64_t num_chosen;
} head_more;

CR_INLINE bool goes_before(float z, int32_t id, float other_z, int32_t other_id)
{
    return z < other_z || (z == other_z && id > other_id);
}

/* Put (z, id) into the hole at the root of a heap of num. */
CR_INLINE void sift_down(head_more *m, int64_t num, float z, int32_t id)
{
    int64_t at = 0;

    for (int64_t child; (child = 2 * at + 1) < num; at = child) {
        if (child + 1 < num && goes_before(m->top_z[child + 1], m->top_ids[child + 1],
                                           m->top_z[child], m->top_ids[child]))
            child++;
        if (!goes_before(m->top_z[child], m->top_ids[child], z, id)) break;
        m->top_z[at] = m->top_z[child];
        m->top_ids[at] = m->top_ids[child];
    }
    m->top_z[at] = z;
    m->top_ids[at] = id;
}

CR_INLINE void sift_up(head_more *m, int64_t at, float z, int32_t id)
{
    for (int64_t parent; at > 0; at = parent) {
        parent = (at - 1) / 2;
        if (!goes_before(z, id, m->top_z[parent], m->top_ids[parent])) break;
        m->top_z[at] = m->top_z[parent];
        m->top_ids[at] = m->top_ids[parent];
    }
    m->top_z[at] = z;
    m->top_ids[at] = id;
}

CR_INLINE void take_top(head_more *m, const processed_tile *t, int64_t v0, const float *z)
{
    for (int64_t i = 0; i < t->num; i += V_LANES) {
        int64_t end = t->num - i < V_LANES ? t->num : i + V_LANES;
        if (m->num_top == m->max_top && end == i + V_LANES &&
            !(v_greatest(v_load(z + i)) > m->top_z[0]))
            continue;
        for (int64_t k = i; k < end; k++) {
            int32_t id = t->kept ? t->kept[k] : (int32_t)(v0 + k);
            if (m->num_top < m->max_top)
                sift_up(m, m->num_top++, z[k], id);
            else if (z[k] > m->top_z[0])
                sift_down(m, m->max_top, z[k], id);
        }
    }
}

CR_INLINE void take_chosen(head_more *m, const processed_tile *t, int64_t v0, int64_t cols,
                           const float *z)
{
    for (int64_t i = 0; i < m->num_chosen; i++) {
        int64_t id = m->chosen_ids[i], at = id - v0;
        if (at < 0 || at >= cols) continue;
        if (t->kept) {
            at = first_not_below(t->kept, t->num, id);
            if (at == t->num || t->kept[at] != id) continue;
        }
        m->chosen_z[i] = z[at];
    }
}

/* A tile of tokens v0 .. v0 + cols - 1; z_label is known before the first one if the rank is wanted. */
CR_INLINE void take_more(head_more *m, const processed_tile *t, int64_t v0, int64_t cols,
                         const float *z, float z_label)
{
    int32_t above = 0;

    for (int64_t i = 0; m->rank && i < t->num; i++)
        above += z[i] > z_label;
    if (m->rank) *m->rank += above;
    if (m->max_top) take_top(m, t, v0, z);
    if (m->num_chosen) take_chosen(m, t, v0, cols, z);
}

/* From a heap to falling order; what was not found is id -1. */
CR_INLINE void sort_top(head_more *m)
{
    for (int64_t num = m->num_top; num > 1; num--) {
        float z = m->top_z[num - 1], root_z = m->top_z[0];
        int32_t id = m->top_ids[num - 1], root_id = m->top_ids[0];
        sift_down(m, num - 1, z, id);
        m->top_z[num - 1] = root_z;
        m->top_ids[num - 1] = root_id;
    }
    for (int64_t i = m->num_top; i < m->max_top; i++) {
        m->top_z[i] = -INFINITY;
        m->top_ids[i] = -1;
    }
}

#endif
