/* column.h -- a leaf of the schema read front to back: its pages, their levels, its values. One page of a column and its
 * dictionary are in memory at a time; the pages of all columns together have a limit.
 */
#ifndef CR_PARQUET_COLUMN_H
#define CR_PARQUET_COLUMN_H

#include "parquet/values.h"

typedef struct cri_parquet_file {
    const char *path; /* borrowed */
    int fd;
    int64_t num_bytes;
    size_t held_bytes; /* of unpacked pages and dictionaries of all columns */
} cri_parquet_file;

typedef struct cri_parquet_column {
    cri_parquet_file *file;
    const cri_parquet_node *leaf;
    size_t group; /* of rows, from 0 */
    int page;     /* from 1 */
    int32_t codec;
    int64_t at, end;     /* bytes of the file: the next page, the end of the chunk */
    int64_t values_left; /* of the chunk, after those of this page */
    int64_t page_left;
    cr_buf window; /* bytes of the file from window_at on */
    int64_t window_at;
    cr_buf unpacked, dictionary_page;
    cri_dictionary dictionary;
    bool has_dictionary;
    cri_runs reps, defs;
    cri_parquet_values values;
    bool is_peeked, is_end;
    int rep, def; /* of the value that is next, after cri_column_peek */
} cri_parquet_column;

/* Begin a chunk; columns begin as {.file = .., .leaf = ..}. */
CR_MUST cr_status cri_column_begin(cri_parquet_column *c, const cri_parquet_chunk *chunk,
                                   size_t group, cr_err *err);
/* Fill rep and def, or is_end. */
CR_MUST cr_status cri_column_peek(cri_parquet_column *c, cr_err *err);
/* The value that was peeked at, whose def is the leaf's; borrowed until the next call. */
CR_MUST cr_status cri_column_value(cri_parquet_column *c, cri_span *out, cr_err *err);
void cri_column_free(cri_parquet_column *c);

#endif
