/* hosts.c -- see hosts.h. */
#include "launch/hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_RANKS = 4096, DISCARD_PORT = 9 };

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

/* "NAME[:RANKS]"; item is cut. */
static cr_status read_item(char *item, int *num, cr_err *err)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
    char *colon = strchr(item, ':'), *end = item;
    long ranks = colon ? strtol(colon + 1, &end, 10) : 1;

    if (colon) *colon = 0;
    if (!item[0] || item[0] == '-' || item[strspn(item, letters)] ||
        (colon && (end == colon + 1 || *end)) || ranks < 1 || ranks > MAX_RANKS)
        return cr_fail(err, CR_EUSAGE,
                       "--hosts: '%.80s' is not NAME or NAME:RANKS with 1 to %d ranks "
                       "(--hosts a:8,b:8)",
                       item, MAX_RANKS);
    *num = (int)ranks;
    return CR_OK;
}

/* All hosts of the list: how many ranks they take, and the one network that leads to the others. */
static cr_status read_list(const char *list, int *num_ranks, struct in_addr *own, cr_err *err)
{
    char *copy = cr_strdup(list), *rest = copy, *item, first[80] = "";

    *num_ranks = 0;
    own->s_addr = htonl(INADDR_LOOPBACK);
    while (err->status == CR_OK && (item = strsep(&rest, ","))) {
        struct in_addr from = {0};
        bool is_here = false;
        int num = 0;
        if (read_item(item, &num, err) != CR_OK || find_way(item, &from, &is_here, err) != CR_OK)
            break;
        *num_ranks += num;
        if (is_here) continue;
        if (first[0] && from.s_addr != own->s_addr)
            cr_fail(err, CR_ECONFIG,
                    "--hosts: %s and %s are in different networks: give all hosts by their "
                    "addresses in one",
                    first, item);
        if (!first[0]) snprintf(first, sizeof first, "%s", item);
        *own = from;
    }
    cr_free(copy);
    return err->status;
}

cr_status cr_hosts_open(const char *list, int num_ranks, cr_hosts *out, cr_err *err)
{
    struct in_addr own;
    int room = 0;

    *out = (cr_hosts){0};
    if (!list) return check_unused(err);
    CR_TRY(read_list(list, &room, &own, err));
    if (room < num_ranks)
        return cr_fail(err, CR_ECONFIG,
                       "--hosts has room for %d ranks, the device_mapping of all roles asks for %d",
                       room, num_ranks);
    CR_TRY(name_network(own, out, err));
    out->list = cr_strdup(list);
    return CR_OK;
}

void cr_hosts_free(cr_hosts *hosts)
{
    cr_free(hosts->list);
    *hosts = (cr_hosts){0};
}
