/* agent_links.c -- see agent_links.h. */
#include "launch/preflight/agent_links.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEAD = CR_AGENT_TOKEN + 1, /* the token and what is wanted */
    PING = 8,
    PINGS = 20,
    CHUNK = 1 << 18,
    MAX_CONNECTIONS = 1024,
    WAIT_SECONDS = 3, /* for one read or write */
    STREAM_SECONDS = 5
};
static const double GRACE_S = 0.3, /* for further addresses of nodes that have been reached */
    PINGS_S = 0.1;

static struct sockaddr_in address_of(const cr_agent_peer *peer)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)peer->port)};

    inet_pton(AF_INET, peer->address, &to.sin_addr);
    return to;
}

static void write_head(const cr_agent_self *self, char what, char head[HEAD])
{
    memcpy(head, self->token, CR_AGENT_TOKEN);
    head[CR_AGENT_TOKEN] = what;
}

static void set_waits(int fd)
{
    struct timeval wait = {.tv_sec = WAIT_SECONDS};
    int yes = 1;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static bool send_all(int fd, const void *data, size_t num_bytes)
{
    return send(fd, data, num_bytes, MSG_NOSIGNAL) == (ssize_t)num_bytes;
}

static bool receive_all(int fd, void *data, size_t num_bytes)
{
    return recv(fd, data, num_bytes, MSG_WAITALL) == (ssize_t)num_bytes;
}

/* ---- the listener ---- */

static cr_agent_self own; /* set before the listener's thread begins */
static atomic_int num_connections;

static void send_stream(int fd)
{
    char *chunk = CR_NEW_ARRAY(char, CHUNK);
    double until_s = cr_now_s() + STREAM_SECONDS;

    while (cr_now_s() < until_s && send(fd, chunk, CHUNK, MSG_NOSIGNAL) > 0)
        continue;
    cr_free(chunk);
}

static void *answer(void *context)
{
    int fd = (int)(intptr_t)context;
    char head[HEAD], ping[PING];
    uint32_t node = htonl((uint32_t)own.node);

    set_waits(fd);
    if (receive_all(fd, head, sizeof head) && memcmp(head, own.token, CR_AGENT_TOKEN) == 0 &&
        send_all(fd, &node, sizeof node) && head[CR_AGENT_TOKEN] == 'm') {
        while (receive_all(fd, ping, sizeof ping) && ping[0] != 'g')
            if (!send_all(fd, ping, sizeof ping)) break;
        if (ping[0] == 'g') send_stream(fd);
    }
    close(fd);
    atomic_fetch_sub(&num_connections, 1);
    return NULL;
}

static void *accept_all(void *context)
{
    int listener = (int)(intptr_t)context;
    pthread_attr_t detached;

    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        if (fd < 0) {
            cr_sleep_s(0.01); /* no descriptors: some will be closed */
        } else if (atomic_fetch_add(&num_connections, 1) >= MAX_CONNECTIONS ||
                   pthread_create(&thread, &detached, answer, (void *)(intptr_t)fd) != 0) {
            atomic_fetch_sub(&num_connections, 1);
            close(fd);
        }
    }
    return NULL;
}

cr_status cr_agent_listen(const cr_agent_self *self, int *port, cr_err *err)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t size = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;

    own = *self;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 && listen(fd, 512) == 0 &&
        getsockname(fd, (struct sockaddr *)&any, &size) == 0 &&
        pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)fd) == 0) {
        *port = ntohs(any.sin_port);
        return CR_OK;
    }
    cr_fail(err, CR_EIO, "cannot listen for the other hosts: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return err->status;
}

/* ---- many connections at once ---- */

typedef struct attempt {
    int fd; /* -1: finished */
    bool is_connected;
} attempt;

static void finish(attempt *a, char **result, const char *why)
{
    *result = cr_strdup(why);
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
}

static void begin(attempt *a, const cr_agent_peer *to, char **result)
{
    struct sockaddr_in address = address_of(to);

    *a = (attempt){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    *result = NULL;
    if (a->fd < 0 ||
        (connect(a->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS))
        finish(a, result, strerror(errno));
}

/* Its socket is ready. */
static void advance(attempt *a, const cr_agent_self *self, const cr_agent_peer *to, char **result)
{
    char head[HEAD], text[96];
    uint32_t node;
    int code = 0;
    socklen_t size = sizeof code;

    if (!a->is_connected) {
        write_head(self, 'c', head);
        if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
        if (code)
            finish(a, result, strerror(code));
        else if (!send_all(a->fd, head, sizeof head))
            finish(a, result, strerror(errno));
        a->is_connected = true;
    } else if (recv(a->fd, &node, sizeof node, 0) != (ssize_t)sizeof node) {
        finish(a, result, "something else answers there");
    } else {
        snprintf(text, sizeof text, "another host of the run answers there");
        finish(a, result, ntohl(node) == (uint32_t)to->node ? "" : text);
    }
}

/* Has each node been reached at one address? */
static bool all_reached(const cr_agent_peer *to, size_t num, char *const *tries)
{
    for (size_t i = 0; i < num; i++) {
        bool is_reached = false;
        for (size_t k = 0; k < num && !is_reached; k++)
            is_reached = to[k].node == to[i].node && tries[k] && !tries[k][0];
        if (!is_reached) return false;
    }
    return true;
}

void cr_agent_connect(const cr_agent_self *self, const cr_agent_peer *to, size_t num,
                      double seconds, char **tries)
{
    attempt *all = CR_NEW_ARRAY(attempt, num);
    struct pollfd *fds = CR_NEW_ARRAY(struct pollfd, num);
    double until_s = cr_now_s() + seconds;
    bool is_last = false;
    size_t num_open = num;

    for (size_t i = 0; i < num; i++)
        begin(&all[i], &to[i], &tries[i]);
    while (num_open && cr_now_s() < until_s) {
        num_open = 0;
        for (size_t i = 0; i < num; i++) {
            fds[i] = (struct pollfd){all[i].fd, (short)(all[i].is_connected ? POLLIN : POLLOUT), 0};
            num_open += all[i].fd >= 0;
        }
        if (!num_open || poll(fds, (nfds_t)num, 20) <= 0) continue;
        for (size_t i = 0; i < num; i++)
            if (all[i].fd >= 0 && fds[i].revents) advance(&all[i], self, &to[i], &tries[i]);
        if (!is_last && all_reached(to, num, tries)) {
            is_last = true;
            if (cr_now_s() + GRACE_S < until_s) until_s = cr_now_s() + GRACE_S;
        }
    }
    for (size_t i = 0; i < num; i++)
        if (all[i].fd >= 0)
            finish(&all[i], &tries[i], all[i].is_connected ? "no answer" : "no connection in time");
    cr_free(all);
    cr_free(fds);
}

/* ---- one link ---- */

static cr_status dial(const cr_agent_self *self, const cr_agent_peer *to, char what, int *out,
                      cr_err *err)
{
    struct sockaddr_in address = address_of(to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char head[HEAD];
    uint32_t node;

    *out = -1;
    if (fd < 0) return cr_fail(err, CR_EIO, "no socket: %s", strerror(errno));
    set_waits(fd);
    write_head(self, what, head);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        !send_all(fd, head, sizeof head) || !receive_all(fd, &node, sizeof node)) {
        if (errno == EAGAIN || errno == EINPROGRESS)
            cr_fail(err, CR_EIO, "%s: no answer within %d s", to->address, (int)WAIT_SECONDS);
        else
            cr_fail(err, CR_EIO, "%s: %s", to->address, strerror(errno));
        close(fd);
        return err->status;
    }
    *out = fd;
    return CR_OK;
}

/* Bytes that have arrived and were not read. */
static double num_waiting(int fd)
{
    int num = 0;

    return ioctl(fd, FIONREAD, &num) == 0 ? num : 0;
}

/* Bytes a second that arrive, counted after `first` seconds of that time: before, TCP looks for the rate. What waits when the count
 * begins came earlier: a process that had to wait for its core reads much of it at once. */
static double receive_rate(int fd, double first, double seconds)
{
    char *chunk = CR_NEW_ARRAY(char, CHUNK);
    double first_s = cr_now_s(), now_s = first_s, from_s = 0, counted = 0, all = 0;
    ssize_t n;

    while (now_s - first_s < seconds && (n = recv(fd, chunk, CHUNK, 0)) > 0) {
        now_s = cr_now_s();
        all += (double)n;
        if (from_s > 0)
            counted += (double)n;
        else if (now_s - first_s >= first)
            from_s = now_s, counted = -num_waiting(fd);
    }
    cr_free(chunk);
    counted += num_waiting(fd);
    now_s = cr_now_s();
    if (from_s > 0 && counted > 0) return counted / (now_s - from_s);
    return now_s > first_s ? all / (now_s - first_s) : 0;
}

cr_status cr_agent_measure(const cr_agent_self *self, const cr_agent_peer *from, double seconds,
                           cr_agent_rate *out, cr_err *err)
{
    double min_s = WAIT_SECONDS, until_s = cr_now_s() + PINGS_S;
    char ping[PING] = "ping", start[PING] = "go";
    int fd;

    *out = (cr_agent_rate){0};
    CR_TRY(dial(self, from, 'm', &fd, err));
    for (int i = 0; i < PINGS && (i == 0 || cr_now_s() < until_s); i++) {
        double begin_s = cr_now_s();
        if (!send_all(fd, ping, sizeof ping) || !receive_all(fd, ping, sizeof ping)) {
            cr_fail(err, CR_EIO, "%s: no answer to 8 bytes within %d s", from->address,
                    (int)WAIT_SECONDS);
            break;
        }
        if (cr_now_s() - begin_s < min_s) min_s = cr_now_s() - begin_s;
    }
    if (err->status == CR_OK && send_all(fd, start, sizeof start)) {
        double first = 9 * min_s; /* TCP needs round trips to find the rate of a long link */
        if (first < seconds / 2) first = seconds / 2;
        if (first > 4 * seconds) first = 4 * seconds;
        out->latency_s = min_s / 2;
        out->bytes_per_s = receive_rate(fd, first, first + seconds / 2 + 2 * min_s);
    }
    close(fd);
    return err->status;
}
