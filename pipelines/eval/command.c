/* command.c -- see command.h. */
#include "pipelines/eval/command.h"
#include "base/args.h"
#include "base/json.h"
#include "configs/configs.h"
#include "models/files/peft.h"
#include "pipelines/checkpoint.h"
#include "pipelines/eval/eval.h"
#include "pipelines/eval/table.h"
#include "pipelines/start/start.h"
#include "pipelines/start/words.h"
#include "samples/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the parts of MODEL are; owned. */
typedef struct source {
    char *model, *adapter, *run;
    char *out;
    cr_run_words keys;
} source;

static void source_free(source *s)
{
    cr_run_words_free(&s->keys);
    cr_free(s->model);
    cr_free(s->adapter);
    cr_free(s->run);
    cr_free(s->out);
}

static bool has_file(const char *folder, const char *name)
{
    char *path = cr_path_join(folder, name);
    bool is_there = cr_file_exists(path);

    cr_free(path);
    return is_there;
}

/* The folder that a path is in; owned. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? cr_strndup(path, (size_t)(slash - path)) : cr_strdup(".");
}

/* A checkpoint is its trained role's folder, and its run is beside it. */
static cr_status open_checkpoint(source *s, cr_err *err)
{
    char *roles[CR_CHECKPOINT_MAX_ROLES], *real = realpath(s->model, NULL), *run, *path;
    size_t num = cr_checkpoint_roles(s->model, roles);

    if (num == 0) {
        cr_fail(err, CR_ECONFIG, "%s is a checkpoint without a model", s->model);
    } else {
        CR_CHECK(real, "%s is gone", s->model);
        run = folder_of(real);
        path = cr_path_join(run, "config.yaml");
        if (!s->run && cr_file_exists(path)) s->run = cr_strdup(path);
        cr_free(path);
        cr_free(run);
        cr_free(s->model);
        s->model = cr_path_join(real, roles[0]);
    }
    for (size_t i = 0; i < num; i++)
        cr_free(roles[i]);
    free(real);
    return err->status;
}

/* Adapters have the name of their base. */
static cr_status open_adapter(source *s, cr_err *err)
{
    cr_adapter_options options = {0};
    char *base = NULL;

    CR_TRY(cr_peft_config_read(s->model, &options, &base, err));
    cr_peft_options_fini(&options);
    if (!base)
        return cr_fail(err, CR_ECONFIG,
                       "%s/" CR_PEFT_CONFIG " names no base model: croll eval BASE --adapter %s",
                       s->model, s->model);
    cr_free(s->adapter);
    s->adapter = s->model;
    s->model = base;
    return CR_OK;
}

/* Files of sft and dpo. What else may be wrong with them is said when they are loaded. */
static bool has_no_rewards(const char *path)
{
    cr_diagnostics d = {0};
    cr_yaml yaml = {0};
    bool is_so = false;

    if (!cr_file_exists(path)) return false;
    cr_yaml_load(&yaml, path, NULL, NULL, 0, &d);
    is_so = yaml.root && !cr_node_get(yaml.root, "rewards");
    cr_yaml_free(&yaml);
    cr_diagnostics_free(&d);
    return is_so;
}

static cr_status find_source(source *s, const cr_eval_args *a, cr_err *err)
{
    s->model = cr_strdup(a->model);
    s->adapter = a->adapter ? cr_strdup(a->adapter) : NULL;
    s->run = a->run ? cr_strdup(a->run) : NULL;
    if (cr_dir_exists(s->model) && has_file(s->model, "manifest.json"))
        CR_TRY(open_checkpoint(s, err));
    if (cr_dir_exists(s->model) && has_file(s->model, CR_PEFT_CONFIG) &&
        !has_file(s->model, "config.json"))
        CR_TRY(open_adapter(s, err));
    if (!s->run)
        return cr_fail(err, CR_EUSAGE,
                       "which rewards? --run FILE names the file of a run, whose rewards, "
                       "templates and lengths count");
    if (has_no_rewards(s->run))
        return cr_fail(err, CR_EUSAGE, "%s has no rewards: --run names the file of an rlvr run",
                       s->run);
    return CR_OK;
}

/* "output/eval/NAME" from the last two parts of a path, of a name on the hub likewise. */
static char *default_out(const char *model)
{
    char *name = cr_strdup(model), *begin = name;
    size_t n = strlen(name);
    int num = 0;

    while (n > 1 && name[n - 1] == '/')
        name[--n] = 0;
    for (size_t i = n; i-- > 0 && num < 2;)
        if (name[i] == '/' && ++num == 2) begin = name + i + 1;
    for (char *p = begin; *p; p++)
        if (*p == '/' || *p == '.') *p = '-';
    while (*begin == '-')
        begin++;
    begin = cr_asprintf("output/eval/%s", *begin ? begin : "model");
    cr_free(name);
    return begin;
}

/* ---- words of the configuration ---- */

static void add_files(source *s, const cr_words *files)
{
    cr_buf word = {0};

    if (!files->num) return;
    cr_buf_adds(&word, "validation.data_args.file_name=[");
    for (size_t i = 0; i < files->num; i++) {
        if (i) cr_buf_addc(&word, ',');
        cr_json_add_string(&word, files->word[i], strlen(files->word[i]));
    }
    cr_buf_addc(&word, ']');
    cr_run_words_take(&s->keys, word.data);
}

/* Keys of a worker block are the engine's, sampling and rows are the validation's; all others are the file's. */
static cr_status add_key(source *s, const char *word, cr_err *err)
{
    static const char *const places[][2] = {
        {"generating_args.", "validation."}, {"domain_generating_args.", "validation."},
        {"data_args.", "validation."},       {"model_args.", "actor_infer."},
        {"strategy_args.", "actor_infer."},  {"device_mapping=", "actor_infer."},
        {"system_envs=", "actor_infer."},
    };
    const char *place = "";

    if (!strchr(word, '=')) return cr_fail(err, CR_EUSAGE, "'%s' is not key=value", word);
    for (size_t i = 0; i < CR_COUNT(places); i++)
        if (strncmp(word, places[i][0], strlen(places[i][0])) == 0) place = places[i][1];
    cr_run_words_take(&s->keys, cr_asprintf("%s%s", place, word));
    return CR_OK;
}

static cr_status make_words(source *s, const cr_eval_args *a, cr_err *err)
{
    static const char *const fixed[] = {"val_only=true",
                                        "as_fsdp2=true",
                                        "track_with=none",
                                        "checkpoint_config=null",
                                        "actor_train.model_args.model_name_or_path=null",
                                        "actor_infer.model_args.model_name_or_path=null"};

    s->out = a->out ? cr_strdup(a->out) : default_out(a->model);
    for (size_t i = 0; i < CR_COUNT(fixed); i++)
        cr_words_add(&s->keys.words, fixed[i]);
    cr_words_add(&s->keys.words, a->should_overwrite ? "resume_from_checkpoint=false"
                                                     : "resume_from_checkpoint=true");
    cr_run_words_add_text(&s->keys, "pretrain", s->model);
    cr_run_words_add_text(&s->keys, "output_dir", s->out);
    if (s->adapter) cr_run_words_add_text(&s->keys, "val_adapter", s->adapter);
    if (a->device) cr_run_words_add_text(&s->keys, "device", a->device);
    if (a->num != CR_NOT_GIVEN)
        cr_run_words_take(
            &s->keys,
            cr_asprintf("validation.generating_args.num_return_sequences=%lld", (long long)a->num));
    if (a->image_folder)
        cr_run_words_add_text(&s->keys, "validation.data_args.image_folder", a->image_folder);
    add_files(s, &a->data);
    for (size_t i = 0; i < a->keys.num; i++)
        CR_TRY(add_key(s, a->keys.word[i], err));
    return CR_OK;
}

/* ---- the command ---- */

/* The table of the folder, to stdout. */
static cr_status show(const char *folder, bool has_json, cr_err *err)
{
    char *path = cr_path_join(folder, CR_EVAL_TABLE);
    cr_buf file = {0}, text = {0};
    json_t *table = NULL;

    CR_TRY_GOTO(out, cr_file_read(path, &file, err));
    CR_TRY_GOTO(out, cr_json_parse(file.data, file.num_bytes, path, &table, err));
    if (!has_json) cr_eval_table_text(table, &text);
    fputs(has_json ? file.data : text.data, stdout);
    if (!has_json) printf("\nsamples: %s/samples.jsonl   page: %s/eval.html\n", folder, folder);
    if (fflush(stdout) != 0) cr_fail(err, CR_EIO, "stdout is closed");
out:
    json_decref(table);
    cr_buf_free(&file);
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}

cr_status cr_eval_run(const cr_eval_args *a, cr_err *err)
{
    const cr_start_args start = {.should_overwrite = a->should_overwrite, .hosts = a->hosts};
    source s = {.model = NULL};
    cr_config config = {0};

    CR_TRY_GOTO(out, find_source(&s, a, err));
    CR_TRY_GOTO(out, make_words(&s, a, err));
    if (a->device) unsetenv("CROLL_DEVICE");
    CR_TRY_GOTO(out, cr_run_words_load(&s.keys, s.run, &config, err));
    cr_envs_set(config.envs);
    CR_TRY_GOTO(out, cr_start_run(&config, &start, err));
    cr_note(show(config.output_dir, a->has_json, err));
out:
    cr_config_free(&config);
    source_free(&s);
    return err->status;
}
