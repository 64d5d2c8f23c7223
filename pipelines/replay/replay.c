/* replay.c -- see replay.h. */
#include "pipelines/replay/replay.h"
#include "configs/configs.h"
#include "pipelines/bisect/saved.h"
#include "pipelines/checkpoint.h"
#include "pipelines/replay/recorded.h"
#include "pipelines/start/start.h"
#include "pipelines/start/words.h"
#include "reports/rollout_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reward_change {
    uint64_t id;
    char *block; /* of rewards; NULL: the only one (owned) */
    double reward;
} reward_change;

typedef struct replay {
    const cr_replay_args *args;
    cr_config config;       /* of the run */
    char *file, *out;       /* its config.yaml (owned), and the folder of the replay (owned) */
    cr_words keys;          /* changes, borrowed from args */
    reward_change *rewards; /* [num_rewards] (owned) */
    size_t num_rewards, capacity;
    const cr_config *trains; /* the configuration of the step that is changed */
} replay;

static void replay_free(replay *r)
{
    cr_config_free(&r->config);
    cr_words_free(&r->keys);
    for (size_t i = 0; i < r->num_rewards; i++)
        cr_free(r->rewards[i].block);
    cr_free(r->rewards);
    cr_free(r->file);
    cr_free(r->out);
}

/* ---- what is asked for ---- */

/* The line of a step, the last one if there are several; NULL: none. Owned by the caller. */
static json_t *metrics_of(const char *folder, int64_t step)
{
    json_t *lines = cr_metrics_lines(folder), *found = NULL, *line;
    size_t i;

    json_array_foreach(lines, i, line)
    {
        const json_t *of = json_object_get(line, "step");
        if (json_is_integer(of) && json_integer_value(of) == step) found = line;
    }
    json_incref(found);
    json_decref(lines);
    return found;
}

/* "reward.ID=X" or "reward.ID.BLOCK=X"; false: it is neither. */
static bool read_reward(const char *change, reward_change *out)
{
    const char *id = change + 7, *equals = strrchr(change, '=');
    char *end;

    *out = (reward_change){0};
    if (strncmp(change, "reward.", 7) != 0 || strspn(id, "0123456789abcdef") != 16 || !equals)
        return false;
    out->id = strtoull(id, NULL, 16);
    out->reward = strtod(equals + 1, &end);
    if (end == equals + 1 || *end || !(fabs(out->reward) <= CR_SCORE_LIMIT)) return false;
    if (equals == id + 16) return true;
    if (id[16] != '.' || equals <= id + 17) return false;
    out->block = cr_strndup(id + 17, (size_t)(equals - id - 17));
    return true;
}

static cr_status sort_changes(replay *r, cr_err *err)
{
    for (size_t i = 0; i < r->args->changes.num; i++) {
        const char *word = r->args->changes.word[i];
        reward_change change;
        if (read_reward(word, &change)) {
            r->rewards = cr_grow(r->rewards, r->num_rewards, &r->capacity, sizeof *r->rewards);
            r->rewards[r->num_rewards++] = change;
        } else if (strncmp(word, "reward.", 7) == 0 || !strchr(word, '=')) {
            return cr_fail(err, CR_EUSAGE,
                           "'%s' is neither reward.ID=X or reward.ID.BLOCK=X (ID: 16 hexadecimal "
                           "digits of a sample; X within +-%g) nor key=value",
                           word, CR_SCORE_LIMIT);
        } else {
            cr_words_add(&r->keys, word);
        }
    }
    return CR_OK;
}

char *cr_replay_default_out(const char *kind, const char *run, int64_t step)
{
    char *name = cr_strdup(run), *slash;
    size_t n = strlen(name);
    char *out;

    while (n > 1 && name[n - 1] == '/')
        name[--n] = 0;
    slash = strrchr(name, '/');
    out = cr_asprintf("output/%s/%s-step-%lld", kind, slash ? slash + 1 : name, (long long)step);
    cr_free(name);
    return out;
}

/* A folder that is not there, or of another replay, which is removed. */
static cr_status clear_out(const replay *r, cr_err *err)
{
    char *path = cr_path_join(r->out, "config.yaml");
    cr_config of = {0};
    const cr_run_words none = {.num_made = 0};

    if (!cr_dir_exists(r->out)) goto out;
    if (!r->args->should_overwrite) {
        cr_fail(err, CR_ECONFIG,
                "%s is there (--overwrite replaces a replay, --out DIR names "
                "another folder)",
                r->out);
    } else if (cr_run_words_load(&none, path, &of, err) == CR_OK) {
        if (of.rollouts_from)
            cr_note(cr_remove_tree(r->out, err));
        else
            cr_fail(err, CR_ECONFIG, "%s is not the folder of a replay: --overwrite leaves it",
                    r->out);
        cr_config_free(&of);
    }
out:
    cr_free(path);
    return err->status;
}

/* The run has done the step, so there is something to compare with. */
static cr_status check_done(const replay *r, cr_err *err)
{
    const long long step = r->args->step;
    char *samples = cr_recorded_path(r->args->run, step);
    json_t *line = metrics_of(r->args->run, step);

    if (!cr_file_exists(samples))
        cr_fail(err, CR_EUSAGE, "%s is not there: the run has no samples of step %lld", samples,
                step);
    else if (!line)
        cr_fail(err, CR_EUSAGE,
                "%s/metrics.jsonl has no line of step %lld: the run ended while it trained it, and "
                "there is nothing to compare with (resume_from_checkpoint=true goes on with the "
                "run)",
                r->args->run, step);
    json_decref(line);
    cr_free(samples);
    return err->status;
}

static cr_status open(replay *r, cr_err *err)
{
    const cr_run_words none = {.num_made = 0};

    r->file = cr_path_join(r->args->run, "config.yaml");
    r->out = r->args->out ? cr_strdup(r->args->out)
                          : cr_replay_default_out("replay", r->args->run, r->args->step);
    CR_TRY(sort_changes(r, err));
    if (!cr_file_exists(r->file))
        cr_fail(err, CR_EUSAGE, "%s is not a folder of a run: it has no config.yaml", r->args->run);
    else
        cr_note(cr_run_words_load(&none, r->file, &r->config, err));
    CR_TRY(err->status);
    if (r->config.kind != CR_PIPELINE_RLVR || r->config.val_only)
        return cr_fail(err, CR_EUSAGE,
                       "%s is not an rlvr run: there are no samples to train on again",
                       r->args->run);
    CR_TRY(check_done(r, err));
    return clear_out(r, err);
}

/* ---- the steps ---- */

/* The reward of that block, or of the only one. */
static cr_status find_block(const cr_config *config, const cr_sample *s,
                            const reward_change *change, cr_sample_reward **out, cr_err *err)
{
    cr_buf names = {0};

    *out = NULL;
    for (size_t k = 0; k < s->num_rewards; k++) {
        const char *name = config->rewards[s->rewards[k].block].domain;
        if (change->block ? strcmp(name, change->block) == 0 : s->num_rewards == 1)
            *out = &s->rewards[k];
        cr_buf_addf(&names, "%s%s", k ? ", " : "", name);
    }
    if (!*out && change->block)
        cr_fail(err, CR_EUSAGE, "no block of rewards '%s' scored it (%s did)", change->block,
                names.data);
    else if (!*out)
        cr_fail(err, CR_EUSAGE, "several blocks of rewards scored it (%s): reward.ID.BLOCK=X",
                names.data);
    else if ((*out)->token_rewards)
        cr_fail(err, CR_EUSAGE,
                "it has token_rewards, which another reward would leave as they are (change a copy "
                "of the run's rollouts/ instead, which rollouts_from reads)");
    cr_buf_free(&names);
    return err->status;
}

static cr_status edit_one(const replay *r, const reward_change *change, cr_rollout *rollout,
                          cr_err *err)
{
    cr_sample_reward *x;
    size_t k = 0;

    while (k < rollout->num_samples && rollout->samples[k].id != change->id)
        k++;
    if (k == rollout->num_samples) return cr_fail(err, CR_EUSAGE, "the step has no such sample");
    CR_TRY(find_block(r->trains, &rollout->samples[k], change, &x, err));
    x->outcome = CR_OUTCOME_OK;
    x->score = x->reward = change->reward;
    cr_free(rollout->samples[k].token_rewards);
    rollout->samples[k].token_rewards = NULL;
    cr_sample_merge(r->trains, &rollout->samples[k]);
    return CR_OK;
}

static cr_status change(void *context, cr_rollout *rollout, cr_err *err)
{
    const replay *r = context;

    for (size_t i = 0; i < r->num_rewards; i++)
        if (edit_one(r, &r->rewards[i], rollout, err) != CR_OK)
            return cr_fail_add(err, "reward.%016llx", (unsigned long long)r->rewards[i].id);
    return CR_OK;
}

/* Steps up to end - 1 into the folder `out`, from a checkpoint or from the beginning (NULL). */
static cr_status train(replay *r, const char *from, int64_t end, const char *out, bool is_changed,
                       cr_err *err)
{
    static const char *const fixed[] = {"validation=null", "checkpoint_config=null",
                                        "track_with=none", "logging_dir=null"};
    const cr_start_args start = {.hosts = r->args->hosts,
                                 .end_step = end,
                                 .change = is_changed && r->num_rewards ? change : NULL,
                                 .change_context = r,
                                 .has_terms = is_changed && r->args->has_terms,
                                 .only = is_changed ? r->args->only : NULL};
    cr_run_words keys = {.num_made = 0};
    cr_config config = {0};

    for (size_t i = 0; i < CR_COUNT(fixed); i++)
        cr_words_add(&keys.words, fixed[i]);
    cr_run_words_add_text(&keys, "output_dir", out);
    cr_run_words_add_text(&keys, "rollouts_from", r->args->run);
    if (from)
        cr_run_words_add_text(&keys, "resume_from_checkpoint", from);
    else
        cr_words_add(&keys.words, "resume_from_checkpoint=false");
    cr_run_words_take(&keys, cr_asprintf("save_steps=%lld", (long long)r->config.max_steps));
    cr_run_words_add_text(&keys, "device", r->args->device ? r->args->device : r->config.device);
    for (size_t i = 0; is_changed && i < r->keys.num; i++)
        cr_words_add(&keys.words, r->keys.word[i]);
    if (cr_run_words_load(&keys, r->file, &config, err) == CR_OK) {
        cr_envs_set(config.envs);
        r->trains = &config;
        cr_note(cr_start_run(&config, &start, err));
        cr_config_free(&config);
    }
    cr_run_words_free(&keys);
    return err->status;
}

/* Changes count in the last step alone: the steps before it are trained in a folder of their own first. */
static cr_status train_all(replay *r, int64_t *from_step, cr_err *err)
{
    const int64_t step = r->args->step;
    char *before = cr_path_join(r->out, "before"), *from = NULL;

    *from_step = cr_checkpoint_newest(r->config.checkpoint_dir, step);
    if (*from_step >= 0)
        from = cr_asprintf("%s/checkpoint-%lld", r->config.checkpoint_dir, (long long)*from_step);
    if (r->args->changes.num && *from_step < step - 1) {
        cr_note(train(r, from, step, before, false, err));
        cr_free(from);
        from = cr_asprintf("%s/checkpoint-%lld", before, (long long)step - 1);
    }
    if (err->status == CR_OK) cr_note(train(r, from, step + 1, r->out, true, err));
    cr_free(from);
    cr_free(before);
    return err->status;
}

/* ---- what came of it ---- */

/* Nor what only engines and rewards count, nor validation, of all rows or of a domain's, which a replay has not. */
static bool is_compared(const char *name)
{
    return cri_metric_is_compared(name) && strncmp(name, "scheduler/", 10) != 0 &&
           strncmp(name, "final/", 6) != 0 && strncmp(name, "val_", 4) != 0 &&
           !strstr(name, "/val_");
}

typedef struct comparison {
    size_t num_equal, num_differ;
    json_t *changed; /* name: [recorded, replayed]; owned */
    bool has_weights, do_weights_differ;
    cri_difference weights; /* the first that differs */
} comparison;

/* A name that one of them does not have differs, too: null. */
static void compare_metric(comparison *c, const char *name, json_t *was, json_t *is)
{
    if (was && is && json_equal(was, is)) {
        c->num_equal++;
        return;
    }
    c->num_differ++;
    json_object_set_new(c->changed, name,
                        json_pack("[oo]", was ? json_incref(was) : json_null(),
                                  is ? json_incref(is) : json_null()));
}

static void compare_metrics(const replay *r, comparison *c)
{
    json_t *was = metrics_of(r->args->run, r->args->step), *is = metrics_of(r->out, r->args->step),
           *value;
    const char *name;

    c->changed = json_object();
    json_object_foreach(was, name, value)
    {
        if (is_compared(name)) compare_metric(c, name, value, json_object_get(is, name));
    }
    json_object_foreach(is, name, value)
    {
        if (is_compared(name) && !json_object_get(was, name)) compare_metric(c, name, NULL, value);
    }
    json_decref(was);
    json_decref(is);
}

static cr_status compare_weights(const replay *r, comparison *c, cr_err *err)
{
    char *folder[2] = {cr_asprintf("%s/checkpoint-%lld", r->config.checkpoint_dir,
                                   (long long)r->args->step),
                       cr_asprintf("%s/checkpoint-%lld", r->out, (long long)r->args->step)},
         *manifest = cr_path_join(folder[0], "manifest.json");

    c->has_weights = cr_file_exists(manifest);
    if (c->has_weights)
        cr_note(cri_saved_differ((const char *const *)folder, r->args->changes.num == 0, 0,
                                 &c->do_weights_differ, &c->weights, err));
    for (int k = 0; k < 2; k++)
        cr_free(folder[k]);
    cr_free(manifest);
    return err->status;
}

static void print_json(const replay *r, const comparison *c, int64_t from_step)
{
    cr_buf out = {0};
    cr_err never = {0};

    cr_buf_addf(&out, "{\"step\":%lld,\"from_checkpoint\":%lld,\"equal\":%zu,\"changed\":",
                (long long)r->args->step, (long long)from_step, c->num_equal);
    CR_CHECK(cr_json_add_value(&out, c->changed, &never) == CR_OK, "%s", never.msg);
    cr_buf_addf(&out, ",\"weights\":%s",
                !c->has_weights        ? "null"
                : c->do_weights_differ ? "\"differ\""
                                       : "\"equal\"");
    cr_buf_adds(&out, ",\"out\":");
    cr_json_add_string(&out, r->out, strlen(r->out));
    cr_buf_addc(&out, '}');
    puts(out.data);
    cr_buf_free(&out);
}

static void print_number(const json_t *x)
{
    if (json_is_number(x))
        printf(" %22.17g", json_number_value(x));
    else
        printf(" %22s", "-");
}

static void print_text(const replay *r, const comparison *c, int64_t from_step)
{
    const char *name;
    json_t *both;

    printf("step %lld of %s, trained again from ", (long long)r->args->step, r->args->run);
    if (from_step < 0)
        printf("the beginning");
    else
        printf("checkpoint-%lld", (long long)from_step);
    printf("%s\n%zu numbers equal, %zu differ\n", r->args->changes.num ? ", with changes" : "",
           c->num_equal, c->num_differ);
    if (c->num_differ) printf("\n  %-36s %22s %22s\n", "", "recorded", "replayed");
    json_object_foreach(c->changed, name, both)
    {
        printf("  %-36s", name);
        for (size_t k = 0; k < 2; k++)
            print_number(json_array_get(both, k));
        printf("\n");
    }
    if (c->has_weights && !c->do_weights_differ)
        printf("weights and moments after it: equal\n");
    else if (c->has_weights)
        printf("weights and moments after it: the first difference is %s: %s, now %s\n",
               c->weights.path, c->weights.a, c->weights.b);
    printf("%s: metrics.jsonl, rollouts/, checkpoint-%lld\n", r->out, (long long)r->args->step);
}

cr_status cr_replay_run(const cr_replay_args *args, bool *differ, cr_err *err)
{
    replay r = {.args = args};
    comparison c = {0};
    int64_t from_step;

    *differ = false;
    CR_TRY_GOTO(out, open(&r, err));
    CR_TRY_GOTO(out, train_all(&r, &from_step, err));
    compare_metrics(&r, &c);
    CR_TRY_GOTO(out, compare_weights(&r, &c, err));
    *differ = c.num_differ || c.do_weights_differ;
    if (args->is_quiet) goto out;
    args->has_json ? print_json(&r, &c, from_step) : print_text(&r, &c, from_step);
    if (fflush(stdout) != 0) cr_fail(err, CR_EIO, "stdout is closed");
out:
    json_decref(c.changed);
    replay_free(&r);
    return err->status;
}
