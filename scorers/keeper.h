/* keeper.h -- a process between a scoring program and the process that asks it: it ends whatever the program has started.
 *
 * What a program starts may leave its process group and its session (a daemon: two forks and setsid). The keeper is its subreaper
 * (PR_SET_CHILD_SUBREAPER): orphans among the program's descendants become the keeper's children. When the program has ended, when the
 * keeper gets SIGTERM, and when the process that started it has died, it kills the program and its descendants, and ends as
 * the program did. Not covered: a keeper that is killed itself (kill -9), which takes the program with it and leaves its daemons.
 */
#ifndef CR_KEEPER_H
#define CR_KEEPER_H

#include "base/base.h"

#include <sys/types.h>

/* In a child of `parent`, with one thread and signals as the program shall have them. Returns true in the program's process, its own
 * process group, which dies with the keeper, and false in the keeper if the program could not be forked (errno says why). */
bool cr_keep(pid_t parent);

#endif
