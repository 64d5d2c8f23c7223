/* strategies_records.c -- a stream of records: what was put in comes out, however the stream is cut; a stream that is cut short,
 * goes on, or has a byte changed is an error, and never other data at another place.
 * Not covered: files and ranks (mesh/strategies, e2e/hosts_runs.sh).
 */
#include "base/digest.h"
#include "base/rng.h"
#include "strategies/checkpoint.h"
#include "strategies/saved/records.h"

#include <setjmp.h> /* cmocka needs these before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { FILE_BYTES = 300000 };

static uint64_t chance(uint64_t i)
{
    return cr_hash64(&i, sizeof i);
}

static char want[CR_SAVED_FILES][FILE_BYTES], got[CR_SAVED_FILES][FILE_BYTES];

static cr_status keep(void *ctx, const void *data, size_t num_bytes, cr_err *err)
{
    (void)err;
    cr_buf_add(ctx, data, num_bytes);
    return CR_OK;
}

static cr_status take(void *ctx, int file, int64_t at, const void *data, size_t num_bytes,
                      cr_err *err)
{
    (void)ctx;
    assert_in_range(file, 0, CR_SAVED_FILES - 1);
    if (at < 0 || at > FILE_BYTES || (int64_t)num_bytes > FILE_BYTES - at)
        return cr_fail(err, CR_EFORMAT, "a place beyond the file");
    memcpy(got[file] + at, data, num_bytes);
    return CR_OK;
}

static void make(cr_buf *out, size_t longest)
{
    cri_records r = {.flush = keep, .ctx = out};
    cr_err err = {0};
    uint64_t at = 0;

    for (int f = 0; f < CR_SAVED_FILES; f++)
        for (size_t i = 0; i < FILE_BYTES; i++)
            want[f][i] = (char)chance((uint64_t)f * FILE_BYTES + i);
    cri_records_begin(&r);
    for (int f = 0; f < CR_SAVED_FILES; f++)
        for (size_t i = 0; i < FILE_BYTES;) {
            size_t n = 2 + chance(++at) % longest / 2 * 2;
            if (n > FILE_BYTES - i) n = FILE_BYTES - i;
            assert_int_equal(cri_records_put(&r, f, (int64_t)i, want[f] + i, n, &err), CR_OK);
            i += n;
        }
    assert_int_equal(cri_records_end(&r, &err), CR_OK);
    cri_records_free(&r);
}

static cr_status read_all(const cr_buf *stream, size_t piece, cr_err *err)
{
    cri_record_reader r = {.name = "the stream", .put = take};

    for (size_t i = 0; i < stream->num_bytes && err->status == CR_OK; i += piece) {
        size_t n = stream->num_bytes - i < piece ? stream->num_bytes - i : piece;
        cr_note(cri_record_reader_feed(&r, stream->data + i, n, err));
    }
    if (err->status == CR_OK) cr_note(cri_record_reader_end(&r, err));
    cri_record_reader_free(&r);
    return err->status;
}

static void what_is_put_in_comes_out(void **state)
{
    static const size_t pieces[] = {1, 23, 4096, 65537, 1 << 22};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(pieces); i++) {
        cr_buf stream = {0};
        cr_err err = {0};
        make(&stream, i % 2 ? 200000 : 3000);
        memset(got, 0, sizeof got);
        if (read_all(&stream, pieces[i], &err) != CR_OK) fail_msg("%s", err.msg);
        assert_memory_equal(got, want, sizeof want);
        cr_buf_free(&stream);
    }
}

static void damage_is_an_error(void **state)
{
    cr_buf stream = {0};
    cr_err err;

    (void)state;
    make(&stream, 100000);
    for (uint64_t turn = 0; turn < 300; turn++) {
        size_t i = turn < 60 ? turn : chance(turn) % stream.num_bytes, all = stream.num_bytes;
        stream.data[i] ^= (char)(1 << turn % 8);
        err = (cr_err){0};
        if (read_all(&stream, 4096, &err) != CR_EFORMAT) fail_msg("byte %zu is changed", i);
        stream.data[i] ^= (char)(1 << turn % 8);
        stream.num_bytes = i;
        err = (cr_err){0};
        if (read_all(&stream, 4096, &err) != CR_EFORMAT || !strstr(err.msg, "the stream"))
            fail_msg("it ends at byte %zu: %s", i, err.msg);
        stream.num_bytes = all;
    }
    cr_buf_add(&stream, "", 1);
    err = (cr_err){0};
    assert_int_equal(read_all(&stream, 4096, &err), CR_EFORMAT);
    cr_buf_free(&stream);
}

/* By the definition, word by word; parts add up, a part of zeros takes nothing, a missing one is seen. */
static void sums(void **state)
{
    uint64_t slow = 0, parts = 0;

    (void)state;
    for (size_t i = 0; i < FILE_BYTES / 2; i++) {
        uint16_t word;
        memcpy(&word, want[0] + 2 * i, 2);
        slow += word * (uint64_t)(i + 1);
    }
    assert_true(cr_sum_bytes(0, want[0], FILE_BYTES) == slow);
    for (int64_t i = 0; i < FILE_BYTES; i += 70002)
        parts +=
            cr_sum_bytes(i, want[0] + i, (size_t)(FILE_BYTES - i < 70002 ? FILE_BYTES - i : 70002));
    assert_true(parts == slow);
    assert_true(cr_sum_bytes(8, "\0\0\0", 4) == 0);
    assert_true(cr_sum_bytes(0, "\0\0\x7", 3) == 14); /* an odd byte is a word with a zero */
    assert_true(slow - cr_sum_bytes(1000, want[0] + 1000, 200) != slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_in_comes_out),
        cmocka_unit_test(damage_is_an_error),
        cmocka_unit_test(sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
