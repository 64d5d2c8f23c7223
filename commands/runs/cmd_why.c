/* cmd_why.c -- `croll why`: of what the losses of single samples were made (pipelines/why/why.h). */
#include "commands/commands.h"
#include "pipelines/why/why.h"

static int run(int argc, char **argv);

const cr_command cr_command_why = {
    "why", "why RUN --step N [--sample ID ..]",
    "Of what the loss and the gradient of single samples of a step were made: rewards, each step "
    "of their advantages, log-probs, ratios, clips, weights, and what each token adds to the loss. "
    "The terms of all samples add up to the step's losses. The step is trained once more from its "
    "files (croll replay); without --sample: the samples with the largest share.\n"
    "More examples: croll why RUN --step 3 --sample 0000030000000001 --json; what if: croll "
    "replay RUN --step 3 --set reward.0000030000000001=1 --terms --out D, croll why D --step 3",
    "croll why output/quickstart/rlvr --step 3 --sample 0000030000000001", run};

static int run(int argc, char **argv)
{
    cr_why_args args = {.step = -1};
    const cr_option options[] = {
        {"step", CR_OPT_INT, &args.step, "N", "which one, from 0"},
        {"sample", CR_OPT_LIST, &args.samples, "ID",
         "id of a sample, as in rollouts/step-N.jsonl; may be given again"},
        {"gradient", CR_OPT_FLAG, &args.has_gradient, NULL,
         "the norm of the gradient of each --sample alone, too: trains the step once more for "
         "each"},
        {"out", CR_OPT_STRING, &args.out, "DIR",
         "of the step that is trained again (default: output/why/NAME-step-N); what is there is "
         "used again"},
        {"overwrite", CR_OPT_FLAG, &args.should_overwrite, NULL, "train it again"},
        {"json", CR_OPT_FLAG, &args.has_json, NULL,
         "one JSON object: all members of docs/why.md; without --sample the sums of all samples"},
        {"device", CR_OPT_STRING, &args.device, "NAME",
         "cpu, cuda (never run on a GPU: docs/cuda.md); default: the run's"},
        CR_HOSTS_OPTIONS(args.hosts)};
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_why, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        args.run = words.num == 1 ? words.word[0] : NULL;
        if (!args.run)
            cr_fail(&err, CR_EUSAGE, "one RUN is needed (see croll why --help)");
        else if (args.step < 0)
            cr_fail(&err, CR_EUSAGE, "--step N is needed, from 0");
        else
            cr_note(cr_why_run(&args, &err));
    }
    cr_words_free(&words);
    cr_words_free(&args.samples);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_why, &err);
}
