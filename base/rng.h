/* rng.h -- counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011).
 *
 * A draw is a pure function of a key and a counter, so it depends on no thread, no order and no
 * neighbour: sampling uses key = (seed, stream) and counter = (sample id, position), initialisation
 * counter = (name hash, element). Same numbers on every machine and device.
 */
#ifndef CR_RNG_H
#define CR_RNG_H

#include <stddef.h>
#include <stdint.h>

/* What a stream of numbers is for; one value a purpose, so that no two share numbers. */
typedef enum cr_rng_stream {
    CR_RNG_SAMPLE = 1,  /* generation */
    CR_RNG_INIT = 2,    /* random weights */
    CR_RNG_SHUFFLE = 3, /* order of data */
    CR_RNG_PAUSE = 4,   /* of a request that is tried again */
    CR_RNG_DROPOUT = 5, /* keys of rows (kernels/dropout.h) */
    CR_RNG_POOL = 6,    /* which rows of a pool are drawn (data/curriculum.h) */
    CR_RNG_TEST = 99,
} cr_rng_stream;

/* Four words for (seed, stream) and the 128-bit counter (hi, lo). */
void cr_rng_philox(uint64_t seed, cr_rng_stream stream, uint64_t hi, uint64_t lo, uint32_t out[4]);
/* Uniform in [0, 1) with 24 bits, and in (0, 1) with 53 bits. */
float cr_rng_float(uint32_t word);
double cr_rng_double(uint32_t word_a, uint32_t word_b);
/* Standard normal of element `lo` (Box-Muller on its own four words). */
double cr_rng_normal(uint64_t seed, cr_rng_stream stream, uint64_t hi, uint64_t lo);
/* Fisher-Yates over `order`, keyed by (seed, epoch); equal on every machine. */
void cr_rng_shuffle(uint64_t seed, uint64_t epoch, uint32_t *order, size_t num);
/* One that no other process has, for names: from the kernel, or of time and process. */
uint64_t cr_rng_chance(void);
/* FNV-1a, 64 bits: names to counters. */
uint64_t cr_hash64(const void *data, size_t num_bytes);

#endif
