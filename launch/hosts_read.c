/* hosts_read.c -- texts that name hosts: see the end of hosts.h. */
#include "launch/hosts.h"

#include <string.h>

enum { MAX_NAME = 256, SHOWN = 80 };

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_",
                  digits[] = "0123456789", blanks[] = " \t\r";

/* A part of a text that is not terminated. */
typedef struct part {
    const char *at, *end;
} part;

static size_t span(const part *p, const char *of)
{
    const char *at = p->at;

    while (at < p->end && *at && strchr(of, *at))
        at++;
    return (size_t)(at - p->at);
}

static bool skip(part *p, const char *text)
{
    size_t num = strlen(text);

    if ((size_t)(p->end - p->at) < num || memcmp(p->at, text, num) != 0) return false;
    p->at += num;
    return true;
}

/* A number from 1 to max, or 0. */
static int take_number(part *p, int max)
{
    size_t num = span(p, digits);
    int value = 0;

    for (size_t i = 0; i < num && value <= max; i++)
        value = 10 * value + (p->at[i] - '0');
    p->at += num;
    return value <= max ? value : 0;
}

/* False: there are too many, or it has too many ranks. */
static bool add_host(cr_hosts *hosts, part name, int num_ranks)
{
    size_t num_bytes = (size_t)(name.end - name.at);
    cr_host *host = NULL;

    for (size_t i = hosts->num; i-- > 0 && !host;) /* most often the last one */
        if (strlen(hosts->host[i].name) == num_bytes &&
            memcmp(hosts->host[i].name, name.at, num_bytes) == 0)
            host = &hosts->host[i];
    if (!host && hosts->num < CR_MAX_HOSTS) {
        hosts->host =
            cr_realloc(hosts->host, hosts->num * sizeof *host, (hosts->num + 1) * sizeof *host);
        host = &hosts->host[hosts->num++];
        *host = (cr_host){.name = cr_strndup(name.at, num_bytes)};
    }
    if (!host || host->num_ranks + num_ranks > CR_MAX_HOST_RANKS) return false;
    host->num_ranks += num_ranks;
    return true;
}

static bool take_name(part *p, part *name)
{
    size_t num = span(p, letters);

    *name = (part){p->at, p->at + num};
    p->at += num;
    return num > 0 && num < MAX_NAME && name->at[0] != '-';
}

/* "slots=8" or "slots = 8"; 0: it is none */
static int take_pair(part *p, const char *key)
{
    if (!skip(p, key)) return 0;
    p->at += span(p, blanks);
    if (!skip(p, "=")) return 0;
    p->at += span(p, blanks);
    return take_number(p, CR_MAX_HOST_RANKS);
}

/* "NAME", "NAME:8", and in a file "NAME slots=8", also with the "max_slots=16" of Open MPI, which a run never needs */
static bool read_host(part p, bool is_file, cr_hosts *out)
{
    part name;
    int num_ranks = 1;

    if (!take_name(&p, &name)) return false;
    if (skip(&p, ":")) {
        num_ranks = take_number(&p, CR_MAX_HOST_RANKS);
    } else if (is_file && p.at < p.end) {
        p.at += span(&p, blanks);
        num_ranks = take_pair(&p, "slots");
        p.at += span(&p, blanks);
        if (p.at < p.end && take_pair(&p, "max_slots") < num_ranks &&
            take_pair(&p, "max-slots") < num_ranks)
            return false;
    }
    return p.at == p.end && num_ranks > 0 && add_host(out, name, num_ranks);
}

static int shown(const part *p)
{
    return p->end - p->at < SHOWN ? (int)(p->end - p->at) : SHOWN;
}

cr_status cr_hosts_read(const char *list, cr_hosts *out, cr_err *err)
{
    part p = {list, list};

    *out = (cr_hosts){.by = CR_HOSTS_BY_SSH};
    for (;; p.at = p.end + 1) {
        p.end = p.at + strcspn(p.at, ",");
        if (!read_host(p, false, out)) break;
        if (!*p.end) return CR_OK;
    }
    cr_hosts_free(out);
    return cr_fail(err, CR_EUSAGE,
                   "--hosts: '%.*s' is not NAME or NAME:RANKS with 1 to %d ranks (--hosts a:8,b:8)",
                   shown(&p), p.at, CR_MAX_HOST_RANKS);
}

cr_status cr_hosts_read_file(const cr_buf *text, const char *what, cr_hosts *out, cr_err *err)
{
    size_t at = 0, num_bytes;
    long long number = 0;

    *out = (cr_hosts){.by = CR_HOSTS_BY_SSH};
    for (const char *line; (line = cr_line_next(text, &at, &num_bytes));) {
        const char *comment = memchr(line, '#', num_bytes);
        part p = {line, comment ? comment : line + num_bytes};
        if (number++ == 0) skip(&p, "\xef\xbb\xbf"); /* as Windows marks a text */
        p.at += span(&p, blanks);
        while (p.end > p.at && p.end[-1] && strchr(blanks, p.end[-1]))
            p.end--;
        if (p.at == p.end || read_host(p, true, out)) continue;
        cr_hosts_free(out);
        return cr_fail(err, CR_ECONFIG,
                       "%s:%lld: '%.*s' is not NAME, NAME:RANKS or NAME slots=RANKS with 1 to %d "
                       "ranks",
                       what, number, shown(&p), p.at, CR_MAX_HOST_RANKS);
    }
    if (out->num) return CR_OK;
    return cr_fail(err, CR_ECONFIG, "%s names no host", what);
}

/* The next number of "8(x2),4"; 0: that is no such text. */
static int next_tasks(part *p, int *num, int *left)
{
    if (*left == 0) {
        *num = take_number(p, CR_MAX_HOST_RANKS);
        *left = 1;
        if (skip(p, "(x")) {
            *left = take_number(p, CR_MAX_HOSTS);
            if (*left == 0 || !skip(p, ")")) return 0;
        }
        if (p->at < p->end && !skip(p, ",")) return 0;
    }
    --*left;
    return *num;
}

cr_status cr_hosts_read_slurm(const cr_buf *names, const char *tasks, cr_hosts *out, cr_err *err)
{
    part t = {tasks, tasks + strlen(tasks)}, name;
    size_t at = 0, num_bytes;
    int num = 0, left = 0;

    *out = (cr_hosts){.by = CR_HOSTS_BY_SLURM};
    for (const char *line; (line = cr_line_next(names, &at, &num_bytes));) {
        part p = {line, line + num_bytes};
        if (num_bytes && take_name(&p, &name) && p.at == p.end && next_tasks(&t, &num, &left) > 0 &&
            add_host(out, name, num))
            continue;
        cr_fail(err, CR_ECONFIG,
                "Slurm names a host '%.*s', and SLURM_TASKS_PER_NODE %.80s: that is not understood "
                "(unset SLURM_JOB_ID: as outside of a job)",
                shown(&(part){line, line + num_bytes}), line, tasks);
        break;
    }
    if (err->status == CR_OK && (out->num == 0 || left > 0 || t.at < t.end))
        cr_fail(err, CR_ECONFIG,
                "Slurm names %zu hosts, and SLURM_TASKS_PER_NODE %.80s, which is not as many",
                out->num, tasks);
    if (err->status != CR_OK) cr_hosts_free(out);
    return err->status;
}
