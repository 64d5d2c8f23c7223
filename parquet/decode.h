/* decode.h -- Parquet's encodings of integers, one value at a time: runs (RLE and bit-packed) and differences
 * (DELTA_BINARY_PACKED). A decoder borrows its bytes, never leaves them, and takes no memory whatever they claim.
 */
#ifndef CR_PARQUET_DECODE_H
#define CR_PARQUET_DECODE_H

#include "base/base.h"

static inline uint32_t cri_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t cri_le64(const uint8_t *p)
{
    return cri_le32(p) | (uint64_t)cri_le32(p + 4) << 32;
}

/* Levels, indices of dictionaries, booleans. */
typedef struct cri_runs {
    const uint8_t *at, *end;
    int width;     /* bits of a value, 0 to 32 */
    uint64_t left; /* values of the run */
    bool is_packed;
    uint32_t value; /* of a run of equal ones */
    uint64_t bits;  /* read and not given yet */
    int num_bits;
} cri_runs;

/* False: the bytes end, or are malformed. */
bool cri_runs_begin(cri_runs *r);
bool cri_runs_refill(cri_runs *r, uint32_t *out);
static inline bool cri_runs_next(cri_runs *r, uint32_t *out)
{
    if (r->left == 0 && !cri_runs_begin(r)) return false;
    if (r->is_packed && r->num_bits < r->width) return cri_runs_refill(r, out);
    r->left--;
    if (!r->is_packed) {
        *out = r->value;
        return true;
    }
    *out = (uint32_t)(r->bits & ((UINT64_C(1) << r->width) - 1));
    r->bits >>= r->width;
    r->num_bits -= r->width;
    return true;
}

typedef struct cri_delta {
    const uint8_t *at, *end;
    uint64_t left;     /* values not given yet */
    uint32_t num_mini; /* miniblocks of a block */
    uint32_t per_mini; /* values of a miniblock */
    bool has_first;
    uint64_t value; /* the last one given; before the first: the first */
    uint64_t min_delta;
    const uint8_t *widths; /* of the miniblocks of this block */
    uint32_t mini;         /* the next of them */
    const uint8_t *packed; /* of the miniblock */
    uint32_t in_mini;      /* values of it that are left */
    uint64_t bit;          /* where the next one begins */
} cri_delta;

CR_MUST bool cri_delta_begin(cri_delta *d, const uint8_t *at, const uint8_t *end);
CR_MUST bool cri_delta_next(cri_delta *d, int64_t *out);
/* Where the bytes of a decoder that has just begun end; NULL: they are malformed. Walks over blocks, not over values. */
const uint8_t *cri_delta_end(cri_delta d);

#endif
