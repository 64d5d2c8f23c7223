/* server.c -- the embedded server of exchange.h: its configuration file and its socket. */
#include "exchange/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

cr_status cr_server_plan_make(const char *folder, cr_server_plan *out, cr_err *err)
{
    struct sockaddr_un address;
    char *absolute, *conf_path, temporary[] = "/tmp/croll-XXXXXX";
    cr_buf conf = {0};
    cr_status status;

    *out = (cr_server_plan){0};
    CR_TRY(cr_mkdirs(folder, err));
    absolute = realpath(folder, NULL);
    if (!absolute) return cr_fail(err, CR_EIO, "%s: %s", folder, strerror(errno));
    if (strlen(absolute) + strlen("/redis.sock") < sizeof address.sun_path) {
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
    cr_buf_adds(&conf, "port 0\nunixsocketperm 700\nappendonly yes\nappendfsync no\nsave \"\"\n"
                       "daemonize no\nloglevel notice\naof-use-rdb-preamble yes\n"
                       "auto-aof-rewrite-min-size 256mb\nstream-node-max-bytes 0\n");
    conf_path = cr_path_join(absolute, "redis.conf");
    status = cr_file_write_atomic(conf_path, conf.data, conf.num_bytes, err);
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
