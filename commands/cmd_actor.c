/* cmd_actor.c -- `croll actor`: one rank of a run, started by mpirun from `croll run` (launch/processes.h). */
#include "commands/commands.h"
#include "launch/processes.h"

static int run(int argc, char **argv);

const cr_command cr_command_actor = {"actor", "actor CONFIG [--exchange URL]",
                                     "One actor rank of a run (croll run starts them).",
                                     "CROLL_EXCHANGE_URL=unix:/tmp/redis.sock mpirun -n 4 croll "
                                     "actor output/quickstart/rlvr/config.yaml",
                                     run};

static int run(int argc, char **argv)
{
    cr_actor_args args = {.exchange = {.deadline_s = 60}};
    const cr_option list[] = {
        {"exchange", CR_OPT_STRING, &args.exchange.url, "URL",
         "where the run's Redis is (default: the variable " CR_EXCHANGE_VARIABLE
         ", which no command line shows)"},
        {"prefix", CR_OPT_STRING, &args.prefix, "TEXT",
         "what the run's keys begin with (default: that of the run beside CONFIG)"},
        {"mark", CR_OPT_STRING, &args.mark, "TEXT",
         "what the launcher wrote into the run's folders, to be found there on this host, too"},
        {"digest", CR_OPT_STRING, &args.digest, "SHA256",
         "take the configuration from the exchange, where it has this digest (CONFIG names it)"},
        {"timeout", CR_OPT_DOUBLE, &args.exchange.deadline_s, "SECONDS",
         "to get it (default: 60; 0 < SECONDS)"},
        {"ca-file", CR_OPT_STRING, &args.exchange.ca_file, "PEM", "likewise, as exchange.ca_file"},
        {"cert-file", CR_OPT_STRING, &args.exchange.cert_file, "PEM", "exchange.cert_file"},
        {"key-file", CR_OPT_STRING, &args.exchange.key_file, "PEM", "exchange.key_file"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;
    int code = 0;

    cr_note(
        cr_args_parse(&cr_command_actor, list, CR_COUNT(list), argc, argv, &words, &is_help, &err));
    args.path = words.num == 1 ? words.word[0] : NULL;
    if (!is_help) code = cr_actor_run(&args, &err);
    cr_words_free(&words);
    return code;
}
