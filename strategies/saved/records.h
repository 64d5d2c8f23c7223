/* records.h -- parts of a role's files of a checkpoint, as one stream of bytes.
 *
 * Ranks of a host that does not have the run's folder send their parts so to one that has (checkpoint_config.hosts: gather), or
 * keep them so in a file of their own (each); whoever resumes reads the same stream, from a file or from another rank.
 *
 *     "CRSHARD1", then records: u32 file, u32 0, i64 at, i64 num_bytes, and these bytes, which belong at byte `at` of that file
 *     at the end a record of file CR_SAVED_FILES: `at` is the number of bytes of all records, num_bytes the sum of their sums
 *     (cr_sum_bytes at their places, times 2 file + 1)
 *
 * Numbers are little-endian; `at` and num_bytes are even. A stream that is cut or damaged is CR_EFORMAT. One thread.
 */
#ifndef CR_RECORDS_H
#define CR_RECORDS_H

#include "strategies/checkpoint.h"

enum {
    CRI_RECORD_BYTES = 1 << 22, /* what is given to flush at once, but at the end */
    CRI_PUT_BYTES =
        1 << 16, /* what a reader gives to its sink at most; a multiple of every element's size */
    CRI_HEAD_BYTES = 24
};

/* num_bytes of a file, from byte `at` on. data: borrowed during the call. */
typedef cr_status (*cri_put)(void *ctx, int file, int64_t at, const void *data, size_t num_bytes,
                             cr_err *err);

typedef struct cri_records {
    cr_status (*flush)(void *ctx, const void *data, size_t num_bytes, cr_err *err);
    void *ctx;
    char *block; /* owned */
    size_t num;  /* bytes in it */
    int64_t num_bytes;
    uint64_t sums[CR_SAVED_FILES]; /* cr_sum_bytes, so far */
} cri_records;

void cri_records_begin(cri_records *r);
CR_MUST cr_status cri_records_put(void *records, int file, int64_t at, const void *data,
                                  size_t num_bytes, cr_err *err); /* a cri_put */
CR_MUST cr_status cri_records_end(cri_records *r, cr_err *err);   /* flushes the rest */
void cri_records_free(cri_records *r);

typedef struct cri_record_reader {
    const char *name; /* borrowed, for messages */
    cri_put put;
    void *ctx;
    char head[CRI_HEAD_BYTES], *data; /* data: owned, [CRI_PUT_BYTES] */
    size_t num_head, num_data;
    int file; /* of the record under way */
    int64_t at, left, num_bytes;
    uint64_t sums[CR_SAVED_FILES];
    bool has_begun, is_in_record, has_ended;
} cri_record_reader;

/* Any number of bytes of the stream, in order. */
CR_MUST cr_status cri_record_reader_feed(cri_record_reader *r, const void *data, size_t num_bytes,
                                         cr_err *err);
CR_MUST cr_status cri_record_reader_end(const cri_record_reader *r, cr_err *err); /* all has come */
void cri_record_reader_free(cri_record_reader *r);
/* A whole file. */
CR_MUST cr_status cri_record_file_read(const char *path, cri_put put, void *ctx, cr_err *err);

#endif
