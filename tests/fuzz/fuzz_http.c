/* fuzz_http.c -- arbitrary bytes as requests of a connection, and as the answers that a client gets: never more than the
 * limits, and the same whether they come at once or in pieces of a few bytes. */
#include "http/parser.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the requests or answers were, as text, up to the first that is refused or not complete. */
static void parse(const char *bytes, size_t num, size_t piece, bool is_answer, cr_buf *said)
{
    cr_http_parser p = {.limits = {.header_bytes = 512, .target_bytes = 128, .body_bytes = 256},
                        .is_answer = is_answer};
    size_t at = 0, used;

    for (;;) {
        size_t n = num - at < piece ? num - at : piece;
        cr_http_event event = cr_http_parse(&p, bytes + at, n, &used);
        CR_CHECK(used <= n && (used == n || event != CR_HTTP_MORE), "%zu of %zu bytes", used, n);
        CR_CHECK(p.body.num_bytes <= 256 && p.lines.num_bytes <= 768 + piece, "too many bytes");
        at += used;
        if (event == CR_HTTP_MORE && at == num && is_answer) event = cr_http_parse_end(&p);
        if (event == CR_HTTP_REFUSED || (event == CR_HTTP_MORE && at == num)) {
            cr_buf_addf(said, "%d %s", p.status, p.message ? p.message : "");
            break;
        }
        if (event != CR_HTTP_WHOLE) continue;
        cr_buf_addf(said, "%s %s %d %d %zu ", p.method, cr_http_path(&p), p.code, p.should_close,
                    at);
        if (p.body.num_bytes) cr_buf_add(said, p.body.data, p.body.num_bytes);
        cr_http_parser_next(&p);
    }
    cr_http_parser_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *bytes = (const char *)data;

    if (size == 0) return 0;
    for (int is_answer = 0; is_answer < 2; is_answer++) {
        cr_buf once = {0}, pieces = {0};
        parse(bytes, size, size, is_answer, &once);
        parse(bytes, size, 1 + data[size - 1] % 7, is_answer, &pieces);
        CR_CHECK(once.num_bytes == pieces.num_bytes && strcmp(once.data, pieces.data) == 0,
                 "the pieces matter");
        cr_buf_free(&once);
        cr_buf_free(&pieces);
    }
    return 0;
}
