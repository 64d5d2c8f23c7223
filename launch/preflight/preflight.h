/* preflight.h -- the checks of all hosts before a run over hosts starts anything (docs/hosts.md, "Checks before a run").
 *
 * `croll run` and other commands over hosts always make them, `croll doctor --hosts` shows them: the same program and models, clocks, room,
 * the network that connects all hosts, and latency and rate of its links. An agent on each host answers (agent.h), and ends
 * with the checks. All waits have deadlines; a host that does not answer is a finding like others.
 *
 * One thread.
 */
#ifndef CR_PREFLIGHT_H
#define CR_PREFLIGHT_H

#include "launch/hosts.h"

/* What the run wants of a host that has ranks. All borrowed until cr_preflight_free. */
typedef struct cr_preflight_needs {
    const char *const *model; /* [num_models] MODEL folders */
    size_t num_models;
    const char *output_dir; /* NULL: not looked at */
    const char *network;    /* the user's choice, "10.0.0.0/16"; NULL: found out */
    int64_t num_files;      /* that a process may open, and bytes of room; 0: not known */
    int64_t shm_bytes, disk_bytes;
    bool has_gpus;    /* ranks compute on GPUs */
    bool is_gathered; /* a checkpoint is written on the launcher's host alone */
    bool is_brief;    /* a short command: no links, and no line that all is well */
} cr_preflight_needs;

typedef struct cr_preflight cr_preflight;

/* Make the checks. hosts is borrowed until cr_preflight_free; it gets the address and subnet of the network that was found, and the instruction set for all ranks. */
cr_preflight *cr_preflight_make(cr_hosts *hosts, const cr_preflight_needs *needs);
/* CR_ECONFIG: the errors that were found, by host, with what to do. CR_ESIGNAL: SIGINT, SIGTERM or SIGHUP came, which they catch. */
CR_MUST cr_status cr_preflight_check(const cr_preflight *p, cr_err *err);
void cr_preflight_free(cr_preflight *p); /* accepts NULL */
/* All of this for a command that goes on when all is well: make the checks, log what was found. *out is for cr_preflight_free in
 * any case; NULL, without any check, for a command on this host alone. */
CR_MUST cr_status cr_preflight_run(cr_hosts *hosts, const cr_preflight_needs *needs,
                                   cr_preflight **out, cr_err *err);

/* What was found, as lines: a table of the hosts; all in one line; errors and warnings; JSON objects, one for each host, one for
 * the network, one for each finding, one for the time that it took. */
void cr_preflight_table(const cr_preflight *p, cr_buf *out);
void cr_preflight_summary(const cr_preflight *p, cr_buf *out);
void cr_preflight_findings(const cr_preflight *p, cr_buf *out);
void cr_preflight_json(const cr_preflight *p, cr_buf *out);
/* Links and clocks for `croll plan` and people, as one JSON object:
 *
 *     {"hosts":["a","b"],"network":"10.0.0.0/24","clock_offset_s":[0,0.0031],
 *      "links":[{"from":"a","to":"b","bytes_per_s":1.2e+10,"latency_s":5e-05},..]} */
CR_MUST cr_status cr_preflight_write(const cr_preflight *p, const char *path, cr_err *err);

/* Of round trips k: the other clock minus this one, from the shortest (NTP's way): other[k] was read between sent[k] and
 * received[k]. *round_trip_s: how long that took; the offset is wrong by less than half of it. */
double cr_clock_offset(const double *sent, const double *other, const double *received, size_t num,
                       double *round_trip_s);

#endif
