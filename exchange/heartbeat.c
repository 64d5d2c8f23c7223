/* heartbeat.c -- see heartbeat.h. */
#include "exchange/heartbeat.h"
#include "base/children.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    LEASE_SECONDS = 30, /* a launcher that is killed holds its prefix no longer */
    BEAT_SECONDS = 5    /* one attempt, once it has started */
};

struct cr_heartbeat {
    cr_exchange *x;
    char key[96], what[120];
    char *run_id, *who; /* run_id: it holds a prefix */
    cr_err lost;        /* why it is not held any more */
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

static cr_status beat_once(cr_heartbeat *hb, const char *text, cr_err *err)
{
    return hb->run_id ? cr_prefix_hold(hb->x, hb->run_id, hb->who, LEASE_SECONDS, err)
                      : cr_value_set(hb->x, hb->key, text, err);
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
    char text[96];

    snprintf(text, sizeof text, "0 %s starting", cr_host_name());
    *out = NULL;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&hb->lock, NULL);
    pthread_cond_init(&hb->wake, &clock);
    pthread_condattr_destroy(&clock);
    if (cr_exchange_open_revived(args, go_on, hb, &hb->x, err) == CR_OK &&
        beat_once(hb, text, err) == CR_OK) {
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

cr_status cr_heartbeat_start(const cr_exchange_args *args, const char *name, cr_heartbeat **out,
                             cr_err *err)
{
    cr_heartbeat *hb = CR_NEW(cr_heartbeat);

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
