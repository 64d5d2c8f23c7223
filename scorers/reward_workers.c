/* reward_workers.c -- see reward_workers.h. */
#include "scorers/reward_workers.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum {
    LOOKS = 16, /* workers whose count is read in one second */
    /* ends in a row before a worker did anything: by itself, and by SIGKILL, which comes from outside */
    MAX_EARLY = 5,
    MAX_KILLED = 21,
    TIMES = 64 /* bytes of a text */
};
#define FIRST_PAUSE_S 0.5 /* before it is started again; doubled with each end by itself */

static cr_status start(cr_reward_workers *w, cr_reward_worker *r, cr_err *err)
{
    const char *const words[] = {w->words[0], "reward",    w->words[1], "--domain", r->domain,
                                 "--prefix",  w->words[2], "--worker",  r->name};
    char *argv[CR_COUNT(words) + 1] = {NULL};
    char what[64];

    for (size_t i = 0; i < CR_COUNT(words); i++)
        argv[i] = cr_word(words[i]);
    snprintf(what, sizeof what, "reward worker %d of %.30s", r->number, r->domain);
    r->start_s = 0;
    r->moved_s = cr_now_s();
    return cr_child_start(&r->child, what, argv, NULL, NULL, err);
}

cr_status cr_reward_workers_start(cr_reward_workers *w, const cr_config *config,
                                  const char *config_path, const char *self, const char *prefix,
                                  cr_err *err)
{
    size_t num = 0;

    *w = (cr_reward_workers){.words = {self, config_path, prefix},
                             .limit_s = config->collective_timeout + 5};
    for (size_t i = 0; i < config->num_rewards; i++)
        num += (size_t)config->rewards[i].world_size;
    w->items = CR_NEW_ARRAY(cr_reward_worker, num);
    for (size_t i = 0; i < config->num_rewards; i++)
        for (int64_t k = 0; k < config->rewards[i].world_size; k++) {
            cr_reward_worker *r = &w->items[w->num++];
            r->number = (int)k;
            r->domain = config->rewards[i].domain;
            snprintf(r->name, sizeof r->name, "reward-%.99s-%lld", r->domain, (long long)k);
            CR_TRY(start(w, r, err));
        }
    return CR_OK;
}

/* What hb:WORKER says of a process: what did it do last ("": nothing is known), and why did it fail (borrowed from value, or "")? */
static const char *state_of(const cr_buf *value, long pid, char state[16], const char **why)
{
    long process = 0, count = 0;
    int used = 0;

    *why = "";
    if (!value->num_bytes ||
        sscanf(value->data, "%ld %ld %15s%n", &process, &count, state, &used) != 3 ||
        process != pid)
        return "";
    if (strcmp(state, "failed") == 0 && value->data[used] == ' ') *why = value->data + used + 1;
    return state;
}

/* It has ended once more. Is this one too many in a row? times: what to say of them. */
static cr_status count_end(cr_reward_worker *r, bool has_worked, int max, const char *fate,
                           const char *why, char times[TIMES], cr_err *err)
{
    r->num_early = has_worked ? 0 : r->num_early + 1;
    times[0] = 0;
    if (r->num_early > 1)
        snprintf(times, TIMES, ", %d times in a row before its first answer", r->num_early);
    if (r->num_early < max) return CR_OK;
    return cr_fail(err, CR_EPEER, "%s %s%s%s%s", r->child.what, fate, times, *why ? ": " : "", why);
}

/* Has its count moved within the limit? One that only waited for samples has done nothing that it did not freeze after. */
static cr_status look_at(cr_reward_workers *w, cr_reward_worker *r, const cr_buf *value,
                         cr_err *err)
{
    double now = cr_now_s();
    char state[16] = "", fate[CR_FATE], times[TIMES];
    const char *why;
    bool has_answered;

    if (value->num_bytes && strncmp(value->data, r->count, sizeof r->count - 1) != 0) {
        snprintf(r->count, sizeof r->count, "%s", value->data);
        r->moved_s = now;
    }
    if (r->start_s > 0 || now - r->moved_s <= w->limit_s) return CR_OK;
    has_answered = strcmp(state_of(value, (long)r->child.pid, state, &why), "answered") == 0;
    snprintf(fate, sizeof fate, "has given no sign of life for %.0f s", now - r->moved_s);
    CR_TRY(count_end(r, has_answered, MAX_EARLY, fate, why, times, err));
    cr_log(CR_LOG_WARN, "run", "%s %s%s; it is killed and started again", r->child.what, fate,
           times);
    cr_child_stop(&r->child, 0);
    return start(w, r, err);
}

/* The counts of a few, read together. */
static cr_status look(cr_reward_workers *w, cr_exchange *x, cr_err *err)
{
    cr_buf values[LOOKS] = {{0}};
    char *keys[LOOKS] = {NULL};
    size_t num = w->num < LOOKS ? w->num : LOOKS;

    for (size_t i = 0; i < num; i++)
        keys[i] = cr_asprintf("hb:%s", w->items[(w->next + i) % w->num].name);
    cr_note(cr_values_get(x, (const char *const *)keys, num, values, err));
    for (size_t i = 0; i < num; i++) {
        if (err->status == CR_OK)
            cr_note(look_at(w, &w->items[(w->next + i) % w->num], &values[i], err));
        cr_buf_free(&values[i]);
        cr_free(keys[i]);
    }
    w->next = (w->next + num) % w->num;
    return err->status;
}

/* It is gone: when is it started again? */
static cr_status take_end(cr_reward_worker *r, cr_exchange *x, cr_err *err)
{
    char *key = cr_asprintf("hb:%s", r->name), state[16] = "", fate[CR_FATE], times[TIMES],
         pause[24] = "";
    const char *const keys[] = {key}, *why = "";
    cr_buf value = {0};
    int status = r->child.wait_status;
    bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    double pause_s = 0;

    cr_child_fate(&r->child, fate);
    if (cr_values_get(x, keys, 1, &value, err) == CR_OK) {
        const char *did = state_of(&value, (long)r->child.pid, state, &why);
        bool has_worked = strcmp(did, "idle") == 0 || strcmp(did, "answered") == 0,
             is_refused = WIFEXITED(status) && WEXITSTATUS(status) == 2;
        cr_note(count_end(r, has_worked,
                          is_refused  ? 0
                          : is_killed ? MAX_KILLED
                                      : MAX_EARLY,
                          fate, why, times, err));
    }
    if (err->status == CR_OK) {
        for (int i = 0; i < r->num_early; i++)
            pause_s = i && !is_killed ? 2 * pause_s : FIRST_PAUSE_S;
        if (pause_s > 0) snprintf(pause, sizeof pause, " in %g s", pause_s);
        cr_log(CR_LOG_WARN, "run", "%s %s%s; it is started again%s", r->child.what, fate, times,
               pause);
        r->start_s = cr_now_s() + pause_s;
    }
    cr_buf_free(&value);
    cr_free(key);
    return err->status;
}

cr_status cr_reward_workers_watch(cr_reward_workers *w, cr_exchange *x, cr_err *err)
{
    double now = cr_now_s();

    for (size_t i = 0; i < w->num; i++) {
        cr_reward_worker *r = &w->items[i];
        if (r->start_s == 0 && !cr_child_pump(&r->child)) CR_TRY(take_end(r, x, err));
        if (r->start_s > 0 && cr_now_s() >= r->start_s) CR_TRY(start(w, r, err));
    }
    if (now - w->looked_s < 1) return CR_OK;
    w->looked_s = now;
    return w->num ? look(w, x, err) : CR_OK;
}

void cr_reward_workers_stop(cr_reward_workers *w)
{
    double until = cr_now_s() + 1;

    for (size_t i = 0; i < w->num; i++)
        if (w->items[i].child.pid) kill(w->items[i].child.pid, SIGTERM);
    for (size_t i = 0; i < w->num; i++)
        cr_child_stop(&w->items[i].child, until - cr_now_s());
    cr_free(w->items);
    *w = (cr_reward_workers){.num = 0};
}
