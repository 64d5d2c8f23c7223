/* random.h -- random weights for a config.json, as Transformers would start training (`croll init`). One thread. */
#ifndef CR_RANDOM_H
#define CR_RANDOM_H

#include "base/base.h"

typedef struct cr_random_weights {
    char *path; /* of the file; owned by the caller, also after a failure */
    size_t num_tensors;
    int64_t num_elems;
} cr_random_weights;

/* FOLDER/model.safetensors in its torch_dtype; the values depend on the seed only. A Prismatic folder without a processor of images has
 * one then, the usual one of its towers. CR_EUSAGE: there are weights. */
CR_MUST cr_status cr_random_weights_write(const char *folder, int64_t seed, bool should_overwrite,
                                          cr_random_weights *out, cr_err *err);

#endif
