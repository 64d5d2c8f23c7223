/* thrift.h -- Thrift's compact protocol, as much of it as Parquet's metadata needs (read only).
 *
 * A reader never leaves its bytes. What is malformed, or of another type than asked for, sets is_bad; from then on every
 * call returns 0 and moves nothing, so a caller looks at is_bad once, at its end.
 */
#ifndef CR_PARQUET_THRIFT_H
#define CR_PARQUET_THRIFT_H

#include "base/base.h"

typedef struct cri_thrift {
    const uint8_t *at, *end;
    bool is_bad;
    bool is_short; /* is_bad, because the bytes end */
    int depth;     /* of structs that are being skipped */
} cri_thrift;

typedef struct cri_thrift_field {
    int id;   /* {0} before the first field of a struct */
    int type; /* of the compact protocol */
} cri_thrift_field;

/* The next field of a struct; false: it ends here, or is bad. Each field is then read by one of the calls below. */
bool cri_thrift_next(cri_thrift *t, cri_thrift_field *f);
bool cri_thrift_bool(cri_thrift *t, const cri_thrift_field *f);
/* Of 8 to 64 bits. */
int64_t cri_thrift_int(cri_thrift *t, const cri_thrift_field *f);
/* The same, of 32 bits: others are bad. */
int32_t cri_thrift_int32(cri_thrift *t, const cri_thrift_field *f);
/* Borrowed bytes. */
const char *cri_thrift_text(cri_thrift *t, const cri_thrift_field *f, size_t *num_bytes);
/* Elements of a list of structs; each is then read with fields from {0} on. Never more than there are bytes left. */
size_t cri_thrift_structs(cri_thrift *t, const cri_thrift_field *f);
/* Whether the field is a struct, which is then read with fields from {0} on. Others are bad. */
bool cri_thrift_struct(cri_thrift *t, const cri_thrift_field *f);
void cri_thrift_skip(cri_thrift *t, const cri_thrift_field *f);

#endif
