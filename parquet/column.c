/* column.c -- see column.h. */
#include "parquet/column.h"
#include "parquet/codec.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 16 << 10, MAX_HEADER = 16 << 20, MAX_PAGE = 1 << 30 };
#define MAX_HELD ((size_t)4 << 30)

static cr_status here(const cri_parquet_column *c, cr_err *err)
{
    return cr_fail_add(err, "row group %zu, column %.100s, page %d", c->group, c->leaf->path,
                       c->page);
}

/* Memory that a column takes instead of old_bytes counts in the limit of all columns. */
static cr_status count(cri_parquet_column *c, size_t old_bytes, size_t num_bytes, cr_err *err)
{
    const size_t others = c->file->held_bytes - old_bytes;

    if (num_bytes > MAX_HELD || others > MAX_HELD - num_bytes)
        return cr_fail(err, CR_EFORMAT,
                       "the pages of its row group take more than %zu bytes at a time", MAX_HELD);
    c->file->held_bytes = others + num_bytes;
    return CR_OK;
}

/* Room in a buffer of the column, which is empty then. */
static cr_status hold(cri_parquet_column *c, cr_buf *buf, size_t num_bytes, cr_err *err)
{
    const size_t before = buf->capacity_bytes;

    cr_buf_clear(buf);
    if (num_bytes < before) return CR_OK;
    CR_TRY(count(c, before, 2 * num_bytes + 64, err)); /* as a buffer grows at most */
    cr_buf_reserve(buf, num_bytes);
    return count(c, 2 * num_bytes + 64, buf->capacity_bytes, err);
}

/* Bytes of the chunk, borrowed until the next call. */
static cr_status bytes_at(cri_parquet_column *c, int64_t at, size_t num_bytes, const uint8_t **out,
                          cr_err *err)
{
    const int64_t skip = at - c->window_at;
    size_t want = num_bytes, done = 0;

    if (skip < 0 || (size_t)skip > c->window.num_bytes ||
        c->window.num_bytes - (size_t)skip < num_bytes) {
        if (want < WINDOW) want = c->end - at < WINDOW ? (size_t)(c->end - at) : WINDOW;
        CR_TRY(hold(c, &c->window, want, err));
        while (done < want) {
            ssize_t n = pread(c->file->fd, c->window.data + done, want - done, at + (int64_t)done);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0)
                return cr_fail(err, CR_EIO, "cannot read it: %s",
                               n < 0 ? strerror(errno) : "the file has become shorter");
            done += (size_t)n;
        }
        c->window.num_bytes = done;
        c->window_at = at;
    }
    *out = (const uint8_t *)c->window.data + (at - c->window_at);
    return CR_OK;
}

/* The header of the page at c->at, which moves on to its bytes. */
static cr_status read_header(cri_parquet_column *c, cri_parquet_page *page, cr_err *err)
{
    cri_header_status status;
    size_t num = WINDOW / 16, used;

    do {
        const uint8_t *data;
        const bool is_all = (int64_t)num >= c->end - c->at;
        if (is_all) num = (size_t)(c->end - c->at);
        CR_TRY(bytes_at(c, c->at, num, &data, err));
        status = cri_parquet_page_parse(data, num, page, &used);
        if (status == CRI_HEADER_SHORT && (is_all || num >= MAX_HEADER)) status = CRI_HEADER_BAD;
        num *= 4;
    } while (status == CRI_HEADER_SHORT);
    if (status != CRI_HEADER_OK) return cr_fail(err, CR_EFORMAT, "its header is damaged");
    c->at += (int64_t)used;
    if (page->num_compressed < 0 || page->num_bytes < 0 || page->num_compressed > c->end - c->at)
        return cr_fail(err, CR_EFORMAT,
                       "its header says %d bytes, %d of them in the file, where %lld are",
                       page->num_bytes, page->num_compressed, (long long)(c->end - c->at));
    if (page->num_bytes > MAX_PAGE)
        return cr_fail(err, CR_EFORMAT, "it has %d bytes, %d are the limit", page->num_bytes,
                       MAX_PAGE);
    return CR_OK;
}

/* Bytes of a page as they were before compression: in the window, or in buf. */
static cr_status unpack(cri_parquet_column *c, const uint8_t *in, size_t in_bytes, size_t out_bytes,
                        bool is_compressed, cr_buf *buf, const uint8_t **out, cr_err *err)
{
    *out = in;
    if (c->codec == CRI_CODEC_NONE || !is_compressed || (in_bytes == 0 && out_bytes == 0))
        return in_bytes == out_bytes
                   ? CR_OK
                   : cr_fail(err, CR_EFORMAT,
                             "it is not compressed, and its two sizes differ (%zu, %zu)", in_bytes,
                             out_bytes);
    CR_TRY(hold(c, buf, out_bytes, err));
    CR_TRY(cri_codec_unpack(c->codec, in, in_bytes, (uint8_t *)buf->data, out_bytes, err));
    *out = (const uint8_t *)buf->data;
    return CR_OK;
}

/* ---- levels ---- */

static int max_rep(const cri_parquet_column *c)
{
    return c->leaf->item_rep - 1;
}

static int bits_of(int max)
{
    int n = 0;

    while (max >> n)
        n++;
    return n;
}

/* Of a page of the first kind: their number of bytes, then them. */
static cr_status take_levels(cri_runs *r, int max, int encoding, const uint8_t **at,
                             const uint8_t *end, cr_err *err)
{
    *r = (cri_runs){.width = bits_of(max)};
    if (max == 0) return CR_OK;
    if (!cri_encoding_is_runs(encoding))
        return cr_fail(err, CR_EABSENT,
                       "its levels have the encoding %d (4: BIT_PACKED), which is not read",
                       encoding);
    if (end - *at < 4 || cri_le32(*at) > (size_t)(end - *at - 4))
        return cr_fail(err, CR_EFORMAT, "its levels are damaged");
    r->at = *at + 4;
    r->end = r->at + cri_le32(*at);
    *at = r->end;
    return CR_OK;
}

static cr_status begin_values(cri_parquet_column *c, const cri_parquet_page *page,
                              const uint8_t *at, const uint8_t *end, cr_err *err)
{
    if (cri_encoding_is_dictionary(page->encoding) && !c->has_dictionary)
        return cr_fail(err, CR_EFORMAT, "it is coded by a dictionary, and its column has none");
    CR_TRY(cri_values_begin(&c->values, c->leaf, page->encoding, at, end, err));
    c->page_left = page->num_values;
    c->values_left -= page->num_values;
    return CR_OK;
}

/* ---- pages ---- */

static cr_status read_data(cri_parquet_column *c, const cri_parquet_page *page, const uint8_t *in,
                           cr_err *err)
{
    const uint8_t *at, *end;

    CR_TRY(unpack(c, in, (size_t)page->num_compressed, (size_t)page->num_bytes, true, &c->unpacked,
                  &at, err));
    end = at + page->num_bytes;
    CR_TRY(take_levels(&c->reps, max_rep(c), page->rep_encoding, &at, end, err));
    CR_TRY(take_levels(&c->defs, c->leaf->def, page->def_encoding, &at, end, err));
    return begin_values(c, page, at, end, err);
}

/* Of the second kind: levels are not compressed, and their sizes are in the header. */
static cr_status read_data_2(cri_parquet_column *c, const cri_parquet_page *page, const uint8_t *in,
                             cr_err *err)
{
    const int64_t levels = (int64_t)page->rep_bytes + page->def_bytes;
    const uint8_t *at;
    size_t num_bytes;

    if (page->rep_bytes < 0 || page->def_bytes < 0 || levels > page->num_compressed ||
        levels > page->num_bytes)
        return cr_fail(err, CR_EFORMAT, "its levels are damaged");
    num_bytes = (size_t)(page->num_bytes - levels);
    c->reps = (cri_runs){.at = in, .end = in + page->rep_bytes, .width = bits_of(max_rep(c))};
    c->defs =
        (cri_runs){.at = in + page->rep_bytes, .end = in + levels, .width = bits_of(c->leaf->def)};
    CR_TRY(unpack(c, in + levels, (size_t)(page->num_compressed - levels), num_bytes,
                  page->is_compressed, &c->unpacked, &at, err));
    return begin_values(c, page, at, at + num_bytes, err);
}

static cr_status read_dictionary(cri_parquet_column *c, const cri_parquet_page *page,
                                 const uint8_t *in, cr_err *err)
{
    const size_t num_bytes = (size_t)page->num_bytes;
    const size_t num_entries = c->leaf->width ? 0 : (size_t)page->num_values;
    const uint8_t *at;

    if (c->has_dictionary || c->page > 1)
        return cr_fail(err, CR_EFORMAT, "it is a dictionary, and not the first page of its column");
    if (!cri_encoding_is_plain(page->encoding))
        return cr_fail(err, CR_EABSENT, "its dictionary has the encoding %d, which is not read",
                       page->encoding);
    CR_TRY(unpack(c, in, (size_t)page->num_compressed, num_bytes, true, &c->dictionary_page, &at,
                  err));
    if (at == in) { /* it outlives the window */
        CR_TRY(hold(c, &c->dictionary_page, num_bytes, err));
        memcpy(c->dictionary_page.data, in, num_bytes);
        at = (const uint8_t *)c->dictionary_page.data;
    }
    CR_TRY(
        count(c, c->dictionary.capacity * sizeof(cri_span), num_entries * sizeof(cri_span), err));
    CR_TRY(cri_dictionary_read(&c->dictionary, c->leaf, (size_t)page->num_values, at,
                               at + num_bytes, err));
    c->has_dictionary = true;
    return CR_OK;
}

static cr_status check_page(const cri_parquet_column *c, const cri_parquet_page *page,
                            const uint8_t *in, cr_err *err)
{
    const bool is_data = page->type == CRI_PAGE_DATA || page->type == CRI_PAGE_DATA_2;

    if (page->has_crc && cri_codec_crc(in, (size_t)page->num_compressed) != page->crc)
        return cr_fail(err, CR_EFORMAT, "it is damaged: its CRC is another one");
    if (!is_data && page->type != CRI_PAGE_DICTIONARY && page->type != CRI_PAGE_INDEX)
        return cr_fail(err, CR_EABSENT, "it is of the kind %d, which is unknown", page->type);
    if (page->type != CRI_PAGE_INDEX && page->num_values < 0)
        return cr_fail(err, CR_EFORMAT, "its header is damaged");
    if (is_data && page->num_values > c->values_left)
        return cr_fail(err, CR_EFORMAT, "it has %d values, and its column only %lld more",
                       page->num_values, (long long)c->values_left);
    return CR_OK;
}

static cr_status next_page(cri_parquet_column *c, cr_err *err)
{
    cri_parquet_page page;
    const uint8_t *in;

    c->page++;
    if (c->at >= c->end)
        return cr_fail(err, CR_EFORMAT, "it is missing: %lld values are not there",
                       (long long)c->values_left);
    CR_TRY(read_header(c, &page, err));
    CR_TRY(bytes_at(c, c->at, (size_t)page.num_compressed, &in, err));
    c->at += page.num_compressed;
    CR_TRY(check_page(c, &page, in, err));
    switch (page.type) {
    case CRI_PAGE_DATA:
        return read_data(c, &page, in, err);
    case CRI_PAGE_DATA_2:
        return read_data_2(c, &page, in, err);
    case CRI_PAGE_DICTIONARY:
        return read_dictionary(c, &page, in, err);
    default:
        return CR_OK; /* an index, which rows do not need */
    }
}

/* ---- a chunk ---- */

static cr_status check_chunk(const cri_parquet_column *c, const cri_parquet_chunk *chunk,
                             int64_t first, cr_err *err)
{
    if (chunk->is_encrypted) return cr_fail(err, CR_EABSENT, "it is encrypted, which is not read");
    if (chunk->is_elsewhere || !chunk->has_data)
        return cr_fail(err, CR_EABSENT, "it is in another file, which is not read");
    if (chunk->type != (int32_t)c->leaf->element->type)
        return cr_fail(err, CR_EFORMAT, "its type is not that of the schema");
    CR_TRY(cri_codec_check(chunk->codec, err));
    if (first < 4 || chunk->num_bytes < 0 || first > c->file->num_bytes ||
        chunk->num_bytes > c->file->num_bytes - first || chunk->num_values < 0)
        return cr_fail(err, CR_EFORMAT, "it is said to be %lld bytes at %lld of %lld",
                       (long long)chunk->num_bytes, (long long)first,
                       (long long)c->file->num_bytes);
    return CR_OK;
}

cr_status cri_column_begin(cri_parquet_column *c, const cri_parquet_chunk *chunk, size_t group,
                           cr_err *err)
{
    int64_t first = chunk->data_at;

    if (chunk->dictionary_at > 0 && chunk->dictionary_at < first) first = chunk->dictionary_at;
    c->group = group;
    c->page = 0;
    if (check_chunk(c, chunk, first, err) != CR_OK)
        return cr_fail_add(err, "row group %zu, column %.100s", group, c->leaf->path);
    c->codec = chunk->codec;
    c->at = first;
    c->end = first + chunk->num_bytes;
    c->values_left = chunk->num_values;
    c->page_left = 0;
    c->has_dictionary = c->is_peeked = c->is_end = false;
    return CR_OK;
}

cr_status cri_column_peek(cri_parquet_column *c, cr_err *err)
{
    uint32_t rep = 0, def = 0;

    if (c->is_peeked) return CR_OK;
    while (c->page_left == 0) {
        if (c->values_left == 0) {
            c->is_end = true;
            return CR_OK;
        }
        if (next_page(c, err) != CR_OK) return here(c, err);
    }
    if ((c->reps.width && !cri_runs_next(&c->reps, &rep)) ||
        (c->defs.width && !cri_runs_next(&c->defs, &def)) || rep > (uint32_t)max_rep(c) ||
        def > (uint32_t)c->leaf->def) {
        cr_fail(err, CR_EFORMAT, "its levels are damaged");
        return here(c, err);
    }
    c->page_left--;
    c->rep = (int)rep;
    c->def = (int)def;
    c->is_peeked = true;
    return CR_OK;
}

cr_status cri_column_value(cri_parquet_column *c, cri_span *out, cr_err *err)
{
    if (cri_values_next(&c->values, c->leaf, &c->dictionary, out, err) != CR_OK)
        return here(c, err);
    return CR_OK;
}

void cri_column_free(cri_parquet_column *c)
{
    cr_buf_free(&c->window);
    cr_buf_free(&c->unpacked);
    cr_buf_free(&c->dictionary_page);
    cr_buf_free(&c->values.last);
    cr_free(c->dictionary.entries);
}
