/* footer.h -- Parquet's metadata as its specification lays it out (parquet.thrift): the footer of a file, and the header of
 * a page. Numbers of enumerations are those of the format. Nothing is trusted: whoever uses an offset or a size checks it
 * against the file.
 */
#ifndef CR_PARQUET_FOOTER_H
#define CR_PARQUET_FOOTER_H

#include "base/base.h"

typedef enum cri_parquet_type {
    CRI_PARQUET_GROUP = -1,
    CRI_PARQUET_BOOLEAN,
    CRI_PARQUET_INT32,
    CRI_PARQUET_INT64,
    CRI_PARQUET_INT96,
    CRI_PARQUET_FLOAT,
    CRI_PARQUET_DOUBLE,
    CRI_PARQUET_BYTES,
    CRI_PARQUET_FIXED,
    CRI_PARQUET_NUM_TYPES
} cri_parquet_type;

/* Members of the union LogicalType; the older ConvertedType is translated to them. */
typedef enum cri_parquet_logical {
    CRI_LOGICAL_NONE,
    CRI_LOGICAL_STRING,
    CRI_LOGICAL_MAP,
    CRI_LOGICAL_LIST,
    CRI_LOGICAL_ENUM,
    CRI_LOGICAL_DECIMAL,
    CRI_LOGICAL_DATE,
    CRI_LOGICAL_TIME,
    CRI_LOGICAL_TIMESTAMP,
    CRI_LOGICAL_INTEGER = 10,
    CRI_LOGICAL_NULL,
    CRI_LOGICAL_JSON,
    CRI_LOGICAL_BSON,
    CRI_LOGICAL_UUID,
    CRI_LOGICAL_FLOAT16,
    CRI_LOGICAL_VARIANT,
    CRI_LOGICAL_GEOMETRY,
    CRI_LOGICAL_GEOGRAPHY,
    CRI_LOGICAL_INTERVAL = 100 /* a ConvertedType only */
} cri_parquet_logical;

enum { CRI_PARQUET_REQUIRED, CRI_PARQUET_OPTIONAL, CRI_PARQUET_REPEATED };

/* A node of the schema, in depth-first order. */
typedef struct cri_parquet_element {
    cri_parquet_type type;
    int32_t type_length, repetition, num_children;
    char *name; /* owned */
    int logical;
    int32_t scale;
    int units_per_second; /* of TIME and TIMESTAMP */
    bool is_utc;          /* of TIMESTAMP */
    bool is_unsigned;     /* of INTEGER */
} cri_parquet_element;

/* A column of a row group. */
typedef struct cri_parquet_chunk {
    int32_t type, codec;
    int64_t num_values, num_bytes; /* values with nulls and empty lists; bytes of its pages */
    int64_t data_at, dictionary_at;
    bool is_elsewhere, is_encrypted, has_data;
} cri_parquet_chunk;

typedef struct cri_parquet_group {
    cri_parquet_chunk *chunks; /* owned */
    size_t num_chunks;
    int64_t num_rows;
} cri_parquet_group;

typedef struct cri_parquet_footer {
    cri_parquet_element *elements; /* owned */
    size_t num_elements;
    cri_parquet_group *groups; /* owned */
    size_t num_groups;
    int64_t num_rows;
    bool is_encrypted;
} cri_parquet_footer;

/* CR_EFORMAT: the bytes are no such footer. */
CR_MUST cr_status cri_parquet_footer_parse(const uint8_t *data, size_t num_bytes,
                                           cri_parquet_footer *out, cr_err *err);
void cri_parquet_footer_free(cri_parquet_footer *footer); /* accepts {0} */

enum { CRI_PAGE_DATA, CRI_PAGE_INDEX, CRI_PAGE_DICTIONARY, CRI_PAGE_DATA_2 };

typedef struct cri_parquet_page {
    int32_t type, num_bytes, num_compressed; /* bytes of it, before and after compression */
    uint32_t crc;
    bool has_crc;
    int32_t num_values, encoding;       /* -1: its header is missing */
    int32_t def_encoding, rep_encoding; /* CRI_PAGE_DATA */
    int32_t def_bytes, rep_bytes;       /* CRI_PAGE_DATA_2 */
    bool is_compressed;
} cri_parquet_page;

typedef enum { CRI_HEADER_OK, CRI_HEADER_SHORT, CRI_HEADER_BAD } cri_header_status;
/* *used: bytes of the header. CRI_HEADER_SHORT: it needs more bytes than there are. */
cri_header_status cri_parquet_page_parse(const uint8_t *data, size_t num_bytes,
                                         cri_parquet_page *out, size_t *used);

#endif
