/* cmd_replay.c -- `croll replay`: one step of a run once more (pipelines/replay/replay.h). */
#include "commands/commands.h"
#include "pipelines/replay/replay.h"

static int run(int argc, char **argv);

const cr_command cr_command_replay = {
    "replay", "replay RUN --step N [--set CHANGE ..] [--out DIR]",
    "Train one step of an rlvr run once more on its recorded samples, and compare every number "
    "with the "
    "recorded one: equal to the bit on the same mesh. A change shows what would have been: the "
    "exact loss, "
    "gradient norm and next weights. Exit code 0: equal, or changed as asked; 1: not.",
    "croll replay output/quickstart/rlvr --step 3 --set reward.0000030000000001=1", run};

static int run(int argc, char **argv)
{
    cr_replay_args args = {.step = -1};
    const cr_option options[] = {
        {"step", CR_OPT_INT, &args.step, "N", "which one, from 0"},
        {"set", CR_OPT_LIST, &args.changes, "CHANGE",
         "reward.ID=X: sample ID gets this reward; key=value: another key of the file, in this "
         "step "
         "alone; may be given again"},
        {"out", CR_OPT_STRING, &args.out, "DIR",
         "metrics, samples and the checkpoint after the step (default: output/replay/NAME-step-N)"},
        {"overwrite", CR_OPT_FLAG, &args.should_overwrite, NULL, "replace a replay in that folder"},
        {"terms", CR_OPT_FLAG, &args.has_terms, NULL,
         "write DIR/terms/step-N.jsonl, too: what each sample's loss was made of (croll why DIR)"},
        {"json", CR_OPT_FLAG, &args.has_json, NULL, "one JSON object"},
        {"device", CR_OPT_STRING, &args.device, "NAME",
         "cpu, cuda (never run on a GPU: docs/cuda.md); default: the run's"},
        CR_HOSTS_OPTIONS(args.hosts)};
    cr_words words = {0};
    cr_err err = {0};
    bool is_help, differ = false;

    if (cr_args_parse(&cr_command_replay, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        args.run = words.num == 1 ? words.word[0] : NULL;
        if (!args.run)
            cr_fail(&err, CR_EUSAGE, "one RUN is needed (see croll replay --help)");
        else if (args.step < 0)
            cr_fail(&err, CR_EUSAGE, "--step N is needed, from 0");
        else
            cr_note(cr_replay_run(&args, &differ, &err));
    }
    cr_words_free(&words);
    if (err.status != CR_OK) {
        cr_words_free(&args.changes);
        return cr_command_fail(&cr_command_replay, &err);
    }
    differ = differ && !args.changes.num;
    cr_words_free(&args.changes);
    return differ;
}
