/* segments.c -- see segments.h. */
#include "samples/segments.h"

size_t cr_segments_num_ids(const cr_segment *segments, size_t num, cr_segment_kind kind)
{
    size_t num_ids = 0;

    for (size_t k = 0; k < num; k++)
        if (kind == CR_NUM_SEGMENT_KINDS || segments[k].kind == kind)
            num_ids += segments[k].num_ids;
    return num_ids;
}

size_t cr_segments_spans(const cr_segment *segments, size_t num, int32_t *out)
{
    size_t n = 0;

    for (size_t k = 1; k < num; k++) {
        const bool is_observed = segments[k].kind == CR_SEGMENT_OBSERVED;
        if (n % 2 != is_observed) {
            if (out) out[n] = 0;
            n++;
        }
        if (out) out[n] = (int32_t)segments[k].num_ids;
        n++;
    }
    return n;
}

cr_status cr_segments_make(const cr_spans *from, cr_segment **out, size_t *num, cr_err *err)
{
    const int32_t all = (int32_t)from->num_response;
    const int32_t *lengths = from->lengths ? from->lengths : &all;
    const size_t num_lengths = from->lengths ? from->num_lengths : 1;
    const size_t given[] = {from->num_response, from->num_observed};
    size_t at[2] = {0}, num_generated = 0;

    *out = CR_NEW_ARRAY(cr_segment, num_lengths + 1);
    *num = 1; /* the prompt */
    for (size_t k = 0; k < num_lengths; k++) {
        const size_t n = (size_t)lengths[k], is_observed = k % 2, first = at[is_observed];
        cr_segment *s = &(*out)[*num];
        if (lengths[k] < 0 || n > given[is_observed] - first)
            return cr_fail(err, CR_EFORMAT, "span %zu has %d tokens", k, lengths[k]);
        if (n == 0) continue;
        at[is_observed] += n;
        ++*num;
        if (is_observed) {
            *s = (cr_segment){CR_SEGMENT_OBSERVED, from->observed + first, n, NULL, 0};
            continue;
        }
        *s = (cr_segment){CR_SEGMENT_GENERATED, from->response + first, n, from->log_probs + first,
                          from->version};
        if (num_generated < from->num_versions) s->version = from->versions[num_generated];
        num_generated++;
    }
    if (at[0] != given[0] || at[1] != given[1])
        return cr_fail(err, CR_EFORMAT, "spans of %zu and %zu tokens came with %zu and %zu", at[0],
                       at[1], given[0], given[1]);
    if (from->versions && num_generated != from->num_versions)
        return cr_fail(err, CR_EFORMAT, "%zu segments with %zu versions", num_generated,
                       from->num_versions);
    return CR_OK;
}
