/* agent.h -- one host of a pre-flight (`croll agent`, started there by ssh or srun): answers the launcher's lines.
 *
 * It tells what the host has, listens on a port of its own while it lives, and connects to the agents of other hosts: that
 * is the test of networks and of links. A connection begins with the token that all agents of one pre-flight were given
 * by their stdin; without it nothing is answered. It writes no file, and ends with its stdin, or when no line has
 * come for 60 s.
 */
#ifndef CR_AGENT_H
#define CR_AGENT_H

#include "launch/preflight/agent_lines.h"

/* Until the end of `in`. host: what the caller knows of this host: of the fields those of GPUs, cores and cpus. */
CR_MUST cr_status cr_agent_serve(int in, int out, const cr_agent_look *host, cr_err *err);

#endif
