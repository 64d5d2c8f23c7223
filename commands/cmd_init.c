/* cmd_init.c -- croll init: random weights for a config.json (models/files/random.h). */
#include "commands/commands.h"
#include "models/files/random.h"

#include <stdio.h>

static int run(int argc, char **argv)
{
    int64_t seed = 42;
    bool should_overwrite = false;
    const cr_option options[] = {
        {"seed", CR_OPT_INT, &seed, "N", "of the random numbers (default 42)"},
        {"overwrite", CR_OPT_FLAG, &should_overwrite, NULL, "replace weights that are there"},
    };
    cr_random_weights made = {0};
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_init, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        if (words.num != 1)
            cr_fail(&err, CR_EUSAGE, "give one MODEL, a folder with config.json");
        else if (cr_random_weights_write(words.word[0], seed, should_overwrite, &made, &err) ==
                 CR_OK)
            printf("%s: %zu tensors, %lld elements\n", made.path, made.num_tensors,
                   (long long)made.num_elems);
    }
    cr_free(made.path);
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_init, &err) : 0;
}

const cr_command cr_command_init = {
    "init",
    "init MODEL [--seed N] [--overwrite]",
    "Random weights for the config.json of a folder: model.safetensors in its torch_dtype, normal "
    "with "
    "initializer_range, norms one, biases zero. The values depend on the seed only. A Prismatic "
    "folder without preprocessor_config.json gets one.",
    "croll init output/quickstart/model --seed 42 --overwrite",
    run,
};
