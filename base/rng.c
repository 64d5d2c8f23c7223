/* rng.c -- Philox4x32-10 (see rng.h). */
#include "base/rng.h"
#include "base/base.h"

#include <math.h>
#include <sys/random.h>
#include <unistd.h>

void cr_rng_philox(uint64_t seed, cr_rng_stream stream, uint64_t hi, uint64_t lo, uint32_t out[4])
{
    uint64_t key = seed ^ ((uint64_t)stream << 56 | (uint64_t)stream << 24);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi,
             c3 = (uint32_t)(hi >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float cr_rng_float(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

double cr_rng_double(uint32_t a, uint32_t b)
{
    uint64_t bits = ((uint64_t)a << 32 | b) >> 12;

    return ((double)bits + 0.5) * 0x1p-52;
}

double cr_rng_normal(uint64_t seed, cr_rng_stream stream, uint64_t hi, uint64_t lo)
{
    uint32_t w[4];

    cr_rng_philox(seed, stream, hi, lo, w);
    return sqrt(-2.0 * log(cr_rng_double(w[0], w[1]))) *
           cos(6.283185307179586476925 * cr_rng_double(w[2], w[3]));
}

void cr_rng_shuffle(uint64_t seed, uint64_t epoch, uint32_t *order, size_t num)
{
    for (size_t i = num; i > 1; i--) {
        uint32_t w[4];
        size_t j;
        cr_rng_philox(seed, CR_RNG_SHUFFLE, epoch, i, w);
        j = (size_t)(cr_rng_double(w[0], w[1]) * (double)i);
        uint32_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

uint64_t cr_rng_chance(void)
{
    uint64_t chance;

    if (getrandom(&chance, sizeof chance, 0) != (ssize_t)sizeof chance)
        chance = (uint64_t)(cr_wall_s() * 1e6) ^ (uint64_t)getpid() << 48;
    return chance;
}

uint64_t cr_hash64(const void *data, size_t num_bytes)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < num_bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return h;
}
