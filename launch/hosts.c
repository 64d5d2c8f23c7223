/* hosts.c -- see hosts.h. */
#include "launch/hosts.h"
#include "base/children.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_RANKS = 4096, MAX_NAME = 256, DISCARD_PORT = 9 };

static cr_status check_unused(cr_err *err)
{
    static const char *const files[] = {"PBS_NODEFILE", "OMPI_MCA_orte_default_hostfile",
                                        "OMPI_MCA_rmaps_base_hostfile"};
    const char *nodes = getenv("SLURM_JOB_NUM_NODES");

    if (nodes && atoi(nodes) > 1)
        return cr_fail(err, CR_ECONFIG,
                       "SLURM_JOB_NUM_NODES is %.20s, but the run would use this host alone: say "
                       "which hosts (--hosts a:8,b:8), or unset it",
                       nodes);
    for (size_t i = 0; i < CR_COUNT(files); i++)
        if (getenv(files[i]))
            return cr_fail(err, CR_ECONFIG,
                           "%s names a list of hosts, but the run would use this host alone: say "
                           "which hosts (--hosts a:8,b:8), or unset it",
                           files[i]);
    return CR_OK;
}

/* The address of this host that packets to `name` have; is_here: it is this host. No packet is sent. */
static cr_status find_way(const char *name, struct in_addr *from, bool *is_here, cr_err *err)
{
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    struct sockaddr_in to, own = {0};
    socklen_t size = sizeof own;
    int code = getaddrinfo(name, NULL, &wanted, &found), fd;

    if (code != 0)
        return cr_fail(err, CR_ECONFIG, "--hosts: %s: %s (an IPv4 address or name is needed)", name,
                       gai_strerror(code));
    memcpy(&to, found->ai_addr, sizeof to);
    freeaddrinfo(found);
    to.sin_port = htons(DISCARD_PORT);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &size) != 0)
        cr_fail(err, CR_ECONFIG, "--hosts: no network of this host leads to %s (%s)", name,
                inet_ntoa(to.sin_addr));
    if (fd >= 0) close(fd);
    *from = own.sin_addr;
    *is_here = own.sin_addr.s_addr == to.sin_addr.s_addr ||
               ntohl(to.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return err->status;
}

static cr_status name_network(struct in_addr own, cr_hosts *out, cr_err *err)
{
    struct ifaddrs *all = NULL;
    uint32_t mask = 0;

    if (getifaddrs(&all) == 0)
        for (struct ifaddrs *i = all; i; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_netmask && i->ifa_addr->sa_family == AF_INET &&
                ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr == own.s_addr)
                mask = ((struct sockaddr_in *)(void *)i->ifa_netmask)->sin_addr.s_addr;
    freeifaddrs(all);
    snprintf(out->address, sizeof out->address, "%s", inet_ntoa(own));
    if (!mask)
        return cr_fail(err, CR_ECONFIG, "--hosts: no interface of this host has the address %s",
                       out->address);
    own.s_addr &= mask;
    snprintf(out->subnet, sizeof out->subnet, "%.15s/%d", inet_ntoa(own), __builtin_popcount(mask));
    return CR_OK;
}

/* ---- lists ---- */

/* A host that is named again has room for more. */
static void add_host(cr_hosts *hosts, const char *name, size_t name_bytes, int num_ranks)
{
    cr_host *host = NULL;

    for (size_t i = 0; i < hosts->num && !host; i++)
        if (strlen(hosts->host[i].name) == name_bytes &&
            memcmp(hosts->host[i].name, name, name_bytes) == 0)
            host = &hosts->host[i];
    if (!host) {
        hosts->host =
            cr_realloc(hosts->host, hosts->num * sizeof *host, (hosts->num + 1) * sizeof *host);
        host = &hosts->host[hosts->num++];
        *host = (cr_host){.name = cr_strndup(name, name_bytes)};
    }
    host->num_ranks += num_ranks;
}

/* "NAME[:RANKS]" */
static cr_status read_item(const char *item, size_t num_bytes, cr_hosts *out, cr_err *err)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
    size_t name_bytes = strspn(item, letters), at = name_bytes + 1;
    int num_ranks = name_bytes == num_bytes ? 1 : 0;

    if (name_bytes < num_bytes && item[name_bytes] == ':')
        for (; at < num_bytes && item[at] >= '0' && item[at] <= '9' && num_ranks <= MAX_RANKS; at++)
            num_ranks = 10 * num_ranks + (item[at] - '0');
    if (name_bytes == 0 || name_bytes >= MAX_NAME || item[0] == '-' || at < num_bytes ||
        num_ranks < 1 || num_ranks > MAX_RANKS)
        return cr_fail(err, CR_EUSAGE,
                       "--hosts: '%.*s' is not NAME or NAME:RANKS with 1 to %d ranks "
                       "(--hosts a:8,b:8)",
                       num_bytes < 80 ? (int)num_bytes : 80, item, MAX_RANKS);
    add_host(out, item, name_bytes, num_ranks);
    return CR_OK;
}

cr_status cr_hosts_read(const char *list, cr_hosts *out, cr_err *err)
{
    const char *item = list;

    *out = (cr_hosts){.by = CR_HOSTS_BY_SSH};
    for (;; item++) {
        size_t num_bytes = strcspn(item, ",");
        if (read_item(item, num_bytes, out, err) != CR_OK) break;
        item += num_bytes;
        if (!*item) return CR_OK;
    }
    cr_hosts_free(out);
    return err->status;
}

/* Which of them is this one, and the one network that leads to the others. */
static cr_status find_network(cr_hosts *hosts, cr_err *err)
{
    struct in_addr own = {htonl(INADDR_LOOPBACK)};
    const char *first = NULL;

    for (size_t i = 0; i < hosts->num; i++) {
        cr_host *host = &hosts->host[i];
        struct in_addr from = {0};
        CR_TRY(find_way(host->name, &from, &host->is_here, err));
        if (host->is_here) continue;
        if (first && from.s_addr != own.s_addr)
            return cr_fail(err, CR_ECONFIG,
                           "--hosts: %s and %s are in different networks: give all hosts by their "
                           "addresses in one",
                           first, host->name);
        if (!first) first = host->name;
        own = from;
    }
    return name_network(own, hosts, err);
}

static void write_list(cr_hosts *hosts)
{
    cr_buf text = {0};

    for (size_t i = 0; i < hosts->num; i++)
        cr_buf_addf(&text, "%s%s:%d", i ? "," : "", hosts->host[i].name, hosts->host[i].num_ranks);
    hosts->list = cr_strndup(text.data, text.num_bytes);
    cr_buf_free(&text);
}

cr_status cr_hosts_open(const char *list, int num_ranks, cr_hosts *out, cr_err *err)
{
    int64_t room = 0;

    *out = (cr_hosts){0};
    if (!list) {
        CR_TRY(check_unused(err));
        add_host(out, cr_host_name(), strlen(cr_host_name()), num_ranks);
        out->host[0].is_here = true;
        return CR_OK;
    }
    CR_TRY(cr_hosts_read(list, out, err));
    for (size_t i = 0; i < out->num; i++)
        room += out->host[i].num_ranks;
    if (room < num_ranks)
        cr_fail(err, CR_ECONFIG,
                "--hosts has room for %lld ranks, the device_mapping of all roles asks for %d",
                (long long)room, num_ranks);
    else
        cr_note(find_network(out, err));
    if (err->status == CR_OK)
        write_list(out);
    else
        cr_hosts_free(out);
    return err->status;
}

void cr_hosts_free(cr_hosts *hosts)
{
    for (size_t i = 0; i < hosts->num; i++)
        cr_free(hosts->host[i].name);
    cr_free(hosts->host);
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
