/* cmd_doctor.c -- croll doctor: what this machine offers a run, and what each finding means. */
#include "base/json.h"
#include "base/limits.h"
#include "commands/commands.h"
#include "kernels/gpu.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct report {
    bool has_json, has_failed;
} report;

typedef enum verdict { FINE, NOTE, MISSING } verdict;

static void say(report *r, const char *name, verdict v, const char *found, const char *meaning)
{
    static const char *const words[] = {"ok", "note", "missing"};
    cr_buf line = {0};

    r->has_failed |= v == MISSING;
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

static cr_status check_cpu(report *r, cr_err *err)
{
    char model[256], found[400];
    cr_device *dev;

    CR_TRY(cr_device_open("cpu", 1, &dev, err));
    proc_value("/proc/cpuinfo", "model name", model, sizeof model);
    snprintf(found, sizeof found, "%s, %d usable cores, kernels for %s", model, cr_num_cores(),
             cr_device_variant(dev));
    say(r, "cpu", FINE, found,
        strcmp(cr_device_variant(dev), "amx") == 0 ||
                strcmp(cr_device_variant(dev), "avx512bf16") == 0
            ? "bf16 products run in hardware"
            : "bf16 works, but its products are computed in fp32 here and gain no speed");
    cr_device_close(dev);
    return CR_OK;
}

static void check_memory(report *r)
{
    char found[200];
    struct statvfs fs;

    snprintf(found, sizeof found, "%.1f GB, %.1f GB of them free",
             (double)cr_find_number("/proc/meminfo", "MemTotal:") / 1048576,
             (double)cr_find_number("/proc/meminfo", "MemAvailable:") / 1048576);
    say(r, "memory", FINE, found,
        "training in fp32 needs 16 bytes a parameter over all ranks, and 4 a rank that generates");
    if (statvfs("/dev/shm", &fs) != 0) {
        say(r, "shared memory", MISSING, "there is no /dev/shm", "ranks of a host talk through it");
        return;
    }
    double free_gb = (double)fs.f_bavail * (double)fs.f_frsize / 1e9;
    snprintf(found, sizeof found, "/dev/shm has %.1f GB free", free_gb);
    say(r, "shared memory", free_gb < 1 ? NOTE : FINE, found,
        free_gb < 1 ? "large models need more: mount it with a larger size (docker: --shm-size)"
                    : "gathered parameters and gradients in flight live there");
}

static void check_programs(report *r)
{
    char found[256];

    first_line("mpirun --version 2>/dev/null", found, sizeof found);
    if (found[0])
        say(r, "mpi", FINE, found, "starts the ranks; croll sets what root and few cores need");
    else
        say(r, "mpi", MISSING, "no mpirun", "runs on several ranks need it: scripts/setup");
    first_line("redis-server --version 2>/dev/null", found, sizeof found);
    if (found[0])
        say(r, "redis", FINE, found, "croll run starts a private server on a unix socket");
    else
        say(r, "redis", MISSING, "no redis-server",
            "install it (scripts/setup), or name a server: exchange: {url: redis://..}");
}

static void check_limits(report *r)
{
    struct rlimit files;
    char found[128];

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        snprintf(found, sizeof found, "%llu open files", (unsigned long long)files.rlim_cur);
        say(r, "limits", files.rlim_cur < 1024 ? NOTE : FINE, found,
            files.rlim_cur < 1024 ? "shards of large checkpoints may need more: ulimit -n 4096"
                                  : "enough for every checkpoint of croll");
    }
}

/* One product on the first GPU, so that its library is looked at. */
static cr_status try_products(cr_device *dev, cr_err *err)
{
    enum { SIDE = 1024, BYTES = SIDE * SIDE * 2 };
    cr_mem *w = NULL, *x = NULL, *y = NULL;
    cr_weight weight = {.dtype = CR_BF16, .num_rows = SIDE, .num_cols = SIDE};

    if (cr_device_alloc(dev, BYTES, &w, err) == CR_OK && cr_zero(dev, w, BYTES, err) == CR_OK &&
        cr_device_alloc(dev, BYTES, &x, err) == CR_OK && cr_zero(dev, x, BYTES, err) == CR_OK &&
        cr_device_alloc(dev, BYTES, &y, err) == CR_OK) {
        weight.data = w;
        cr_note(cr_linear(dev, &(cr_linear_args){x, &weight, NULL, NULL, y, CR_BF16, SIDE}, err));
        if (err->status == CR_OK) cr_note(cr_device_sync(dev, err));
    }
    cr_device_free(dev, w, BYTES);
    cr_device_free(dev, x, BYTES);
    cr_device_free(dev, y, BYTES);
    return err->status;
}

static void check_products(report *r)
{
    cr_device *dev;
    char text[200] = "", found[600];
    cr_err err = {0};

    if (cr_device_open("cuda", 1, &dev, &err) == CR_OK) {
        if (try_products(dev, &err) == CR_OK) cr_gpu_products(dev, text, sizeof text);
        cr_device_close(dev);
    }
    snprintf(found, sizeof found, "%s",
             err.status       ? err.msg
             : text[0] == '1' ? "cuBLASLt's give a row the same bits in any company"
             : text[0]        ? text
                              : "croll's own kernels (CROLL_CUDA_PRODUCTS)");
    say(r, "products", err.status || text[0] == '0' ? NOTE : FINE, found,
        "cuBLASLt multiplies where that is so for the sizes at hand, croll's own kernels "
        "elsewhere");
}

static void check_gpus(report *r)
{
    cr_gpu_report *g = CR_NEW(cr_gpu_report);
    cr_err err = {0};
    char found[256], meaning[256];

    if (cr_gpu_probe(g, &err) != CR_OK)
        say(r, "gpu", NOTE,
            access("/dev/nvidiactl", F_OK) == 0 ? "there is an NVIDIA driver" : "none", err.msg);
    if (g->runtime[0]) {
        snprintf(found, sizeof found, "CUDA %s, cuBLAS %s, NCCL %s, driver for CUDA %s", g->runtime,
                 g->cublas, g->nccl, g->driver[0] ? g->driver : "absent");
        say(r, "cuda", g->driver[0] ? FINE : NOTE, found,
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
                     "code of this build runs on it: CROLL_DEVICE=cuda uses it (docs/cuda.md)");
        say(r, "gpu", gpu->fault[0] ? NOTE : FINE, found, meaning);
    }
    if (g->num_listed > 0 && !g->gpu[0].fault[0]) check_products(r);
    cr_free(g);
}

static int run(int argc, char **argv)
{
    report r = {0};
    const cr_option options[] = {
        {"json", CR_OPT_FLAG, &r.has_json, NULL, "one JSON object a finding"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_doctor, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        if (words.num) cr_fail(&err, CR_EUSAGE, "takes no words, not '%s'", words.word[0]);
        if (err.status == CR_OK && check_cpu(&r, &err) == CR_OK) {
            check_memory(&r);
            check_programs(&r);
            check_limits(&r);
            check_gpus(&r);
            if (r.has_failed)
                cr_fail(&err, CR_EABSENT, "something that runs need is missing (see above)");
        }
    }
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_doctor, &err) : 0;
}

const cr_command cr_command_doctor = {
    "doctor",
    "doctor [--json]",
    "What croll finds on this machine (CPU, memory, MPI, Redis, limits, GPUs), and what each "
    "means. "
    "Exit code 2 if something that runs need is missing.",
    "croll doctor",
    run,
};
