/* link.c -- see link.h. Sockets never block; hiredis only reads the protocol. */
#include "exchange/link.h"

#include "base/lookup.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct cri_link {
    int fd;
    SSL *ssl; /* NULL: plain */
    redisReader *reader;
    bool has_reply; /* the other side has spoken Redis */
    char name[80];  /* of the server, for messages */
};

/* ---- the address ---- */

/* The whole text as a number from min to max. */
static bool parse_int(const char *text, long min, long max, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (!isdigit((unsigned char)text[0]) || *end || value < min || value > max) return false;
    *out = (int)value;
    return true;
}

/* Text of a URL with its %XX decoded; owned. NULL: a wrong escape. */
static char *decoded(const char *text, size_t num_bytes)
{
    char *out = cr_alloc(num_bytes + 1);
    size_t n = 0;

    for (size_t i = 0; i < num_bytes; i++) {
        unsigned value;
        if (text[i] != '%') {
            out[n++] = text[i];
            continue;
        }
        if (i + 2 >= num_bytes || !isxdigit((unsigned char)text[i + 1]) ||
            !isxdigit((unsigned char)text[i + 2]) || sscanf(text + i + 1, "%2x", &value) != 1 ||
            value == 0) {
            cr_free(out);
            return NULL;
        }
        out[n++] = (char)value;
        i += 2;
    }
    return out;
}

static bool parse_place(const char *place, cri_address *a)
{
    const char *slash = strchr(place, '/'), *close = place[0] == '[' ? strchr(place, ']') : NULL;
    const char *end = slash ? slash : place + strlen(place), *colon;

    if (slash && slash[1] && !parse_int(slash + 1, 0, 1 << 20, &a->db)) return false;
    if (close && close < end) { /* [IPv6] */
        a->host = cr_strndup(place + 1, (size_t)(close - place - 1));
        colon = close + 1;
        if (colon < end && *colon != ':') return false;
    } else {
        colon = memchr(place, ':', (size_t)(end - place));
        if (!colon) colon = end;
        a->host = cr_strndup(place, (size_t)(colon - place));
    }
    if (a->host[0] == 0) return false;
    if (colon < end) {
        char *port = cr_strndup(colon + 1, (size_t)(end - colon - 1));
        bool is_valid = parse_int(port, 1, 65535, &a->port);
        cr_free(port);
        return is_valid;
    }
    return true;
}

cr_status cri_address_parse(const char *url, cri_address *out, cr_err *err)
{
    const char *place, *at, *colon;

    *out = (cri_address){.port = 6379};
    if (strncmp(url, "unix:", 5) == 0) {
        out->socket_path = cr_strdup(url + 5);
        out->shown = cr_strdup(url + 5);
        return CR_OK;
    }
    out->is_tls = strncmp(url, "rediss://", 9) == 0;
    if (!out->is_tls && strncmp(url, "redis://", 8) != 0)
        return cr_fail(err, CR_ECONFIG,
                       "exchange.url must be redis://host[:port][/db], rediss:// (TLS) or "
                       "unix:/path");
    place = url + (out->is_tls ? 9 : 8);
    at = strrchr(place, '@');
    if (at) {
        colon = memchr(place, ':', (size_t)(at - place));
        if (!colon)
            return cr_fail(err, CR_ECONFIG,
                           "exchange.url: user:password@ is expected before the host");
        out->user = decoded(place, (size_t)(colon - place));
        out->password = decoded(colon + 1, (size_t)(at - colon - 1));
        place = at + 1;
        if (!out->user || !out->password)
            return cr_fail(err, CR_ECONFIG,
                           "exchange.url: %% in a user or password must be written as %%25");
    }
    if (!parse_place(place, out))
        return cr_fail(err, CR_ECONFIG,
                       "exchange.url needs a host, a port and a database number that are valid "
                       "(redis://host:6379/0)");
    out->shown = cr_asprintf("%s:%d", out->host, out->port);
    return CR_OK;
}

void cri_address_free(cri_address *a)
{
    cr_free(a->socket_path);
    cr_free(a->host);
    cr_free(a->user);
    cr_free(a->password);
    cr_free(a->shown);
    *a = (cri_address){0};
}

/* ---- TLS ---- */

/* The newest reason that OpenSSL gives. */
static const char *tls_reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return text ? text : "no reason is given";
}

cr_status cri_tls_open(const cr_exchange_args *args, SSL_CTX **out, cr_err *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

    *out = NULL;
    CR_CHECK(ctx && SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1, "no TLS in OpenSSL");
    ERR_clear_error();
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    if (args->ca_file && SSL_CTX_load_verify_locations(ctx, args->ca_file, NULL) != 1)
        cr_fail(err, CR_ECONFIG, "exchange.ca_file: %s holds no certificates in PEM form: %s",
                args->ca_file, tls_reason());
    else if (!args->ca_file && SSL_CTX_set_default_verify_paths(ctx) != 1)
        cr_fail(err, CR_ECONFIG, "the system's certificates cannot be read: %s (exchange.ca_file)",
                tls_reason());
    else if ((args->cert_file != NULL) != (args->key_file != NULL))
        cr_fail(err, CR_ECONFIG, "exchange.cert_file and exchange.key_file belong together");
    else if (args->cert_file && SSL_CTX_use_certificate_chain_file(ctx, args->cert_file) != 1)
        cr_fail(err, CR_ECONFIG, "exchange.cert_file: %s holds no certificate in PEM form: %s",
                args->cert_file, tls_reason());
    else if (args->key_file &&
             SSL_CTX_use_PrivateKey_file(ctx, args->key_file, SSL_FILETYPE_PEM) != 1)
        cr_fail(err, CR_ECONFIG, "exchange.key_file: %s holds no key of exchange.cert_file: %s",
                args->key_file, tls_reason());
    if (err->status == CR_OK)
        *out = ctx;
    else
        SSL_CTX_free(ctx);
    return err->status;
}

/* ---- waiting ---- */

/* False when until_s passed first. It looks at least once: a process that was stopped may have its answer when it goes on. */
static bool wait_for(int fd, short events, double until_s)
{
    struct pollfd p = {.fd = fd, .events = events};

    for (;;) {
        double left = until_s - cr_now_s();
        int n = poll(&p, 1, left > 3600 ? 3600000 : left > 0 ? (int)(left * 1000) + 1 : 0);
        if (n > 0) return true;
        if (n < 0 ? errno != EINTR : left <= 0) return false;
    }
}

static cri_outcome too_slow(char why[CRI_WHY])
{
    snprintf(why, CRI_WHY, "no answer");
    return CRI_AGAIN;
}

static cri_outcome lost(const cri_link *link, const char *what, char why[CRI_WHY])
{
    if (link->has_reply) {
        snprintf(why, CRI_WHY, "%s", what);
        return CRI_AGAIN;
    }
    snprintf(why, CRI_WHY, "it closed the connection at once%s",
             link->ssl ? "" : " (a server with TLS? rediss:// is its address)");
    return CRI_ABSENT;
}

/* What an SSL call that returned n wants. CRI_DONE: call it again. */
static cri_outcome tls_wait(cri_link *link, int n, double until_s, char why[CRI_WHY])
{
    int code = SSL_get_error(link->ssl, n);
    long verdict;

    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE)
        return wait_for(link->fd, code == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until_s)
                   ? CRI_DONE
                   : too_slow(why);
    if (code != SSL_ERROR_SSL ||
        ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        ERR_clear_error();
        return lost(link, "the connection was closed", why);
    }
    verdict = SSL_get_verify_result(link->ssl);
    if (verdict != X509_V_OK)
        snprintf(why, CRI_WHY,
                 "the certificate of %s is not accepted: %s (exchange.ca_file names the "
                 "certificate of its authority; the name in the URL must be in it)",
                 link->name, X509_verify_cert_error_string(verdict));
    else
        snprintf(why, CRI_WHY,
                 "TLS with %s failed: %s (redis:// is for a server without TLS; exchange.cert_file "
                 "and key_file are for one that asks for a certificate)",
                 link->name, tls_reason());
    ERR_clear_error();
    return link->has_reply ? CRI_AGAIN : CRI_NEVER;
}

/* A server without TLS waits for the end of a line, in silence. */
enum { HANDSHAKE_SECONDS = 10 };

static cri_outcome shake_hands(cri_link *link, const cri_address *a, SSL_CTX *tls, double until_s,
                               char why[CRI_WHY])
{
    unsigned char ip[sizeof(struct in6_addr)];
    double limit_s = cr_now_s() + HANDSHAKE_SECONDS;
    bool is_ip = inet_pton(AF_INET, a->host, ip) == 1 || inet_pton(AF_INET6, a->host, ip) == 1;
    int n;

    link->ssl = SSL_new(tls);
    CR_CHECK(link->ssl && SSL_set_fd(link->ssl, link->fd) == 1, "no TLS connection from OpenSSL");
    if (is_ip)
        n = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(link->ssl), a->host);
    else
        n = SSL_set1_host(link->ssl, a->host) == 1 &&
            SSL_set_tlsext_host_name(link->ssl, a->host) == 1;
    if (n != 1) {
        snprintf(why, CRI_WHY, "%s is not a name that a certificate can have", a->host);
        return CRI_NEVER;
    }
    while ((n = SSL_connect(link->ssl)) != 1) {
        cri_outcome outcome = tls_wait(link, n, limit_s < until_s ? limit_s : until_s, why);
        if (outcome == CRI_AGAIN)
            snprintf(why, CRI_WHY, "no answer to TLS (a server without? redis:// is its address)");
        if (outcome == CRI_AGAIN && limit_s < until_s) return CRI_ABSENT;
        if (outcome != CRI_DONE) return outcome;
    }
    return CRI_DONE;
}

/* ---- connecting ---- */

/* A socket that is connected, or -1 with errno. */
static int connect_to(const struct sockaddr *address, socklen_t size, double until_s)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), code = 0;
    int is_on = 1;
    socklen_t code_bytes = sizeof code;

    if (fd < 0) return -1;
    if (connect(fd, address, size) != 0) {
        code = errno;
        if (code == EINPROGRESS) {
            code = ETIMEDOUT;
            if (wait_for(fd, POLLOUT, until_s))
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes);
        }
    }
    if (code == 0) {
        if (address->sa_family != AF_UNIX)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &is_on, sizeof is_on);
        return fd;
    }
    close(fd);
    errno = code;
    return -1;
}

static cri_outcome not_connected(char why[CRI_WHY])
{
    static const int absent[] = {ECONNREFUSED, ENOENT, EHOSTUNREACH, ENETUNREACH, EACCES};

    snprintf(why, CRI_WHY, "%s", strerror(errno));
    for (size_t i = 0; i < CR_COUNT(absent); i++)
        if (errno == absent[i]) return CRI_ABSENT;
    return CRI_AGAIN;
}

static cri_outcome connect_unix(const char *path, double until_s, int *fd, char why[CRI_WHY])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(why, CRI_WHY, "the path of a unix socket has at most %zu bytes",
                 sizeof address.sun_path - 1);
        return CRI_NEVER;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    *fd = connect_to((struct sockaddr *)&address, sizeof address, until_s);
    return *fd >= 0 ? CRI_DONE : not_connected(why);
}

static cri_outcome connect_tcp(const cri_address *a, double until_s, int *fd, char why[CRI_WHY])
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[8];
    int code;

    snprintf(port, sizeof port, "%d", a->port);
    code = cr_lookup(a->host, port, &hints, &list);
    if (code != 0) {
        snprintf(why, CRI_WHY, "the host is unknown: %s", gai_strerror(code));
        return CRI_ABSENT;
    }
    for (struct addrinfo *i = list; i && *fd < 0; i = i->ai_next)
        *fd = connect_to(i->ai_addr, i->ai_addrlen, until_s);
    code = errno;
    freeaddrinfo(list);
    errno = code;
    return *fd >= 0 ? CRI_DONE : not_connected(why);
}

cri_outcome cri_link_open(const cri_address *a, SSL_CTX *tls, double until_s, cri_link **out,
                          char why[CRI_WHY])
{
    cri_outcome outcome;
    int fd = -1;

    *out = NULL;
    outcome = a->socket_path ? connect_unix(a->socket_path, until_s, &fd, why)
                             : connect_tcp(a, until_s, &fd, why);
    if (outcome != CRI_DONE) return outcome;
    *out = CR_NEW(cri_link);
    (*out)->fd = fd;
    (*out)->reader = redisReaderCreate();
    CR_CHECK((*out)->reader, "no memory for a reader of replies");
    snprintf((*out)->name, sizeof(*out)->name, "%s", a->shown);
    if (tls) outcome = shake_hands(*out, a, tls, until_s, why);
    if (outcome != CRI_DONE) {
        cri_link_close(*out);
        *out = NULL;
    }
    return outcome;
}

void cri_link_close(cri_link *link)
{
    if (!link) return;
    SSL_free(link->ssl);
    redisReaderFree(link->reader);
    close(link->fd);
    cr_free(link);
}

/* ---- bytes ---- */

cri_outcome cri_link_send(cri_link *link, const void *data, size_t num_bytes, double until_s,
                          char why[CRI_WHY])
{
    for (size_t done = 0; done < num_bytes;) {
        const char *at = (const char *)data + done;
        size_t left = num_bytes - done;
        ssize_t n;
        if (link->ssl) {
            n = SSL_write(link->ssl, at, left > 1 << 30 ? 1 << 30 : (int)left);
            if (n <= 0) {
                cri_outcome outcome = tls_wait(link, (int)n, until_s, why);
                if (outcome != CRI_DONE) return outcome;
                continue;
            }
        } else {
            n = send(link->fd, at, left, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) {
                if (!wait_for(link->fd, POLLOUT, until_s)) return too_slow(why);
                continue;
            }
            if (n < 0) return lost(link, strerror(errno), why);
        }
        done += (size_t)n;
    }
    return CRI_DONE;
}

static cri_outcome read_some(cri_link *link, double until_s, char why[CRI_WHY])
{
    char block[1 << 16];
    ssize_t n;

    for (;;) {
        n = link->ssl ? SSL_read(link->ssl, block, sizeof block)
                      : recv(link->fd, block, sizeof block, 0);
        if (n > 0) break;
        if (link->ssl) {
            cri_outcome outcome = tls_wait(link, (int)n, until_s, why);
            if (outcome != CRI_DONE) return outcome;
        } else if (n < 0 && errno == EAGAIN) {
            if (!wait_for(link->fd, POLLIN, until_s)) return too_slow(why);
        } else if (n == 0 || errno != EINTR) {
            return lost(link, n == 0 ? "the connection was closed" : strerror(errno), why);
        }
    }
    if (redisReaderFeed(link->reader, block, (size_t)n) == REDIS_OK) return CRI_DONE;
    snprintf(why, CRI_WHY, "%s", link->reader->errstr);
    return CRI_AGAIN;
}

cri_outcome cri_link_receive(cri_link *link, double until_s, redisReply **out, char why[CRI_WHY])
{
    void *reply = NULL;

    *out = NULL;
    for (bool is_begun = false;; is_begun = true) {
        cri_outcome outcome;
        if (redisReaderGetReply(link->reader, &reply) != REDIS_OK) {
            snprintf(why, CRI_WHY, "no Redis server is there (%s)", link->reader->errstr);
            return CRI_NEVER;
        }
        if (reply) break;
        if (is_begun && cr_now_s() > until_s) return too_slow(why); /* it sends, but no end */
        outcome = read_some(link, until_s, why);
        if (outcome != CRI_DONE) return outcome;
    }
    link->has_reply = true;
    *out = reply;
    return CRI_DONE;
}
