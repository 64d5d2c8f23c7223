/* source.c -- see source.h. */
#include "images/source.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* A file below the folder, with no step out of it. */
static int open_below(const char *folder, const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd, root = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (root < 0) return -1;
    fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (fd < 0) {
        int why = errno;
        close(root);
        errno = why;
        return -1;
    }
    close(root);
    return fd;
}

static cr_status read_open(int fd, const char *path, cr_buf *out, cr_err *err)
{
    struct stat is;
    ssize_t n;

    if (fstat(fd, &is) != 0 || !S_ISREG(is.st_mode))
        return cr_fail(err, CR_EFORMAT, "%.200s is no file", path);
    if (is.st_size > CR_IMAGE_MAX_BYTES)
        return cr_fail(err, CR_EFORMAT, "%.200s has %lld bytes, more than %d", path,
                       (long long)is.st_size, CR_IMAGE_MAX_BYTES);
    cr_buf_reserve(out, (size_t)is.st_size + 1);
    while (out->num_bytes < (size_t)is.st_size &&
           (n = read(fd, out->data + out->num_bytes, (size_t)is.st_size - out->num_bytes)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cr_fail(err, CR_EIO, "%.200s: %s", path, strerror(errno));
        out->num_bytes += (size_t)n;
    }
    return CR_OK;
}

static cr_status read_path(const char *path, const char *folder, cr_buf *out, cr_err *err)
{
    size_t num = folder ? strlen(folder) : 0;
    int fd;

    if (!folder)
        return cr_fail(err, CR_EFORMAT, "%.200s is a path, and there is no image_folder", path);
    while (num > 1 && folder[num - 1] == '/')
        num--;
    if (path[0] == '/' && strncmp(path, folder, num) == 0 && path[num] == '/')
        path += num + strspn(path + num, "/");
    if ((fd = open_below(folder, path)) < 0)
        return cr_fail(err, errno == ENOENT ? CR_EIO : CR_EFORMAT, "%.200s: %s%s (below %.100s)",
                       path, errno == EXDEV ? "it leads out of image_folder: " : "",
                       strerror(errno), folder);
    cr_note(read_open(fd, path, out, err));
    close(fd);
    return err->status;
}

static cr_status read_base64(const char *text, size_t num_bytes, cr_buf *out, cr_err *err)
{
    if (num_bytes / 4 * 3 > CR_IMAGE_MAX_BYTES)
        return cr_fail(err, CR_EFORMAT, "base64 of %zu bytes, more than %d", num_bytes / 4 * 3,
                       CR_IMAGE_MAX_BYTES);
    if (!cr_base64_read(text, num_bytes, out))
        return cr_fail(err, CR_EFORMAT, "its base64 is not valid");
    return CR_OK;
}

/* base64 of a file of one of the three types, by its first bytes. */
static bool is_base64(const char *text)
{
    return begins(text, "/9j/") || begins(text, "iVBORw0KGgo") || begins(text, "UklGR");
}

static cr_status read_text(const char *text, size_t num_bytes, const char *folder, cr_buf *out,
                           cr_err *err)
{
    const char *comma;

    if (strlen(text) != num_bytes) return cr_fail(err, CR_EFORMAT, "its text has a NUL");
    if (begins(text, "data:")) {
        comma = memchr(text, ',', num_bytes < 200 ? num_bytes : 200);
        if (!comma || comma - text < 12 || !begins(comma - 7, ";base64"))
            return cr_fail(err, CR_EFORMAT, "%.40s is no data URI with base64", text);
        return read_base64(comma + 1, num_bytes - (size_t)(comma + 1 - text), out, err);
    }
    if (begins(text, "http://") || begins(text, "https://"))
        return cr_fail(err, CR_EFORMAT, "%.100s: nothing is fetched, give a file or its data",
                       text);
    if (is_base64(text)) return read_base64(text, num_bytes, out, err);
    return read_path(text, folder, out, err);
}

cr_status cr_image_source_read(const json_t *value, const char *folder, cr_buf *out, cr_err *err)
{
    static const char *const names[] = {"path", "url"};
    const json_t *text = value, *bytes = json_object_get(value, "bytes");

    cr_buf_clear(out);
    if (json_is_string(bytes))
        return read_base64(json_string_value(bytes), json_string_length(bytes), out, err);
    for (size_t i = 0; i < CR_COUNT(names) && json_is_object(value); i++) {
        text = json_object_get(value, names[i]);
        if (json_is_string(text)) break;
    }
    if (!json_is_string(text))
        return cr_fail(err, CR_EFORMAT,
                       "it is neither text nor an object with bytes, a path or a url");
    return read_text(json_string_value(text), json_string_length(text), folder, out, err);
}

const char *cr_image_source_path(const json_t *value)
{
    const char *text =
        json_string_value(json_is_object(value) ? json_object_get(value, "path") : value);

    if (json_is_string(json_object_get(value, "bytes"))) return NULL;
    return text && !begins(text, "data:") && !is_base64(text) ? text : NULL;
}
