/* why.c -- see why.h. */
#include "pipelines/why/why.h"
#include "base/digest.h"
#include "configs/configs.h"
#include "pipelines/replay/recorded.h"
#include "pipelines/replay/replay.h"
#include "pipelines/start/words.h"
#include "pipelines/why/terms.h"
#include "pipelines/why/terms_file.h"
#include "reports/rollout_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHOWN = 20 };

/* The samples that are asked for are there. */
static cr_status check_samples(const cr_why_args *args, const cri_terms_file *f, const char *path,
                               cr_err *err)
{
    for (size_t i = 0; i < args->samples.num; i++)
        if (!cri_terms_find(f, args->samples.word[i]))
            return cr_fail(err, CR_EUSAGE,
                           "%s: the step has no sample %s (ids are in rollouts/, and in croll why "
                           "without --sample)",
                           path, args->samples.word[i]);
    return CR_OK;
}

/* What is there is of the samples that the run has now. */
static cr_status check_origin(const cr_why_args *args, const cri_terms_file *f, const char *path,
                              cr_err *err)
{
    char *samples = cr_recorded_path(args->run, args->step), hex[CR_DIGEST_TEXT];
    const char *of = json_string_value(json_object_get(f->head, "samples_sha256"));

    if (cr_digest_file(samples, hex, NULL, err) == CR_OK && !cr_digest_is(hex, of ? of : ""))
        cr_fail(err, CR_ECONFIG, "%s is of other samples than %s has (--overwrite makes it again)",
                path, samples);
    cr_free(samples);
    return err->status;
}

static cr_status print_json(const cr_why_args *args, const cri_terms_file *f, cr_buf *out,
                            cr_err *err)
{
    json_t *sample;
    size_t i;

    cr_buf_adds(out, "{\"head\":");
    CR_TRY(cr_json_add_value(out, f->head, err));
    cr_buf_adds(out, ",\"samples\":[");
    for (i = 0; i < args->samples.num; i++) {
        if (i) cr_buf_addc(out, ',');
        CR_TRY(cr_json_add_value(out, cri_terms_find(f, args->samples.word[i]), err));
    }
    json_array_foreach(f->samples, i, sample)
    {
        if (args->samples.num) break;
        cr_buf_addf(out, "%s{\"id\":\"%s\",\"sums\":", i ? "," : "",
                    json_string_value(json_object_get(sample, "id")));
        CR_TRY(cr_json_add_value(out, json_object_get(sample, "sums"), err));
        cr_buf_addc(out, '}');
    }
    cr_buf_adds(out, "]}\n");
    return CR_OK;
}

/* The tokenizer of the run in this folder; NULL: it is not there any more, which is said. */
static cr_tokenizer *tokenizer_of(const char *folder)
{
    const cr_run_words none = {.num_made = 0};
    char *file = cr_path_join(folder, "config.yaml");
    cr_tokenizer *out = NULL;
    cr_config config = {0};
    cr_err err = {0};

    if (cr_run_words_load(&none, file, &config, &err) == CR_OK) {
        cr_note(cr_tokenizer_open(config.train.model_path, &out, &err));
        cr_config_free(&config);
    }
    if (!out) cr_log(CR_LOG_WARN, "why", "tokens are shown without their text: %s", err.msg);
    cr_free(file);
    return out;
}

static void print_text(const cr_why_args *args, const cri_terms_file *f, const char *folder,
                       cr_buf *out)
{
    cr_tokenizer *tokenizer = args->samples.num ? tokenizer_of(folder) : NULL;

    if (!args->samples.num) cri_terms_show_step(f, MAX_SHOWN, out);
    for (size_t i = 0; i < args->samples.num; i++) {
        if (i) cr_buf_addc(out, '\n');
        cri_terms_show_sample(f, cri_terms_find(f, args->samples.word[i]), tokenizer, out);
    }
    cr_tokenizer_close(tokenizer);
}

/* A number of the step's metrics; NaN: it is not there. */
static double metric_of(const char *folder, int64_t step, const char *name)
{
    json_t *lines = cr_metrics_lines(folder), *line;
    double out = NAN;
    size_t i;

    json_array_foreach(lines, i, line)
    {
        const json_t *of = json_object_get(line, "step"), *x = json_object_get(line, name);
        if (json_is_integer(of) && json_integer_value(of) == step && json_is_number(x))
            out = json_number_value(x);
    }
    json_decref(lines);
    return out;
}

/* The step once more, in which the gradient of this sample alone is derived: its norm, into the sample. */
static cr_status add_norm(const cr_why_args *args, const char *folder, json_t *sample, cr_err *err)
{
    const uint64_t id = strtoull(json_string_value(json_object_get(sample, "id")), NULL, 16);
    char *out = cr_path_join(folder, "alone");
    const cr_replay_args replay = {.run = args->run,
                                   .step = args->step,
                                   .out = out,
                                   .device = args->device,
                                   .should_overwrite = true,
                                   .only = &id,
                                   .is_quiet = true,
                                   .hosts = args->hosts};
    bool ignored;

    if (cr_replay_run(&replay, &ignored, err) == CR_OK) {
        const double norms[] = {metric_of(out, args->step, "actor_train/grad_norm"),
                                metric_of(folder, args->step, "actor_train/grad_norm")};
        if (isfinite(norms[0]) && isfinite(norms[1])) {
            json_object_set_new(sample, "gradient_norm", json_real(norms[0]));
            json_object_set_new(sample, "step_gradient_norm", json_real(norms[1]));
            cr_note(cr_remove_tree(out, err));
        } else {
            cr_fail(err, CR_ENUMERIC,
                    "--gradient: the gradient of %s, or of the step, is not finite",
                    json_string_value(json_object_get(sample, "id")));
        }
    }
    cr_free(out);
    return err->status;
}

static cr_status add_norms(const cr_why_args *args, const char *folder, const cri_terms_file *f,
                           cr_err *err)
{
    const json_t *updates = json_object_get(json_object_get(f->head, "sums"), "updates");

    if (fabs(json_number_value(updates) - 1) > 0)
        return cr_fail(
            err, CR_EUSAGE,
            "--gradient: the step has %.0f updates of actor_train, and a gradient of one "
            "sample alone is known of a step with one",
            json_number_value(updates));
    for (size_t i = 0; i < args->samples.num; i++)
        CR_TRY(add_norm(args, folder, cri_terms_find(f, args->samples.word[i]), err));
    return CR_OK;
}

/* Read folder's file and print. is_replayed: it is not that of args->run itself. */
static cr_status show(const cr_why_args *args, const char *folder, bool is_replayed, cr_err *err)
{
    char *path = cri_terms_path(folder, args->step);
    cri_terms_file f = {0};
    cr_buf text = {0}, out = {0};

    CR_TRY_GOTO(out, cr_file_read(path, &text, err));
    CR_TRY_GOTO(out, cri_terms_read(&text, path, &f, err));
    if (is_replayed) CR_TRY_GOTO(out, check_origin(args, &f, path, err));
    CR_TRY_GOTO(out, check_samples(args, &f, path, err));
    if (args->has_gradient) CR_TRY_GOTO(out, add_norms(args, folder, &f, err));
    if (args->has_json)
        CR_TRY_GOTO(out, print_json(args, &f, &out, err));
    else
        print_text(args, &f, folder, &out);
    fwrite(out.data, 1, out.num_bytes, stdout);
    if (fflush(stdout) != 0) cr_fail(err, CR_EIO, "stdout is closed");
out:
    cri_terms_file_free(&f);
    cr_buf_free(&text);
    cr_buf_free(&out);
    cr_free(path);
    return err->status;
}

static bool has_terms(const char *folder, int64_t step)
{
    char *path = cri_terms_path(folder, step);
    bool is_there = cr_file_exists(path);

    cr_free(path);
    return is_there;
}

static cr_status replay(const cr_why_args *args, const char *out, cr_err *err)
{
    const cr_replay_args replay = {.run = args->run,
                                   .step = args->step,
                                   .out = out,
                                   .device = args->device,
                                   .should_overwrite = args->should_overwrite,
                                   .has_terms = true,
                                   .is_quiet = true,
                                   .hosts = args->hosts};
    bool differ;

    CR_TRY(cr_replay_run(&replay, &differ, err));
    if (differ)
        cr_log(CR_LOG_WARN, "why",
               "the step's numbers are not quite those of the run (croll replay %s --step %lld "
               "names them): terms are of the step as it was trained again",
               args->run, (long long)args->step);
    return CR_OK;
}

cr_status cr_why_run(const cr_why_args *args, cr_err *err)
{
    char *out;

    if (args->has_gradient && (!args->samples.num || has_terms(args->run, args->step)))
        return cr_fail(err, CR_EUSAGE,
                       "--gradient needs --sample, and the run itself, not one of its replays");
    if (has_terms(args->run, args->step)) return show(args, args->run, false, err);
    out = args->out ? cr_strdup(args->out) : cr_replay_default_out("why", args->run, args->step);
    if (!args->should_overwrite && has_terms(out, args->step))
        cr_note(show(args, out, true, err));
    else if (replay(args, out, err) == CR_OK)
        cr_note(show(args, out, true, err));
    cr_free(out);
    return err->status;
}
