/* main.c -- croll: one binary, one command a word. Only this file prints the list of commands. */
#include "commands/commands.h"
#include "launch/device.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MIN_STACK_KIB = 2048 }; /* of each thread: ranks with 768 crash, those with 1024 do not */

static const cr_command *const commands[] = {
#define CR_COMMAND_ENTRY(name) &cr_command_##name,
    CR_COMMAND_LIST(CR_COMMAND_ENTRY)
#undef CR_COMMAND_ENTRY
        NULL,
};

/* A summary up to its first full stop or colon; --help of the command has the rest. */
static int brief_chars(const char *summary)
{
    size_t num = strcspn(summary, ".:");

    while (summary[num] && summary[num + 1] && summary[num + 1] != ' ')
        num += 1 + strcspn(summary + num + 1, ".:"); /* inside a word, as in config.json */
    return (int)num;
}

static void print_commands(FILE *to)
{
    fprintf(to,
            "croll: reinforcement learning from verifiable rewards, from one ROLL YAML file\n\n"
            "usage: croll COMMAND [ARGUMENT ..]     croll COMMAND --help     croll --version\n\n");
    for (size_t i = 0; commands[i]; i++)
        if (!commands[i]->is_hidden)
            fprintf(to, "  %-12s %.*s\n", commands[i]->name, brief_chars(commands[i]->summary),
                    commands[i]->summary);
    fprintf(to,
            "\nexamples:\n"
            "  croll run configs/quickstart/rlvr.yaml     (scripts/quickstart makes its model)\n"
            "  croll plan my.yaml --memory 80GB\n"
            "  echo '{\"messages\":[{\"role\":\"user\",\"content\":\"354+3=\"}]}' | "
            "croll generate output/quickstart/rlvr_model\n");
}

/* Threads of OpenMP that wait for each other spin for a while, by default much longer than a kernel runs: where other
 * programs need the cores, most CPU time goes there. libgomp reads how long before main begins, hence the exec; when it
 * fails (no /proc) all works as before. A caller's choice stays. */
static void spin_briefly(char **argv)
{
    char path[4096];
    ssize_t n;

    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "3000", 1); /* some microseconds */
    if ((n = readlink("/proc/self/exe", path, sizeof path - 1)) > 0) {
        path[n] = 0;
        execv(path, argv); /* by its path: the name of the process is that of the file */
    }
    execv("/proc/self/exe", argv);
}

static bool has_stack(void)
{
    struct rlimit stack;

    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur == RLIM_INFINITY ||
        stack.rlim_cur / 1024 >= MIN_STACK_KIB)
        return true;
    fprintf(stderr, "croll: ulimit -s is %llu, at least %d KiB are needed\n",
            (unsigned long long)stack.rlim_cur / 1024, MIN_STACK_KIB);
    return false;
}

/* A CPU that is asked for and is not this one is an error of every command, not only of those that compute. */
static bool has_cpu(void)
{
    cr_err err = {0};

    if (!getenv("CROLL_CPU") || cr_device_check("cpu", &err) == CR_OK) return true;
    fprintf(stderr, "croll: %s\n", err.msg);
    return false;
}

/* Of standard streams that the caller has closed: else the next files that are opened would have their numbers, and
 * what is printed would be written into them. Writing to stdout fails as before; programs may have a stderr. */
static void hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDOUT_FILENO
                                         ? O_RDONLY
                                         : O_RDWR); /* gives the lowest that is free: fd */
}

/* The exit code of a command, which is no success if stdout did not take its answer. A reader that has left (head)
 * gets no message. */
static int check_stdout(int code, const char *name)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

    if ((fflush(stdout) == 0 && !ferror(stdout)) || code != 0) return code;
    if (poll(&out, 1, 0) < 1 || !(out.revents & POLLERR))
        fprintf(stderr, "croll %s: stdout cannot be written: is its disk full?\n", name);
    return cr_exit_code(CR_EIO);
}

int main(int argc, char **argv)
{
    const char *names[64];
    size_t num = 0;
    const char *near;

    hold_streams();
    spin_briefly(argv);
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error of write, not a silent death */
    signal(SIGXFSZ, SIG_IGN); /* likewise a file that may not grow (ulimit -f) */
    if (!has_stack() || !has_cpu()) return 2;
    if (argc < 2) {
        print_commands(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_commands(stdout);
        return check_stdout(0, argv[1]);
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("croll " CR_VERSION);
        return check_stdout(0, argv[1]);
    }
    for (size_t i = 0; commands[i]; i++) {
        if (strcmp(argv[1], commands[i]->name) == 0)
            return check_stdout(commands[i]->run(argc - 1, argv + 1), argv[1]);
        names[num++] = commands[i]->name;
    }
    near = cr_nearest(argv[1], names, num);
    fprintf(stderr, "croll: no command '%s'%s%s (see croll --help)\n", argv[1],
            near ? ", did you mean " : "", near ? near : "");
    return 2;
}
