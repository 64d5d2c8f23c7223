/* files.c -- files and folders (see base.h). */
#include "base/base.h"
#include "base/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 16 };

/* Whether there is room for that many bytes more of a file: a third of the memory that is left, or little. */
static cr_status check_room(const char *path, int64_t num_bytes, cr_err *err)
{
    enum { LITTLE = 16 << 20 };
    int64_t left = num_bytes > LITTLE ? cr_memory_left() : 0;

    if (num_bytes <= LITTLE || num_bytes <= left / 3) return CR_OK;
    return cr_fail(
        err, CR_EIO,
        "%s is too large, or has no end: it is read whole, which takes %lld bytes more, and "
        "%lld bytes of memory are left",
        path, (long long)num_bytes, (long long)left);
}

static cr_status read_all(int fd, const char *path, cr_buf *out, cr_err *err)
{
    struct stat file = {0};
    bool has_size = fstat(fd, &file) == 0 && S_ISREG(file.st_mode),
         is_endless = !has_size && S_ISCHR(file.st_mode) && fd != STDIN_FILENO && !isatty(fd);
    ssize_t n;

    cr_buf_clear(out);
    if (has_size) CR_TRY(check_room(path, file.st_size, err));
    cr_buf_reserve(out, has_size ? (size_t)file.st_size : 0);
    do {
        if (out->capacity_bytes - out->num_bytes <= READ_BYTES)
            CR_TRY(check_room(path, (int64_t)out->capacity_bytes, err));
        cr_buf_reserve(out, out->num_bytes + READ_BYTES);
        n = read(fd, out->data + out->num_bytes, out->capacity_bytes - out->num_bytes - 1);
        if (n > 0) out->num_bytes += (size_t)n;
    } while ((n > 0 && !is_endless) || (n < 0 && errno == EINTR));
    out->data[out->num_bytes] = 0;
    if (n < 0) return cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    if (n == 0) return CR_OK;
    return cr_fail(err, CR_EIO, "%s is a device without an end, not a file", path);
}

cr_status cr_file_read(const char *path, cr_buf *out, cr_err *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    cr_status status;

    if (fd < 0) return cr_fail(err, CR_EIO, "cannot open %s: %s", path, strerror(errno));
    status = read_all(fd, path, out, err);
    if (!is_stdin) close(fd);
    return status;
}

const char *cr_line_next(const cr_buf *text, size_t *at, size_t *num_bytes)
{
    const char *line, *end;

    if (*at >= text->num_bytes) return NULL;
    line = text->data + *at;
    end = memchr(line, '\n', text->num_bytes - *at);
    *num_bytes = end ? (size_t)(end - line) : text->num_bytes - *at;
    *at += *num_bytes + 1;
    return line;
}

cr_status cr_file_write_atomic(const char *path, const void *data, size_t num_bytes, cr_err *err)
{
    char *temporary = cr_asprintf("%s.tmp.%d", path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    size_t done = 0;
    cr_status status = CR_OK;

    while (fd >= 0 && done < num_bytes) {
        ssize_t n = write(fd, (const char *)data + done, num_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        done += (size_t)n;
    }
    if (fd < 0 || done < num_bytes || fsync(fd) != 0 || close(fd) != 0 ||
        rename(temporary, path) != 0) {
        status = cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
        unlink(temporary);
    }
    cr_free(temporary);
    return status;
}

void cr_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

cr_status cr_mkdirs(const char *path, cr_err *err)
{
    char *copy = cr_strdup(path);
    cr_status status = CR_OK;

    for (char *p = copy + 1; status == CR_OK; p++) {
        char c = *p;
        if (c != '/' && c != 0) continue;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            status = cr_fail(err, CR_EIO, "cannot make the folder %s: %s", copy, strerror(errno));
        *p = c;
        if (c == 0) break;
    }
    cr_free(copy);
    if (status == CR_OK && !cr_dir_exists(path))
        status = cr_fail(err, CR_EIO, "%s is there and is not a folder", path);
    return status;
}

cr_status cr_remove_tree(const char *path, cr_err *err)
{
    struct stat st;
    DIR *dir;
    struct dirent *entry;
    cr_status status = CR_OK;

    if (lstat(path, &st) != 0) return CR_OK;
    if (!S_ISDIR(st.st_mode)) {
        if (unlink(path) != 0)
            return cr_fail(err, CR_EIO, "cannot remove %s: %s", path, strerror(errno));
        return CR_OK;
    }
    dir = opendir(path);
    if (!dir) return cr_fail(err, CR_EIO, "cannot read the folder %s: %s", path, strerror(errno));
    while (status == CR_OK && (entry = readdir(dir))) {
        char *child;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        child = cr_path_join(path, entry->d_name);
        status = cr_remove_tree(child, err);
        cr_free(child);
    }
    closedir(dir);
    if (status == CR_OK && rmdir(path) != 0)
        status = cr_fail(err, CR_EIO, "cannot remove %s: %s", path, strerror(errno));
    return status;
}

bool cr_file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool cr_dir_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *cr_path_join(const char *folder, const char *name)
{
    size_t n = strlen(folder);

    return cr_asprintf("%s%s%s", folder, n && folder[n - 1] != '/' ? "/" : "", name);
}
