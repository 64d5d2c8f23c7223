/* folders.c -- the folders of a run at its start: one run at a time, what a run before has left, and config.yaml. */
#include "configs/configs.h"
#include "pipelines/checkpoint.h"
#include "pipelines/start/start_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* One run at a time in a folder; the lock goes with the process, so nothing remains. */
static cr_status lock_folder(const char *folder, const char *key, int *fd, cr_err *err)
{
    if (cr_mkdirs(folder, err) != CR_OK) {
        err->status = CR_ECONFIG; /* nothing was started */
        return cr_fail_add(err, "%s", key);
    }
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) != 0)
        return cr_fail(err, CR_ECONFIG, "%s: another run is using it (%s)", folder,
                       strerror(errno));
    return CR_OK;
}

/* The folder of the run, and that of its checkpoints if it is another one. */
cr_status cri_start_lock(const cr_config *config, int fds[2], cr_err *err)
{
    struct stat a, b;

    CR_TRY(lock_folder(config->output_dir, "output_dir", &fds[0], err));
    if (fstat(fds[0], &a) == 0 && stat(config->checkpoint_dir, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return CR_OK;
    return lock_folder(config->checkpoint_dir, "checkpoint_config.output_dir", &fds[1], err);
}

/* Checkpoints of a run in a folder, and, if asked for, event files: are there any, and remove them. */
static bool walk_saves(const char *folder, bool with_events, bool should_remove, cr_err *err)
{
    static const char events[] = "events.out.tfevents.";
    DIR *dir = opendir(folder);
    struct dirent *entry;
    bool has_any = false;

    while (dir && err->status == CR_OK && (entry = readdir(dir))) {
        char *path;
        if (!cr_checkpoint_is_name(entry->d_name) &&
            !(with_events && strncmp(entry->d_name, events, strlen(events)) == 0))
            continue;
        has_any = true;
        if (!should_remove) continue;
        path = cr_path_join(folder, entry->d_name);
        cr_note(cr_remove_tree(path, err));
        cr_free(path);
    }
    if (dir) closedir(dir);
    return has_any;
}

/* Is there anything of a run, beside what it says of itself, that is worth a question? */
static bool has_results(const char *folder, cr_err *err)
{
    char *metrics = cr_path_join(folder, "metrics.jsonl"),
         *rollouts = cr_path_join(folder, "rollouts");
    struct stat file;
    bool is_so = (stat(metrics, &file) == 0 && file.st_size > 0) || cr_dir_exists(rollouts) ||
                 walk_saves(folder, false, false, err);

    cr_free(metrics);
    cr_free(rollouts);
    return is_so;
}

/* Refuse folders that hold a run that has done something, unless it is resumed or overwritten. */
cr_status cri_start_clear(const cr_config *config, bool should_overwrite, const char *resume_path,
                          cr_err *err)
{
    static const char *const ours[] = {"metrics.jsonl", "run.log", "config.yaml", "rollouts",
                                       "exchange",      "flight",  "run.html",    "reference.json",
                                       "teacher.json",  "judges",  "hosts.json"};
    char *path = cr_path_join(config->output_dir, "config.yaml");
    bool is_used = cr_file_exists(path), is_resumed = config->resume != NULL,
         has_saves = strcmp(config->checkpoint_dir, config->output_dir) != 0 &&
                     walk_saves(config->checkpoint_dir, false, false, err),
         has_any = has_saves || (is_used && has_results(config->output_dir, err));

    cr_free(path);
    if (has_any && !is_resumed && !should_overwrite)
        return cr_fail(err, CR_ECONFIG,
                       "%s already holds %s (resume_from_checkpoint=true goes on with it, "
                       "--overwrite starts anew)",
                       has_saves ? config->checkpoint_dir : config->output_dir,
                       has_saves ? "checkpoints of a run" : "a run");
    for (size_t i = 0; is_used && !is_resumed && i < CR_COUNT(ours); i++) {
        path = cr_path_join(config->output_dir, ours[i]);
        cr_note(cr_remove_tree(path, err));
        cr_free(path);
    }
    if (is_used && !is_resumed) walk_saves(config->output_dir, true, true, err);
    if (has_saves && !is_resumed) walk_saves(config->checkpoint_dir, false, true, err);
    CR_TRY(err->status);
    cr_checkpoint_clean(config->checkpoint_dir);
    if (resume_path)
        cr_checkpoint_prune(config->checkpoint_dir, resume_path, config->max_ckpt_to_keep);
    return CR_OK;
}

/* ---- what a resume changes ---- */

/* One line for each key whose value differs, and the path of its block before it; NULL: the key is not there. */
static void list_changes(const char *block, const cr_node *a, const cr_node *b, cr_buf *out)
{
    const cr_node *const maps[] = {a, b};
    cr_buf was = {0}, is = {0};

    if (!a || !b || a->kind != CR_NODE_MAP || b->kind != CR_NODE_MAP) {
        if (a) cr_node_write_json(a, &was);
        if (b) cr_node_write_json(b, &is);
        if (strcmp(a ? was.data : "null", b ? is.data : "null") != 0)
            cr_buf_addf(out, "%s%s %.80s -> %.80s", out->num_bytes ? "; " : "", block,
                        a ? was.data : "null", b ? is.data : "null");
        cr_buf_free(&was);
        cr_buf_free(&is);
        return;
    }
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < maps[k]->num; i++) {
            const char *key = maps[k]->items[i].key;
            char *path = *block ? cr_asprintf("%s.%s", block, key) : cr_strdup(key);
            if ((k == 0 || !cr_node_get(a, key)) && strcmp(path, "resume_from_checkpoint") != 0)
                list_changes(path, cr_node_get(a, key), cr_node_get(b, key), out);
            cr_free(path);
        }
}

/* Write it where the run keeps it. *changes: what a resumed run says of the keys that were there, or NULL; owned by the caller. */
cr_status cri_start_write_config(const cr_config *config, const char *path, bool is_resumed,
                                 char **changes, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_yaml before = {0}, now = {0};
    bool has_before = is_resumed && cr_file_exists(path);
    cr_buf text = {0};

    if (has_before) cr_yaml_load(&before, path, NULL, NULL, 0, &d);
    if (cr_config_write(config, path, err) == CR_OK && has_before && d.num_errors == 0) {
        cr_yaml_load(&now, path, NULL, NULL, 0, &d); /* as it is written: without secrets */
        list_changes("", before.root, now.root, &text);
        cr_yaml_free(&now);
    }
    *changes = NULL;
    if (text.num_bytes)
        *changes = cr_asprintf("keys that differ from those of the run before: %s", text.data);
    else if (is_resumed && (!has_before || d.num_errors))
        *changes =
            cr_asprintf("%s %s: which keys differ from those of the run before is not known", path,
                        has_before ? "cannot be read"
                                   : "was not there (was it removed, or is it another folder?)");
    if (has_before) cr_yaml_free(&before);
    cr_diagnostics_free(&d);
    cr_buf_free(&text);
    return err->status;
}
