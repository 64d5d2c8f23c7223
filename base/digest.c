/* digest.c -- see digest.h. */
#include "base/digest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HASHED_BYTES = 1 << 20 }; /* of a file at a time */

static void print_hex(const unsigned char *digest, unsigned num, char hex[CR_DIGEST_TEXT])
{
    for (unsigned i = 0; i < num; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

uint64_t cr_sum_bytes(int64_t at, const void *data, size_t num_bytes)
{
    enum { WORDS = 4096 }; /* of a block: its sums fit 32 and 64 bits */
    const unsigned char *from = data;
    uint64_t sum = 0, place = (uint64_t)at / 2 + 1;
    uint16_t block[WORDS];

    for (size_t done = 0; done < num_bytes; done += sizeof block) {
        size_t n = num_bytes - done < sizeof block ? num_bytes - done : sizeof block;
        size_t num = (n + 1) / 2;
        uint32_t words = 0;
        uint64_t placed = 0;
        block[num - 1] = 0; /* an odd byte is a word with a zero */
        memcpy(block, from + done, n);
        for (size_t i = 0; i < num; i++) {
            words += block[i];
            placed += (uint64_t)((uint32_t)i * block[i]);
        }
        sum += place * words + placed;
        place += num;
    }
    return sum;
}

cr_status cr_digest_file(const char *path, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                         cr_err *err)
{
    return cr_digest_file_and_sum(path, hex, num_bytes, NULL, err);
}

cr_status cr_digest_file_and_sum(const char *path, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                                 uint64_t *sum, cr_err *err)
{
    FILE *file = fopen(path, "rb");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    char *block = CR_NEW_ARRAY(char, HASHED_BYTES);
    int64_t size = 0;
    unsigned n = 0;
    size_t k;

    if (sum) *sum = 0;
    if (!file) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    CR_CHECK(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL), "no SHA-256 in OpenSSL");
    while (file && (k = fread(block, 1, HASHED_BYTES, file)) > 0) {
        EVP_DigestUpdate(md, block, k);
        if (sum) *sum += cr_sum_bytes(size, block, k);
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

/* ---- folders of models ---- */

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

static int is_of_model(const struct dirent *entry)
{
    return entry->d_name[0] != '.' &&
           (ends_in(entry->d_name, ".json") || ends_in(entry->d_name, ".jinja") ||
            ends_in(entry->d_name, ".safetensors"));
}

/* Bytes first .. last - 1 of the file. */
static cr_status add_part(EVP_MD_CTX *md, int fd, int64_t first, int64_t last, char *block,
                          cr_err *err)
{
    while (first < last) {
        size_t want = (size_t)(last - first < HASHED_BYTES ? last - first : HASHED_BYTES);
        ssize_t n = pread(fd, block, want, first);
        if (n <= 0)
            return cr_fail(err, CR_EIO, "%s", n ? strerror(errno) : "it ends before its length");
        EVP_DigestUpdate(md, block, (size_t)n);
        first += n;
    }
    return CR_OK;
}

static cr_status add_file(EVP_MD_CTX *md, const char *path, const char *name, char *block,
                          int64_t *num_bytes, cr_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    char size[32];

    if (fd < 0 || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        cr_fail(err, CR_EIO, "cannot read %s: %s", path, fd < 0 ? strerror(errno) : "not a file");
        if (fd >= 0) close(fd);
        return err->status;
    }
    snprintf(size, sizeof size, "%lld", (long long)s.st_size);
    EVP_DigestUpdate(md, name, strlen(name) + 1);
    EVP_DigestUpdate(md, size, strlen(size) + 1);
    *num_bytes += s.st_size;
    if (!ends_in(name, ".safetensors") || s.st_size <= 2 * HASHED_BYTES)
        cr_note(add_part(md, fd, 0, s.st_size, block, err));
    else if (add_part(md, fd, 0, HASHED_BYTES, block, err) == CR_OK)
        cr_note(add_part(md, fd, s.st_size - HASHED_BYTES, s.st_size, block, err));
    if (err->status != CR_OK) cr_fail_add(err, "%s", path);
    close(fd);
    return err->status;
}

cr_status cr_digest_model(const char *folder, char hex[CR_DIGEST_TEXT], int64_t *num_bytes,
                          cr_err *err)
{
    struct dirent **entry = NULL;
    int num = scandir(folder, &entry, is_of_model, alphasort);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    char *block = CR_NEW_ARRAY(char, HASHED_BYTES);
    unsigned n = 0;

    *num_bytes = 0;
    if (num < 0)
        cr_fail(err, CR_EIO, "cannot open %s: %s", folder, strerror(errno));
    else if (num == 0)
        cr_fail(err, CR_EIO, "%s has no files of a model", folder);
    CR_CHECK(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL), "no SHA-256 in OpenSSL");
    for (int i = 0; i < num; i++) {
        char *path = cr_path_join(folder, entry[i]->d_name);
        if (err->status == CR_OK)
            cr_note(add_file(md, path, entry[i]->d_name, block, num_bytes, err));
        cr_free(path);
        free(entry[i]);
    }
    free(entry);
    EVP_DigestFinal_ex(md, digest, &n);
    EVP_MD_CTX_free(md);
    print_hex(digest, n, hex);
    cr_free(block);
    return err->status;
}
