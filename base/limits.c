/* limits.c -- what the machine, or the cgroup that this process is in, lets it have. */
#include "base/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* The limit of a version 2 cgroup and of all above it. */
static int64_t cgroup_limit(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[4096], path[4200];
    int64_t least = -1;

    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        for (char *end = line + strlen(line);; end = strrchr(line + 3, '/')) {
            int64_t limit;
            *end = 0;
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
            limit = read_number(path);
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
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), limit = cgroup_limit();

    return limit > 0 && limit < all ? limit : all;
}
