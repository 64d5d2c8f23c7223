/* cmd_run.c -- `croll run`: from one ROLL YAML file to a finished run (pipelines/start/start.h). */
#include "commands/commands.h"
#include "configs/configs.h"
#include "pipelines/start/start.h"
#include "samples/roles.h"

#include <stdlib.h>

static int run_command(int argc, char **argv);

const cr_command cr_command_run = {
    "run", "run FILE [key=value ..] [--overwrite] [--hosts H:N,.. | --hostfile FILE]",
    "Run the job that a ROLL YAML file describes.",
    "croll run configs/quickstart/rlvr.yaml output_dir=output/mine max_steps=5 "
    "actor_train.training_args.learning_rate=1e-4",
    run_command};

static int run_command(int argc, char **argv)
{
    bool as_fsdp2 = false, is_help;
    cr_start_args args = {0};
    const char *device = NULL;
    char *key = NULL;
    const cr_option options[] = {{"overwrite", CR_OPT_FLAG, &args.should_overwrite, NULL,
                                  "start anew in a folder that holds a run"},
                                 {"device", CR_OPT_STRING, &device, "NAME",
                                  "cpu, cuda (never run on a GPU: docs/cuda.md); default: device "
                                  "of the file"},
                                 CR_AS_FSDP2_OPTION(as_fsdp2),
                                 CR_HOSTS_OPTIONS(args.hosts),
                                 {"network", CR_OPT_STRING, &args.network, "CIDR",
                                  "between the hosts, 10.77.0.0/24 (default: the fastest that "
                                  "connects all)"}};
    cr_words words = {0};
    cr_diagnostics d = {0};
    cr_config config = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_run, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        is_help) {
        cr_words_free(&words);
        return 0;
    }
    if (err.status == CR_OK && words.num < 1)
        cr_fail(&err, CR_EUSAGE, "a FILE is needed (see croll run --help)");
    if (as_fsdp2) cr_words_add(&words, CR_AS_FSDP2);
    if (device) {
        unsetenv("CROLL_DEVICE");
        cr_words_add(&words, key = cr_asprintf("device=%s", device));
    }
    if (err.status == CR_OK)
        cr_note(cr_config_load(words.word[0], words.word + 1, words.num - 1, &config, &d, &err));
    cr_diagnostics_print(&d);
    if (err.status == CR_OK) cr_envs_set(config.envs); /* and every process inherits them */
    if (err.status == CR_OK) cr_note(cr_start_run(&config, &args, &err));
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_words_free(&words);
    cr_free(key);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_run, &err);
}
