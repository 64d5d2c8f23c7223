/* limits.c -- what the machine, or the cgroup that this process is in, lets it have. */
#include "base/limits.h"

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
static int64_t folder_limit(const char *folder, bool is_left)
{
    char path[4200];
    int64_t limit;

    snprintf(path, sizeof path, "%s/memory.max", folder);
    limit = read_number(path);
    if (limit <= 0 || !is_left) return limit;
    snprintf(path, sizeof path, "%s/memory.current", folder);
    limit -= read_number(path);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    return cr_max64(1, limit + cr_find_number(path, "inactive_file"));
}

/* Of a version 2 cgroup and of all above it. */
static int64_t cgroup_limit(bool is_left)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[4096], folder[4150];
    int64_t least = -1;

    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        for (char *end = line + strlen(line);; end = strrchr(line + 3, '/')) {
            int64_t limit;
            *end = 0;
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", line + 3);
            limit = folder_limit(folder, is_left);
            if (limit > 0 && (least < 0 || limit < least)) least = limit;
            if (!strrchr(line + 3, '/')) break;
        }
    }
    if (f) fclose(f);
    if (least < 0) least = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    return least;
}

int64_t cr_memory_limit(void)
{
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE),
            limit = cgroup_limit(/*is_left=*/false);

    return limit > 0 && limit < all ? limit : all;
}

int64_t cr_memory_left(void)
{
    int64_t left = 1024 * cr_find_number("/proc/meminfo", "MemAvailable:"),
            limit = cgroup_limit(/*is_left=*/true);
    struct rlimit space;

    if (limit > 0 && limit < left) left = limit;
    if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return left;
    limit = (int64_t)space.rlim_cur - 1024 * cr_find_number("/proc/self/status", "VmSize:");
    return limit < left ? cr_max64(0, limit) : left;
}
