/* decode.c -- see decode.h. */
#include "parquet/decode.h"

#include <string.h>

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

/* ---- runs ---- */

bool cri_runs_begin(cri_runs *r)
{
    const int num_bytes = (r->width + 7) / 8;
    uint64_t head;

    do {
        if (!read_varint(&r->at, r->end, &head) || head > UINT32_MAX) return false;
        r->is_packed = head & 1;
        r->left = r->is_packed ? (head >> 1) * 8 : head >> 1;
        r->bits = 0;
        r->num_bits = 0;
        if (r->is_packed) continue;
        if (r->end - r->at < num_bytes) return false;
        r->value = 0;
        for (int i = 0; i < num_bytes; i++)
            r->value |= (uint32_t)*r->at++ << 8 * i;
        if (r->width < 32 && r->value >> r->width) return false;
    } while (r->left == 0);
    return true;
}

/* The next value of a packed run, for which bytes are taken. */
bool cri_runs_refill(cri_runs *r, uint32_t *out)
{
    while (r->num_bits < r->width) {
        if (r->at == r->end) return false;
        r->bits |= (uint64_t)*r->at++ << r->num_bits;
        r->num_bits += 8;
    }
    return cri_runs_next(r, out);
}

/* ---- differences ---- */

static uint64_t unzigzag(uint64_t n)
{
    return n >> 1 ^ (0 - (n & 1));
}

bool cri_delta_begin(cri_delta *d, const uint8_t *at, const uint8_t *end)
{
    enum { MAX_BLOCK = 1 << 20 };
    uint64_t block, num_mini, first;

    *d = (cri_delta){.at = at, .end = end};
    if (!read_varint(&d->at, end, &block) || !read_varint(&d->at, end, &num_mini) ||
        !read_varint(&d->at, end, &d->left) || !read_varint(&d->at, end, &first))
        return false;
    if (block == 0 || block > MAX_BLOCK || num_mini == 0 || num_mini > block || block % num_mini ||
        block / num_mini % 8 || d->left > INT32_MAX)
        return false;
    d->num_mini = (uint32_t)num_mini;
    d->per_mini = (uint32_t)(block / num_mini);
    d->mini = d->num_mini;
    d->value = unzigzag(first);
    return true;
}

/* The next miniblock, of the next block where this one ends. */
static bool begin_mini(cri_delta *d)
{
    uint64_t num_bytes;

    if (d->mini == d->num_mini) {
        if (!read_varint(&d->at, d->end, &d->min_delta) || (uint64_t)(d->end - d->at) < d->num_mini)
            return false;
        d->min_delta = unzigzag(d->min_delta);
        d->widths = d->at;
        d->at += d->num_mini;
        d->mini = 0;
    }
    num_bytes = (uint64_t)d->widths[d->mini] * d->per_mini / 8;
    if (d->widths[d->mini] > 64 || (uint64_t)(d->end - d->at) < num_bytes) return false;
    d->packed = d->at;
    d->at += num_bytes;
    d->in_mini = d->per_mini;
    d->bit = 0;
    return true;
}

static uint64_t take_bits(cri_delta *d, int width)
{
    const uint8_t *p = d->packed + d->bit / 8;
    const int shift = (int)(d->bit % 8);
    const size_t need = ((size_t)shift + (size_t)width + 7) / 8;
    uint8_t few[9] = {0};
    uint64_t out;

    memcpy(few, p, need);
    out = cri_le64(few) >> shift;
    if (shift) out |= (uint64_t)few[8] << (64 - shift);
    d->bit += (uint64_t)width;
    return width == 64 ? out : out & ((UINT64_C(1) << width) - 1);
}

bool cri_delta_next(cri_delta *d, int64_t *out)
{
    if (d->left == 0) return false;
    if (d->has_first) {
        int width;
        if (d->in_mini == 0 && !begin_mini(d)) return false;
        width = d->widths[d->mini];
        d->value += d->min_delta + (width ? take_bits(d, width) : 0);
        if (--d->in_mini == 0) d->mini++;
    }
    d->has_first = true;
    d->left--;
    *out = (int64_t)d->value;
    return true;
}

const uint8_t *cri_delta_end(cri_delta d)
{
    uint64_t left = d.left ? d.left - 1 : 0;

    while (left) {
        if (!begin_mini(&d)) return NULL;
        d.mini++;
        left -= left < d.per_mini ? left : d.per_mini;
    }
    return d.at;
}
