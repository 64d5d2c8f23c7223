/* record.h -- what travels in one message: a JSON head and named arrays of numbers.
 *
 *     "CRR1" | u32 head bytes | head | u32 num arrays | arrays, each
 *     u8 kind, u8 name bytes, name, u64 num elements, elements (little-endian, packed)
 *
 * Reading checks every length before use: a record may come from any process that reaches Redis.
 * A record owns its head and, after cr_record_unpack, a copy of its arrays; arrays that were added
 * are borrowed until cr_record_pack. Free with cr_record_free. {0} is an empty record.
 */
#ifndef CR_RECORD_H
#define CR_RECORD_H

#include "base/json.h"

typedef enum cr_record_kind {
    CR_RECORD_INT32,
    CR_RECORD_FLOAT32,
    CR_RECORD_UINT64,
    CR_RECORD_BYTES
} cr_record_kind;

enum { CR_RECORD_ARRAYS = 48 };

typedef struct cr_record {
    json_t *head; /* an object; NULL stands for {} */
    struct cr_record_array {
        char name[28];
        cr_record_kind kind;
        const void *data;
        size_t num; /* elements */
    } arrays[CR_RECORD_ARRAYS];
    size_t num_arrays;
    void *owned; /* arrays of an unpacked record */
} cr_record;

void cr_record_free(cr_record *r);
void cr_record_set_int(cr_record *r, const char *key, int64_t value);
void cr_record_set_real(cr_record *r, const char *key, double value);
void cr_record_set_text(cr_record *r, const char *key, const char *text, size_t num_bytes);
void cr_record_add(cr_record *r, const char *name, cr_record_kind kind, const void *data,
                   size_t num);

CR_MUST cr_status cr_record_pack(const cr_record *r, cr_buf *out, cr_err *err);
/* CR_EFORMAT says what is wrong; r is then empty. */
CR_MUST cr_status cr_record_unpack(const void *data, size_t num_bytes, cr_record *r, cr_err *err);

/* Values that must be there, of the right kind: CR_EFORMAT with the name. */
CR_MUST cr_status cr_record_get_int(const cr_record *r, const char *key, int64_t *out, cr_err *err);
CR_MUST cr_status cr_record_get_real(const cr_record *r, const char *key, double *out, cr_err *err);
/* Borrowed until the record is freed. */
CR_MUST cr_status cr_record_get_text(const cr_record *r, const char *key, const char **out,
                                     size_t *num_bytes, cr_err *err);
CR_MUST cr_status cr_record_get(const cr_record *r, const char *name, cr_record_kind kind,
                                const void **out, size_t *num, cr_err *err);
bool cr_record_has(const cr_record *r, const char *name); /* an array */
bool cr_record_has_value(const cr_record *r, const char *key);

#endif
