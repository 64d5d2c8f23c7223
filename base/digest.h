/* digest.h -- SHA-256 of files, as text. */
#ifndef CR_DIGEST_H
#define CR_DIGEST_H

#include "base/base.h"

enum { CR_DIGEST_TEXT = 65 };

/* hex: 64 small hexadecimal digits; *num_bytes (may be NULL): of the file. CR_EIO. */
CR_MUST cr_status cr_digest_file(const char *path, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                                 cr_err *err);
void cr_digest_bytes(const void *data, size_t num_bytes, char hex[CR_DIGEST_TEXT]);
/* Is `want` the digest hex or its first digits, at least 8? hex may be NULL: false. */
bool cr_digest_is(const char *hex, const char *want);

#endif
