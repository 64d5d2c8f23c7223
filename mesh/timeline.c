/* timeline.c -- see timeline.h. All calls of all ranks are sorted by (group, sequence); calls with
 * the same place must be the same collective. Then the last call of each rank in each group is compared.
 */
#include "mesh/timeline.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One call of one rank. */
typedef struct call {
    const cr_flight_log *log;
    const cr_flight_event *e;
} call;

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *a, const void *b)
{
    const call *x = a, *y = b;
    int c = compare(x->e->group_tag, y->e->group_tag);

    if (c == 0) c = compare(x->e->sequence, y->e->sequence);
    return c ? c : compare((uint64_t)x->log->rank, (uint64_t)y->log->rank);
}

static int by_rank(const void *a, const void *b)
{
    const cr_flight_log *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Kinds whose bytes are those of every rank. While a call of several rounds goes on they are the round's. */
static bool has_equal_bytes(const cr_flight_event *a, const cr_flight_event *b)
{
    if (a->coll == CR_COLL_ALL_GATHER || a->coll == CR_COLL_REDUCE_SCATTER) return true;
    return (a->coll == CR_COLL_ALL_REDUCE || a->coll == CR_COLL_BROADCAST) && a->end_s > 0 &&
           b->end_s > 0;
}

static bool is_same_call(const cr_flight_event *a, const cr_flight_event *b)
{
    return a->coll == b->coll && strcmp(a->name, b->name) == 0 &&
           (!has_equal_bytes(a, b) || a->num_bytes == b->num_bytes);
}

/* ---- sentences ---- */

static void say_rank(cr_buf *out, const cr_flight_log *log)
{
    cr_buf_addf(out, "rank %d", log->rank);
    if (log->role[0]) cr_buf_addf(out, " (%s)", log->role);
    if (log->host[0]) cr_buf_addf(out, " on %s", log->host);
}

static void say_call(cr_buf *out, const cr_flight_event *e)
{
    cr_buf_addf(out, "%s %s", cr_coll_name((cr_coll)e->coll), e->name);
    if (e->num_bytes) cr_buf_addf(out, " of %llu bytes", (unsigned long long)e->num_bytes);
}

/* Ranks with the call of `as`, then that call. */
static void say_alike(cr_buf *out, const call *calls, size_t num, const call *as)
{
    size_t said = 0, all = 0;

    for (size_t i = 0; i < num; i++)
        all += is_same_call(calls[i].e, as->e);
    for (size_t i = 0; i < num && said < 8; i++) {
        if (!is_same_call(calls[i].e, as->e)) continue;
        if (said++) cr_buf_adds(out, ", ");
        say_rank(out, calls[i].log);
    }
    if (all > said) cr_buf_addf(out, " and %zu more", all - said);
    cr_buf_adds(out, " called ");
    say_call(out, as->e);
}

/* ---- findings ---- */

/* calls[num]: one place. True: a difference was said. */
static bool find_difference(cr_buf *out, const call *calls, size_t num)
{
    size_t other = 1;

    while (other < num && is_same_call(calls[0].e, calls[other].e))
        other++;
    if (other >= num) return false;
    cr_buf_addf(out, "Ranks did different things in call %u of group %s: ", calls[0].e->sequence,
                calls[0].e->group);
    say_alike(out, calls, num, &calls[0]);
    cr_buf_adds(out, "; ");
    say_alike(out, calls, num, &calls[other]);
    cr_buf_adds(out, ". Every rank of a group must make the same calls in the same order.\n");
    return true;
}

static const cr_flight_event *last_of_group(const cr_flight_log *log, uint32_t tag)
{
    const cr_flight_event *last = NULL;

    for (size_t i = 0; i < log->num_events; i++) {
        const cr_flight_event *e = &log->event[i];
        if (e->group_tag == tag && e->sequence && (!last || e->sequence > last->sequence)) last = e;
    }
    return last;
}

/* Ranks of one group whose last call is not the group's last one. */
static void find_stopped(cr_buf *out, const cr_timeline *t, const cr_flight_event *of)
{
    const cr_flight_event *max = NULL;
    const cr_flight_log *first = NULL;
    size_t num = 0;

    for (size_t i = 0; i < t->num_logs; i++) {
        const cr_flight_event *e = last_of_group(&t->log[i], of->group_tag);
        if (!e) continue;
        num++;
        if (!max || e->sequence > max->sequence) max = e, first = &t->log[i];
    }
    for (size_t i = 0; i < t->num_logs && max; i++) {
        const cr_flight_event *e = last_of_group(&t->log[i], of->group_tag);
        if (!e || e->sequence == max->sequence) continue;
        say_rank(out, &t->log[i]);
        cr_buf_addf(out, " stopped at call %u of group %s, ", e->sequence, of->group);
        say_call(out, e);
        cr_buf_adds(out, e->end_s > 0 ? "; " : " (which it did not end); ");
        say_rank(out, first);
        cr_buf_addf(out, " went on to call %u, ", max->sequence);
        say_call(out, max);
        if (max->end_s == 0) cr_buf_adds(out, ", and waited there");
        cr_buf_adds(out, ".\n");
    }
    if (num < of->num_ranks)
        cr_buf_addf(out, "Group %s has %u ranks, but only %zu of them have left a record of it.\n",
                    of->group, of->num_ranks, num);
}

/* A rank that the others waited for in vain may wake up when they are gone, and go on for some calls:
 * those would make the others look like the ones that stopped. So what it did LATE_S after their last
 * event is left out, and said. */
static void cut_late(cr_timeline *t, size_t at)
{
    enum { LATE_S = 10 };
    cr_flight_log *log = &t->log[at];
    double last_s = 0;
    bool is_awaited = false;
    size_t keep = 0;

    for (size_t i = 0; i < t->num_logs; i++) {
        const cr_flight_event *e = cr_timeline_last(&t->log[i]);
        if (i == at || t->log[i].clock != log->clock || !e) continue;
        if (e->begin_s > last_s) last_s = e->begin_s;
        if (e->end_s > last_s) last_s = e->end_s;
        is_awaited = is_awaited || (e->end_s == 0 && last_of_group(log, e->group_tag));
    }
    while (keep < log->num_events && log->event[keep].begin_s < last_s + LATE_S)
        keep++;
    if (!is_awaited || keep == 0 || keep == log->num_events) return;
    say_rank(&t->findings, log);
    cr_buf_addf(&t->findings, " did nothing for %.1f s after ",
                log->event[keep].begin_s - log->event[keep - 1].begin_s);
    say_call(&t->findings, &log->event[keep - 1]);
    cr_buf_adds(&t->findings, ", while others waited for it: it was stopped, or it hung.\n");
    log->num_events = keep;
}

/* Calls of one group, by place. */
static void compare_group(cr_timeline *t, const call *calls, size_t num, cr_buf *stopped)
{
    for (size_t i = 0, end; i < num; i = end) {
        for (end = i + 1; end < num && calls[end].e->sequence == calls[i].e->sequence;)
            end++;
        if (find_difference(&t->findings, calls + i, end - i))
            return; /* later ones follow from it */
    }
    if (calls[0].e->num_ranks > 1) find_stopped(stopped, t, calls[0].e);
}

static void compare_calls(cr_timeline *t)
{
    size_t num = 0, all = 0;
    cr_buf stopped = {0};
    call *calls;

    for (size_t i = 0; i < t->num_logs; i++) {
        cut_late(t, i);
        all += t->log[i].num_events;
    }
    calls = CR_NEW_ARRAY(call, all);
    for (size_t i = 0; i < t->num_logs; i++)
        for (size_t k = 0; k < t->log[i].num_events; k++) {
            const cr_flight_event *e = &t->log[i].event[k];
            if (e->sequence && e->group_tag) calls[num++] = (call){&t->log[i], e};
        }
    qsort(calls, num, sizeof *calls, by_place);
    for (size_t i = 0, end; i < num; i = end) {
        for (end = i + 1; end < num && calls[end].e->group_tag == calls[i].e->group_tag;)
            end++;
        compare_group(t, calls + i, end - i, &stopped);
    }
    if (stopped.num_bytes) cr_buf_add(&t->findings, stopped.data, stopped.num_bytes);
    cr_buf_free(&stopped);
    cr_free(calls);
}

/* ---- one clock ---- */

static double error_of(const cr_flight_log *log)
{
    return log->asked[0].at_s > 0 ? fmax(log->asked[0].error_s, log->asked[1].error_s) : INFINITY;
}

/* The log of the same host that knows best how far its clock is ahead. */
static const cr_flight_log *best_of_host(const cr_timeline *t, size_t at)
{
    const cr_flight_log *best = NULL;

    for (size_t i = 0; i < t->num_logs; i++)
        if (t->log[i].clock == t->log[at].clock && (!best || error_of(&t->log[i]) < error_of(best)))
            best = &t->log[i];
    return best;
}

/* Seconds a second that a clock loses to the one it asked; 0: too short a time to measure, or that one was set. */
static double drift_of(const cr_flight_log *log)
{
    static const double MIN_S = 10, MAX_NUM = 1e-3; /* clocks of machines drift by 1e-4 at worst */
    const cr_flight_clock *c = log->asked;
    double between_s = c[1].at_s - c[0].at_s,
           drift = between_s >= MIN_S ? (c[1].ahead_s - c[0].ahead_s) / between_s : 0;

    return fabs(drift) < MAX_NUM ? drift : 0;
}

static void add_drift(cr_flight_log *log, double drift, double from_s)
{
    for (size_t k = 0; k < log->num_events; k++) {
        cr_flight_event *e = &log->event[k];
        e->begin_s += (e->begin_s - from_s) * drift;
        if (e->end_s > 0) e->end_s += (e->end_s - from_s) * drift;
    }
    log->phase_begin_s += (log->phase_begin_s - from_s) * drift;
}

static void align(cr_timeline *t)
{
    t->shift_s = CR_NEW_ARRAY(double, t->num_logs);
    for (size_t i = 0; i < t->num_logs; i++) {
        t->has_hosts = t->has_hosts || t->log[i].clock != t->log[0].clock;
        t->error_s = fmax(t->error_s, 2 * error_of(best_of_host(t, i)));
    }
    if (!t->has_hosts || !isfinite(t->error_s)) t->error_s = 0;
    for (size_t i = 0; i < t->num_logs; i++) {
        const cr_flight_log *best = best_of_host(t, i);
        t->shift_s[i] = t->error_s > 0 ? best->asked[0].ahead_s : best->wall_offset_s;
        if (t->error_s > 0) add_drift(&t->log[i], drift_of(best), best->asked[0].at_s);
        if (!t->has_hosts) t->log[i].host[0] = 0;
    }
    for (size_t i = 0; i < t->num_logs; i++)
        for (size_t k = 0; k < t->log[i].num_events; k++) {
            const cr_flight_event *e = &t->log[i].event[k];
            double begin = e->begin_s + t->shift_s[i],
                   end = (e->end_s > 0 ? e->end_s : e->begin_s) + t->shift_s[i];
            if (t->begin_s == 0 || begin < t->begin_s) t->begin_s = begin;
            if (end > t->end_s) t->end_s = end;
        }
}

/* ---- the whole ---- */

const cr_flight_event *cr_timeline_last(const cr_flight_log *log)
{
    const cr_flight_event *last = NULL;

    for (size_t i = 0; i < log->num_events; i++)
        if (log->event[i].coll != CR_COLL_PHASE) last = &log->event[i];
    return last;
}

void cr_timeline_merge(cr_flight_log *log, size_t num, cr_timeline *out)
{
    *out = (cr_timeline){.log = log, .num_logs = num};
    qsort(log, num, sizeof *log, by_rank);
    align(out);
    compare_calls(out);
}

cr_status cr_timeline_read(const char *folder, cr_timeline *out, cr_err *err)
{
    cr_flight_log *log = NULL;
    cr_buf unread = {0};
    struct dirent *entry;
    size_t num = 0;
    DIR *dir = opendir(folder);

    *out = (cr_timeline){0};
    while (dir && (entry = readdir(dir))) {
        size_t n = strlen(entry->d_name);
        char *path;
        cr_err bad = {0};
        if (strncmp(entry->d_name, "rank-", 5) != 0 || n < 10 ||
            strcmp(entry->d_name + n - 4, ".bin") != 0)
            continue;
        path = cr_path_join(folder, entry->d_name);
        log = cr_realloc(log, num * sizeof *log, (num + 1) * sizeof *log);
        if (cr_flight_read(path, &log[num], &bad) == CR_OK)
            num++;
        else
            cr_buf_addf(&unread, "A record is left out: %s.\n", bad.msg);
        cr_free(path);
    }
    if (dir) closedir(dir);
    if (num == 0) {
        cr_fail(err, CR_EIO, "%s has no record of a rank that can be read%s%s", folder,
                unread.num_bytes ? ": " : "", unread.num_bytes ? unread.data : "");
        cr_free(log);
    } else {
        cr_timeline_merge(log, num, out);
        if (unread.num_bytes) cr_buf_add(&out->findings, unread.data, unread.num_bytes);
    }
    cr_buf_free(&unread);
    return err->status;
}

void cr_timeline_free(cr_timeline *t)
{
    for (size_t i = 0; i < t->num_logs; i++)
        cr_flight_log_free(&t->log[i]);
    cr_free(t->log);
    cr_free(t->shift_s);
    cr_buf_free(&t->findings);
    *t = (cr_timeline){0};
}
