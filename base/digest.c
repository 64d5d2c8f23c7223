/* digest.c -- see digest.h. */
#include "base/digest.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum { HASHED_BYTES = 1 << 20 }; /* of a file at a time */

static void print_hex(const unsigned char *digest, unsigned num, char hex[CR_DIGEST_TEXT])
{
    for (unsigned i = 0; i < num; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

cr_status cr_digest_file(const char *path, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                         cr_err *err)
{
    FILE *file = fopen(path, "rb");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    char *block = CR_NEW_ARRAY(char, HASHED_BYTES);
    int64_t size = 0;
    unsigned n = 0;
    size_t k;

    if (!file) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    CR_CHECK(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL), "no SHA-256 in OpenSSL");
    while (file && (k = fread(block, 1, HASHED_BYTES, file)) > 0) {
        EVP_DigestUpdate(md, block, k);
        size += (int64_t)k;
    }
    if (file && ferror(file)) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    EVP_DigestFinal_ex(md, digest, &n);
    EVP_MD_CTX_free(md);
    print_hex(digest, n, hex);
    if (num_bytes) *num_bytes = size;
    if (file) fclose(file);
    cr_free(block);
    return err->status;
}

void cr_digest_bytes(const void *data, size_t num_bytes, char hex[CR_DIGEST_TEXT])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    CR_CHECK(EVP_Digest(data, num_bytes, digest, &n, EVP_sha256(), NULL), "no SHA-256 in OpenSSL");
    print_hex(digest, n, hex);
}

bool cr_digest_is(const char *hex, const char *want)
{
    size_t num = strlen(want);

    return hex && num >= 8 && strncmp(hex, want, num) == 0;
}
