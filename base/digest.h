/* digest.h -- SHA-256 of files and model folders, as text. */
#ifndef CR_DIGEST_H
#define CR_DIGEST_H

#include "base/base.h"

enum { CR_DIGEST_TEXT = 65 };

/* hex: 64 small hexadecimal digits; *num_bytes (may be NULL): of the file. CR_EIO. */
CR_MUST cr_status cr_digest_file(const char *path, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                                 cr_err *err);
/* And its sum. */
CR_MUST cr_status cr_digest_file_and_sum(const char *path, char hex[CR_DIGEST_TEXT],
                                         int64_t *num_bytes, uint64_t *sum, cr_err *err);
/* Bytes [at, at + num_bytes) of a file: the sum of its 16-bit words times their places, from 1 on, modulo 2^64. The sums of parts
 * add up to that of the file, whoever took them; a part that was never written (zeros) is missing in it. `at` is even, and
 * num_bytes, but at the end. It detects damage, not an attack. */
uint64_t cr_sum_bytes(int64_t at, const void *data, size_t num_bytes);
void cr_digest_bytes(const void *data, size_t num_bytes, char hex[CR_DIGEST_TEXT]);
/* A quick digest of a MODEL folder, to check that two hosts have the same: names and bytes of its .json, .jinja and .safetensors
 * files, what is in them, but of .safetensors only the first and the last MiB. *num_bytes: of these files. CR_EIO, also where
 * there are no such files. */
CR_MUST cr_status cr_digest_model(const char *folder, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                                  cr_err *err);
/* Is `want` the digest hex or its first digits, at least 8? hex may be NULL: false. */
bool cr_digest_is(const char *hex, const char *want);

#endif
