/* exchange.c -- see exchange.h. Opening and closing; streams, values and the owner of a prefix as Redis commands.
 * call.c sends them, link.c is the connection, server.c the embedded server.
 */
#include "exchange/exchange.h"
#include "exchange/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_SECONDS "86400" /* of a reply without a reader */

/* ---- opening ---- */

cr_status cr_exchange_open(const cr_exchange_args *args, cr_exchange **out, cr_err *err)
{
    return cr_exchange_open_revived(args, NULL, NULL, out, err);
}

cr_status cr_exchange_open_revived(const cr_exchange_args *args, cr_exchange_revive revive,
                                   void *ctx, cr_exchange **out, cr_err *err)
{
    cr_exchange *x = CR_NEW(cr_exchange);
    cri_request ping = {0};

    *out = NULL;
    x->prefix = cr_strdup(args->prefix);
    x->deadline_s = args->deadline_s;
    x->may_be_starting = args->may_be_starting;
    x->revive = revive;
    x->revive_ctx = ctx;
    if (cri_address_parse(args->url, &x->address, err) == CR_OK && x->address.is_tls)
        cr_note(cri_tls_open(args, &x->tls, err));
    if (err->status == CR_OK && !x->address.is_tls &&
        (args->ca_file || args->cert_file || args->key_file))
        cr_fail(err, CR_ECONFIG,
                "exchange.ca_file, cert_file and key_file are for TLS: the url must begin with "
                "rediss://");
    if (err->status == CR_OK) {
        cri_add(&ping, "PING", NULL);
        cr_note(cri_call(x, &ping, 0, NULL, NULL, err));
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
    cri_link_close(x->link);
    SSL_CTX_free(x->tls);
    cri_address_free(&x->address);
    cr_buf_free(&x->later.bytes);
    cr_free(x->prefix);
    cr_free(x);
}

void cr_exchange_set_prefix(cr_exchange *x, const char *prefix)
{
    cr_free(x->prefix);
    x->prefix = cr_strdup(prefix);
}

bool cr_exchange_is_connected(const cr_exchange *x)
{
    return x && x->link;
}

void cr_exchange_set_deadline(cr_exchange *x, double deadline_s)
{
    x->deadline_s = deadline_s;
}

const char *cr_exchange_address(const cr_exchange *x)
{
    return x->address.shown;
}

char *cr_exchange_take_variable(void)
{
    const char *text = getenv(CR_EXCHANGE_VARIABLE);
    char *copy = text ? cr_strdup(text) : NULL;

    unsetenv(CR_EXCHANGE_VARIABLE);
    return copy;
}

cr_status cr_exchange_flush(cr_exchange *x, cr_err *err)
{
    cri_request none = {0};

    return x->later.num ? cri_call(x, &none, 0, NULL, NULL, err) : CR_OK;
}

/* ---- streams ---- */

void cr_entry_free(cr_entry *entry)
{
    cr_free(entry->id);
    cr_free(entry->data);
    entry->id = entry->data = NULL;
}

void cr_entries_free(cr_entries *entries)
{
    for (size_t i = 0; i < entries->num; i++)
        cr_entry_free(&entries->items[i]);
    cr_free(entries->items);
    *entries = (cr_entries){0};
}

/* One call whose reply does not matter. */
static cr_status call(cr_exchange *x, cri_request *q, cr_err *err)
{
    return cri_call(x, q, 0, NULL, NULL, err);
}

cr_status cr_stream_make(cr_exchange *x, const char *stream, const char *group, cr_err *err)
{
    char *key = cri_key(x, "s:", stream);
    cri_request q = {0};

    cri_add(&q, "XGROUP", "CREATE", key, group, "0", "MKSTREAM", NULL);
    cr_free(key);
    return cri_call(x, &q, 0, "BUSYGROUP", NULL, err);
}

static void add_move(cr_exchange *x, cri_request *q, const cr_entry *entry, const char *group,
                     const cr_stream_message *messages, size_t num)
{
    cri_begin(q, 5 + 3 * num + (entry ? 3 : 0), "EVALSHA");
    cri_text(q, x->move_sha);
    cri_int(q, 0);
    cri_text(q, x->prefix);
    cri_int(q, (long long)num);
    for (size_t i = 0; i < num; i++) {
        cri_text(q, messages[i].stream);
        cri_text(q, messages[i].id);
        cri_word(q, messages[i].data, messages[i].num_bytes);
    }
    if (!entry) return;
    cri_text(q, entry->stream);
    cri_text(q, group);
    cri_text(q, entry->stream_id);
}

cr_status cr_stream_move(cr_exchange *x, const cr_entry *entry, const char *group,
                         const cr_stream_message *messages, size_t num, size_t *num_new,
                         cr_err *err)
{
    cri_request q = {0};
    redisReply *r;

    add_move(x, &q, entry, group, messages, num);
    if (cri_call(x, &q, 0, NULL, &r, err) == CR_OK && num_new)
        *num_new = r->type == REDIS_REPLY_INTEGER ? (size_t)r->integer : 0;
    freeReplyObject(r);
    return err->status;
}

cr_status cr_stream_put(cr_exchange *x, const char *stream, const char *id, const void *data,
                        size_t num_bytes, bool *is_new, cr_err *err)
{
    const cr_stream_message message = {stream, id, data, num_bytes};
    size_t num_new = 0;

    CR_TRY(cr_stream_move(x, NULL, NULL, &message, 1, &num_new, err));
    if (is_new) *is_new = num_new > 0;
    return CR_OK;
}

void cr_stream_put_later(cr_exchange *x, const char *stream, const char *id, const void *data,
                         size_t num_bytes)
{
    const cr_stream_message message = {stream, id, data, num_bytes};

    add_move(x, &x->later, NULL, NULL, &message, 1);
}

void cr_stream_move_later(cr_exchange *x, const cr_entry *entry, const char *group,
                          const cr_stream_message *messages, size_t num)
{
    add_move(x, &x->later, entry, group, messages, num);
}

/* XACK or XDEL of entries of one stream. */
static void add_done(cr_exchange *x, const char *verb, const cr_entry *entries, size_t num,
                     const char *group)
{
    char *key = cri_key(x, "s:", entries->stream);

    cri_begin(&x->later, (group ? 3 : 2) + num, verb);
    cri_text(&x->later, key);
    if (group) cri_text(&x->later, group);
    for (size_t i = 0; i < num; i++)
        cri_text(&x->later, entries[i].stream_id);
    cr_free(key);
}

void cr_stream_done(cr_exchange *x, const cr_entry *entries, size_t num, const char *group)
{
    for (size_t i = 0, n; i < num; i += n) {
        for (n = 1; i + n < num && strcmp(entries[i + n].stream, entries[i].stream) == 0; n++)
            continue;
        add_done(x, "XACK", entries + i, n, group);
        add_done(x, "XDEL", entries + i, n, NULL);
    }
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
                            const char *group, const char *consumer, size_t max, double block_s,
                            const char *from, cr_entries *out, cr_err *err)
{
    char *keys[8];
    cri_request q = {0};
    redisReply *r;

    CR_CHECK(num_streams <= CR_COUNT(keys), "too many streams in one read");
    cri_begin(&q, 7 + 2 * num_streams + (block_s > 0 ? 2 : 0), "XREADGROUP");
    cri_text(&q, "GROUP");
    cri_text(&q, group);
    cri_text(&q, consumer);
    cri_text(&q, "COUNT");
    cri_int(&q, (long long)max);
    if (block_s > 0) {
        cri_text(&q, "BLOCK");
        cri_int(&q, block_s < 0.001 ? 1 : (long long)(block_s * 1000));
    }
    cri_text(&q, "STREAMS");
    for (size_t i = 0; i < num_streams; i++)
        cri_text(&q, keys[i] = cri_key(x, "s:", streams[i]));
    for (size_t i = 0; i < num_streams; i++)
        cri_text(&q, from);
    if (cri_call(x, &q, block_s, NULL, &r, err) == CR_OK && r->type == REDIS_REPLY_ARRAY)
        for (size_t i = 0; i < r->elements; i++)
            for (size_t k = 0; k < num_streams; k++)
                if (strcmp(r->element[i]->element[0]->str, keys[k]) == 0)
                    take_entries(r->element[i]->element[1], streams[k], out);
    freeReplyObject(r);
    for (size_t i = 0; i < num_streams; i++)
        cr_free(keys[i]);
    return err->status;
}

/* What others left for claim_s, of all streams; looked for a few times in that time, no more. */
static cr_status claim(cr_exchange *x, const char *const *streams, size_t num_streams,
                       const char *group, const char *consumer, size_t max, double claim_s,
                       cr_entries *out, cr_err *err)
{
    redisReply *replies[8];
    cri_request q = {0};

    if (cr_now_s() - x->claimed_s < claim_s / 4) return CR_OK;
    x->claimed_s = cr_now_s();
    for (size_t i = 0; i < num_streams; i++) {
        char *key = cri_key(x, "s:", streams[i]);
        cri_begin(&q, 8, "XAUTOCLAIM");
        cri_text(&q, key);
        cri_text(&q, group);
        cri_text(&q, consumer);
        cri_int(&q, (long long)(claim_s * 1000));
        cri_text(&q, "0");
        cri_text(&q, "COUNT");
        cri_int(&q, (long long)max);
        cr_free(key);
    }
    cr_note(cri_call(x, &q, 0, NULL, replies, err));
    for (size_t i = 0; i < num_streams; i++) {
        const redisReply *r = replies[i];
        if (r && r->type == REDIS_REPLY_ARRAY && r->elements >= 2)
            take_entries(r->element[1], streams[i], out);
        freeReplyObject(replies[i]);
    }
    return err->status;
}

cr_status cr_stream_take(cr_exchange *x, const char *const *streams, size_t num_streams,
                         const char *group, const char *consumer, size_t max, double block_s,
                         double claim_s, cr_entries *out, cr_err *err)
{
    double until = cr_now_s() + block_s;

    *out = (cr_entries){0};
    do {
        double left = until - cr_now_s();
        if (x->should_read_pending) {
            x->should_read_pending =
                false; /* before the call: a reconnect inside it sets it again */
            CR_TRY(read_group(x, streams, num_streams, group, consumer, max, 0, "0", out, err));
            if (out->num) {
                x->should_read_pending = out->num >= max;
                return CR_OK;
            }
        }
        /* no longer than claim_s at a stretch, so that what a dead worker left is seen */
        if (left > claim_s) left = claim_s;
        CR_TRY(read_group(x, streams, num_streams, group, consumer, max, left > 0 ? left : 0, ">",
                          out, err));
        if (out->num == 0 && block_s > 0)
            CR_TRY(claim(x, streams, num_streams, group, consumer, max, claim_s, out, err));
    } while (out->num == 0 && cr_now_s() < until);
    return CR_OK;
}

/* XTRIM, not DEL: who waits for the stream goes on waiting. */
void cr_stream_clear(cr_exchange *x, const char *stream)
{
    char *key = cri_key(x, "s:", stream), *ids_key = cri_key(x, "ids:", stream);

    cri_add(&x->later, "XTRIM", key, "MAXLEN", "0", NULL);
    cri_add(&x->later, "DEL", ids_key, NULL);
    cr_free(key);
    cr_free(ids_key);
}

cr_status cr_stream_length(cr_exchange *x, const char *stream, int64_t *out, cr_err *err)
{
    char *key = cri_key(x, "s:", stream);
    cri_request q = {0};
    redisReply *r;

    *out = 0;
    cri_add(&q, "XLEN", key, NULL);
    cr_free(key);
    if (cri_call(x, &q, 0, NULL, &r, err) == CR_OK && r->type == REDIS_REPLY_INTEGER)
        *out = r->integer;
    freeReplyObject(r);
    return err->status;
}

/* ---- tables ---- */

void cr_table_put_later(cr_exchange *x, const char *table, const char *name, const void *data,
                        size_t num_bytes)
{
    char *key = cri_key(x, "t:", table);

    cri_begin(&x->later, 4, "HSET");
    cri_text(&x->later, key);
    cri_text(&x->later, name);
    cri_word(&x->later, data, num_bytes);
    cr_free(key);
}

void cr_table_remove_later(cr_exchange *x, const char *table, const char *name)
{
    char *key = cri_key(x, "t:", table);

    cri_add(&x->later, "HDEL", key, name, NULL);
    cr_free(key);
}

void cr_table_clear(cr_exchange *x, const char *table)
{
    char *key = cri_key(x, "t:", table);

    cri_add(&x->later, "DEL", key, NULL);
    cr_free(key);
}

/* The values of a reply to MGET or HMGET. */
static void take_values(const redisReply *r, size_t num, cr_buf *out)
{
    for (size_t i = 0; i < num; i++)
        cr_buf_clear(&out[i]);
    if (!r || r->type != REDIS_REPLY_ARRAY) return;
    for (size_t i = 0; i < num && i < r->elements; i++)
        if (r->element[i]->type == REDIS_REPLY_STRING)
            cr_buf_add(&out[i], r->element[i]->str, r->element[i]->len);
}

cr_status cr_table_get(cr_exchange *x, const char *table, const char *const *names, size_t num,
                       cr_buf *out, cr_err *err)
{
    char *key = cri_key(x, "t:", table);
    cri_request q = {0};
    redisReply *r;

    cri_begin(&q, 2 + num, "HMGET");
    cri_text(&q, key);
    for (size_t i = 0; i < num; i++)
        cri_text(&q, names[i]);
    cr_note(cri_call(x, &q, 0, NULL, &r, err));
    take_values(r, num, out);
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

/* ---- small values ---- */

cr_status cr_reply_put(cr_exchange *x, const char *request, const void *data, size_t num_bytes,
                       cr_err *err)
{
    char *key = cri_key(x, "reply:", request);
    cri_request q = {0};

    cri_begin(&q, 3, "LPUSH");
    cri_text(&q, key);
    cri_word(&q, data, num_bytes);
    cri_add(&q, "EXPIRE", key, REPLY_SECONDS, NULL);
    cr_free(key);
    return call(x, &q, err);
}

/* BLMOVE onto itself: the reply stays there until we have it, whatever dies meanwhile. */
cr_status cr_reply_wait(cr_exchange *x, const char *request, double block_s, cr_buf *out,
                        bool *is_there, cr_err *err)
{
    char *key = cri_key(x, "reply:", request), seconds[32];
    cri_request q = {0};
    redisReply *r;

    *is_there = false;
    cr_buf_clear(out);
    snprintf(seconds, sizeof seconds, "%.3f", block_s > 0.001 ? block_s : 0.001);
    cri_add(&q, "BLMOVE", key, key, "LEFT", "LEFT", seconds, NULL);
    if (cri_call(x, &q, block_s, NULL, &r, err) == CR_OK && r->type == REDIS_REPLY_STRING) {
        cr_buf_add(out, r->str, r->len);
        *is_there = true;
        cri_add(&x->later, "DEL", key, NULL);
    }
    freeReplyObject(r);
    cr_free(key);
    return err->status;
}

void cr_value_set_later(cr_exchange *x, const char *name, const char *text)
{
    char *key = cri_key(x, "", name);

    cri_add(&x->later, "SET", key, text, NULL);
    cr_free(key);
}

cr_status cr_value_set(cr_exchange *x, const char *name, const char *text, cr_err *err)
{
    cr_value_set_later(x, name, text);
    return cr_exchange_flush(x, err);
}

cr_status cr_values_get(cr_exchange *x, const char *const *names, size_t num, cr_buf *out,
                        cr_err *err)
{
    cri_request q = {0};
    redisReply *r;

    cri_begin(&q, 1 + num, "MGET");
    for (size_t i = 0; i < num; i++) {
        char *key = cri_key(x, "", names[i]);
        cri_text(&q, key);
        cr_free(key);
    }
    cr_note(cri_call(x, &q, 0, NULL, &r, err));
    take_values(r, num, out);
    freeReplyObject(r);
    return err->status;
}

/* ---- who owns the prefix ---- */

/* KEYS: the owner's. ARGV: run id and a space, who, lease in ms. Empty: it is ours; else the text of the owner. */
static const char hold_script[] =
    "local owner = redis.pcall('GET', KEYS[1])\n"
    "if type(owner) == 'table' and string.find(owner.err, 'WRONGTYPE') then\n"
    "  return '? ' .. KEYS[1] .. ' is there and no run made it' end\n"
    "if type(owner) == 'table' then return owner end\n"
    "if owner and string.sub(owner, 1, #ARGV[1]) ~= ARGV[1] then return owner end\n"
    "redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])\n"
    "return ''\n";
static const char release_script[] =
    "local owner = redis.call('GET', KEYS[1])\n"
    "if owner and string.sub(owner, 1, #ARGV[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end\n";

cr_status cr_prefix_hold(cr_exchange *x, const char *run_id, const char *who, double lease_s,
                         cr_err *err)
{
    char *key = cri_key(x, "", "owner"), *id = cr_asprintf("%s ", run_id), lease[32];
    cri_request q = {0};
    redisReply *r;

    snprintf(lease, sizeof lease, "%.0f", lease_s * 1000);
    cri_add(&q, "EVAL", hold_script, "1", key, id, who, lease, NULL);
    if (cri_call(x, &q, 0, NULL, &r, err) == CR_OK && r->type == REDIS_REPLY_STRING && r->len) {
        const char *owner = strchr(r->str, ' ');
        cr_fail(err, CR_ECONFIG,
                "the keys %s* of Redis at %s belong to another run: %s (exchange.prefix: choose "
                "another one; a run that was killed gives them up after %.0f s)",
                x->prefix, x->address.shown, owner ? owner + 1 : r->str, lease_s);
    }
    freeReplyObject(r);
    cr_free(key);
    cr_free(id);
    return err->status;
}

cr_status cr_prefix_release(cr_exchange *x, const char *run_id, cr_err *err)
{
    char *key = cri_key(x, "", "owner"), *id = cr_asprintf("%s ", run_id);
    cri_request q = {0};

    cri_add(&q, "EVAL", release_script, "1", key, id, NULL);
    cr_free(key);
    cr_free(id);
    return call(x, &q, err);
}

/* A pattern of SCAN that matches the prefix as it is, and what follows. */
static char *pattern_of(const char *prefix)
{
    cr_buf out = {0};

    for (; *prefix; prefix++) {
        if (strchr("*?[]\\", *prefix)) cr_buf_addc(&out, '\\');
        cr_buf_addc(&out, *prefix);
    }
    cr_buf_addc(&out, '*');
    return out.data;
}

/* A key that a run makes, and not one of a run with a longer prefix or of another program; the owner's is released
   instead. */
static bool is_of_run(const char *key, const char *prefix)
{
    static const char *const kinds[] = {"s:", "ids:", "t:", "reply:", "hb:"};
    const char *name = key + strlen(prefix);

    if (strcmp(name, "config") == 0) return true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(name, kinds[i], strlen(kinds[i])) == 0) return true;
    return false;
}

/* The keys of one reply of SCAN that are the run's. */
static cr_status remove_keys(cr_exchange *x, const redisReply *keys, cr_err *err)
{
    cri_request q = {0};

    for (size_t i = 0; i < keys->elements; i++) {
        const redisReply *key = keys->element[i];
        if (!is_of_run(key->str, x->prefix)) continue;
        cri_begin(&q, 2, "UNLINK");
        cri_word(&q, key->str, key->len);
    }
    return q.num ? call(x, &q, err) : CR_OK;
}

/* SCAN by steps: a server that others use, too, is not kept busy. */
cr_status cr_prefix_wipe(cr_exchange *x, cr_err *err)
{
    char *pattern = pattern_of(x->prefix), cursor[32] = "0";

    do {
        cri_request q = {0};
        redisReply *r;
        cri_add(&q, "SCAN", cursor, "MATCH", pattern, "COUNT", "1000", NULL);
        if (cri_call(x, &q, 0, NULL, &r, err) == CR_OK && r->type == REDIS_REPLY_ARRAY &&
            r->elements == 2 && r->element[1]->type == REDIS_REPLY_ARRAY) {
            snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
            cr_note(remove_keys(x, r->element[1], err));
        } else {
            cr_fail(err, CR_EFORMAT, "Redis at %s answered SCAN with something else",
                    x->address.shown);
        }
        freeReplyObject(r);
    } while (err->status == CR_OK && strcmp(cursor, "0") != 0);
    cr_free(pattern);
    return err->status;
}
