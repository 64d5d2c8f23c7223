/* http_server.c -- connections against raw sockets: order of answers, what closes a connection, deadlines, limits,
 * streams, clients that leave, the end. Not covered: TLS and addresses other than loopback (e2e/serve). */
#include "http/server.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define H "Host: a\r\n"

static cr_http_server *server;
static pthread_t thread;
static cr_http_exchange *waiting; /* of the I/O thread */
static atomic_int num_gone, num_ended, last_status, num_parts, is_waiting, should_stop;
static atomic_bool was_gone;

/* ---- the application ---- */

static void on_head(void *ctx, cr_http_exchange *x)
{
    (void)ctx;
    if (strcmp(cr_http_path(x->request), "/refused") == 0) cr_http_fail(x, 401, NULL, "key", "no");
}

static void on_request(void *ctx, cr_http_exchange *x)
{
    const char *path = cr_http_path(x->request);

    (void)ctx;
    if (strcmp(path, "/stream") == 0) {
        cr_http_stream(x, 200, "text/event-stream");
        cr_http_stream_add(x, "one ", 4);
    }
    if (strcmp(path, "/stream") == 0 || strcmp(path, "/later") == 0) {
        waiting = x;
        is_waiting = 1;
        return;
    }
    if (strcmp(path, "/big") == 0) {
        void *zeros = cr_alloc(8 << 20);
        cr_http_answer(x, 200, "text/plain", zeros, 8 << 20);
        cr_free(zeros);
        return;
    }
    cr_http_set(x, "x-length", path);
    cr_http_answer(x, 200, "text/plain", x->request->body.num_bytes ? x->request->body.data : "",
                   x->request->body.num_bytes);
}

static void on_gone(void *ctx, cr_http_exchange *x)
{
    (void)ctx;
    if (x == waiting) waiting = NULL;
    num_gone++;
}

static void on_end(void *ctx, cr_http_exchange *x)
{
    (void)ctx;
    last_status = x->status;
    was_gone = x->is_gone;
    num_ended++;
}

static void on_wake(void *ctx)
{
    cr_http_exchange *x = waiting;
    static char megabyte[1 << 20];

    (void)ctx;
    if (should_stop) cr_http_stop(server);
    if (!x) return;
    if (!x->status) {
        is_waiting = 0;
        waiting = NULL;
        cr_http_answer(x, 200, "text/plain", "late", 4);
    } else if (num_parts == 0) {
        cr_http_stream_add(x, "two", 3);
        cr_http_stream_end(x);
    } else {
        for (int i = 0; i < num_parts; i++)
            cr_http_stream_add(x, megabyte, sizeof megabyte);
    }
}

static void on_tick(void *ctx)
{
    (void)ctx;
}

static void on_signal(void *ctx, int number)
{
    (void)ctx;
    (void)number;
}

static void *run_thread(void *ctx)
{
    cr_http_run(server);
    return ctx;
}

static void start(const cr_http_options *options)
{
    const cr_http_app app = {NULL,   on_head, on_request, on_gone,
                             on_end, on_wake, on_tick,    on_signal};
    cr_err err = {0};

    if (cr_http_open(options, &app, NULL, 0, &server, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(pthread_create(&thread, NULL, run_thread, NULL), 0);
    num_gone = num_ended = num_parts = is_waiting = should_stop = 0;
}

/* Nothing is held for connections that are closed: looked at when the I/O thread has ended, idle ones are closed by then. */
static void stop(void)
{
    should_stop = 1;
    cr_http_wake(server);
    pthread_join(thread, NULL);
    assert_int_equal(cr_http_count(server).num_connections, 0);
    assert_int_equal(cr_http_count(server).buffered_bytes, 0);
    cr_http_close(server);
}

static cr_http_options quick(void)
{
    cr_http_options o = cr_http_defaults;

    o.listen = "127.0.0.1:0";
    o.head_s = o.body_s = 0.4;
    o.idle_s = o.stall_s = 1;
    o.limits.body_bytes = 4096;
    return o;
}

/* ---- a client ---- */

static int connect_to_server(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 8};
    int fd = socket(AF_INET, SOCK_STREAM, 0), small = 4096;

    in.sin_port = htons((uint16_t)atoi(strrchr(cr_http_url(server), ':') + 1));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Read until `end` has come, or the connection is closed; the text so far. */
static const char *hear(int fd, const char *end)
{
    static char text[65536];
    size_t num = 0;
    ssize_t n;

    text[0] = 0;
    while (num + 1 < sizeof text && !(end && strstr(text, end)) &&
           (n = recv(fd, text + num, sizeof text - 1 - num, 0)) > 0) {
        num += (size_t)n;
        text[num] = 0;
    }
    if (end && !strstr(text, end)) fail_msg("no %s in: %s", end, text);
    return text;
}

/* One request on a connection of its own; the answer holds `want`, and then the connection is closed. */
static void check_closed(const char *request, const char *want, const char *also)
{
    int fd = connect_to_server();
    const char *text;

    say(fd, request);
    text = hear(fd, NULL);
    if (!strstr(text, want) || !strstr(text, also))
        fail_msg("no '%s' with '%s' in: %s", want, also, text);
    assert_null(strstr(text, "100 Continue"));
    close(fd);
}

static void until(atomic_int *what, int value)
{
    for (int i = 0; *what != value && i < 500; i++)
        usleep(10000);
    assert_int_equal(*what, value);
}

/* ---- tests ---- */

static void one_after_another(void **state)
{
    cr_http_options o = quick();
    const char *text, *late;
    int fd;

    (void)state;
    start(&o);
    fd = connect_to_server();
    say(fd, "POST /a HTTP/1.1\r\n" H "Content-Length: 1\r\nx-request-id: mine\r\n\r\nA"
            "GET /later HTTP/1.1\r\n" H "\r\nGET /b HTTP/1.1\r\n" H "\r\n"
            "POST /c HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\nC\r\n0\r\n\r\n"
            "HEAD /d HTTP/1.1\r\n" H "\r\n");
    until(&is_waiting, 1);
    text = hear(fd, "\r\n\r\nA");
    assert_non_null(strstr(text, "x-request-id: mine\r\n"));
    assert_non_null(strstr(text, "x-length: /a\r\n"));
    assert_null(strstr(text, "/b"));
    cr_http_wake(server);
    text = hear(fd, "x-length: /d\r\n");
    late = strstr(text, "\r\n\r\nlate");
    assert_true(late && late < strstr(text, "/b") &&
                strstr(text, "/b") < strstr(text, "\r\n\r\nC"));
    assert_null(strstr(text, "Connection: close"));
    close(fd);
    check_closed("GET /x HTTP/1.0\r\n\r\n", " 200 OK", "Connection: close");
    fd = connect_to_server();
    say(fd, "GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    hear(fd, "Connection: keep-alive");
    say(fd, "GET /y HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    assert_non_null(strstr(hear(fd, NULL), "/y"));
    close(fd);
    stop();
}

static void refused_before_the_body(void **state)
{
    cr_http_options o = quick();
    int fd;

    (void)state;
    start(&o);
    fd = connect_to_server(); /* a refusal of a request without body leaves the connection open */
    say(fd, "GET /refused HTTP/1.1\r\n" H "\r\nGET /next HTTP/1.1\r\n" H "\r\n");
    hear(fd, "x-length: /next");
    close(fd);
    check_closed("POST /refused HTTP/1.1\r\n" H "Content-Length: 9\r\n\r\n", " 401 ",
                 "Connection: close");
    check_closed("POST /refused HTTP/1.1\r\n" H "Content-Length: 9\r\nExpect: 100-continue\r\n\r\n",
                 "HTTP/1.1 401 ", "\"param\":\"key\"");
    check_closed("POST /x HTTP/1.1\r\n" H "Content-Length: 4097\r\n\r\n", " 413 ",
                 "\"code\":\"content_too_large\"");
    check_closed("GET / HTTP/1.1\r\n" H "a : b\r\n\r\nGET /x HTTP/1.1\r\n" H "\r\n", " 400 ",
                 "invalid_request_error");
    fd = connect_to_server();
    say(fd, "POST /x HTTP/1.1\r\n" H "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    hear(fd, "HTTP/1.1 100 Continue\r\n\r\n");
    say(fd, "hi");
    assert_non_null(strstr(hear(fd, "\r\n\r\nhi"), " 200 OK"));
    close(fd);
    stop();
}

static void deadlines(void **state)
{
    cr_http_options o = quick();
    double begin_s = cr_now_s();
    int fd, silent, sleepy;
    struct pollfd closed;

    (void)state;
    start(&o);
    fd = connect_to_server();
    for (int i = 0; i < 7; i++) { /* bytes that keep coming do not help */
        say(fd, "G");
        usleep(150000);
    }
    closed = (struct pollfd){.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&closed, 1, 0), 1);
    assert_non_null(strstr(hear(fd, NULL), " 408 "));
    close(fd);
    check_closed("POST /x HTTP/1.1\r\n" H "Content-Length: 9\r\n\r\nhalf", " 408 ",
                 "request_timeout");
    silent = connect_to_server(); /* says nothing */
    fd = connect_to_server();     /* asks for more than it reads */
    say(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    sleepy = connect_to_server(); /* no deadline while the application works */
    say(sleepy, "GET /later HTTP/1.1\r\n" H "\r\n");
    assert_string_equal(hear(silent, NULL), "");
    until(&num_ended, 3);
    assert_true(was_gone);
    usleep(600000);
    closed = (struct pollfd){.fd = sleepy, .events = POLLRDHUP};
    assert_int_equal(poll(&closed, 1, 0), 0);
    assert_true(cr_now_s() - begin_s < 60);
    close(fd);
    close(silent);
    close(sleepy);
    stop();
}

static void streams(void **state)
{
    cr_http_options o = quick();
    int fd;

    (void)state;
    o.stream_bytes = 4 << 20;
    o.stall_s = 60;
    start(&o);
    fd = connect_to_server();
    say(fd, "GET /stream HTTP/1.1\r\n" H "\r\n");
    assert_non_null(strstr(hear(fd, "4\r\none \r\n"), "Transfer-Encoding: chunked\r\n"));
    cr_http_wake(server);
    hear(fd, "3\r\ntwo\r\n0\r\n\r\n");
    say(fd, "GET /x HTTP/1.1\r\n" H "\r\n"); /* the connection goes on */
    hear(fd, "x-length: /x");
    close(fd);
    fd = connect_to_server();
    say(fd, "GET /stream HTTP/1.0\r\n\r\n");
    hear(fd, "one ");
    cr_http_wake(server);
    assert_string_equal(hear(fd, NULL), "two");
    close(fd);
    num_parts = 8; /* more than the client may leave unread */
    fd = connect_to_server();
    say(fd, "GET /stream HTTP/1.1\r\n" H "\r\n");
    hear(fd, "one ");
    cr_http_wake(server);
    until(&num_gone, 1);
    close(fd);
    stop();
}

static void clients_that_leave(void **state)
{
    cr_http_options o = quick();
    int fd;

    (void)state;
    start(&o);
    fd = connect_to_server();
    say(fd, "GET /later HTTP/1.1\r\n" H "\r\n");
    until(&is_waiting, 1);
    close(fd);
    until(&num_gone, 1);
    until(&num_ended, 1);
    is_waiting = 0;
    fd = connect_to_server();
    say(fd, "GET /later HTTP/1.1\r\n" H "\r\n");
    until(&is_waiting, 1);
    shutdown(fd, SHUT_WR); /* half-closed is gone */
    assert_string_equal(hear(fd, NULL), "");
    assert_int_equal(num_gone, 2);
    close(fd);
    stop();
    o.is_half_close_fine = true;
    start(&o);
    fd = connect_to_server();
    say(fd, "GET /later HTTP/1.1\r\n" H "\r\n");
    until(&is_waiting, 1);
    shutdown(fd, SHUT_WR);
    usleep(100000);
    cr_http_wake(server);
    assert_non_null(strstr(hear(fd, NULL), "late"));
    assert_int_equal(num_gone, 0);
    close(fd);
    stop();
}

static void limits_of_all(void **state)
{
    cr_http_options o = quick();
    int fd[4];
    char *part = cr_alloc(3001);

    (void)state;
    o.max_connections = 3;
    o.buffered_bytes = 5000;
    start(&o);
    for (int i = 0; i < 4; i++)
        fd[i] = connect_to_server();
    assert_non_null(strstr(hear(fd[3], NULL), " 503 "));
    memset(part, 'x', 3000);
    for (int i = 0; i < 2; i++) {
        say(fd[i], "POST /x HTTP/1.1\r\n" H "Content-Length: 3001\r\n\r\n");
        say(fd[i], part);
        usleep(50000);
    }
    assert_non_null(strstr(hear(fd[1], NULL), "Retry-After: 1\r\n"));
    say(fd[2],
        "POST /x HTTP/1.1\r\n" H "Content-Length: 1501\r\n\r\n"); /* what was refused is free */
    say(fd[2], part + 1500);
    usleep(50000);
    say(fd[2], "x");
    hear(fd[2], " 200 OK");
    say(fd[0], "x");
    hear(fd[0], " 200 OK");
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    cr_free(part);
    stop();
}

static void unix_sockets(void **state)
{
    cr_http_options o = quick();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *listen = cr_asprintf("unix:%s/s", temp_folder);
    struct stat found;
    int fd;

    (void)state;
    o.listen = listen;
    strcpy(address.sun_path, listen + 5);
    fd = socket(AF_UNIX, SOCK_STREAM, 0); /* one that was left */
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    start(&o);
    assert_true(cr_http_is_local(server));
    assert_int_equal(stat(address.sun_path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    say(fd, "GET /x HTTP/1.1\r\n" H "\r\n");
    hear(fd, " 200 OK");
    close(fd);
    stop();
    assert_int_not_equal(stat(address.sun_path, &found), 0);
    cr_free(listen);
}

static void addresses(void **state)
{
    static const char *const bad[] = {
        "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",           "127.0.0.1:65536",
        ":80",       "unix:",      "no.such.host.invalid:0"};
    const cr_http_app app = {0};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        cr_http_options o = quick();
        cr_err err = {0};
        o.listen = bad[i];
        assert_int_equal(cr_http_open(&o, &app, NULL, 0, &server, &err), CR_EUSAGE);
        assert_null(server);
    }
}

/* An answer that is due is given before the end, with Connection: close; idle connections do not hold it up. */
static void the_end(void **state)
{
    cr_http_options o = quick();
    double begin_s;
    int fd, idle;

    (void)state;
    o.idle_s = 200;
    start(&o);
    idle = connect_to_server();
    fd = connect_to_server();
    say(fd, "GET /later HTTP/1.1\r\n" H "\r\n");
    until(&is_waiting, 1);
    begin_s = cr_now_s();
    stop(); /* answers, too */
    assert_true(cr_now_s() - begin_s < 60);
    assert_non_null(strstr(hear(fd, NULL), "Connection: close\r\n"));
    assert_string_equal(hear(idle, NULL), "");
    close(fd);
    close(idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_after_another),
                                       cmocka_unit_test(refused_before_the_body),
                                       cmocka_unit_test(deadlines),
                                       cmocka_unit_test(streams),
                                       cmocka_unit_test(clients_that_leave),
                                       cmocka_unit_test(limits_of_all),
                                       cmocka_unit_test(unix_sockets),
                                       cmocka_unit_test(addresses),
                                       cmocka_unit_test(the_end)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
