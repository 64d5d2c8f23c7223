/* checkpoint.c -- see checkpoint.h.
 *
 * Folders appear and disappear by one rename: what is being written or removed is named *.tmp, and
 * cr_checkpoint_clean removes what a killed run left of it. A kill between any two calls below leaves
 * `latest` at a complete checkpoint (tests/unit/pipelines_checkpoint.c tries every one).
 */
#include "pipelines/checkpoint.h"
#include "actors/roles.h"
#include "base/digest.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Every file below folder/inner, hashed, into files. Names in order, so the manifest is repeatable. */
static cr_status list_files(const char *folder, const char *inner, json_t *files, cr_err *err)
{
    char *path = *inner ? cr_path_join(folder, inner) : cr_strdup(folder), *names[1024];
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t num = 0;

    while (dir && num < CR_COUNT(names) && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            names[num++] = cr_strdup(entry->d_name);
    if (!dir)
        cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    else
        closedir(dir);
    if (num == CR_COUNT(names))
        cr_fail(err, CR_EIO, "%s: more than %zu files are none of a checkpoint", path, num - 1);
    qsort(names, num, sizeof *names, by_name);
    for (size_t i = 0; i < num; i++) {
        char *name = *inner ? cr_path_join(inner, names[i]) : cr_strdup(names[i]),
             *whole = cr_path_join(folder, name), hex[65];
        int64_t size;
        if (err->status != CR_OK || strcmp(name, "manifest.json") == 0) {
        } else if (cr_dir_exists(whole)) {
            cr_note(list_files(folder, name, files, err));
        } else if (cr_digest_file(whole, hex, &size, err) == CR_OK) {
            json_object_set_new(files, name,
                                json_pack("{s:I,s:s}", "size", (json_int_t)size, "sha256", hex));
        }
        cr_free(name);
        cr_free(whole);
        cr_free(names[i]);
    }
    cr_free(path);
    return err->status;
}

cr_status cr_checkpoint_begin(const char *output_dir, int64_t step, char **folder, cr_err *err)
{
    cr_err ignored = {0};
    char *state;

    *folder = cr_asprintf("%s/checkpoint-%lld.tmp", output_dir, (long long)step);
    state = cr_path_join(*folder, "state");
    if (cr_remove_tree(*folder, err) == CR_OK) cr_note(cr_mkdirs(state, err));
    cr_free(state);
    if (err->status == CR_OK) return CR_OK;
    cr_note(cr_remove_tree(*folder, &ignored));
    cr_free(*folder);
    *folder = NULL;
    return err->status;
}

/* N of checkpoint-N, or -1: another name. */
static long long step_of(const char *name)
{
    char *end;
    long long step;

    if (strncmp(name, "checkpoint-", 11) != 0 || name[11] < '0' || name[11] > '9') return -1;
    step = strtoll(name + 11, &end, 10);
    return *end ? -1 : step;
}

/* Steps of the checkpoints in a folder, in no order; owned by the caller. */
static long long *list_steps(const char *output_dir, size_t *num)
{
    DIR *dir = opendir(output_dir);
    struct dirent *entry;
    long long *steps = NULL;
    size_t capacity = 0;

    *num = 0;
    while (dir && (entry = readdir(dir))) {
        long long step = step_of(entry->d_name);
        if (step < 0) continue;
        if (*num == capacity) {
            steps = cr_realloc(steps, capacity * sizeof *steps, (capacity + 64) * sizeof *steps);
            capacity += 64;
        }
        steps[(*num)++] = step;
    }
    if (dir) closedir(dir);
    return steps;
}

bool cr_checkpoint_is_name(const char *name)
{
    size_t num_digits;

    if (strcmp(name, "latest") == 0 || strcmp(name, "latest.tmp") == 0) return true;
    if (strncmp(name, "checkpoint-", 11) != 0) return false;
    num_digits = strspn(name + 11, "0123456789");
    name += 11 + num_digits;
    return num_digits && (!*name || strcmp(name, ".tmp") == 0 || strcmp(name, ".old.tmp") == 0);
}

void cr_checkpoint_clean(const char *output_dir)
{
    DIR *dir = opendir(output_dir);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        bool is_partial = cr_checkpoint_is_name(entry->d_name) && entry->d_name[0] == 'c' &&
                          strstr(entry->d_name, ".tmp");
        if (is_partial || strcmp(entry->d_name, "latest.tmp") == 0) {
            char *path = cr_path_join(output_dir, entry->d_name);
            cr_err failure = {0};
            if (cr_remove_tree(path, &failure) != CR_OK)
                cr_log(CR_LOG_WARN, "checkpoint", "%s", failure.msg);
            else if (is_partial)
                cr_log(CR_LOG_INFO, "checkpoint", "%s, of a run that was killed, is removed", path);
            cr_free(path);
        }
    }
    if (dir) closedir(dir);
}

/* checkpoint-STEP ends to be there, at once; its files go afterwards. */
static void remove_one(const char *output_dir, long long step)
{
    char *path = cr_asprintf("%s/checkpoint-%lld", output_dir, step),
         *gone = cr_asprintf("%s/checkpoint-%lld.old.tmp", output_dir, step);
    cr_err failure = {0};

    if (cr_remove_tree(gone, &failure) == CR_OK && rename(path, gone) != 0)
        cr_fail(&failure, CR_EIO, "cannot rename %s: %s", path, strerror(errno));
    if (failure.status == CR_OK) cr_note(cr_remove_tree(gone, &failure));
    if (failure.status != CR_OK) cr_log(CR_LOG_WARN, "checkpoint", "%s", failure.msg);
    cr_free(path);
    cr_free(gone);
}

/* Remove the oldest ones beyond `keep`, never the one that `latest` names now. */
static void prune(const char *output_dir, long long newest, int64_t keep)
{
    size_t num;
    long long *steps = list_steps(output_dir, &num);

    while (keep > 0 && num > (size_t)keep) {
        size_t oldest = num;
        for (size_t i = 0; i < num; i++)
            if (steps[i] != newest && (oldest == num || steps[i] < steps[oldest])) oldest = i;
        if (oldest == num) break;
        remove_one(output_dir, steps[oldest]);
        steps[oldest] = steps[--num];
    }
    cr_free(steps);
}

/* folder becomes checkpoint-STEP. One of an earlier life of this run is there until the very moment,
 * where the file system can exchange two names. */
static cr_status commit(const char *output_dir, const char *folder, long long step, cr_err *err)
{
    char *target = cr_asprintf("%s/checkpoint-%lld", output_dir, step);

    if (!cr_dir_exists(target)) {
        if (rename(folder, target) != 0)
            cr_fail(err, CR_EIO, "cannot rename %s: %s", folder, strerror(errno));
    } else if (renameat2(AT_FDCWD, folder, AT_FDCWD, target, RENAME_EXCHANGE) == 0) {
        cr_note(cr_remove_tree(folder, err));
    } else {
        remove_one(output_dir, step);
        if (rename(folder, target) != 0)
            cr_fail(err, CR_EIO, "cannot rename %s: %s", folder, strerror(errno));
    }
    cr_folder_sync(output_dir);
    cr_free(target);
    return err->status;
}

cr_status cr_checkpoint_finish(const char *output_dir, const char *folder, int64_t step,
                               int64_t keep, cr_err *err)
{
    json_t *root = json_object(), *files = json_object();
    char *manifest = cr_path_join(folder, "manifest.json");
    char *link = cr_path_join(output_dir, "latest"),
         *fresh = cr_asprintf("%s/latest.tmp", output_dir), name[64];
    cr_buf text = {0};

    json_object_set_new(root, "step", json_integer(step));
    json_object_set_new(root, "files", files);
    CR_TRY_GOTO(out, list_files(folder, "", files, err));
    CR_TRY_GOTO(out, cr_json_add_value(&text, root, err));
    CR_TRY_GOTO(out, cr_file_write_atomic(manifest, text.data, text.num_bytes, err));
    cr_folder_sync(folder);
    CR_TRY_GOTO(out, commit(output_dir, folder, step, err));
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)step);
    unlink(fresh);
    if (symlink(name, fresh) != 0 || rename(fresh, link) != 0) {
        cr_fail(err, CR_EIO, "cannot set the link %s: %s", link, strerror(errno));
        goto out;
    }
    cr_folder_sync(output_dir);
    prune(output_dir, step, keep);
out:
    json_decref(root);
    cr_buf_free(&text);
    cr_free(manifest);
    cr_free(link);
    cr_free(fresh);
    return err->status;
}

/* The step that the folder's own name says, wherever a link to it is; -1: another name. */
static long long step_of_folder(const char *path)
{
    char *real = realpath(path, NULL), *slash = real ? strrchr(real, '/') : NULL;
    long long step = slash ? step_of(slash + 1) : -1;

    free(real);
    return step;
}

static cr_status check_step(const char *path, const char *manifest, json_t *root, cr_err *err)
{
    long long name = step_of_folder(path), step = json_integer_value(json_object_get(root, "step"));

    if (step < 0 || step >= INT64_MAX)
        return cr_fail(err, CR_EFORMAT, "%s is of step %lld (damaged?)", manifest, step);
    if (name >= 0 && name != step)
        return cr_fail(err, CR_EFORMAT,
                       "%s is of step %lld, its folder is checkpoint-%lld (damaged?)", manifest,
                       step, name);
    return CR_OK;
}

void cr_checkpoint_prune(const char *output_dir, const char *resumed, int64_t keep)
{
    char *latest = cr_path_join(output_dir, "latest");
    long long step = step_of_folder(resumed);

    if (step >= 0 && step == step_of_folder(latest)) prune(output_dir, step, keep);
    cr_free(latest);
}

/* A name of list_files: below the folder, never above it. */
static bool is_inside(const char *name)
{
    for (const char *p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (*p == 0 || *p == '/' || strncmp(p, "../", 3) == 0 || strcmp(p, "..") == 0) return false;
    return true;
}

cr_status cr_checkpoint_verify(const char *path, cr_err *err)
{
    char *manifest = cr_path_join(path, "manifest.json"), hex[65];
    json_t *root = NULL, *files, *entry;
    const char *name;
    int64_t size;

    if (!cr_dir_exists(path)) {
        cr_fail(err, CR_EIO, "there is no checkpoint at %s", path);
    } else if (!cr_file_exists(manifest)) {
        cr_fail(err, CR_EFORMAT, "%s has no manifest.json: it is not a complete checkpoint", path);
    } else if (cr_json_read_file(manifest, &root, err) == CR_OK) {
        files = json_object_get(root, "files");
        if (json_object_size(files) == 0 || !json_is_integer(json_object_get(root, "step")))
            cr_fail(err, CR_EFORMAT, "%s names no files or no step (damaged?)", manifest);
        else
            cr_note(check_step(path, manifest, root, err));
        json_object_foreach(files, name, entry)
        {
            char *file = cr_path_join(path, name);
            const char *want = json_string_value(json_object_get(entry, "sha256"));
            if (err->status == CR_OK && !is_inside(name))
                cr_fail(err, CR_EFORMAT, "%s names %s, which is not inside of it (damaged?)",
                        manifest, name);
            if (err->status == CR_OK && cr_digest_file(file, hex, &size, err) == CR_OK &&
                (!want || strcmp(want, hex) != 0))
                cr_fail(err, CR_EFORMAT, "%s is not what %s says (damaged?)", file, manifest);
            cr_free(file);
        }
    }
    json_decref(root);
    cr_free(manifest);
    return err->status;
}

/* Where `latest` leads; if it is not there (killed right before it was set) the newest one with a
 * manifest. NULL: no such checkpoint. */
static char *find_latest(const char *output_dir)
{
    char *path = cr_path_join(output_dir, "latest");
    long long newest = -1, *steps;
    size_t num;

    if (cr_dir_exists(path)) return path;
    cr_free(path);
    steps = list_steps(output_dir, &num);
    for (size_t i = 0; i < num; i++) {
        char *manifest = cr_asprintf("%s/checkpoint-%lld/manifest.json", output_dir, steps[i]);
        if (steps[i] > newest && cr_file_exists(manifest)) newest = steps[i];
        cr_free(manifest);
    }
    cr_free(steps);
    if (newest < 0) return NULL;
    cr_log(CR_LOG_WARN, "run", "%s/latest is not there: taking checkpoint-%lld", output_dir,
           newest);
    return cr_asprintf("%s/checkpoint-%lld", output_dir, newest);
}

/* What to do instead: the newest checkpoint of the run before this one. */
static void advise(const cr_config *config, const char *path, cr_err *err)
{
    long long step = step_of_folder(path), older = -1, *steps;
    cr_err why = *err;
    size_t num;

    steps = list_steps(config->checkpoint_dir, &num);
    for (size_t i = 0; i < num; i++) {
        char *other =
            cr_asprintf("%s/checkpoint-%lld/manifest.json", config->checkpoint_dir, steps[i]);
        if (steps[i] > older && steps[i] < step && cr_file_exists(other)) older = steps[i];
        cr_free(other);
    }
    cr_free(steps);
    if (older < 0) return;
    *err = (cr_err){0};
    cr_fail(err, why.status, "%s (an older one: resume_from_checkpoint=%s/checkpoint-%lld)",
            why.msg, config->checkpoint_dir, older);
}

/* The trained role can go on from there. */
static cr_status check_state(const cr_config *config, const char *path, cr_err *err)
{
    const char *role = cr_role_name(CR_ROLE_TRAIN, config);
    char *state = cr_asprintf("%s/state/%s.json", path, role);

    if (!cr_file_exists(state))
        cr_fail(
            err, CR_EFORMAT,
            "%s is not there, so it cannot be resumed (was it written with save_only_model, or by "
            "another pipeline? its model folder is good as pretrain)",
            state);
    cr_free(state);
    return err->status;
}

cr_status cr_checkpoint_find(const cr_config *config, char **path, int64_t *first_step, cr_err *err)
{
    char *manifest;
    json_t *root = NULL;

    *path = NULL;
    *first_step = 0;
    if (!config->resume) return CR_OK;
    *path = *config->resume ? cr_strdup(config->resume) : find_latest(config->checkpoint_dir);
    if (!*path) return CR_OK; /* cr_run_open warns */
    manifest = cr_path_join(*path, "manifest.json");
    if (cr_checkpoint_verify(*path, err) != CR_OK)
        advise(config, *path, err);
    else if (check_state(config, *path, err) == CR_OK &&
             cr_json_read_file(manifest, &root, err) == CR_OK)
        *first_step = json_integer_value(json_object_get(root, "step")) + 1;
    json_decref(root);
    cr_free(manifest);
    if (err->status == CR_OK) return CR_OK;
    err->status = CR_ECONFIG;
    cr_free(*path);
    *path = NULL;
    return cr_fail_add(err, "resume_from_checkpoint");
}

size_t cr_checkpoint_roles(const char *path, char *roles[CR_CHECKPOINT_MOST_ROLES])
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t num = 0;

    while (dir && num < CR_CHECKPOINT_MOST_ROLES && (entry = readdir(dir))) {
        char *config = cr_asprintf("%s/%s/config.json", path, entry->d_name);
        if (entry->d_name[0] != '.' && cr_file_exists(config))
            roles[num++] = cr_strdup(entry->d_name);
        cr_free(config);
    }
    if (dir) closedir(dir);
    qsort(roles, num, sizeof *roles, by_name);
    return num;
}
