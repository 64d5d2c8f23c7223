/* parser.c -- see parser.h. Lines are gathered whole before they are looked at: what a line is does not depend on
 * the pieces that it came in. */
#include "http/parser.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum {
    CHUNK_LINE = 256,      /* bytes of a chunk's size with its extensions */
    REQUEST_LINE = 40,     /* bytes beside the target, with the line's end */
    KEPT_BYTES = 64 << 10, /* memory of a body that is kept for the next request */
    CHUNK_DIGITS = 16
};

static cr_http_event refuse(cr_http_parser *p, int status, const char *message)
{
    p->status = status;
    p->message = message;
    p->should_close = true;
    p->state = CRI_HTTP_END;
    return CR_HTTP_REFUSED;
}

/* ---- characters ---- */

static bool is_token_char(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t token_bytes(const char *text)
{
    size_t n = 0;

    while (is_token_char(text[n]))
        n++;
    return n;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place; false: a % without two digits, or NUL. */
static bool percent_decode(char *text)
{
    char *to = text;

    for (; *text; text++) {
        int high, low;
        if (*text != '%') {
            *to++ = *text;
            continue;
        }
        if ((high = hex_digit(text[1])) < 0 || (low = hex_digit(text[2])) < 0 || high + low == 0)
            return false;
        *to++ = (char)(high * 16 + low);
        text += 2;
    }
    *to = 0;
    return true;
}

/* Does the comma-separated list hold this word, in any case? */
static bool list_has(const char *list, const char *word)
{
    size_t num = strlen(word);

    for (const char *at = list; *at; at += strcspn(at, ",")) {
        size_t n;
        at += strspn(at, ", \t");
        n = strcspn(at, ", \t");
        if (n == num && strncasecmp(at, word, num) == 0) return true;
    }
    return false;
}

/* ---- the request line ---- */

/* The path of a target in origin or absolute form; NULL: neither. */
static char *find_path(const char *method, char *target)
{
    size_t scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                    : strncasecmp(target, "https://", 8) == 0 ? 8
                                                              : 0;
    char *host_end;

    if (*target == '/') return target;
    if (strcmp(target, "*") == 0 && strcmp(method, "OPTIONS") == 0) return target;
    if (!scheme) return NULL;
    host_end = target + scheme + strcspn(target + scheme, "/?@");
    if (host_end == target + scheme || *host_end == '@') return NULL;
    if (*host_end == '/') return host_end;
    host_end[-1] = '/'; /* there is only a query, or nothing: the path is "/" */
    return host_end - 1;
}

static cr_http_event read_target(cr_http_parser *p, char *target)
{
    char *path;

    if (strlen(target) > p->limits.target_bytes) return refuse(p, 414, "the target is too long");
    for (const char *c = target; *c; c++)
        if (*c <= ' ' || *c == 0x7f || *c == '#' || (unsigned char)*c >= 0x80)
            return refuse(p, 400, "a character of the target must be percent-encoded");
    if (!(path = find_path(p->method, target)))
        return refuse(p, 400, "the target is neither a path nor an http URL");
    if (strchr(path, '?')) {
        p->query_at = (size_t)(strchr(path, '?') + 1 - p->lines.data);
        p->lines.data[p->query_at - 1] = 0;
    }
    if (!percent_decode(path)) return refuse(p, 400, "the target has a wrong percent-encoding");
    p->path_at = (size_t)(path - p->lines.data);
    return CR_HTTP_MORE;
}

static cr_http_event read_version(cr_http_parser *p, const char *version)
{
    if (strlen(version) != 8 || strncmp(version, "HTTP/", 5) != 0 ||
        !isdigit((unsigned char)version[5]) || version[6] != '.' ||
        !isdigit((unsigned char)version[7]))
        return refuse(p, 400, "the first line has no HTTP version");
    if (version[5] != '1' || version[7] > '1')
        return refuse(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    p->is_http_1_0 = version[7] == '0';
    p->should_close = p->is_http_1_0;
    return CR_HTTP_MORE;
}

static cr_http_event read_request_line(cr_http_parser *p, char *line)
{
    size_t n = token_bytes(line);
    char *target = line + n + 1, *version;

    if (!*line && !p->has_skipped_line) {
        p->has_skipped_line = true;
        return CR_HTTP_MORE;
    }
    if (n == 0 || line[n] != ' ') return refuse(p, 400, "the request line has no method");
    if (n >= sizeof p->method) return refuse(p, 501, "the method is not known");
    memcpy(p->method, line, n);
    p->method[n] = 0;
    if (!(version = strchr(target, ' '))) return refuse(p, 400, "the request line has two words");
    *version++ = 0;
    if (read_version(p, version) == CR_HTTP_REFUSED || read_target(p, target) == CR_HTTP_REFUSED)
        return CR_HTTP_REFUSED;
    p->state = CRI_HTTP_FIELD;
    return CR_HTTP_MORE;
}

/* ---- the status line ---- */

static cr_http_event read_status_line(cr_http_parser *p, char *line)
{
    char *code = strchr(line, ' ');

    if (!code) return refuse(p, 400, "the status line has no status");
    *code++ = 0;
    if (read_version(p, line) == CR_HTTP_REFUSED) return CR_HTTP_REFUSED;
    if (strspn(code, "0123456789") != 3 || (code[3] && code[3] != ' ') || *code == '0')
        return refuse(p, 400, "the status is not a number of three digits");
    p->code = (code[0] - '0') * 100 + (code[1] - '0') * 10 + (code[2] - '0');
    if (p->code == 101) return refuse(p, 400, "another protocol was not asked for");
    p->state = CRI_HTTP_FIELD;
    return CR_HTTP_MORE;
}

/* What comes is a note before the answer. */
static cr_http_event skip_note(cr_http_parser *p)
{
    p->lines.num_bytes = p->num_fields = 0;
    p->state = CRI_HTTP_START_LINE;
    return CR_HTTP_MORE;
}

/* ---- fields ---- */

/* Cut a line into name and value, both NUL-terminated in place. */
static cr_http_event split_field(cr_http_parser *p, char *line, char **value)
{
    size_t n = token_bytes(line), end;

    if (*line == ' ' || *line == '\t') return refuse(p, 400, "a field goes on in a second line");
    if (n == 0 || line[n] != ':') return refuse(p, 400, "a field has no name and colon");
    for (size_t i = 0; i < n; i++)
        line[i] = (char)tolower((unsigned char)line[i]);
    line[n] = 0;
    *value = line + n + 1 + strspn(line + n + 1, " \t");
    end = strlen(*value);
    while (end && ((*value)[end - 1] == ' ' || (*value)[end - 1] == '\t'))
        (*value)[--end] = 0;
    for (const char *c = *value; *c; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return refuse(p, 400, "a field has a control character");
    return CR_HTTP_MORE;
}

static const char *field_name(const cr_http_parser *p, size_t i)
{
    return p->lines.data + p->field[i].name_at;
}

static const char *field_value(const cr_http_parser *p, size_t i)
{
    return p->lines.data + p->field[i].value_at;
}

static size_t count_fields(const cr_http_parser *p, const char *name, const char **value)
{
    size_t num = 0;

    *value = NULL;
    for (size_t i = 0; i < p->num_fields; i++)
        if (strcmp(field_name(p, i), name) == 0 && num++ == 0) *value = field_value(p, i);
    return num;
}

static cr_http_event check_host(cr_http_parser *p)
{
    const char *host;
    size_t num = count_fields(p, "host", &host);

    if (p->is_answer) return CR_HTTP_MORE;
    if (num > 1 || (num == 0 && !p->is_http_1_0))
        return refuse(p, 400, "the request needs exactly one Host field");
    if (host && strpbrk(host, " \t,/?#@\\")) return refuse(p, 400, "the Host field is not a host");
    return CR_HTTP_MORE;
}

static cr_http_event read_length(cr_http_parser *p, const char *text)
{
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || text[digits])
        return refuse(p, 400, "the Content-Length is not a whole number");
    p->content_bytes = 0;
    for (const char *c = text; *c; c++) {
        p->content_bytes = p->content_bytes * 10 + (size_t)(*c - '0');
        if (p->content_bytes > p->limits.body_bytes) return refuse(p, 413, "the body is too large");
    }
    return CR_HTTP_MORE;
}

/* How the end of the body is found. */
static cr_http_event read_framing(cr_http_parser *p)
{
    const char *length, *coding;
    size_t num_lengths = count_fields(p, "content-length", &length),
           num_codings = count_fields(p, "transfer-encoding", &coding);

    p->has_body = num_lengths || num_codings;
    if (num_codings && (num_lengths || p->is_http_1_0))
        return refuse(p, 400,
                      num_lengths ? "Content-Length and Transfer-Encoding exclude each other"
                                  : "HTTP/1.0 has no Transfer-Encoding");
    if (num_codings > 1 || num_lengths > 1)
        return refuse(p, 400, "the length of the body is given twice");
    if (num_codings && strcasecmp(coding, "chunked") != 0)
        return refuse(p, 501, "the only transfer coding here is chunked");
    if (num_lengths && read_length(p, length) == CR_HTTP_REFUSED) return CR_HTTP_REFUSED;
    p->is_chunked = num_codings > 0;
    p->left_bytes = p->content_bytes;
    if (p->is_answer && !p->has_body) p->should_close = true;
    return CR_HTTP_MORE;
}

static cri_http_state state_of_body(cr_http_parser *p)
{
    if (p->is_answer && (p->code == 204 || p->code == 304)) {
        p->is_chunked = false;
        p->left_bytes = p->content_bytes = 0;
        return CRI_HTTP_END;
    }
    if (p->is_answer && !p->has_body) return CRI_HTTP_REST;
    return p->is_chunked ? CRI_HTTP_CHUNK_SIZE : p->left_bytes ? CRI_HTTP_BODY : CRI_HTTP_END;
}

static cr_http_event end_head(cr_http_parser *p)
{
    const char *value;

    if (p->is_answer && p->code < 200) return skip_note(p);
    if (check_host(p) == CR_HTTP_REFUSED || read_framing(p) == CR_HTTP_REFUSED)
        return CR_HTTP_REFUSED;
    if (count_fields(p, "content-encoding", &value) && strcasecmp(value, "identity") != 0)
        return refuse(p, 415, "a compressed body is not taken");
    if (count_fields(p, "expect", &value) && !p->is_answer) {
        if (strcasecmp(value, "100-continue") != 0)
            return refuse(p, 417, "the only expectation here is 100-continue");
        p->expects_continue = !p->is_http_1_0 && (p->is_chunked || p->content_bytes > 0);
    }
    for (size_t i = 0; i < p->num_fields; i++) {
        if (strcmp(field_name(p, i), "connection") != 0) continue;
        if (p->is_http_1_0 && list_has(field_value(p, i), "keep-alive")) p->should_close = false;
    }
    for (size_t i = 0; i < p->num_fields; i++)
        if (strcmp(field_name(p, i), "connection") == 0 && list_has(field_value(p, i), "close"))
            p->should_close = true;
    p->state = state_of_body(p);
    return CR_HTTP_HEAD;
}

static cr_http_event read_field(cr_http_parser *p, char *line)
{
    char *value;

    if (!*line) return end_head(p);
    if (p->num_fields == CR_HTTP_FIELDS) return refuse(p, 431, "there are too many fields");
    if (split_field(p, line, &value) == CR_HTTP_REFUSED) return CR_HTTP_REFUSED;
    p->field[p->num_fields].name_at = (uint32_t)(line - p->lines.data);
    p->field[p->num_fields++].value_at = (uint32_t)(value - p->lines.data);
    return CR_HTTP_MORE;
}

/* ---- chunks ---- */

static cr_http_event read_chunk_size(cr_http_parser *p, const char *line)
{
    size_t n = 0, size = 0;
    int digit;

    for (; n < CHUNK_DIGITS && (digit = hex_digit(line[n])) >= 0; n++)
        size = size << 4 | (size_t)digit;
    if (n == 0) return refuse(p, 400, "a chunk's size is not a hexadecimal number");
    if (line[n + strspn(line + n, " \t")] != ';' && line[n])
        return refuse(p, 400, "a chunk's size is followed by something else");
    for (const char *c = line + n; *c; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return refuse(p, 400, "a chunk's extension has a control character");
    if (size > p->limits.body_bytes - p->body.num_bytes)
        return refuse(p, 413, "the body is too large");
    p->left_bytes = size;
    p->state = size ? CRI_HTTP_CHUNK : CRI_HTTP_TRAILER;
    return CR_HTTP_MORE;
}

/* Trailers are read by the rules of fields and dropped: a field of the head is what was decided on. */
static cr_http_event read_trailer(cr_http_parser *p, char *line)
{
    char *value;

    if (*line) return split_field(p, line, &value);
    p->state = CRI_HTTP_END;
    return CR_HTTP_MORE;
}

/* ---- lines ---- */

static cr_http_event read_line(cr_http_parser *p)
{
    char *line = p->lines.data + p->line_at;
    size_t num = p->lines.num_bytes - p->line_at; /* with CR LF */
    cr_http_event event;

    if (num < 2 || line[num - 2] != '\r') return refuse(p, 400, "a line does not end with CR LF");
    if (memchr(line, '\r', num - 2) || memchr(line, 0, num - 2))
        return refuse(p, 400, "a line has a CR or NUL in it");
    line[num - 2] = 0;
    switch (p->state) {
    case CRI_HTTP_START_LINE:
        event = p->is_answer ? read_status_line(p, line) : read_request_line(p, line);
        break;
    case CRI_HTTP_FIELD:
        event = read_field(p, line);
        break;
    case CRI_HTTP_CHUNK_SIZE:
        event = read_chunk_size(p, line);
        break;
    case CRI_HTTP_CHUNK_END:
        p->state = CRI_HTTP_CHUNK_SIZE;
        event = *line ? refuse(p, 400, "a chunk is longer than its size") : CR_HTTP_MORE;
        break;
    default:
        event = read_trailer(p, line);
        break;
    }
    if (p->state > CRI_HTTP_FIELD && event != CR_HTTP_HEAD)
        p->lines.num_bytes = p->line_at; /* of chunks nothing is kept */
    p->line_at = p->lines.num_bytes;
    return event;
}

/* Bytes up to the end of a line, which is then read. */
static cr_http_event take_line(cr_http_parser *p, const char *bytes, size_t num, size_t *used)
{
    const char *end = memchr(bytes, '\n', num);
    size_t n = end ? (size_t)(end - bytes) + 1 : num, line_bytes;
    bool is_chunk = p->state == CRI_HTTP_CHUNK_SIZE || p->state == CRI_HTTP_CHUNK_END;

    cr_buf_add(&p->lines, bytes, n);
    *used += n;
    line_bytes = p->lines.num_bytes - p->line_at;
    if (is_chunk && line_bytes > CHUNK_LINE)
        return refuse(p, 400, "the line of a chunk's size is too long");
    if (!is_chunk) p->num_header_bytes += n;
    if (p->state == CRI_HTTP_START_LINE && line_bytes > p->limits.target_bytes + REQUEST_LINE)
        return refuse(p, 414, "the first line is too long");
    if (p->num_header_bytes > p->limits.header_bytes)
        return refuse(p, 431, "the fields are too long");
    return end ? read_line(p) : CR_HTTP_MORE;
}

static void take_body(cr_http_parser *p, const char *bytes, size_t num, size_t *used)
{
    size_t n = num < p->left_bytes ? num : p->left_bytes;

    cr_buf_add(&p->body, bytes, n);
    *used += n;
    p->left_bytes -= n;
    if (p->left_bytes == 0)
        p->state = p->state == CRI_HTTP_BODY ? CRI_HTTP_END : CRI_HTTP_CHUNK_END;
}

static cr_http_event take_rest(cr_http_parser *p, const char *bytes, size_t num, size_t *used)
{
    if (num > p->limits.body_bytes - p->body.num_bytes)
        return refuse(p, 413, "the body is too large");
    cr_buf_add(&p->body, bytes, num);
    *used += num;
    return CR_HTTP_MORE;
}

cr_http_event cr_http_parse_end(cr_http_parser *p)
{
    if (p->status) return CR_HTTP_REFUSED;
    if (p->state != CRI_HTTP_REST) return refuse(p, 400, "the connection has ended before it");
    p->state = CRI_HTTP_END;
    return CR_HTTP_WHOLE;
}

cr_http_event cr_http_parse(cr_http_parser *p, const char *bytes, size_t num_bytes, size_t *used)
{
    cr_http_event event = CR_HTTP_MORE;

    *used = 0;
    if (p->status) return CR_HTTP_REFUSED;
    while (event == CR_HTTP_MORE && *used < num_bytes && p->state != CRI_HTTP_END) {
        const char *rest = bytes + *used;
        size_t num = num_bytes - *used;
        if (p->state == CRI_HTTP_BODY || p->state == CRI_HTTP_CHUNK)
            take_body(p, rest, num, used);
        else if (p->state == CRI_HTTP_REST)
            event = take_rest(p, rest, num, used);
        else
            event = take_line(p, rest, num, used);
    }
    return event == CR_HTTP_MORE && p->state == CRI_HTTP_END ? CR_HTTP_WHOLE : event;
}

/* ---- the parser ---- */

void cr_http_parser_next(cr_http_parser *p)
{
    cr_http_limits limits = p->limits;
    cr_buf lines = p->lines, body = p->body;
    bool is_answer = p->is_answer;

    cr_buf_clear(&lines);
    cr_buf_clear(&body);
    if (body.capacity_bytes > KEPT_BYTES) cr_buf_free(&body);
    memset(p, 0, sizeof *p);
    p->limits = limits;
    p->is_answer = is_answer;
    p->lines = lines;
    p->body = body;
}

void cr_http_parser_free(cr_http_parser *p)
{
    cr_buf_free(&p->lines);
    cr_buf_free(&p->body);
}

const char *cr_http_path(const cr_http_parser *p)
{
    return p->path_at ? p->lines.data + p->path_at : "";
}

bool cr_http_query(const cr_http_parser *p, const char *name, char *value, size_t capacity)
{
    size_t num = strlen(name);
    const char *at = p->query_at ? p->lines.data + p->query_at : "";

    while (*at && (strncmp(at, name, num) != 0 || at[num] != '=')) {
        at += strcspn(at, "&");
        if (*at) at++;
    }
    if (!*at) return false;
    at += num + 1;
    num = strcspn(at, "&");
    if (num >= capacity) num = capacity - 1;
    memcpy(value, at, num);
    value[num] = 0;
    percent_decode(value);
    return true;
}

const char *cr_http_field(const cr_http_parser *p, const char *name)
{
    return cr_http_field_at(p, name, 0);
}

const char *cr_http_field_at(const cr_http_parser *p, const char *name, size_t i)
{
    for (size_t k = 0; k < p->num_fields; k++)
        if (strcmp(field_name(p, k), name) == 0 && i-- == 0) return field_value(p, k);
    return NULL;
}
