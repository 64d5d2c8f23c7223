/* call.c -- see call.h. What a call does is harmless twice (ids decide), so after a lost connection all of it is
 * sent again. */
#include "exchange/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

void cri_begin(cri_request *q, size_t num_words, const char *verb)
{
    cr_buf_addf(&q->bytes, "*%zu\r\n", num_words);
    if (q->num++ == 0) snprintf(q->verb, sizeof q->verb, "%s", verb);
    cri_text(q, verb);
}

void cri_word(cri_request *q, const void *data, size_t num_bytes)
{
    cr_buf_addf(&q->bytes, "$%zu\r\n", num_bytes);
    cr_buf_add(&q->bytes, data, num_bytes);
    cr_buf_adds(&q->bytes, "\r\n");
}

void cri_text(cri_request *q, const char *text)
{
    cri_word(q, text, strlen(text));
}

void cri_int(cri_request *q, long long value)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", value);
    cri_text(q, text);
}

void cri_add(cri_request *q, ...)
{
    va_list ap;
    size_t num = 0;
    const char *word;

    va_start(ap, q);
    while (va_arg(ap, const char *))
        num++;
    va_end(ap);
    va_start(ap, q);
    cri_begin(q, num, va_arg(ap, const char *));
    while ((word = va_arg(ap, const char *)))
        cri_text(q, word);
    va_end(ap);
}

char *cri_key(const cr_exchange *x, const char *kind, const char *name)
{
    return cr_asprintf("%s%s%s", x->prefix, kind, name);
}

/* ---- connecting ---- */

const char cri_move_script[] =
    "local new, at = 0, 3\n"
    "for i = 1, ARGV[2] do\n"
    "  if redis.call('SADD', ARGV[1] .. 'ids:' .. ARGV[at], ARGV[at + 1]) == 1 then\n"
    "    redis.call('XADD', ARGV[1] .. 's:' .. ARGV[at], '*', 'id', ARGV[at + 1], 'd', ARGV[at + "
    "2])\n"
    "    new = new + 1\n"
    "  end\n"
    "  at = at + 3\n"
    "end\n"
    "if ARGV[at] then\n"
    "  local from = ARGV[1] .. 's:' .. ARGV[at]\n"
    "  redis.call('XACK', from, ARGV[at + 1], ARGV[at + 2]) redis.call('XDEL', from, ARGV[at + "
    "2])\n"
    "end\n"
    "return new\n";

/* An error that passes by itself, or with a new connection (which loads the script again after a SCRIPT FLUSH). */
static bool will_pass(const redisReply *r)
{
    return strncmp(r->str, "NOSCRIPT", 8) == 0 || strncmp(r->str, "LOADING", 7) == 0 ||
           strncmp(r->str, "BUSY ", 5) == 0 || strstr(r->str, "max number of clients");
}

static void drop(cr_exchange *x)
{
    cri_link_close(x->link);
    x->link = NULL;
}

/* User, password, database and script, on a connection that was just made. */
static cri_outcome log_in(cr_exchange *x, double until_s, char why[CRI_WHY])
{
    const cri_address *a = &x->address;
    cri_request q = {0};
    cri_outcome outcome;
    int num;

    if (a->password && a->user[0])
        cri_add(&q, "AUTH", a->user, a->password, NULL);
    else if (a->password)
        cri_add(&q, "AUTH", a->password, NULL);
    if (a->db) {
        cri_begin(&q, 2, "SELECT");
        cri_int(&q, a->db);
    } else {
        cri_add(&q, "PING", NULL);
    }
    cri_add(&q, "SCRIPT", "LOAD", cri_move_script, NULL);
    num = q.num;
    outcome = cri_link_send(x->link, q.bytes.data, q.bytes.num_bytes, until_s, why);
    cr_buf_free(&q.bytes);
    for (int i = 0; i < num && outcome == CRI_DONE; i++) {
        redisReply *r;
        bool is_auth = a->password && i == 0;
        outcome = cri_link_receive(x->link, until_s, &r, why);
        if (outcome != CRI_DONE || r->type != REDIS_REPLY_ERROR) {
            if (outcome == CRI_DONE && i + 1 == num && r->type == REDIS_REPLY_STRING)
                snprintf(x->move_sha, sizeof x->move_sha, "%s", r->str);
            freeReplyObject(r);
            continue;
        }
        outcome = will_pass(r) ? CRI_AGAIN : CRI_NEVER;
        if (outcome == CRI_AGAIN) x->busy_s = cr_now_s();
        snprintf(
            why, CRI_WHY, "%s%s",
            outcome == CRI_AGAIN ? ""
            : strncmp(r->str, "NOAUTH", 6) == 0
                ? "it wants a password (redis://user:password@host or redis://:password@host): "
            : is_auth ? "it refused the user or password of exchange.url: "
                      : "",
            r->str);
        freeReplyObject(r);
    }
    return outcome;
}

static cri_outcome connect_once(cr_exchange *x, double until_s, char why[CRI_WHY])
{
    cri_outcome outcome = cri_link_open(&x->address, x->tls, until_s, &x->link, why);

    if (outcome == CRI_DONE) outcome = log_in(x, until_s, why);
    if (outcome != CRI_DONE) drop(x);
    if (outcome == CRI_DONE) x->should_read_pending = x->may_be_starting = x->has_connected = true;
    if (outcome == CRI_ABSENT && x->may_be_starting) outcome = CRI_AGAIN;
    return outcome;
}

/* ---- calls ---- */

static void refuse(const char *verb, const char *text, cr_err *err)
{
    if (strncmp(text, "MISCONF ", 8) == 0)
        cr_fail(err, CR_EIO,
                "Redis takes no more (%s): make room on the disk of its append-only file, then "
                "resume_from_checkpoint=true goes on",
                text + 8);
    else if (strstr(text, "instance state changed") || strncmp(text, "READONLY ", 9) == 0)
        cr_fail(err, CR_EIO,
                "the Redis server is a replica of another one now (%s): after a failover "
                "exchange.url has to name the new master; resume_from_checkpoint=true goes on",
                text);
    else if (strncmp(text, "NOGROUP ", 8) == 0 || strncmp(text, "UNBLOCKED ", 10) == 0)
        cr_fail(err, CR_EIO,
                "the run's keys are no longer in Redis (%s): FLUSHALL, FLUSHDB, DEL or an eviction "
                "has removed them; resume_from_checkpoint=true goes on",
                text);
    else
        cr_fail(err, CR_EIO, "Redis refused %s: %s", verb, text);
}

/* The replies of all that was sent; those of x->later are only looked at for errors. */
static cri_outcome receive(cr_exchange *x, const cri_request *q, double until_s,
                           const char *accepted, redisReply **replies, char why[CRI_WHY],
                           cr_err *err)
{
    for (int i = -x->later.num; i < q->num; i++) {
        redisReply *r;
        cri_outcome outcome = cri_link_receive(x->link, until_s, &r, why);
        if (outcome != CRI_DONE) return outcome;
        if (r->type == REDIS_REPLY_ERROR && will_pass(r)) {
            snprintf(why, CRI_WHY, "%s", r->str);
            x->busy_s = cr_now_s();
            freeReplyObject(r);
            return CRI_AGAIN;
        }
        if (r->type == REDIS_REPLY_ERROR && i < 0)
            refuse(x->later.verb, r->str, err);
        else if (r->type == REDIS_REPLY_ERROR &&
                 !(accepted && strncmp(r->str, accepted, strlen(accepted)) == 0))
            refuse(q->verb, r->str, err);
        if (i >= 0 && replies && err->status == CR_OK)
            replies[i] = r;
        else
            freeReplyObject(r);
    }
    return CRI_DONE;
}

static void forget(redisReply **replies, int num)
{
    for (int i = 0; replies && i < num; i++) {
        freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

static cri_outcome attempt(cr_exchange *x, const cri_request *q, double until_s,
                           const char *accepted, redisReply **replies, char why[CRI_WHY],
                           cr_err *err)
{
    cri_outcome outcome = x->link ? CRI_DONE : connect_once(x, until_s, why);

    if (outcome != CRI_DONE) return outcome;
    if (x->later.num)
        outcome =
            cri_link_send(x->link, x->later.bytes.data, x->later.bytes.num_bytes, until_s, why);
    if (outcome == CRI_DONE && q->num)
        outcome = cri_link_send(x->link, q->bytes.data, q->bytes.num_bytes, until_s, why);
    if (outcome == CRI_DONE) outcome = receive(x, q, until_s, accepted, replies, why, err);
    if (outcome == CRI_DONE) return CRI_DONE;
    drop(x);
    forget(replies, q->num);
    return outcome == CRI_NEVER ? CRI_NEVER : CRI_AGAIN;
}

static cr_status call(cr_exchange *x, const cri_request *q, double block_s, const char *accepted,
                      redisReply **replies, cr_err *err)
{
    double until_s = cr_now_s() + x->deadline_s + block_s, pause_s = 0.001;
    char why[CRI_WHY] = "no answer";

    for (;;) {
        cri_outcome outcome = attempt(x, q, until_s, accepted, replies, why, err);
        if (outcome == CRI_DONE) return err->status;
        if (outcome == CRI_NEVER || outcome == CRI_ABSENT)
            return cr_fail(err, x->has_connected ? CR_EIO : CR_ECONFIG,
                           "Redis at %s: %s (see exchange.url)", x->address.shown, why);
        if (x->revive) CR_TRY(x->revive(x->revive_ctx, err));
        if (cr_now_s() + pause_s >= until_s) break;
        cr_sleep_s(pause_s);
        pause_s = pause_s < 0.1 ? 2 * pause_s : 0.1;
    }
    return cr_fail(err, CR_ETIMEOUT,
                   "Redis at %s gave no answer to %s within %.3g s: %s (is it running? see "
                   "exchange.url, exchange.timeout)",
                   x->address.shown, q->num ? q->verb : x->later.verb, x->deadline_s, why);
}

cr_status cri_call(cr_exchange *x, cri_request *q, double block_s, const char *accepted,
                   redisReply **replies, cr_err *err)
{
    for (int i = 0; replies && i < q->num; i++)
        replies[i] = NULL;
    if (err->status == CR_OK) cr_note(call(x, q, block_s, accepted, replies, err));
    if (err->status != CR_OK) forget(replies, q->num);
    cr_buf_free(&q->bytes);
    cr_buf_free(&x->later.bytes); /* done, or given up with this call */
    x->later = (cri_request){0};
    return err->status;
}
