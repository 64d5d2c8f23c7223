/* sandbox.h -- run programs of unknown intent, a few at a time, where they can reach nothing.
 *
 * Each program runs in user, pid, mount, net, ipc, uts and cgroup namespaces of its own, as a user without rights, under a filter of
 * system calls and limits, on a read-only root that holds its interpreter and an empty /tmp of bounded size; when it ends, all that it
 * started ends with it (docs/sandbox.md has the threat model). A sandbox has slots, processes of ours that run one program
 * at a time. A Python slot keeps an interpreter that has loaded a harness and forks it for each program; any other interpreter
 * is started for each program with the path of the program's file.
 *
 *     cr_sandbox_open(&args, &sandbox, err)       refused with the reason where the kernel forbids it
 *     cr_sandbox_start(sandbox, &program)         at most num_slots that have not come back
 *     cr_sandbox_next(sandbox, wait_s, -1)        the next one that has ended
 *
 * Ownership: the caller owns programs, which are lent to the sandbox until they come back. When the sandbox or its process
 * ends, however it does, its slots and their programs end. One thread.
 */
#ifndef CR_SANDBOX_H
#define CR_SANDBOX_H

#include "base/base.h"

typedef struct cr_sandbox cr_sandbox;

typedef struct cr_sandbox_limits {
    int64_t memory_bytes; /* of a program: address space of each process, memory of all of them */
    int64_t files_bytes;  /* in /tmp */
    size_t output_bytes;  /* of each stream that it writes */
    int num_processes;    /* and threads */
} cr_sandbox_limits;

typedef struct cr_sandbox_args {
    size_t num_slots;
    /* Words of a command. A Python has a harness, text of a module with a function main(job, link, result), which are bytes,
     * a socket or None, and a descriptor or -1; any other interpreter has none. */
    const char *interpreter, *harness;
    cr_sandbox_limits limits;
    bool is_open; /* no namespaces and no filter: programs can do what this user can */
} cr_sandbox_args;

typedef enum cr_program_end {
    CR_PROGRAM_EXITED, /* code */
    CR_PROGRAM_KILLED, /* by signal `code`, its own or one of a limit */
    CR_PROGRAM_LATE,   /* wall time or CPU time */
    CR_PROGRAM_LARGE,  /* memory */
    CR_PROGRAM_LOUD,   /* output */
    CR_PROGRAM_BROKEN  /* the sandbox failed, see why: nothing is known of the program */
} cr_program_end;

typedef struct cr_program {
    /* A harness gets jobs[0], with the descriptor of the result; jobs[1], if there is one, is run by a second process, which
     * shares nothing with the first but the namespaces and a socket, the link. Without a harness: the program's file. Borrowed. */
    const cr_buf *jobs[2];
    const char *input; /* stdin; borrowed */
    size_t input_bytes;
    double cpu_s, wall_s;
    void *owner; /* the caller's */
    /* when it has ended */
    cr_program_end end;
    int code;
    double took_s, used_cpu_s;
    int64_t peak_bytes; /* of its largest process */
    cr_buf output, errors,
        result; /* stdout, stderr, the result of jobs[0]; freed by cr_program_free */
    char why[160];
} cr_program;

/* CR_EABSENT: the kernel or the machine cannot do it, says what. CR_ECONFIG: the interpreter cannot be used. */
CR_MUST cr_status cr_sandbox_open(const cr_sandbox_args *args, cr_sandbox **out, cr_err *err);
void cr_sandbox_close(cr_sandbox *s); /* accepts NULL; programs end */

void cr_sandbox_start(cr_sandbox *s,
                      cr_program *program); /* one that cannot start comes back broken */
/* A program that has ended, waited for at most wait_s; NULL: none, or other_fd (if it is not -1) can be read. */
cr_program *cr_sandbox_next(cr_sandbox *s, double wait_s, int other_fd);
void cr_program_free(cr_program *program); /* what it wrote */

#endif
