/* schema.h -- the tree that a row of a Parquet file is, made of the flat list in its footer: which columns (leaves) there
 * are, what their values mean, and with which levels lists and nulls are written. Lists of three levels, of the older two, and
 * repeated fields without a list around them are all LIST.
 */
#ifndef CR_PARQUET_SCHEMA_H
#define CR_PARQUET_SCHEMA_H

#include "parquet/footer.h"

typedef enum cri_parquet_kind {
    CRI_KIND_STRUCT,
    CRI_KIND_LIST, /* children: the element */
    CRI_KIND_MAP,  /* children: key and value */
    CRI_KIND_BOOL,
    CRI_KIND_INT,
    CRI_KIND_UINT,
    CRI_KIND_HALF,
    CRI_KIND_FLOAT,
    CRI_KIND_DOUBLE,
    CRI_KIND_TEXT,
    CRI_KIND_BYTES,
    CRI_KIND_UUID,
    CRI_KIND_DECIMAL,
    CRI_KIND_DATE,
    CRI_KIND_TIME,
    CRI_KIND_TIMESTAMP,
    CRI_KIND_INT96,
    CRI_KIND_NULL
} cri_parquet_kind;

typedef struct cri_parquet_node {
    cri_parquet_kind kind;
    const cri_parquet_element *element; /* borrowed from the footer */
    char *path;                         /* a leaf's names with dots between them (owned) */
    char *key;                          /* a field of a struct: "name":, as JSON (owned) */
    int def,
        item_def; /* a value is there from this definition level on; an item of a LIST or MAP */
    int item_rep; /* the repetition level of a further item of it */
    bool is_optional;
    int width; /* bytes of a value of a fixed width, 0: each has a length */
    size_t first_leaf, num_leaves;
    struct cri_parquet_node *children; /* owned */
    size_t num_children;
} cri_parquet_node;

/* The root is a STRUCT. Refused by name: what no row can have, and types that are not known here. footer must outlive it. */
CR_MUST cr_status cri_parquet_schema_make(const cri_parquet_footer *footer, cri_parquet_node *root,
                                          cr_err *err);
void cri_parquet_node_free(cri_parquet_node *node);

#endif
