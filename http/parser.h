/* parser.h -- requests and answers of HTTP/1.1 (RFC 9112) from bytes: a pure function, strict, in pieces of any size.
 *
 * A server that reads a request otherwise than the proxy in front of it lets one client put words into the request
 * of another. Therefore nothing is guessed or repaired here. Lines end with CR LF. A field has no blank before its
 * colon and no second line. A body has one Content-Length of digits, or the one transfer coding `chunked`. HTTP/1.1
 * needs exactly one Host. Of leniency there is one: an empty line before the request line is skipped.
 *
 *     cr_http_parser p = {.limits = ..};
 *     cr_http_parse(&p, bytes, num, &used) == CR_HTTP_MORE      give more bytes
 *                                             CR_HTTP_HEAD      method, path and fields are there: refuse, or go on
 *                                             CR_HTTP_WHOLE     body, too; bytes after `used` are the next request's
 *                                             CR_HTTP_REFUSED   answer with p.status and p.message, then close
 *     cr_http_parser_next(&p)                                   after CR_HTTP_WHOLE
 *
 * With is_answer the bytes are answers, which a client reads by the same rules: `code` is their status, those of 1xx are
 * skipped, and a body without a length goes on until the connection ends (cr_http_parse_end).
 *
 * The same bytes give the same result wherever they are cut. Memory is that of the lines and of the body received so
 * far, both limited. Ownership: the parser owns all; texts of it are valid until cr_http_parser_next or _free.
 * Threads: one caller.
 */
#ifndef CR_HTTP_PARSER_H
#define CR_HTTP_PARSER_H

#include "base/base.h"

enum { CR_HTTP_METHOD = 16, CR_HTTP_FIELDS = 64 };

typedef struct cr_http_limits {
    size_t header_bytes; /* request line, fields and trailers, with their line ends */
    size_t target_bytes; /* at most header_bytes - 64 */
    size_t body_bytes;
} cr_http_limits;

typedef enum cr_http_event {
    CR_HTTP_MORE,
    CR_HTTP_HEAD,
    CR_HTTP_WHOLE,
    CR_HTTP_REFUSED
} cr_http_event;

typedef enum cri_http_state {
    CRI_HTTP_START_LINE,
    CRI_HTTP_FIELD,
    CRI_HTTP_BODY, /* of content_bytes */
    CRI_HTTP_REST, /* until the connection ends */
    CRI_HTTP_CHUNK_SIZE,
    CRI_HTTP_CHUNK,
    CRI_HTTP_CHUNK_END,
    CRI_HTTP_TRAILER,
    CRI_HTTP_END /* a refused request never leaves it */
} cri_http_state;

typedef struct cr_http_parser {
    cr_http_limits limits;
    bool is_answer; /* read answers, not requests */
    int code;       /* of an answer */
    char method[CR_HTTP_METHOD];
    cr_buf body;
    int status;          /* refused: of the answer, else 0 */
    const char *message; /* refused: why, static text */
    bool is_http_1_0, should_close, expects_continue;
    bool has_body;        /* Content-Length or chunked was given, maybe of 0 bytes */
    size_t content_bytes; /* Content-Length; 0 if it is chunked */
    /* private */
    cri_http_state state;
    cr_buf lines;      /* NUL-terminated parts of the lines */
    size_t line_at;    /* in lines: the one that is being read */
    size_t left_bytes; /* of the body or the chunk */
    size_t num_header_bytes, num_fields, path_at, query_at;
    struct {
        uint32_t name_at, value_at;
    } field[CR_HTTP_FIELDS];
    bool has_skipped_line, is_chunked;
} cr_http_parser;

cr_http_event cr_http_parse(cr_http_parser *parser, const char *bytes, size_t num_bytes,
                            size_t *used);
/* The connection has ended: CR_HTTP_WHOLE if that completes an answer, else CR_HTTP_REFUSED. */
cr_http_event cr_http_parse_end(cr_http_parser *parser);
/* Ready for the next request of the connection; memory of ordinary size is kept. */
void cr_http_parser_next(cr_http_parser *parser);
void cr_http_parser_free(cr_http_parser *parser);

/* Percent-decoded once, without the query; "*" for OPTIONS *; "" until it is known. */
const char *cr_http_path(const cr_http_parser *parser);
/* The first value of a name in the query, percent-decoded, and cut if it does not fit in `capacity` bytes. False: there is
 * none, and *value is as it was. */
bool cr_http_query(const cr_http_parser *parser, const char *name, char *value, size_t capacity);
/* The value of the first field of that name (in lower case), NULL: none. */
const char *cr_http_field(const cr_http_parser *parser, const char *name);
/* The same of its field i, from 0. */
const char *cr_http_field_at(const cr_http_parser *parser, const char *name, size_t i);

#endif
