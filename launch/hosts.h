/* hosts.h -- the hosts that a command runs on (`--hosts a:8,b:8`), and the network that connects them.
 *
 * Open MPI starts the ranks there by ssh. It, and the run's own Redis, use the one network that reaches all of them from
 * here: with several of them Open MPI may try one that does not connect, and wait.
 * Only IPv4. One thread; names are looked up within the limits of the resolver.
 */
#ifndef CR_HOSTS_H
#define CR_HOSTS_H

#include "base/base.h"

typedef enum cr_hosts_by {
    CR_HOSTS_HERE, /* this host alone */
    CR_HOSTS_BY_SSH,
    CR_HOSTS_BY_SLURM
} cr_hosts_by;

typedef struct cr_host {
    char *name;    /* owned */
    int num_ranks; /* room for that many */
    bool is_here;  /* the launcher's */
} cr_host;

typedef struct cr_hosts {
    cr_host *host; /* owned; CR_HOSTS_HERE: one */
    size_t num;
    cr_hosts_by by;
    char *list;       /* owned: "a:2,b:2", as mpirun takes it; NULL: this host alone */
    char address[16]; /* of this host in the network that connects them; "": this host alone */
    char subnet[20];  /* "10.77.0.0/24" */
} cr_hosts;

/* list: "NAME[:RANKS],.."; NULL: this host alone, which is CR_ECONFIG where a scheduler or a variable of Open MPI lists
 * several that the run would not use. */
CR_MUST cr_status cr_hosts_open(const char *list, int num_ranks, cr_hosts *out, cr_err *err);
void cr_hosts_free(cr_hosts *hosts); /* {0} is fine */

/* The names and rooms of a list alone; nothing is looked up. CR_EUSAGE: it is none. */
CR_MUST cr_status cr_hosts_read(const char *list, cr_hosts *out, cr_err *err);

/* Words that start a command on host i, with stdin, stdout and stderr of whoever starts it; the command's own words
 * follow. None for the launcher's host. ssh hands what follows to a shell: words with other than letters, digits
 * and -_./:=,@%+ must be quoted for it where `by` is CR_HOSTS_BY_SSH. Borrowed from hosts. Returns how many. */
enum { CR_HOST_WORDS = 12 };
#define CR_HOSTS_SSH \
    "ssh -o BatchMode=yes -o ConnectTimeout=5" /* of mpirun, too: it asks for no password */
size_t cr_hosts_command(const cr_hosts *hosts, size_t i, char *words[CR_HOST_WORDS]);

#endif
