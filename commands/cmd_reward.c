/* cmd_reward.c -- `croll reward`: one reward worker (scorers/reward_worker.h). */
#include "base/children.h"
#include "commands/commands.h"
#include "configs/configs.h"
#include "exchange/exchange.h"
#include "launch/endpoint.h"
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

static int run(int argc, char **argv);

const cr_command cr_command_reward = {
    "reward", "reward FILE --domain D --exchange URL [--exec PROGRAM]",
    "Score samples of one domain from the exchange until stopped; any number of workers may run.",
    "croll reward output/quickstart/rlvr/config.yaml --domain math_rule --exchange "
    "redis://host:6379/0",
    run};

typedef struct options {
    const char *file, *domain, *url, *prefix, *exec, *name;
    double limit_s;
} options;

/* Work until it is stopped. url_of_run: of the run that started it, or NULL. */
static cr_status serve(const options *o, const char *url_of_run, cr_err *err)
{
    struct sigaction action = {.sa_handler = on_signal};
    cr_diagnostics d = {0};
    cr_config config = {0};
    char *beside = o->prefix ? NULL : cr_endpoint_prefix_beside(o->file), name[128];
    cr_exchange_args exchange;

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
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_free(beside);
    return err->status;
}

static int run(int argc, char **argv)
{
    options o = {.file = NULL};
    const cr_option list[] = {
        {"domain", CR_OPT_STRING, &o.domain, "D", "a domain of the file's rewards"},
        {"exchange", CR_OPT_STRING, &o.url, "URL",
         "where the run's Redis is (default: the variable " CR_EXCHANGE_VARIABLE
         ", which no command line shows)"},
        {"prefix", CR_OPT_STRING, &o.prefix, "TEXT",
         "what the run's keys begin with (default: that of the run beside FILE)"},
        {"worker", CR_OPT_STRING, &o.name, "NAME",
         "a successor with the same name takes over what this one holds (default: host and "
         "process)"},
        {"exec", CR_OPT_STRING, &o.exec, "PROGRAM",
         "score with this program: JSON lines in, JSON lines out (default: the file's)"},
        {"timeout", CR_OPT_DOUBLE, &o.limit_s, "SECONDS",
         "for one sample (default: the file's reward_timeout)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;
    char *url_of_run = cr_exchange_take_variable();

    cr_note(cr_args_parse(&cr_command_reward, list, CR_COUNT(list), argc, argv, &words, &is_help,
                          &err));
    if (err.status == CR_OK && !is_help && (words.num != 1 || !o.domain || !(o.url || url_of_run)))
        cr_fail(&err, CR_EUSAGE,
                "a FILE, --domain and --exchange are needed (see croll reward --help)");
    if (err.status == CR_OK && !is_help) {
        o.file = words.word[0];
        cr_note(serve(&o, url_of_run, &err));
    }
    cr_words_free(&words);
    cr_free(url_of_run);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_reward, &err);
}
