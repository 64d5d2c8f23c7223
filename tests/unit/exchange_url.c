/* exchange_url.c -- addresses of the exchange against real servers: TCP with a password, ACL users, TLS with a
 * private authority and client certificates, runs kept apart by their prefix, and everything that cannot get better
 * as an error at once, without the password. Servers that never answer or are no Redis are sockets of the test.
 * Not covered: other hosts, a certificate that is out of date (OpenSSL's own check). */
#include "exchange/exchange.h"
#include "tests/check_near.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t server;
static int plain_port, tls_port;
static char folder[] = "/tmp/croll-test-XXXXXX", ca[64], cert[64], key[64], other_ca[64];

/* A listening socket on loopback. */
static int listen_on(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t num_bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&a, &num_bytes), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int free_port(void)
{
    int port;

    close(listen_on(&port));
    return port;
}

static void start_server(void)
{
    char a[8], b[8];

    snprintf(a, sizeof a, "%d", plain_port);
    snprintf(b, sizeof b, "%d", tls_port);
    fflush(NULL);
    server = fork();
    if (server != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execlp("redis-server", "redis-server", "--port", a, "--tls-port", b, "--bind", "127.0.0.1",
           "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca,
           "--tls-auth-clients", "optional", "--save", "", "--requirepass", "s3cret@/%", "--user",
           "reader", "on", ">pa:ss", "~croll:*", "+@all", "--logfile", "/dev/null", (char *)NULL);
    _exit(127);
}

static int set_up(void **state)
{
    char command[1500];

    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(ca, sizeof ca, "%s/ca.pem", folder);
    snprintf(cert, sizeof cert, "%s/cert.pem", folder);
    snprintf(key, sizeof key, "%s/key.pem", folder);
    snprintf(other_ca, sizeof other_ca, "%s/other.pem", folder);
    snprintf(
        command, sizeof command,
        "cd %s && exec >log 2>&1 && new='openssl req -x509 -nodes -newkey ec -pkeyopt "
        "ec_paramgen_curve:P-256 -days 2' && $new -subj /CN=authority -keyout ca.key -out "
        "ca.pem && $new -subj /CN=another -keyout other.key -out other.pem && openssl req -new "
        "-nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=redis -keyout key.pem "
        "-out r.csr && echo subjectAltName=DNS:localhost >ext && openssl x509 -req -in r.csr "
        "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem",
        folder);
    if (system(command) != 0) return -1;
    plain_port = free_port();
    do
        tls_port = free_port();
    while (tls_port == plain_port);
    start_server();
    return 0;
}

static int tear_down(void **state)
{
    cr_err err = {0};

    (void)state;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return cr_remove_tree(folder, &err) == CR_OK ? 0 : -1;
}

/* The server may still be starting. */
static cr_exchange *open_url(const char *prefix, const char *fmt, int port)
{
    char url[120];
    cr_exchange_args args = {
        .url = url, .prefix = prefix, .deadline_s = 10, .may_be_starting = true};
    cr_exchange *x;
    cr_err err = {0};

    snprintf(url, sizeof url, fmt, port);
    if (strncmp(url, "rediss", 6) == 0) args.ca_file = ca;
    if (cr_exchange_open(&args, &x, &err) != CR_OK) fail_msg("%s", err.msg);
    return x;
}

static const char with_password[] = "redis://:s3cret%%40%%2F%%25@127.0.0.1:%d/1";

static void tcp_with_password(void **state)
{
    cr_exchange *a = open_url("a:", with_password, plain_port),
                *b = open_url("b:", with_password, plain_port),
                *other = open_url("a:", "redis://:s3cret%%40%%2F%%25@127.0.0.1:%d/2", plain_port);
    const char *name = "hb:step";
    cr_buf got = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_value_set(a, "hb:step", "3", &err), CR_OK);
    assert_int_equal(cr_value_set(b, "hb:step", "4", &err), CR_OK);
    assert_int_equal(cr_values_get(other, &name, 1, &got, &err), CR_OK);
    assert_int_equal(got.num_bytes, 0);
    assert_int_equal(cr_prefix_wipe(b, &err), CR_OK);
    assert_int_equal(cr_values_get(b, &name, 1, &got, &err), CR_OK);
    assert_int_equal(got.num_bytes, 0);
    assert_int_equal(cr_values_get(a, &name, 1, &got, &err), CR_OK);
    assert_string_equal(got.data, "3");
    cr_buf_free(&got);
    cr_exchange_close(a);
    cr_exchange_close(b);
    cr_exchange_close(other);
}

static void an_acl_user_has_its_keys(void **state)
{
    cr_exchange *x = open_url("croll:u:", "redis://reader:pa:ss@127.0.0.1:%d", plain_port),
                *y = open_url("other:", "redis://reader:pa:ss@127.0.0.1:%d", plain_port);
    cr_entries got;
    const char *const in[] = {"in"};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_prefix_hold(x, "run", "me", 5, &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    assert_int_equal(cr_stream_put(x, "in", "1", "x", 1, NULL, &err), CR_OK);
    assert_int_equal(cr_stream_take(x, in, 1, "g", "c", 2, 0, 60, &got, &err), CR_OK);
    assert_int_equal(got.num, 1);
    cr_entries_free(&got);
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_prefix_release(x, "run", &err), CR_OK);
    assert_int_equal(cr_value_set(y, "hb:step", "1", &err), CR_EIO);
    assert_non_null(strstr(err.msg, "NOPERM"));
    cr_exchange_close(x);
    cr_exchange_close(y);
}

/* More than a record of TLS and than a socket's buffer, there and back. */
static void tls_carries_large_values(void **state)
{
    enum { BYTES = 20 << 20 };
    cr_exchange *x = open_url("t:", "rediss://reader:pa:ss@localhost:%d", tls_port), *own;
    char *data = cr_alloc(BYTES), url[80];
    cr_exchange_args args = {.url = url,
                             .prefix = "croll:t:",
                             .deadline_s = 20,
                             .ca_file = ca,
                             .cert_file = cert,
                             .key_file = key};
    cr_buf got = {0};
    cr_err err = {0};
    bool is_there;

    (void)state;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (char)(i * 2654435761u >> 24);
    snprintf(url, sizeof url, "rediss://reader:pa:ss@localhost:%d", tls_port);
    assert_int_equal(cr_exchange_open(&args, &own, &err), CR_OK);
    assert_int_equal(cr_reply_put(own, "r", data, BYTES, &err), CR_OK);
    assert_int_equal(cr_reply_wait(own, "r", 5, &got, &is_there, &err), CR_OK);
    assert_true(is_there);
    assert_int_equal(got.num_bytes, BYTES);
    assert_memory_equal(got.data, data, BYTES);
    cr_buf_free(&got);
    cr_free(data);
    cr_exchange_close(x);
    cr_exchange_close(own);
}

/* Nothing of it can get better: an error at once, and what to do. */
static void refused_at_once(void **state)
{
    const struct {
        const char *url;
        const char *ca_file, *cert_file, *key_file;
        int port;
        const char *text;
    } bad[] = {
        {"redis://:hunter2@127.0.0.1:%d", NULL, NULL, NULL, plain_port,
         "refused the user or password"},
        {"redis://reader:hunter2@127.0.0.1:%d", NULL, NULL, NULL, plain_port,
         "refused the user or pass"},
        {"redis://127.0.0.1:%d", NULL, NULL, NULL, plain_port, "it wants a password (redis://user"},
        {"redis://:s3cret%%40%%2F%%25@127.0.0.1:%d/99", NULL, NULL, NULL, plain_port,
         "out of range"},
        {"redis://127.0.0.1:%d", NULL, NULL, NULL, free_port(), "Connection refused"},
        {"redis://nowhere.invalid:%d", NULL, NULL, NULL, 1234, "the host is unknown"},
        {"rediss://localhost:%d", NULL, NULL, NULL, tls_port, "is not accepted: "},
        {"rediss://localhost:%d", other_ca, NULL, NULL, tls_port, "is not accepted: "},
        {"rediss://127.0.0.1:%d", ca, NULL, NULL, tls_port, "IP address mismatch"},
        {"redis://localhost:%d", NULL, NULL, NULL, tls_port, "rediss:// is its address"},
        {"rediss://localhost:%d", "/nowhere.pem", NULL, NULL, tls_port,
         "exchange.ca_file: /nowhere"},
        {"rediss://localhost:%d", ca, cert, NULL, tls_port, "belong together"},
        {"rediss://localhost:%d", ca, cert, ca, tls_port, "exchange.key_file"},
        {"redis://localhost:%d", ca, NULL, NULL, plain_port, "must begin with rediss://"},
        {"http://localhost:%d", NULL, NULL, NULL, 1, "must be redis://"},
        {"localhost:%d", NULL, NULL, NULL, 1, "must be redis://"},
        {"redis://%.0d", NULL, NULL, NULL, 0, "needs a host"},
        {"redis://host:%d", NULL, NULL, NULL, 0, "needs a host"},
        {"redis://host:%d", NULL, NULL, NULL, 99999, "needs a host"},
        {"redis://host:%dx", NULL, NULL, NULL, 12, "needs a host"},
        {"redis://me@host:%d", NULL, NULL, NULL, 12, "user:password@"},
        {"redis://me:a%%zz@host:%d", NULL, NULL, NULL, 12, "%25"},
        {"redis://host:%d/one", NULL, NULL, NULL, 12, "needs a host"},
    };
    cr_exchange *x;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        char url[100];
        cr_exchange_args args = {.url = url,
                                 .prefix = "a:",
                                 .deadline_s = 100,
                                 .ca_file = bad[i].ca_file,
                                 .cert_file = bad[i].cert_file,
                                 .key_file = bad[i].key_file};
        cr_err err = {0};
        double start = cr_now_s();
        snprintf(url, sizeof url, bad[i].url, bad[i].port);
        if (cr_exchange_open(&args, &x, &err) != CR_ECONFIG || !strstr(err.msg, bad[i].text))
            fail_msg("%s: %d %s", url, (int)err.status, err.msg);
        if (cr_now_s() - start > 50) fail_msg("%s: after %.1f s", url, cr_now_s() - start);
        assert_null(x);
        assert_null(strstr(err.msg, "hunter2"));
    }
}

typedef struct fake {
    int fd;
    const char *answer; /* NULL: none */
    bool is_endless;    /* it repeats its answer until the connection is closed */
} fake;

static void *serve_fake(void *context)
{
    const fake *f = context;
    char block[512];

    for (;;) {
        int fd = accept(f->fd, NULL, NULL);
        if (fd < 0) return NULL;
        if (!f->answer || recv(fd, block, sizeof block, 0) <= 0) continue;
        while (send(fd, f->answer, strlen(f->answer), MSG_NOSIGNAL) > 0 && f->is_endless)
            continue;
        close(fd);
    }
}

/* A server that accepts and is silent is a deadline, with TLS too; one that speaks something else is an error, one whose
   reply never ends is a deadline. */
static void no_redis_is_there(void **state)
{
    static const struct {
        const char *scheme, *answer, *text;
        cr_status status;
        double deadline_s;
        bool is_endless;
    } cases[] = {
        {"redis", NULL, "gave no answer to PING within 0.5 s", CR_ETIMEOUT, 0.5},
        {"rediss", NULL, "within 0.5 s: no answer to TLS (a server without?", CR_ETIMEOUT, 0.5},
        {"rediss", "-ERR no TLS\r\n", "redis:// is for a server without TLS", CR_ECONFIG, 60},
        {"redis", "HTTP/1.1 400 Bad Request\r\n\r\n", "no Redis server", CR_ECONFIG, 60},
        {"redis", "-LOADING it is loading\r\n", "LOADING it is loading", CR_ETIMEOUT, 3},
        {"redis", "+PO", "gave no answer to PING within 0.5 s", CR_ETIMEOUT, 0.5, true}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char url[80];
        const cr_exchange_args args = {
            .url = url, .prefix = "a:", .deadline_s = cases[i].deadline_s};
        cr_exchange *x;
        cr_err err = {0};
        pthread_t thread;
        int port;
        fake f = {
            .fd = listen_on(&port), .answer = cases[i].answer, .is_endless = cases[i].is_endless};
        double start = cr_now_s();
        assert_int_equal(pthread_create(&thread, NULL, serve_fake, &f), 0);
        snprintf(url, sizeof url, "%s://127.0.0.1:%d", cases[i].scheme, port);
        if (cr_exchange_open(&args, &x, &err) != cases[i].status || !strstr(err.msg, cases[i].text))
            fail_msg("%s: %d %s", url, (int)err.status, err.msg);
        assert_true(cr_now_s() - start < 100);
        shutdown(f.fd, SHUT_RDWR);
        close(f.fd);
        pthread_join(thread, NULL);
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as croll does: a lost connection is an error of write */

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_with_password),        cmocka_unit_test(an_acl_user_has_its_keys),
        cmocka_unit_test(tls_carries_large_values), cmocka_unit_test(refused_at_once),
        cmocka_unit_test(no_redis_is_there),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
