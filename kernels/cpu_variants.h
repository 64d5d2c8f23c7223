/* cpu_variants.h -- the instruction sets that device cpu has kernels for and this CPU runs. */
#ifndef CR_CPU_VARIANTS_H
#define CR_CPU_VARIANTS_H

#include <stddef.h>

/* The i-th of them, narrowest first, no further than the one that CROLL_CPU names; NULL: there are no more. */
const char *cr_cpu_variant_here(size_t i);

#endif
