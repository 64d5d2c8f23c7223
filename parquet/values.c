/* values.c -- see values.h. */
#include "parquet/values.h"

#include <string.h>

enum {
    PLAIN,
    PLAIN_DICTIONARY = 2,
    RLE,
    BIT_PACKED,
    DELTA_BINARY_PACKED,
    DELTA_LENGTH_BYTE_ARRAY,
    DELTA_BYTE_ARRAY,
    RLE_DICTIONARY,
    BYTE_STREAM_SPLIT
};

bool cri_encoding_is_plain(int encoding)
{
    return encoding == PLAIN || encoding == PLAIN_DICTIONARY;
}

bool cri_encoding_is_runs(int encoding)
{
    return encoding == RLE;
}

bool cri_encoding_is_dictionary(int encoding)
{
    return encoding == PLAIN_DICTIONARY || encoding == RLE_DICTIONARY;
}

/* Whether the format has the encoding for the type. */
static bool fits(int encoding, cri_parquet_type type)
{
    const bool is_int = type == CRI_PARQUET_INT32 || type == CRI_PARQUET_INT64,
               is_bytes = type == CRI_PARQUET_BYTES, is_fixed = type == CRI_PARQUET_FIXED;

    switch (encoding) {
    case PLAIN:
        return true;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        return type != CRI_PARQUET_BOOLEAN;
    case RLE:
        return type == CRI_PARQUET_BOOLEAN;
    case DELTA_BINARY_PACKED:
        return is_int;
    case DELTA_LENGTH_BYTE_ARRAY:
        return is_bytes;
    case DELTA_BYTE_ARRAY:
        return is_bytes || is_fixed;
    case BYTE_STREAM_SPLIT:
        return is_int || is_fixed || type == CRI_PARQUET_FLOAT || type == CRI_PARQUET_DOUBLE;
    default:
        return false;
    }
}

static cr_status check_encoding(int encoding, cri_parquet_type type, cr_err *err)
{
    static const char *const names[] = {"PLAIN",
                                        "1",
                                        "PLAIN_DICTIONARY",
                                        "RLE",
                                        "BIT_PACKED",
                                        "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY",
                                        "DELTA_BYTE_ARRAY",
                                        "RLE_DICTIONARY",
                                        "BYTE_STREAM_SPLIT"};

    if (fits(encoding, type)) return CR_OK;
    if (encoding < 0 || encoding >= (int)CR_COUNT(names))
        return cr_fail(err, CR_EABSENT, "its values have the encoding %d, which is unknown",
                       encoding);
    return cr_fail(err, CR_EABSENT,
                   "its values have the encoding %s, which is not read for their type",
                   names[encoding]);
}

static cr_status damaged(cr_err *err)
{
    return cr_fail(err, CR_EFORMAT, "its values are damaged, or end early");
}

/* Lengths, or differences: a page without values may have no bytes at all. */
static bool begin_delta(cri_delta *d, const uint8_t *at, const uint8_t *end)
{
    *d = (cri_delta){.at = at, .end = end};
    return at == end || cri_delta_begin(d, at, end);
}

/* Lengths come first, then bytes. */
static bool begin_bytes(cri_parquet_values *v)
{
    const uint8_t *bytes;

    if (v->encoding == DELTA_BYTE_ARRAY) {
        if (!begin_delta(&v->shared, v->at, v->end)) return false;
        v->at = cri_delta_end(v->shared);
        if (!v->at) return false;
    }
    if (!begin_delta(&v->delta, v->at, v->end)) return false;
    bytes = cri_delta_end(v->delta);
    v->at = bytes;
    return bytes != NULL;
}

cr_status cri_values_begin(cri_parquet_values *v, const cri_parquet_node *leaf, int encoding,
                           const uint8_t *at, const uint8_t *end, cr_err *err)
{
    const size_t num_bytes = (size_t)(end - at);
    bool is_good = true;

    CR_TRY(check_encoding(encoding, leaf->element->type, err));
    v->encoding = encoding;
    v->at = at;
    v->end = end;
    v->index = 0;
    cr_buf_clear(&v->last);
    switch (encoding) {
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        v->runs = (cri_runs){.at = at + (num_bytes > 0), .end = end, .width = num_bytes ? *at : 0};
        is_good = v->runs.width <= 32;
        break;
    case RLE:
        is_good = num_bytes == 0 || (num_bytes >= 4 && cri_le32(at) <= num_bytes - 4);
        if (is_good && num_bytes)
            v->runs = (cri_runs){.at = at + 4, .end = at + 4 + cri_le32(at), .width = 1};
        else
            v->runs = (cri_runs){.at = end, .end = end};
        break;
    case DELTA_BINARY_PACKED:
        is_good = begin_delta(&v->delta, at, end);
        break;
    case DELTA_LENGTH_BYTE_ARRAY:
    case DELTA_BYTE_ARRAY:
        is_good = begin_bytes(v);
        break;
    case BYTE_STREAM_SPLIT:
        v->num = num_bytes / (size_t)leaf->width;
        is_good = num_bytes % (size_t)leaf->width == 0;
        break;
    default:
        break;
    }
    return is_good ? CR_OK : damaged(err);
}

/* ---- the next value ---- */

static bool take(cri_parquet_values *v, size_t num_bytes, cri_span *out)
{
    if ((size_t)(v->end - v->at) < num_bytes) return false;
    *out = (cri_span){v->at, num_bytes};
    v->at += num_bytes;
    return true;
}

static bool next_plain(cri_parquet_values *v, const cri_parquet_node *leaf, cri_span *out)
{
    static const uint8_t bits[2] = {0, 1};
    cri_span length;

    if (leaf->element->type == CRI_PARQUET_BOOLEAN) {
        const size_t i = v->index++;
        if (i / 8 >= (size_t)(v->end - v->at)) return false;
        *out = (cri_span){&bits[v->at[i / 8] >> i % 8 & 1], 1};
        return true;
    }
    if (leaf->width) return take(v, (size_t)leaf->width, out);
    return take(v, 4, &length) && take(v, cri_le32(length.data), out);
}

static bool next_entry(cri_parquet_values *v, const cri_parquet_node *leaf,
                       const cri_dictionary *dictionary, cri_span *out)
{
    uint32_t index;

    if (!cri_runs_next(&v->runs, &index) || index >= dictionary->num) return false;
    if (leaf->width)
        *out = (cri_span){dictionary->data + (size_t)leaf->width * index, (size_t)leaf->width};
    else
        *out = dictionary->entries[index];
    return true;
}

static bool next_bool(cri_parquet_values *v, cri_span *out)
{
    uint32_t bit;
    char byte;

    if (!cri_runs_next(&v->runs, &bit)) return false;
    byte = (char)bit;
    cr_buf_clear(&v->last);
    cr_buf_addc(&v->last, byte);
    *out = (cri_span){(const uint8_t *)v->last.data, 1};
    return true;
}

static bool next_difference(cri_parquet_values *v, const cri_parquet_node *leaf, cri_span *out)
{
    char bytes[8];
    int64_t x;

    if (!cri_delta_next(&v->delta, &x)) return false;
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)x >> 8 * i);
    cr_buf_clear(&v->last);
    cr_buf_add(&v->last, bytes, sizeof bytes);
    *out = (cri_span){(const uint8_t *)v->last.data, (size_t)leaf->width};
    return true;
}

static bool next_bytes(cri_parquet_values *v, const cri_parquet_node *leaf, cri_span *out)
{
    int64_t length, shared = 0;

    if (v->encoding == DELTA_BYTE_ARRAY && !cri_delta_next(&v->shared, &shared)) return false;
    if (!cri_delta_next(&v->delta, &length) || length < 0 || shared < 0 ||
        (uint64_t)shared > v->last.num_bytes || !take(v, (size_t)length, out))
        return false;
    if (v->encoding == DELTA_BYTE_ARRAY) {
        v->last.num_bytes = (size_t)shared;
        cr_buf_add(&v->last, out->data, out->num_bytes);
        *out = (cri_span){(const uint8_t *)v->last.data, v->last.num_bytes};
    }
    return !leaf->width || out->num_bytes == (size_t)leaf->width;
}

static bool next_split(cri_parquet_values *v, const cri_parquet_node *leaf, cri_span *out)
{
    if (v->index >= v->num) return false;
    cr_buf_clear(&v->last);
    for (int k = 0; k < leaf->width; k++)
        cr_buf_addc(&v->last, (char)v->at[(size_t)k * v->num + v->index]);
    v->index++;
    *out = (cri_span){(const uint8_t *)v->last.data, (size_t)leaf->width};
    return true;
}

cr_status cri_values_next(cri_parquet_values *v, const cri_parquet_node *leaf,
                          const cri_dictionary *dictionary, cri_span *out, cr_err *err)
{
    bool is_good;

    switch (v->encoding) {
    case PLAIN:
        is_good = next_plain(v, leaf, out);
        break;
    case RLE:
        is_good = next_bool(v, out);
        break;
    case DELTA_BINARY_PACKED:
        is_good = next_difference(v, leaf, out);
        break;
    case DELTA_LENGTH_BYTE_ARRAY:
    case DELTA_BYTE_ARRAY:
        is_good = next_bytes(v, leaf, out);
        break;
    case BYTE_STREAM_SPLIT:
        is_good = next_split(v, leaf, out);
        break;
    default:
        is_good = next_entry(v, leaf, dictionary, out);
    }
    return is_good ? CR_OK : damaged(err);
}

cr_status cri_dictionary_read(cri_dictionary *d, const cri_parquet_node *leaf, size_t num,
                              const uint8_t *at, const uint8_t *end, cr_err *err)
{
    cri_parquet_values plain = {.at = at, .end = end};

    if (leaf->element->type == CRI_PARQUET_BOOLEAN)
        return cr_fail(err, CR_EFORMAT, "it is a dictionary of booleans");
    d->data = at;
    d->num = 0;
    if (num > (size_t)(end - at) / (leaf->width ? (size_t)leaf->width : 4)) return damaged(err);
    if (!leaf->width) { /* exactly: the caller has counted them */
        cr_free(d->entries);
        d->entries = CR_NEW_ARRAY(cri_span, num);
        d->capacity = num;
    }
    for (size_t i = 0; i < num && !leaf->width; i++)
        if (!next_plain(&plain, leaf, &d->entries[i])) return damaged(err);
    d->num = num;
    return CR_OK;
}
