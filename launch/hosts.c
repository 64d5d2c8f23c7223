/* hosts.c -- see hosts.h. */
#include "launch/hosts.h"
#include "base/children.h"
#include "base/lookup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DISCARD_PORT = 9, MAX_BYTES = 1 << 20 /* of a text that lists hosts */ };

/* Its address, whether it is this host, and the address of this one that packets to it have. No packet is sent. */
static cr_status find_way(cr_host *host, struct in_addr *from, cr_err *err)
{
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    struct sockaddr_in to, own = {0};
    socklen_t size = sizeof own;
    int code = cr_lookup(host->name, NULL, &wanted, &found), fd;

    if (code != 0)
        return cr_fail(err, CR_ECONFIG, "host %s: %s (an IPv4 address or name is needed)",
                       host->name, gai_strerror(code));
    memcpy(&to, found->ai_addr, sizeof to);
    freeaddrinfo(found);
    inet_ntop(AF_INET, &to.sin_addr, host->address, sizeof host->address);
    to.sin_port = htons(DISCARD_PORT);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &size) != 0)
        cr_fail(err, CR_ECONFIG, "host %s: no network of this one leads there (%s)", host->name,
                host->address);
    if (fd >= 0) close(fd);
    *from = own.sin_addr;
    host->is_here = own.sin_addr.s_addr == to.sin_addr.s_addr ||
                    ntohl(to.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return err->status;
}

/* Which of them is this one; the others are in one network. */
static cr_status find_here(cr_hosts *hosts, cr_err *err)
{
    struct in_addr own = {0};
    const char *first = NULL;

    for (size_t i = 0; i < hosts->num; i++) {
        cr_host *host = &hosts->host[i];
        struct in_addr from = {0};
        CR_TRY(find_way(host, &from, err));
        if (host->is_here) continue;
        if (first && from.s_addr != own.s_addr)
            return cr_fail(err, CR_ECONFIG,
                           "the hosts %s and %s are in different networks: give all hosts by their "
                           "addresses in one",
                           first, host->name);
        if (!first) first = host->name;
        own = from;
    }
    if (first) return CR_OK;
    hosts->by = CR_HOSTS_HERE; /* all are this one: no network is needed */
    cr_free(hosts->list);
    hosts->list = NULL;
    return CR_OK;
}

/* ---- opening ---- */

/* Files that list hosts, by the variables that name them: none is used unless it is asked for. */
static cr_status check_unused(cr_err *err)
{
    static const char *const files[] = {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE",
                                        "OMPI_MCA_orte_default_hostfile",
                                        "OMPI_MCA_rmaps_base_hostfile"};

    for (size_t i = 0; i < CR_COUNT(files); i++)
        if (getenv(files[i]))
            return cr_fail(err, CR_ECONFIG,
                           "%s names a list of hosts, but the run would use this host alone: give "
                           "it (--hostfile $%s), say which hosts (--hosts a:8,b:8), or unset it",
                           files[i], files[i]);
    return CR_OK;
}

/* All of a stream, or its first `most` bytes and a few more. */
static void read_stream(FILE *in, size_t max, cr_buf *out)
{
    char part[4096];
    size_t num;

    while (out->num_bytes < max && (num = fread(part, 1, sizeof part, in)) > 0)
        cr_buf_add(out, part, num);
}

/* What the allocation consists of. */
static cr_status read_allocation(cr_hosts *out, cr_err *err)
{
    static const char command[] = "timeout 10 scontrol show hostnames"; /* of SLURM_JOB_NODELIST */
    const char *tasks = getenv("SLURM_TASKS_PER_NODE");
    cr_buf names = {0};
    FILE *answer;
    int code;

    if (!getenv("SLURM_JOB_NODELIST") || !tasks || getenv("SLURM_HET_SIZE"))
        return cr_fail(err, CR_ECONFIG,
                       "Slurm job %.20s: SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE have to be "
                       "there, and a job of several components cannot be used (unset SLURM_JOB_ID: "
                       "as outside of a job)",
                       getenv("SLURM_JOB_ID"));
    answer = popen(command, "r");
    if (answer) read_stream(answer, MAX_BYTES, &names);
    code = answer ? pclose(answer) : -1;
    if (code != 0)
        cr_fail(err, CR_ECONFIG, "Slurm job %.20s: `%s` ended with code %d", getenv("SLURM_JOB_ID"),
                command, code >> 8);
    else
        cr_note(cr_hosts_read_slurm(&names, tasks, out, err));
    cr_buf_free(&names);
    return err->status;
}

/* In an allocation Slurm starts what runs on its hosts, and on no others. */
static cr_status use_slurm(cr_hosts *given, cr_err *err)
{
    cr_hosts all;

    CR_TRY(read_allocation(&all, err));
    for (size_t i = 0; i < given->num && err->status == CR_OK; i++) {
        size_t k = 0;
        while (k < all.num && strcmp(all.host[k].name, given->host[i].name) != 0)
            k++;
        if (k == all.num)
            cr_fail(err, CR_ECONFIG, "%s is no host of Slurm job %.20s, in which this runs: %.100s",
                    given->host[i].name, getenv("SLURM_JOB_ID"), getenv("SLURM_JOB_NODELIST"));
    }
    given->by = CR_HOSTS_BY_SLURM;
    cr_hosts_free(&all);
    return err->status;
}

static cr_status read_file(const char *path, cr_hosts *out, cr_err *err)
{
    FILE *in = fopen(path, "re");
    cr_buf text = {0};

    if (!in)
        return cr_fail(err, CR_ECONFIG, "--hostfile: cannot open %s: %s", path, strerror(errno));
    read_stream(in, MAX_BYTES, &text);
    if (ferror(in) || !feof(in))
        cr_fail(err, CR_ECONFIG, "--hostfile: %s: %s", path,
                ferror(in) ? strerror(errno) : "longer than 1 MiB: no list of hosts");
    else
        cr_note(cr_hosts_read_file(&text, path, out, err));
    fclose(in);
    cr_buf_free(&text);
    return err->status;
}

/* what: where they come from, for messages. */
static cr_status read_hosts(const cr_hosts_args *args, cr_hosts *out, char what[80], cr_err *err)
{
    const char *job = getenv("SLURM_JOB_ID");

    if (args->list && args->file)
        return cr_fail(err, CR_EUSAGE, "--hosts and --hostfile: one of them");
    if (args->list || args->file) {
        snprintf(what, 80, "%.79s", args->file ? args->file : "--hosts");
        return args->file ? read_file(args->file, out, err) : cr_hosts_read(args->list, out, err);
    }
    if (!job) return check_unused(err);
    snprintf(what, 80, "Slurm job %.20s (--ntasks-per-node)", job);
    return read_allocation(out, err);
}

static void write_list(cr_hosts *hosts)
{
    cr_buf text = {0};

    for (int r = 0; r < hosts->num_ranks; r++)
        cr_buf_addf(&text, "%s%s", r ? "," : "", hosts->host[hosts->host_of[r]].name);
    cr_free(hosts->list);
    hosts->list = cr_strndup(text.data ? text.data : "", text.num_bytes);
    cr_buf_free(&text);
}

void cr_hosts_place(cr_hosts *hosts, const int *host_of, int num_ranks)
{
    cr_free(hosts->host_of);
    hosts->host_of = CR_NEW_ARRAY(int, num_ranks);
    memcpy(hosts->host_of, host_of, (size_t)num_ranks * sizeof *host_of);
    hosts->num_ranks = num_ranks;
    if (hosts->by != CR_HOSTS_HERE) write_list(hosts);
}

/* Ranks in the order of the hosts. */
static cr_status fill(cr_hosts *hosts, const char *what, int num_ranks, cr_err *err)
{
    int *host_of = CR_NEW_ARRAY(int, num_ranks), num = 0;
    int64_t room = 0;

    for (size_t i = 0; i < hosts->num; room += hosts->host[i++].num_ranks)
        for (int k = 0; k < hosts->host[i].num_ranks && num < num_ranks; k++)
            host_of[num++] = (int)i;
    if (num < num_ranks)
        cr_fail(err, CR_ECONFIG,
                "%s has room for %lld ranks, the device_mapping of all roles asks for %d", what,
                (long long)room, num_ranks);
    else
        cr_hosts_place(hosts, host_of, num_ranks);
    cr_free(host_of);
    return err->status;
}

static void use_this_host(cr_hosts *hosts, int num_ranks)
{
    hosts->host = CR_NEW(cr_host);
    *hosts->host =
        (cr_host){.name = cr_strdup(cr_host_name()), .num_ranks = num_ranks, .is_here = true};
    hosts->num = 1;
    hosts->by = CR_HOSTS_HERE;
}

cr_status cr_hosts_choose(const cr_hosts_args *args, int num_ranks, cr_hosts *out, cr_err *err)
{
    char what[80] = "";

    *out = (cr_hosts){0};
    if (read_hosts(args, out, what, err) == CR_OK && out->num == 0) use_this_host(out, num_ranks);
    if (err->status == CR_OK) cr_note(fill(out, what, num_ranks, err));
    if (err->status != CR_OK) cr_hosts_free(out);
    return err->status;
}

cr_status cr_hosts_open(const cr_hosts_args *args, int num_ranks, cr_hosts *out, cr_err *err)
{
    CR_TRY(cr_hosts_choose(args, num_ranks, out, err));
    if (out->by == CR_HOSTS_BY_SSH && getenv("SLURM_JOB_ID")) cr_note(use_slurm(out, err));
    if (out->by != CR_HOSTS_HERE && err->status == CR_OK) cr_note(find_here(out, err));
    if (err->status != CR_OK) cr_hosts_free(out);
    return err->status;
}

void cr_hosts_free(cr_hosts *hosts)
{
    for (size_t i = 0; i < hosts->num; i++)
        cr_free(hosts->host[i].name);
    cr_free(hosts->host);
    cr_free(hosts->host_of);
    cr_free(hosts->list);
    *hosts = (cr_hosts){0};
}

size_t cr_hosts_command(const cr_hosts *hosts, size_t i, char *words[CR_HOST_WORDS])
{
    static const char *const ssh[] = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"};
    static const char *const srun[] = {"srun", "--overlap", "--quiet", "--mpi=none",
                                       "-N1",  "-n1",       "-w"};
    bool is_ssh = hosts->by == CR_HOSTS_BY_SSH;
    size_t num = is_ssh ? CR_COUNT(ssh) : CR_COUNT(srun);

    if (hosts->host[i].is_here || hosts->by == CR_HOSTS_HERE) return 0;
    for (size_t k = 0; k < num; k++)
        words[k] = cr_word((is_ssh ? ssh : srun)[k]);
    words[num] = hosts->host[i].name;
    return num + 1;
}
