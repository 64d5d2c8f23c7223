/* slot.c -- a process that runs one program after the other, each in namespaces of its own.
 *
 *     sandbox (croll) --- slot --- interpreter that has loaded the harness (zygote.py)
 *                          |            \
 *                          +-- process 1 \ of the program's namespaces (holder.c)
 *                                       \ the program's one or two processes
 *
 * The slot ends with the sandbox, and everything below it ends with the slot. It holds no secret that a program could reach:
 * programs are in other pid namespaces and have no system call that reads the memory of another process.
 */
#include "sandbox/sandbox_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 50, MAX_DEPTH = 64, STACK_BYTES = 256 << 20 };
#define START_S 30.0 /* of an interpreter with its harness */
#define END_S   10.0 /* of processes that were killed */

typedef struct slot {
    const cri_slot_args *args;
    int proc_fd;    /* of the host */
    int zygote_fd;  /* -1: none */
    int message_fd; /* what the interpreter writes on stderr, a file in memory */
    pid_t zygote;
    /* the program that runs */
    pid_t pids[2];
    int num_started, num_live;
    bool has_ended; /* its first process */
    cri_report report;
} slot;

static int memory_file(const void *data, size_t num_bytes)
{
    int fd = memfd_create("sandbox", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, data, num_bytes) != (ssize_t)num_bytes)
        cr_log(CR_LOG_WARN, "sandbox", "memfd");
    return fd;
}

/* ---- the interpreter ---- */

static void become_zygote(slot *s, int control, int filter, int harness)
{
    static char *const environment[] = {(char *)(uintptr_t) "PATH=/usr/local/bin:/usr/bin:/bin",
                                        (char *)(uintptr_t) "HOME=/tmp",
                                        (char *)(uintptr_t) "LANG=C.UTF-8",
                                        (char *)(uintptr_t) "TMPDIR=/tmp",
                                        (char *)(uintptr_t) "PYTHONHASHSEED=0",
                                        (char *)(uintptr_t) "OMP_NUM_THREADS=1",
                                        (char *)(uintptr_t) "OPENBLAS_NUM_THREADS=1",
                                        NULL};
    const cr_sandbox_args *a = s->args->sandbox;
    struct rlimit stack = {STACK_BYTES, STACK_BYTES};
    char numbers[4][24], *argv[9];
    int null = open("/dev/null", O_RDWR),
        fds[] = {null, null, s->message_fd, control, filter, harness};

    if (null < 0) {
        dprintf(s->message_fd, "cannot open /dev/null there: %s (its mode has to be 0666)",
                strerror(errno));
        _exit(70);
    }
    snprintf(numbers[0], sizeof numbers[0], "%lld", (long long)a->limits.files_bytes);
    snprintf(numbers[1], sizeof numbers[1], "%lld", (long long)a->limits.memory_bytes);
    snprintf(numbers[2], sizeof numbers[2], "%d", a->limits.num_processes);
    snprintf(numbers[3], sizeof numbers[3], "%d", a->is_open);
    argv[0] = s->args->root->program;
    argv[1] = (char *)(uintptr_t) "-sB";
    argv[2] = (char *)(uintptr_t) "-c";
    argv[3] = (char *)(uintptr_t)cri_zygote_begin;
    for (int i = 0; i < 4; i++)
        argv[4 + i] = numbers[i];
    argv[8] = NULL;
    setrlimit(RLIMIT_STACK, &stack);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 6; i++)
        fds[i] = fcntl(fds[i], F_DUPFD, 64);
    for (int i = 0; i < 6; i++)
        if (dup2(fds[i], i) < 0) _exit(70);
    close_range(6, ~0u, 0);
    execve(argv[0], argv, environment);
    dprintf(STDERR_FILENO, "cannot execute %s: %s", argv[0], strerror(errno));
    _exit(127);
}

/* A message of the interpreter, at most until then; false: it has not come. */
static bool read_line(slot *s, double until, char *text, size_t text_bytes)
{
    struct pollfd ready = {.fd = s->zygote_fd, .events = POLLIN};
    double left = until - cr_now_s();
    ssize_t n;

    if (poll(&ready, 1, left > 0 ? (int)(left * 1000) + 1 : 0) != 1) return false;
    n = cri_receive(s->zygote_fd, text, text_bytes - 1, NULL, NULL);
    if (n > 0) text[n] = '\0';
    return n > 0;
}

/* "interpreter ..: the end of what it wrote on stderr". */
static cr_status fail_zygote(const slot *s, const char *what, cr_err *err)
{
    char said[161] = "";
    off_t size = lseek(s->message_fd, 0, SEEK_END);
    ssize_t n = pread(s->message_fd, said, sizeof said - 1, size > 160 ? size - 160 : 0);

    while (n > 0 && said[n - 1] == '\n')
        said[--n] = '\0';
    return cr_fail(err, CR_ECONFIG, "the interpreter %s %s: %s", s->args->root->program, what,
                   said);
}

static cr_status start_zygote(slot *s, cr_err *err)
{
    const char *harness = s->args->sandbox->harness;
    int pair[2], filter = memory_file(s->args->filter->data, s->args->filter->num_bytes),
                 text = memory_file(harness, strlen(harness));
    char said[64];

    s->message_fd = memory_file("", 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return cr_fail(err, CR_EIO, "a socket: %s", strerror(errno));
    s->zygote = fork();
    if (s->zygote == 0) become_zygote(s, pair[1], filter, text);
    close(pair[1]);
    close(filter);
    close(text);
    s->zygote_fd = pair[0];
    if (read_line(s, cr_now_s() + START_S, said, sizeof said)) return CR_OK;
    return fail_zygote(s, "does not start in its sandbox", err);
}

/* ---- the memory of a program: that of its processes ---- */

static int64_t resident(int proc_fd, int pid)
{
    char path[48], text[96];
    long long pages = 0, shared = 0;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "%d/statm", pid);
    fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    if (sscanf(text, "%*d %lld %lld", &pages, &shared) != 2) return 0;
    return (pages - shared) * (int64_t)sysconf(_SC_PAGESIZE);
}

static int64_t resident_below(int proc_fd, int pid, int depth);

/* Of the children of a thread. */
static int64_t resident_of_children(int proc_fd, int pid, const char *thread, int depth)
{
    char path[320], text[4096], *at = text;
    int64_t sum = 0;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "%d/task/%s/children", pid, thread);
    fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    for (long child; (child = strtol(at, &at, 10)) > 0;)
        sum += resident_below(proc_fd, (int)child, depth + 1);
    return sum;
}

static int64_t resident_below(int proc_fd, int pid, int depth)
{
    int64_t sum = resident(proc_fd, pid);
    char path[48];
    struct dirent *entry;
    DIR *threads;
    int fd;

    if (depth > MAX_DEPTH) return sum;
    snprintf(path, sizeof path, "%d/task", pid);
    fd = openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return sum;
    threads = fdopendir(fd);
    while (threads && (entry = readdir(threads)))
        if (entry->d_name[0] != '.')
            sum += resident_of_children(proc_fd, pid, entry->d_name, depth);
    if (threads) closedir(threads);
    return sum;
}

static int64_t memory_of(const slot *s, const cri_holder *h)
{
    int64_t sum = h->pid > 0 ? resident_below(s->proc_fd, h->pid, 0) : 0;

    for (int i = 0; i < s->num_started; i++)
        if (s->pids[i]) sum += resident_below(s->proc_fd, s->pids[i], 0);
    return sum;
}

/* ---- a program ---- */

static void take_status(cri_report *r, int status, double cpu_s, int64_t peak_bytes, double limit_s)
{
    r->end = WIFEXITED(status) ? CR_PROGRAM_EXITED : CR_PROGRAM_KILLED;
    r->code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    r->cpu_s = cpu_s;
    r->peak_bytes = peak_bytes;
    if (r->end == CR_PROGRAM_KILLED && r->code == SIGKILL &&
        cpu_s >= 0.85 * limit_s) /* clocks differ */
        r->end = CR_PROGRAM_LATE;
}

/* What the interpreter says of the program's processes. */
static bool take_message(slot *s, const cri_sandbox_request *request, double until)
{
    long long pid, status, cpu_us, peak_kb;
    char text[128];

    if (!read_line(s, until, text, sizeof text)) return false;
    if (sscanf(text, "started %lld", &pid) == 1) {
        if (s->num_started < 2) s->pids[s->num_started++] = (pid_t)pid;
        s->num_live++;
        return true;
    }
    if (sscanf(text, "ended %lld %lld %lld %lld", &pid, &status, &cpu_us, &peak_kb) != 4)
        return false;
    s->num_live--;
    for (int i = 0; i < s->num_started; i++) {
        if (s->pids[i] != pid) continue;
        s->pids[i] = 0;
        s->report.cpu_s += (double)cpu_us * 1e-6;
        if (s->report.peak_bytes < peak_kb * 1024) s->report.peak_bytes = peak_kb * 1024;
        if (i < s->num_started - 1 || request->num_jobs > s->num_started) continue;
        if (s->has_ended) continue; /* its end is known */
        s->has_ended = true;        /* the last one that was started is the first job */
        take_status(&s->report, (int)status, s->report.cpu_s, s->report.peak_bytes, request->cpu_s);
    }
    return true;
}

/* Ask the interpreter for the program's processes, the one of the first job last. */
static cr_status start_processes(slot *s, const cri_sandbox_request *request, const int *fds,
                                 const cri_holder *h, cr_err *err)
{
    int link[2] = {-1, -1}, pid_fd = h->pid_fd >= 0 ? h->pid_fd : fds[CRI_STDIN];
    double until = cr_now_s() + START_S;
    char text[64];

    if (request->num_jobs > 1 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0)
        return cr_fail(err, CR_EIO, "a socket: %s", strerror(errno));
    for (int i = request->num_jobs - 1; i >= 0; i--) {
        int given[CRI_MAX_FDS] = {pid_fd, fds[CRI_STDIN], fds[CRI_STDOUT], fds[CRI_STDERR],
                                  fds[CRI_JOB + i]},
            num = 5;
        if (i == 0) given[num++] = fds[CRI_RESULT];
        if (link[i] >= 0) given[num++] = link[i];
        snprintf(text, sizeof text, "%d %d %d %.0f", i, i == 0, link[i] >= 0, request->cpu_s + 0.5);
        if (!cri_send(s->zygote_fd, text, strlen(text), given, num)) {
            cr_note(fail_zygote(s, "has ended", err));
            break;
        }
        for (int num_before = s->num_started; s->num_started == num_before;)
            if (!take_message(s, request, until)) {
                cr_note(fail_zygote(s, "does not answer", err));
                break;
            }
        if (err->status != CR_OK) break;
    }
    for (int i = 0; i < 2; i++)
        if (link[i] >= 0) close(link[i]);
    return err->status;
}

static void take_holder_status(slot *s, const cri_holder *h, const cri_sandbox_request *request)
{
    struct {
        int status;
        struct rusage usage;
    } end;
    double cpu_s;

    s->has_ended = true;
    if (read(h->status_fd, &end, sizeof end) != (ssize_t)sizeof end) return; /* broken */
    cpu_s = (double)(end.usage.ru_utime.tv_sec + end.usage.ru_stime.tv_sec) +
            1e-6 * (double)(end.usage.ru_utime.tv_usec + end.usage.ru_stime.tv_usec);
    take_status(&s->report, end.status, cpu_s, end.usage.ru_maxrss * 1024, request->cpu_s);
}

/* Until its first process has ended, or a limit has. */
static void watch(slot *s, const cri_sandbox_request *request, const cri_holder *h, double start_s)
{
    int from = s->zygote_fd >= 0 ? s->zygote_fd : h->status_fd;
    double until = start_s + request->wall_s;

    while (!s->has_ended) {
        struct pollfd fds[] = {{.fd = from, .events = POLLIN},
                               {.fd = s->args->fd, .events = POLLIN}};
        double left = until - cr_now_s();
        int ms = left * 1000 < LOOK_MS ? (int)(left * 1000) + 1 : LOOK_MS, n;
        if (left <= 0) {
            s->report.end = CR_PROGRAM_LATE;
            return;
        }
        n = poll(fds, 2, ms);
        if (fds[0].revents) {
            if (s->zygote_fd < 0) {
                take_holder_status(s, h, request);
            } else if (!take_message(s, request, 0)) {
                s->report.end = CR_PROGRAM_BROKEN;
                snprintf(s->report.why, sizeof s->report.why, "the interpreter has ended");
                return;
            }
        }
        if (fds[1].revents) { /* the sandbox takes it back, or has ended */
            s->report.end = CR_PROGRAM_LOUD;
            return;
        }
        if (n == 0 && memory_of(s, h) > s->args->sandbox->limits.memory_bytes) {
            s->report.end = CR_PROGRAM_LARGE;
            return;
        }
    }
}

/* All of a program's processes are gone after this; false: they are not. */
static bool end_program(slot *s, const cri_sandbox_request *request, cri_holder *h)
{
    double until = cr_now_s() + END_S;

    for (int i = 0; i < s->num_started && s->args->sandbox->is_open; i++)
        if (s->pids[i]) kill(s->pids[i], SIGKILL);
    s->has_ended = true;
    cri_holder_end(h);
    while (s->num_live > 0)
        if (!take_message(s, request, until)) return false;
    return true;
}

/* A program cannot end process 1 of its namespaces: if that is gone, something else on this machine has killed both. */
static void check_holder(slot *s, const cri_holder *h)
{
    struct pollfd gone = {.fd = h->pid_fd, .events = POLLIN};

    if (h->pid_fd < 0 || s->report.end != CR_PROGRAM_KILLED || s->report.code != SIGKILL) return;
    if (poll(&gone, 1, LOOK_MS) == 1) s->report.end = CR_PROGRAM_BROKEN;
}

static bool run_program(slot *s, const cri_sandbox_request *request, const int *fds)
{
    double start_s = cr_now_s();
    cri_holder h = {.pid_fd = -1, .status_fd = -1};
    cr_err err = {0};
    bool is_over;

    s->report = (cri_report){.end = CR_PROGRAM_BROKEN};
    s->num_started = s->num_live = 0;
    s->has_ended = false;
    if (!s->args->sandbox->is_open)
        cr_note(cri_holder_start(s->args, s->proc_fd, request, fds, &h, &err));
    if (err.status == CR_OK && s->args->sandbox->harness)
        cr_note(start_processes(s, request, fds, &h, &err));
    if (err.status == CR_OK)
        watch(s, request, &h, start_s);
    else
        snprintf(s->report.why, sizeof s->report.why, "%.150s", err.msg);
    check_holder(s, &h);
    if (s->report.end == CR_PROGRAM_BROKEN && !s->report.why[0])
        snprintf(s->report.why, sizeof s->report.why, "process 1 of the sandbox was killed");
    is_over = end_program(s, request, &h);
    s->report.took_s = cr_now_s() - start_s;
    return is_over;
}

static cr_status prepare(slot *s, cr_err *err)
{
    s->proc_fd = s->zygote_fd = -1;
    if (!s->args->sandbox->is_open)
        CR_TRY(cri_root_enter(s->args->root, s->args->fd, &s->proc_fd, err));
    if (!s->args->sandbox->harness) return CR_OK;
    return start_zygote(s, err);
}

void cri_slot_run(const cri_slot_args *a)
{
    slot s = {.args = a};
    cri_sandbox_request request;
    int fds[CRI_MAX_FDS], num_fds;
    cr_err err = {0};

    cr_note(prepare(&s, &err));
    s.report.end = err.status == CR_OK ? CR_PROGRAM_EXITED : CR_PROGRAM_BROKEN;
    s.report.code = (int)err.status;
    snprintf(s.report.why, sizeof s.report.why, "%.159s", err.msg);
    while (cri_send(a->fd, &s.report, sizeof s.report, NULL, 0) && err.status == CR_OK) {
        bool is_over;
        do /* a program that was taken back when it had ended */
            num_fds = 0;
        while (cri_receive(a->fd, &request, sizeof request, fds, &num_fds) == 1);
        if (num_fds < CRI_JOB + 1) break;
        is_over = run_program(&s, &request, fds);
        for (int i = 0; i < num_fds; i++)
            close(fds[i]);
        if (!is_over) break;
    }
    _exit(0); /* the interpreter dies with it */
}
