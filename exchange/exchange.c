/* exchange.c -- see exchange.h. One place talks to hiredis: command(), which reconnects until the
 * deadline; everything else is a command and the reading of its reply.
 */
#include "exchange/exchange.h"

#include <ctype.h>
#include <errno.h>
#include <hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_WORDS = 24, SEEN_SECONDS = 86400 };

struct cr_exchange {
    redisContext *redis;
    char *url, *prefix, *host, *user, *password, *socket_path;
    int port, db;
    double deadline_s;
    cr_exchange_revive revive; /* NULL: only wait */
    void *revive_ctx;
    bool
        should_read_pending; /* a connection was made: what was being delivered may have been lost */
};

typedef struct words {
    const char *at[MAX_WORDS];
    size_t num_bytes[MAX_WORDS];
    char number[MAX_WORDS][32];
    int num;
} words;

static void add_bytes(words *w, const void *data, size_t num_bytes)
{
    CR_CHECK(w->num < MAX_WORDS, "a Redis command of more than %d words", MAX_WORDS);
    w->at[w->num] = data;
    w->num_bytes[w->num++] = num_bytes;
}

static void add(words *w, const char *text)
{
    add_bytes(w, text, strlen(text));
}

static void add_int(words *w, long long value)
{
    snprintf(w->number[w->num], sizeof w->number[0], "%lld", value);
    add(w, w->number[w->num]);
}

/* ---- connecting ---- */

/* The whole text as a number from least to most. */
static bool parse_int(const char *text, long least, long most, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (!isdigit((unsigned char)text[0]) || *end || value < least || value > most) return false;
    *out = (int)value;
    return true;
}

static cr_status parse_url(cr_exchange *x, cr_err *err)
{
    bool is_valid = true;
    const char *p = x->url, *at, *slash, *colon;

    x->port = 6379;
    if (strncmp(p, "unix:", 5) == 0) {
        x->socket_path = cr_strdup(p + 5);
        return CR_OK;
    }
    if (strncmp(p, "rediss://", 9) == 0)
        return cr_fail(
            err, CR_EABSENT,
            "exchange.url: rediss:// (TLS) is not available yet (use redis:// or unix:)");
    if (strncmp(p, "redis://", 8) != 0)
        return cr_fail(err, CR_ECONFIG,
                       "exchange.url must be redis://host[:port][/db] or unix:/path");
    p += 8;
    at = strrchr(p, '@');
    if (at) {
        colon = memchr(p, ':', (size_t)(at - p));
        if (!colon)
            return cr_fail(err, CR_ECONFIG,
                           "exchange.url: user:password@ is expected before the host");
        x->user = cr_strndup(p, (size_t)(colon - p));
        x->password = cr_strndup(colon + 1, (size_t)(at - colon - 1));
        p = at + 1;
    }
    slash = strchr(p, '/');
    if (slash) is_valid = parse_int(slash + 1, 0, 1 << 20, &x->db);
    x->host = cr_strndup(p, slash ? (size_t)(slash - p) : strlen(p));
    colon = strrchr(x->host, ':');
    if (colon) {
        is_valid = is_valid && parse_int(colon + 1, 1, 65535, &x->port);
        x->host[colon - x->host] = 0;
    }
    if (!is_valid || x->host[0] == 0)
        return cr_fail(err, CR_ECONFIG,
                       "exchange.url needs a host, a port and a database number that are valid "
                       "(redis://host:6379/0)");
    return CR_OK;
}

/* One attempt. False: why says what happened; is_final: trying again cannot help. */
static bool connect_once(cr_exchange *x, char why[160], bool *is_final)
{
    struct timeval limit = {(time_t)x->deadline_s, 0};
    redisReply *r;
    bool is_ready = true;

    if (limit.tv_sec < 1) limit.tv_sec = 1;
    x->redis = x->socket_path ? redisConnectUnixWithTimeout(x->socket_path, limit)
                              : redisConnectWithTimeout(x->host, x->port, limit);
    if (!x->redis || x->redis->err) {
        snprintf(why, 160, "%s", x->redis ? x->redis->errstr : "out of memory");
        is_ready = false;
    }
    if (is_ready && x->password) {
        r = x->user[0] ? redisCommand(x->redis, "AUTH %s %s", x->user, x->password)
                       : redisCommand(x->redis, "AUTH %s", x->password);
        is_ready = r && r->type != REDIS_REPLY_ERROR;
        if (!is_ready) snprintf(why, 160, "%s", r ? r->str : x->redis->errstr);
        *is_final = r && r->type == REDIS_REPLY_ERROR && strncmp(r->str, "LOADING", 7) != 0;
        freeReplyObject(r);
    }
    if (is_ready) {
        r = redisCommand(x->redis, "SELECT %d", x->db);
        is_ready = r && r->type != REDIS_REPLY_ERROR; /* also false while it is LOADING */
        if (!is_ready) snprintf(why, 160, "%s", r ? r->str : x->redis->errstr);
        freeReplyObject(r);
    }
    if (!is_ready && x->redis) {
        redisFree(x->redis);
        x->redis = NULL;
    }
    if (is_ready) x->should_read_pending = true;
    return is_ready;
}

void cr_exchange_set_revive(cr_exchange *x, cr_exchange_revive revive, void *ctx)
{
    x->revive = revive;
    x->revive_ctx = ctx;
}

/* Send one command; a lost connection is made again until the deadline (plus block_s). The reply is
 * owned by the caller (freeReplyObject); NULL after a failure. */
static redisReply *command(cr_exchange *x, const words *w, double block_s, cr_err *err)
{
    double until = cr_now_s() + x->deadline_s + block_s, pause = 0.001;
    char why[160] = "no answer";
    bool is_final = false;

    for (;;) {
        redisReply *r = NULL;
        double left = until - cr_now_s();
        if (left <= 0) break;
        if (x->redis || connect_once(x, why, &is_final)) {
            struct timeval limit = {(time_t)left,
                                    (suseconds_t)((left - (double)(time_t)left) * 999998) + 1};
            redisSetTimeout(x->redis, limit); /* tv_usec stays below a million, or it is refused */
            r = redisCommandArgv(x->redis, w->num, (const char **)(uintptr_t)w->at, w->num_bytes);
            if (r && r->type == REDIS_REPLY_ERROR && strncmp(r->str, "LOADING", 7) != 0) {
                if (strncmp(r->str, "MISCONF ", 8) == 0)
                    cr_fail(err, CR_EIO,
                            "Redis takes no more (%s): make room on the disk of its append-only "
                            "file, then resume_from_checkpoint=true goes on",
                            r->str + 8);
                else
                    cr_fail(err, CR_EIO, "Redis refused %.*s: %s", (int)w->num_bytes[0], w->at[0],
                            r->str);
                freeReplyObject(r);
                return NULL;
            }
            if (r && r->type != REDIS_REPLY_ERROR) return r;
            snprintf(why, sizeof why, "%s", r ? r->str : x->redis->errstr);
            freeReplyObject(r);
            redisFree(x->redis);
            x->redis = NULL;
        }
        if (is_final) {
            cr_fail(err, CR_ECONFIG, "Redis at %s refused the user or password of exchange.url: %s",
                    x->host ? x->host : x->socket_path, why);
            return NULL;
        }
        if (x->revive && x->revive(x->revive_ctx, err) != CR_OK) return NULL;
        cr_sleep_s(pause);
        pause = pause < 0.1 ? 2 * pause : 0.1;
    }
    cr_fail(
        err, CR_ETIMEOUT,
        "Redis at %s gave no answer to %.*s within %.3g s: %s (is it running? see exchange.url)",
        x->socket_path ? x->socket_path : x->host, (int)w->num_bytes[0], w->at[0], x->deadline_s,
        why);
    return NULL;
}

cr_status cr_exchange_open(const char *url, const char *prefix, double deadline_s,
                           cr_exchange **out, cr_err *err)
{
    cr_exchange *x = CR_NEW(cr_exchange);
    words w = {0};
    redisReply *r;

    *out = NULL;
    x->url = cr_strdup(url);
    x->prefix = cr_strdup(prefix);
    x->deadline_s = deadline_s;
    if (parse_url(x, err) == CR_OK) {
        add(&w, "PING");
        r = command(x, &w, 0, err);
        freeReplyObject(r);
    }
    if (err->status == CR_OK)
        *out = x;
    else
        cr_exchange_close(x);
    return err->status;
}

void cr_exchange_close(cr_exchange *x)
{
    if (!x) return;
    if (x->redis) redisFree(x->redis);
    cr_free(x->url);
    cr_free(x->prefix);
    cr_free(x->host);
    cr_free(x->user);
    cr_free(x->password);
    cr_free(x->socket_path);
    cr_free(x);
}

/* ---- the embedded server ---- */

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
    cr_buf_addf(&conf,
                "port 0\nunixsocket \"%s\"\nunixsocketperm 700\ndir \"%s\"\nappendonly "
                "yes\nappendfsync no\n"
                "save \"\"\ndaemonize no\nlogfile \"%s/redis.log\"\nloglevel "
                "notice\naof-use-rdb-preamble yes\n"
                "auto-aof-rewrite-min-size 256mb\nstream-node-max-bytes 0\n",
                out->socket_path, absolute, absolute);
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

/* ---- streams ---- */

static char *key_of(const cr_exchange *x, const char *kind, const char *name)
{
    return cr_asprintf("%s%s%s", x->prefix, kind, name);
}

void cr_entries_free(cr_entries *entries)
{
    for (size_t i = 0; i < entries->num; i++) {
        cr_free(entries->items[i].id);
        cr_free(entries->items[i].data);
    }
    cr_free(entries->items);
    *entries = (cr_entries){0};
}

cr_status cr_stream_make(cr_exchange *x, const char *stream, const char *group, cr_err *err)
{
    char *key = key_of(x, "s:", stream);
    cr_err why = {0};
    words w = {0};
    redisReply *r;

    add(&w, "XGROUP");
    add(&w, "CREATE");
    add(&w, key);
    add(&w, group);
    add(&w, "0");
    add(&w, "MKSTREAM");
    r = command(x, &w, 0, &why);
    freeReplyObject(r);
    cr_free(key);
    if (why.status != CR_OK && !strstr(why.msg, "BUSYGROUP"))
        return cr_fail(err, why.status, "%s", why.msg);
    return CR_OK;
}

/* KEYS: stream to append to, its set of ids, stream to finish in ("" for none).
 * ARGV: id, data, group, stream id to finish. 1 when appended, 0 when the id was there. */
static const char move_script[] =
    "local new = redis.call('SADD', KEYS[2], ARGV[1])\n"
    "if new == 1 then redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'd', ARGV[2]) end\n"
    "if ARGV[4] ~= '' then redis.call('XACK', KEYS[3], ARGV[3], ARGV[4]) redis.call('XDEL', "
    "KEYS[3], ARGV[4]) end\n"
    "return new\n";

static cr_status move(cr_exchange *x, const cr_entry *entry, const char *group, const char *to,
                      const char *id, const void *data, size_t num_bytes, bool *is_new, cr_err *err)
{
    char *to_key = key_of(x, "s:", to), *ids_key = key_of(x, "ids:", to),
         *from_key = key_of(x, "s:", entry ? entry->stream : to);
    words w = {0};
    redisReply *r;

    add(&w, "EVAL");
    add(&w, move_script);
    add_int(&w, 3);
    add(&w, to_key);
    add(&w, ids_key);
    add(&w, from_key);
    add(&w, id);
    add_bytes(&w, data, num_bytes);
    add(&w, group ? group : "");
    add(&w, entry ? entry->stream_id : "");
    r = command(x, &w, 0, err);
    if (r && is_new) *is_new = r->type == REDIS_REPLY_INTEGER && r->integer == 1;
    freeReplyObject(r);
    cr_free(to_key);
    cr_free(ids_key);
    cr_free(from_key);
    return err->status;
}

cr_status cr_stream_put(cr_exchange *x, const char *stream, const char *id, const void *data,
                        size_t num_bytes, bool *is_new, cr_err *err)
{
    return move(x, NULL, NULL, stream, id, data, num_bytes, is_new, err);
}

cr_status cr_stream_move(cr_exchange *x, const cr_entry *entry, const char *group, const char *to,
                         const char *id, const void *data, size_t num_bytes, bool *is_new,
                         cr_err *err)
{
    return move(x, entry, group, to, id, data, num_bytes, is_new, err);
}

cr_status cr_stream_done(cr_exchange *x, const cr_entry *entry, const char *group, cr_err *err)
{
    char *key = key_of(x, "s:", entry->stream);
    const char *const verb[] = {"XACK", "XDEL"};

    for (int i = 0; i < 2; i++) {
        words w = {0};
        redisReply *r;
        add(&w, verb[i]);
        add(&w, key);
        if (i == 0) add(&w, group);
        add(&w, entry->stream_id);
        r = command(x, &w, 0, err);
        freeReplyObject(r);
    }
    cr_free(key);
    return err->status;
}

/* items: the array of entries that XREADGROUP and XAUTOCLAIM give for one stream. Entries that were
 * deleted meanwhile come as nil and are skipped. */
static void take_entries(const redisReply *items, const char *stream, cr_entries *out)
{
    if (!items || items->type != REDIS_REPLY_ARRAY) return;
    for (size_t i = 0; i < items->elements; i++) {
        const redisReply *item = items->element[i], *fields;
        cr_entry e = {.num_bytes = 0};
        if (item->type != REDIS_REPLY_ARRAY || item->elements != 2) continue;
        fields = item->element[1];
        snprintf(e.stream_id, sizeof e.stream_id, "%s", item->element[0]->str);
        snprintf(e.stream, sizeof e.stream, "%s", stream);
        if (fields->type != REDIS_REPLY_ARRAY) continue;
        for (size_t k = 0; k + 1 < fields->elements; k += 2) {
            const redisReply *name = fields->element[k], *value = fields->element[k + 1];
            if (strcmp(name->str, "id") == 0 && !e.id) e.id = cr_strndup(value->str, value->len);
            if (strcmp(name->str, "d") == 0 && !e.data) {
                e.data = cr_strndup(value->str, value->len);
                e.num_bytes = value->len;
            }
        }
        if (!e.id) e.id = cr_strdup("");
        if (!e.data) e.data = cr_strdup("");
        out->items = cr_realloc(out->items, out->num * sizeof e, (out->num + 1) * sizeof e);
        out->items[out->num++] = e;
    }
}

/* XREADGROUP; from is ">" (new ones) or "0" (pending of this consumer). */
static cr_status read_group(cr_exchange *x, const char *const *streams, size_t num_streams,
                            const char *group, const char *consumer, size_t most, double block_s,
                            const char *from, cr_entries *out, cr_err *err)
{
    char *keys[8];
    words w = {0};
    redisReply *r;

    CR_CHECK(num_streams <= CR_COUNT(keys), "too many streams in one read");
    add(&w, "XREADGROUP");
    add(&w, "GROUP");
    add(&w, group);
    add(&w, consumer);
    add(&w, "COUNT");
    add_int(&w, (long long)most);
    if (block_s > 0) {
        add(&w, "BLOCK");
        add_int(&w, block_s < 0.001 ? 1 : (long long)(block_s * 1000));
    }
    add(&w, "STREAMS");
    for (size_t i = 0; i < num_streams; i++)
        add(&w, keys[i] = key_of(x, "s:", streams[i]));
    for (size_t i = 0; i < num_streams; i++)
        add(&w, from);
    r = command(x, &w, block_s, err);
    if (r && r->type == REDIS_REPLY_ARRAY)
        for (size_t i = 0; i < r->elements; i++)
            for (size_t k = 0; k < num_streams; k++)
                if (strcmp(r->element[i]->element[0]->str, keys[k]) == 0)
                    take_entries(r->element[i]->element[1], streams[k], out);
    freeReplyObject(r);
    for (size_t i = 0; i < num_streams; i++)
        cr_free(keys[i]);
    return err->status;
}

static cr_status claim(cr_exchange *x, const char *stream, const char *group, const char *consumer,
                       size_t most, double claim_s, cr_entries *out, cr_err *err)
{
    char *key = key_of(x, "s:", stream);
    words w = {0};
    redisReply *r;

    add(&w, "XAUTOCLAIM");
    add(&w, key);
    add(&w, group);
    add(&w, consumer);
    add_int(&w, (long long)(claim_s * 1000));
    add(&w, "0");
    add(&w, "COUNT");
    add_int(&w, (long long)most);
    r = command(x, &w, 0, err);
    if (r && r->type == REDIS_REPLY_ARRAY && r->elements >= 2)
        take_entries(r->element[1], stream, out);
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

cr_status cr_stream_take(cr_exchange *x, const char *const *streams, size_t num_streams,
                         const char *group, const char *consumer, size_t most, double block_s,
                         double claim_s, cr_entries *out, cr_err *err)
{
    double until = cr_now_s() + block_s;

    *out = (cr_entries){0};
    do {
        double left = until - cr_now_s();
        if (x->should_read_pending) {
            x->should_read_pending =
                false; /* before the call: a reconnect inside it sets it again */
            CR_TRY(read_group(x, streams, num_streams, group, consumer, most, 0, "0", out, err));
            if (out->num) {
                x->should_read_pending = out->num >= most;
                return CR_OK;
            }
        }
        /* no longer than claim_s at a stretch, so that what a dead worker left is seen */
        if (left > claim_s) left = claim_s;
        CR_TRY(read_group(x, streams, num_streams, group, consumer, most, left > 0 ? left : 0, ">",
                          out, err));
        for (size_t i = 0; i < num_streams && out->num == 0 && block_s > 0; i++)
            CR_TRY(claim(x, streams[i], group, consumer, most, claim_s, out, err));
    } while (out->num == 0 && cr_now_s() < until);
    return CR_OK;
}

/* XTRIM, not DEL: who waits for the stream goes on waiting. */
cr_status cr_stream_clear(cr_exchange *x, const char *stream, const char *group, cr_err *err)
{
    char *key = key_of(x, "s:", stream), *ids_key = key_of(x, "ids:", stream);
    words trim = {0}, del = {0};
    redisReply *r;

    (void)group;
    add(&trim, "XTRIM");
    add(&trim, key);
    add(&trim, "MAXLEN");
    add(&trim, "0");
    r = command(x, &trim, 0, err);
    freeReplyObject(r);
    add(&del, "DEL");
    add(&del, ids_key);
    if (err->status == CR_OK) {
        r = command(x, &del, 0, err);
        freeReplyObject(r);
    }
    cr_free(key);
    cr_free(ids_key);
    return err->status;
}

cr_status cr_stream_length(cr_exchange *x, const char *stream, int64_t *out, cr_err *err)
{
    char *key = key_of(x, "s:", stream);
    words w = {0};
    redisReply *r;

    *out = 0;
    add(&w, "XLEN");
    add(&w, key);
    r = command(x, &w, 0, err);
    if (r && r->type == REDIS_REPLY_INTEGER) *out = r->integer;
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

/* ---- small values ---- */

cr_status cr_reply_put(cr_exchange *x, const char *request, const void *data, size_t num_bytes,
                       cr_err *err)
{
    char *key = key_of(x, "reply:", request);
    words w = {0}, e = {0};
    redisReply *r;

    add(&w, "LPUSH");
    add(&w, key);
    add_bytes(&w, data, num_bytes);
    r = command(x, &w, 0, err);
    freeReplyObject(r);
    if (err->status == CR_OK) {
        add(&e, "EXPIRE");
        add(&e, key);
        add_int(&e, SEEN_SECONDS);
        r = command(x, &e, 0, err);
        freeReplyObject(r);
    }
    cr_free(key);
    return err->status;
}

cr_status cr_reply_wait(cr_exchange *x, const char *request, double block_s, cr_buf *out,
                        bool *is_there, cr_err *err)
{
    char *key = key_of(x, "reply:", request);
    words w = {0}, done = {0};
    redisReply *r;

    *is_there = false;
    cr_buf_clear(out);
    add(&w, "BLMOVE"); /* onto itself: it stays there until we have it, whatever dies meanwhile */
    add(&w, key);
    add(&w, key);
    add(&w, "LEFT");
    add(&w, "LEFT");
    snprintf(w.number[w.num], sizeof w.number[0], "%.3f", block_s > 0.001 ? block_s : 0.001);
    add(&w, w.number[w.num]);
    r = command(x, &w, block_s, err);
    if (r && r->type == REDIS_REPLY_STRING) {
        cr_buf_add(out, r->str, r->len);
        *is_there = true;
        add(&done, "DEL");
        add(&done, key);
        freeReplyObject(r);
        r = command(x, &done, 0, err);
    }
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

cr_status cr_value_set(cr_exchange *x, const char *name, const char *text, cr_err *err)
{
    char *key = key_of(x, "", name);
    words w = {0};
    redisReply *r;

    add(&w, "SET");
    add(&w, key);
    add(&w, text);
    r = command(x, &w, 0, err);
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

cr_status cr_value_get(cr_exchange *x, const char *name, cr_buf *out, cr_err *err)
{
    char *key = key_of(x, "", name);
    words w = {0};
    redisReply *r;

    cr_buf_clear(out);
    add(&w, "GET");
    add(&w, key);
    r = command(x, &w, 0, err);
    if (r && r->type == REDIS_REPLY_STRING) cr_buf_add(out, r->str, r->len);
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

cr_status cr_exchange_wipe(cr_exchange *x, cr_err *err)
{
    words w = {0};
    redisReply *r;

    add(&w, "EVAL");
    add(&w, "local c = '0' repeat local r = redis.call('SCAN', c, 'MATCH', ARGV[1], 'COUNT', 1000) "
            "c = r[1] "
            "for _, k in ipairs(r[2]) do redis.call('DEL', k) end until c == '0' return 1");
    add_int(&w, 0);
    char *pattern = cr_asprintf("%s*", x->prefix);
    add(&w, pattern);
    r = command(x, &w, 0, err);
    freeReplyObject(r);
    cr_free(pattern);
    return err->status;
}
