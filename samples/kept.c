/* kept.c -- see kept.h. */
#include "samples/kept.h"

cr_status cri_kept_check(const int32_t *tokens, size_t num, const int32_t *num_kept,
                         const int32_t *ids, size_t num_ids, int64_t vocab_size, size_t *at,
                         cr_err *err)
{
    for (size_t t = 0; t < num; t++) {
        bool has_token = num_kept[t] == 0;
        if (num_kept[t] < 0 || (size_t)num_kept[t] > num_ids - *at)
            return cr_fail(err, CR_EFORMAT, "token %zu has %d kept_ids of %zu", t, num_kept[t],
                           num_ids - *at);
        for (const int32_t *id = ids + *at, *end = id + num_kept[t]; id < end; id++) {
            if (*id < 0 || *id >= vocab_size || (id > ids + *at && *id <= id[-1]))
                return cr_fail(err, CR_EFORMAT, "kept_ids of token %zu: %d is out of place", t,
                               *id);
            has_token |= *id == tokens[t];
        }
        if (!has_token)
            return cr_fail(err, CR_EFORMAT, "kept_ids of token %zu are without itself, %d", t,
                           tokens[t]);
        *at += (size_t)num_kept[t];
    }
    return CR_OK;
}
