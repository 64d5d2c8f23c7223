/* doctor.c -- see doctor.h. */
#include "launch/doctor/doctor.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/rng.h"
#include "configs/configs.h"
#include "kernels/gpu.h"
#include "kernels/kernels.h"
#include "launch/cores/cores.h"
#include "launch/device.h"
#include "launch/placement.h"
#include "launch/preflight/needs.h"
#include "samples/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- GPUs ---- */

/* bf16 numbers of 2^-15 to 2, either sign. Zeros, or numbers of one size, whose sums are exact, have the same bits in every order. */
static cr_status upload_numbers(cr_device *dev, cr_mem *mem, size_t num, cr_err *err)
{
    uint16_t *bits = CR_NEW_ARRAY(uint16_t, num);

    for (size_t i = 0; i < num; i++) {
        uint32_t word[4];
        cr_rng_philox(0, CR_RNG_INIT, 0, i, word);
        bits[i] = (uint16_t)((112 + word[1] % 16) << 7 | (word[0] & 0x807f));
    }
    cr_note(cr_upload(dev, mem, bits, num * sizeof *bits, err));
    cr_free(bits);
    return err->status;
}

/* Products on the first GPU, so that its library is looked at: with float32 results, too, whose last bits show another order of a sum. */
static cr_status try_products(cr_device *dev, cr_err *err)
{
    enum { SIDE = 512, NUM = SIDE * SIDE, BYTES = NUM * 2 };
    static const cr_dtype types[] = {CR_BF16, CR_F32};
    cr_mem *w = NULL, *x = NULL, *y = NULL;
    cr_weight weight = {.dtype = CR_BF16, .num_rows = SIDE, .num_cols = SIDE};

    if (cr_device_alloc(dev, BYTES, &w, err) == CR_OK &&
        upload_numbers(dev, w, NUM, err) == CR_OK &&
        cr_device_alloc(dev, BYTES, &x, err) == CR_OK && cr_zero(dev, x, BYTES, err) == CR_OK &&
        cr_device_alloc(dev, NUM * 4, &y, err) == CR_OK) {
        weight.data = w;
        for (size_t i = 0; i < CR_COUNT(types) && err->status == CR_OK; i++)
            cr_note(
                cr_linear(dev, &(cr_linear_args){x, &weight, NULL, NULL, y, types[i], SIDE}, err));
        if (err->status == CR_OK) cr_note(cr_device_sync(dev, err));
    }
    cr_device_free(dev, w, BYTES);
    cr_device_free(dev, x, BYTES);
    cr_device_free(dev, y, NUM * 4);
    return err->status;
}

/* What uploads and offloaded states use. */
static void check_pinned(cr_doctor *r)
{
    enum { MIB = 256 };
    const size_t bytes = (size_t)MIB << 20;
    double began_s = cr_now_s();
    char found[600];
    cr_device *dev = NULL;
    cr_mem *mem = NULL;
    cr_err err = {0};

    if (cr_device_open("cuda", 1, &dev, &err) == CR_OK) {
        began_s = cr_now_s();
        cr_note(cr_host_alloc(dev, bytes, &mem, &err));
    }
    if (err.status)
        snprintf(found, sizeof found, "%s", err.msg);
    else
        snprintf(found, sizeof found, "%d MiB pinned in %.0f ms, %.1f GB of the host are free", MIB,
                 (cr_now_s() - began_s) * 1e3, (double)cr_memory_left() / 1e9);
    if (mem) cr_host_free(dev, mem, bytes);
    if (dev) cr_device_close(dev);
    cr_doctor_say(
        r, "pinned memory", err.status ? CR_FINDING_NOTE : CR_FINDING_FINE, found,
        "roles that take turns on a GPU offload 12 bytes a trained parameter into it (croll run "
        "compares)");
}

static void check_products(cr_doctor *r)
{
    cr_device *dev;
    cr_gpu_products p = {0};
    char found[600] = "croll's own kernels (CROLL_CUDA_PRODUCTS)";
    cr_err err = {0};

    if (cr_device_open("cuda", 1, &dev, &err) == CR_OK) {
        if (try_products(dev, &err) == CR_OK) p = cr_gpu_get_products(dev);
        cr_device_close(dev);
    }
    if (err.status)
        snprintf(found, sizeof found, "%s", err.msg);
    else if (p.refusal[0])
        snprintf(found, sizeof found, "%d of %d sizes of weights (%s)", p.num_taken, p.num_sizes,
                 p.refusal);
    else if (p.num_sizes)
        snprintf(found, sizeof found,
                 "cuBLASLt's give a row the same bits in any company; few rows of %d of %d sizes "
                 "have a kernel of their own, and %d algorithms of cuBLASLt are for few rows",
                 p.num_few, p.num_sizes, p.num_fitted);
    cr_doctor_say(r, "products", err.status || p.refusal[0] ? CR_FINDING_NOTE : CR_FINDING_FINE,
                  found,
                  "cuBLASLt multiplies where that is so for the sizes at hand, croll's own kernels "
                  "elsewhere");
}

static void check_gpus(cr_doctor *r)
{
    cr_gpu_report *g = CR_NEW(cr_gpu_report);
    cr_err err = {0};
    char found[256], meaning[256];

    if (cr_gpu_probe(g, &err) != CR_OK)
        cr_doctor_say(r, "gpu", CR_FINDING_NOTE,
                      access("/dev/nvidiactl", F_OK) == 0 ? "there is an NVIDIA driver" : "none",
                      err.msg);
    if (g->runtime[0]) {
        snprintf(found, sizeof found, "CUDA %s, cuBLAS %s, NCCL %s, driver for CUDA %s", g->runtime,
                 g->cublas, g->nccl, g->driver[0] ? g->driver : "absent");
        cr_doctor_say(
            r, "cuda", g->num_gpus ? CR_FINDING_FINE : CR_FINDING_NOTE, found,
            "what this build was linked with; the driver has to be as new as the runtime");
    }
    for (int i = 0; i < g->num_listed; i++) {
        const cr_gpu *gpu = &g->gpu[i];
        snprintf(found, sizeof found, "%d: %s, compute capability %d.%d, %.1f GB, %.1f GB free", i,
                 gpu->name, gpu->capability_major, gpu->capability_minor,
                 (double)gpu->memory_bytes / 1e9, (double)gpu->free_bytes / 1e9);
        if (gpu->fault[0])
            snprintf(meaning, sizeof meaning, "a kernel of this build does not run on it: %s",
                     gpu->fault);
        else
            snprintf(meaning, sizeof meaning,
                     "code of this build runs on it: device: cuda of a run's file uses it "
                     "(docs/cuda.md)");
        cr_doctor_say(r, "gpu", gpu->fault[0] ? CR_FINDING_NOTE : CR_FINDING_FINE, found, meaning);
    }
    if (g->num_listed > 0 && !g->gpu[0].fault[0]) {
        check_products(r);
        check_pinned(r);
    }
    cr_free(g);
}

/* ---- this machine ---- */

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

static void check_program(cr_doctor *r, const char *topic, const char *command, const char *use,
                          const char *missing, const char *remedy)
{
    char found[256];

    first_line(command, found, sizeof found);
    cr_doctor_say(r, topic, found[0] ? CR_FINDING_FINE : CR_FINDING_MISSING,
                  found[0] ? found : missing, found[0] ? use : remedy);
}

static void check_programs(cr_doctor *r)
{
    check_program(r, "mpi", "mpirun --version 2>/dev/null",
                  "starts the ranks; croll sets what root and few cores need", "no mpirun",
                  "runs on several ranks need it: scripts/setup");
    check_program(r, "redis", "redis-server --version 2>/dev/null",
                  "croll run starts a private server on a unix socket", "no redis-server",
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
    check_gpus(r);
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
