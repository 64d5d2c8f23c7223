/* fields.h -- the records in which a sample travels, as tables: one row a field, from which a record is written,
 * checked and read, and which docs/exchange.md shows (a test compares them).
 *
 * A field is a value in the head of a record or an array (exchange/record.h), and a member of the struct that the
 * message is read into. What is read borrows from the record.
 *
 * Another field: a member and a row. What a table cannot say (finite numbers, ids that ascend) is checked by the
 * functions of messages.h.
 */
#ifndef CR_FIELDS_H
#define CR_FIELDS_H

#include "exchange/record.h"

typedef enum cr_type {
    CR_TYPE_INT,     /* int64_t */
    CR_TYPE_REAL,    /* double */
    CR_TYPE_TEXT,    /* cr_field_text */
    CR_TYPE_INT32S,  /* cr_field_array */
    CR_TYPE_FLOATS,  /* cr_field_array */
    CR_TYPE_UINT64S, /* cr_field_array */
    CR_NUM_TYPES
} cr_type;

typedef struct cr_field_text {
    const char *data; /* NULL: it is not there */
    size_t num_bytes;
} cr_field_text;

typedef struct cr_field_array {
    const void *data; /* NULL: it is not there */
    size_t num;
} cr_field_array;

typedef struct cr_field {
    const char *name;
    cr_type type;
    size_t at; /* of the member in the message's struct */
    enum {
        CR_LENGTH_FREE,
        CR_LENGTH_PER_TOKEN
    } length; /* per token: as many as the field "ids" has */
    bool is_optional;
    const char *what; /* for docs/exchange.md */
} cr_field;

typedef struct cr_message {
    const char *name,
        *stream; /* a sample's question goes to CR_STREAM_GENERATED and the block's name */
    const cr_field *fields;
    size_t num_fields;
} cr_message;

/* Optional texts and arrays with data NULL are left out, and optional numbers that are 0. Arrays stay borrowed until the record is packed. */
void cr_message_write(const cr_message *m, const void *from, cr_record *r);
/* CR_EFORMAT: a field is missing, of another kind, or has another length than its tokens. */
CR_MUST cr_status cr_message_read(const cr_message *m, const cr_record *r, void *to, cr_err *err);
/* One line of a Markdown table a field. */
void cr_message_describe(const cr_message *m, cr_buf *out);

#endif
