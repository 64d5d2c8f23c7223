/* kept.c -- see kept.h. */
#include "samples/kept.h"

cr_status cri_kept_check(size_t t, int32_t token, int32_t num, const int32_t *ids, size_t num_ids,
                         int64_t vocab_size, size_t *at, cr_err *err)
{
    bool has_token = num == 0;

    if (num < 0 || (size_t)num > num_ids - *at)
        return cr_fail(err, CR_EFORMAT, "token %zu has %d kept_ids of %zu", t, num, num_ids - *at);
    for (const int32_t *id = ids + *at, *end = id + num; id < end; id++) {
        if (*id < 0 || *id >= vocab_size || (id > ids + *at && *id <= id[-1]))
            return cr_fail(err, CR_EFORMAT, "kept_ids of token %zu: %d is out of place", t, *id);
        has_token |= *id == token;
    }
    if (!has_token)
        return cr_fail(err, CR_EFORMAT, "kept_ids of token %zu are without itself, %d", t, token);
    *at += (size_t)num;
    return CR_OK;
}
