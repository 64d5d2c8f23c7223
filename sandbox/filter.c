/* filter.c -- the system calls that a program may make: a list of what interpreters need, in seccomp's BPF.
 *
 * What is not in the list does not exist (ENOSYS), so that libraries fall back as on an older kernel. Calls whose harm depends on
 * an argument are looked at: clone without namespaces, sockets of the unix family only, ioctl for files and terminals, limits
 * of the caller alone. There is no call that reaches into another process but kill, whose reach is the pid namespace.
 * A lock of a file belongs to its inode, which the host and other programs share: flock does not exist, and fcntl says that
 * a record lock is taken and takes none (SQLite needs them; its files are in this program's own /tmp).
 */
#include "sandbox/sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

static const int allowed[] = {
    /* files */
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_openat,
    SYS_close,
    SYS_close_range,
    SYS_lseek,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_mknodat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_umask,
    SYS_truncate,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_utimensat,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_sendfile,
    SYS_copy_file_range,
    SYS_fadvise64,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_signalfd4,
    /* memory */
    SYS_brk,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_msync,
    SYS_mincore,
    SYS_mlock,
    SYS_munlock,
    SYS_membarrier,
    /* processes and threads */
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_waitid,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getpgid,
    SYS_setpgid,
    SYS_getsid,
    SYS_setsid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_set_tid_address,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_futex,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getpriority,
    SYS_getrlimit,
    SYS_getrusage,
    SYS_times,
    SYS_capget,
    /* signals, time, the machine */
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigsuspend,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getitimer,
    SYS_setitimer,
    SYS_timer_create,
    SYS_timer_settime,
    SYS_timer_gettime,
    SYS_timer_getoverrun,
    SYS_timer_delete,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrandom,
    SYS_getcpu,
    /* sockets between processes of one program */
    SYS_socketpair,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_connect,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_getsockopt,
    SYS_getsockname,
    SYS_getpeername,
    SYS_shutdown,
#ifdef __x86_64__
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_mkdir,
    SYS_rmdir,
    SYS_unlink,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_mknod,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_creat,
    SYS_dup2,
    SYS_pipe,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_fork,
    SYS_vfork,
    SYS_getpgrp,
    SYS_pause,
    SYS_alarm,
    SYS_time,
    SYS_arch_prctl,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_signalfd,
#endif
};

/* A call with a 32-bit argument that must be one of `values` (or, with a mask, have none of its bits); else `error`. */
typedef struct checked {
    int call, argument, error;
    uint32_t mask;
    uint32_t values[8];
    int num_values;
} checked;

static const checked checks[] = {
    {SYS_clone,
     0,
     EPERM,
     CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
         CLONE_NEWCGROUP | CLONE_PTRACE,
     {0},
     0},
    {SYS_socket, 0, EAFNOSUPPORT, 0, {1 /* AF_UNIX */}, 1},
    /* TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX */
    {SYS_ioctl, 1, ENOTTY, 0, {0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451}, 7},
    {SYS_prctl,
     0,
     EINVAL,
     0,
     {PR_SET_NAME, PR_GET_NAME, PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_VMA,
      PR_CAPBSET_READ},
     7},
    {SYS_fcntl, 1, EINVAL, 0, {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL}, 6},
    {SYS_setsockopt,
     2,
     ENOPROTOOPT, /* above all for filters, which are programs in the kernel */
     0,
     {SO_REUSEADDR, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_LINGER, SO_PASSCRED, SO_RCVTIMEO,
      SO_SNDTIMEO},
     8},
    {SYS_prlimit64, 0, EPERM, 0, {0}, 1}, /* of the caller */
    {SYS_setrlimit, -1, 0, 0, {0}, 0},
    {SYS_sched_setaffinity, 0, EPERM, 0, {0}, 1},
};

typedef struct sock_filter instruction;

static void put(cr_buf *out, instruction x)
{
    cr_buf_add(out, &x, sizeof x);
}

static void put_load(cr_buf *out, size_t offset)
{
    put(out, (instruction)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void put_return(cr_buf *out, uint32_t action)
{
    put(out, (instruction)BPF_STMT(BPF_RET | BPF_K, action));
}

/* If the value is k go on, else leave out the next num_left_out instructions. */
static void put_unless(cr_buf *out, uint32_t k, size_t num_left_out)
{
    put(out, (instruction)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, 0, (uint8_t)num_left_out));
}

static void put_check(cr_buf *out, const checked *c)
{
    size_t num = c->mask ? 4 : c->argument < 0 ? 1 : 2 + 2 * (size_t)c->num_values;

    put_unless(out, (uint32_t)c->call, num);
    if (c->argument < 0) {
        put_return(out, SECCOMP_RET_ALLOW);
        return;
    }
    put_load(out,
             offsetof(struct seccomp_data, args) + 8 * (size_t)c->argument); /* little-endian */
    if (c->mask) {
        put(out, (instruction)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, c->mask, 1, 0));
        put_return(out, SECCOMP_RET_ALLOW);
    }
    for (int i = 0; i < c->num_values; i++) {
        put_unless(out, c->values[i], 1);
        put_return(out, SECCOMP_RET_ALLOW);
    }
    put_return(out, SECCOMP_RET_ERRNO | (uint32_t)c->error);
}

/* fcntl with a command that locks succeeds and does nothing. */
static void put_locks(cr_buf *out)
{
    static const uint32_t commands[] = {F_SETLK, F_SETLKW, 37 /* F_OFD_SETLK */,
                                        38 /* F_OFD_SETLKW */};

    put_unless(out, SYS_fcntl, 2 * CR_COUNT(commands) + 2);
    put_load(out, offsetof(struct seccomp_data, args) + 8);
    for (size_t i = 0; i < CR_COUNT(commands); i++) {
        put_unless(out, commands[i], 1);
        put_return(out, SECCOMP_RET_ERRNO);
    }
    put_load(out, offsetof(struct seccomp_data, nr));
}

void cri_filter_write(cr_buf *out)
{
    cr_buf_clear(out);
    put_load(out, offsetof(struct seccomp_data, arch));
    put_unless(out, ARCH, 1);
    put(out, (instruction)BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0));
    put_return(out, SECCOMP_RET_KILL_PROCESS);
    put_load(out, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < CR_COUNT(allowed); i++) {
        put_unless(out, (uint32_t)allowed[i], 1);
        put_return(out, SECCOMP_RET_ALLOW);
    }
    put_locks(out);
    for (size_t i = 0; i < CR_COUNT(checks); i++)
        put_check(out, &checks[i]);
    put_return(out, SECCOMP_RET_ERRNO | ENOSYS);
}

int cri_filter_apply(const cr_buf *filter)
{
    struct sock_fprog program = {(unsigned short)(filter->num_bytes / sizeof(instruction)),
                                 (instruction *)(void *)filter->data};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}
