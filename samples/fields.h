/* fields.h -- the records in which a sample travels and the lines in which it is kept, as tables: one row a field, from which
 * it is written, checked and read, and which docs/exchange.md and docs/bisect.md show (a test compares them).
 *
 * A field is a value in the head of a record or an array (exchange/record.h), or a member of a JSON object, and a member of the
 * struct that the message is read into. What is read borrows from the record or the object.
 *
 * Another field: a member and a row. What a table cannot say (finite numbers, ids that ascend) is checked by the
 * functions of messages.h.
 */
#ifndef CR_FIELDS_H
#define CR_FIELDS_H

#include "exchange/record.h"

typedef enum cr_type {
    CR_TYPE_INT,    /* int64_t */
    CR_TYPE_REAL,   /* double */
    CR_TYPE_TEXT,   /* cr_field_text */
    CR_TYPE_JSON,   /* cr_field_json: in a record text, in an object any value */
    CR_TYPE_INT32S, /* cr_field_array, as all that follow */
    CR_TYPE_COUNTS, /* of objects only: lengths of */
    CR_TYPE_LISTS,  /* the next field's lists, one after the other */
    CR_TYPE_FLOATS,
    CR_TYPE_COLUMN, /* of objects, into which it is only written: one number where all are the same */
    CR_TYPE_UINT64S, /* of records only */
    CR_NUM_TYPES
} cr_type;

typedef struct cr_field_text {
    const char *data; /* NULL: it is not there */
    size_t num_bytes;
} cr_field_text;

typedef struct cr_field_json {
    json_t *value;      /* NULL: */
    cr_field_text text; /* of it, which is only written into an object */
} cr_field_json;

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
    const char *what; /* for docs/exchange.md; of a line of rollouts/: the phase that makes it */
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
/* The members of a JSON object, without its brackets. Numbers that are NAN are null, and what is not optional and not there is, too. */
CR_MUST cr_status cr_message_write_json(const cr_message *m, const void *from, cr_buf *out,
                                        cr_err *err);
/* As cr_message_read; arrays are in memory. */
CR_MUST cr_status cr_message_read_json(const cr_message *m, json_t *from, cr_arena *memory,
                                       void *to, cr_err *err);
/* One line of a Markdown table a field. */
void cr_message_describe(const cr_message *m, cr_buf *out);

#endif
