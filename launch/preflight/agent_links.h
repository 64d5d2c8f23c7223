/* agent_links.h -- TCP between the agents of a pre-flight: which addresses connect, and how fast a link is.
 *
 * Who connects sends the token and what it wants, 'c' or 'm'; who listens answers with its node number (4 bytes, big-endian).
 * 'c': that was all. 'm': 8 bytes are sent back until they begin with 'g', then bytes follow until the connection is closed.
 *
 * Threads: the listener has its own, and one more for each connection.
 */
#ifndef CR_AGENT_LINKS_H
#define CR_AGENT_LINKS_H

#include "launch/preflight/agent_lines.h"

typedef struct cr_agent_self {
    int node;
    char token[CR_AGENT_TOKEN + 1];
} cr_agent_self;

/* Listen on all addresses for as long as this process lives; self is copied. */
CR_MUST cr_status cr_agent_listen(const cr_agent_self *self, int *port, cr_err *err);
/* Connect to all of them at once. tries[num]: "", or why not; owned. Ends after `seconds`, or soon after each node has
 * been reached at one of its addresses. */
void cr_agent_connect(const cr_agent_self *self, const cr_agent_peer *to, size_t num,
                      double seconds, char **tries);
/* Latency (half of the shortest of 20 round trips, of fewer where they take long) and the bytes a second that come from there
 * in one connection, over that time, or up to six times as long where a round trip is long. */
CR_MUST cr_status cr_agent_measure(const cr_agent_self *self, const cr_agent_peer *from,
                                   double seconds, cr_agent_rate *out, cr_err *err);

#endif
