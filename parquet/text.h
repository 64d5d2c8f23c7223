/* text.h -- a value of a column as JSON. */
#ifndef CR_PARQUET_TEXT_H
#define CR_PARQUET_TEXT_H

#include "parquet/values.h"

/* Append the value. CR_EFORMAT: it cannot be one of its type (text that is not UTF-8, a time outside of its day).
 * *is_finite becomes false for a number that is not, of which null is made. */
CR_MUST cr_status cri_parquet_text_add(const cri_parquet_node *leaf, cri_span value, cr_buf *out,
                                       bool *is_finite, cr_err *err);

#endif
