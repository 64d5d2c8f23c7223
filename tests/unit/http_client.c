/* http_client.c -- a client against a scripted server: what is tried again and what is not, kept connections, deadlines,
 * limits, keys; and against http/server.h with TLS: certificates that hold and others. Not covered: which answers can be
 * read (unit/http_parser), addresses that never answer. */
#include "http/client.h"
#include "http/server.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---- the server: answers request after request from a list, whichever connection it comes on ---- */

#define OK   "HTTP/1.1 200 OK\r\n"
#define HI   OK "Content-Length: 2\r\n\r\nhi"
#define HANG "hang" /* no answer until the client closes */
#define DROP ""     /* closes without an answer */

static const char *const *script;
static atomic_int num_requests, num_connections, listener;
static char url[160], asked[200]; /* by the last request: method, path, key, body */

/* The next request; false: the client has closed. */
static bool read_request(int fd, cr_http_parser *p)
{
    char bytes[4096];
    cr_http_event event = CR_HTTP_MORE;

    while (event != CR_HTTP_WHOLE) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        size_t used, at = 0;
        if (n <= 0) return false;
        for (event = CR_HTTP_HEAD; event == CR_HTTP_HEAD; at += used)
            event = cr_http_parse(p, bytes + at, (size_t)n - at, &used);
        if (event == CR_HTTP_REFUSED) fail_msg("a wrong request: %s", p->message);
    }
    return true;
}

static void *serve_one(void *ctx)
{
    int fd = (int)(intptr_t)ctx;
    cr_http_parser p = {.limits = {4096, 400, 1 << 20}};

    while (read_request(fd, &p)) {
        const char *key = cr_http_field(&p, "authorization"), *answer = script[num_requests++];
        snprintf(asked, sizeof asked, "%s %s %s %.20s", p.method, cr_http_path(&p), key ? key : "-",
                 p.body.num_bytes ? p.body.data : "");
        cr_http_parser_next(&p);
        if (strcmp(answer, HANG) == 0) continue;
        if (!*answer || send(fd, answer + (*answer == '!'), strlen(answer) - (*answer == '!'),
                             MSG_NOSIGNAL) < 0)
            break;
        if (*answer == '!') break; /* the last one of its connection */
    }
    cr_http_parser_free(&p);
    close(fd);
    return NULL;
}

static void *accept_all(void *ctx)
{
    int fd;

    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        pthread_t thread;
        num_connections++;
        pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)fd);
        pthread_detach(thread);
    }
    return ctx;
}

static pthread_t acceptor;

static void begin(const char *const *answers)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t num = sizeof in;

    script = answers;
    num_requests = num_connections = 0;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&in, num), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&in, &num), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(in.sin_port));
    pthread_create(&acceptor, NULL, accept_all, NULL);
}

static void end(void)
{
    shutdown(listener, SHUT_RDWR);
    pthread_join(acceptor, NULL);
    close(listener);
}

/* ---- one call ---- */

static cr_http_client *open_client(size_t num)
{
    const cr_http_client_options o = {.url = url, .max_connections = num, .answer_bytes = 1000};
    cr_http_client *c;
    cr_err err = {0};

    if (cr_http_client_open(&o, &c, &err) != CR_OK) fail_msg("%s", err.msg);
    return c;
}

/* What came of it: "200 hi", or the failure; valid until the next call. */
static const char *call_with(cr_http_client *c, const char *body, double seconds)
{
    static char text[600];
    cr_http_call call = {
        .method = body ? "POST" : "GET", .path = "/do", .deadline_s = cr_now_s() + seconds};
    cr_err err = {0};

    if (body) cr_buf_adds(&call.body, body);
    cr_http_client_add(c, &call, 0);
    assert_ptr_equal(cr_http_client_next(c, seconds + 5, -1), &call);
    snprintf(text, sizeof text, "%d %.*s", call.status, (int)call.answer.num_bytes,
             call.answer.data ? call.answer.data : "");
    if (cr_http_call_check(c, &call, &err) != CR_OK)
        snprintf(text, sizeof text, "%d %s", err.status, err.msg);
    cr_http_call_free(&call);
    return text;
}

static void expect(cr_http_client *c, const char *body, double seconds, const char *want)
{
    const char *got = call_with(c, body, seconds);

    if (!strstr(got, want)) fail_msg("%s instead of %s", got, want);
}

/* ---- tests ---- */

static void answers_and_kept_connections(void **state)
{
    static const char *const answers[] = {HI,
                                          OK
                                          "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
                                          "HTTP/1.1 100 go\r\n\r\n" HI,
                                          "!" OK "\r\nto the end",
                                          HI,
                                          HI "more",
                                          HI};
    cr_http_client *c;

    (void)state;
    begin(answers);
    c = open_client(1);
    expect(c, "{\"a\":1}", 5, "200 hi");
    assert_string_equal(asked, "POST /v1/do - {\"a\":1}");
    expect(c, NULL, 5, "200 hi");
    assert_string_equal(asked, "GET /v1/do - ");
    expect(c, NULL, 5, "200 hi");
    assert_int_equal(num_connections, 1);
    expect(c, NULL, 5, "200 to the end");
    expect(c, NULL, 5, "200 hi");
    assert_int_equal(num_connections, 2);
    expect(c, NULL, 5, "200 hi"); /* what comes after an answer is not the next one */
    expect(c, NULL, 5, "200 hi");
    assert_int_equal(num_connections, 3);
    assert_int_equal(num_requests, 7);
    cr_http_client_close(c);
    end();
}

static void tried_again(void **state)
{
    static const char *const answers[] = {DROP,
                                          "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n",
                                          "!" OK "Content-Length: 5\r\n\r\nhe",
                                          HI,
                                          "!" HI,
                                          HI,
                                          "HTTP/1.1 429 x\r\nRetry-After: 1\r\nContent-Length: 0"
                                          "\r\n\r\n",
                                          HI};
    cr_http_client *c;
    double from;

    (void)state;
    begin(answers);
    c = open_client(1);
    expect(c, "x", 20, "200 hi");
    assert_int_equal(num_requests, 4);
    expect(c, "x", 20, "200 hi");
    expect(c, "x", 20, "200 hi"); /* the service had closed the connection */
    from = cr_now_s();
    expect(c, "x", 20, "200 hi");
    assert_true(cr_now_s() - from >= 1);
    assert_int_equal(num_requests, 8);
    cr_http_client_close(c);
    end();
}

/* Retry-After as a date, which holds up other calls, too; pauses are not all the same. */
static void held_up(void **state)
{
    char busy[160];
    const char *const answers[] = {busy, HI, HI, DROP, HI};
    time_t then = time(NULL) + 4;
    cr_http_call calls[2];
    cr_http_client *c;
    double from = cr_now_s();

    (void)state;
    strftime(
        busy, sizeof busy,
        "HTTP/1.1 503 x\r\nRetry-After: %a, %d %b %Y %H:%M:%S GMT\r\nContent-Length: 0\r\n\r\n",
        gmtime(&then));
    begin(answers);
    c = open_client(2);
    for (int i = 0; i < 2; i++) {
        calls[i] = (cr_http_call){.method = "GET", .path = "/do", .deadline_s = from + 9};
        cr_http_client_add(c, &calls[i], 0);
        while (num_requests == 0)
            assert_null(cr_http_client_next(c, 0.01, -1));
        assert_null(cr_http_client_next(c, 0.1, -1));
    }
    for (int i = 0; i < 2; i++) {
        cr_http_call *call = cr_http_client_next(c, 5, -1);
        assert_non_null(call);
        assert_int_equal(call->status, 200);
        assert_true(cr_wall_s() > (double)then - 0.01);
        cr_http_call_free(call);
    }
    assert_int_equal(num_requests, 3);
    from = cr_now_s();
    expect(c, "x", 9, "200 hi"); /* a dropped connection waits for no date */
    assert_true(cr_now_s() - from < 3);
    cr_http_client_close(c);
    end();
}

static void not_tried_again(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 409 x\r\nContent-Length: 48\r\n\r\n{\"error\":{\"message\":\"other "
        "weights\",\"code\":\"w\"}}",
        "HTTP/1.1 404 x\r\nContent-Length: 21\r\n\r\n{\"detail\":\"no\\u001b\"}", "!SSH-2.0-x\r\n",
        "!" OK "Content-Length: 1001\r\n\r\n", "!HTTP/1.1 413 x\r\nContent-Length: 3\r\n\r\nbig"};
    cr_http_client *c;

    (void)state;
    begin(answers);
    c = open_client(1);
    expect(c, "x", 9, "/do answered 409: other weights");
    expect(c, "x", 9, "/do answered 404: no ");
    expect(c, "x", 9, "its answer cannot be read");
    expect(c, "x", 9, "its answer cannot be read: the body is too large");
    expect(c, "x", 9, "answered 413: big");
    assert_int_equal(num_requests, 5);
    cr_http_client_close(c);
    end();
}

/* A service that refuses answers before it has read everything. */
static void early_answer(void **state)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    static char body[4 << 20];
    char bytes[1000];
    static const char answer[] = "HTTP/1.1 413 x\r\nContent-Length: 3\r\n\r\nbig";
    cr_http_client *c;
    cr_http_call call = {.method = "POST", .path = "/do", .deadline_s = cr_now_s() + 9};
    int at = socket(AF_UNIX, SOCK_STREAM, 0), fd;

    (void)state;
    snprintf(un.sun_path, sizeof un.sun_path, "%s/socket", temp_folder);
    snprintf(url, sizeof url, "unix:%s", un.sun_path);
    assert_int_equal(bind(at, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(at, 4), 0);
    c = open_client(1);
    cr_buf_add(&call.body, body, sizeof body);
    cr_http_client_add(c, &call, 0);
    assert_null(cr_http_client_next(c, 0.1, -1));
    fd = accept(at, NULL, NULL);
    assert_true(recv(fd, bytes, sizeof bytes, 0) > 0);
    assert_int_equal(send(fd, answer, strlen(answer), 0), strlen(answer));
    assert_ptr_equal(cr_http_client_next(c, 5, -1), &call);
    assert_int_equal(call.status, 413);
    cr_http_call_free(&call);
    cr_http_client_close(c);
    close(fd);
    close(at);
}

static void deadlines_are_totals(void **state)
{
    static const char *const answers[] = {HANG, "HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n",
                                          HANG};
    cr_http_client *c;
    double from = cr_now_s();
    int pipes[2];

    (void)state;
    begin(answers);
    c = open_client(1);
    expect(c, "x", 0.3, "gave no answer within 0.3 s (1 try)");
    expect(c, "x", 3, "gave no answer within 3 s (2 tries; the last one: it answered 500)");
    assert_true(cr_now_s() - from < 60);
    end();
    expect(c, "x", 0.5, "cannot connect: Connection refused");
    /* another descriptor ends the waiting */
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(write(pipes[1], "x", 1), 1);
    from = cr_now_s();
    assert_null(cr_http_client_next(c, 100, pipes[0]));
    assert_true(cr_now_s() - from < 60);
    close(pipes[0]);
    close(pipes[1]);
    cr_http_client_close(c);
}

static void many_at_once(void **state)
{
    enum { CALLS = 40 };
    static const char *answers[CALLS];
    static cr_http_call calls[CALLS];
    cr_http_client *c;
    bool has[CALLS] = {false};

    (void)state;
    for (size_t i = 0; i < CALLS; i++)
        answers[i] = HI;
    begin(answers);
    c = open_client(4);
    for (size_t i = 0; i < CALLS; i++) {
        calls[i] = (cr_http_call){
            .method = "GET", .path = "/do", .deadline_s = cr_now_s() + 9, .index = i};
        cr_http_client_add(c, &calls[i], 0);
    }
    for (size_t i = 0; i < CALLS; i++) {
        cr_http_call *call = cr_http_client_next(c, 9, -1);
        assert_non_null(call);
        assert_int_equal(call->status, 200);
        assert_false(has[call->index]);
        has[call->index] = true;
        cr_http_call_free(call);
    }
    assert_int_equal(num_connections, 4);
    cr_http_client_close(c);
    end();
}

static void write_file(const char *name, const char *text, char path[120])
{
    cr_err err = {0};

    snprintf(path, 120, "%s/%s", temp_folder, name);
    assert_int_equal(cr_file_write_atomic(path, text, strlen(text), &err), CR_OK);
}

static void keys(void **state)
{
    static const char *const answers[] = {
        HI, HI, "HTTP/1.1 401 x\r\nContent-Length: 26\r\n\r\n{\"error\":\"sk-3333 is not\"}"};
    char good[120], empty[120], blank[120];
    cr_http_client_options o = {.url = url, .max_connections = 1, .answer_bytes = 100};
    cr_http_client *c;

    (void)state;
    write_file("key", "sk-1 \nanother\n", good);
    write_file("empty", "\n", empty);
    write_file("blank", "two words\n", blank);
    begin(answers);
    for (int i = 0; i < 2; i++) {
        cr_err err = {0};
        setenv("CROLL_TEST_KEY", "sk-2", 1);
        o.key_file = i ? NULL : good;
        o.key_env = i ? "CROLL_TEST_KEY" : NULL;
        assert_int_equal(cr_http_client_open(&o, &c, &err), CR_OK);
        expect(c, "x", 9, "200 hi");
        assert_string_equal(asked, i ? "POST /v1/do Bearer sk-2 x" : "POST /v1/do Bearer sk-1 x");
        cr_http_client_close(c);
    }
    {
        cr_err err = {0};
        setenv("CROLL_TEST_KEY", "sk-3333", 1);
        assert_int_equal(cr_http_client_open(&o, &c, &err), CR_OK);
        expect(c, "x", 9, "answered 401: ******* is not"); /* not into a log */
        cr_http_client_close(c);
    }
    for (size_t i = 0; i < 4; i++) {
        cr_err err = {0};
        o.key_env = i ? NULL : "CROLL_TEST_NO_KEY";
        o.key_file = i ? ((const char *[]){"", empty, blank, "/absent"})[i] : NULL;
        assert_int_equal(cr_http_client_open(&o, &c, &err), CR_EUSAGE);
        assert_null(strstr(err.msg, "two words"));
    }
    end();
}

static void urls(void **state)
{
    static const char *const wrong[] = {"",
                                        "localhost:8000",
                                        "ftp://h",
                                        "http://",
                                        "http://:80",
                                        "http://h:0",
                                        "http://h:65536",
                                        "http://h:x",
                                        "http://[::1",
                                        "http://[::1]x",
                                        "http://user@h",
                                        "http://h/a b",
                                        "http://h/?a",
                                        "http://h/\r\nx:",
                                        "unix:"};
    static const char *const right[] = {"http://h", "https://h/v1/", "http://[::1]:8000",
                                        "http://h:/api/v3/", "unix:x"};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(wrong) + CR_COUNT(right); i++) {
        bool is_wrong = i < CR_COUNT(wrong);
        const cr_http_client_options o = {.url = is_wrong ? wrong[i] : right[i - CR_COUNT(wrong)],
                                          .max_connections = 1};
        cr_http_client *c;
        cr_err err = {0};
        if (cr_http_client_open(&o, &c, &err) != (is_wrong ? CR_EUSAGE : CR_OK))
            fail_msg("%s: %s", o.url, err.msg);
        cr_http_client_close(c);
    }
}

/* ---- TLS ---- */

static cr_http_server *tls_server;

static void on_request(void *ctx, cr_http_exchange *x)
{
    (void)ctx;
    cr_http_answer(x, 200, "text/plain", "hi", 2);
}

static void ignore(void *ctx, cr_http_exchange *x)
{
    (void)ctx;
    (void)x;
}

static atomic_bool should_stop;

static void on_wake(void *ctx)
{
    (void)ctx;
    if (should_stop) cr_http_stop(tls_server);
}

static void on_tick(void *ctx)
{
    (void)ctx;
}

static void *run_tls(void *ctx)
{
    cr_http_run(tls_server);
    return ctx;
}

static void make_certificates(void)
{
    char command[1200];

    snprintf(
        command, sizeof command,
        "cd %s && exec >log 2>&1 && new='openssl req -x509 -nodes -newkey ec -pkeyopt "
        "ec_paramgen_curve:P-256 -days 2' && $new -subj /CN=authority -keyout ca.key -out "
        "ca.pem && $new -subj /CN=another -keyout other.key -out other.pem && openssl req -new "
        "-nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=s -keyout key.pem "
        "-out r.csr && echo subjectAltName=DNS:localhost >ext && openssl x509 -req -in r.csr "
        "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem",
        temp_folder);
    assert_int_equal(system(command), 0);
}

static void tls(void **state)
{
    static const struct {
        const char *host, *ca, *want;
    } cases[] = {{"https://localhost", "ca.pem", "200 hi"},
                 {"https://localhost", "other.pem", "its certificate is not accepted: "},
                 {"https://localhost", NULL, "its certificate is not accepted: "},
                 {"https://127.0.0.1", "ca.pem", "is not accepted: IP address mismatch"}};
    const cr_http_app app = {.on_head = ignore,
                             .on_request = on_request,
                             .on_gone = ignore,
                             .on_end = ignore,
                             .on_wake = on_wake,
                             .on_tick = on_tick};
    cr_http_options o = cr_http_defaults;
    char cert[120], key[120];
    pthread_t thread;
    cr_err err = {0};

    (void)state;
    make_certificates();
    snprintf(cert, sizeof cert, "%s/cert.pem", temp_folder);
    snprintf(key, sizeof key, "%s/key.pem", temp_folder);
    o.listen = "127.0.0.1:0";
    o.tls_cert = cert;
    o.tls_key = key;
    if (cr_http_open(&o, &app, NULL, 0, &tls_server, &err) != CR_OK) fail_msg("%s", err.msg);
    pthread_create(&thread, NULL, run_tls, NULL);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char ca[120];
        cr_http_client_options c = {.url = url, .max_connections = 1, .answer_bytes = 100};
        cr_http_client *client;
        snprintf(url, sizeof url, "%s%s", cases[i].host, strrchr(cr_http_url(tls_server), ':'));
        snprintf(ca, sizeof ca, "%s/%s", temp_folder, cases[i].ca ? cases[i].ca : "");
        if (cases[i].ca) c.ca_file = ca;
        if (cr_http_client_open(&c, &client, &err) != CR_OK) fail_msg("%s", err.msg);
        for (int k = 0; k < 3; k++)
            expect(client, "x", 2, cases[i].want);
        cr_http_client_close(client);
    }
    assert_int_equal(cr_http_count(tls_server).num_handshakes, 1); /* the good one is kept */
    should_stop = true;
    cr_http_wake(tls_server);
    pthread_join(thread, NULL);
    cr_http_close(tls_server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_kept_connections),
        cmocka_unit_test(tried_again),
        cmocka_unit_test(held_up),
        cmocka_unit_test(not_tried_again),
        cmocka_unit_test(early_answer),
        cmocka_unit_test(deadlines_are_totals),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(keys),
        cmocka_unit_test(urls),
        cmocka_unit_test(tls),
    };

    signal(SIGPIPE, SIG_IGN); /* as croll does */
    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
