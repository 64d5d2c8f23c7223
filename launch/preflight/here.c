/* here.c -- see here.h. */
#include "launch/preflight/here.h"
#include "base/children.h"
#include "launch/cores/cores.h"
#include "launch/device.h"
#include "reports/html.h"
#include "samples/protocol.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

/* Of num ranks of the world from first on, is one on this host? */
static bool has_rank_here(const cr_hosts *hosts, int first, int num)
{
    for (int r = first; r < first + num; r++)
        if (hosts->host[hosts->host_of[r]].is_here) return true;
    return false;
}

/* The one that each rank will open, where one is on this host; the others are asked by the pre-flight. */
static cr_status check_device(const cr_config *config, const cr_hosts *hosts,
                              cr_device_memory *memory, cr_err *err)
{
    if (!has_rank_here(hosts, 0, hosts->num_ranks)) return CR_OK;
    return cr_device_try(cr_device_of_run(config),
                         config->train.num_devices ? config->train.devices[0] : -1, memory, err);
}

/* What the environment of each role says of its threads. */
static cr_status check_threads(const cr_layout *layout, cr_err *err)
{
    cr_cores_wish wish;

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = layout->role[r].worker;
        if (w && cr_cores_wish_read(w->envs, &wish, err) != CR_OK)
            return cr_fail_add(err, "%s", layout->role[r].name);
    }
    return CR_OK;
}

/* With fewer files Open MPI's ranks wait for one another for ever. */
static cr_status check_files(const cr_layout *layout, cr_err *err)
{
    const int min = cr_needs_files(layout->num_ranks);
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < (rlim_t)min)
        return cr_fail(err, CR_ECONFIG,
                       "ulimit -n is %llu, a run of %d ranks needs at least %d open files",
                       (unsigned long long)files.rlim_cur, layout->num_ranks, min);
    return CR_OK;
}

/* Where ranks of this host exchange data; other hosts are asked by the pre-flight. */
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

/* Without a folder of all hosts, a rank of each trained role has to be where the launcher's is. */
static cr_status check_writer(const cr_config *config, const cr_hosts *hosts,
                              const cr_layout *layout, cr_err *err)
{
    if (config->checkpoint_hosts == CR_FILES_SHARED || !hosts->list) return CR_OK;
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const struct cr_role_ranks *ranks = &layout->role[r];
        if (!cr_ask_is_for(CR_ASK_SAVE, ranks->worker) || !ranks->num) continue;
        if (!has_rank_here(hosts, ranks->first, ranks->num))
            return cr_fail(
                err, CR_ECONFIG,
                "checkpoint_config.hosts: no rank of %s is on %s, which has output_dir (name it "
                "first in --hosts, with room for it; croll plan --hosts .. shows where ranks are)",
                ranks->name, cr_host_name());
    }
    return CR_OK;
}

cr_status cr_here_check(const cr_config *config, const cr_hosts *hosts, cr_device_memory *memory,
                        cr_err *err)
{
    cr_layout layout;

    cr_layout_init(&layout, config);
    CR_TRY(check_writer(config, hosts, &layout, err));
    CR_TRY(check_device(config, hosts, memory, err));
    CR_TRY(check_files(&layout, err));
    CR_TRY(check_shm(config, hosts, err));
    return check_threads(&layout, err);
}
