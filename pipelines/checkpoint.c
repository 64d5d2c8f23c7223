/* checkpoint.c -- see checkpoint.h.
 *
 * Folders appear and disappear by one rename: what is being written or removed is named *.tmp, and
 * cr_checkpoint_clean removes what a killed run left of it. A kill between any two calls below leaves
 * `latest` at a complete checkpoint (tests/unit/pipelines_checkpoint.c tries every one).
 */
#include "pipelines/checkpoint.h"
#include "actors/run_mark.h"
#include "base/digest.h"
#include "base/json.h"
#include "samples/protocol.h"

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

/* Every file below folder/inner, hashed, into files, and its sum into sums. Names in order, so the manifest is repeatable. */
static cr_status list_files(const char *folder, const char *inner, json_t *files, json_t *sums,
                            cr_err *err)
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
             *whole = cr_path_join(folder, name), hex[CR_DIGEST_TEXT];
        int64_t size;
        uint64_t sum;
        if (err->status != CR_OK || strcmp(name, "manifest.json") == 0) {
        } else if (cr_dir_exists(whole)) {
            cr_note(list_files(folder, name, files, sums, err));
        } else if (cr_digest_file_and_sum(whole, hex, &size, &sum, err) == CR_OK) {
            json_object_set_new(files, name,
                                json_pack("{s:I,s:s}", "size", (json_int_t)size, "sha256", hex));
            json_object_set_new(sums, name, json_integer((json_int_t)sum));
        }
        cr_free(name);
        cr_free(whole);
        cr_free(names[i]);
    }
    cr_free(path);
    return err->status;
}

cr_status cr_checkpoint_begin(const char *output_dir, int64_t step, const char *mark, char **folder,
                              cr_err *err)
{
    cr_err ignored = {0};
    char *state;

    *folder = cr_asprintf("%s/checkpoint-%lld.tmp", output_dir, (long long)step);
    state = cr_path_join(*folder, "state");
    if (cr_remove_tree(*folder, err) == CR_OK) cr_note(cr_mkdirs(state, err));
    if (mark && err->status == CR_OK) cr_note(cr_run_mark_write(*folder, mark, err));
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

uint64_t *cr_checkpoint_steps(const char *output_dir, size_t *num)
{
    DIR *dir = opendir(output_dir);
    struct dirent *entry;
    uint64_t *steps = NULL;
    size_t capacity = 0;

    *num = 0;
    while (dir && (entry = readdir(dir))) {
        long long step = step_of(entry->d_name);
        if (step < 0) continue;
        steps = cr_grow(steps, *num, &capacity, sizeof *steps);
        steps[(*num)++] = (uint64_t)step;
    }
    if (dir) closedir(dir);
    return steps;
}

bool cr_checkpoint_is_name(const char *name)
{
    size_t num_digits;

    if (strcmp(name, "latest") == 0 || strcmp(name, "latest.tmp") == 0 ||
        strcmp(name, "best") == 0 || strcmp(name, "best.tmp") == 0)
        return true;
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
        if (is_partial || strcmp(entry->d_name, "latest.tmp") == 0 ||
            strcmp(entry->d_name, "best.tmp") == 0) {
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

/* The step that the folder's own name says, wherever a link to it is; -1: another name. */
static long long step_of_folder(const char *path)
{
    char *real = realpath(path, NULL), *slash = real ? strrchr(real, '/') : NULL;
    long long step = slash ? step_of(slash + 1) : -1;

    free(real);
    return step;
}

/* Remove the oldest ones beyond `keep`, never those that `latest` and `best` name now. */
static void prune(const char *output_dir, long long newest, int64_t keep)
{
    size_t num;
    uint64_t *steps = cr_checkpoint_steps(output_dir, &num);
    char *link = cr_path_join(output_dir, "best");
    const long long best = step_of_folder(link);

    while (keep > 0 && num > (size_t)keep) {
        size_t oldest = num;
        for (size_t i = 0; i < num; i++)
            if (steps[i] != (uint64_t)newest && (long long)steps[i] != best &&
                (oldest == num || steps[i] < steps[oldest]))
                oldest = i;
        if (oldest == num) break;
        remove_one(output_dir, (long long)steps[oldest]);
        steps[oldest] = steps[--num];
    }
    cr_free(link);
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

/* What of `written` is not in the lists, as text; NULL: all is there. Owned by the caller. */
static char *missing(json_t *files, json_t *sums, const cr_written *written, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        const cr_written *w = &written[i];
        const json_t *entry = json_object_get(files, w->name);
        json_int_t size = json_integer_value(json_object_get(entry, "size"));
        const char *hex = json_string_value(json_object_get(entry, "sha256"));
        if (w->host[0] || w->num_bytes == 0) continue;
        if (!entry) return cr_asprintf("%s is not there", w->name);
        if (size != w->num_bytes)
            return cr_asprintf("%s has %lld bytes, the ranks have written %lld", w->name,
                               (long long)size, (long long)w->num_bytes);
        if (w->hex[0] ? strcmp(hex, w->hex) != 0
                      : (uint64_t)json_integer_value(json_object_get(sums, w->name)) != w->sum)
            return cr_asprintf("%s does not hold what the ranks have written", w->name);
    }
    return NULL;
}

static cr_status list_written(const char *folder, json_t *root, const cr_written *written,
                              size_t num, double lag_s, cr_err *err)
{
    json_t *files = json_object(), *sums = json_object(), *hosts = json_object();
    double until_s = cr_now_s() + lag_s;
    char *lack = NULL;

    for (;; cr_sleep_s(0.2)) {
        json_object_clear(files);
        json_object_clear(sums);
        cr_free(lack);
        lack = NULL;
        if (list_files(folder, "", files, sums, err) != CR_OK) break;
        lack = missing(files, sums, written, num);
        if (!lack || cr_now_s() > until_s) break;
    }
    if (lack)
        cr_fail(err, CR_EIO, "%s: %s (%.0f s later): is a host's output_dir another folder?",
                folder, lack, lag_s);
    json_object_set_new(root, "files", files);
    for (size_t i = 0; i < num; i++) {
        const cr_written *w = &written[i];
        if (!w->host[0]) continue;
        if (!json_object_get(hosts, w->host)) json_object_set_new(hosts, w->host, json_object());
        json_object_set_new(
            json_object_get(hosts, w->host), w->name,
            json_pack("{s:I,s:s}", "size", (json_int_t)w->num_bytes, "sha256", w->hex));
    }
    if (json_object_size(hosts)) json_object_set(root, "hosts", hosts);
    json_decref(hosts);
    json_decref(sums);
    cr_free(lack);
    return err->status;
}

cr_status cr_checkpoint_link(const char *output_dir, const char *name, int64_t step, cr_err *err)
{
    char *link = cr_path_join(output_dir, name),
         *fresh = cr_asprintf("%s/%s.tmp", output_dir, name), target[64];

    snprintf(target, sizeof target, "checkpoint-%lld", (long long)step);
    unlink(fresh);
    if (symlink(target, fresh) != 0 || rename(fresh, link) != 0)
        cr_fail(err, CR_EIO, "cannot set the link %s: %s", link, strerror(errno));
    else
        cr_folder_sync(output_dir);
    cr_free(link);
    cr_free(fresh);
    return err->status;
}

cr_status cr_checkpoint_finish(const char *output_dir, const char *folder, int64_t step,
                               int64_t keep, const cr_written *written, size_t num_written,
                               double lag_s, cr_err *err)
{
    json_t *root = json_object();
    char *manifest = cr_path_join(folder, "manifest.json");
    cr_buf text = {0};

    json_object_set_new(root, "step", json_integer(step));
    cr_run_mark_remove(folder);
    CR_TRY_GOTO(out, list_written(folder, root, written, num_written, lag_s, err));
    CR_TRY_GOTO(out, cr_json_add_value(&text, root, err));
    CR_TRY_GOTO(out, cr_file_write_atomic(manifest, text.data, text.num_bytes, err));
    cr_folder_sync(folder);
    CR_TRY_GOTO(out, commit(output_dir, folder, step, err));
    CR_TRY_GOTO(out, cr_checkpoint_link(output_dir, "latest", step, err));
    prune(output_dir, step, keep);
out:
    json_decref(root);
    cr_buf_free(&text);
    cr_free(manifest);
    return err->status;
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

/* One file of the manifest. is_elsewhere: it was written on another host, and need not be here. */
static cr_status verify_file(const char *path, const char *manifest, const char *name,
                             const json_t *entry, bool is_elsewhere, cr_err *err)
{
    char *file = cr_path_join(path, name), hex[CR_DIGEST_TEXT];
    const char *want = json_string_value(json_object_get(entry, "sha256"));
    int64_t size;

    if (!is_inside(name))
        cr_fail(err, CR_EFORMAT, "%s names %s, which is not inside of it (damaged?)", manifest,
                name);
    else if ((!is_elsewhere || cr_file_exists(file)) &&
             cr_digest_file(file, hex, &size, err) == CR_OK && (!want || strcmp(want, hex) != 0))
        cr_fail(err, CR_EFORMAT, "%s is not what %s says (damaged?)", file, manifest);
    cr_free(file);
    return err->status;
}

static cr_status verify_files(const char *path, const char *manifest, json_t *root, cr_err *err)
{
    json_t *files, *entry;
    const char *name, *host;

    json_object_foreach(json_object_get(root, "files"), name, entry)
        CR_TRY(verify_file(path, manifest, name, entry, false, err));
    json_object_foreach(json_object_get(root, "hosts"), host, files)
    {
        json_object_foreach(files, name, entry)
            CR_TRY(verify_file(path, manifest, name, entry, true, err));
    }
    return CR_OK;
}

/* A file of the state that the manifest does not name would be read without a check. */
static cr_status verify_names(const char *path, const char *manifest, json_t *root, cr_err *err)
{
    char *state = cr_path_join(path, "state");
    DIR *dir = opendir(state);
    struct dirent *entry;
    const char *host;
    json_t *files;

    while (dir && err->status == CR_OK && (entry = readdir(dir))) {
        char *name = cr_path_join("state", entry->d_name);
        bool is_named = json_object_get(json_object_get(root, "files"), name) != NULL;
        json_object_foreach(json_object_get(root, "hosts"), host, files) is_named |=
            json_object_get(files, name) != NULL;
        if (entry->d_name[0] != '.' && !is_named)
            cr_fail(err, CR_EFORMAT, "%s does not name %s, which is there (damaged?)", manifest,
                    name);
        cr_free(name);
    }
    if (dir) closedir(dir);
    cr_free(state);
    return err->status;
}

/* Files of one step: what the pipeline has written of its place is of the manifest's step, too. */
static cr_status verify_place(const char *path, const char *manifest, const json_t *root,
                              cr_err *err)
{
    char *place = cr_path_join(path, "state/pipeline.json");
    json_t *own = NULL;
    long long step = json_integer_value(json_object_get(root, "step")), its;

    if (cr_file_exists(place) && cr_json_read_file(place, &own, err) == CR_OK) {
        its = json_integer_value(json_object_get(own, "step"));
        if (its != step)
            cr_fail(err, CR_EFORMAT,
                    "%s is of step %lld, %s of step %lld: files of two "
                    "checkpoints are mixed",
                    place, its, manifest, step);
    }
    json_decref(own);
    cr_free(place);
    return err->status;
}

cr_status cr_checkpoint_verify(const char *path, cr_err *err)
{
    char *manifest = cr_path_join(path, "manifest.json");
    json_t *root = NULL;

    if (!cr_dir_exists(path)) {
        cr_fail(err, CR_EIO, "there is no checkpoint at %s", path);
    } else if (!cr_file_exists(manifest)) {
        cr_fail(err, CR_EFORMAT, "%s has no manifest.json: it is not a complete checkpoint", path);
    } else if (cr_json_read_file(manifest, &root, err) == CR_OK) {
        if (json_object_size(json_object_get(root, "files")) == 0 ||
            !json_is_integer(json_object_get(root, "step")))
            cr_fail(err, CR_EFORMAT, "%s names no files or no step (damaged?)", manifest);
        else if (check_step(path, manifest, root, err) == CR_OK &&
                 verify_files(path, manifest, root, err) == CR_OK &&
                 verify_names(path, manifest, root, err) == CR_OK)
            cr_note(verify_place(path, manifest, root, err));
    }
    json_decref(root);
    cr_free(manifest);
    return err->status;
}

int64_t cr_checkpoint_newest(const char *output_dir, int64_t before)
{
    size_t num;
    uint64_t *steps = cr_checkpoint_steps(output_dir, &num);
    int64_t newest = -1;

    for (size_t i = 0; i < num; i++) {
        int64_t step = (int64_t)steps[i];
        char *manifest =
            cr_asprintf("%s/checkpoint-%lld/manifest.json", output_dir, (long long)step);
        if (step > newest && step < before && cr_file_exists(manifest)) newest = step;
        cr_free(manifest);
    }
    cr_free(steps);
    return newest;
}

/* Where `latest` leads; if it is not there (killed right before it was set) the newest one with a
 * manifest. NULL: no such checkpoint. */
static char *find_latest(const char *output_dir)
{
    char *path = cr_path_join(output_dir, "latest");
    long long newest;

    if (cr_dir_exists(path)) return path;
    cr_free(path);
    newest = cr_checkpoint_newest(output_dir, INT64_MAX);
    if (newest < 0) return NULL;
    cr_log(CR_LOG_WARN, "run", "%s/latest is not there: taking checkpoint-%lld", output_dir,
           newest);
    return cr_asprintf("%s/checkpoint-%lld", output_dir, newest);
}

char *cr_checkpoint_real(const char *path)
{
    char to[64];
    const char *slash = strrchr(path, '/');
    ssize_t n = readlink(path, to, sizeof to - 1);

    if (n <= 0) return cr_strdup(path);
    to[n] = 0;
    if (step_of(to) < 0) return cr_strdup(path);
    return slash ? cr_asprintf("%.*s/%s", (int)(slash - path), path, to) : cr_strdup(to);
}

/* What to do instead: the newest checkpoint of the run before this one. */
static void advise(const cr_config *config, const char *path, cr_err *err)
{
    long long older = cr_checkpoint_newest(config->checkpoint_dir, step_of_folder(path));
    cr_err why = *err;

    if (older < 0) return;
    *err = (cr_err){0};
    cr_fail(err, why.status, "%s (an older one: resume_from_checkpoint=%s/checkpoint-%lld)",
            why.msg, config->checkpoint_dir, older);
}

/* The trained roles can go on from there. */
static cr_status check_state(const cr_config *config, const char *path, cr_err *err)
{
    for (int r = 0; r < CR_NUM_ROLES && err->status == CR_OK; r++) {
        char *state = cr_asprintf("%s/state/%s.json", path, cr_role_name((cr_role)r, config));
        bool is_needed = cr_ask_is_for(CR_ASK_RESUME, cr_role_in_run((cr_role)r, config));
        if (is_needed && !cr_file_exists(state))
            cr_fail(
                err, CR_EFORMAT,
                "%s is not there, so it cannot be resumed (was it written with "
                "save_only_model, or by another pipeline? its model folder is good as pretrain)",
                state);
        cr_free(state);
    }
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

size_t cr_checkpoint_roles(const char *path, char *roles[CR_CHECKPOINT_MAX_ROLES])
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t num = 0;

    while (dir && num < CR_CHECKPOINT_MAX_ROLES && (entry = readdir(dir))) {
        char *config = cr_asprintf("%s/%s/config.json", path, entry->d_name),
             *adapter = cr_asprintf("%s/%s/adapter_config.json", path, entry->d_name);
        if (entry->d_name[0] != '.' && (cr_file_exists(config) || cr_file_exists(adapter)))
            roles[num++] = cr_strdup(entry->d_name);
        cr_free(config);
        cr_free(adapter);
    }
    if (dir) closedir(dir);
    qsort(roles, num, sizeof *roles, by_name);
    return num;
}
