/* reward_workers.c -- see reward_workers.h. */
#include "rewards/reward_workers.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum {
    LOOKS = 16, /* workers whose count is read in one second */
    MAX_STARTS = 1000
};

static cr_status start(cr_reward_workers *w, cr_reward_worker *r, cr_err *err)
{
    const char *const words[] = {w->words[0], "reward",    w->words[1], "--domain", r->domain,
                                 "--prefix",  w->words[2], "--worker",  r->name};
    char *argv[CR_COUNT(words) + 1] = {NULL};
    char what[64];

    for (size_t i = 0; i < CR_COUNT(words); i++)
        argv[i] = cr_word(words[i]);
    snprintf(what, sizeof what, "reward worker %d of %.30s", r->number, r->domain);
    r->num_starts++;
    r->moved_s = cr_now_s();
    return cr_child_start(&r->child, what, argv, false, err);
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
            snprintf(r->name, sizeof r->name, "reward-%.100s-%lld", r->domain, (long long)k);
            CR_TRY(start(w, r, err));
        }
    return CR_OK;
}

/* Has its count moved within the limit? */
static cr_status look_at(cr_reward_workers *w, cr_reward_worker *r, const cr_buf *value,
                         cr_err *err)
{
    double now = cr_now_s();

    if (value->num_bytes && strncmp(value->data, r->count, sizeof r->count - 1) != 0) {
        snprintf(r->count, sizeof r->count, "%s", value->data);
        r->moved_s = now;
    }
    if (now - r->moved_s <= w->limit_s) return CR_OK;
    cr_log(CR_LOG_WARN, "run",
           "%s has given no sign of life for %.0f s; it is killed and started again", r->child.what,
           now - r->moved_s);
    cr_child_stop(&r->child, 0);
    return start(w, r, err);
}

/* The counts of a few, read together. */
static cr_status look(cr_reward_workers *w, cr_exchange *x, cr_err *err)
{
    cr_buf values[LOOKS] = {{0}};
    char *keys[LOOKS];
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

cr_status cr_reward_workers_watch(cr_reward_workers *w, cr_exchange *x, cr_err *err)
{
    double now = cr_now_s();
    char fate[CR_FATE];

    for (size_t i = 0; i < w->num; i++) {
        cr_reward_worker *r = &w->items[i];
        if (cr_child_pump(&r->child)) continue;
        if (r->num_starts > MAX_STARTS ||
            (WIFEXITED(r->child.wait_status) && WEXITSTATUS(r->child.wait_status) == 2))
            return cr_fail(err, CR_EPEER, "%s %s", r->child.what, cr_child_fate(&r->child, fate));
        cr_log(CR_LOG_WARN, "run", "%s %s; starting it again", r->child.what,
               cr_child_fate(&r->child, fate));
        CR_TRY(start(w, r, err));
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
