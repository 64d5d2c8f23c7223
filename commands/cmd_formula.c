/* cmd_formula.c -- croll formula: evaluate one formula of training on a JSON object. */
#include "commands/commands.h"
#include "formula/formula.h"

#include <stdio.h>
#include <string.h>

static int run(int argc, char **argv);

const cr_command cr_command_formula = {
    "formula", "formula NAME < REQUEST.json, formula --list",
    "Evaluate a formula of training, with the functions that training uses, on one JSON object.",
    "echo '{\"lr_scheduler_type\":\"cosine\",\"learning_rate\":1e-5,\"warmup_steps\":2,"
    "\"max_steps\":10}' | croll formula schedule",
    run};

static size_t count_names(void)
{
    size_t num = 0;

    while (cr_formula_names[num])
        num++;
    return num;
}

static cr_status check_name(const cr_words *words, cr_err *err)
{
    const char *near;

    if (words->num != 1)
        return cr_fail(err, CR_EUSAGE,
                       "give one NAME of a formula (croll formula --list shows them)");
    for (size_t i = 0; i < count_names(); i++)
        if (strcmp(words->word[0], cr_formula_names[i]) == 0) return CR_OK;
    near = cr_nearest(words->word[0], cr_formula_names, count_names());
    return cr_fail(err, CR_EUSAGE, "there is no formula %.60s%s%s%s (see croll formula --list)",
                   words->word[0], near ? "; did you mean " : "", near ? near : "",
                   near ? "?" : "");
}

static cr_status evaluate(const cr_words *words, cr_buf *out, cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    CR_TRY(check_name(words, err));
    status = cr_file_read("-", &text, err);
    if (status == CR_OK) status = cr_formula(words->word[0], text.data, text.num_bytes, out, err);
    cr_buf_free(&text);
    return status;
}

static int run(int argc, char **argv)
{
    bool is_list = false, is_help = false;
    const cr_option options[] = {
        {"list", CR_OPT_FLAG, &is_list, NULL, "print the names of all formulas, one a line"},
    };
    cr_words words = {0};
    cr_buf out = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_formula, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        if (is_list && words.num) cr_fail(&err, CR_EUSAGE, "--list takes no NAME");
        for (size_t i = 0; is_list && i < count_names(); i++)
            cr_buf_addf(&out, "%s\n", cr_formula_names[i]);
        if (!is_list && evaluate(&words, &out, &err) == CR_OK) cr_buf_addc(&out, '\n');
        if (err.status == CR_OK) fwrite(out.data, 1, out.num_bytes, stdout);
    }
    cr_buf_free(&out);
    cr_words_free(&words);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_formula, &err);
}
