/* cmd_run.c -- `croll run`: from one ROLL YAML file to a finished run.
 *
 * Everything that can be wrong with the configuration, the data and the folders is found before a
 * process starts; from then on run.c watches and the pipeline works.
 */
#include "base/children.h"
#include "commands/commands.h"
#include "configs/configs.h"
#include "launch/cores/cores.h"
#include "launch/device.h"
#include "launch/placement.h"
#include "launch/preflight/needs.h"
#include "pipelines/checkpoint.h"
#include "pipelines/pipelines.h"
#include "plan/run/deep.h"
#include "reports/html.h"
#include "reports/report.h"
#include "samples/protocol.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static int run_command(int argc, char **argv);

const cr_command cr_command_run = {
    "run", "run FILE [key=value ..] [--overwrite] [--hosts H:N,.. | --hostfile FILE]",
    "Run the job that a ROLL YAML file describes.",
    "croll run configs/quickstart/rlvr.yaml output_dir=output/mine max_steps=5 "
    "actor_train.training_args.learning_rate=1e-4",
    run_command};

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
static cr_status prepare_output(const cr_config *config, bool should_overwrite,
                                const char *resume_path, cr_err *err)
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
static cr_status write_config(const cr_config *config, const char *path, bool is_resumed,
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

/* ---- checks ---- */

/* Of num ranks of the world from first on, is one on this host? */
static bool has_rank_here(const cr_hosts *hosts, int first, int num)
{
    for (int r = first; r < first + num; r++)
        if (hosts->host[hosts->host_of[r]].is_here) return true;
    return false;
}

/* The one that each rank will open, where one is on this host; the others are asked by check_hosts. */
static cr_status check_device(const cr_config *config, const cr_hosts *hosts,
                              cr_device_memory *memory, cr_err *err)
{
    if (!has_rank_here(hosts, 0, hosts->num_ranks)) return CR_OK;
    return cr_device_try(cr_device_of_run(config),
                         config->train.num_devices ? config->train.devices[0] : -1, memory, err);
}

/* What the environment of each role says of its threads. */
static cr_status check_threads(const cr_config *config, cr_err *err)
{
    cr_layout layout;
    cr_cores_wish wish;

    cr_layout_init(&layout, config);
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = layout.role[r].worker;
        if (w && cr_cores_wish_read(w->envs, &wish, err) != CR_OK)
            return cr_fail_add(err, "%s", layout.role[r].name);
    }
    return CR_OK;
}

/* With fewer files Open MPI's ranks wait for one another for ever. */
static cr_status check_files(const cr_config *config, cr_err *err)
{
    struct rlimit files;
    cr_layout layout;
    int least;

    cr_layout_init(&layout, config);
    least = cr_needs_files(layout.num_ranks);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < (rlim_t)least)
        return cr_fail(err, CR_ECONFIG,
                       "ulimit -n is %llu, a run of %d ranks needs at least %d open files",
                       (unsigned long long)files.rlim_cur, layout.num_ranks, least);
    return CR_OK;
}

/* Where ranks of this host exchange data; other hosts are asked by check_hosts. */
static cr_status check_shm(const cr_config *config, const cr_hosts *hosts, cr_err *err)
{
    const bool has_gpus = cr_run_has_gpus(config);
    cr_needs needs;
    struct statvfs fs;
    char *text, has[32], wants[32];

    if (hosts->by != CR_HOSTS_HERE) return CR_OK;
    if (statvfs("/dev/shm", &fs) != 0)
        return cr_fail(err, CR_ECONFIG, "there is no /dev/shm, through which ranks talk");
    cr_needs_init(&needs, config, hosts, NULL, has_gpus);
    if ((int64_t)fs.f_bavail * (int64_t)fs.f_frsize >= needs.all.shm_bytes) return CR_OK;
    text =
        cr_asprintf("/dev/shm has %s free, ranks of this run %s %s there: mount it with a larger "
                    "size (docker: --shm-size)",
                    cr_size_text((int64_t)fs.f_bavail * (int64_t)fs.f_frsize, has),
                    has_gpus ? "need" : "may need", cr_size_text(needs.all.shm_bytes, wants));
    if (has_gpus)
        cr_fail(err, CR_ECONFIG, "%s", text);
    else
        cr_log(CR_LOG_WARN, "run", "%s", text);
    cr_free(text);
    return err->status;
}

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

/* Without a folder of all hosts, a rank of each trained role has to be where the launcher's is. */
static cr_status check_writer(const cr_config *config, const cr_hosts *hosts,
                              const cr_layout *layout, cr_err *err)
{
    if (config->checkpoint_hosts == CR_FILES_SHARED || !hosts->list) return CR_OK;
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const struct cr_role_ranks *ranks = &layout->role[r];
        if (!cr_ask_is_for(CR_ASK_SAVE, (cr_role)r) || !ranks->num) continue;
        if (!has_rank_here(hosts, ranks->first, ranks->num))
            return cr_fail(
                err, CR_ECONFIG,
                "checkpoint_config.hosts: no rank of %s is on %s, which has output_dir (name it "
                "first in --hosts, with room for it; croll plan --hosts .. shows where ranks are)",
                ranks->name, cr_host_name());
    }
    return CR_OK;
}

static cr_status go(const cr_config *config, bool should_overwrite, const cr_hosts_args *host_args,
                    const char *network, cr_err *err)
{
    char *resume_path = NULL, *config_path = NULL, *flight = NULL, *changes = NULL;
    cr_run run = {.log_fd = -1};
    cr_endpoint endpoint = {0};
    cr_hosts hosts = {0};
    cr_preflight *preflight = NULL;
    cr_needs needs;
    cr_layout layout;
    cr_device_memory memory = {0};
    const cr_pipeline_ops *ops =
        config->kind == CR_PIPELINE_SFT ? &cr_pipeline_sft : &cr_pipeline_rlvr;
    void *pipeline = NULL;
    int64_t first_step = 0;
    bool is_made = false;
    int locks[2] = {-1, -1};
    cr_status status;

    cr_layout_init(&layout, config);
    CR_TRY_GOTO(out, cr_hosts_open(host_args, layout.num_ranks, &hosts, err));
    CR_TRY_GOTO(out, cr_placement_make(&hosts, &layout, cr_run_has_gpus(config),
                                       config->num_gpus_per_node, err));
    CR_TRY_GOTO(out, check_writer(config, &hosts, &layout, err));
    CR_TRY_GOTO(out, check_device(config, &hosts, &memory, err));
    CR_TRY_GOTO(out, check_files(config, err));
    CR_TRY_GOTO(out, check_shm(config, &hosts, err));
    CR_TRY_GOTO(out, check_needs(config, &hosts, &memory, err));
    CR_TRY_GOTO(out, check_threads(config, err));
    if (ops->open(config, &pipeline, err) == CR_EIO) err->status = CR_ECONFIG; /* inputs only */
    CR_TRY_GOTO(out, err->status);
    CR_TRY_GOTO(out, cr_checkpoint_find(config, &resume_path, &first_step, err));
    CR_TRY_GOTO(out, cr_endpoint_open(&endpoint, config, err));
    is_made = !cr_dir_exists(config->output_dir);
    CR_TRY_GOTO(out, lock_output(config, locks, err));
    CR_TRY_GOTO(out, check_hosts(&hosts, config, network, &needs, &preflight, err));
    CR_TRY_GOTO(out, cr_endpoint_claim(&endpoint, config, err));
    CR_TRY_GOTO(out, prepare_output(config, should_overwrite, resume_path, err));
    if (preflight) CR_TRY_GOTO(out, write_hosts(config, preflight, err));
    config_path = cr_path_join(config->output_dir, "config.yaml");
    CR_TRY_GOTO(out, write_config(config, config_path, resume_path != NULL, &changes, err));
    flight =
        cr_path_join(config->output_dir, "flight"); /* of the run before; its ranks may be more */
    CR_TRY_GOTO(out, cr_remove_tree(flight, err));
    status = cr_run_open(&run, config, config_path, &hosts, &endpoint, first_step, err);
    if (changes) cr_log(CR_LOG_WARN, "run", "%s", changes);
    if (strcmp(cr_device_of_run(config), config->device) != 0)
        cr_log(CR_LOG_WARN, "run",
               "CROLL_DEVICE, for tests, takes device %s in place of device: %s",
               cr_device_of_run(config), config->device);
    if (status == CR_OK) status = ops->run(pipeline, &run, resume_path, err);
    if (run.has_begun && cr_exit_code(status) == 2) status = err->status = CR_EPEER;
    if (status != CR_OK && status != CR_ESIGNAL && run.actors.pid) { /* let a dying rank say why */
        for (int i = 0; i < 50 && cr_child_pump(&run.actors); i++)
            cr_sleep_s(0.01);
    }
    cr_run_close(&run);
    {
        cr_err ignored = {0};
        if (cr_report_write(config->output_dir, config->exp_name, err, &ignored) != CR_OK)
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

static int run_command(int argc, char **argv)
{
    bool should_overwrite = false, as_fsdp2 = false, is_help;
    cr_hosts_args hosts = {NULL, NULL};
    const char *network = NULL, *device = NULL;
    char *key = NULL;
    const cr_option options[] = {{"overwrite", CR_OPT_FLAG, &should_overwrite, NULL,
                                  "start anew in a folder that holds a run"},
                                 {"device", CR_OPT_STRING, &device, "NAME",
                                  "cpu, cuda (never run on a GPU: docs/cuda.md); default: device "
                                  "of the file"},
                                 CR_AS_FSDP2_OPTION(as_fsdp2),
                                 CR_HOSTS_OPTIONS(hosts),
                                 {"network", CR_OPT_STRING, &network, "CIDR",
                                  "between the hosts, 10.77.0.0/24 (default: the fastest that "
                                  "connects all)"}};
    cr_words words = {0};
    cr_diagnostics d = {0};
    cr_config config = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_run, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        is_help) {
        cr_words_free(&words);
        return 0;
    }
    if (err.status == CR_OK && words.num < 1)
        cr_fail(&err, CR_EUSAGE, "a FILE is needed (see croll run --help)");
    if (as_fsdp2) cr_words_add(&words, CR_AS_FSDP2);
    if (device) {
        unsetenv("CROLL_DEVICE");
        cr_words_add(&words, key = cr_asprintf("device=%s", device));
    }
    if (err.status == CR_OK)
        cr_note(cr_config_load(words.word[0], words.word + 1, words.num - 1, &config, &d, &err));
    cr_diagnostics_print(&d);
    if (err.status == CR_OK) cr_envs_set(config.envs); /* and every process inherits them */
    if (err.status == CR_OK) cr_note(go(&config, should_overwrite, &hosts, network, &err));
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_words_free(&words);
    cr_free(key);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_run, &err);
}
