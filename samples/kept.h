/* kept.h -- kept ids of filtered samples (docs/sampling.md), checked wherever they arrive. Internal to samples/. */
#ifndef CRI_KEPT_H
#define CRI_KEPT_H

#include "base/base.h"

/* The num kept ids of token number t begin at ids[*at]: they ascend, are below vocab_size, and the token is one of them; *at is
 * moved past them. CR_EFORMAT names t. */
CR_MUST cr_status cri_kept_check(size_t t, int32_t token, int32_t num, const int32_t *ids,
                                 size_t num_ids, int64_t vocab_size, size_t *at, cr_err *err);

#endif
