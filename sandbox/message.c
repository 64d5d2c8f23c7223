/* message.c -- messages with descriptors, between a sandbox, its slots and their interpreters; limits of a process. */
#include "sandbox/sandbox_impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

typedef union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(CRI_MAX_FDS * sizeof(int))];
} control;

bool cri_send(int fd, const void *data, size_t num_bytes, const int *fds, int num_fds)
{
    struct iovec part = {(void *)(uintptr_t)data, num_bytes};
    control c = {.bytes = {0}};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t n;

    if (num_fds > 0) {
        size_t fd_bytes = (size_t)num_fds * sizeof *fds;
        message.msg_control = c.bytes;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        c.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(fd_bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&c.header), fds, fd_bytes);
    }
    while ((n = sendmsg(fd, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        continue;
    return n == (ssize_t)num_bytes;
}

ssize_t cri_receive(int fd, void *data, size_t num_bytes, int *fds, int *num_fds)
{
    struct iovec part = {data, num_bytes};
    control c;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = c.bytes,
                             .msg_controllen = fds ? sizeof c.bytes : 0};
    struct cmsghdr *header;
    ssize_t n;

    while ((n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    if (!fds) return n;
    header = CMSG_FIRSTHDR(&message);
    *num_fds = 0;
    if (n >= 0 && header && header->cmsg_type == SCM_RIGHTS) {
        *num_fds = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), (size_t)*num_fds * sizeof(int));
    }
    return n;
}

static void set_limit(int which, int64_t value)
{
    struct rlimit limit = {(rlim_t)value, (rlim_t)value}, now;

    if (getrlimit((__rlimit_resource_t)which, &now) == 0 && now.rlim_max < limit.rlim_max)
        limit.rlim_cur = limit.rlim_max = now.rlim_max;
    setrlimit((__rlimit_resource_t)which, &limit);
}

void cri_set_limits(const cr_sandbox_limits *limits, double cpu_s)
{
    set_limit(RLIMIT_AS, limits->memory_bytes);
    set_limit(RLIMIT_FSIZE, limits->files_bytes);
    set_limit(RLIMIT_NPROC, limits->num_processes);
    set_limit(RLIMIT_CPU, (int64_t)ceil(cpu_s));
    set_limit(RLIMIT_NOFILE, 256);
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_MEMLOCK, 0);
    set_limit(RLIMIT_MSGQUEUE, 0);
    set_limit(RLIMIT_SIGPENDING, 256); /* timers, too */
}
