/* watched.c -- see watched.h. mpirun's own banners are read for the facts they hold (which rank died first, which host is
 * lost) and kept out of the terminal. */
#include "launch/mpirun/watched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILED_SECONDS = 5 }; /* mpirun ends the other ranks in less */

/* mpirun itself may crash while it is being ended ("[host:pid] *** Process received signal ***"). */
static bool is_own_crash(const cr_watched *w, const char *line)
{
    const char *colon = line[0] == '[' ? strchr(line, ':') : NULL;

    return colon && atol(colon + 1) == (long)w->child.pid;
}

/* Lines of Open MPI and PMIx that name a cause, and what it means to a user. */
static const struct {
    const char *text, *meaning;
} causes[] = {
    {"unable to find network interfaces",
     "Open MPI finds no network interface: the loopback has to be up (ip link set lo up)"},
    {"Unable to start listen thread",
     "Open MPI cannot start a thread: memory or processes are limited (ulimit -v, ulimit -u)"},
    {"OUT-OF-RESOURCE",
     "Open MPI has no room for its files in shared memory (df /dev/shm; docker: --shm-size; "
     "ulimit -f; ulimit -n)"},
    {"connect() to ",
     "ranks of two hosts cannot connect by TCP: a port is closed between them, or the network is "
     "bad (croll doctor --hosts)"},
};

static bool begins_with(const char *line, const char *const *start, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (strncmp(line, start[i], strlen(start[i])) == 0) return true;
    return false;
}

/* Advice of Open MPI over many lines, up to the next ruler. */
static bool begins_advice(const char *line)
{
    static const char *const start[] = {"mpirun has exited due to",
                                        "ORTE has lost communication",
                                        "PRTE has lost communication",
                                        "ORTE was unable to reliably start",
                                        "An ORTE daemon has unexpectedly failed",
                                        "ORTE is unable to establish",
                                        "WARNING: Open MPI",
                                        "An MPI communication peer process"};

    return begins_with(line, start, CR_COUNT(start));
}

/* mpirun's own talk, which says nothing to our users beyond the rank that died. */
static bool is_banner(const char *line)
{
    static const char *const start[] = {"(null): Forwarding signal",
                                        "------",
                                        "mpirun",
                                        "Primary job",
                                        "a non-zero",
                                        "prterun",
                                        "by the application",
                                        "exiting improperly",
                                        "[warn]",
                                        "Child job",
                                        "Per user-direction",
                                        "MPI_ABORT was invoked",
                                        "with errorcode",
                                        "NOTE: invoking MPI_ABORT",
                                        "You may or may not",
                                        "exactly when Open MPI",
                                        "The first process to do so",
                                        "  Process name",
                                        "  Exit code",
                                        "to exit before",
                                        "* ",
                                        "While processing",
                                        "the job to be terminated"};

    return begins_with(line, start, CR_COUNT(start)) || strstr(line, " closed by remote host") ||
           (line[0] == '[' && strstr(line, "btl_tcp_")) || strstr(line, "ORTE_ERROR_LOG");
}

/* "croll run: ..", "actor_train rank 1: ..": what our own programs say. */
static bool is_own(const char *line)
{
    const char *colon = strstr(line, ": "), *rank = strstr(line, " rank ");

    return strncmp(line, "croll ", 6) == 0 ||
           (colon && rank && rank < colon && !strchr(" [", line[0]));
}

/* The failure that the line reports. */
static void learn(cr_watched *w, const char *line, bool is_noise)
{
    const char *rank = strstr(line, "process rank "), *host = strstr(line, " on node ");
    bool is_death = rank && strstr(line, "exited on signal");
    size_t used = strlen(w->paragraph);

    if (w->is_in_advice && strncmp(line, "  Remote daemon: ", 17) == 0 && host)
        sscanf(host, " on node %63s", w->lost_host);
    else if (strstr(line, " closed by remote host") && !w->lost_host[0]) /* by ssh */
        sscanf(line, "Connection to %63s", w->lost_host);
    if (is_death && w->dead_rank < 0) {
        w->dead_rank = atoi(rank + 13);
        if (host) sscanf(host, " on node %63s", w->dead_host);
    }
    if (is_death || strstr(line, "processes exited with non-zero status") ||
        strstr(line, "abort before MPI_INIT completed") || /* the others may wait in it forever */
        w->lost_host[0] || strncmp(line, "mpirun has exited due to", 24) == 0)
        w->failed_s = w->failed_s ? w->failed_s : cr_now_s();
    for (size_t i = 0; i < CR_COUNT(causes) && !w->meaning; i++)
        if (strstr(line, causes[i].text)) w->meaning = causes[i].meaning;
    if (is_own(line))
        snprintf(w->own, sizeof w->own, "%.*s", (int)sizeof w->own - 1, line);
    else if (!is_noise && line[0] != '[')
        snprintf(w->paragraph + used, sizeof w->paragraph - used, "%s%s", used ? " " : "", line);
}

/* The ruler around mpirun's talk, which may come before the end of a rank's line has. */
static void cut_ruler(char *line)
{
    static const char ruler[] = "----------------------------------------------------------------";
    char *at = strstr(line, ruler);

    if (at && at > line) *at = 0;
}

/* Does another rank say what the last one has said, word for word? */
static bool is_said(const cr_watched *w, const char *line)
{
    const char *said = strstr(w->own, ": "), *says = strstr(line, ": ");

    return is_own(line) && strstr(line, " rank ") && said && says && strcmp(said, says) == 0;
}

static bool take_line(void *ctx, char *line)
{
    cr_watched *w = ctx;
    bool was_in_advice = w->is_in_advice, is_noise, is_repeated;

    cut_ruler(line);
    if (begins_advice(line)) w->is_in_advice = true;
    if (strncmp(line, "------", 6) == 0) w->is_in_advice = false;
    is_noise = ((was_in_advice || w->is_in_advice) && !is_own(line)) || line[0] == 0 ||
               is_own_crash(w, line) || is_banner(line);
    is_repeated = is_said(w, line);
    learn(w, line, is_noise);
    return !is_noise && !is_repeated;
}

cr_status cr_watched_start(cr_watched *w, const char *what, char *const argv[], cr_err *err)
{
    *w = (cr_watched){.dead_rank = -1};
    return cr_child_start(&w->child, what, argv, take_line, w, err);
}

bool cr_watched_pump(cr_watched *w)
{
    return cr_child_pump(&w->child) && !(w->failed_s && cr_now_s() - w->failed_s > FAILED_SECONDS);
}

const char *cr_watched_reason(const cr_watched *w)
{
    if (w->own[0]) return w->own;
    return w->meaning ? w->meaning : w->paragraph;
}
