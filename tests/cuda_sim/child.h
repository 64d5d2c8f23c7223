/* child.h -- runs a function in a child process, which may end, and gives its exit code and what it said. */
#ifndef CR_TEST_CHILD_H
#define CR_TEST_CHILD_H

#include "base/base.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIM_DIED = 86, CHILD_SECONDS = 60, SAID_BYTES = 1024 };

typedef struct child {
    pid_t pid;
    int pipe;
    char said[SAID_BYTES]; /* without the last newline */
} child;

static inline child start_child(void (*run)(const void *args), const void *args)
{
    child c = {0};
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    c.pid = fork();
    if (c.pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        alarm(CHILD_SECONDS);
        run(args);
        _exit(0);
    }
    close(ends[1]);
    c.pipe = ends[0];
    return c;
}

static inline int end_child(child *c)
{
    size_t num = 0;
    ssize_t got;
    int status;

    while ((got = read(c->pipe, c->said + num, SAID_BYTES - 1 - num)) > 0)
        num += (size_t)got;
    close(c->pipe);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    while (num > 0 && c->said[num - 1] == '\n')
        num--;
    c->said[num] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int run_child(void (*run)(const void *args), const void *args, char said[SAID_BYTES])
{
    child c = start_child(run, args);
    int code = end_child(&c);

    memcpy(said, c.said, SAID_BYTES);
    return code;
}

/* What ends the process with one sentence of the simulation. */
typedef struct misuse {
    void (*run)(const void *args);
    const char *says;
} misuse;

static inline void check_misuses(const misuse *cases, size_t num)
{
    char said[SAID_BYTES];

    for (size_t i = 0; i < num; i++) {
        int code = run_child(cases[i].run, NULL, said);
        if (code != SIM_DIED || !strstr(said, cases[i].says))
            fail_msg("case %zu: code %d, \"%s\" instead of \"%s\"", i, code, said, cases[i].says);
    }
}

/* In a child: no assertion, the parent looks at the exit code. */
#define MUST(call)                                                       \
    do {                                                                 \
        cudaError_t code_ = (call);                                      \
        if (code_ != cudaSuccess) {                                      \
            fprintf(stderr, "%s: %s", #call, cudaGetErrorString(code_)); \
            _exit(87);                                                   \
        }                                                                \
    } while (0)

static inline cudaStream_t new_stream(void)
{
    cudaStream_t s;

    MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline void *new_memory(size_t num_bytes)
{
    void *p;

    MUST(cudaMalloc(&p, num_bytes));
    return p;
}

static inline void *on_device(const void *host, size_t num_bytes)
{
    void *p = new_memory(num_bytes);

    MUST(cudaMemcpy(p, host, num_bytes, cudaMemcpyHostToDevice));
    return p;
}

#endif
