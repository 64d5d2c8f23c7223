/* keys.c -- see keys.h. A quota is a bucket that fills with per_s requests a second and holds those of one second. */
#include "serve/server/keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_WORDS = 6 }; /* one more than a line may have */
#define MAX_WEIGHT 1e6

static void digest_of(const char *secret, uint8_t out[32])
{
    CR_CHECK(EVP_Digest(secret, strlen(secret), out, NULL, EVP_sha256(), NULL),
             "no SHA-256 in OpenSSL");
}

static cr_status read_scopes(char *text, unsigned *out, cr_err *err)
{
    static const char *const names[] = {"score", "generate", "admin"};
    char *rest = NULL;

    *out = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        size_t i = 0;
        while (i < CR_COUNT(names) && strcmp(word, names[i]) != 0)
            i++;
        if (i == CR_COUNT(names))
            return cr_fail(err, CR_EUSAGE, "there is no scope '%s' (score, generate, admin)", word);
        *out |= 1u << i;
    }
    return *out ? CR_OK : cr_fail(err, CR_EUSAGE, "there is no scope (score, generate, admin)");
}

/* One line, which is written to. An empty one leaves *out without a name. */
static cr_status read_line(cr_serve_keys *keys, char *line, cr_serve_key *out, cr_err *err)
{
    char *word[MAX_WORDS], *rest = NULL, *end = NULL;
    size_t num = 0;

    *out = (cr_serve_key){0};
    line[strcspn(line, "#")] = 0;
    for (char *w = strtok_r(line, " \t\r", &rest); w && num < MAX_WORDS;
         w = strtok_r(NULL, " \t\r", &rest))
        word[num++] = w;
    if (num == 0) return CR_OK;
    if (num < 3 || num > 5)
        return cr_fail(err, CR_EUSAGE,
                       "a line is NAME KEY SCOPES [REQUESTS/S [WEIGHT]], not %zu words", num);
    if (strlen(word[0]) >= sizeof out->name)
        return cr_fail(err, CR_EUSAGE, "a name has at most %zu bytes", sizeof out->name - 1);
    CR_TRY(read_scopes(word[2], &out->scopes, err));
    if (num > 3 && strcmp(word[3], "-") != 0) {
        out->per_s = strtod(word[3], &end);
        if (*end || !(out->per_s > 0 && out->per_s <= 1e9))
            return cr_fail(err, CR_EUSAGE, "'%s' is not a number of requests a second, or -",
                           word[3]);
    }
    out->weight = num > 4 ? strtod(word[4], &end) : 1;
    if (num > 4 && (*end || !(out->weight >= 1 / MAX_WEIGHT && out->weight <= MAX_WEIGHT)))
        return cr_fail(err, CR_EUSAGE, "'%s' is not a weight (1e-6 to 1e6)", word[4]);
    out->left = cr_max64(1, (int64_t)out->per_s);
    out->measured_s = cr_now_s();
    strcpy(out->name, word[0]);
    digest_of(word[1], out->digest);
    if (cr_serve_keys_named(keys, word[0]))
        return cr_fail(err, CR_EUSAGE, "the name %s is there twice", word[0]);
    if (cr_serve_keys_find(keys, word[1]))
        return cr_fail(err, CR_EUSAGE, "the key of %s is there twice", word[0]);
    return CR_OK;
}

static void warn_of_readers(const char *path)
{
    struct stat found;

    if (stat(path, &found) == 0 && (found.st_mode & 077))
        cr_log(CR_LOG_WARN, "serve", "%s can be read by other users (chmod 600)", path);
}

cr_status cr_serve_keys_read(const char *path, cr_serve_keys *out, cr_err *err)
{
    cr_buf text = {0};
    size_t at = 0, num;
    const char *line;
    long number = 0;
    cr_serve_key key;

    *out = (cr_serve_keys){0};
    if (cr_file_read(path, &text, err) != CR_OK) err->status = CR_EUSAGE;
    CR_TRY_GOTO(out, err->status);
    warn_of_readers(path);
    while (err->status == CR_OK && (line = cr_line_next(&text, &at, &num))) {
        char *copy = cr_strndup(line, num);
        number++;
        if (read_line(out, copy, &key, err) != CR_OK)
            cr_fail_add(err, "%s:%ld", path, number);
        else if (key.name[0]) {
            out->key = cr_grow(out->key, out->num, &out->capacity, sizeof key);
            out->key[out->num++] = key;
        }
        OPENSSL_cleanse(copy, num);
        cr_free(copy);
    }
    if (err->status == CR_OK && out->num == 0)
        cr_fail(err, CR_EUSAGE, "%s has no keys (a line is NAME KEY SCOPES [REQUESTS/S [WEIGHT]])",
                path);
out:
    if (text.num_bytes) OPENSSL_cleanse(text.data, text.num_bytes);
    cr_buf_free(&text);
    if (err->status != CR_OK) cr_serve_keys_free(out);
    return err->status;
}

void cr_serve_keys_free(cr_serve_keys *keys)
{
    cr_free(keys->key);
    *keys = (cr_serve_keys){0};
}

cr_serve_key *cr_serve_keys_find(cr_serve_keys *keys, const char *secret)
{
    uint8_t digest[32];
    cr_serve_key *found = NULL;

    digest_of(secret, digest);
    for (size_t i = 0; i < keys->num; i++)
        if (CRYPTO_memcmp(keys->key[i].digest, digest, sizeof digest) == 0) found = &keys->key[i];
    return found;
}

cr_serve_key *cr_serve_keys_named(cr_serve_keys *keys, const char *name)
{
    for (size_t i = 0; i < keys->num; i++)
        if (strcmp(keys->key[i].name, name) == 0) return &keys->key[i];
    return NULL;
}

double cr_serve_key_take(cr_serve_key *key, double now_s)
{
    double max = key->per_s > 1 ? key->per_s : 1;

    if (key->per_s == 0) return 0;
    key->left += (now_s - key->measured_s) * key->per_s;
    if (key->left > max) key->left = max;
    key->measured_s = now_s;
    if (key->left < 1) return (1 - key->left) / key->per_s;
    key->left -= 1;
    return 0;
}
