/* sums.c -- sums of the ranks' contributions, along the tree of comm.h (see mesh_impl.h).
 *
 * One pass: every contribution is read once and the result written once, so that a sum is as fast as the
 * memory (or the cache that the peer just wrote to). The same additions in vectors of 64 bytes, compiled for each
 * width of base/isa.h: the widest that this CPU has is chosen when first used. All of them give the same bits. */
#include "base/isa.h"
#include "mesh/mesh_impl.h"

#include <string.h>

enum { LANES = 16, DEPTH = 32 /* of a tree */ };

/* Vectors that gcc and clang share, at any address. */
typedef float f32s __attribute__((vector_size(sizeof(float) * LANES), aligned(4), may_alias));
typedef cr_float32 bits32s
    __attribute__((vector_size(4 * LANES))); /* f32s but in a build of float64 */
typedef int32_t i32s __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t u32s __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t u16s __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE void load_f32(f32s *out, const void *x)
{
    *out = *(const f32s *)x;
}

/* float32 rounded to bfloat16 and back: nearest, ties to even; NaN stays NaN. */
INLINE void load_rounded(f32s *out, const void *x)
{
    bits32s f = __builtin_convertvector(*(const f32s *)x, bits32s);
    i32s u = (i32s)f, top = u & -65536;
    i32s is_nan = (u & 0x7fffffff) > 0x7f800000;
    i32s step = ((u >> 16) & 1) + 0x7fff;
    i32s up = (i32s)((u32s)u + (u32s)step) & -65536;

    *out = __builtin_convertvector((bits32s)((is_nan & (top | 0x400000)) | (~is_nan & up)), f32s);
}

INLINE void load_bf16(f32s *out, const void *x)
{
    *out = __builtin_convertvector((bits32s)(__builtin_convertvector(*(const u16s *)x, u32s) << 16),
                                   f32s);
}

typedef void sum_fn(float *out, const void *const *parts, const uint8_t *merges, int num_parts,
                    size_t num, bool is_added);

/* Four vectors of each part at a time, so that the steps of the tree cost little. The rest goes through one vector, the last
 * elements through a full one too, so that each element is treated alike. waiting: sums whose right neighbours are not complete. */
typedef struct f32s_4 {
    f32s a, b, c, d;
} f32s_4;

INLINE void add_one(f32s *x, const f32s *y)
{
    *x += *y;
}

INLINE void add_4(f32s_4 *x, const f32s_4 *y)
{
    x->a += y->a, x->b += y->b, x->c += y->c, x->d += y->d;
}

#define DEFINE_TREE(name, target, type, vectors, load, add)                                \
    target INLINE void name(vectors *out, const void *const *parts, const uint8_t *merges, \
                            int num_parts, size_t at, size_t left)                         \
    {                                                                                      \
        vectors waiting[DEPTH], sum, x;                                                    \
        int depth = 0;                                                                     \
                                                                                           \
        load(&sum, (const type *)parts[0] + at, left);                                     \
        for (int p = 1; p < num_parts; p++) {                                              \
            load(&x, (const type *)parts[p] + at, left);                                   \
            if (merges[p] == 0) {                                                          \
                waiting[depth++] = sum;                                                    \
                sum = x;                                                                   \
                continue;                                                                  \
            }                                                                              \
            add(&sum, &x);                                                                 \
            for (int m = 1; m < merges[p]; m++)                                            \
                add(&sum, &waiting[--depth]);                                              \
        }                                                                                  \
        *out = sum;                                                                        \
    }

#define DEFINE_SUM(name, target, type, load)                                             \
    target INLINE void name##_load_4(f32s_4 *x, const type *part, size_t left)           \
    {                                                                                    \
        load(&x->a, part), load(&x->b, part + LANES);                                    \
        load(&x->c, part + 2 * LANES), load(&x->d, part + 3 * LANES);                    \
        (void)left;                                                                      \
    }                                                                                    \
                                                                                         \
    target INLINE void name##_load(f32s *x, const type *part, size_t left)               \
    {                                                                                    \
        type last[LANES] = {0};                                                          \
                                                                                         \
        if (left < LANES) memcpy(last, part, left * sizeof(type));                       \
        load(x, left < LANES ? last : part);                                             \
    }                                                                                    \
                                                                                         \
    DEFINE_TREE(name##_tree_4, target, type, f32s_4, name##_load_4, add_4)               \
    DEFINE_TREE(name##_tree, target, type, f32s, name##_load, add_one)                   \
                                                                                         \
    target static void name(float *out, const void *const *parts, const uint8_t *merges, \
                            int num_parts, size_t num, bool is_added)                    \
    {                                                                                    \
        size_t i = 0;                                                                    \
        f32s_4 four;                                                                     \
        f32s sum, x;                                                                     \
        bool is_chain = true; /* up to three ranks: no part waits for another one */     \
                                                                                         \
        for (int p = 1; p < num_parts; p++)                                              \
            is_chain = is_chain && merges[p] == 1;                                       \
        for (; is_chain && i + LANES <= num; i += LANES) {                               \
            load(&sum, (const type *)parts[0] + i);                                      \
            for (int p = 1; p < num_parts; p++) {                                        \
                load(&x, (const type *)parts[p] + i);                                    \
                sum += x;                                                                \
            }                                                                            \
            if (is_added) sum += *(const f32s *)(out + i);                               \
            *(f32s *)(out + i) = sum;                                                    \
        }                                                                                \
        for (; i + 4 * LANES <= num; i += 4 * LANES) {                                   \
            name##_tree_4(&four, parts, merges, num_parts, i, LANES);                    \
            if (is_added) add_4(&four, (const f32s_4 *)(const void *)(out + i));         \
            *(f32s_4 *)(void *)(out + i) = four;                                         \
        }                                                                                \
        for (; i < num; i += LANES) {                                                    \
            size_t left = num - i < LANES ? num - i : LANES;                             \
            name##_tree(&sum, parts, merges, num_parts, i, left);                        \
            for (size_t k = 0; k < left; k++)                                            \
                out[i + k] = is_added ? out[i + k] + sum[k] : sum[k];                    \
        }                                                                                \
    }

#define DEFINE_SUMS(isa, target)                           \
    DEFINE_SUM(f32_##isa, target, float, load_f32)         \
    DEFINE_SUM(rounded_##isa, target, float, load_rounded) \
    DEFINE_SUM(bf16_##isa, target, uint16_t, load_bf16)

CR_ISAS(DEFINE_SUMS)

void cri_sum(cri_sum_kind kind, float *out, const void *const *parts, const uint8_t *merges,
             int num_parts, size_t num, bool is_added)
{
#define LIST_SUMS(isa, target) {f32_##isa, rounded_##isa, bf16_##isa},
    static sum_fn *const sums[][3] = {CR_ISAS(LIST_SUMS)};
    static int best = -1;

    if (best < 0) best = cr_isa_best();
    sums[best][kind](out, parts, merges, num_parts, num, is_added);
}

int cri_half(int num)
{
    int half = 1;

    while (2 * half < num)
        half *= 2;
    return half;
}

/* Of the subtree of num parts from the first one on; `listed` are before it in the list. */
static int list_tree(int first, int num, const bool *is_there, uint8_t *merges, int listed)
{
    int half = cri_half(num), left, right;

    if (num == 1) {
        if (is_there && !is_there[first]) return 0;
        merges[listed] = 0;
        return 1;
    }
    left = list_tree(first, half, is_there, merges, listed);
    right = list_tree(first + half, num - half, is_there, merges, listed + left);
    if (left > 0 && right > 0) merges[listed + left + right - 1]++;
    return left + right;
}

int cri_tree(int num, const bool *is_there, uint8_t *merges)
{
    return list_tree(0, num, is_there, merges, 0);
}

void cri_round_bf16(uint16_t *out, const float *x, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        out[i] = (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)(u >> 16 | 0x40)
                                                 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}
