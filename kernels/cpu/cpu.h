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

enum { CRI_NUM_SCRATCH = 11 };

/* Cos and sin, [num_positions, half] each. */
typedef struct cri_rope_table {
    float *cos, *sin;
    float *angles; /* by position: inv_freq [half]; by row: what the table was made of */
    float scaling;
    int64_t half, num_positions;
    int64_t capacity; /* elements, by row */
} cri_rope_table;

/* A device's `impl`. */
typedef struct cri_cpu {
    struct cri_scratch { /* grows, never shrinks: no allocation after warm-up */
        void *data;
        size_t num_bytes;
    } scratch[CRI_NUM_SCRATCH];
    cri_rope_table by_position; /* of one model */
    cri_rope_table by_row;      /* of the last angles of rows */
} cri_cpu;

static inline cri_cpu *cri_cpu_of(const cr_device *dev)
{
    return dev->impl;
}

/* Scratch number `slot` of at least num_bytes; its content is undefined. */
void *cri_scratch(cr_device *dev, int slot, size_t num_bytes);
/* The kernels of the widest instruction set that this CPU has, or that CROLL_CPU names. */
const cr_kernels *cri_cpu_best(void);
/* Name i of the variants of this architecture, narrowest first; NULL: there are no more. */
const char *cri_cpu_variant(size_t i);

/* Which thread of a parallel loop of dev this is: its share of a scratch. */
int cri_thread(const cr_device *dev);
cr_status cri_cpu_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err);
void cri_cpu_release(cr_device *dev, cr_mem *mem, size_t num_bytes);
void cri_cpu_close(cr_device *dev);
cr_status cri_cpu_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err);
cr_status cri_cpu_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                         cr_err *err);
cr_status cri_cpu_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                           cr_err *err);
/* A token from softmax(z / temperature), by u; weight: as many bytes as cri_cpu_draw gives. */
typedef int32_t (*cri_draw_fn)(const float *z, int64_t vocab_size, float temperature, float u,
                               float *weight);
/* Log-prob of the label; out: with num_top > 0 and has_rank the rest of its numbers. NULL: the log-prob alone. */
typedef float (*cri_log_prob_fn)(const float *z, int64_t vocab_size, int32_t label,
                                 const cr_row_processors *processors, const cr_draw_row *row,
                                 cr_drawn *out);
/* The operation `draw` but for what a variant computes over whole rows (draw.c). */
void cri_cpu_draw(cr_device *dev, const cr_draw_args *a, cri_draw_fn draw,
                  cri_log_prob_fn log_prob);
void cri_cpu_drop_scratch(cr_device *dev);
void cri_cpu_open_lane(const cr_device *dev, cr_device *lane);
cr_status cri_cpu_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                       cr_err *err);

#endif
