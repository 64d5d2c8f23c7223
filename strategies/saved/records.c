/* records.c -- see records.h. */
#include "strategies/saved/records.h"
#include "base/digest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = "CRSHARD1";

typedef struct head {
    uint32_t file, zero;
    int64_t at, num_bytes;
} head;
_Static_assert(sizeof(head) == CRI_HEAD_BYTES, "no padding");

/* Of bytes at their places in their files; however they are cut. */
static int64_t sum_of(const uint64_t sums[CR_SAVED_FILES])
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < CR_SAVED_FILES; i++)
        sum += sums[i] * (2 * i + 1);
    return (int64_t)sum;
}

/* ---- writing ---- */

static cr_status add(cri_records *r, const void *data, size_t num_bytes, cr_err *err)
{
    const char *from = data;

    while (num_bytes) {
        size_t room = CRI_RECORD_BYTES - r->num, n = num_bytes < room ? num_bytes : room;
        memcpy(r->block + r->num, from, n);
        r->num += n;
        from += n;
        num_bytes -= n;
        if (r->num < CRI_RECORD_BYTES) break;
        CR_TRY(r->flush(r->ctx, r->block, r->num, err));
        r->num = 0;
    }
    return CR_OK;
}

void cri_records_begin(cri_records *r)
{
    r->block = cr_alloc(CRI_RECORD_BYTES);
    memcpy(r->block, magic, sizeof magic);
    r->num = sizeof magic;
}

cr_status cri_records_put(void *records, int file, int64_t at, const void *data, size_t num_bytes,
                          cr_err *err)
{
    cri_records *r = records;
    const head h = {(uint32_t)file, 0, at, (int64_t)num_bytes};

    r->num_bytes += (int64_t)num_bytes;
    r->sums[file] += cr_sum_bytes(at, data, num_bytes);
    CR_TRY(add(r, &h, sizeof h, err));
    return add(r, data, num_bytes, err);
}

cr_status cri_records_end(cri_records *r, cr_err *err)
{
    const head h = {CR_SAVED_FILES, 0, r->num_bytes, sum_of(r->sums)};

    CR_TRY(add(r, &h, sizeof h, err));
    return r->num ? r->flush(r->ctx, r->block, r->num, err) : CR_OK;
}

void cri_records_free(cri_records *r)
{
    cr_free(r->block);
}

/* ---- reading ---- */

static cr_status damaged(const cri_record_reader *r, const char *what, cr_err *err)
{
    return cr_fail(err, CR_EFORMAT, "%s %s (damaged?)", r->name, what);
}

static cr_status take_head(cri_record_reader *r, cr_err *err)
{
    head h;

    memcpy(&h, r->head, sizeof h);
    if (h.zero || h.file > CR_SAVED_FILES) return damaged(r, "has a record of no file", err);
    if (h.file == CR_SAVED_FILES) {
        r->has_ended = true;
        if (h.at != r->num_bytes || h.num_bytes != sum_of(r->sums))
            return damaged(r, "does not hold what its end says", err);
        return CR_OK;
    }
    if (h.at < 0 || h.num_bytes <= 0 || h.num_bytes > INT64_MAX - h.at || h.at % 2 ||
        h.num_bytes % 2 || h.num_bytes > INT64_MAX - r->num_bytes)
        return damaged(r, "has a record of no place", err);
    r->file = (int)h.file;
    r->at = h.at;
    r->left = h.num_bytes;
    r->is_in_record = true;
    return CR_OK;
}

static cr_status take_data(cri_record_reader *r, cr_err *err)
{
    size_t n = r->num_data;

    r->num_bytes += (int64_t)n;
    r->sums[r->file] += cr_sum_bytes(r->at, r->data, n);
    r->num_data = 0;
    CR_TRY(r->put(r->ctx, r->file, r->at, r->data, n, err));
    r->at += (int64_t)n;
    r->left -= (int64_t)n;
    r->is_in_record = r->left > 0;
    return CR_OK;
}

/* Moves up to `want` bytes in all to `to`, which holds *num of them; true when they are there. */
static bool fill(char *to, size_t *num, size_t want, const char **from, const char *end)
{
    size_t n = want - *num, there = (size_t)(end - *from);

    if (n > there) n = there;
    memcpy(to + *num, *from, n);
    *num += n;
    *from += n;
    return *num == want;
}

cr_status cri_record_reader_feed(cri_record_reader *r, const void *data, size_t num_bytes,
                                 cr_err *err)
{
    const char *from = data, *end = from + num_bytes;

    if (!r->data) r->data = cr_alloc(CRI_PUT_BYTES);
    while (from < end) {
        if (r->has_ended) return damaged(r, "goes on after its end", err);
        if (r->is_in_record) {
            size_t want = r->left < CRI_PUT_BYTES ? (size_t)r->left : CRI_PUT_BYTES;
            if (fill(r->data, &r->num_data, want, &from, end)) CR_TRY(take_data(r, err));
        } else if (!r->has_begun) {
            if (!fill(r->head, &r->num_head, sizeof magic, &from, end)) break;
            r->num_head = 0;
            r->has_begun = true;
            if (memcmp(r->head, magic, sizeof magic) != 0)
                return damaged(r, "is no part of a checkpoint", err);
        } else if (fill(r->head, &r->num_head, sizeof r->head, &from, end)) {
            r->num_head = 0;
            CR_TRY(take_head(r, err));
        }
    }
    return CR_OK;
}

cr_status cri_record_reader_end(const cri_record_reader *r, cr_err *err)
{
    return r->has_ended ? CR_OK : damaged(r, "ends early", err);
}

void cri_record_reader_free(cri_record_reader *r)
{
    cr_free(r->data);
}

cr_status cri_record_file_read(const char *path, cri_put put, void *ctx, cr_err *err)
{
    FILE *file = fopen(path, "rb");
    cri_record_reader r = {.name = path, .put = put, .ctx = ctx};
    char *block;
    size_t n;

    if (!file) return cr_fail(err, CR_EIO, "cannot open %s: %s", path, strerror(errno));
    block = cr_alloc(CRI_PUT_BYTES);
    while (err->status == CR_OK && (n = fread(block, 1, CRI_PUT_BYTES, file)) > 0)
        cr_note(cri_record_reader_feed(&r, block, n, err));
    if (ferror(file)) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    if (err->status == CR_OK) cr_note(cri_record_reader_end(&r, err));
    fclose(file);
    cr_free(block);
    cri_record_reader_free(&r);
    return err->status;
}
