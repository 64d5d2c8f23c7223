/* codec.c -- see codec.h. */
#include "parquet/codec.h"

#include <brotli/decode.h>
#include <limits.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

typedef bool (*unpack_call)(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes);

static bool unpack_snappy(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes)
{
    size_t n = 0;

    if (snappy_uncompressed_length((const char *)in, in_bytes, &n) != SNAPPY_OK || n != out_bytes)
        return false;
    return snappy_uncompress((const char *)in, in_bytes, (char *)out, &n) == SNAPPY_OK &&
           n == out_bytes;
}

/* One member or several, of gzip's form or of zlib's. */
static bool unpack_gzip(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes)
{
    z_stream z = {.next_in = (uint8_t *)(uintptr_t)in,
                  .avail_in = (uInt)in_bytes,
                  .next_out = out,
                  .avail_out = (uInt)out_bytes};
    int code;

    if (in_bytes > UINT_MAX || out_bytes > UINT_MAX || inflateInit2(&z, 15 + 32) != Z_OK)
        return false;
    while ((code = inflate(&z, Z_FINISH)) == Z_STREAM_END && z.avail_in && inflateReset(&z) == Z_OK)
        continue;
    inflateEnd(&z);
    return code == Z_STREAM_END && z.avail_out == 0;
}

static bool unpack_brotli(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes)
{
    size_t n = out_bytes;

    return BrotliDecoderDecompress(in_bytes, in, &n, out) == BROTLI_DECODER_RESULT_SUCCESS &&
           n == out_bytes;
}

static bool unpack_zstd(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes)
{
    return ZSTD_decompress(out, out_bytes, in, in_bytes) == out_bytes;
}

static bool unpack_lz4(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes)
{
    return in_bytes <= INT_MAX && out_bytes <= INT_MAX &&
           LZ4_decompress_safe((const char *)in, (char *)out, (int)in_bytes, (int)out_bytes) ==
               (int)out_bytes;
}

/* By the format's number. */
static const struct {
    const char *name;
    unpack_call unpack; /* NULL: not read */
} codecs[] = {{"UNCOMPRESSED", NULL},    {"SNAPPY", unpack_snappy},
              {"GZIP", unpack_gzip},     {"LZO", NULL},
              {"BROTLI", unpack_brotli}, {"LZ4 (of Hadoop, deprecated)", NULL},
              {"ZSTD", unpack_zstd},     {"LZ4_RAW", unpack_lz4}};

cr_status cri_codec_check(int32_t codec, cr_err *err)
{
    if (codec < 0 || (size_t)codec >= CR_COUNT(codecs))
        return cr_fail(err, CR_EABSENT, "it is compressed with codec %d, which is unknown", codec);
    if (codec == CRI_CODEC_NONE || codecs[codec].unpack) return CR_OK;
    return cr_fail(err, CR_EABSENT, "it is compressed with %s, which is not read",
                   codecs[codec].name);
}

cr_status cri_codec_unpack(int32_t codec, const uint8_t *in, size_t in_bytes, uint8_t *out,
                           size_t out_bytes, cr_err *err)
{
    if (codecs[codec].unpack(in, in_bytes, out, out_bytes)) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "it is no page of %zu bytes compressed with %s", out_bytes,
                   codecs[codec].name);
}

uint32_t cri_codec_crc(const uint8_t *data, size_t num_bytes)
{
    return (uint32_t)crc32_z(0, data, num_bytes);
}
