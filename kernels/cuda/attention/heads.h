/* heads.h -- rows of q, k and v on their way into the cache. Inside kernels/cuda only. */
#ifndef CR_CUDA_ATTENTION_HEADS_H
#define CR_CUDA_ATTENTION_HEADS_H

#include "kernels/cuda/attention/attention.h"

/* What `a` says of q and k, then k and v of all rows into the cache; a->q_in NULL: k and v as they are. */
template <class T>
cudaError_t cri_cuda_heads_to_cache(cr_device *dev, const cr_qk_heads_args *a,
                                    const cached_args<T> &cache, int64_t num_tokens);

#endif
