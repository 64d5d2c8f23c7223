/* merge.h -- a model's weights with a LoRA adapter in them: W + scale B A, in float32, rounded once to the dtype of W. Other tensors
 * are copied. One thread. */
#ifndef CR_MERGE_H
#define CR_MERGE_H

#include "base/base.h"

/* From MODEL and PEFT's folder of an adapter to OUT/model.safetensors. CR_EFORMAT, CR_EABSENT: a file, a key or a tensor, by name. */
CR_MUST cr_status cr_adapter_merge(const char *model, const char *adapter, const char *out,
                                   cr_err *err);

#endif
