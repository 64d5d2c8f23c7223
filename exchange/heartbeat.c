/* heartbeat.c -- see heartbeat.h. */
#include "exchange/heartbeat.h"
#include "base/children.h"
#include "exchange/call.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LEASE_SECONDS = 30, /* a launcher that is killed holds its prefix no longer */
    BEAT_SECONDS = 5,   /* one attempt, once it has started */
    NUM_CLOCKS = 16     /* round trips of which the best one counts */
};
static const double CLOCKS_AT_START_S = 0.3; /* at most, for the first NUM_CLOCKS */

struct cr_heartbeat {
    cr_exchange *x;
    char key[96], what[120];
    char *run_id, *who;  /* run_id: it holds a prefix */
    cr_err lost;         /* why it is not held any more */
    cr_lease lease;      /* end NULL: none */
    char last_beat[240]; /* of the launcher; "": none yet */
    double beat_s;       /* when that was new here */
    cr_clock clock[NUM_CLOCKS];
    size_t num_clocks; /* since the start */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool should_stop;
};

/* Between attempts to reach a server that is away: the end is not waited for. */
static cr_status go_on(void *context, cr_err *err)
{
    cr_heartbeat *hb = context;
    bool should_stop;

    pthread_mutex_lock(&hb->lock);
    should_stop = hb->should_stop;
    pthread_mutex_unlock(&hb->lock);
    return should_stop ? cr_fail(err, CR_ESIGNAL, "the heartbeat ends") : CR_OK;
}

/* ---- the launcher's heartbeat, and the server's clock ---- */

static void take_beat(cr_heartbeat *hb, const redisReply *r)
{
    if (r->type != REDIS_REPLY_STRING ||
        strncmp(r->str, hb->last_beat, sizeof hb->last_beat - 1) == 0)
        return;
    snprintf(hb->last_beat, sizeof hb->last_beat, "%s", r->str);
    hb->beat_s = cr_now_s();
}

static void look_at_clock(cr_heartbeat *hb, const redisReply *r, double sent_s, double came_s)
{
    double at_s = (sent_s + came_s) / 2;

    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        r->element[0]->type != REDIS_REPLY_STRING || r->element[1]->type != REDIS_REPLY_STRING)
        return;
    pthread_mutex_lock(&hb->lock);
    hb->clock[hb->num_clocks++ % NUM_CLOCKS] =
        (cr_clock){at_s, atof(r->element[0]->str) + atof(r->element[1]->str) * 1e-6 - at_s,
                   (came_s - sent_s) / 2};
    pthread_mutex_unlock(&hb->lock);
}

cr_clock cr_heartbeat_clock(cr_heartbeat *hb)
{
    cr_clock best = {0};

    pthread_mutex_lock(&hb->lock);
    for (size_t i = 0; i < NUM_CLOCKS && i < hb->num_clocks; i++)
        if (i == 0 || hb->clock[i].error_s < best.error_s) best = hb->clock[i];
    pthread_mutex_unlock(&hb->lock);
    return best;
}

/* Once the launcher has sent a heartbeat: does it still? */
static void check_lease(cr_heartbeat *hb, const cr_err *err)
{
    double limit_s = err->status == CR_OK ? CR_LEASE_SECONDS : hb->lease.unreachable_s, silent_s;
    char why[400], host[64] = "";

    if (!hb->lease.end || !hb->last_beat[0] || err->status == CR_ESIGNAL) return;
    if (hb->x->busy_s > hb->beat_s) hb->beat_s = hb->x->busy_s;
    silent_s = cr_now_s() - hb->beat_s;
    if (silent_s <= limit_s) return;
    sscanf(hb->last_beat, "%*s %63s", host);
    snprintf(why, sizeof why,
             "no word from the launcher on %s for %.0f s%s%.200s: this host is cut off, or the "
             "launcher is stopped; the ranks here end",
             host, silent_s, err->status == CR_OK ? "" : ": ", err->msg);
    hb->lease.end(hb->lease.context, why);
}

/* All in one trip. */
static cr_status beat_once(cr_heartbeat *hb, const char *text, cr_err *err)
{
    redisReply *r[3];
    double sent_s = cr_now_s();
    cri_request q = {0};
    char *key, *launcher;

    if (hb->run_id) return cr_prefix_hold(hb->x, hb->run_id, hb->who, LEASE_SECONDS, err);
    key = cri_key(hb->x, "", hb->key);
    launcher = cri_key(hb->x, "", "hb:" CR_LAUNCHER);
    cri_add(&q, "SET", key, text, NULL);
    cri_add(&q, "GET", launcher, NULL);
    cri_add(&q, "TIME", NULL);
    if (cri_call(hb->x, &q, 0, NULL, r, err) == CR_OK) {
        take_beat(hb, r[1]);
        look_at_clock(hb, r[2], sent_s, cr_now_s());
        for (size_t i = 0; i < CR_COUNT(r); i++)
            freeReplyObject(r[i]);
    }
    cr_free(key);
    cr_free(launcher);
    return err->status;
}

/* The first beats, close together: one round trip may have met a busy moment. */
static cr_status begin(cr_heartbeat *hb, cr_err *err)
{
    double until_s = cr_now_s() + CLOCKS_AT_START_S;
    char text[96];

    snprintf(text, sizeof text, "0 %s starting", cr_host_name());
    do
        CR_TRY(beat_once(hb, text, err));
    while (!hb->run_id && hb->num_clocks < NUM_CLOCKS && cr_now_s() < until_s);
    return CR_OK;
}

static void *beat(void *context)
{
    cr_heartbeat *hb = context;
    long count = 0;
    bool was_there = true;

    pthread_mutex_lock(&hb->lock);
    while (!hb->should_stop) {
        struct timespec until;
        char text[240];
        cr_err err = {0};
        snprintf(text, sizeof text, "%ld %s %s", ++count, cr_host_name(), hb->what);
        pthread_mutex_unlock(&hb->lock);
        if (beat_once(hb, text, &err) != CR_OK && err.status != CR_ESIGNAL && was_there)
            cr_log(CR_LOG_WARN, "heartbeat", "%s", err.msg);
        was_there = err.status == CR_OK;
        check_lease(hb, &err);
        pthread_mutex_lock(&hb->lock);
        if (hb->run_id && err.status == CR_ECONFIG) hb->lost = err;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        while (!hb->should_stop &&
               pthread_cond_timedwait(&hb->wake, &hb->lock, &until) != ETIMEDOUT)
            continue;
    }
    pthread_mutex_unlock(&hb->lock);
    return NULL;
}

static void destroy(cr_heartbeat *hb)
{
    cr_exchange_close(hb->x);
    cr_free(hb->run_id);
    cr_free(hb->who);
    pthread_cond_destroy(&hb->wake);
    pthread_mutex_destroy(&hb->lock);
    cr_free(hb);
}

/* Takes hb; *out is NULL after a failure. */
static cr_status start(cr_heartbeat *hb, const cr_exchange_args *args, cr_heartbeat **out,
                       cr_err *err)
{
    pthread_condattr_t clock;

    *out = NULL;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&hb->lock, NULL);
    pthread_cond_init(&hb->wake, &clock);
    pthread_condattr_destroy(&clock);
    if (cr_exchange_open_revived(args, go_on, hb, &hb->x, err) == CR_OK &&
        begin(hb, err) == CR_OK) {
        cr_exchange_set_deadline(hb->x, BEAT_SECONDS);
        if ((errno = pthread_create(&hb->thread, NULL, beat, hb)) != 0)
            cr_fail(err, CR_EIO, "cannot start a heartbeat thread: %s", strerror(errno));
    }
    if (err->status == CR_OK)
        *out = hb;
    else
        destroy(hb);
    return err->status;
}

cr_status cr_heartbeat_start(const cr_exchange_args *args, const char *name, const cr_lease *lease,
                             cr_heartbeat **out, cr_err *err)
{
    cr_heartbeat *hb = CR_NEW(cr_heartbeat);

    if (lease) hb->lease = *lease;

    snprintf(hb->key, sizeof hb->key, "hb:%s", name);
    snprintf(hb->what, sizeof hb->what, "starting");
    return start(hb, args, out, err);
}

cr_status cr_heartbeat_hold(const cr_exchange_args *args, const char *run_id, const char *who,
                            cr_heartbeat **out, cr_err *err)
{
    cr_heartbeat *hb = CR_NEW(cr_heartbeat);

    hb->run_id = cr_strdup(run_id);
    hb->who = cr_strdup(who);
    return start(hb, args, out, err);
}

cr_status cr_heartbeat_check(cr_heartbeat *hb, cr_err *err)
{
    if (!hb) return CR_OK;
    pthread_mutex_lock(&hb->lock);
    if (hb->lost.status != CR_OK) cr_fail(err, CR_EPEER, "%s", hb->lost.msg);
    pthread_mutex_unlock(&hb->lock);
    return err->status;
}

void cr_heartbeat_say(cr_heartbeat *hb, const char *fmt, ...)
{
    va_list ap;

    if (!hb) return;
    pthread_mutex_lock(&hb->lock);
    va_start(ap, fmt);
    vsnprintf(hb->what, sizeof hb->what, fmt, ap);
    va_end(ap);
    pthread_mutex_unlock(&hb->lock);
}

void cr_heartbeat_stop(cr_heartbeat *hb)
{
    if (!hb) return;
    pthread_mutex_lock(&hb->lock);
    hb->should_stop = true;
    pthread_cond_signal(&hb->wake);
    pthread_mutex_unlock(&hb->lock);
    pthread_join(hb->thread, NULL);
    destroy(hb);
}
