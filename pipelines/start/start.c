/* start.c -- see start.h. Everything that can be wrong with the configuration, the data and the folders is found before a
 * process starts; from then on launch/run.c watches and the pipeline works. */
#include "pipelines/start/start.h"
#include "launch/device.h"
#include "launch/placement.h"
#include "launch/preflight/here.h"
#include "pipelines/checkpoint.h"
#include "pipelines/pipelines.h"
#include "pipelines/start/start_impl.h"
#include "plan/run/deep.h"
#include "reports/report.h"
#include "samples/roles.h"

#include <string.h>
#include <unistd.h>

static const cr_pipeline_ops *ops_of(const cr_config *config)
{
    return config->kind == CR_PIPELINE_SFT ? &cr_pipeline_sft : &cr_pipeline_rlvr;
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

cr_status cr_start_run(const cr_config *config, const cr_start_args *args, cr_err *err)
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
    CR_TRY_GOTO(out, check_needs(config, &hosts, &memory, err));
    if (ops->open(config, &pipeline, err) == CR_EIO) err->status = CR_ECONFIG; /* inputs only */
    CR_TRY_GOTO(out, err->status);
    CR_TRY_GOTO(out, cr_checkpoint_find(config, &resume_path, &first_step, err));
    CR_TRY_GOTO(out, cr_endpoint_open(&endpoint, config, err));
    is_made = !cr_dir_exists(config->output_dir);
    CR_TRY_GOTO(out, cri_start_lock(config, locks, err));
    CR_TRY_GOTO(out, check_hosts(&hosts, config, args->network, &needs, &preflight, err));
    CR_TRY_GOTO(out, cr_endpoint_claim(&endpoint, config, err));
    CR_TRY_GOTO(out, cri_start_clear(config, args->should_overwrite, resume_path, err));
    if (preflight) CR_TRY_GOTO(out, write_hosts(config, preflight, err));
    config_path = cr_path_join(config->output_dir, "config.yaml");
    CR_TRY_GOTO(out,
                cri_start_write_config(config, config_path, resume_path != NULL, &changes, err));
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
