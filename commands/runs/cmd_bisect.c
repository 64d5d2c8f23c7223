/* cmd_bisect.c -- `croll bisect`: where two runs differ first (pipelines/bisect/bisect.h). */
#include "base/json.h"
#include "commands/commands.h"
#include "pipelines/bisect/bisect.h"

#include <stdio.h>
#include <string.h>

static int run(int argc, char **argv);

const cr_command cr_command_bisect = {
    "bisect", "bisect RUN_A RUN_B [--tolerance X] [--json]",
    "The first step, phase, sample and value in which two runs differ: samples (prompts, "
    "generation, "
    "rewards, advantages), metrics but those of time and memory, then moments, masters and weights "
    "of "
    "checkpoints. Exit code 0: equal as far as both go, and both end at the same step; 1: not.",
    "croll bisect output/quickstart/rlvr output/again", run};

static void add_text(cr_buf *out, const char *name, const char *text)
{
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_string(out, text, strlen(text));
}

static void print_json(const cr_bisect_result *r)
{
    cr_buf out = {0};

    cr_buf_addf(&out, "{\"differ\":%s", r->is_found ? "true" : "false");
    if (r->is_found) {
        cr_buf_addf(&out, ",\"step\":%lld", (long long)r->step);
        add_text(&out, "phase", r->phase);
        if (*r->sample) add_text(&out, "sample", r->sample);
        add_text(&out, "place", r->place);
        add_text(&out, "a", r->value[0]);
        add_text(&out, "b", r->value[1]);
    }
    cr_buf_addf(&out,
                ",\"steps\":%lld,\"samples\":%lld,\"checkpoints\":%lld,\"last_step\":[%lld,%lld]}",
                (long long)r->num_steps, (long long)r->num_samples, (long long)r->num_checkpoints,
                (long long)r->end[0], (long long)r->end[1]);
    puts(out.data);
    cr_buf_free(&out);
}

static void print_text(const cr_bisect_args *a, const cr_bisect_result *r)
{
    printf("compared: %lld steps, %lld samples, %lld checkpoints\n", (long long)r->num_steps,
           (long long)r->num_samples, (long long)r->num_checkpoints);
    if (r->is_found) {
        printf("first difference: step %lld, %s%s%s\n", (long long)r->step, r->phase,
               *r->sample ? ", sample " : "", r->sample);
        printf("  %s\n  A  %s\n  B  %s\n", r->place, r->value[0], r->value[1]);
    } else {
        printf("no difference\n");
    }
    if (r->end[0] != r->end[1])
        printf("%s ends with step %lld, %s with step %lld\n", a->folder[0], (long long)r->end[0],
               a->folder[1], (long long)r->end[1]);
}

static int run(int argc, char **argv)
{
    cr_bisect_args args = {.tolerance = 0};
    cr_bisect_result result = {0};
    bool has_json = false, is_help;
    const cr_option options[] = {
        {"tolerance", CR_OPT_DOUBLE, &args.tolerance, "X",
         "numbers that are not integers may differ by this share, e.g. 1e-6 for another mesh "
         "(default: 0, every bit counts)"},
        {"json", CR_OPT_FLAG, &has_json, NULL, "one JSON object"}};
    cr_words words = {0};
    cr_err err = {0};
    int code = 0;

    if (cr_args_parse(&cr_command_bisect, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        for (size_t k = 0; k < 2 && words.num == 2; k++)
            args.folder[k] = words.word[k];
        if (words.num != 2)
            cr_fail(&err, CR_EUSAGE, "two folders of runs are needed (see croll bisect --help)");
        else if (!(args.tolerance >= 0 && args.tolerance < 1))
            cr_fail(&err, CR_EUSAGE, "--tolerance has to be at least 0 and below 1");
        else if (cr_bisect(&args, &result, &err) == CR_OK)
            has_json ? print_json(&result) : print_text(&args, &result);
        code = result.is_found || result.end[0] != result.end[1];
    }
    cr_words_free(&words);
    return err.status == CR_OK ? code : cr_command_fail(&cr_command_bisect, &err);
}
