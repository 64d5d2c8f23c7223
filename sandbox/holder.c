/* holder.c -- process 1 of a program's namespaces: it makes the program's /tmp, and with it ends all that the program started.
 *
 * It is ours, cannot be signalled from within its namespaces, and holds nothing that a program may not see: its memory is that
 * of the slot, which no system call that a program has can read. A program with a harness enters the namespaces from its
 * interpreter (zygote.py); one without is started here.
 */
#include "sandbox/sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { USER = 1000, START_MS = 10000, NUM_WORDS = 32 };

static void drop_rights(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};

    if (syscall(SYS_capset, &header, none) != 0) _exit(70);
}

/* descriptors 0 .. num-1 are fds, all others are closed */
static void take_fds(const int *fds, int num)
{
    int high[CRI_MAX_FDS];

    for (int i = 0; i < num; i++)
        high[i] = fcntl(fds[i], F_DUPFD, 64);
    for (int i = 0; i < num; i++)
        if (dup2(high[i], i) < 0) _exit(70);
    close_range((unsigned)num, ~0u, 0);
}

/* The program's file, then the program. */
static void become_program(const cri_slot_args *a, double cpu_s, int job)
{
    static char path[] = "/tmp/main";
    static char *const environment[] = {
        (char *)(uintptr_t) "PATH=/usr/local/bin:/usr/bin:/bin", (char *)(uintptr_t) "HOME=/tmp",
        (char *)(uintptr_t) "LANG=C.UTF-8", (char *)(uintptr_t) "TMPDIR=/tmp", NULL};
    char *argv[NUM_WORDS + 2] = {NULL};
    struct stat st = {0};
    off_t at = 0;
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600), num = 0;

    fstat(job, &st);
    while (at < st.st_size && sendfile(fd, job, &at, (size_t)(st.st_size - at)) > 0)
        continue;
    close(fd);
    for (; a->root->command[num] && num < NUM_WORDS; num++)
        argv[num] = a->root->command[num];
    argv[num] = path;
    close(job);
    setsid();
    cri_set_limits(&a->sandbox->limits, cpu_s);
    signal(SIGPIPE, SIG_DFL);
    if (cri_filter_apply(a->filter) != 0) _exit(70);
    execve(a->root->program, argv, environment);
    dprintf(STDERR_FILENO, "cannot execute %s: %s\n", a->root->program, strerror(errno));
    _exit(127);
}

static void run_program(const cri_slot_args *a, const cri_sandbox_request *request, int status_fd)
{
    struct {
        int status;
        struct rusage usage;
    } end = {0};
    pid_t program, ended;

    program = fork();
    if (program == 0) {
        close(status_fd);
        become_program(a, request->cpu_s, 3);
    }
    close_range(0, 3, 0);
    while ((ended = wait4(-1, &end.status, 0, &end.usage)) != program)
        if (ended < 0 && errno != EINTR) _exit(70);
    if (write(status_fd, &end, sizeof end) < 0) _exit(70);
}

static void hold(const cri_slot_args *a, const cri_sandbox_request *request, const int *fds,
                 int sync_fd, int status_fd)
{
    char byte, options[80];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid(); /* kill(0, ..) reaches the group of a process, also outside of its namespace */
    if (read(sync_fd, &byte, 1) != 1) _exit(70); /* users are mapped */
    snprintf(options, sizeof options, "size=%lld,nr_inodes=4096,mode=0700",
             (long long)a->sandbox->limits.files_bytes);
    if (mount("tmp", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options) != 0 || chdir("/tmp") != 0 ||
        sethostname("sandbox", 7) != 0) {
        byte = (char)errno;
        if (write(sync_fd, &byte, 1) < 0) _exit(71);
        _exit(70);
    }
    drop_rights();
    byte = 0;
    if (write(sync_fd, &byte, 1) != 1) _exit(70);
    if (a->sandbox->harness) {
        close_range(0, ~0u, 0);
    } else {
        const int kept[] = {fds[CRI_STDIN], fds[CRI_STDOUT], fds[CRI_STDERR], fds[CRI_JOB],
                            status_fd};
        take_fds(kept, 5);
        run_program(a, request, 4);
        close_range(0, ~0u, 0);
    }
    signal(SIGCHLD, SIG_IGN); /* what the program leaves is taken by the kernel */
    for (;;)
        pause();
}

/* Until it has its /tmp. */
static cr_status wait_for(int sync_fd, cr_err *err)
{
    struct pollfd ready = {.fd = sync_fd, .events = POLLIN};
    char why = 0;

    if (poll(&ready, 1, START_MS) != 1 || read(sync_fd, &why, 1) != 1)
        return cr_fail(err, CR_EABSENT, "a program's namespaces do not come up");
    if (why) return cr_fail(err, CR_EABSENT, "a program's /tmp: %s", strerror(why));
    return CR_OK;
}

cr_status cri_holder_start(const cri_slot_args *a, int proc_fd, const cri_sandbox_request *request,
                           const int *fds, cri_holder *out, cr_err *err)
{
    const unsigned long flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET |
                                CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_PIDFD;
    int sync[2] = {-1, -1}, status[2] = {-1, -1}, why;

    *out = (cri_holder){.pid_fd = -1, .status_fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync) != 0 ||
        pipe2(status, O_CLOEXEC) != 0)
        return cr_fail(err, CR_EIO, "a pipe: %s", strerror(errno));
    out->pid = (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, &out->pid_fd, NULL, NULL);
    if (out->pid == 0) hold(a, request, fds, sync[1], status[1]);
    close(sync[1]);
    close(status[1]);
    out->status_fd = status[0];
    if (out->pid < 0)
        cr_fail(err, CR_EABSENT, "namespaces within namespaces: %s", strerror(errno));
    else if ((why = cri_map_user(proc_fd, out->pid, USER, 0, 0)) != 0 ||
             write(sync[0], "k", 1) != 1)
        cr_fail(err, CR_EABSENT, "users of a program: %s", strerror(why));
    else
        cr_note(wait_for(sync[0], err));
    close(sync[0]);
    if (err->status != CR_OK) cri_holder_end(out);
    return err->status;
}

void cri_holder_end(cri_holder *h)
{
    if (h->pid > 0) {
        kill(h->pid, SIGKILL);
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (h->pid_fd >= 0) close(h->pid_fd);
    if (h->status_fd >= 0) close(h->status_fd);
    *h = (cri_holder){.pid_fd = -1, .status_fd = -1};
}
