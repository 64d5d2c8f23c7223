/* mpi_folder.c -- see mpi_folder.h. */
#include "launch/mpirun/mpi_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { ABANDON_MS = 1000 }; /* a daemon that reaches mpirun has reported it by then, and ends */

static const char shared[] = "/dev/shm", start[] = "croll.";
enum {
    JOIN_SECONDS = 60
}; /* a daemon's folder that nothing holds may be that of ranks which have yet to start */

/* A folder of this user that is now locked, or -1. */
static int lock_folder(const char *path, int how)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, how) == 0) return fd;
    close(fd);
    return -1;
}

static void remove_folder(const char *path)
{
    cr_err err = {0};

    if (cr_remove_tree(path, &err) != CR_OK) cr_log(CR_LOG_WARN, "run", "%s", err.msg);
}

/* Folders that nothing holds and that did not change for min_age_s. */
static void remove_left_over(time_t min_age_s)
{
    DIR *dir = opendir(shared);
    struct dirent *entry;
    struct stat st;

    while (dir && (entry = readdir(dir))) {
        char *path;
        int fd;
        if (strncmp(entry->d_name, start, sizeof start - 1) != 0) continue;
        path = cr_path_join(shared, entry->d_name);
        fd = lock_folder(path, LOCK_EX | LOCK_NB); /* fails while its launcher lives */
        if (fd >= 0 && fstat(fd, &st) == 0 && time(NULL) - st.st_ctime >= min_age_s)
            remove_folder(path);
        if (fd >= 0) close(fd);
        cr_free(path);
    }
    if (dir) closedir(dir);
}

cr_status cr_mpi_folder_open(cr_mpi_folder *folder, cr_err *err)
{
    struct statfs fs;

    *folder = (cr_mpi_folder){.fd = -1};
    if (statfs(shared, &fs) != 0 || fs.f_type != TMPFS_MAGIC) return CR_OK;
    remove_left_over(0);
    for (int try = 0; try < 10; try++) {
        snprintf(folder->path, sizeof folder->path, "%s/%sXXXXXX", shared, start);
        if (!mkdtemp(folder->path)) {
            folder->path[0] = 0;
            return cr_fail(err, CR_EIO, "cannot make a folder in %s: %s", shared, strerror(errno));
        }
        folder->fd = lock_folder(folder->path, LOCK_EX);
        if (folder->fd >= 0 && cr_dir_exists(folder->path)) return CR_OK;
        if (folder->fd >= 0) close(folder->fd); /* another start took it for left over */
    }
    *folder = (cr_mpi_folder){.fd = -1};
    return cr_fail(err, CR_EIO, "cannot keep a folder in %s: something removes it", shared);
}

void cr_mpi_folder_close(cr_mpi_folder *folder)
{
    if (!folder->path[0]) return;
    remove_folder(folder->path);
    close(folder->fd);
    *folder = (cr_mpi_folder){.fd = -1};
}

/* ---- on a rank ---- */

/* Open MPI passes its option to the ranks; NULL: the folder is not one of croll's. */
static const char *path_here(void)
{
    const char *path = getenv("OMPI_MCA_orte_tmpdir_base"),
               *name = path ? strrchr(path, '/') : NULL;

    return name && strncmp(path, shared, (size_t)(name - path)) == 0 &&
                   strncmp(name + 1, start, strlen(start)) == 0
               ? path
               : NULL;
}

/* The parent, if it is Open MPI's daemon; 0: it is not. */
static pid_t daemon_here(void)
{
    pid_t parent = getppid();
    char *path = cr_asprintf("/proc/%d/comm", (int)parent);
    cr_buf name = {0};
    cr_err ignored = {0};

    if (cr_file_read(path, &name, &ignored) != CR_OK || strcmp(name.data, "orted\n") != 0)
        parent = 0;
    cr_buf_free(&name);
    cr_free(path);
    return parent;
}

/* In a process of its own that has these two open and nothing of the rank, so that the daemon sees the rank's end. Returns
 * whether the daemon ended within limit_ms (-1: waits for it). */
static bool outlive(int lock_fd, int daemon_fd, int limit_ms)
{
    struct pollfd end = {4, POLLIN, 0};
    int null_fd = open("/dev/null", O_RDWR),
        fds[] = {null_fd, null_fd, null_fd, lock_fd, daemon_fd}, n;

    setsid();
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < (int)CR_COUNT(fds); i++) /* above all of them first */
        fds[i] = fcntl(fds[i], F_DUPFD, 64);
    for (int i = 0; i < (int)CR_COUNT(fds); i++)
        dup2(fds[i], i);
    close_range(CR_COUNT(fds), ~0u, 0);
    while ((n = poll(&end, 1, limit_ms)) < 0 && errno == EINTR)
        continue;
    return n > 0;
}

void cr_mpi_folder_join(void)
{
    const char *path = path_here();
    pid_t orted = path ? daemon_here() : 0;
    int lock_fd =
            orted ? lock_folder(path, LOCK_EX | LOCK_NB) : -1, /* fails for all but the first */
        daemon_fd = lock_fd >= 0 ? pidfd_open(orted, 0) : -1;

    if (daemon_fd >= 0 && fork() == 0) {
        outlive(lock_fd, daemon_fd, -1);
        remove_folder(path);
        _exit(0);
    }
    if (daemon_fd >= 0) close(daemon_fd);
    if (lock_fd >= 0) {
        close(lock_fd);
        remove_left_over(JOIN_SECONDS); /* of runs that were killed with that process */
    }
}

void cr_mpi_folder_abandon(void)
{
    pid_t orted = daemon_here();
    int daemon_fd = orted ? pidfd_open(orted, 0) : -1;

    if (daemon_fd < 0 || fork() != 0) return;
    if (!outlive(daemon_fd, daemon_fd, ABANDON_MS)) kill(orted, SIGKILL);
    _exit(0);
}
