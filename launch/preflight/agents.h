/* agents.h -- the launcher's side of a pre-flight: one `croll agent` a host, asked all at once.
 *
 * Every question has a deadline. An agent that fails, or does not answer in time, is out: `fault` says why, with what was
 * tried and the last line of ssh or srun. One thread.
 */
#ifndef CR_AGENTS_H
#define CR_AGENTS_H

#include "launch/hosts.h"

#include <signal.h>
#include <sys/types.h>

typedef struct cr_agent {
    const char *name; /* of its host, borrowed */
    char *command;    /* owned: the words that started it */
    pid_t pid;        /* 0: none */
    int in_fd, out_fd, err_fd;
    cr_buf line;             /* what has come of its answer */
    cr_buf said;             /* on its stderr: the last line is kept */
    bool is_asked, is_out;   /* an answer is awaited; no more questions */
    char fault[400];         /* why it is out */
    double asked_s, heard_s; /* when the question was written, when its answer was whole */
} cr_agent;

/* self: the path of croll, here and there. hosts may be NULL, or i beyond them: an agent of this host. */
void cr_agent_start(cr_agent *agent, const char *name, const cr_hosts *hosts, size_t i,
                    const char *self);
/* question[i] (empty: none) to agent i, which is out after `seconds` without an answer; then agent[i].line has the answer,
 * or nothing. The questions are cleared. *stop other than 0: no agent is waited for any more. */
void cr_agents_ask(cr_agent *agents, size_t num, cr_buf *question, double seconds,
                   const volatile sig_atomic_t *stop);
void cr_agent_drop(cr_agent *agent, const char *why); /* it is out */
/* They end with their stdin; what has not ended after a second is killed. */
void cr_agents_stop(cr_agent *agents, size_t num);

#endif
