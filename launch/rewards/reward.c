/* reward.c -- a reward worker from its words to its end (processes.h); scorers/reward_worker.h has its life. */
#include "base/children.h"
#include "configs/configs.h"
#include "launch/endpoint.h"
#include "launch/processes.h"
#include "scorers/reward_worker.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t should_stop;

static void on_signal(int number)
{
    (void)number;
    should_stop = 1;
}

cr_status cr_reward_run(const cr_reward_args *o, cr_err *err)
{
    char *url_of_run = cr_exchange_take_variable();
    struct sigaction action = {.sa_handler = on_signal};
    cr_diagnostics d = {0};
    cr_config config = {0};
    char *beside = NULL, name[128];
    cr_exchange_args exchange;

    if (!o->file || !o->domain || !(o->url || url_of_run)) {
        cr_fail(err, CR_EUSAGE,
                "a FILE, --domain and --exchange are needed (see croll reward --help)");
        goto out;
    }
    if (!o->prefix) beside = cr_endpoint_prefix_beside(o->file);
    snprintf(name, sizeof name, "%.39s-%d", cr_host_name(), (int)getpid());
    if (o->name) snprintf(name, sizeof name, "%s", o->name);
    cr_log_setup(CR_LOG_INFO, name);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (cr_config_load(o->file, NULL, 0, &config, &d, err) != CR_OK) cr_diagnostics_print(&d);
    exchange =
        cr_endpoint_args(&config, o->url ? o->url : url_of_run, o->prefix ? o->prefix : beside);
    exchange.may_be_starting = !o->url; /* by hand: a wrong host is an error at once */
    if (err->status == CR_OK) {
        const cr_reward_worker_args args = {.config = &config,
                                            .path = o->file,
                                            .domain = o->domain,
                                            .name = name,
                                            .exec = o->exec,
                                            .limit_s = o->limit_s,
                                            .exchange = &exchange,
                                            .should_stop = &should_stop};
        cr_note(cr_reward_worker_run(&args, err));
    }
out:
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_free(beside);
    cr_free(url_of_run);
    return err->status;
}
