/* sandbox.c -- the slots of a sandbox, and the streams of what runs in them (see sandbox.h). */
#include "sandbox/sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNPRIVILEGED = 65534, STREAMS = 3, PIECE = 64 << 10 };
#define READY_S 60.0 /* of a slot that starts */
#define GRACE_S 15.0 /* beyond a program's wall time */

typedef struct slot {
    pid_t pid; /* 0: none */
    int fd;
    cr_program *program;
    int streams[STREAMS]; /* of the program: output, errors, result; -1: closed */
    double until_s;
    bool is_loud;
    char *cgroups[2];
} slot;

struct cr_sandbox {
    cr_sandbox_args args; /* with texts of its own */
    cri_sandbox_root root;
    cr_buf filter;
    slot *slots;        /* [args.num_slots] */
    cr_program **ended; /* [args.num_slots]: could not be started */
    size_t num_ended;
};

/* ---- slots ---- */

static void become_slot(const cr_sandbox *s, int fd, pid_t parent)
{
    cri_slot_args args = {.sandbox = &s->args, .root = &s->root, .filter = &s->filter, .fd = fd};
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    setsid(); /* a Ctrl-C is its parent's */
    for (size_t i = 0; i < s->args.num_slots;
         i++) /* the ends of others would outlive this process */
        if (s->slots[i].pid) close(s->slots[i].fd);
    cri_slot_run(&args);
}

/* Its users are mapped: to the user without rights (65534) if this is root, else to this user. */
static bool map_users(pid_t pid)
{
    int proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC), why = EPERM;

    if (geteuid() == 0) why = cri_map_user(proc_fd, pid, 0, UNPRIVILEGED, UNPRIVILEGED);
    if (why) why = cri_map_user(proc_fd, pid, 0, geteuid(), getegid());
    if (proc_fd >= 0) close(proc_fd);
    return why == 0;
}

static cr_status wait_until_ready(slot *t, const cr_sandbox_limits *limits, int number, cr_err *err)
{
    double until = cr_now_s() + READY_S;
    cri_report report;

    for (;;) {
        struct pollfd ready = {.fd = t->fd, .events = POLLIN};
        double left = until - cr_now_s();
        ssize_t n;
        if (left <= 0 || poll(&ready, 1, (int)(left * 1000) + 1) == 0)
            return cr_fail(err, CR_ETIMEOUT, "the sandbox is not ready after %g s", READY_S);
        n = cri_receive(t->fd, &report, sizeof report, NULL, NULL);
        if (n == (ssize_t)sizeof report) break;
        if (n != 1) return cr_fail(err, CR_EIO, "the sandbox ended while it started");
        if (!t->cgroups[0]) cri_cgroup_make(limits, number, t->pid, t->cgroups);
        if (!cri_send(t->fd, map_users(t->pid) ? "k" : "-", 1, NULL, 0))
            return cr_fail(err, CR_EIO, "the sandbox ended while it started");
    }
    if (report.end == CR_PROGRAM_EXITED) return CR_OK;
    report.why[sizeof report.why - 1] = '\0';
    return cr_fail(err, (cr_status)report.code, "no sandbox: %s", report.why);
}

static void close_slot(slot *t)
{
    if (t->pid) {
        close(t->fd);
        kill(t->pid, SIGKILL);
        while (waitpid(t->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        cri_cgroup_remove(t->cgroups);
    }
    t->pid = 0;
    t->fd = -1;
}

static cr_status open_slot(cr_sandbox *s, slot *t, cr_err *err)
{
    pid_t parent = getpid();
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return cr_fail(err, CR_EIO, "a socket: %s", strerror(errno));
    fflush(NULL);
    t->pid = fork();
    if (t->pid == 0) {
        close(pair[0]);
        t->pid = 0;
        become_slot(s, pair[1], parent);
    }
    close(pair[1]);
    t->fd = pair[0];
    if (t->pid < 0) {
        close(t->fd);
        t->pid = 0;
        return cr_fail(err, CR_EIO, "a process: %s", strerror(errno));
    }
    if (wait_until_ready(t, &s->args.limits, (int)(t - s->slots), err) != CR_OK) close_slot(t);
    return err->status;
}

cr_status cr_sandbox_open(const cr_sandbox_args *args, cr_sandbox **out, cr_err *err)
{
    cr_sandbox *s = CR_NEW(cr_sandbox);

    *out = NULL;
    s->args = *args;
    s->args.interpreter = cr_strdup(args->interpreter);
    s->args.harness = args->harness ? cr_strdup(args->harness) : NULL;
    s->slots = CR_NEW_ARRAY(slot, args->num_slots);
    s->ended = CR_NEW_ARRAY(cr_program *, args->num_slots);
    cri_filter_write(&s->filter);
    if (cri_root_find(args->interpreter, args->harness != NULL, &s->root, err) == CR_OK &&
        (args->harness || !args->is_open ||
         cr_fail(err, CR_EUSAGE, "sandbox: none is for Python alone") == CR_OK))
        cr_note(open_slot(s, &s->slots[0], err)); /* the others when they are needed */
    if (err->status == CR_OK)
        *out = s;
    else
        cr_sandbox_close(s);
    return err->status;
}

void cr_sandbox_close(cr_sandbox *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->args.num_slots; i++) {
        for (int k = 0; k < STREAMS && s->slots[i].program; k++)
            if (s->slots[i].streams[k] >= 0) close(s->slots[i].streams[k]);
        close_slot(&s->slots[i]);
    }
    cr_free((void *)(uintptr_t)s->args.interpreter);
    cr_free((void *)(uintptr_t)s->args.harness);
    cri_root_free(&s->root);
    cr_buf_free(&s->filter);
    cr_free(s->slots);
    cr_free(s->ended);
    cr_free(s);
}

/* ---- programs ---- */

static int file_of(const void *data, size_t num_bytes)
{
    int fd = memfd_create("program", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    for (size_t at = 0; fd >= 0 && at < num_bytes;) {
        ssize_t n = write(fd, (const char *)data + at, num_bytes - at);
        if (n <= 0) {
            close(fd);
            return -1;
        }
        at += (size_t)n;
    }
    if (fd < 0) return -1;
    lseek(fd, 0, SEEK_SET);
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    return fd;
}

/* Its descriptors to the slot; our ends of its streams stay. */
static bool hand_over(slot *t, const cr_program *p)
{
    int fds[CRI_MAX_FDS], num = CRI_JOB + (p->jobs[1] ? 2 : 1);
    cri_sandbox_request request = {p->cpu_s, p->wall_s, num - CRI_JOB};
    bool is_sent = true;

    for (int i = 0; i < CRI_MAX_FDS; i++)
        fds[i] = -1;
    fds[CRI_STDIN] = file_of(p->input, p->input_bytes);
    for (int i = 0; i < STREAMS; i++) {
        int pair[2] = {-1, -1};
        is_sent = pipe2(pair, O_CLOEXEC) == 0 && is_sent;
        t->streams[i] = pair[0];
        fds[CRI_STDOUT + i] = pair[1];
        if (pair[0] >= 0) fcntl(pair[0], F_SETFL, O_NONBLOCK);
    }
    for (int i = 0; i < request.num_jobs; i++)
        fds[CRI_JOB + i] = file_of(p->jobs[i]->data, p->jobs[i]->num_bytes);
    for (int i = 0; i < num; i++)
        is_sent = fds[i] >= 0 && is_sent;
    is_sent = is_sent && cri_send(t->fd, &request, sizeof request, fds, num);
    for (int i = 0; i < num; i++)
        if (fds[i] >= 0) close(fds[i]);
    return is_sent;
}

static void forget(slot *t)
{
    for (int i = 0; i < STREAMS; i++) {
        if (t->streams[i] >= 0) close(t->streams[i]);
        t->streams[i] = -1;
    }
    t->program = NULL;
    t->is_loud = false;
}

void cr_sandbox_start(cr_sandbox *s, cr_program *p)
{
    slot *t = s->slots;
    cr_err err = {0};

    while (t->program)
        t++;
    p->end = CR_PROGRAM_BROKEN;
    p->why[0] = '\0';
    if (t->pid == 0) cr_note(open_slot(s, t, &err));
    t->streams[0] = t->streams[1] = t->streams[2] = -1;
    t->program = p;
    t->until_s = cr_now_s() + p->wall_s + GRACE_S;
    if (err.status == CR_OK && !hand_over(t, p))
        cr_fail(&err, CR_EIO, "a program cannot be handed to the sandbox: %s", strerror(errno));
    if (err.status == CR_OK) return;
    snprintf(p->why, sizeof p->why, "%.159s", err.msg);
    forget(t);
    close_slot(t);
    s->ended[s->num_ended++] = p;
}

void cr_program_free(cr_program *p)
{
    cr_buf_free(&p->output);
    cr_buf_free(&p->errors);
    cr_buf_free(&p->result);
}

/* What there is of a stream; false: no more, or too much of it. */
static bool read_stream(cr_sandbox *s, slot *t, int which)
{
    cr_buf *const all[STREAMS] = {&t->program->output, &t->program->errors, &t->program->result};
    cr_buf *to = all[which];

    for (;;) {
        ssize_t n;
        cr_buf_reserve(to, to->num_bytes + PIECE + 1);
        n = read(t->streams[which], to->data + to->num_bytes, PIECE);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (n <= 0) return false;
        to->num_bytes += (size_t)n;
        to->data[to->num_bytes] = '\0';
        if (to->num_bytes > s->args.limits.output_bytes) break;
    }
    if (!t->is_loud) cri_send(t->fd, "c", 1, NULL, 0); /* the slot ends it */
    t->is_loud = true;
    return false;
}

static void close_stream(slot *t, int which)
{
    close(t->streams[which]);
    t->streams[which] = -1;
}

/* The program of a slot has ended, or the slot has; all its writers are gone. */
static cr_program *take_end(cr_sandbox *s, slot *t)
{
    cr_program *p = t->program;
    cri_report report;

    if (cri_receive(t->fd, &report, sizeof report, NULL, NULL) == (ssize_t)sizeof report) {
        report.why[sizeof report.why - 1] = '\0';
        p->end = (cr_program_end)report.end;
        p->code = report.code;
        p->took_s = report.took_s;
        p->used_cpu_s = report.cpu_s;
        p->peak_bytes = report.peak_bytes;
        snprintf(p->why, sizeof p->why, "%s", report.why);
        for (int i = 0; i < STREAMS; i++)
            if (t->streams[i] >= 0) read_stream(s, t, i);
        if (t->is_loud) p->end = CR_PROGRAM_LOUD;
        if (p->end == CR_PROGRAM_BROKEN) close_slot(t); /* the next program gets a new one */
    } else {
        close_slot(t); /* the next program gets a new one */
        snprintf(p->why, sizeof p->why, "a process of the sandbox has ended");
    }
    forget(t);
    return p;
}

/* One look at all descriptors. */
static cr_program *look(cr_sandbox *s, double wait_s, int other_fd, bool *has_other)
{
    size_t num = s->args.num_slots * (STREAMS + 1) + 1, n = 0;
    struct pollfd *fds = CR_NEW_ARRAY(struct pollfd, num);
    cr_program *found = NULL;

    for (size_t i = 0; i < s->args.num_slots; i++) {
        const slot *t = &s->slots[i];
        for (int k = 0; k < STREAMS; k++)
            fds[n++] = (struct pollfd){.fd = t->program ? t->streams[k] : -1, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = t->program ? t->fd : -1, .events = POLLIN};
    }
    fds[n++] = (struct pollfd){.fd = other_fd, .events = POLLIN};
    if (poll(fds, num, (int)(wait_s * 1000) + (wait_s > 0)) > 0) {
        for (size_t i = 0; i < s->args.num_slots; i++)
            for (int k = 0; k < STREAMS; k++)
                if (fds[i * (STREAMS + 1) + (size_t)k].revents && !read_stream(s, &s->slots[i], k))
                    close_stream(&s->slots[i], k);
        for (size_t i = 0; i < s->args.num_slots && !found; i++)
            if (fds[i * (STREAMS + 1) + STREAMS].revents) found = take_end(s, &s->slots[i]);
        *has_other = fds[num - 1].revents != 0;
    }
    cr_free(fds);
    for (size_t i = 0; i < s->args.num_slots && !found; i++) {
        slot *t = &s->slots[i];
        if (!t->program || cr_now_s() < t->until_s) continue;
        kill(t->pid, SIGKILL); /* it does not keep to its time */
        found = take_end(s, t);
    }
    return found;
}

cr_program *cr_sandbox_next(cr_sandbox *s, double wait_s, int other_fd)
{
    double until = cr_now_s() + wait_s;
    bool has_other = false;
    cr_program *found;

    if (s->num_ended) return s->ended[--s->num_ended];
    do {
        double left = until - cr_now_s();
        found = look(s, left > 0 ? left : 0, other_fd, &has_other);
    } while (!found && !has_other && cr_now_s() < until);
    return found;
}
