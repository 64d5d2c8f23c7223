/* agent.h -- one host of a pre-flight (`croll agent`, started there by ssh or srun): answers the launcher's lines.
 *
 * It reports what the host has, listens on a port of its own while it lives, and connects to the agents of other hosts: that
 * is the test of networks and of links. A connection begins with the token that all agents of one pre-flight were given
 * by their stdin; without it nothing is answered. It writes no file, and ends with its stdin, or when no line has
 * come for 60 s.
 */
#ifndef CR_AGENT_H
#define CR_AGENT_H

#include "base/base.h"

/* Until the end of `in`. */
CR_MUST cr_status cr_agent_serve(int in, int out, cr_err *err);

#endif
