/* heartbeat.c -- see heartbeat.h. */
#include "actors/heartbeat.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

struct cr_heartbeat {
    cr_exchange *x;
    char key[96], what[120];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool should_stop;
};

static void *beat(void *context)
{
    cr_heartbeat *hb = context;
    long count = 0;

    pthread_mutex_lock(&hb->lock);
    while (!hb->should_stop) {
        struct timespec until;
        char text[160];
        cr_err err = {0};
        snprintf(text, sizeof text, "%ld %s", ++count, hb->what);
        pthread_mutex_unlock(&hb->lock);
        if (cr_value_set(hb->x, hb->key, text, &err) != CR_OK)
            cr_log(CR_LOG_WARN, "heartbeat", "%s", err.msg);
        pthread_mutex_lock(&hb->lock);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        while (!hb->should_stop &&
               pthread_cond_timedwait(&hb->wake, &hb->lock, &until) != ETIMEDOUT)
            continue;
    }
    pthread_mutex_unlock(&hb->lock);
    return NULL;
}

cr_status cr_heartbeat_start(const char *url, const char *prefix, const char *name,
                             double deadline_s, cr_heartbeat **out, cr_err *err)
{
    cr_heartbeat *hb = CR_NEW(cr_heartbeat);

    *out = NULL;
    snprintf(hb->key, sizeof hb->key, "hb:%s", name);
    snprintf(hb->what, sizeof hb->what, "starting");
    pthread_mutex_init(&hb->lock, NULL);
    pthread_cond_init(&hb->wake, NULL);
    if (cr_exchange_open(url, prefix, deadline_s, &hb->x, err) != CR_OK) {
        cr_free(hb);
        return err->status;
    }
    if (pthread_create(&hb->thread, NULL, beat, hb) != 0) {
        cr_exchange_close(hb->x);
        cr_free(hb);
        return cr_fail(err, CR_EIO, "cannot start the heartbeat thread of %s", name);
    }
    *out = hb;
    return CR_OK;
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
    cr_exchange_close(hb->x);
    pthread_mutex_destroy(&hb->lock);
    pthread_cond_destroy(&hb->wake);
    cr_free(hb);
}
