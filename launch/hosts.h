/* hosts.h -- the hosts that a command runs on, and the network that connects them.
 *
 *     --hosts a:8,b:8     reached by ssh
 *     --hostfile FILE     likewise: "NAME slots=8" or "NAME:8" a line, as Open MPI has it
 *     neither             all hosts of the Slurm allocation that the command is in, reached by srun; else this host alone
 *
 * The number of a host is how many ranks (processes) it takes. Open MPI starts them, by ssh or by Slurm. It, and the run's
 * own Redis, use one network that connects all hosts: with several of them Open MPI may try one that does not connect, and
 * wait. A pre-flight finds it (preflight/preflight.h). Only IPv4. One thread; names are looked up within the limits of the
 * resolver.
 */
#ifndef CR_HOSTS_H
#define CR_HOSTS_H

#include "base/base.h"

typedef struct cr_hosts_args {
    const char *list, *file; /* of --hosts and --hostfile, or NULL */
} cr_hosts_args;

typedef enum cr_hosts_by {
    CR_HOSTS_HERE, /* this host alone */
    CR_HOSTS_BY_SSH,
    CR_HOSTS_BY_SLURM
} cr_hosts_by;

typedef struct cr_host {
    char *name;       /* owned */
    char address[16]; /* that the name leads to; "": not looked up */
    int num_ranks;    /* room for that many */
    bool is_here;     /* the launcher's */
} cr_host;

typedef struct cr_hosts {
    cr_host *host; /* owned; CR_HOSTS_HERE: one */
    size_t num;
    cr_hosts_by by;
    int *
        host_of; /* owned [num_ranks]: which of them each rank is on; filled in their order, or as cr_hosts_place says */
    int num_ranks;
    char *list;       /* owned: "a,a,b,b", the host of each rank; NULL: this host alone */
    char address[16]; /* of this host in the network that connects them; "": none is known */
    char subnet[20];  /* "10.77.0.0/24" */
    char cpu[32];     /* the instruction set that all ranks use; "": each host its best */
} cr_hosts;

/* CR_ECONFIG: they have no room for num_ranks, or an allocation or a list of hosts in the environment would not be used. */
CR_MUST cr_status cr_hosts_open(const cr_hosts_args *args, int num_ranks, cr_hosts *out,
                                cr_err *err);
/* The same without a look at them: which hosts, and nothing is looked up. A given list need not be of the allocation. */
CR_MUST cr_status cr_hosts_choose(const cr_hosts_args *args, int num_ranks, cr_hosts *out,
                                  cr_err *err);
void cr_hosts_free(cr_hosts *hosts); /* {0} is fine */
/* Put rank i on host host_of[i]; copied. */
void cr_hosts_place(cr_hosts *hosts, const int *host_of, int num_ranks);

/* Words that start a command on host i, with stdin, stdout and stderr of whoever starts it; the command's own words
 * follow. None for the launcher's host. ssh hands what follows to a shell: words with other than letters, digits
 * and -_./:=,@%+ must be quoted for it where `by` is CR_HOSTS_BY_SSH. Borrowed from hosts. Returns how many. */
enum { CR_HOST_WORDS = 12 };
#define CR_HOSTS_SSH \
    "ssh -o BatchMode=yes -o ConnectTimeout=5" /* of mpirun, too: it asks for no password */
size_t cr_hosts_command(const cr_hosts *hosts, size_t i, char *words[CR_HOST_WORDS]);

/* ---- texts that name hosts, from outside; names and rooms alone, nothing is looked up (hosts_read.c) ----
 * A host that is named again has room for more. CR_EUSAGE, CR_ECONFIG: what is wrong, with the line. */
enum { CR_MAX_HOSTS = 4096, CR_MAX_HOST_RANKS = 4096 };
CR_MUST cr_status cr_hosts_read(const char *list, cr_hosts *out, cr_err *err);
/* what: the file, for messages */
CR_MUST cr_status cr_hosts_read_file(const cr_buf *text, const char *what, cr_hosts *out,
                                     cr_err *err);
/* names: a line each (`scontrol show hostnames`); tasks: "8(x2),4" (SLURM_TASKS_PER_NODE) */
CR_MUST cr_status cr_hosts_read_slurm(const cr_buf *names, const char *tasks, cr_hosts *out,
                                      cr_err *err);

#endif
