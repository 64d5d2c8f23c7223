/* json.h -- JSON in and out. Reading is jansson (strict: duplicate keys, bad UTF-8 and trailing
 * text are errors); writing is ours, because every float must read back as the same float32 and
 * NaN must never appear.
 *
 * A json_t from cr_json_parse is owned by the caller (json_decref). Strings may hold NUL bytes:
 * use json_string_length.
 */
#ifndef CR_JSON_H
#define CR_JSON_H

#include "base/base.h"
#include <jansson.h>

/* CR_EFORMAT with "WHAT: not valid JSON: line L column C: why", without the line if the text has only one
 * and without WHAT if that is NULL.
 * *out is NULL after a failure. An integer that 64 bits cannot hold is read as a real. */
CR_MUST cr_status cr_json_parse(const char *text, size_t num_bytes, const char *what, json_t **out,
                                cr_err *err);
/* The same, but such an integer keeps its digits (in rows of data), or is refused as "too big". */
typedef enum cr_json_integers { CR_JSON_EXACT, CR_JSON_OF_64_BITS } cr_json_integers;
CR_MUST cr_status cr_json_parse_integers(const char *text, size_t num_bytes, const char *what,
                                         cr_json_integers how, json_t **out, cr_err *err);
/* The digits of an integer of CR_JSON_EXACT that 64 bits cannot hold, with its sign (borrowed); else NULL. In the
 * tree it is a string that begins with a control character; cr_json_add_value writes it as the number. */
const char *cr_json_digits(const json_t *value);
CR_MUST cr_status cr_json_read_file(const char *path, json_t **out, cr_err *err);

/* Append to buf. Strings are escaped, UTF-8 is kept, malformed bytes become U+FFFD. */
void cr_json_add_string(cr_buf *buf, const char *text, size_t num_bytes);
/* A string of base64, with its padding. */
void cr_json_add_base64(cr_buf *buf, const void *data, size_t num_bytes);
/* Append the bytes of base64 with its padding; false: it is something else. */
CR_MUST bool cr_base64_read(const char *text, size_t num_bytes, cr_buf *out);
/* "%.9g" for float32 values, "%.17g" for doubles. CR_ENUMERIC if x is not finite. */
CR_MUST cr_status cr_json_add_float(cr_buf *buf, float x, cr_err *err);
CR_MUST cr_status cr_json_add_double(cr_buf *buf, double x, cr_err *err);
void cr_json_add_int(cr_buf *buf, int64_t x);
void cr_json_add_ids(cr_buf *buf, const int32_t *ids, size_t num); /* [1,2,3] */
CR_MUST cr_status cr_json_add_floats(cr_buf *buf, const float *x, size_t num, cr_err *err);
/* Any json_t, compact, object order kept. */
CR_MUST cr_status cr_json_add_value(cr_buf *buf, const json_t *value, cr_err *err);

#endif
