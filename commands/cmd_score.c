/* cmd_score.c -- `croll score`: rows with a response in, scores out, one line each. */
#include "commands/commands.h"
#include "configs/configs.h"
#include "rewards/score_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(int argc, char **argv);

const cr_command cr_command_score = {
    "score", "score DOMAIN [--config FILE] [--timeout SECONDS]",
    "Score JSON lines (a data row plus \"response\") with a built-in rule.",
    "echo '{\"id\":1,\"prompt\":\"3+4=\",\"ground_truth\":\"7\",\"response\":\"\\\\boxed{7}\"}' | "
    "croll score math_rule",
    run};

static int run(int argc, char **argv)
{
    const char *config_path = NULL, *name;
    cr_rule_args settings = {.deadline_s = 5};
    const cr_option options[] = {
        {"config", CR_OPT_STRING, &config_path, "FILE",
         "DOMAIN is a domain of this file's rewards, with its settings"},
        {"timeout", CR_OPT_DOUBLE, &settings.deadline_s, "SECONDS", "for one line (default 5)"},
    };
    cr_words words = {0};
    cr_diagnostics d = {0};
    cr_config config = {0};
    cr_err err = {0};
    cr_rule rule = NULL;
    bool is_help, has_bad = false;
    char *line = NULL;
    size_t capacity = 0;
    cr_buf out = {0};
    long number = 0;
    ssize_t n;

    if (cr_args_parse(&cr_command_score, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        is_help) {
        cr_words_free(&words);
        return 0;
    }
    if (err.status == CR_OK && words.num != 1)
        cr_fail(&err, CR_EUSAGE, "one DOMAIN is needed (see croll score --help)");
    name = words.num ? words.word[0] : "";
    if (err.status == CR_OK && config_path) {
        const cr_reward_config *r;
        if (cr_config_load(config_path, NULL, 0, &config, &d, &err) != CR_OK)
            cr_diagnostics_print(&d);
        r = cr_config_find_reward(&config, name);
        if (err.status == CR_OK && !r)
            cr_fail(&err, CR_EUSAGE, "%s has no reward domain '%s'", config_path, name);
        if (err.status == CR_OK) {
            if (!r->rule)
                cr_fail(&err, CR_EUSAGE,
                        "%s: the domain %s is scored by a program, exec: %s (give it the lines "
                        "itself)",
                        config_path, name, r->exec ? r->exec : "");
            name = r->rule ? r->rule : "";
            settings.reward_type = r->reward_type;
            settings.length_coef = r->response_length_penalty_coef;
        }
    }
    if (err.status == CR_OK && !(rule = cr_rule_find(name))) {
        size_t num = 0;
        cr_buf there = {0};
        for (; cr_rule_names[num]; num++)
            cr_buf_addf(&there, "%s%s", num ? ", " : "", cr_rule_names[num]);
        const char *near = cr_nearest(name, cr_rule_names, num);
        cr_fail(&err, CR_EUSAGE, "no rule '%s'%s%s (there are %s)", name,
                near ? ", did you mean " : "", near ? near : "", there.data);
        cr_buf_free(&there);
    }
    while (rule && (n = getline(&line, &capacity, stdin)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        if (!cr_score_line(rule, &settings, line, (size_t)n, number, &out)) has_bad = true;
        if (fwrite(out.data, 1, out.num_bytes, stdout) != out.num_bytes || fflush(stdout) != 0)
            break; /* the reader has closed */
    }
    if (has_bad) cr_fail(&err, CR_EFORMAT, "some lines were wrong (see their \"error\")");
    free(line);
    cr_buf_free(&out);
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_words_free(&words);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_score, &err);
}
