/* server.c -- addresses, the listening socket, the clock, signals and calls from other threads (see server.h). */
#include "http/server_impl.h"

#include "base/lookup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define STOP_S 5.0
enum { BACKLOG = 1024, OTHER_FILES = 128, TICK_US = 250000 };

const cr_http_options cr_http_defaults = {
    .limits = {.header_bytes = 16 << 10, .target_bytes = 4 << 10, .body_bytes = 32 << 20},
    .max_connections = 4096,
    .max_per_address = 256,
    .buffered_bytes = 256 << 20,
    .stream_bytes = 8 << 20,
    .head_s = 10,
    .body_s = 30,
    .idle_s = 75,
    .stall_s = 60,
    .handshake_s = 10,
};

double cri_now(cr_http_server *s)
{
    s->now_s = cr_now_s();
    return s->now_s;
}

/* ---- connections ---- */

/* Is the address that of this machine itself? IPv4 as ::ffff:a.b.c.d. */
static bool is_loopback(const uint8_t a[16])
{
    static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff}, v6[16] = {[15] = 1};

    return memcmp(a, v6, 16) == 0 || (memcmp(a, v4, 12) == 0 && a[12] == 127);
}

/* False: of no address (a unix socket). */
static bool read_address(const struct sockaddr *from, uint8_t out[16], char text[64])
{
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)from;
        memset(out, 0, 10);
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &in->sin_addr, 4);
        inet_ntop(AF_INET, &in->sin_addr, text, 64);
        return true;
    }
    if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)from;
        memcpy(out, &in->sin6_addr, 16);
        inet_ntop(AF_INET6, &in->sin6_addr, text, 64);
        return true;
    }
    strcpy(text, "unix");
    return false;
}

static bool has_room(const cr_http_server *s, const uint8_t *address)
{
    int64_t num = 0;

    if (s->counts.num_connections >= s->options.max_connections) return false;
    if (!address || is_loopback(address)) return true;
    for (const cri_connection *c = s->connections; c; c = c->next)
        num += c->has_address && memcmp(c->address, address, 16) == 0;
    return num < s->options.max_per_address;
}

static void refuse(cr_http_server *s, int fd)
{
    static const char text[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: "
        "close\r\n"
        "Retry-After: 1\r\nContent-Length: 117\r\n\r\n"
        "{\"error\":{\"message\":\"there are too many connections\",\"type\":\"server_error\","
        "\"param\":null,\"code\":\"server_overloaded\"}}\n";

    s->counts.num_refused++;
    if (!s->tls && send(fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        shutdown(fd, SHUT_WR);
    close(fd);
}

static void on_accept(struct evconnlistener *listener, int fd, struct sockaddr *from, int num,
                      void *ctx)
{
    cr_http_server *s = ctx;
    uint8_t address[16];
    char client[64];
    bool has_address = read_address(from, address, client);
    struct bufferevent *bev;
    SSL *ssl = NULL;
    int on = 1;

    (void)listener;
    (void)num;
    if (!has_room(s, has_address ? address : NULL)) {
        refuse(s, fd);
        return;
    }
    if (has_address) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (s->tls) {
        ssl = SSL_new(s->tls);
        CR_CHECK(ssl, "OpenSSL has no memory");
        bev = bufferevent_openssl_socket_new(s->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE);
        if (bev) bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    } else {
        bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    }
    CR_CHECK(bev, "libevent has no memory");
    s->counts.num_accepted++;
    cri_connection_open(s, bev, ssl, client, has_address ? address : NULL);
}

/* No file descriptor is left, or the like: try again at the next tick. */
static void on_accept_error(struct evconnlistener *listener, void *ctx)
{
    (void)ctx;
    evconnlistener_disable(listener);
}

/* ---- time, signals, other threads ---- */

static void set_date(cr_http_server *s)
{
    time_t now = time(NULL);
    struct tm tm;

    if (now == s->date_s) return;
    s->date_s = now;
    gmtime_r(&now, &tm);
    strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    cr_http_server *s = ctx;

    (void)fd;
    (void)what;
    cri_now(s);
    set_date(s);
    s->app.on_tick(s->app.ctx);
    for (cri_connection *c = s->connections, *next; c; c = next) {
        next = c->next;
        cri_connection_tick(c);
    }
    if (s->listener) evconnlistener_enable(s->listener);
    if (s->is_stopping && (!s->connections || s->now_s >= s->stop_s)) event_base_loopbreak(s->base);
}

static void on_wake(evutil_socket_t fd, short what, void *ctx)
{
    cr_http_server *s = ctx;
    uint64_t count;

    (void)what;
    if (read(fd, &count, sizeof count) == sizeof count) s->app.on_wake(s->app.ctx);
}

static void on_signal(evutil_socket_t fd, short what, void *ctx)
{
    cr_http_server *s = ctx;
    struct signalfd_siginfo info;

    (void)what;
    while (read(fd, &info, sizeof info) == sizeof info)
        s->app.on_signal(s->app.ctx, (int)info.ssi_signo);
}

void cr_http_wake(cr_http_server *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->wake_fd, &one, sizeof one); /* full: a wake is under way */

    (void)n;
}

/* ---- listening ---- */

static cr_status listen_at(cr_http_server *s, const struct sockaddr *address, socklen_t num,
                           cr_err *err)
{
    unsigned flags = LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;

    s->listener = evconnlistener_new_bind(s->base, on_accept, s, flags, BACKLOG, address, (int)num);
    if (!s->listener)
        return cr_fail(err, CR_EUSAGE, "cannot listen on %s: %s", s->options.listen,
                       strerror(errno));
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    return CR_OK;
}

static cr_status listen_unix(cr_http_server *s, const char *path, cr_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    mode_t mask;
    int fd;

    if (!*path || strlen(path) >= sizeof address.sun_path)
        return cr_fail(err, CR_EUSAGE, "the path of a unix socket has 1 to %zu bytes, not %zu",
                       sizeof address.sun_path - 1, strlen(path));
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED)
        unlink(path); /* left by a process that was killed */
    close(fd);
    mask = umask(0177);
    cr_note(listen_at(s, (struct sockaddr *)&address, sizeof address, err));
    umask(mask);
    CR_TRY(err->status);
    s->socket_path = cr_strdup(path);
    s->url = cr_strdup(s->options.listen);
    return CR_OK;
}

static cr_status listen_host(cr_http_server *s, const char *listen, cr_err *err)
{
    const char *colon = strrchr(listen, ':');
    bool has_brackets = *listen == '[' && colon && colon > listen && colon[-1] == ']';
    char *host =
        colon ? cr_strndup(listen + has_brackets, (size_t)(colon - listen) - 2 * has_brackets)
              : NULL;
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    struct sockaddr_storage bound;
    socklen_t num = sizeof bound;
    int code;

    if (!host || !*host || strspn(colon + 1, "0123456789") != strlen(colon + 1) || !colon[1] ||
        strtol(colon + 1, NULL, 10) > 65535)
        cr_fail(err, CR_EUSAGE, "%s is not HOST:PORT or unix:PATH", listen);
    else if ((code = cr_lookup(host, colon + 1, &hints, &found)) != 0)
        cr_fail(err, CR_EUSAGE, "cannot listen on %s: %s", listen, gai_strerror(code));
    else if (listen_at(s, found->ai_addr, found->ai_addrlen, err) == CR_OK) {
        getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&bound, &num);
        code = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                 : ((struct sockaddr_in *)&bound)->sin_port);
        s->url =
            cr_asprintf("http%s://%.*s:%d", s->tls ? "s" : "", (int)(colon - listen), listen, code);
    }
    if (found) freeaddrinfo(found);
    cr_free(host);
    return err->status;
}

bool cr_http_is_local(const cr_http_server *s)
{
    struct sockaddr_storage bound = {0};
    socklen_t num = sizeof bound;
    uint8_t address[16];
    char text[64];

    getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&bound, &num);
    return !read_address((struct sockaddr *)&bound, address, text) || is_loopback(address);
}

/* ---- life ---- */

static void allow_files(int64_t num)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)num) return;
    limit.rlim_cur = limit.rlim_max < (rlim_t)num ? limit.rlim_max : (rlim_t)num;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void open_base(cr_http_server *s)
{
    struct event_config *config = event_config_new();

    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    event_config_set_flag(config, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    s->base = event_base_new_with_config(config);
    event_config_free(config);
    CR_CHECK(s->base, "libevent has no event base");
}

static void watch(cr_http_server *s, const int *signals, size_t num_signals)
{
    struct timeval period = {.tv_usec = TICK_US};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < num_signals; i++)
        sigaddset(&set, signals[i]);
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    CR_CHECK(s->wake_fd >= 0 && s->signal_fd >= 0, "no file descriptor: %s", strerror(errno));
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    s->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    s->signals = event_new(s->base, s->signal_fd, EV_READ | EV_PERSIST, on_signal, s);
    event_add(s->tick, &period);
    event_add(s->wake, NULL);
    event_add(s->signals, NULL);
}

cr_status cr_http_open(const cr_http_options *options, const cr_http_app *app, const int *signals,
                       size_t num_signals, cr_http_server **out, cr_err *err)
{
    cr_http_server *s = CR_NEW(cr_http_server);

    *out = NULL;
    s->options = *options;
    s->app = *app;
    s->wake_fd = s->signal_fd = -1;
    if (getrandom(&s->process_id, sizeof s->process_id, 0) < 0) s->process_id = (uint32_t)getpid();
    cri_now(s);
    set_date(s);
    open_base(s);
    watch(s, signals, num_signals);
    allow_files(options->max_connections + OTHER_FILES);
    if (options->tls_cert) CR_TRY_GOTO(failed, cri_http_tls_open(options, &s->tls, err));
    if (strncmp(options->listen, "unix:", 5) == 0)
        CR_TRY_GOTO(failed, listen_unix(s, options->listen + 5, err));
    else
        CR_TRY_GOTO(failed, listen_host(s, options->listen, err));
    *out = s;
    return CR_OK;
failed:
    cr_http_close(s);
    return err->status;
}

const char *cr_http_url(const cr_http_server *s)
{
    return s->url;
}

void cr_http_run(cr_http_server *s)
{
    do {
        bool sleeps = cr_now_s() >= s->awake_s;
        event_base_loop(s->base,
                        EVLOOP_NO_EXIT_ON_EMPTY | (sleeps ? EVLOOP_ONCE : EVLOOP_NONBLOCK));
        if (!sleeps) sched_yield();
    } while (!event_base_got_break(s->base));
}

void cr_http_expect(cr_http_server *s, double seconds)
{
    s->awake_s = cr_now_s() + seconds;
}

void cr_http_drain(cr_http_server *s)
{
    s->is_draining = true;
}

void cr_http_stop(cr_http_server *s)
{
    if (s->is_stopping) return;
    s->is_draining = s->is_stopping = true;
    s->stop_s = cri_now(s) + STOP_S;
    evconnlistener_free(s->listener);
    s->listener = NULL;
}

void cr_http_unlink(const cr_http_server *s)
{
    if (s->socket_path) unlink(s->socket_path);
}

void cr_http_close(cr_http_server *s)
{
    if (!s) return;
    while (s->connections)
        cri_connection_close(s->connections);
    if (s->listener) evconnlistener_free(s->listener);
    cr_http_unlink(s);
    event_free(s->tick);
    event_free(s->wake);
    event_free(s->signals);
    close(s->wake_fd);
    close(s->signal_fd);
    event_base_free(s->base);
    SSL_CTX_free(s->tls);
    cr_buf_free(&s->head);
    cr_free(s->url);
    cr_free(s->socket_path);
    cr_free(s);
}

cr_status cr_http_reload_tls(cr_http_server *s, cr_err *err)
{
    SSL_CTX *tls;

    if (!s->tls) return CR_OK;
    CR_TRY(cri_http_tls_open(&s->options, &tls, err));
    SSL_CTX_free(s->tls); /* connections keep what they use */
    s->tls = tls;
    return CR_OK;
}

cr_http_counts cr_http_count(const cr_http_server *s)
{
    return s->counts;
}
