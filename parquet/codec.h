/* codec.h -- what pages are compressed with: zlib, zstd, snappy, lz4 and brotli, each by its library. */
#ifndef CR_PARQUET_CODEC_H
#define CR_PARQUET_CODEC_H

#include "base/base.h"

enum { CRI_CODEC_NONE };

/* CR_EABSENT with its name: pages of this codec are not read. */
CR_MUST cr_status cri_codec_check(int32_t codec, cr_err *err);
/* Exactly out_bytes come out, or CR_EFORMAT; never a byte more is written. */
CR_MUST cr_status cri_codec_unpack(int32_t codec, const uint8_t *in, size_t in_bytes, uint8_t *out,
                                   size_t out_bytes, cr_err *err);
/* CRC-32 as of gzip. */
uint32_t cri_codec_crc(const uint8_t *data, size_t num_bytes);

#endif
