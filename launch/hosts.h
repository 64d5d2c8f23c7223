/* hosts.h -- the hosts that a run was given (`croll run --hosts a:2,b:2`), and the network that connects them.
 *
 * Open MPI starts the ranks there by ssh. It, and the run's own Redis, use the one network that reaches all of them from
 * here: with several of them Open MPI may try one that does not connect, and wait.
 * Only IPv4. One thread; names are looked up within the limits of the resolver.
 */
#ifndef CR_HOSTS_H
#define CR_HOSTS_H

#include "base/base.h"

typedef struct cr_hosts {
    char *list;       /* owned: "a:2,b:2", as mpirun takes it; NULL: this host alone */
    char address[16]; /* of this host in that network */
    char subnet[20];  /* "10.77.0.0/24" */
} cr_hosts;

/* list: "NAME[:RANKS],.."; NULL: this host alone, which is CR_ECONFIG where a scheduler or a variable of Open MPI lists
 * several that the run would not use. */
CR_MUST cr_status cr_hosts_open(const char *list, int num_ranks, cr_hosts *out, cr_err *err);
void cr_hosts_free(cr_hosts *hosts); /* {0} is fine */

#endif
