/* cgroup.c -- a cgroup for each slot, where this process may make one: then the kernel bounds the memory and the number of
 * processes of a slot, its interpreter and its programs, besides what slot.c looks at.
 *
 * Version 1 has a folder for each controller; version 2 one for all, below a cgroup that has given its controllers to children
 * (systemd's Delegate). A slot joins before it makes its namespaces. Empty folders of sandboxes that were killed are removed by the next one.
 */
#include "sandbox/sandbox_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OTHERS_BYTES = 128 << 20, OTHER_PROCESSES = 8 }; /* slot, interpreter, process 1 */

static bool write_file(const char *folder, const char *name, long long value)
{
    char *path = cr_path_join(folder, name), text[32];
    int fd = open(path, O_WRONLY | O_CLOEXEC), n = snprintf(text, sizeof text, "%lld", value);
    bool is_written = fd >= 0 && write(fd, text, (size_t)n) == n;

    if (fd >= 0) close(fd);
    cr_free(path);
    return is_written;
}

/* Of a sandbox whose process is gone. */
static void remove_stale(const char *parent)
{
    DIR *folder = opendir(parent);
    struct dirent *entry;
    int pid;

    while (folder && (entry = readdir(folder)))
        if (sscanf(entry->d_name, "croll-%d-", &pid) == 1 && kill(pid, 0) != 0 && errno == ESRCH)
            unlinkat(dirfd(folder), entry->d_name, AT_REMOVEDIR);
    if (folder) closedir(folder);
}

/* The cgroup of this process for a controller, or NULL; "" is version 2. */
static char *own_cgroup(const char *controller)
{
    char *found = NULL, want[32];
    size_t at = 0, n;
    cr_buf text = {0};
    const char *line;
    cr_err ignored = {0};

    snprintf(want, sizeof want, ":%s:", controller);
    if (cr_file_read("/proc/self/cgroup", &text, &ignored) == CR_OK)
        while (!found && (line = cr_line_next(&text, &at, &n))) {
            const char *colon = memchr(line, ':', n);
            if (!colon || strncmp(colon, want, strlen(want)) != 0) continue;
            colon += strlen(want);
            found = cr_asprintf("/sys/fs/cgroup/%s%.*s", controller,
                                (int)(n - (size_t)(colon - line)), colon);
        }
    cr_buf_free(&text);
    return found;
}

/* A folder with a limit, joined by pid; NULL: that cannot be. */
static char *make_one(const char *controller, int number, const char *file, long long value,
                      const char *file_2, long long value_2, pid_t pid)
{
    char *parent = own_cgroup(controller), *path;

    if (!parent) return NULL;
    remove_stale(parent);
    path = cr_asprintf("%s/croll-%d-%d", parent, (int)getpid(), number);
    cr_free(parent);
    if (mkdir(path, 0755) == 0 && write_file(path, file, value) &&
        (!file_2 || write_file(path, file_2, value_2)) && write_file(path, "cgroup.procs", pid))
        return path;
    rmdir(path);
    cr_free(path);
    return NULL;
}

void cri_cgroup_make(const cr_sandbox_limits *limits, int number, pid_t pid, char *out[2])
{
    long long bytes = limits->memory_bytes + limits->files_bytes + OTHERS_BYTES,
              processes = limits->num_processes + OTHER_PROCESSES;

    out[1] = NULL;
    out[0] = make_one("", number, "memory.max", bytes, "pids.max", processes, pid);
    if (out[0]) return;
    out[0] = make_one("memory", number, "memory.limit_in_bytes", bytes, NULL, 0, pid);
    out[1] = make_one("pids", number, "pids.max", processes, NULL, 0, pid);
}

void cri_cgroup_remove(char *paths[2])
{
    double until = cr_now_s() + 1;

    for (int i = 0; i < 2; i++) {
        while (paths[i] && rmdir(paths[i]) != 0 && errno == EBUSY && cr_now_s() < until)
            cr_sleep_s(0.002); /* its processes are ending */
        cr_free(paths[i]);
        paths[i] = NULL;
    }
}
