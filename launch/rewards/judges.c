/* judges.c -- see judges.h. */
#include "launch/rewards/judges.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { MAX_EARLY = 5, EARLY_S = 60, END_S = 2 };
#define FIRST_PAUSE_S 0.5

static cr_status start(cr_judges *j, cr_judge_process *p, cr_err *err)
{
    char *role = cr_asprintf("rewards.%s", p->reward->domain),
         *listen = cr_judge_url(p->reward, p->number), what[64];
    const char *const words[] = {j->self,        "serve",
                                 j->config_path, "--role",
                                 role,           "--listen",
                                 listen,         "--access-log",
                                 "none",         "--served-model-name",
                                 role,           "--clamp-max-tokens",
                                 "--quiet"};
    char *argv[CR_COUNT(words) + 1] = {NULL};

    for (size_t i = 0; i < CR_COUNT(words); i++)
        argv[i] = cr_word(words[i]);
    snprintf(what, sizeof what, "judge %d of %.30s", p->number, p->reward->domain);
    p->start_s = 0;
    cr_pulse_close(p->pulse);
    p->pulse = NULL;
    if (cr_pulse_open(listen, j->limit_s, &p->pulse, err) == CR_OK)
        cr_note(cr_watched_start(&p->process, what, argv, err));
    cr_free(role);
    cr_free(listen);
    return err->status;
}

cr_status cr_judges_start(cr_judges *j, const cr_config *config, const char *config_path,
                          const char *self, cr_err *err)
{
    size_t num = 0;

    *j = (cr_judges){
        .self = self, .config_path = config_path, .limit_s = config->collective_timeout + 5};
    for (size_t i = 0; i < config->num_rewards; i++)
        num += (size_t)config->rewards[i].judge_model.num_devices;
    if (num == 0) return CR_OK;
    j->folder = cr_path_join(config->output_dir, "judges");
    CR_TRY(cr_mkdirs(j->folder, err));
    j->items = CR_NEW_ARRAY(cr_judge_process, num);
    for (size_t i = 0; i < config->num_rewards; i++)
        for (int k = 0; k < config->rewards[i].judge_model.num_devices; k++) {
            cr_judge_process *p = &j->items[j->num++];
            p->reward = &config->rewards[i];
            p->number = k;
            CR_TRY(start(j, p, err));
        }
    return CR_OK;
}

/* It has ended, after it was well for `well_s`: when is it started again? */
static cr_status take_end(cr_judge_process *p, double well_s, const char *fate, bool is_refused,
                          cr_err *err)
{
    const char *reason = cr_watched_reason(&p->process);
    double pause_s = FIRST_PAUSE_S;
    char *end;

    p->num_early = well_s < EARLY_S ? p->num_early + 1 : 1;
    end = p->num_early > 1 ? cr_asprintf("%s %s, %d times in a row soon after its start",
                                         p->process.child.what, fate, p->num_early)
                           : cr_asprintf("%s %s", p->process.child.what, fate);
    for (int i = 1; i < p->num_early; i++)
        pause_s *= 2;
    p->start_s = cr_now_s() + pause_s;
    if (p->num_early >= MAX_EARLY || is_refused)
        cr_fail(err, CR_EPEER, "%s%s%s", end, *reason ? ": " : "", reason);
    else
        cr_log(CR_LOG_WARN, "run", "%s; it is started again in %g s%s%s", end, pause_s,
               *reason ? ": " : "", reason);
    cr_free(end);
    return err->status;
}

static cr_status watch(cr_judges *j, cr_judge_process *p, cr_err *err)
{
    bool is_running = cr_watched_pump(&p->process), is_there = cr_pulse_is_there(p->pulse);
    int status = p->process.child.wait_status;
    double first_s = cr_pulse_first_s(p->pulse), well_s = first_s > 0 ? cr_now_s() - first_s : 0;
    char fate[CR_FATE];

    if (is_running && is_there) return CR_OK;
    if (!is_running) {
        bool is_refused = WIFEXITED(status) && WEXITSTATUS(status) == 2;
        return take_end(p, well_s, cr_child_fate(&p->process.child, fate), is_refused, err);
    }
    snprintf(fate, sizeof fate, "has given no sign of life for %.0f s; it is killed", j->limit_s);
    cr_child_stop(&p->process.child, 0);
    return take_end(p, well_s - j->limit_s, fate, false, err);
}

cr_status cr_judges_watch(cr_judges *j, cr_err *err)
{
    for (size_t i = 0; i < j->num; i++) {
        cr_judge_process *p = &j->items[i];
        if (p->start_s == 0) CR_TRY(watch(j, p, err));
        if (p->start_s > 0 && cr_now_s() >= p->start_s) CR_TRY(start(j, p, err));
    }
    return CR_OK;
}

void cr_judges_stop(cr_judges *j)
{
    double until = cr_now_s() + END_S;
    cr_err ignored = {0};

    for (size_t i = 0; i < j->num; i++)
        if (j->items[i].process.child.pid && j->items[i].process.child.is_running)
            kill(j->items[i].process.child.pid, SIGTERM);
    for (size_t i = 0; i < j->num; i++) {
        cr_child_stop(&j->items[i].process.child, until - cr_now_s());
        cr_pulse_close(j->items[i].pulse);
    }
    if (j->folder) cr_note(cr_remove_tree(j->folder, &ignored));
    cr_free(j->folder);
    cr_free(j->items);
    *j = (cr_judges){.num = 0};
}
