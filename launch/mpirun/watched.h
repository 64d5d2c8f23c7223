/* watched.h -- a program whose stderr is read: mpirun and the ranks that it holds, or one process of ours.
 *
 * Its lines are shown, but for what Open MPI, PMIx and ssh write that says nothing to a user; what they say of a failure is
 * kept. Text is the last resort: a rank that can reports why by a record (launch/last_words.h). The struct stays where it was started
 * until it has ended. One thread (the launcher's).
 */
#ifndef CR_WATCHED_H
#define CR_WATCHED_H

#include "base/children.h"

typedef struct cr_watched {
    cr_child child;
    bool is_in_advice;  /* of mpirun, which goes on over many lines */
    int dead_rank;      /* rank that mpirun named as the first to be killed, -1: none */
    char dead_host[64]; /* where it was */
    char lost_host[64]; /* that mpirun has no connection to any more, "": none */
    double failed_s;    /* when mpirun said that a rank has failed, 0: it has not */
    /* what it wrote: the last line of a program of ours, what a line of MPI means, MPI's last paragraph */
    char own[400], paragraph[400];
    const char *meaning; /* static text */
} cr_watched;

/* As cr_child_start. Ended by cr_child_stop. */
CR_MUST cr_status cr_watched_start(cr_watched *w, const char *what, char *const argv[],
                                   cr_err *err);
/* As cr_child_pump; false also for an mpirun that goes on although a rank is known to have failed. */
bool cr_watched_pump(cr_watched *w);
/* Why it failed, from what it wrote, best knowledge first; "" when it said nothing. Borrowed. */
const char *cr_watched_reason(const cr_watched *w);

#endif
