/* cmd_eval.c -- `croll eval`: how good a model is (pipelines/eval/command.h). */
#include "commands/commands.h"
#include "pipelines/eval/command.h"

static int run(int argc, char **argv);

const cr_command cr_command_eval = {
    "eval", "eval MODEL [--run FILE] [--data FILE ..] [--n N] [key=value ..]",
    "Sample answers to a data file's rows, score them with the rewards of a run's file, and print "
    "pass@k, maj@k and "
    "means with 95 % intervals, by tag and domain. MODEL is a folder, checkpoint-N of a run, or a "
    "folder of adapters. "
    "Numbers are those of a run's validation at step 0. Called again it goes on where it was "
    "killed.",
    "croll eval output/quickstart/sft_model --run configs/quickstart/rlvr.yaml --n 4", run};

static int run(int argc, char **argv)
{
    cr_eval_args args = {.num = CR_NOT_GIVEN};
    const cr_option options[] = {
        {"run", CR_OPT_STRING, &args.run, "FILE",
         "file of a run with rewards, templates and lengths (default: config.yaml of the "
         "checkpoint's run)"},
        {"data", CR_OPT_LIST, &args.data, "FILE",
         "rows: JSON lines, a JSON array or Parquet; may be given again (default: "
         "validation.data_args.file_name of the run's file)"},
        {"image-folder", CR_OPT_STRING, &args.image_folder, "DIR",
         "where paths of the rows' images begin (default: validation.data_args.image_folder of the "
         "run's file)"},
        {"n", CR_OPT_INT, &args.num, "N",
         "samples a prompt (default: validation.generating_args.num_return_sequences)"},
        {"out", CR_OPT_STRING, &args.out, "DIR",
         "samples.jsonl, eval.json, eval.html (default: output/eval/NAME)"},
        {"json", CR_OPT_FLAG, &args.has_json, NULL, "the table as one object"},
        {"overwrite", CR_OPT_FLAG, &args.should_overwrite, NULL,
         "start anew in a folder that has samples"},
        {"adapter", CR_OPT_STRING, &args.adapter, "DIR",
         "a LoRA adapter in PEFT's layout; MODEL is its base and stays as it is, unmerged"},
        {"device", CR_OPT_STRING, &args.device, "NAME",
         "cpu, cuda (never run on a GPU: docs/cuda.md); default: device of the file"},
        CR_HOSTS_OPTIONS(args.hosts)};
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_eval, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        if (words.num < 1) cr_fail(&err, CR_EUSAGE, "a MODEL is needed (see croll eval --help)");
        for (size_t i = 1; i < words.num; i++)
            cr_words_add(&args.keys, words.word[i]);
        args.model = words.num ? words.word[0] : NULL;
        if (err.status == CR_OK) cr_note(cr_eval_run(&args, &err));
    }
    cr_words_free(&words);
    cr_words_free(&args.keys);
    cr_words_free(&args.data);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_eval, &err);
}
