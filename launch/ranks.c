/* ranks.c -- see ranks.h. The socket has an abstract name (no file remains), and only processes
 * of the same user are answered. */
#include "launch/ranks.h"
#include "base/children.h"
#include "base/rng.h"
#include "exchange/exchange.h"
#include "launch/mpirun/watched.h"
#include "launch/preflight/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char variable[] = "CROLL_RANKS_SOCKET";
static volatile sig_atomic_t caught, num_caught, num_ends; /* num_ends: all but SIGHUP */
static int launcher = -1;                                  /* a rank 0's connection */

void cr_mpirun_add(cr_mpirun *m, const char *option, const char *value)
{
    if (!value) return;
    CR_CHECK(m->num + 2 < CR_MPIRUN_WORDS, "too many words for mpirun");
    if (option) m->word[m->num++] = cr_word(option);
    m->word[m->num++] = cr_word(value);
}

static void add_words(cr_mpirun *m, const char *const *words, size_t num)
{
    for (size_t i = 0; i < num; i++)
        cr_mpirun_add(m, NULL, words[i]);
}

static void add_option(cr_mpirun *m, const char *name, const char *value)
{
    cr_mpirun_add(m, "--mca", name);
    cr_mpirun_add(m, NULL, value);
}

/* Where ranks run, and what connects them. The variables travel with what mpirun sends its daemons, so that no command
 * line shows them. */
static void add_hosts(cr_mpirun *m, const cr_hosts *hosts)
{
    static const char *const here[] = {"--mca", "plm", "isolated", "--mca", "btl", "self,vader"};
    static const char *const ssh[] = {"--mca", "plm",           "rsh",
                                      "--mca", "plm_rsh_agent", CR_HOSTS_SSH};
    /* beside other steps of the job, and with all that it has of a host */
    static const char *const slurm[] = {
        "--mca", "plm", "slurm", "--mca", "plm_slurm_args", "--overlap --mpi=none --cpu-bind=none"};
    static const char *const variables[] = {
        CR_EXCHANGE_VARIABLE, "HWLOC_COMPONENTS", "CROLL_CPU",        "CROLL_CUDA_PRODUCTS",
        "CROLL_DEVICE",       "CROLL_TRANSPORT",  "CROLL_BIND",       "OMP_NUM_THREADS",
        "OMP_PROC_BIND",      "OMP_PLACES",       "GOMP_CPU_AFFINITY"};

    if (!hosts->list) {
        add_words(m, here, CR_COUNT(here)); /* nothing outside this host is searched */
        return;
    }
    unsetenv("OMPI_MCA_orte_default_hostfile"); /* another list was given */
    unsetenv("OMPI_MCA_rmaps_base_hostfile");
    unsetenv("OMPI_MCA_btl_tcp_if_exclude"); /* Open MPI takes no list of both kinds */
    unsetenv("OMPI_MCA_oob_tcp_if_exclude");
    add_words(m, hosts->by == CR_HOSTS_BY_SLURM ? slurm : ssh, CR_COUNT(ssh));
    if (hosts->cpu[0]) setenv("CROLL_CPU", hosts->cpu, 1);
    for (size_t i = 0; i < CR_COUNT(variables); i++)
        if (getenv(variables[i])) cr_mpirun_add(m, "-x", variables[i]);
    add_option(m, "btl", "self,vader,tcp");
    add_option(m, "btl_tcp_if_include", hosts->subnet);
    /* a rank that waits for a command in Redis calls no MPI: what a full socket has kept back goes out all the same */
    add_option(m, "btl_tcp_progress_thread", "1");
    add_option(m, "oob_tcp_if_include", hosts->subnet);
    /* a host that is cut off is noticed after 15 s, and its daemon notices that, too, and ends with its ranks */
    add_option(m, "oob_tcp_keepalive_time", "5");
    add_option(m, "oob_tcp_keepalive_intvl", "1");
    add_option(m, "oob_tcp_keepalive_probes", "10");
    add_option(m, "rmaps", "seq"); /* rank i on the i-th of the list */
    cr_mpirun_add(m, "--host", hosts->list);
}

void cr_mpirun_init(cr_mpirun *m, int num_ranks, bool has_last_words, const cr_mpi_folder *folder,
                    const cr_hosts *hosts)
{
    /* ranks may outnumber cores and give them up when idle */
    static const char *const words[] = {
        "mpirun", "--oversubscribe", "--bind-to",
        "none",   "--mca",           "mpi_yield_when_idle",
        "1",      "--mca",           "btl_vader_single_copy_mechanism",
        "none",   "--mca",           "pml",
        "ob1"};
    static const char *const places[] = {"orte_tmpdir_base", "btl_vader_backing_directory",
                                         "osc_sm_backing_directory"};

    *m = (cr_mpirun){.num = 0};
    add_words(m, words, CR_COUNT(words));
    add_option(m, "odls_base_sigkill_timeout", has_last_words ? "1" : "0");
    add_hosts(m, hosts);
    for (size_t i = 0; i < CR_COUNT(places) && folder->path[0]; i++)
        add_option(m, places[i], folder->path);
    snprintf(m->num_ranks, sizeof m->num_ranks, "%d", num_ranks);
    cr_mpirun_add(m, "-n", m->num_ranks);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* MPI's look at the machine would try ten X displays and start OpenCL: without /etc/hosts that
     * waits for the name "localhost", 10 s and more */
    setenv("HWLOC_COMPONENTS", "-gl,-opencl", 0);
}

/* ---- the socket ---- */

static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static cr_status listen_here(int *out, cr_err *err)
{
    struct sockaddr_un address;
    char name[80];
    socklen_t size;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(name, sizeof name, "croll-%d-%016llx", (int)getpid(),
             (unsigned long long)cr_rng_chance());
    size = address_of(name, &address);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 8) != 0) {
        if (fd >= 0) close(fd);
        return cr_fail(err, CR_EIO, "cannot listen for the ranks: %s", strerror(errno));
    }
    setenv(variable, name, 1);
    *out = fd;
    return CR_OK;
}

/* The next connection of a process of this user gets stdin and stdout; -1: it was another's. *pid: whose it is. */
static int give_descriptors(int listener, pid_t *pid)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte = 'f';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int fds[2] = {STDIN_FILENO, STDOUT_FILENO}, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct ucred who;
    socklen_t size = sizeof who;

    if (fd < 0) return -1;
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(head), fds, sizeof fds);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == getuid() &&
        sendmsg(fd, &message, MSG_NOSIGNAL) == 1) {
        *pid = who.pid;
        return fd;
    }
    close(fd);
    return -1;
}

/* ---- the launcher ---- */

static void on_signal(int number)
{
    caught = number;
    num_caught++;
    num_ends += number != SIGHUP;
}

static void open_missing(void)
{
    int fd;

    do /* 0, 1 and 2 must mean something before they are handed on */
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

/* What rank 0 says at its end. */
struct rank0_end {
    int code;
    cr_err failure;
};

typedef struct launching {
    cr_watched ranks;
    int listener, rank0; /* socket, connection of rank 0; -1: none */
    pid_t rank0_pid;
    bool tells_signals;
    int num_told;
    bool has_end; /* rank 0 has said how it ended */
    struct rank0_end end;
} launching;

/* Is it to end now? A rank 0 that looks after signals gets them instead, until the second that ends it. */
static bool is_stopped(launching *l)
{
    if (num_caught == l->num_told) return false;
    if (!l->tells_signals || l->rank0 < 0) return true;
    l->num_told = num_caught;
    kill(l->rank0_pid, caught);
    return num_ends > 1;
}

static void receive(launching *l, int flags)
{
    l->has_end = recv(l->rank0, &l->end, sizeof l->end, flags) == sizeof l->end;
    close(l->rank0);
    l->rank0 = -1;
}

/* Until mpirun has ended, or rank 0 has reported a failure. */
static void watch(launching *l)
{
    while (cr_watched_pump(&l->ranks) && !is_stopped(l) && l->end.failure.status == CR_OK) {
        struct pollfd fds[3] = {
            {l->ranks.child.err_fd, POLLIN, 0}, {l->listener, POLLIN, 0}, {l->rank0, POLLIN, 0}};
        if (poll(fds, 3, 50) <= 0) continue;
        if (fds[1].revents & POLLIN) {
            l->rank0 = give_descriptors(l->listener, &l->rank0_pid);
            if (l->rank0 >= 0) {
                close(l->listener);
                l->listener = -1;
            }
        }
        if (fds[2].revents) receive(l, MSG_WAITALL);
    }
    if (l->rank0 >= 0 && !l->has_end) receive(l, MSG_DONTWAIT);
    if (l->rank0 >= 0) close(l->rank0);
}

static cr_status say_why(const launching *l, cr_err *err)
{
    char fate[CR_FATE];
    bool is_by_mpirun = l->end.code == cr_exit_code(CR_ESIGNAL) && !caught;

    if (caught && (!l->has_end || !l->tells_signals))
        return cr_fail(err, CR_ESIGNAL, "stopped by signal %d", (int)caught);
    if (l->has_end && !is_by_mpirun) { /* mpirun ends the ranks when one has ended */
        *err = l->end.failure;
        return err->status;
    }
    if (l->ranks.dead_rank >= 0)
        return cr_fail(err, CR_EPEER, "rank %d on %s was killed", l->ranks.dead_rank,
                       l->ranks.dead_host);
    if (l->ranks.lost_host[0])
        return cr_fail(err, CR_EPEER,
                       "host %s is lost: Open MPI's connection to it ended; it is down, it hangs, "
                       "or its network is cut",
                       l->ranks.lost_host);
    return cr_fail(err, CR_EPEER, "the ranks ended early: %s",
                   cr_watched_reason(&l->ranks)[0] ? cr_watched_reason(&l->ranks)
                                                   : cr_child_fate(&l->ranks.child, fate));
}

static void catch_signals(bool also_hangup)
{
    struct sigaction action = {.sa_handler = on_signal}, before;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, NULL, &before);
    if (also_hangup || before.sa_handler != SIG_IGN) /* nohup ignores it */
        sigaction(SIGHUP, &action, NULL);
}

/* Rank 0 takes over our descriptors. */
static cr_status check_rank0(const cr_hosts *hosts, cr_err *err)
{
    if (hosts->host[hosts->host_of[0]].is_here) return CR_OK;
    return cr_fail(err, CR_ECONFIG,
                   "rank 0 has stdin and stdout, so it runs on %s, where the command was given: "
                   "that host has to be the first of the list, which is %s",
                   cr_host_name(), hosts->host[hosts->host_of[0]].name);
}

/* The hosts of a command, and whether it can run there. */
static cr_status open_hosts(const cr_hosts_args *where, const char *model, int num_ranks,
                            cr_hosts *out, cr_err *err)
{
    const cr_preflight_needs needs = {.model = &model, .num_models = 1, .is_brief = true};
    cr_preflight *preflight = NULL;

    if (cr_hosts_open(where, num_ranks, out, err) == CR_OK && check_rank0(out, err) == CR_OK)
        cr_note(cr_preflight_run(out, &needs, &preflight, err));
    cr_preflight_free(preflight);
    return err->status;
}

cr_status cr_ranks_run(const cr_hosts_args *where, const char *model, int num_ranks,
                       bool tells_signals, int argc, char **argv, int *code, cr_err *err)
{
    char **words = CR_NEW_ARRAY(char *, CR_MPIRUN_WORDS + (size_t)argc + 3), *self = cr_self_path();
    cr_mpi_folder folder = {0};
    cr_hosts hosts = {0};
    cr_mpirun mpirun;
    launching l = {.listener = -1, .rank0 = -1, .tells_signals = tells_signals};

    open_missing();
    CR_TRY_GOTO(out, open_hosts(where, model, num_ranks, &hosts, err));
    catch_signals(tells_signals);
    CR_TRY_GOTO(out, cr_mpi_folder_open(&folder, err));
    cr_mpirun_init(&mpirun, num_ranks, tells_signals, &folder, &hosts);
    memcpy(words, mpirun.word, mpirun.num * sizeof *words);
    words[mpirun.num] = self;
    memcpy(words + mpirun.num + 1, argv, (size_t)argc * sizeof *words);
    if (listen_here(&l.listener, err) == CR_OK &&
        cr_watched_start(&l.ranks, "mpirun", words, err) == CR_OK) {
        watch(&l);
        cr_child_stop(&l.ranks.child, 2);
        cr_note(say_why(&l, err));
    }
out:
    *code = l.end.code;
    if (l.listener >= 0) close(l.listener);
    cr_mpi_folder_close(&folder);
    cr_hosts_free(&hosts);
    cr_free(words);
    cr_free(self);
    return err->status;
}

/* ---- a rank ---- */

static cr_status take_descriptors(int fd, cr_err *err)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct pollfd ready = {fd, POLLIN, 0};
    struct cmsghdr *head = NULL;
    int fds[2];

    if (poll(&ready, 1, 10000) == 1 && recvmsg(fd, &message, MSG_CMSG_CLOEXEC) == 1)
        head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof fds))
        return cr_fail(err, CR_EPEER, "the launcher gave no stdin and stdout");
    memcpy(fds, CMSG_DATA(head), sizeof fds);
    for (int i = 0; i < 2; i++) {
        dup2(fds[i], i);
        close(fds[i]);
    }
    return CR_OK;
}

cr_status cr_ranks_join(cr_err *err)
{
    const char *name = getenv(variable), *rank = getenv("OMPI_COMM_WORLD_RANK");
    struct sockaddr_un address;
    socklen_t size;

    if (!rank) return CR_OK;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* with mpirun */
    cr_mpi_folder_join();
    if (!name || strcmp(rank, "0") != 0) return CR_OK;
    size = address_of(name, &address);
    launcher = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (launcher < 0 || connect(launcher, (struct sockaddr *)&address, size) != 0)
        return cr_fail(err, CR_EPEER, "cannot reach the launcher: %s", strerror(errno));
    return take_descriptors(launcher, err);
}

bool cr_ranks_leave(int code, const cr_err *failure)
{
    struct rank0_end end;
    bool is_reported;

    memset(&end, 0, sizeof end); /* gaps, too */
    end.code = code;
    end.failure = *failure;
    is_reported = launcher >= 0 && send(launcher, &end, sizeof end, MSG_NOSIGNAL) == sizeof end;
    if (launcher >= 0) close(launcher);
    launcher = -1;
    return is_reported;
}
