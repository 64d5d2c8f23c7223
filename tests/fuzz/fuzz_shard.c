/* fuzz_shard.c -- arbitrary bytes as a rank's part of a checkpoint (state/ROLE.rank-NN.TAG.shard), whole and cut in two. */
#include "strategies/checkpoint.h"
#include "strategies/saved/records.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static cr_status take(void *ctx, int file, int64_t at, const void *bytes, size_t num_bytes,
                      cr_err *err)
{
    int64_t *all = ctx;

    (void)bytes;
    (void)err;
    CR_CHECK(file >= 0 && file < CR_SAVED_FILES && at >= 0 && num_bytes > 0 &&
                 num_bytes <= CRI_PUT_BYTES && at <= INT64_MAX - (int64_t)num_bytes,
             "file %d, %zu bytes at %lld", file, num_bytes, (long long)at);
    *all += (int64_t)num_bytes;
    return CR_OK;
}

static cr_status read_in_two(const uint8_t *data, size_t size, size_t cut, int64_t *all)
{
    cri_record_reader r = {.name = "part", .put = take, .ctx = all};
    cr_err err = {0};

    if (cri_record_reader_feed(&r, data, cut, &err) == CR_OK &&
        cri_record_reader_feed(&r, data + cut, size - cut, &err) == CR_OK)
        cr_note(cri_record_reader_end(&r, &err));
    CR_CHECK(*all <= (int64_t)size, "%lld bytes of %zu", (long long)*all, size);
    cri_record_reader_free(&r);
    return err.status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t once = 0, twice = 0;
    cr_status status = read_in_two(data, size, size, &once);

    CR_CHECK(read_in_two(data, size, size / 2, &twice) == status && once == twice,
             "a cut changes what is read");
    return 0;
}
