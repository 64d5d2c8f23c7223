/* sandbox_filter.c -- what the filter of system calls answers, from an interpreter of its instructions: for the architecture
 * that the test is built for, also on an emulated machine, where the kernel installs none. Not covered: that the kernel
 * applies it (unit/scorers_code, e2e/score_code_attacks). */
#include "sandbox/sandbox_impl.h"
#include "tests/check_near.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static const uint32_t this_arch = AUDIT_ARCH_X86_64, other_arch = AUDIT_ARCH_AARCH64;
#else
static const uint32_t this_arch = AUDIT_ARCH_AARCH64, other_arch = AUDIT_ARCH_X86_64;
#endif

enum { ALLOWED = 0, KILLED = -1 }; /* or the errno that the caller gets */

static int meaning_of(uint32_t action)
{
    if (action == SECCOMP_RET_ALLOW) return ALLOWED;
    if (action == SECCOMP_RET_KILL_PROCESS) return KILLED;
    assert_int_equal(action & SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ERRNO);
    return (int)(action & SECCOMP_RET_DATA);
}

/* As the kernel runs it: jumps only go forward, and a word outside of the data or the program fails the test. */
static int run(const cr_buf *filter, const struct seccomp_data *data)
{
    const struct sock_filter *code = (const void *)filter->data;
    size_t num = filter->num_bytes / sizeof *code;
    uint32_t a = 0;

    for (size_t i = 0; i < num; i++) {
        const struct sock_filter *x = &code[i];
        switch (x->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            assert_true(x->k % 4 == 0 && x->k + 4 <= sizeof *data);
            memcpy(&a, (const char *)data + x->k, sizeof a);
            break;
        case BPF_JMP | BPF_JA:
            i += x->k;
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            i += a == x->k ? x->jt : x->jf;
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            i += a & x->k ? x->jt : x->jf;
            break;
        case BPF_RET | BPF_K:
            return meaning_of(x->k);
        default:
            fail_msg("instruction %zu: code %#x", i, x->code);
        }
    }
    fail_msg("the program's end was reached");
    return 0;
}

static cr_buf filter;

/* Of this architecture; value is argument number `argument`, the others are 0. */
static int answer(long call, int argument, uint64_t value)
{
    struct seccomp_data data = {.nr = (int)call, .arch = this_arch};

    data.args[argument] = value;
    return run(&filter, &data);
}

static int set_up(void **state)
{
    (void)state;
    cri_filter_write(&filter);
    assert_in_range(filter.num_bytes / sizeof(struct sock_filter), 100, BPF_MAXINSNS);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    cr_buf_free(&filter);
    return 0;
}

static void another_architecture_is_killed(void **state)
{
    struct seccomp_data data = {.nr = SYS_read, .arch = other_arch};

    (void)state;
    assert_int_equal(run(&filter, &data), KILLED);
    data.arch = AUDIT_ARCH_I386;
    assert_int_equal(run(&filter, &data), KILLED);
    data.arch = this_arch;
    assert_int_equal(run(&filter, &data), ALLOWED);
}

static void what_interpreters_need_is_there(void **state)
{
    static const long calls[] = {
        SYS_read,  SYS_write, SYS_openat,     SYS_mmap, SYS_mprotect,    SYS_futex, SYS_execve,
        SYS_wait4, SYS_ppoll, SYS_exit_group, SYS_rseq, SYS_epoll_pwait, SYS_statx, SYS_getrandom};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(calls); i++)
        if (answer(calls[i], 0, 0) != ALLOWED) fail_msg("call %ld is refused", calls[i]);
#if defined(__x86_64__) /* older calls, which newer architectures do not have */
    assert_int_equal(answer(SYS_open, 0, 0), ALLOWED);
    assert_int_equal(answer(SYS_vfork, 0, 0), ALLOWED);
    assert_int_equal(answer(SYS_arch_prctl, 0, 0), ALLOWED);
    assert_int_equal(answer(SYS_read | 0x40000000, 0, 0), ENOSYS); /* x32 */
#endif
}

static void what_reaches_out_does_not_exist(void **state)
{
    static const long calls[] = {SYS_ptrace,
                                 SYS_mount,
                                 SYS_umount2,
                                 SYS_pivot_root,
                                 SYS_chroot,
                                 SYS_unshare,
                                 SYS_setns,
                                 SYS_bpf,
                                 SYS_perf_event_open,
                                 SYS_keyctl,
                                 SYS_process_vm_readv,
                                 SYS_process_vm_writev,
                                 SYS_kexec_load,
                                 SYS_init_module,
                                 SYS_reboot,
                                 SYS_userfaultfd,
                                 SYS_clone3,
                                 SYS_seccomp,
                                 SYS_pidfd_open,
                                 SYS_memfd_create,
                                 SYS_shmget,
                                 425 /* io_uring_setup */};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(calls); i++)
        if (answer(calls[i], 0, 0) != ENOSYS) fail_msg("call %ld exists", calls[i]);
}

static void arguments_are_looked_at(void **state)
{
    (void)state;
    assert_int_equal(answer(SYS_clone, 0, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND), ALLOWED);
    assert_int_equal(answer(SYS_clone, 0, SIGCHLD), ALLOWED);
    assert_int_equal(answer(SYS_clone, 0, CLONE_NEWUSER | SIGCHLD), EPERM);
    assert_int_equal(answer(SYS_clone, 0, CLONE_NEWNET), EPERM);
    assert_int_equal(answer(SYS_clone, 0, CLONE_PTRACE), EPERM);
    assert_int_equal(answer(SYS_socket, 0, AF_UNIX), ALLOWED);
    assert_int_equal(answer(SYS_socket, 0, AF_INET), EAFNOSUPPORT);
    assert_int_equal(answer(SYS_socket, 0, AF_NETLINK), EAFNOSUPPORT);
    assert_int_equal(answer(SYS_ioctl, 1, 0x5401 /* TCGETS */), ALLOWED);
    assert_int_equal(answer(SYS_ioctl, 1, 0x5412 /* TIOCSTI */), ENOTTY);
    assert_int_equal(answer(SYS_prctl, 0, PR_SET_NAME), ALLOWED);
    assert_int_equal(answer(SYS_prctl, 0, PR_SET_SECCOMP), EINVAL);
    assert_int_equal(answer(SYS_prctl, 0, PR_SET_DUMPABLE), EINVAL);
    assert_int_equal(answer(SYS_prlimit64, 0, 0), ALLOWED);
    assert_int_equal(answer(SYS_prlimit64, 0, 1), EPERM);
    assert_int_equal(answer(SYS_sched_setaffinity, 0, 7), EPERM);
    assert_int_equal(answer(SYS_setsockopt, 2, SO_REUSEADDR), ALLOWED);
    assert_int_equal(answer(SYS_setsockopt, 2, SO_ATTACH_FILTER), ENOPROTOOPT);
    assert_int_equal(answer(SYS_setsockopt, 2, SO_ATTACH_BPF), ENOPROTOOPT);
    assert_int_equal(answer(SYS_fcntl, 1, F_SETFD), ALLOWED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(another_architecture_is_killed),
                                       cmocka_unit_test(what_interpreters_need_is_there),
                                       cmocka_unit_test(what_reaches_out_does_not_exist),
                                       cmocka_unit_test(arguments_are_looked_at)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
