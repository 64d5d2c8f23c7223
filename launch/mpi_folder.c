/* mpi_folder.c -- see mpi_folder.h. */
#include "launch/mpi_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char shared[] = "/dev/shm", start[] = "croll.";

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

static void remove_left_over(void)
{
    DIR *dir = opendir(shared);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char *path;
        int fd;
        if (strncmp(entry->d_name, start, sizeof start - 1) != 0) continue;
        path = cr_path_join(shared, entry->d_name);
        fd = lock_folder(path, LOCK_EX | LOCK_NB); /* fails while its launcher lives */
        if (fd >= 0) {
            remove_folder(path);
            close(fd);
        }
        cr_free(path);
    }
    if (dir) closedir(dir);
}

cr_status cr_mpi_folder_open(cr_mpi_folder *folder, cr_err *err)
{
    struct statfs fs;

    *folder = (cr_mpi_folder){.fd = -1};
    if (statfs(shared, &fs) != 0 || fs.f_type != TMPFS_MAGIC) return CR_OK;
    remove_left_over();
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
