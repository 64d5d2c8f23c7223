/* doctor.c -- see doctor.h. */
#include "launch/doctor/doctor.h"
#include "base/json.h"
#include "base/limits.h"
#include "configs/configs.h"
#include "kernels/kernels.h"
#include "launch/cores/cores.h"
#include "launch/device.h"
#include "launch/doctor/doctor_impl.h"
#include "launch/placement.h"
#include "launch/preflight/needs.h"
#include "samples/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

void cr_doctor_say(cr_doctor *r, const char *name, cr_finding v, const char *found,
                   const char *meaning)
{
    static const char *const words[] = {"ok", "note", "missing"};
    cr_buf line = {0};

    r->has_failed |= v == CR_FINDING_MISSING;
    if (r->has_json) {
        cr_buf_addf(&line, "{\"name\":\"%s\",\"status\":\"%s\",\"found\":", name, words[v]);
        cr_json_add_string(&line, found, strlen(found));
        cr_buf_adds(&line, ",\"meaning\":");
        cr_json_add_string(&line, meaning, strlen(meaning));
        cr_buf_addc(&line, '}');
    } else {
        cr_buf_addf(&line, "%-8s %-14s %s\n%-8s %-14s %s", words[v], name, found, "", "", meaning);
    }
    printf("%s\n", line.data);
    cr_buf_free(&line);
}

/* The first line of what a shell command prints; empty when it fails. */
static void first_line(const char *command, char *out, size_t size)
{
    FILE *pipe = popen(command, "re");

    out[0] = 0;
    if (!pipe) return;
    if (!fgets(out, (int)size, pipe)) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    pclose(pipe);
}

/* The value after "key :" of a /proc file. */
static void proc_value(const char *path, const char *key, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    char line[512];

    out[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, size, "%s", colon);
        break;
    }
    if (file) fclose(file);
}

/* Linux on aarch64 knows no name: "CPU 0xd4f of implementer 0x41" (Neoverse V2 of Arm). */
static void name_arm(char *out, size_t size)
{
    char implementer[64], part[64];

    proc_value("/proc/cpuinfo", "CPU implementer", implementer, sizeof implementer);
    proc_value("/proc/cpuinfo", "CPU part", part, sizeof part);
    if (part[0])
        snprintf(out, size, "CPU %s of implementer %s", part, implementer);
    else
        snprintf(out, size, "CPU without a name");
}

static cr_status check_cpu(cr_doctor *r, cr_err *err)
{
    char model[256], found[400];
    cr_device *dev;

    CR_TRY(cr_device_open("cpu", 1, &dev, err));
    proc_value("/proc/cpuinfo", "model name", model, sizeof model);
    if (!model[0]) name_arm(model, sizeof model);
    snprintf(found, sizeof found, "%s, %d usable hardware threads, kernels for %s", model,
             cr_num_cores(), cr_device_variant(dev));
    cr_doctor_say(r, "cpu", CR_FINDING_FINE, found,
                  strcmp(cr_device_variant(dev), "amx") == 0 ||
                          strstr(cr_device_variant(dev), "bf16")
                      ? "bf16 products run in hardware"
                      : "bf16 works, but its products are computed in fp32 here and gain no speed");
    cr_device_close(dev);
    return CR_OK;
}

static void check_memory(cr_doctor *r)
{
    char found[200];
    struct statvfs fs;

    snprintf(found, sizeof found, "%.1f GB, %.1f GB of them free",
             (double)cr_find_number("/proc/meminfo", "MemTotal:") / 1048576,
             (double)cr_find_number("/proc/meminfo", "MemAvailable:") / 1048576);
    cr_doctor_say(
        r, "memory", CR_FINDING_FINE, found,
        "training in fp32 needs 16 bytes a parameter over all ranks, and 4 a rank that generates");
    if (statvfs("/dev/shm", &fs) != 0) {
        cr_doctor_say(r, "shared memory", CR_FINDING_MISSING, "there is no /dev/shm",
                      "ranks of a host talk through it");
        return;
    }
    double free_gb = (double)fs.f_bavail * (double)fs.f_frsize / 1e9;
    snprintf(found, sizeof found, "/dev/shm has %.1f GB free", free_gb);
    cr_doctor_say(r, "shared memory", free_gb < 1 ? CR_FINDING_NOTE : CR_FINDING_FINE, found,
                  free_gb < 1
                      ? "large models need more: mount it with a larger size (docker: --shm-size)"
                      : "gathered parameters and gradients in flight live there");
}

static void check_programs(cr_doctor *r)
{
    char found[256];

    first_line("mpirun --version 2>/dev/null", found, sizeof found);
    if (found[0])
        cr_doctor_say(r, "mpi", CR_FINDING_FINE, found,
                      "starts the ranks; croll sets what root and few cores need");
    else
        cr_doctor_say(r, "mpi", CR_FINDING_MISSING, "no mpirun",
                      "runs on several ranks need it: scripts/setup");
    first_line("redis-server --version 2>/dev/null", found, sizeof found);
    if (found[0])
        cr_doctor_say(r, "redis", CR_FINDING_FINE, found,
                      "croll run starts a private server on a unix socket");
    else
        cr_doctor_say(r, "redis", CR_FINDING_MISSING, "no redis-server",
                      "install it (scripts/setup), or name a server: exchange: {url: redis://..}");
}

static void check_limits(cr_doctor *r)
{
    struct rlimit files;
    char found[128];

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        snprintf(found, sizeof found, "%llu open files", (unsigned long long)files.rlim_cur);
        cr_doctor_say(r, "limits", files.rlim_cur < 1024 ? CR_FINDING_NOTE : CR_FINDING_FINE, found,
                      files.rlim_cur < 1024
                          ? "shards of large checkpoints may need more: ulimit -n 4096"
                          : "enough for every checkpoint of croll");
    }
}

/* What programs compute on. */
static void check_device(cr_doctor *r)
{
    cr_device *dev;
    cr_err err = {0};

    if (cr_device_open(r->device, 1, &dev, &err) == CR_OK) cr_device_close(dev);
    cr_doctor_say(r, "device", err.status ? CR_FINDING_MISSING : CR_FINDING_FINE, r->device,
                  err.status
                      ? err.msg
                      : "computes; device: of a run's file, or --device of a command, chooses one");
}

/* Ranks of one role that there may be: a whole machine each, a node each, and twice as many. */
static size_t choose_counts(const cr_topology *t, int counts[3])
{
    const int wanted[] = {1, t->num_nodes, 2 * t->num_nodes};
    size_t num = 0;

    for (size_t i = 0; i < CR_COUNT(wanted); i++)
        if (wanted[i] <= t->num_cores && (num == 0 || wanted[i] > counts[num - 1]))
            counts[num++] = wanted[i];
    return num;
}

static void show_cores(cr_doctor *r, const cr_topology *t, const cr_cores_wish *wish)
{
    int counts[3];
    size_t num = choose_counts(t, counts);
    cr_buf found = {0}, table = {0};
    char name[32];

    cr_topology_text(t, &found);
    cr_doctor_say(r, "cores", CR_FINDING_FINE, found.data,
                  t->num_nodes > 1
                      ? "a role does best with a rank for each NUMA node, or a multiple of that"
                      : "ranks of a role share them; roles take turns (docs/cores.md)");
    if (!r->has_json) cr_cores_row(t, wish, NULL, 0, &table);
    for (size_t i = 0; i < num; i++) {
        snprintf(name, sizeof name, "role of %d", counts[i]);
        (r->has_json ? cr_cores_json : cr_cores_row)(t, wish, name, counts[i], &table);
    }
    printf(r->has_json ? "{\"name\":\"shares\",\"shares\":[%s]}\n" : "%s", table.data);
    cr_buf_free(&found);
    cr_buf_free(&table);
}

cr_status cr_doctor_cores(cr_doctor *r, const char *description, cr_err *err)
{
    cr_topology t = {0};
    cr_cores_wish wish;

    if (cr_cores_wish_read(NULL, &wish, err) == CR_OK &&
        cr_topology_read(description, &t, err) == CR_OK)
        show_cores(r, &t, &wish);
    cr_topology_free(&t);
    return err->status;
}

cr_status cr_doctor_here(cr_doctor *r, cr_err *err)
{
    if (!r->device) r->device = cr_device_default();
    CR_TRY(check_cpu(r, err));
    CR_TRY(cr_doctor_cores(r, NULL, err));
    check_memory(r);
    check_programs(r);
    check_limits(r);
    cri_doctor_gpus(r);
    check_device(r);
    return CR_OK;
}

/* The checks of `croll run`, which would be made before it starts. config: NULL without a file. */
static cr_status check_hosts(const cr_doctor *r, const cr_hosts_args *args, const char *network,
                             const cr_config *config, cr_err *err)
{
    cr_preflight *preflight = NULL;
    cr_hosts hosts;
    cr_layout layout = {.num_ranks = 1};
    cr_needs needs;
    cr_buf text = {0};

    const bool has_gpus = config
                              ? cr_run_has_gpus(config)
                              : cr_device_name_is_gpu(r->device ? r->device : cr_device_default());

    if (config) cr_layout_init(&layout, config);
    CR_TRY(cr_hosts_open(args, layout.num_ranks, &hosts, err));
    if (config)
        CR_TRY_GOTO(out,
                    cr_placement_make(&hosts, &layout, has_gpus, config->num_gpus_per_node, err));
    cr_needs_init(&needs, config, &hosts, network, has_gpus);
    preflight = cr_preflight_make(&hosts, &needs.all);
    if (cr_preflight_check(preflight, err) == CR_ESIGNAL) goto out;
    if (r->has_json) {
        cr_preflight_json(preflight, &text);
    } else {
        cr_preflight_table(preflight, &text);
        cr_preflight_summary(preflight, &text);
        cr_preflight_findings(preflight, &text);
    }
    fwrite(text.data, 1, text.num_bytes, stdout);
out:
    cr_buf_free(&text);
    cr_preflight_free(preflight);
    cr_hosts_free(&hosts);
    return err->status;
}

cr_status cr_doctor_hosts(const cr_doctor *r, const cr_hosts_args *args, const char *network,
                          const cr_words *words, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_config config = {0};

    if (!words->num) return check_hosts(r, args, network, NULL, err);
    if (cr_config_load(words->word[0], words->word + 1, words->num - 1, &config, &d, err) == CR_OK)
        cr_note(check_hosts(r, args, network, &config, err));
    else
        cr_diagnostics_print(&d);
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    return err->status;
}
