/* start.c -- see start.h. Everything that can be wrong with the configuration, the data and the folders is found before a
 * process starts; from then on launch/run.c watches and the pipeline works. */
#include "pipelines/start/start.h"
#include "configs/configs.h"
#include "launch/device.h"
#include "launch/placement.h"
#include "launch/preflight/here.h"
#include "pipelines/checkpoint.h"
#include "pipelines/eval/eval.h"
#include "pipelines/eval/samples.h"
#include "pipelines/pipelines.h"
#include "plan/run/deep.h"
#include "plan/run/reshard.h"
#include "reports/report.h"
#include "samples/items/loader.h"
#include "samples/roles.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- folders ---- */

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
static cr_status lock_output(const cr_config *config, int fds[2], cr_err *err)
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
         *rollouts = cr_path_join(folder, "rollouts"),
         *samples = cr_path_join(folder, CR_EVAL_SAMPLES);
    struct stat file;
    bool is_so = (stat(metrics, &file) == 0 && file.st_size > 0) ||
                 (stat(samples, &file) == 0 && file.st_size > 0) || cr_dir_exists(rollouts) ||
                 walk_saves(folder, false, false, err);

    cr_free(samples);
    cr_free(metrics);
    cr_free(rollouts);
    return is_so;
}

/* Refuse folders that hold a run that has done something, unless it is resumed or overwritten. */
static cr_status prepare_output(const cr_config *config, bool should_overwrite,
                                const char *resume_path, cr_err *err)
{
    static const char *const ours[] = {
        "metrics.jsonl", "run.log",        "config.yaml",  "rollouts",   "exchange", "flight",
        "run.html",      "reference.json", "teacher.json", "judges",     "terms",    "hosts.json",
        CR_EVAL_SAMPLES, CR_EVAL_TABLE,    "eval.html",    "inputs.json"};
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

/* Keys that change where and how an evaluation runs, and not its samples. */
static bool is_of_place(const char *path)
{
    static const char *const those[] = {"actor_infer.device_mapping",
                                        "actor_infer.strategy_args",
                                        "exchange",
                                        "router_args",
                                        "max_running_requests",
                                        "rpc_timeout",
                                        "collective_timeout",
                                        "logging_dir",
                                        "num_gpus_per_node"};

    for (size_t i = 0; i < CR_COUNT(those); i++)
        if (strncmp(path, those[i], strlen(those[i])) == 0) return true;
    return false;
}

/* One line for each key whose value differs, and the path of its block before it; NULL: the key is not there. */
static void list_changes(const char *block, const cr_node *a, const cr_node *b, bool is_eval,
                         cr_buf *out)
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
            if ((k == 0 || !cr_node_get(a, key)) && strcmp(path, "resume_from_checkpoint") != 0 &&
                !(is_eval && is_of_place(path)))
                list_changes(path, cr_node_get(a, key), cr_node_get(b, key), is_eval, out);
            cr_free(path);
        }
}

/* Write it where the run keeps it. *changes: what a resumed run says of the keys that were there, or NULL; owned by the caller. */
static cr_status write_config(const cr_config *config, const char *path, bool is_resumed,
                              char **changes, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_yaml before = {0}, now = {0};
    bool has_before = is_resumed && cr_file_exists(path);
    char *next = cr_asprintf("%s.next", path);
    cr_buf text = {0};

    if (has_before) cr_yaml_load(&before, path, NULL, NULL, 0, &d);
    if (cr_config_write(config, next, err) == CR_OK && has_before && d.num_errors == 0) {
        cr_yaml_load(&now, next, NULL, NULL, 0, &d); /* as it is written: without secrets */
        list_changes("", before.root, now.root, config->val_only, &text);
        cr_yaml_free(&now);
    }
    if (config->val_only && text.num_bytes)
        cr_fail(err, CR_ECONFIG,
                "%s: the samples that are there were made with other keys: %s (--overwrite starts "
                "anew)",
                config->output_dir, text.data);
    if (err->status == CR_OK && rename(next, path) != 0)
        cr_fail(err, CR_EIO, "%s: %s", path, strerror(errno));
    if (err->status != CR_OK) unlink(next);
    cr_free(next);
    *changes = NULL;
    if (text.num_bytes)
        *changes = cr_asprintf("keys that differ from those of the run before: %s", text.data);
    else if (is_resumed && !config->rollouts_from && (!has_before || d.num_errors))
        *changes =
            cr_asprintf("%s %s: which keys differ from those of the run before is not known", path,
                        has_before ? "cannot be read"
                                   : "was not there (was it removed, or is it another folder?)");
    if (has_before) cr_yaml_free(&before);
    cr_diagnostics_free(&d);
    cr_buf_free(&text);
    return err->status;
}

/* From a checkpoint, or an evaluation that has samples. */
static bool is_resumed(const cr_config *config, const char *resume_path)
{
    cr_err ignored = {0};

    return resume_path ||
           (config->val_only && config->resume && has_results(config->output_dir, &ignored));
}

/* ---- the run ---- */

static const cr_pipeline_ops *ops_of(const cr_config *config)
{
    return config->kind == CR_PIPELINE_RLVR ? &cr_pipeline_rlvr : &cr_pipeline_rows;
}

cr_status cr_start_look(const cr_config *config, cr_diagnostics *d, cr_err *err)
{
    const cr_pipeline_ops *ops = ops_of(config);
    void *pipeline = NULL;
    cr_device_memory memory = {0};
    cr_err absent = {0}; /* the run may be for another machine */

    cr_envs_set(config->envs);
    if (cr_run_has_gpus(config))
        cr_note(cr_device_try(cr_device_of_run(config), -1, &memory, &absent));
    cr_deep_check(config, /*is_one_host=*/true, &memory, d);
    if (d->num_errors)
        return cr_fail(err, CR_ECONFIG, "%zu error%s", d->num_errors, d->num_errors > 1 ? "s" : "");
    if (ops->open(config, &pipeline, err) != CR_OK) err->status = CR_ECONFIG; /* inputs only */
    ops->close(pipeline);
    return err->status;
}

/* What the file names is there and fits; all faults are said at once. */
static cr_status check_needs(const cr_config *config, const cr_hosts *hosts,
                             const cr_device_memory *memory, cr_err *err)
{
    cr_diagnostics d = {0};
    size_t num;

    cr_deep_check(config, hosts->by == CR_HOSTS_HERE, memory, &d);
    cr_diagnostics_print(&d);
    num = d.num_errors;
    cr_diagnostics_free(&d);
    return num ? cr_fail(err, CR_ECONFIG, "%zu error%s: nothing was started", num,
                         num > 1 ? "s" : "")
               : CR_OK;
}

/* All hosts, before anything is started there. needs: borrowed by *out. */
static cr_status check_hosts(cr_hosts *hosts, const cr_config *config, const char *network,
                             cr_needs *needs, cr_preflight **out, cr_err *err)
{
    if (hosts->by == CR_HOSTS_HERE)
        return network
                   ? cr_fail(err, CR_EUSAGE, "--network is for a run over hosts (--hosts a:8,b:8)")
                   : CR_OK;
    cr_needs_init(needs, config, hosts, network, cr_run_has_gpus(config));
    return cr_preflight_run(hosts, &needs->all, out, err);
}

static cr_status write_hosts(const cr_config *config, const cr_preflight *preflight, cr_err *err)
{
    char *path = cr_path_join(config->output_dir, "hosts.json");

    cr_note(cr_preflight_write(preflight, path, err));
    cr_free(path);
    return err->status;
}

cr_status cr_start_run(cr_config *config, const cr_start_args *args, cr_err *err)
{
    char *resume_path = NULL, *config_path = NULL, *flight = NULL, *changes = NULL;
    cr_run run = {.log_fd = -1};
    cr_endpoint endpoint = {0};
    cr_hosts hosts = {0};
    cr_preflight *preflight = NULL;
    cr_needs needs;
    cr_layout layout;
    cr_device_memory memory = {0};
    const cr_pipeline_ops *ops = ops_of(config);
    void *pipeline = NULL;
    int64_t first_step = 0;
    bool is_made = false;
    int locks[2] = {-1, -1};
    cr_status status;

    cr_layout_init(&layout, config);
    CR_TRY_GOTO(out, cr_hosts_open(&args->hosts, layout.num_ranks, &hosts, err));
    CR_TRY_GOTO(out, cr_placement_make(&hosts, &layout, cr_run_has_gpus(config),
                                       config->num_gpus_per_node, err));
    CR_TRY_GOTO(out, cr_here_check(config, &hosts, &memory, err));
    cr_reshard_fix(config, hosts.by == CR_HOSTS_HERE, &memory);
    CR_TRY_GOTO(out, check_needs(config, &hosts, &memory, err));
    if (ops->open(config, &pipeline, err) == CR_EIO) err->status = CR_ECONFIG; /* inputs only */
    CR_TRY_GOTO(out, err->status);
    CR_TRY_GOTO(out, cr_checkpoint_find(config, &resume_path, &first_step, err));
    CR_TRY_GOTO(out, cr_endpoint_open(&endpoint, config, err));
    is_made = !cr_dir_exists(config->output_dir);
    CR_TRY_GOTO(out, lock_output(config, locks, err));
    CR_TRY_GOTO(out, check_hosts(&hosts, config, args->network, &needs, &preflight, err));
    CR_TRY_GOTO(out, cr_endpoint_claim(&endpoint, config, err));
    CR_TRY_GOTO(out, prepare_output(config, args->should_overwrite, resume_path, err));
    if (preflight) CR_TRY_GOTO(out, write_hosts(config, preflight, err));
    config_path = cr_path_join(config->output_dir, "config.yaml");
    CR_TRY_GOTO(out,
                write_config(config, config_path, is_resumed(config, resume_path), &changes, err));
    flight =
        cr_path_join(config->output_dir, "flight"); /* of the run before; its ranks may be more */
    CR_TRY_GOTO(out, cr_remove_tree(flight, err));
    status = cr_run_open(&run, config, config_path, &hosts, &endpoint, first_step, err);
    run.end_step = args->end_step ? args->end_step : config->max_steps;
    run.change = args->change;
    run.change_context = args->change_context;
    run.has_terms = args->has_terms;
    run.only = args->only;
    if (changes) cr_log(CR_LOG_WARN, "run", "%s", changes);
    if (strcmp(cr_device_of_run(config), config->device) != 0)
        cr_log(CR_LOG_WARN, "run",
               "CROLL_DEVICE, for tests, takes device %s in place of device: %s",
               cr_device_of_run(config), config->device);
    if (status == CR_OK) status = ops->run(pipeline, &run, resume_path, err);
    if (run.has_begun && cr_exit_code(status) == 2) status = err->status = CR_EPEER;
    cr_run_close(&run);
    if (!config->val_only || err->status != CR_OK) { /* an evaluation has a page of its own */
        const cr_image_files images = {ops->image, pipeline, cr_item_alpha(&config->train.data)};
        cr_err ignored = {0};
        if (cr_report_write(config->output_dir, config->exp_name, err, &images, &ignored) != CR_OK)
            cr_log(CR_LOG_WARN, "run", "%s", ignored.msg);
    }
out:
    cr_endpoint_close(&endpoint);                            /* if the run has not taken it over */
    if (locks[0] >= 0 && is_made) rmdir(config->output_dir); /* if nothing was written there */
    ops->close(pipeline);
    for (int i = 0; i < 2; i++)
        if (locks[i] >= 0) close(locks[i]);
    cr_preflight_free(preflight);
    cr_hosts_free(&hosts);
    cr_free(resume_path);
    cr_free(config_path);
    cr_free(flight);
    cr_free(changes);
    return err->status;
}
