/* cmd_score.c -- `croll score`: rows with a response in, scores out, one line each. */
#include "commands/commands.h"
#include "configs/configs.h"
#include "rewards/judge/judge.h"
#include "rewards/score_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULE_S 5.0

static int run(int argc, char **argv);

const cr_command cr_command_score = {
    "score", "score DOMAIN [--config FILE] [--timeout SECONDS] [--explain]",
    "Score JSON lines (a data row plus \"response\") with a built-in rule.",
    "echo '{\"id\":1,\"prompt\":\"3+4=\",\"ground_truth\":\"7\",\"response\":\"\\\\boxed{7}\"}' | "
    "croll score math_rule --explain",
    run};

/* The rule of a domain of the file, and its settings; borrowed from config. */
static cr_status take_domain(const cr_config *config, const char *path, const char **name,
                             cr_rule_args *settings, cr_err *err)
{
    const cr_reward_config *r = cr_config_find_reward(config, *name);

    if (!r) return cr_fail(err, CR_EUSAGE, "%s has no reward domain '%s'", path, *name);
    if (!r->rule)
        return cr_fail(err, CR_EUSAGE,
                       "%s: the domain %s is scored by a program, exec: %s (give it the lines "
                       "itself)",
                       path, *name, r->exec ? r->exec : "");
    *name = r->rule;
    settings->reward_type = r->reward_type;
    settings->length_coef = r->response_length_penalty_coef;
    return CR_OK;
}

static cr_status find_rule(const char *name, cr_rule *out, cr_err *err)
{
    cr_buf there = {0};
    size_t num = 0;
    const char *near;

    *out = cr_rule_find(name);
    if (*out) return CR_OK;
    for (; cr_rule_names[num]; num++)
        cr_buf_addf(&there, "%s%s", num ? ", " : "", cr_rule_names[num]);
    near = cr_nearest(name, cr_rule_names, num);
    cr_fail(err, CR_EUSAGE, "no rule '%s'%s%s (there are %s)", name, near ? ", did you mean " : "",
            near ? near : "", there.data);
    cr_buf_free(&there);
    return err->status;
}

/* All lines of stdin; a wrong one is answered with an error of its own. */
static cr_status score_lines(cr_rule rule, const cr_rule_args *settings, cr_score_form form,
                             cr_err *err)
{
    bool has_bad = false;
    char *line = NULL;
    size_t capacity = 0;
    cr_buf out = {0};
    long number = 0;
    ssize_t n;

    while ((n = getline(&line, &capacity, stdin)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        if (!cr_score_line(rule, settings, form, line, (size_t)n, number, &out)) has_bad = true;
        if (fwrite(out.data, 1, out.num_bytes, stdout) != out.num_bytes || fflush(stdout) != 0)
            break; /* the reader has closed */
    }
    free(line);
    cr_buf_free(&out);
    return has_bad ? cr_fail(err, CR_EFORMAT, "some lines were wrong (see their \"error\")")
                   : CR_OK;
}

/* The model that a domain of the file asks; a run's deadline is a little later than ours, which says why. */
static cr_status judge_lines(const cr_config *config, const cr_reward_config *r, int number,
                             double limit_s, cr_score_form form, cr_err *err)
{
    cr_judge *judge;

    if (limit_s <= 0) limit_s = 0.9 * config->reward_timeout;
    CR_TRY(cr_judge_open(config, r, number, limit_s, &judge, err));
    cr_note(cr_judge_lines(judge, STDIN_FILENO, form, stdout, err));
    cr_judge_close(judge);
    return err->status;
}

typedef struct options {
    const char *config_path;
    cr_rule_args settings;
    bool is_explained, is_json;
    int64_t judge;
} options;

static cr_score_form form_of(const options *o)
{
    if (!o->is_explained) return CR_SCORE_PLAIN;
    return isatty(STDOUT_FILENO) && !o->is_json ? CR_SCORE_PARAGRAPH : CR_SCORE_EXPLAINED;
}

static cr_status score(const cr_words *words, options *o, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_config config = {0};
    const cr_reward_config *judged;
    const char *name;
    cr_rule rule;

    if (words->num != 1)
        return cr_fail(err, CR_EUSAGE, "one DOMAIN is needed (see croll score --help)");
    name = words->word[0];
    if (o->config_path && cr_config_load(o->config_path, NULL, 0, &config, &d, err) != CR_OK)
        cr_diagnostics_print(&d);
    CR_TRY_GOTO(out, err->status);
    judged = o->config_path ? cr_config_find_reward(&config, name) : NULL;
    if (judged && judged->judge.url) {
        CR_TRY_GOTO(out, judge_lines(&config, judged, (int)(o->judge & INT32_MAX),
                                     o->settings.deadline_s, form_of(o), err));
        goto out;
    }
    if (o->settings.deadline_s <= 0) o->settings.deadline_s = RULE_S;
    if (o->config_path)
        CR_TRY_GOTO(out, take_domain(&config, o->config_path, &name, &o->settings, err));
    CR_TRY_GOTO(out, find_rule(name, &rule, err));
    CR_TRY_GOTO(out, score_lines(rule, &o->settings, form_of(o), err));
out:
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    return err->status;
}

static int run(int argc, char **argv)
{
    options o = {.config_path = NULL};
    const cr_option list[] = {
        {"config", CR_OPT_STRING, &o.config_path, "FILE",
         "DOMAIN is a domain of this file's rewards, with its settings"},
        {"timeout", CR_OPT_DOUBLE, &o.settings.deadline_s, "SECONDS",
         "for one line (default 5; of a judge 90 % of the file's reward_timeout)"},
        {"explain", CR_OPT_FLAG, &o.is_explained, NULL,
         "say what was found and compared: a paragraph on a terminal, else the member \"explain\""},
        {"json", CR_OPT_FLAG, &o.is_json, NULL, "JSON on a terminal, too"},
        {"judge", CR_OPT_INT, &o.judge, "N",
         "of a judge that the run has started on several devices: which one (default 0)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;

    CR_TRY_GOTO(out, cr_args_parse(&cr_command_score, list, CR_COUNT(list), argc, argv, &words,
                                   &is_help, &err));
    if (!is_help) CR_TRY_GOTO(out, score(&words, &o, &err));
out:
    cr_words_free(&words);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_score, &err);
}
