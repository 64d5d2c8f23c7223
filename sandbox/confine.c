/* confine.c -- limits, closed descriptors and a short list of system calls (see confine.h). */
#include "sandbox/confine.h"
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

static const int allowed[] = {
    SYS_read,       SYS_write,        SYS_readv,          SYS_writev,     SYS_sendto,
    SYS_recvfrom,   SYS_brk,          SYS_mmap,           SYS_munmap,     SYS_mremap,
    SYS_mprotect,   SYS_madvise,      SYS_futex,          SYS_getrandom,  SYS_exit,
    SYS_exit_group, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_sigaltstack /* of sanitizers, at each longjmp */};

static void apply_filter(cr_err *err)
{
    enum { BEFORE = 4, NUM = CR_COUNT(allowed) };
    struct sock_filter program[BEFORE + NUM + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    struct sock_fprog filter = {.len = CR_COUNT(program), .filter = program};

    for (size_t i = 0; i < NUM; i++) /* to the last instruction, which allows */
        program[BEFORE + i] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[i], (uint8_t)(NUM - i), 0);
    program[BEFORE + NUM] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    program[BEFORE + NUM + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        cr_fail(err, CR_EABSENT, "the kernel takes no filter of system calls (%s)",
                strerror(errno));
}

static void limit(int what, rlim_t max)
{
    const struct rlimit both = {max, max};

    (void)!setrlimit((__rlimit_resource_t)what, &both);
}

static void close_others(int keep_fd)
{
    int null = open("/dev/null", O_RDWR);

    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    if (keep_fd > 3) syscall(SYS_close_range, 3, keep_fd - 1, 0);
    syscall(SYS_close_range, keep_fd + 1, ~0U, 0);
}

cr_status cr_confine(int keep_fd, int64_t memory_bytes, cr_err *err)
{
    int64_t has_bytes = cr_find_number("/proc/self/status", "VmSize:") << 10;

    close_others(keep_fd);
    limit(RLIMIT_AS, (rlim_t)(has_bytes + memory_bytes));
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NPROC, 0);
    apply_filter(err);
    return err->status;
}
