/* cpu.h -- what all variants of the cpu device share (inside kernels/ only). */
#ifndef CR_CPU_H
#define CR_CPU_H

#include "kernels/kernels_impl.h"

/* for (i = 0; i < num; i++) body, on this many threads. One thread runs a plain loop: OpenMP's team of
 * one costs a microsecond, and decoding has hundreds of small loops a token. */
/* clang-format off */
#define CRI_FOR(threads, i, num, ...)                                             \
    do {                                                                          \
        int team_ = (threads);                                                    \
        if (team_ == 1) {                                                         \
            for (int64_t i = 0; i < (num); i++)                                   \
                __VA_ARGS__;                                                      \
        } else {                                                                  \
            _Pragma("omp parallel for schedule(dynamic) num_threads(team_)")      \
            for (int64_t i = 0; i < (num); i++)                                   \
                __VA_ARGS__;                                                      \
        }                                                                         \
    } while (0)
/* clang-format on */

/* Which thread of a parallel loop of dev this is: its share of a scratch. */
int cri_thread(const cr_device *dev);
cr_status cri_cpu_alloc(cr_device *dev, size_t num_bytes, void **out, cr_err *err);
void cri_cpu_release(cr_device *dev, void *ptr, size_t num_bytes);
void cri_cpu_close(cr_device *dev);
cr_status cri_cpu_zero(cr_device *dev, void *dst, size_t num_bytes, cr_err *err);
cr_status cri_cpu_copy(cr_device *dev, void *dst, const void *src, size_t num_bytes, cr_err *err);
cr_status cri_cpu_embedding(cr_device *dev, const cr_weight *w, const int32_t *ids,
                            int64_t num_tokens, void *y, cr_err *err);
cr_status cri_cpu_rows_gather(cr_device *dev, cr_dtype dtype, const void *src, const int32_t *index,
                              int64_t num_rows, int64_t num_cols, void *dst, cr_err *err);
cr_status cri_cpu_rows_scatter(cr_device *dev, cr_dtype dtype, const void *src,
                               const int32_t *index, int64_t num_rows, int64_t num_cols, void *dst,
                               cr_err *err);

#endif
