/* draws.h -- repeatable random numbers for tests: draw n of a seed. */
#ifndef CR_TEST_DRAWS_H
#define CR_TEST_DRAWS_H

#include "base/rng.h"

static inline double uniform(uint64_t seed, uint64_t n)
{
    uint32_t w[4];

    cr_rng_philox(seed, CR_RNG_TEST, 0, n, w);
    return cr_rng_double(w[0], w[1]);
}

static inline double normal(uint64_t seed, uint64_t n)
{
    return cr_rng_normal(seed, CR_RNG_TEST, 1, n);
}

#endif
