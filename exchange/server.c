/* server.c -- the embedded server of exchange.h: its configuration file and its socket. */
#include "exchange/exchange.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A line of redis.conf with one quoted value: any path. */
static void add_quoted(cr_buf *conf, const char *key, const char *folder, const char *name)
{
    cr_buf_addf(conf, "%s \"", key);
    for (int part = 0; part < 2; part++)
        for (const char *p = part ? name : folder; *p; p++)
            if (*p == '"' || *p == '\\')
                cr_buf_addf(conf, "\\%c", *p);
            else if ((unsigned char)*p < ' ')
                cr_buf_addf(conf, "\\x%02x", (unsigned)*p);
            else
                cr_buf_addc(conf, *p);
    cr_buf_adds(conf, "\"\n");
}

/* A port of that address that is free now: Redis takes no port 0. */
static cr_status find_port(const char *address, int *port, cr_err *err)
{
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t size = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || inet_pton(AF_INET, address, &own.sin_addr) != 1 ||
        bind(fd, (struct sockaddr *)&own, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &size) != 0)
        cr_fail(err, CR_EIO, "cannot listen at %s: %s", address, strerror(errno));
    if (fd >= 0) close(fd);
    *port = ntohs(own.sin_port);
    return err->status;
}

/* Listen on that address, and ask for a password. */
static cr_status add_network(cr_buf *conf, const char *address, cr_server_plan *out, cr_err *err)
{
    unsigned char chance[16];
    char password[2 * sizeof chance + 1];
    int port = 0;

    if (!address) {
        cr_buf_adds(conf, "port 0\n");
        return CR_OK;
    }
    CR_TRY(find_port(address, &port, err));
    if (getrandom(chance, sizeof chance, 0) != (ssize_t)sizeof chance)
        return cr_fail(err, CR_EIO, "no random numbers for a password: %s", strerror(errno));
    for (size_t i = 0; i < sizeof chance; i++)
        snprintf(password + 2 * i, 3, "%02x", chance[i]);
    cr_buf_addf(conf, "bind %s\nport %d\nrequirepass %s\n", address, port, password);
    cr_free(out->url);
    out->url = cr_asprintf("redis://:%s@%s:%d/0", password, address, port);
    return CR_OK;
}

/* For this user alone, from its first byte on. */
static cr_status write_secret(const char *path, const cr_buf *text, cr_err *err)
{
    int fd;

    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text->data, text->num_bytes) != (ssize_t)text->num_bytes)
        cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return err->status;
}

cr_status cr_server_plan_make(const char *folder, const char *address, cr_server_plan *out,
                              cr_err *err)
{
    struct sockaddr_un unix_address;
    char *absolute, *conf_path, temporary[] = "/tmp/croll-XXXXXX";
    cr_buf conf = {0};
    cr_status status;

    *out = (cr_server_plan){0};
    CR_TRY(cr_mkdirs(folder, err));
    absolute = realpath(folder, NULL);
    if (!absolute) return cr_fail(err, CR_EIO, "%s: %s", folder, strerror(errno));
    if (strlen(absolute) + strlen("/redis.sock") < sizeof unix_address.sun_path) {
        out->socket_path = cr_path_join(absolute, "redis.sock");
    } else if (mkdtemp(temporary)) {
        out->socket_folder = cr_strdup(temporary);
        out->socket_path = cr_path_join(temporary, "redis.sock");
    } else {
        status = cr_fail(err, CR_EIO, "cannot make a folder below /tmp: %s", strerror(errno));
        free(absolute);
        return status;
    }
    unlink(out->socket_path);
    out->url = cr_asprintf("unix:%s", out->socket_path);
    /* appendfsync no: written before it is answered, so a killed server has lost nothing. everysec would
     * put the write itself off while an fsync is under way. A host that goes down takes the run along,
     * which then starts from its checkpoint. */
    add_quoted(&conf, "unixsocket", out->socket_path, "");
    add_quoted(&conf, "dir", absolute, "");
    add_quoted(&conf, "logfile", absolute, "/redis.log");
    cr_buf_adds(&conf, "unixsocketperm 700\nappendonly yes\nappendfsync no\nsave \"\"\n"
                       "daemonize no\nloglevel notice\naof-use-rdb-preamble yes\n"
                       "auto-aof-rewrite-min-size 256mb\nstream-node-max-bytes 0\n");
    conf_path = cr_path_join(absolute, "redis.conf");
    status = add_network(&conf, address, out, err);
    if (status == CR_OK) status = write_secret(conf_path, &conf, err);
    out->argv[0] = cr_strdup("redis-server");
    out->argv[1] = conf_path;
    cr_buf_free(&conf);
    free(absolute);
    return status;
}

void cr_server_plan_free(cr_server_plan *plan)
{
    if (plan->socket_path) unlink(plan->socket_path);
    if (plan->socket_folder) rmdir(plan->socket_folder);
    cr_free(plan->argv[0]);
    cr_free(plan->argv[1]);
    cr_free(plan->url);
    cr_free(plan->socket_path);
    cr_free(plan->socket_folder);
    *plan = (cr_server_plan){0};
}
