/* root.c -- the root that programs see: what their interpreter needs of the host, read-only, and nothing else. */
#include "sandbox/sandbox_impl.h"

#include "base/args.h"
#include "base/children.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE_S 20.0

/* ---- which paths ---- */

/* Where Python is, and the files that it has loaded or may import. */
static const char probe[] =
    "import sys, os\n"
    "if sys.version_info < (3, 9): sys.exit('Python 3.9 or later is needed, this is ' + "
    "sys.version.split()[0])\n"
    "exe = sys.executable if sys.prefix != sys.base_prefix else os.path.realpath(sys.executable)\n"
    "paths = [os.path.realpath(exe)] + [p for p in sys.path if os.path.exists(p)]\n"
    "paths += [p for p in (sys.prefix, sys.base_prefix) if p not in ('/', '/usr', '/usr/local')]\n"
    "paths += [l.split(None, 5)[5].strip() for l in open('/proc/self/maps') if '.so' in l]\n"
    "print('\\n'.join([exe] + paths))\n";

static bool is_below(const char *path, const char *folder)
{
    size_t n = strlen(folder);

    return strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* A path of the root, unless one that is there holds it. */
static void add_path(cri_sandbox_root *r, const char *path)
{
    struct stat st;

    if (path[0] != '/' || lstat(path, &st) != 0) return;
    for (size_t i = 0; i < r->num; i++)
        if (is_below(path, r->paths[i])) return;
    r->paths =
        cr_realloc(r->paths, (r->num + 1) * sizeof *r->paths, (r->num + 2) * sizeof *r->paths);
    r->paths[r->num++] = cr_strdup(path);
}

/* What a command prints; CR_ECONFIG: it cannot be started, fails or does not end. */
static cr_status output_of(char *const argv[], cr_buf *out, cr_err *err)
{
    double until = cr_now_s() + PROBE_S;
    int fd[2], status = 0;
    char text[4096];
    ssize_t n = 1;
    pid_t pid;

    if (pipe2(fd, O_CLOEXEC) != 0) return cr_fail(err, CR_EIO, "cannot make a pipe");
    pid = fork();
    if (pid == 0) {
        dup2(fd[1], STDOUT_FILENO);
        dup2(fd[1], STDERR_FILENO);
        execvp(argv[0], argv);
        dprintf(STDERR_FILENO, "%s", strerror(errno));
        _exit(127);
    }
    close(fd[1]);
    while (pid > 0 && n > 0) {
        struct pollfd ready = {.fd = fd[0], .events = POLLIN};
        double left = until - cr_now_s();
        if (left <= 0 || poll(&ready, 1, (int)(left * 1000) + 1) == 0) break;
        n = read(fd[0], text, sizeof text);
        if (n > 0) cr_buf_add(out, text, (size_t)n);
    }
    close(fd[0]);
    if (pid > 0 && n > 0) kill(pid, SIGKILL);
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0)
        return cr_fail(err, CR_ECONFIG, "the interpreter %s cannot be used: %.200s", argv[0],
                       out->num_bytes ? out->data
                       : n > 0        ? "it does not end"
                                      : "it fails");
    return CR_OK;
}

static cr_status find_python(cri_sandbox_root *r, cr_err *err)
{
    size_t at = 0, n, num = 0;
    char *argv[24] = {NULL};
    const char *line;
    cr_buf out = {0};

    for (; r->command[num] && num < 16; num++)
        argv[num] = r->command[num];
    argv[num] = (char *)(uintptr_t) "-Ic";
    argv[num + 1] = (char *)(uintptr_t)probe;
    CR_TRY_GOTO(out, output_of(argv, &out, err));
    while ((line = cr_line_next(&out, &at, &n))) {
        char *path = cr_strndup(line, n);
        if (!r->program)
            r->program = cr_strdup(path);
        else
            add_path(r, path);
        cr_free(path);
    }
    if (!r->program || r->program[0] != '/')
        cr_fail(err, CR_ECONFIG, "%s is no Python: it says %.100s", r->command[0],
                out.data ? out.data : "nothing");
out:
    cr_buf_free(&out);
    return err->status;
}

static cr_status find_other(cri_sandbox_root *r, cr_err *err)
{
    char *real = cr_find_program(r->command[0]), *end;

    if (!real)
        return cr_fail(err, CR_ECONFIG, "the interpreter %s is not there (PATH is looked at)",
                       r->command[0]);
    r->program = cr_strdup(real);
    add_path(r, "/usr");
    add_path(r, "/bin");
    add_path(r, "/etc/alternatives");
    end = strstr(real, "/bin/"); /* of its own prefix, if it has one */
    if (end && end != real) *end = '\0';
    add_path(r, real);
    cr_free(real);
    return CR_OK;
}

cr_status cri_root_find(const char *interpreter, bool is_python, cri_sandbox_root *out, cr_err *err)
{
    static const char *const libraries[] = {
        "/lib",      "/lib64",    "/usr/lib",  "/usr/lib64",  "/usr/lib32",  "/etc/ld.so.cache",
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};

    *out = (cri_sandbox_root){.num = 0};
    CR_TRY(cr_split_words(interpreter, &out->command, err));
    if (!out->command[0]) cr_fail(err, CR_ECONFIG, "the interpreter has no words");
    if (err->status == CR_OK && !is_python) cr_note(find_other(out, err));
    for (size_t i = 0; i < CR_COUNT(libraries); i++)
        add_path(out, libraries[i]);
    if (err->status == CR_OK && is_python) cr_note(find_python(out, err));
    if (err->status != CR_OK) cri_root_free(out);
    return err->status;
}

void cri_root_free(cri_sandbox_root *r)
{
    for (size_t i = 0; i < r->num; i++)
        cr_free(r->paths[i]);
    cr_free(r->paths);
    cr_free(r->program);
    cr_free(r->command);
    *r = (cri_sandbox_root){.num = 0};
}

/* ---- making it ---- */

int cri_map_user(int proc_fd, pid_t pid, unsigned inside, unsigned uid, unsigned gid)
{
    const char *const names[] = {"setgroups", "uid_map", "gid_map"};
    char path[64], text[64];
    int fd, why = 0;

    for (int i = 0; i < 3 && !why; i++) {
        snprintf(path, sizeof path, "%d/%s", (int)pid, names[i]);
        snprintf(text, sizeof text, i ? "%u %u 1" : "deny", inside, i == 1 ? uid : gid);
        fd = openat(proc_fd, path, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, text, strlen(text)) < 0) why = errno;
        if (fd >= 0) close(fd);
        if (i == 0) why = 0; /* a parent may have denied it */
    }
    return why;
}

static cr_status fail_here(cr_err *err, const char *what, const char *path)
{
    return cr_fail(err, CR_EABSENT, "the kernel forbids it: %s%s%s: %s", what, path ? " " : "",
                   path ? path : "", strerror(errno));
}

/* Folders above a path, then the path itself, as a folder or a file, below the working folder. */
static void make_place(const char *path, bool is_folder)
{
    char *copy = cr_strdup(path + 1);

    for (char *p = copy; *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        mkdir(copy, 0755);
        *p = '/';
    }
    if (is_folder)
        mkdir(copy, 0755);
    else
        close(open(copy, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    cr_free(copy);
}

/* A path of the host into the new root, which is the working folder. */
static cr_status put_path(const char *path, int fd, cr_err *err)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID};
    char from[64], target[512];
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) != 0) return fail_here(err, "stat", path);
    if (S_ISLNK(st.st_mode)) { /* /lib -> usr/lib */
        n = readlinkat(fd, "", target, sizeof target - 1);
        if (n < 0) return fail_here(err, "readlink", path);
        target[n] = '\0';
        make_place(path, false);
        unlink(path + 1);
        if (symlink(target, path + 1) != 0) return fail_here(err, "symlink", path);
        return CR_OK;
    }
    make_place(path, S_ISDIR(st.st_mode));
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    if (mount(from, path + 1, NULL, MS_BIND | MS_REC, NULL) != 0)
        return fail_here(err, "mount", path);
    if (!S_ISCHR(st.st_mode)) attr.attr_set |= MOUNT_ATTR_NODEV;
    if (syscall(SYS_mount_setattr, AT_FDCWD, path + 1, AT_RECURSIVE, &attr, sizeof attr) != 0)
        return fail_here(err, "mount_setattr (Linux 5.12 or later is needed)", path);
    return CR_OK;
}

static cr_status fill_root(const cri_sandbox_root *r, const int *fds, cr_err *err)
{
    static const char passwd[] = "program:x:1000:1000::/tmp:/bin/sh\n";
    int fd;

    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return fail_here(err, "mounts of its own", NULL);
    if (mount("sandbox", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755") != 0 ||
        chdir("/tmp") != 0)
        return fail_here(err, "a tmpfs", NULL);
    mkdir("tmp", 0755);
    mkdir("etc", 0755);
    mkdir("dev", 0755);
    if (symlink("/tmp", "dev/shm") != 0) return fail_here(err, "symlink", "/dev/shm");
    fd = open("etc/passwd", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, passwd, strlen(passwd)) < 0) cr_note(fail_here(err, "write", "passwd"));
    if (fd >= 0) close(fd);
    for (size_t i = 0; i < r->num && err->status == CR_OK; i++)
        cr_note(put_path(r->paths[i], fds[i], err));
    CR_TRY(err->status);
    if (syscall(SYS_pivot_root, ".", ".") != 0) return fail_here(err, "pivot_root", NULL);
    if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) return fail_here(err, "umount", NULL);
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) != 0)
        return fail_here(err, "a read-only root", NULL);
    return CR_OK;
}

cr_status cri_root_enter(const cri_sandbox_root *r, int fd, int *proc_fd, cr_err *err)
{
    int *fds = CR_NEW_ARRAY(int, r->num + 1);
    char byte = 'm';

    *proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    cr_note(setgroups(0, NULL) == 0 ? CR_OK : CR_EABSENT); /* only root can, and only root need */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
        cr_note(fail_here(err,
                          "namespaces without rights (see user.max_user_namespaces, "
                          "kernel.unprivileged_userns_clone, AppArmor, seccomp)",
                          NULL));
    for (size_t i = 0; i < r->num; i++) /* in the new mounts, but still as who may read them */
        fds[i] = open(r->paths[i], O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (err->status != CR_OK)
        ; /* said */
    else if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1 || byte != 'k')
        cr_fail(err, CR_EABSENT, "the kernel forbids it: a map of users");
    else if (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0)
        cr_note(fail_here(err, "another user", NULL));
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* else it may not map the users of programs */
    if (err->status == CR_OK) cr_note(fill_root(r, fds, err));
    for (size_t i = 0; i < r->num; i++)
        if (fds[i] >= 0) close(fds[i]);
    cr_free(fds);
    return err->status;
}
