/* limits.c -- what the machine, or the cgroup that this process is in, lets it have. */
#include "base/limits.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The number in a file such as memory.max, or -1: "max", or no such file. */
static int64_t read_number(const char *path)
{
    FILE *f = fopen(path, "re");
    long long x = -1;

    if (!f) return -1;
    if (fscanf(f, "%lld", &x) != 1) x = -1;
    fclose(f);
    return x;
}

int64_t cr_find_number(const char *path, const char *name)
{
    FILE *f = fopen(path, "re");
    char line[256];
    long long x = 0;

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), " %lld", &x) == 1)
            break;
    if (f) fclose(f);
    return x;
}

/* Of a folder of /sys/fs/cgroup: its limit, or what is left of it (files that it has read can be dropped); -1: none. */
static int64_t memory_of(const char *folder)
{
    char path[4200];

    snprintf(path, sizeof path, "%s/memory.max", folder);
    return read_number(path);
}

static int64_t memory_left_of(const char *folder)
{
    char path[4200];
    int64_t limit = memory_of(folder);

    if (limit <= 0) return limit;
    snprintf(path, sizeof path, "%s/memory.current", folder);
    limit -= read_number(path);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    return cr_max64(1, limit + cr_find_number(path, "inactive_file"));
}

/* CPU time of a folder, in thousandths of a CPU; version 1 of cgroups has the two numbers in files of their own. */
static int64_t cpus_of(const char *folder)
{
    char path[4200];
    long long quota = -1, period = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/cpu.max", folder);
    f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) != 2) quota = -1; /* "max 100000" */
        fclose(f);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        quota = read_number(path);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        period = read_number(path);
    }
    return quota > 0 && period > 0 ? cr_max64(1, 1000 * quota / period) : -1;
}

/* The path of this process in a line of /proc/self/cgroup, "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1 for
 * the controller; NULL: a line of another. */
static char *path_of(char *line, const char *controller)
{
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

    if (!path || path[1] != '/') return NULL;
    *path++ = 0;
    if (!controller) return list[1] ? NULL : path;
    for (char *word = strtok(list + 1, ","); word; word = strtok(NULL, ","))
        if (strcmp(word, controller) == 0) return path;
    return NULL;
}

/* The least limit of the cgroup of this process and of all above it; -1: none. controller: of version 1; NULL: version 2. */
static int64_t cgroup_limit(const char *controller, int64_t (*limit_of)(const char *folder))
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[4096], folder[4150], *path;
    int64_t min = -1;

    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!(path = path_of(line, controller))) continue;
        for (char *end = path + strlen(path);; end = strrchr(path, '/')) {
            int64_t limit;
            *end = 0;
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s%s", controller ? "/" : "",
                     controller ? controller : "", path);
            limit = limit_of(folder);
            if (limit > 0 && (min < 0 || limit < min)) min = limit;
            if (!strrchr(path, '/')) break;
        }
    }
    if (f) fclose(f);
    return min;
}

static int64_t memory_limit(bool is_left)
{
    int64_t limit = cgroup_limit(NULL, is_left ? memory_left_of : memory_of);

    return limit < 0 ? read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes") : limit;
}

int64_t cr_memory_limit(void)
{
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE),
            limit = memory_limit(/*is_left=*/false);

    return limit > 0 && limit < all ? limit : all;
}

int64_t cr_memory_left(void)
{
    int64_t left = 1024 * cr_find_number("/proc/meminfo", "MemAvailable:"),
            limit = memory_limit(/*is_left=*/true);
    static const struct {
        __rlimit_resource_t which;
        const char *used;
    } spaces[] = {{RLIMIT_AS, "VmSize:"}, {RLIMIT_DATA, "VmData:"}};
    struct rlimit space;

    if (limit > 0 && limit < left) left = limit;
    for (size_t i = 0; i < CR_COUNT(spaces); i++) {
        if (getrlimit(spaces[i].which, &space) != 0 || space.rlim_cur == RLIM_INFINITY) continue;
        limit =
            (int64_t)space.rlim_cur - 1024 * cr_find_number("/proc/self/status", spaces[i].used);
        left = cr_max64(0, limit < left ? limit : left);
    }
    return left;
}

double cr_cpu_quota(void)
{
    int64_t limit = cgroup_limit(NULL, cpus_of);

    if (limit < 0) limit = cgroup_limit("cpu", cpus_of);
    return limit < 0 ? 0 : (double)limit / 1000;
}

/* Of base.h: by affinity, and no more than the CPU time fills. */
int cr_num_cores(void)
{
    cpu_set_t set;
    int num = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    double quota = cr_cpu_quota();

    return quota > 0 && quota < num ? (int)ceil(quota) : num;
}
