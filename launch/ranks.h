/* ranks.h -- a command on several ranks: it starts itself again under mpirun.
 *
 * The process that a person started only launches and waits. mpirun's own forwarding of stdin and
 * stdout is not used: rank 0 gets the launcher's two descriptors over a local socket, so pipes and
 * their ends behave as without ranks, and its exit code or its last words go back the same way. Whatever kills the
 * launcher kills mpirun and the ranks.
 *
 *     launcher   cr_ranks_run          start, show what ranks say on stderr, wait
 *     rank       cr_ranks_join         before anything else; then open the world
 *                cr_ranks_leave        before the process ends
 */
#ifndef CR_RANKS_H
#define CR_RANKS_H

#include "launch/hosts.h"
#include "launch/mpirun/mpi_folder.h"

/* Words of an mpirun that starts fast and keeps its files in `folder`; the caller appends the program. Borrowed from
 * here, the folder, the hosts and the literals of the program. has_last_words: when one rank has failed, the others have a
 * second after SIGTERM before they are killed; else none. */
enum { CR_MPIRUN_WORDS = 128 };
typedef struct cr_mpirun {
    char *word[CR_MPIRUN_WORDS], num_ranks[16];
    size_t num;
} cr_mpirun;
void cr_mpirun_init(cr_mpirun *m, int num_ranks, bool has_last_words, const cr_mpi_folder *folder,
                    const cr_hosts *hosts);
/* option may be NULL; without a value nothing is added. Both are borrowed. */
void cr_mpirun_add(cr_mpirun *m, const char *option, const char *value);

/* Run `croll argv[0] argv[1] ..` on num_ranks ranks, rank 0 on this host. model: the folder that every host has to have (after a
 * check of all hosts, launch/preflight). *code: its exit code. SIGINT, SIGTERM and SIGHUP end it (CR_ESIGNAL),
 * or, with tells_signals, go to rank 0, which ends all in its own time, or at the second one. */
CR_MUST cr_status cr_ranks_run(const cr_hosts_args *where, const char *model, int num_ranks,
                               bool tells_signals, int argc, char **argv, int *code, cr_err *err);
/* On a rank: end with mpirun, and take over stdin and stdout if this is rank 0 of a launcher. */
CR_MUST cr_status cr_ranks_join(cr_err *err);
/* On a rank: report to the launcher how the command ended, with code or with a failure, which cr_ranks_run then returns. True: this is
 * rank 0 of a launcher, and it was reported, so that the code to end with is 0; after a failure it ends the other ranks. */
bool cr_ranks_leave(int code, const cr_err *failure);

#endif
