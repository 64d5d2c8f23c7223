/* lines.h -- JSONL requests of a command: one object a line in, one answer a line out, in order.
 *
 * A line carries `input_ids`, `prompt` or `messages` and an `id` that its answer copies. A bad line
 * is answered in place with {"id":..,"error":".."} (cr_line_fail), the others go on, and the command
 * ends with exit code 2. Lines are read one at a time, so a pipe may be answered while it is open.
 *
 * Ownership: a cr_line owns what it holds (cr_line_free); rules are borrowed during the call.
 * Threads: one caller.
 */
#ifndef CR_LINES_H
#define CR_LINES_H

#include "base/json.h"

#include <stdio.h>

enum { CR_LONGEST_LINE = 64 << 20 }; /* bytes */

/* One request. If error is not NULL, only number and id are to be used. */
typedef struct cr_line {
    int64_t number; /* in the input, from 1 */
    char *id;       /* as JSON text: what the answer copies; "null" if the line has none */
    char *name;     /* id as plain text (tensor names); NULL: neither text nor a whole number */
    int32_t *ids;   /* [num_ids] */
    size_t num_ids;
    int32_t
        *labels; /* [num_ids], -1 where ignored; NULL if the line has none or they are not read */
    json_t *json;
    char *error;
} cr_line;

/* Ids of a prompt's text or of messages: *ids is owned by the caller. Failures answer the line. */
typedef cr_status (*cr_line_encode)(void *ctx, const json_t *prompt_or_messages, bool is_messages,
                                    int32_t **ids, size_t *num_ids, cr_err *err);

typedef struct cr_line_rules {
    cr_line_encode encode; /* NULL: only input_ids are taken */
    void *ctx;
    const char *text_key; /* of the text that is encoded; NULL: "prompt" */
    bool refuses_ids;     /* input_ids are not taken */
    bool may_be_empty;    /* a line without tokens is fine */
    int64_t vocab_size;
    int64_t max_tokens; /* of one line; 0: any */
    bool has_labels;    /* read `labels` */
    bool needs_name;    /* id must be text or a whole number, not used before */
} cr_line_rules;

typedef struct cr_lines {
    FILE *out;
    int in;          /* descriptor */
    int64_t number;  /* of the last line read */
    bool has_failed; /* a line was answered with an error */
    bool is_closed;  /* out cannot be written any more */
    json_t *names;   /* ids used so far, when rules need names */
    cr_buf text;     /* what was read; bytes from `next` on are not yet used */
    size_t next;
    bool has_ended; /* nothing more can be read */
} cr_lines;

void cr_lines_init(cr_lines *lines, FILE *in, FILE *out);
void cr_lines_fini(cr_lines *lines);
/* The next line with its newline, valid until the next call; false at the end of input. Of a line that is longer than
 * CR_LONGEST_LINE that many bytes or a few more, and it is the last: an input without an end is not read for ever. */
bool cr_lines_text(cr_lines *lines, char **text, size_t *num_bytes);
/* The next line that is not blank; false at the end of input. line is then empty. */
bool cr_lines_next(cr_lines *lines, const cr_line_rules *rules, cr_line *line);
/* Whether there is something to read now: cr_lines_next need not wait for its first byte. */
bool cr_lines_is_ready(const cr_lines *lines);
void cr_line_free(cr_line *line); /* {0} is fine */
/* Turn a line into a failed one, with this sentence. */
void cr_line_fail(cr_line *line, const char *sentence);

/* Write one line of output (a newline is added) and flush. CR_EIO: the reader has closed it. */
CR_MUST cr_status cr_lines_write(cr_lines *lines, const cr_buf *text, cr_err *err);
/* Write the answer of a failed line. */
CR_MUST cr_status cr_lines_write_error(cr_lines *lines, const cr_line *line, cr_err *err);

#endif
