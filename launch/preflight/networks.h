/* networks.h -- which networks could connect the hosts of a run, and which of those that do it uses.
 *
 * A network is one address a host and the CIDR prefix that has them: Open MPI and NCCL are given the prefix, Redis
 * the address of the launcher's host. Candidates are the prefixes that every host has an address in, and, where there are
 * none (hosts in routed subnets), the shortest prefix over the addresses that the hosts were named by. Pure functions; IPv4.
 */
#ifndef CR_NETWORKS_H
#define CR_NETWORKS_H

#include "launch/preflight/agent_lines.h"

typedef struct cr_network {
    char cidr[20], interface[16];      /* "10.77.0.0/24"; of the first host */
    char (*address)[CR_AGENT_ADDRESS]; /* [num hosts] owned */
    int64_t mbits;                     /* of its slowest interface; 0: one does not say */
    bool is_named;                     /* the first host was named by its address here */
    size_t num_failed;                 /* pairs that do not connect, which the caller counts */
    char fault[200];                   /* the first of them */
} cr_network;

/* What is known of each host: the addresses of its interfaces, the one that its name leads to ("": not known), and whether
 * it is left out (its agent does not answer). */
typedef struct cr_network_host {
    const char *name;                /* borrowed */
    const cr_agent_address *address; /* borrowed */
    size_t num;
    char named[CR_AGENT_ADDRESS];
    bool is_out;
} cr_network_host;

/* wanted: a prefix of the user's ("10.0.0.0/16"), or NULL. CR_ECONFIG: it is not a prefix, or a host has no address, or
 * several, in it. Without one *num may be 0. */
CR_MUST cr_status cr_networks_find(const cr_network_host *hosts, size_t num_hosts,
                                   const char *wanted, cr_network **out, size_t *num, cr_err *err);
/* The fastest that connects all; of equal ones, or where a speed is not known, that of the hosts' names. NULL: none does. */
const cr_network *cr_networks_choose(const cr_network *networks, size_t num);
void cr_networks_free(cr_network *networks, size_t num);

#endif
