/* sandbox_impl.h -- what the files of the room share: the messages between a sandbox and its slots, and the steps of a slot. */
#ifndef CR_SANDBOX_IMPL_H
#define CR_SANDBOX_IMPL_H

#include "sandbox/sandbox.h"

#include <sys/types.h>

/* Sandbox to slot, with descriptors: stdin, stdout, stderr, result, and one for each job. */
typedef struct cri_sandbox_request {
    double cpu_s, wall_s;
    int num_jobs;
} cri_sandbox_request;

enum { CRI_STDIN, CRI_STDOUT, CRI_STDERR, CRI_RESULT, CRI_JOB, CRI_LINK, CRI_MAX_FDS = 8 };

/* Slot to sandbox: the first one says that it is ready (CR_PROGRAM_EXITED) or why it cannot be. */
typedef struct cri_report {
    int end, code;
    double took_s, cpu_s;
    int64_t peak_bytes;
    char why[160];
} cri_report;

/* What the root of programs holds: paths of the host, each at the same place. */
typedef struct cri_sandbox_root {
    char **paths; /* NULL-terminated */
    size_t num;
    char *program;  /* to execute */
    char **command; /* words, the first of which is the program */
} cri_sandbox_root;

typedef struct cri_slot_args {
    const cr_sandbox_args *sandbox;
    const cri_sandbox_root *root;
    const cr_buf *filter;
    int fd; /* to the sandbox */
} cri_slot_args;

/* root.c */
CR_MUST cr_status cri_root_find(const char *interpreter, bool is_python, cri_sandbox_root *out,
                                cr_err *err);
void cri_root_free(cri_sandbox_root *root);
/* In a slot that has just been forked: namespaces of its own, then this root instead of the host's. *proc_fd: the host's /proc.
 * The sandbox answers each byte on `fd` with one when it has written the maps of users. */
CR_MUST cr_status cri_root_enter(const cri_sandbox_root *root, int fd, int *proc_fd, cr_err *err);
/* Users of a process that has unshared: 0 inside is `uid` outside. 0, or errno. */
int cri_map_user(int proc_fd, pid_t pid, unsigned inside, unsigned uid, unsigned gid);

/* filter.c */
void cri_filter_write(cr_buf *out);
int cri_filter_apply(const cr_buf *filter); /* 0, or -1 with errno */

/* slot.c: the whole life of a slot */
void cri_slot_run(const cri_slot_args *a) __attribute__((noreturn));

/* holder.c: process 1 of a program's namespaces */
typedef struct cri_holder {
    pid_t pid;
    int pid_fd,
        status_fd; /* of a program without a harness: its status, as waitpid gives it, then rusage */
} cri_holder;
CR_MUST cr_status cri_holder_start(const cri_slot_args *a, int proc_fd,
                                   const cri_sandbox_request *request, const int *fds,
                                   cri_holder *out, cr_err *err);
void cri_holder_end(cri_holder *h);

/* cgroup.c: out: its folders, or NULL. */
void cri_cgroup_make(const cr_sandbox_limits *limits, int number, pid_t pid, char *out[2]);
void cri_cgroup_remove(char *paths[2]); /* once its processes are killed */

/* message.c */
bool cri_send(int fd, const void *data, size_t num_bytes, const int *fds, int num_fds);
/* Bytes of the message, 0 at the end, -1; *num_fds: room, then how many came. */
ssize_t cri_receive(int fd, void *data, size_t num_bytes, int *fds, int *num_fds);
void cri_set_limits(const cr_sandbox_limits *limits, double cpu_s);

extern const char cri_zygote_begin[], cri_zygote_end[];

#endif
