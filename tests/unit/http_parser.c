/* http_parser.c -- requests and answers that are taken and that are refused, each whole, byte by byte, and cut in two at
 * every place, with the same result. The tables hold what parsers of others have read in two ways (request smuggling).
 * Not covered: sockets (e2e/serve). */
#include "http/parser.h"
#include "tests/check_near.h"

#include <string.h>

static const cr_http_limits limits = {.header_bytes = 1024, .target_bytes = 200, .body_bytes = 64};

#define H       "Host: a\r\n"
#define GET     "GET / HTTP/1.1\r\n" H
#define POST    "POST /p HTTP/1.1\r\n" H
#define CODED   POST "Transfer-Encoding: chunked\r\n\r\n"
#define TEXT(t) t, sizeof(t) - 1

typedef struct request {
    const char *text;
    size_t num_bytes;
    int status; /* of a refusal, 0: it is taken */
    const char *method, *path, *body;
    bool should_close, expects_continue;
} request;

static const request taken[] = {
    {TEXT(GET "\r\n"), 0, "GET", "/", ""},
    {TEXT("\r\n" GET "\r\n"), 0, "GET", "/", ""},
    {TEXT("GET /v1/models/a%2Fb%20c?x=%ZZ HTTP/1.1\r\n" H "\r\n"), 0, "GET", "/v1/models/a/b c",
     ""},
    {TEXT("GET /../%2e%2e/x HTTP/1.1\r\n" H "\r\n"), 0, "GET", "/../../x", ""},
    {TEXT("GET http://h:1/a/b?c HTTP/1.1\r\n" H "\r\n"), 0, "GET", "/a/b", ""},
    {TEXT("GET HTTPS://h?c HTTP/1.1\r\n" H "\r\n"), 0, "GET", "/", ""},
    {TEXT("OPTIONS * HTTP/1.1\r\n" H "\r\n"), 0, "OPTIONS", "*", ""},
    {TEXT("GET / HTTP/1.0\r\n\r\n"), 0, "GET", "/", "", true},
    {TEXT("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), 0, "GET", "/", ""},
    {TEXT("GET / HTTP/1.0\r\nConnection: close, keep-alive\r\n\r\n"), 0, "GET", "/", "", true},
    {TEXT(GET "Connection: x , Close\r\n\r\n"), 0, "GET", "/", "", true},
    {TEXT(GET "Connection: x\r\nConnection: close\r\n\r\n"), 0, "GET", "/", "", true},
    {TEXT(GET "Connection: enclosed\r\n\r\n"), 0, "GET", "/", ""},
    {TEXT("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 0, "GET", "/", ""},
    {TEXT("GET / HTTP/1.1\r\nhOST:\t [::1]:80 \t\r\nx: \xc3\xa9\ty\r\n\r\n"), 0, "GET", "/", ""},
    {TEXT(POST "Content-Length: 5\r\n\r\nhello"), 0, "POST", "/p", "hello"},
    {TEXT(POST "Content-Length: 0\r\n\r\n"), 0, "POST", "/p", ""},
    {TEXT(POST "Content-Length: 0005\r\n\r\nhello"), 0, "POST", "/p", "hello"},
    {TEXT(POST "Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi"), 0, "POST", "/p", "hi"},
    {TEXT(CODED "5\r\nhello\r\n0\r\n\r\n"), 0, "POST", "/p", "hello"},
    {TEXT(CODED "2\r\nhe\r\n003;a=\"b\" \r\nllo\r\n0\r\nTrailer: x\r\nHost: b\r\n\r\n"), 0, "POST",
     "/p", "hello"},
    {TEXT(CODED "A \t;x\r\n0123\r\n4567\r\n0\r\n\r\n"), 0, "POST", "/p", "0123\r\n4567"},
    {TEXT(CODED "0\r\n\r\n"), 0, "POST", "/p", ""},
    {TEXT(POST "transfer-encoding: Chunked\r\nExpect: 100-Continue\r\n\r\n1\r\nx\r\n0\r\n\r\n"), 0,
     "POST", "/p", "x", false, true},
    {TEXT(POST "Content-Length: 1\r\nExpect: 100-continue\r\n\r\nx"), 0, "POST", "/p", "x", false,
     true},
    {TEXT(POST "Content-Length: 0\r\nExpect: 100-continue\r\n\r\n"), 0, "POST", "/p", ""},
    {TEXT("POST /p HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\nx"), 0, "POST",
     "/p", "x", true},
};

static const request refused[] = {
    /* the request line */
    {TEXT("\r\n\r\n" GET "\r\n"), 400},
    {TEXT("GET /\r\n\r\n"), 400},
    {TEXT(" GET / HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET  / HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET / HTTP/1.1 \r\n" H "\r\n"), 400},
    {TEXT("GET\t/ HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET / x HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("G(T / HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET / http/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET / HTTP/1\r\n" H "\r\n"), 400},
    {TEXT("GET / HTTP/1.10\r\n" H "\r\n"), 400},
    {TEXT("GET / HTTP/2.0\r\n" H "\r\n"), 505},
    {TEXT("GET / HTTP/1.2\r\n" H "\r\n"), 505},
    {TEXT("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505},
    {TEXT("AMETHODOFSIXTEEN / HTTP/1.1\r\n" H "\r\n"), 501},
    {TEXT("GET * HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("CONNECT a:80 HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET ftp://a/ HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET http:///x HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET http://u@h/x HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET /#x HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET /\x01 HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET /\xc3\xa9 HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET /%0 HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET /%g0 HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("GET /%00 HTTP/1.1\r\n" H "\r\n"), 400},
    {TEXT("\x16\x03\x01\x02\x00\x01\n"), 400},
    /* line ends */
    {TEXT("GET / HTTP/1.1\n" H "\r\n"), 400},
    {TEXT(GET "\n"), 400},
    {TEXT(GET "x: y\n\r\n"), 400},
    {TEXT(GET "x: y\rz\r\n\r\n"), 400},
    {TEXT("GET / HTTP/1.1\r\r\n" H "\r\n"), 400},
    {TEXT(GET "x: y\0z\r\n\r\n"), 400},
    /* fields */
    {TEXT(GET "x : y\r\n\r\n"), 400},
    {TEXT(GET "x\r\n\r\n"), 400},
    {TEXT(GET ": y\r\n\r\n"), 400},
    {TEXT(GET "x: y\r\n z\r\n\r\n"), 400},
    {TEXT("GET / HTTP/1.1\r\n " H "\r\n"), 400},
    {TEXT(GET "x\x0b: y\r\n\r\n"), 400},
    {TEXT(GET "x: \x1b[0m\r\n\r\n"), 400},
    {TEXT(GET "x: \x7f\r\n\r\n"), 400},
    {TEXT("GET / HTTP/1.1\r\n\r\n"), 400},
    {TEXT(GET H "\r\n"), 400},
    {TEXT("GET / HTTP/1.0\r\n" H H "\r\n"), 400},
    {TEXT("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"), 400},
    {TEXT("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400},
    /* the length of the body */
    {TEXT(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400},
    {TEXT(POST "Content-Length: 5, 5\r\n\r\nhello"), 400},
    {TEXT(POST "Content-Length: +5\r\n\r\nhello"), 400},
    {TEXT(POST "Content-Length: -1\r\n\r\n"), 400},
    {TEXT(POST "Content-Length: 0x5\r\n\r\nhello"), 400},
    {TEXT(POST "Content-Length: 5 \x0b\r\n\r\nhello"), 400},
    {TEXT(POST "Content-Length:\r\n\r\n"), 400},
    {TEXT(POST "Content-Length : 5\r\n\r\nhello"), 400},
    {TEXT(POST "Content-Length: 65\r\n\r\n"), 413},
    {TEXT(POST "Content-Length: 18446744073709551617\r\n\r\nx"), 413},
    {TEXT(POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"), 400},
    {TEXT("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST "Transfer-Encoding: identity\r\n\r\n"), 501},
    {TEXT(POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"), 415},
    {TEXT(POST "Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx"), 417},
    /* chunks */
    {TEXT(CODED "5\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED " 5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "0x5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "-1\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "5 5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "5;\x01\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "5;a\rb\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "5\r\nhello!\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "5\r\nhello\n0\r\n\r\n"), 400},
    {TEXT(CODED "5\r\nhello0\r\n\r\n"), 400},
    {TEXT(CODED "41\r\n"), 413},
    {TEXT(CODED "1\r\nx\r\n40\r\n"), 413},
    {TEXT(CODED "ffffffffffffffff\r\n"), 413},
    {TEXT(CODED "1\r\nx\r\nffffffffffffffff\r\n"), 413},
    {TEXT(CODED "00000000000000005\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CODED "0\r\nx : y\r\n\r\n"), 400},
    {TEXT(CODED "0\r\nx: y\n\r\n"), 400},
};

typedef struct result {
    cr_http_event event;
    bool had_head;
    size_t used;
} result;

/* Pieces end at `cut` (0: nowhere), or after every byte if it is -1. */
static result parse_in_pieces(cr_http_parser *p, const char *text, size_t num, long cut)
{
    result r = {.event = CR_HTTP_MORE};

    while (r.event <= CR_HTTP_HEAD && (r.used < num || r.event == CR_HTTP_HEAD)) {
        size_t end = cut < 0 ? r.used + 1 : r.used < (size_t)cut ? (size_t)cut : num, used;
        /* an exact copy: a read past its end is seen by the sanitizers */
        size_t n = (end < num ? end : num) - r.used;
        char *piece = cr_alloc(n);
        memcpy(piece, text + r.used, n);
        r.event = cr_http_parse(p, piece, n, &used);
        cr_free(piece);
        r.used += used;
        r.had_head |= r.event == CR_HTTP_HEAD;
        if (r.event == CR_HTTP_MORE) assert_true(used == n);
    }
    return r;
}

static void check(const request *q, long cut)
{
    cr_http_parser p = {.limits = limits};
    result r = parse_in_pieces(&p, q->text, q->num_bytes, cut);

    if (q->status ? r.event != CR_HTTP_REFUSED || p.status != q->status
                  : r.event != CR_HTTP_WHOLE || r.used != q->num_bytes)
        fail_msg("cut at %ld: event %d, status %d instead of %d after %zu bytes of:\n%s", cut,
                 (int)r.event, p.status, q->status, r.used, q->text);
    assert_true(q->status ? p.should_close && p.message : r.had_head);
    if (!q->status) {
        assert_string_equal(p.method, q->method);
        assert_string_equal(cr_http_path(&p), q->path);
        assert_int_equal(p.body.num_bytes, strlen(q->body));
        assert_memory_equal(p.body.num_bytes ? p.body.data : "", q->body, strlen(q->body));
        assert_int_equal(p.should_close, q->should_close);
        assert_int_equal(p.expects_continue, q->expects_continue);
    }
    cr_http_parser_free(&p);
}

static void check_everywhere(const request *q)
{
    for (long cut = -1; cut < (long)q->num_bytes; cut++)
        check(q, cut);
}

static void requests_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(taken); i++)
        check_everywhere(&taken[i]);
}

static void requests_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(refused); i++)
        check_everywhere(&refused[i]);
}

/* A text of `num` letters between two others. */
static void check_long(const char *before, size_t num, const char *after, int status)
{
    cr_buf text = {0};
    request q = {.status = status, .method = "GET", .path = "/", .body = ""};

    cr_buf_adds(&text, before);
    for (size_t i = 0; i < num; i++)
        cr_buf_addc(&text, 'x');
    cr_buf_adds(&text, after);
    q.text = text.data;
    q.num_bytes = text.num_bytes;
    check_everywhere(&q);
    cr_buf_free(&text);
}

static void limits_are_kept(void **state)
{
    cr_buf text = {0};
    request q = {.method = "GET", .path = "/", .body = ""};

    (void)state;
    check_long("GET /?", 198, " HTTP/1.1\r\n" H "\r\n", 0);
    check_long("GET /?", 199, " HTTP/1.1\r\n" H "\r\n", 414);
    check_long("GET /?", 900, "", 414); /* never ends */
    check_long("", 900, "", 414);
    check_long(GET "y: ", 992, "\r\n\r\n", 0); /* 16 + 9 + 3 + 992 + 4 = 1024 */
    check_long(GET "y: ", 993, "\r\n\r\n", 431);
    check_long(GET "y: ", 2000, "", 431);
    check_long(CODED "5;", 253, "\r\nhello\r\n0\r\n\r\n", 400); /* 257 */
    check_long(CODED "0\r\ny: ", 1000, "\r\n\r\n", 431);        /* trailers count as fields */
    for (int num = 63; num <= 64; num++) {                      /* beside Host */
        cr_buf_clear(&text);
        cr_buf_adds(&text, GET);
        for (int i = 0; i < num; i++)
            cr_buf_adds(&text, "a:b\r\n");
        cr_buf_adds(&text, "\r\n");
        q.text = text.data;
        q.num_bytes = text.num_bytes;
        q.status = num == 63 ? 0 : 431;
        check_everywhere(&q);
    }
    cr_buf_free(&text);
}

/* Requests one after another on a connection: nothing of one is left in the next. */
static void pipelined(void **state)
{
    static const char text[] =
        POST "Connection: x\r\nContent-Length: 3\r\n\r\nabc"
             "\r\nGET /two HTTP/1.1\r\n" H "\r\n" CODED "1\r\nz\r\n0\r\n\r\n";
    static const struct {
        const char *path, *body;
    } want[] = {{"/p", "abc"}, {"/two", ""}, {"/p", "z"}};

    (void)state;
    for (long cut = -1; cut < (long)sizeof text - 1; cut++) {
        cr_http_parser p = {.limits = limits};
        size_t at = 0;
        for (size_t i = 0; i < CR_COUNT(want); i++) {
            long here = cut < 0 ? -1 : cut > (long)at ? cut - (long)at : 0;
            result r = parse_in_pieces(&p, text + at, sizeof text - 1 - at, here);
            assert_int_equal(r.event, CR_HTTP_WHOLE);
            assert_string_equal(cr_http_path(&p), want[i].path);
            assert_string_equal(p.body.num_bytes ? p.body.data : "", want[i].body);
            assert_int_equal(cr_http_field(&p, "connection") != NULL, i == 0);
            at += r.used;
            cr_http_parser_next(&p);
        }
        assert_int_equal(at, sizeof text - 1);
        cr_http_parser_free(&p);
    }
}

/* ---- answers, as a client reads them ---- */

#define OK "HTTP/1.1 200 OK\r\n"

static const struct {
    const char *text;
    int code; /* 0: refused */
    const char *body;
    bool should_close, ends; /* ends: with the connection */
} answers[] = {
    {OK "Content-Length: 5\r\n\r\nhello", 200, "hello"},
    {OK "Content-Length: 0\r\n\r\n", 200, ""},
    {OK "Transfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nt: u\r\n\r\n", 200, "hello"},
    {OK "Content-Length: 1\r\nConnection: close\r\n\r\nx", 200, "x", true},
    {"HTTP/1.1 503\r\nContent-Length: 1\r\n\r\nx", 503, "x"},
    {"HTTP/1.1 299 any reason\r\nContent-Length: 1\r\n\r\nx", 299, "x"},
    {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, "x", true},
    {"HTTP/1.1 204 none\r\n\r\n", 204, "", true},
    {"HTTP/1.1 304 as before\r\nContent-Length: 9\r\n\r\n", 304, ""},
    {"HTTP/1.1 100 go on\r\nx: y\r\n\r\nHTTP/1.1 103 z\r\n\r\n" OK "Content-Length: 1\r\n\r\nx",
     200, "x"},
    {OK "Content-Type: a\r\n\r\nup to the end", 200, "up to the end", true, true},
    {OK "\r\n", 200, "", true, true},
    {OK "Expect: this\r\nContent-Length: 1\r\n\r\nx", 200, "x"},
    {OK "Content-Length: 5\r\n\r\nhell", 0, "", false, true},
    {OK "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 0, "", false, true},
    {OK "Content-Le", 0, "", false, true},
    {"", 0, "", false, true},
    {OK "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"},
    {OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {OK "Transfer-Encoding: gzip\r\n\r\n"},
    {OK "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"},
    {OK "Content-Length: 65\r\n\r\n"},
    {OK "\r\n0123456789012345678901234567890123456789012345678901234567890123456789"},
    {"\r\n" OK "\r\n"},
    {"HTTP/1.1\r\n\r\n"},
    {"HTTP/1.1 20\r\n\r\n"},
    {"HTTP/1.1 2000\r\n\r\n"},
    {"HTTP/1.1 20x\r\n\r\n"},
    {"HTTP/1.1 020 x\r\n\r\n"},
    {"HTTP/1.1  200 x\r\n\r\n"},
    {"HTTP/1.1 101 other\r\n\r\n"},
    {"HTTP/2 200 OK\r\n\r\n"},
    {"SSH-2.0-OpenSSH_9.2\r\n"},
    {"GET / HTTP/1.1\r\n\r\n"},
    {OK " x: y\r\n\r\n"},
    {"HTTP/1.1 200 OK\n\n"},
};

static void answers_taken_and_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(answers); i++)
        for (long cut = -1; cut < (long)strlen(answers[i].text); cut++) {
            cr_http_parser p = {.limits = limits, .is_answer = true};
            const char *text = answers[i].text;
            result r = parse_in_pieces(&p, text, strlen(text), cut);
            if (answers[i].ends) {
                assert_int_equal(r.event, CR_HTTP_MORE);
                r.event = cr_http_parse_end(&p);
            }
            if (answers[i].code == 0) {
                if (r.event != CR_HTTP_REFUSED || !p.message) fail_msg("%s: taken", text);
                if (strstr(p.message, "request")) fail_msg("of an answer: %s", p.message);
            } else {
                if (r.event != CR_HTTP_WHOLE) fail_msg("%s: %s", text, p.message);
                assert_int_equal(r.used, strlen(text));
                assert_int_equal(p.code, answers[i].code);
                assert_int_equal(p.should_close, answers[i].should_close);
                assert_string_equal(p.body.num_bytes ? p.body.data : "", answers[i].body);
            }
            cr_http_parser_next(&p);
            assert_true(p.is_answer);
            cr_http_parser_free(&p);
        }
}

/* A status line without an end, and fields. */
static void answers_too_long(void **state)
{
    static const char *const begins[] = {"HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\nx: y"};
    static const char *const want[] = {"the first line is too long", "the fields are too long"};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(begins); i++) {
        cr_http_parser p = {.limits = limits, .is_answer = true};
        size_t used, num = 0;
        cr_http_event event = cr_http_parse(&p, begins[i], strlen(begins[i]), &used);
        if (used < strlen(begins[i]))
            event = cr_http_parse(&p, begins[i] + used, strlen(begins[i]) - used, &used);
        while (event == CR_HTTP_MORE && num++ < 100000)
            event = cr_http_parse(&p, "y", 1, &used);
        assert_int_equal(event, CR_HTTP_REFUSED);
        assert_string_equal(p.message, want[i]);
        cr_http_parser_free(&p);
    }
}

/* Notes before an answer count as its header. */
static void notes_end(void **state)
{
    cr_http_parser p = {.limits = limits, .is_answer = true};
    static const char note[] = "HTTP/1.1 102 wait\r\n\r\n";
    cr_http_event event = CR_HTTP_MORE;
    size_t used, num = 0;

    (void)state;
    while (event == CR_HTTP_MORE && num++ < 1000)
        event = cr_http_parse(&p, note, sizeof note - 1, &used);
    assert_int_equal(event, CR_HTTP_REFUSED);
    cr_http_parser_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_taken),
                                       cmocka_unit_test(requests_refused),
                                       cmocka_unit_test(limits_are_kept),
                                       cmocka_unit_test(pipelined),
                                       cmocka_unit_test(answers_taken_and_refused),
                                       cmocka_unit_test(answers_too_long),
                                       cmocka_unit_test(notes_end)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
