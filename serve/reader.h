/* reader.h -- a JSON text read value by value, without a tree; inside serve/ only.
 *
 * Strict as RFC 8259: one value, no control characters in strings, no lone surrogates, at most
 * CR_SERVE_MAX_DEPTH levels. The text must be valid UTF-8: the caller has checked. The first mistake
 * stays in `why`, with its place; every function returns false from then on.
 */
#ifndef CR_SERVE_READER_H
#define CR_SERVE_READER_H

#include "base/base.h"

typedef struct cri_reader {
    const char *begin, *at, *end;
    int depth;
    size_t num_values; /* that cri_read_any has passed over */
    bool is_first;     /* no member or item of the innermost object or array was read */
    char why[96];      /* "": no mistake so far */
} cri_reader;

typedef struct cri_number {
    double value;
    int64_t integer;
    bool is_integer; /* the value is an integer that int64_t holds, however it is spelled */
} cri_number;

cri_reader cri_reader_of(const char *text, size_t num_bytes);
/* First character of the next value ('0' for every number), 0 at the end or at a mistake. */
char cri_peek(cri_reader *r);
bool cri_read_null(cri_reader *r); /* true: the next value was null, which is read */
bool cri_read_flag(cri_reader *r, bool *out);
bool cri_read_number(cri_reader *r, cri_number *out);
bool cri_read_string(cri_reader *r, cr_buf *out); /* out is cleared; "" leaves data NULL or empty */
/* Objects and arrays: begin, then next until it is false, which also reads the end. */
bool cri_read_begin(cri_reader *r, char open);
bool cri_next_member(cri_reader *r, cr_buf *key);
bool cri_next_item(cri_reader *r);
/* Pass over a value of any kind; *begin and *num_bytes are its text. */
bool cri_read_any(cri_reader *r, const char **begin, size_t *num_bytes);
/* Only blanks are left. */
bool cri_at_end(cri_reader *r);

#endif
