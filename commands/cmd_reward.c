/* cmd_reward.c -- `croll reward`: one reward worker (launch/processes.h). */
#include "commands/commands.h"
#include "launch/processes.h"

static int run(int argc, char **argv);

const cr_command cr_command_reward = {
    "reward", "reward FILE --domain D --exchange URL [--exec PROGRAM]",
    "Score samples of one domain from the exchange until stopped; any number of workers may run.",
    "croll reward output/quickstart/rlvr/config.yaml --domain math_rule --exchange "
    "redis://host:6379/0",
    run};

static int run(int argc, char **argv)
{
    cr_reward_args args = {.file = NULL};
    const cr_option list[] = {
        {"domain", CR_OPT_STRING, &args.domain, "D", "a domain of the file's rewards"},
        {"exchange", CR_OPT_STRING, &args.url, "URL",
         "where the run's Redis is (default: the variable " CR_EXCHANGE_VARIABLE
         ", which no command line shows)"},
        {"prefix", CR_OPT_STRING, &args.prefix, "TEXT",
         "what the run's keys begin with (default: that of the run beside FILE)"},
        {"worker", CR_OPT_STRING, &args.name, "NAME",
         "a successor with the same name takes over what this one holds (default: host and "
         "process)"},
        {"exec", CR_OPT_STRING, &args.exec, "PROGRAM",
         "score with this program: JSON lines in, JSON lines out (default: the file's)"},
        {"timeout", CR_OPT_DOUBLE, &args.limit_s, "SECONDS",
         "for one sample (default: the file's reward_timeout)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;

    cr_note(cr_args_parse(&cr_command_reward, list, CR_COUNT(list), argc, argv, &words, &is_help,
                          &err));
    args.file = words.num == 1 ? words.word[0] : NULL;
    if (err.status == CR_OK && !is_help) cr_note(cr_reward_run(&args, &err));
    cr_words_free(&words);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_reward, &err);
}
