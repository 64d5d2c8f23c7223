/* moves.c -- what moves rows without computing on them, and checksums of bytes. */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/entries.h"

/* C of kernels.h: four lanes of multiply and mix over 8-byte words. */
static uint64_t sum_of(const unsigned char *p, size_t num_bytes, uint64_t start)
{
    uint64_t lane[4] = {start ^ 0x9E3779B97F4A7C15u, start + 1, start ^ 2, start + 3}, word;
    size_t i = 0;

    for (; i + 32 <= num_bytes; i += 32)
        for (int k = 0; k < 4; k++) {
            memcpy(&word, p + i + 8 * (size_t)k, 8);
            lane[k] = (lane[k] ^ word) * 0xFF51AFD7ED558CCDu;
            lane[k] ^= lane[k] >> 29;
        }
    for (; i < num_bytes; i++)
        lane[0] = (lane[0] ^ p[i]) * 0x100000001B3u;
    return ((lane[0] * 31 + lane[1]) * 31 + lane[2]) * 31 + lane[3];
}

cr_status CR_V(checksum)(cr_device *dev, const cr_checksum_args *a, cr_err *err)
{
    const size_t block = CR_CHECKSUM_BLOCK, num = (a->num_bytes + block - 1) / block;
    const unsigned char *p = cr_mem_to_host(a->data);
    uint64_t *sums = cri_scratch(dev, CRI_SLOT_SUMS, num * sizeof *sums);

    (void)err;
    CRI_FOR(num > 1 ? dev->num_threads : 1, b, (int64_t)num, {
        size_t at = (size_t)b * block;
        sums[b] = sum_of(p + at, a->num_bytes - at < block ? a->num_bytes - at : block, a->start);
    });
    *a->out = sum_of((const unsigned char *)sums, num * sizeof *sums, a->start);
    return CR_OK;
}

static void gather(cr_dtype dtype, const cr_mem *src, const int32_t *index, int64_t num_rows,
                   int64_t num_cols, cr_mem *dst)
{
    size_t bytes = (size_t)num_cols * cr_dtype_bytes(dtype);
    const char *from = cr_mem_to_host(src);
    char *to = cr_mem_to_host(dst);

    for (int64_t i = 0; i < num_rows; i++)
        memcpy(to + (size_t)i * bytes, from + (size_t)index[i] * bytes, bytes);
}

cr_status CR_V(embedding)(cr_device *dev, const cr_embedding_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    gather(a->w->dtype, a->w->data, cr_mem_to_host(a->ids), a->num_tokens, a->w->num_cols, a->y);
    return CR_OK;
}

cr_status CR_V(rows_gather)(cr_device *dev, const cr_rows_move_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    gather(a->dtype, a->src, cr_mem_to_host(a->index), a->num_rows, a->num_cols, a->dst);
    return CR_OK;
}

cr_status CR_V(rows_scatter)(cr_device *dev, const cr_rows_move_args *a, cr_err *err)
{
    size_t bytes = (size_t)a->num_cols * cr_dtype_bytes(a->dtype);
    const int32_t *index = cr_mem_to_host(a->index);
    const char *from = cr_mem_to_host(a->src);
    char *to = cr_mem_to_host(a->dst);

    (void)dev;
    (void)err;
    for (int64_t i = 0; i < a->num_rows; i++)
        memcpy(to + (size_t)index[i] * bytes, from + (size_t)i * bytes, bytes);
    return CR_OK;
}
