/* entries.h -- the functions of one variant: CR_V(linear) and so on for each operation (ops.h). */
#ifndef CR_ENTRIES_H
#define CR_ENTRIES_H

#include "kernels/cpu/variant/simd_io.h"

#define CRI_DECLARE(name, args) cr_status CR_V(name)(cr_device * dev, const args *a, cr_err *err);
CR_OPS(CRI_DECLARE, CRI_DECLARE)
#undef CRI_DECLARE
size_t CR_V(packed_bytes)(const cr_device *dev, const cr_weight *w);
size_t CR_V(kv_block_bytes)(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                            int64_t head_dim);
extern const cr_kernels CR_V(cpu_kernels);

#endif
