/* cmd_score.c -- `croll score`: rows with a response in, scores out, one line each. */
#include "base/children.h"
#include "commands/commands.h"
#include "configs/configs.h"
#include "launch/rewards/reward_model.h"
#include "reports/rollout_files.h"
#include "rewards/rules.h"
#include "scorers/code/code.h"
#include "scorers/compare/compare.h"
#include "scorers/judge/judge.h"
#include "scorers/reward_program.h"
#include "scorers/score_line.h"
#include "text/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULE_S    5.0
#define CODE_S    30.0
#define PROGRAM_S 10.0 /* as reward_timeout */

static int run(int argc, char **argv);

const cr_command cr_command_score = {
    "score", "score DOMAIN [--config FILE] [--timeout SECONDS] [--explain | --compare FILE]",
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
    settings->terms = &r->terms;
    return CR_OK;
}

static cr_status find_rule(const char *name, cr_rule *out, cr_err *err)
{
    enum { MAX_NAMES = 32 };
    const char *names[MAX_NAMES], *near;
    cr_buf there = {0};
    size_t num = 0;

    *out = cr_rule_find(name);
    if (*out) return CR_OK;
    for (; cr_rule_names[num]; num++)
        names[num] = cr_rule_names[num];
    names[num++] = "code"; /* a domain with a program of its own */
    for (size_t i = 0; i < num; i++)
        cr_buf_addf(&there, "%s%s", i ? ", " : "", names[i]);
    near = cr_nearest(name, names, num);
    cr_fail(err, CR_EUSAGE, "no rule '%s'%s%s (there are %s)", name, near ? ", did you mean " : "",
            near ? near : "", there.data);
    cr_buf_free(&there);
    return err->status;
}

/* All lines of stdin; a wrong one is answered with an error of its own. */
static cr_status score_lines(cr_rule rule, const cr_rule_args *settings, cr_score_form form,
                             cr_err *err)
{
    cr_lines lines;
    bool has_bad = false;
    char *line;
    cr_buf out = {0};
    size_t n;

    cr_lines_init(&lines, stdin, stdout);
    while (cr_lines_text(&lines, &line, &n)) {
        if (n > CR_LONGEST_LINE) {
            cr_fail(err, CR_EFORMAT, "line %lld has more than 64 MiB; what follows is not read",
                    (long long)lines.number);
            break;
        }
        if (strspn(line, " \t\r\n") >= n) continue;
        if (!cr_score_line(rule, settings, form, line, n, (long)lines.number, &out)) has_bad = true;
        if (fwrite(out.data, 1, out.num_bytes, stdout) != out.num_bytes || fflush(stdout) != 0)
            break; /* the reader has closed */
    }
    if (has_bad && err->status == CR_OK)
        cr_fail(err, CR_EFORMAT, "some lines were wrong (see their \"error\")");
    cr_lines_fini(&lines);
    cr_buf_free(&out);
    return err->status;
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

/* The programs of lines, with the settings of a domain of the file, or (NULL) the usual ones. */
static cr_status code_lines(const cr_config *config, const cr_reward_config *r, double limit_s,
                            cr_score_form form, cr_err *err)
{
    char usual[] = "python3";
    const cr_code_keys keys = {.interpreter = usual, .case_timeout = 4, .case_memory_mb = 1024};
    cr_code_settings settings = {.keys = r ? &r->code : &keys, .limit_s = limit_s, .form = form};
    cr_code *code;

    settings.num_at_once = r ? (size_t)r->max_in_flight : (size_t)cr_num_cores();
    if (limit_s <= 0) settings.limit_s = r ? 0.9 * config->reward_timeout : CODE_S;
    CR_TRY(cr_code_open(&settings, &code, err));
    cr_note(cr_code_lines(code, STDIN_FILENO, stdout, err));
    cr_code_close(code);
    return err->status;
}

typedef struct options {
    cr_words configs, programs, files; /* --config, --exec, --compare */
    const char *domain;
    cr_rule_args settings;
    bool is_explained, is_json;
    int64_t judge, num_shown;
} options;

static cr_score_form form_of(const options *o)
{
    if (!o->is_explained) return CR_SCORE_PLAIN;
    return isatty(STDOUT_FILENO) && !o->is_json ? CR_SCORE_PARAGRAPH : CR_SCORE_EXPLAINED;
}

static cr_status load(const char *path, cr_config *config, cr_err *err)
{
    cr_diagnostics d = {0};

    if (cr_config_load(path, NULL, 0, config, &d, err) != CR_OK) cr_diagnostics_print(&d);
    cr_diagnostics_free(&d);
    return err->status;
}

static cr_status score(options *o, cr_err *err)
{
    const char *config_path = o->configs.num ? o->configs.word[0] : NULL, *name = o->domain;
    cr_config config = {0};
    const cr_reward_config *judged;
    cr_rule rule;

    if (o->configs.num > 1 || o->programs.num)
        return cr_fail(err, CR_EUSAGE, "two files and --exec are for --compare");
    if (config_path) CR_TRY_GOTO(out, load(config_path, &config, err));
    judged = config_path ? cr_config_find_reward(&config, name) : NULL;
    if (judged && judged->judge.url) {
        CR_TRY_GOTO(out, judge_lines(&config, judged, (int)(o->judge & INT32_MAX),
                                     o->settings.deadline_s, form_of(o), err));
        goto out;
    }
    if (judged && judged->model.is_given) {
        CR_TRY_GOTO(out, cr_reward_model_lines(&(cr_reward_model_args){config_path, name,
                                                                       (int)(o->judge & INT32_MAX),
                                                                       form_of(o)},
                                               err));
        goto out;
    }
    if (judged ? judged->rule && strcmp(judged->rule, "code") == 0
               : !config_path && strcmp(name, "code") == 0) {
        CR_TRY_GOTO(out, code_lines(&config, judged, o->settings.deadline_s, form_of(o), err));
        goto out;
    }
    if (o->settings.deadline_s <= 0) o->settings.deadline_s = RULE_S;
    if (config_path) CR_TRY_GOTO(out, take_domain(&config, config_path, &name, &o->settings, err));
    CR_TRY_GOTO(out, find_rule(name, &rule, err));
    CR_TRY_GOTO(out, score_lines(rule, &o->settings, form_of(o), err));
out:
    cr_config_free(&config);
    return err->status;
}

/* ---- --compare ---- */

/* The programs of one or two versions. */
typedef struct versions {
    cr_config config[2];
    cr_reward_program program[2];
    cr_version version[2];
    size_t num;
} versions;

static void versions_free(versions *v)
{
    for (size_t i = 0; i < CR_COUNT(v->config); i++) {
        cr_reward_program_close(&v->program[i]);
        cr_config_free(&v->config[i]);
    }
}

/* The domain as a file has it: its rule, judge or program. */
static cr_status add_config(versions *v, const options *o, const char *path, cr_err *err)
{
    cr_config *config = &v->config[v->num];
    cr_reward_program *program = &v->program[v->num];
    const cr_reward_config *reward;

    CR_TRY(load(path, config, err));
    reward = cr_config_find_reward(config, o->domain);
    if (!reward) return cr_fail(err, CR_EUSAGE, "%s has no reward domain '%s'", path, o->domain);
    CR_TRY(cr_reward_program_open(config, path, reward, NULL, o->settings.deadline_s,
                                  (int)(o->judge & INT32_MAX), program, err));
    v->version[v->num++] = (cr_version){path, program->args};
    return CR_OK;
}

static double limit_of(const options *o, double usual_s)
{
    return o->settings.deadline_s > 0 ? o->settings.deadline_s : usual_s;
}

/* A program of any words, one line at a time. */
static cr_status add_program(versions *v, const options *o, const char *words, cr_err *err)
{
    cr_reward_program *program = &v->program[v->num];

    CR_TRY(cr_split_words(words, &program->words, err));
    program->args = (cr_scorer_args){program->words, NULL, limit_of(o, PROGRAM_S), 1};
    v->version[v->num++] = (cr_version){words, program->args};
    return CR_OK;
}

/* The built-in rule DOMAIN. */
static cr_status add_rule(versions *v, const options *o, cr_err *err)
{
    const bool is_code = strcmp(o->domain, "code") == 0; /* a rule of its own kind */
    cr_reward_program *program = &v->program[v->num];
    cr_rule rule;

    if (!is_code) CR_TRY(find_rule(o->domain, &rule, err));
    program->self_path = cr_self_path();
    program->words = CR_NEW_ARRAY(char *, 4);
    program->words[0] = program->self_path;
    program->words[1] = cr_word("score");
    program->words[2] = cr_word(o->domain);
    program->args = (cr_scorer_args){program->words, NULL,
                                     limit_of(o, is_code ? CODE_S + PROGRAM_S : PROGRAM_S), 1};
    v->version[v->num++] = (cr_version){"the rule as it is now", program->args};
    return CR_OK;
}

static cr_status open_versions(versions *v, const options *o, cr_err *err)
{
    if (o->num_shown < 0) return cr_fail(err, CR_EUSAGE, "--show is 0 or more");
    if (o->is_explained)
        return cr_fail(err, CR_EUSAGE,
                       "--explain is for lines (a sample of rollouts/ is one: give it to "
                       "croll score without --compare)");
    if (o->configs.num + o->programs.num > CR_COUNT(v->version))
        return cr_fail(err, CR_EUSAGE, "at most two versions (--config, --exec) can be compared");
    for (size_t i = 0; i < o->configs.num; i++)
        CR_TRY(add_config(v, o, o->configs.word[i], err));
    for (size_t i = 0; i < o->programs.num; i++)
        CR_TRY(add_program(v, o, o->programs.word[i], err));
    return v->num ? CR_OK : add_rule(v, o, err);
}

/* A file, or those of the steps of a run. */
static cr_status compare_path(cr_compare *c, const char *path, cr_err *err)
{
    char **names;
    size_t num;

    if (!cr_dir_exists(path)) return cr_compare_file(c, path, err);
    num = cr_rollout_files(path, &names);
    if (num == 0) cr_fail(err, CR_EUSAGE, "%s has no rollouts/step-*.jsonl", path);
    for (size_t i = 0; i < num; i++) {
        if (err->status == CR_OK) cr_note(cr_compare_file(c, names[i], err));
        cr_free(names[i]);
    }
    cr_free(names);
    return err->status;
}

static cr_status compare(const options *o, cr_err *err)
{
    versions v = {.num = 0};
    cr_compare_args args = {
        .domain = o->domain, .num_shown = o->num_shown, .is_json = o->is_json, .to = stdout};
    cr_compare *c = NULL;

    CR_TRY_GOTO(out, open_versions(&v, o, err));
    args.before = v.num == 2 ? v.version[0] : (cr_version){.name = "what was recorded"};
    args.after = v.version[v.num - 1];
    c = cr_compare_open(&args);
    for (size_t i = 0; i < o->files.num; i++)
        CR_TRY_GOTO(out, compare_path(c, o->files.word[i], err));
    CR_TRY_GOTO(out, cr_compare_end(c, err));
out:
    cr_compare_close(c);
    versions_free(&v);
    return err->status;
}

static int run(int argc, char **argv)
{
    options o = {.num_shown = 3};
    const cr_option list[] = {
        {"config", CR_OPT_LIST, &o.configs, "FILE",
         "DOMAIN is a domain of this file's rewards, with its settings"},
        {"timeout", CR_OPT_DOUBLE, &o.settings.deadline_s, "SECONDS",
         "for one line (default 5; of code 30; of a file's judge or code 90 % of its "
         "reward_timeout)"},
        {"explain", CR_OPT_FLAG, &o.is_explained, NULL,
         "say what was found and compared: a paragraph on a terminal, else the member \"explain\""},
        {"json", CR_OPT_FLAG, &o.is_json, NULL, "JSON on a terminal, too; of --compare JSON lines"},
        {"compare", CR_OPT_LIST, &o.files, "FILE",
         "no lines, but samples of a run (a file of rollouts/, or the run's folder): which "
         "verdicts "
         "change from what was recorded to the rule now, --config or --exec; with two of these, "
         "from the first to the second"},
        {"exec", CR_OPT_LIST, &o.programs, "PROGRAM", "of --compare: a version is this program"},
        {"show", CR_OPT_INT, &o.num_shown, "N",
         "of --compare: samples of each kind of change (default 3)"},
        {"judge", CR_OPT_INT, &o.judge, "N",
         "of a judge that the run has started, or a reward model, on several devices: which one "
         "(default 0)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help = false;

    CR_TRY_GOTO(out, cr_args_parse(&cr_command_score, list, CR_COUNT(list), argc, argv, &words,
                                   &is_help, &err));
    if (is_help) goto out;
    if (words.num != 1) cr_fail(&err, CR_EUSAGE, "one DOMAIN is needed (see croll score --help)");
    o.domain = words.num ? words.word[0] : NULL;
    if (err.status == CR_OK) cr_note(o.files.num ? compare(&o, &err) : score(&o, &err));
out:
    cr_words_free(&words);
    cr_words_free(&o.configs);
    cr_words_free(&o.programs);
    cr_words_free(&o.files);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_score, &err);
}
