/* values.h -- the values of a page, in each of the format's encodings, and dictionaries. All borrow the page's bytes. */
#ifndef CR_PARQUET_VALUES_H
#define CR_PARQUET_VALUES_H

#include "parquet/decode.h"
#include "parquet/schema.h"

/* A value: its bytes as PLAIN has them; a boolean is one byte. */
typedef struct cri_span {
    const uint8_t *data;
    size_t num_bytes;
} cri_span;

typedef struct cri_dictionary {
    const uint8_t *data;
    cri_span *entries; /* where values have no fixed width (owned) */
    size_t num, capacity;
} cri_dictionary;

typedef struct cri_parquet_values { /* those that are not given yet */
    int encoding;
    const uint8_t *at, *end;
    size_t index, num; /* BYTE_STREAM_SPLIT; index: booleans of PLAIN, too */
    cri_runs runs;
    cri_delta delta;  /* values, or lengths */
    cri_delta shared; /* bytes that a value has in common with the one before */
    cr_buf last;      /* that one, or what a value is put together in (owned) */
} cri_parquet_values;

/* CR_EABSENT: an encoding that is not read for this type, by its name. */
CR_MUST cr_status cri_values_begin(cri_parquet_values *v, const cri_parquet_node *leaf,
                                   int encoding, const uint8_t *at, const uint8_t *end,
                                   cr_err *err);
/* Borrowed until the next call. */
CR_MUST cr_status cri_values_next(cri_parquet_values *v, const cri_parquet_node *leaf,
                                  const cri_dictionary *dictionary, cri_span *out, cr_err *err);
CR_MUST cr_status cri_dictionary_read(cri_dictionary *d, const cri_parquet_node *leaf, size_t num,
                                      const uint8_t *at, const uint8_t *end, cr_err *err);
bool cri_encoding_is_plain(int encoding);      /* of a dictionary */
bool cri_encoding_is_runs(int encoding);       /* of levels */
bool cri_encoding_is_dictionary(int encoding); /* of values that are indices */

#endif
