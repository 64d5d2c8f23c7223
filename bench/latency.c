/* latency.c -- what one client waits, request by request.
 *
 *     bench_latency client PORT BODIES NUM PATH   POST the lines of the file BODIES in turn, NUM times, on one connection: a
 *                                                 line "ID MS" each, ID being its x-request-id
 *     bench_latency floor NUM REQUEST ANSWER MS   the least that two threads can add on this machine
 *
 * floor is a server with the same ways as `croll serve` and nothing else: one thread waits for the socket (epoll), reads
 * REQUEST bytes and wakes another one (a condition), which computes for MS milliseconds, copies ANSWER bytes and
 * wakes the first (eventfd), which sends them. One JSON line: what the client waits beside MS.
 */
#include "base/base.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WARM_UP = 200, MAX_ANSWER = 1 << 24 };

static int connect_to(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CR_CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "no answer at port %d", port);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void send_all(int fd, const char *data, size_t num)
{
    while (num > 0) {
        ssize_t n = send(fd, data, num, MSG_NOSIGNAL);
        CR_CHECK(n > 0, "the connection is gone");
        data += n;
        num -= (size_t)n;
    }
}

static void read_all(int fd, char *data, size_t num)
{
    for (size_t at = 0; at < num;) {
        ssize_t n = recv(fd, data + at, num - at, 0);
        CR_CHECK(n > 0, "the connection is gone");
        at += (size_t)n;
    }
}

/* ---- a client of a service ---- */

/* The whole answer, which must be a 200. */
static void read_answer(int fd, char *data)
{
    size_t num = 0, whole = MAX_ANSWER;

    while (num < whole) {
        ssize_t n = recv(fd, data + num, MAX_ANSWER - num - 1, 0);
        const char *body, *length;
        CR_CHECK(n > 0, "the connection is gone");
        data[num += (size_t)n] = 0;
        body = whole == MAX_ANSWER ? strstr(data, "\r\n\r\n") : NULL;
        if (!body) continue;
        length = strstr(data, "Content-Length: ");
        CR_CHECK(strncmp(data, "HTTP/1.1 200", 12) == 0 && length,
                 "an answer that is no 200: %.200s", data);
        whole = (size_t)(body + 4 - data) + strtoull(length + 16, NULL, 10);
    }
}

static int client(int port, const char *path, long num_requests, const char *route)
{
    cr_buf text = {0}, request = {0};
    cr_err err = {0};
    size_t at = 0, num;
    char *answer = cr_alloc(MAX_ANSWER);
    int fd = connect_to(port);

    CR_CHECK(cr_file_read(path, &text, &err) == CR_OK, "%s", err.msg);
    for (long i = 0; i < num_requests; i++) {
        const char *line = cr_line_next(&text, &at, &num);
        double begin_s;
        if (!line) at = 0, line = cr_line_next(&text, &at, &num);
        cr_buf_clear(&request);
        cr_buf_addf(&request,
                    "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: "
                    "application/json\r\nx-request-id: %ld\r\nContent-Length: %zu\r\n\r\n",
                    route, i, num);
        cr_buf_add(&request, line, num);
        begin_s = cr_now_s();
        send_all(fd, request.data, request.num_bytes);
        read_answer(fd, answer);
        printf("%ld %.4f\n", i, 1e3 * (cr_now_s() - begin_s));
    }
    close(fd);
    cr_buf_free(&text);
    cr_buf_free(&request);
    cr_free(answer);
    return 0;
}

/* ---- the floor ---- */

typedef struct floor_server {
    int fd, wake_fd;
    size_t request_bytes, answer_bytes;
    double compute_s;
    char *request, *answer;
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    int state; /* 0: idle; 1: a request is there; 2: the end */
} floor_server;

static void *compute(void *ctx)
{
    floor_server *s = ctx;
    uint64_t one = 1;

    for (;;) {
        double end_s;
        pthread_mutex_lock(&s->lock);
        while (s->state == 0)
            pthread_cond_wait(&s->has_work, &s->lock);
        if (s->state == 2) break;
        s->state = 0;
        pthread_mutex_unlock(&s->lock);
        for (end_s = cr_now_s() + s->compute_s; cr_now_s() < end_s;)
            continue;
        memset(s->answer, s->request[0], s->answer_bytes);
        CR_CHECK(write(s->wake_fd, &one, sizeof one) == sizeof one, "eventfd");
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void set_state(floor_server *s, int state)
{
    pthread_mutex_lock(&s->lock);
    s->state = state;
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *ctx)
{
    floor_server *s = ctx;
    int all = epoll_create1(0);
    struct epoll_event socket_event = {EPOLLIN, {.fd = s->fd}},
                       wake = {EPOLLIN, {.fd = s->wake_fd}}, event;
    uint64_t count;
    ssize_t n;

    epoll_ctl(all, EPOLL_CTL_ADD, s->fd, &socket_event);
    epoll_ctl(all, EPOLL_CTL_ADD, s->wake_fd, &wake);
    for (size_t num = 0;;) {
        CR_CHECK(epoll_wait(all, &event, 1, -1) == 1, "epoll");
        if (event.data.fd == s->wake_fd) {
            CR_CHECK(read(s->wake_fd, &count, sizeof count) == sizeof count, "eventfd");
            send_all(s->fd, s->answer, s->answer_bytes);
            continue;
        }
        n = recv(s->fd, s->request + num, s->request_bytes - num, 0);
        if (n <= 0) break;
        num += (size_t)n;
        if (num < s->request_bytes) continue;
        num = 0;
        set_state(s, 1);
    }
    set_state(s, 2);
    close(all);
    return NULL;
}

static int run_floor(size_t num, size_t request_bytes, size_t answer_bytes, double compute_ms)
{
    floor_server s = {.wake_fd = eventfd(0, 0),
                      .request_bytes = request_bytes,
                      .answer_bytes = answer_bytes,
                      .compute_s = 1e-3 * compute_ms,
                      .request = cr_alloc(request_bytes),
                      .answer = cr_alloc(answer_bytes)};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_bytes = sizeof at;
    char *request = cr_alloc(request_bytes), *answer = cr_alloc(answer_bytes);
    double *ms = CR_NEW_ARRAY(double, num), begin_s;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd, on = 1;
    pthread_t threads[2];

    CR_CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0 &&
                 getsockname(listener, (struct sockaddr *)&at, &at_bytes) == 0,
             "no port is free");
    fd = connect_to(ntohs(at.sin_port));
    s.fd = accept(listener, NULL, NULL);
    setsockopt(s.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.has_work, NULL);
    pthread_create(&threads[0], NULL, serve, &s);
    pthread_create(&threads[1], NULL, compute, &s);
    for (size_t i = 0; i < num + WARM_UP; i++) {
        begin_s = cr_now_s();
        send_all(fd, request, request_bytes);
        read_all(fd, answer, answer_bytes);
        if (i >= WARM_UP) ms[i - WARM_UP] = 1e3 * (cr_now_s() - begin_s) - compute_ms;
    }
    close(fd);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    qsort(ms, num, sizeof *ms, cr_by_double);
    printf("{\"p50_ms\": %.4f, \"p99_ms\": %.4f}\n", ms[num / 2], ms[num * 99 / 100]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "client") == 0)
        return client(atoi(argv[2]), argv[3], atol(argv[4]), argv[5]);
    if (argc == 6 && strcmp(argv[1], "floor") == 0 && atol(argv[2]) > 0)
        return run_floor((size_t)atol(argv[2]), (size_t)atol(argv[3]), (size_t)atol(argv[4]),
                         atof(argv[5]));
    fprintf(stderr, "usage: bench_latency client PORT BODIES NUM PATH | floor NUM REQUEST_BYTES "
                    "ANSWER_BYTES COMPUTE_MS\n");
    return 2;
}
