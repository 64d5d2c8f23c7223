/* bind.c -- see cores.h: a rank goes to its cores, and what shares look like. */
#include "base/json.h"
#include "launch/cores/cores.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NODES = 1024, MASK_BITS = 8 * sizeof(unsigned long) };

/* Memory of all its nodes page by page. */
static cr_status interleave(const cr_topology *t, const cr_share *s, cr_err *err)
{
    unsigned long mask[MAX_NODES / MASK_BITS] = {0};
    int first;

    for (int k = 0; k < s->num_nodes; k++) {
        int node = (cr_topology_node(t, s->first_node + k, &first), t->core[first].node);
        if (node < MAX_NODES) mask[node / MASK_BITS] |= 1ul << node % MASK_BITS;
    }
    if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, MAX_NODES + 1) != 0)
        return cr_fail(err, CR_EIO, "memory cannot be spread over %d NUMA nodes: %s", s->num_nodes,
                       strerror(errno));
    return CR_OK;
}

cr_status cr_cores_bind(const cr_topology *t, const cr_share *share, cr_err *err)
{
    cpu_set_t set;

    if (!t->is_machine) return CR_OK; /* of a machine that is described there is nothing here */
    CPU_ZERO(&set);
    for (int i = 0; i < share->num_cores; i++)
        CPU_OR(&set, &set, &t->core[share->first_core + i].cpus);
    if (share->is_bound && sched_setaffinity(0, sizeof set, &set) != 0)
        return cr_fail(err, CR_EIO, "threads cannot be bound to %d cores: %s", share->num_cores,
                       strerror(errno));
    return share->is_interleaved ? interleave(t, share, err) : CR_OK;
}

cr_status cr_cores_take(char *const *envs, int index, int num, int *num_threads, cr_err *err)
{
    cr_topology topology = {0};
    cr_cores_wish wish;
    cr_share *share = CR_NEW_ARRAY(cr_share, num);
    cr_err why = {0};

    CR_TRY_GOTO(out, cr_cores_wish_read(envs, &wish, err));
    CR_TRY_GOTO(out, cr_topology_read(NULL, &topology, err));
    cr_cores_share(&topology, &wish, num, share);
    if (cr_cores_bind(&topology, &share[index], &why) != CR_OK)
        cr_log(CR_LOG_WARN, "cores", "%s (CROLL_BIND=none does not try)", why.msg);
    *num_threads = share[index].num_threads;
out:
    cr_free(share);
    cr_topology_free(&topology);
    return err->status;
}

/* ---- lines ---- */

enum { NAME_CHARS = 16, CELL = 48, RANGE = 26 };

/* "3", "0-7". */
static void write_range(int first, int last, char text[RANGE])
{
    if (first == last)
        snprintf(text, RANGE, "%d", first);
    else
        snprintf(text, RANGE, "%d-%d", first, last);
}

static int node_number(const cr_topology *t, int k)
{
    int first;

    cr_topology_node(t, k, &first);
    return t->core[first].node;
}

/* Ranks a to b have shares of one kind. */
static void write_cores(const cr_topology *t, cr_bind bind, const cr_share *a, const cr_share *b,
                        int num, char text[CELL])
{
    char range[RANGE];
    bool is_one = bind == CR_BIND_CORES ? a->num_cores == 1 && a->first_core == b->first_core
                                        : a->first_node == b->first_node && a->num_nodes == 1;

    if (!a->is_bound) {
        snprintf(text, CELL, "all");
        return;
    }
    if (bind == CR_BIND_CORES)
        write_range(t->core[a->first_core].number, t->core[b->first_core + b->num_cores - 1].number,
                    range);
    else
        write_range(node_number(t, a->first_node), node_number(t, b->first_node + b->num_nodes - 1),
                    range);
    snprintf(text, CELL, "%s%s %s", bind == CR_BIND_CORES ? "core" : "node", is_one ? "" : "s",
             range);
    if (num == 1) return;
    if (bind == CR_BIND_CORES)
        snprintf(text + strlen(text), CELL - strlen(text), ", %d each", a->num_cores);
    else if (a->num_nodes > 1)
        snprintf(text + strlen(text), CELL - strlen(text), ", %d each", a->num_nodes);
    else if (!is_one)
        snprintf(text + strlen(text), CELL - strlen(text), ", %d rank%s each", a->num_sharers,
                 a->num_sharers == 1 ? "" : "s");
}

/* Is b, of the next rank, like a, on the same node or on the next ones? */
static bool is_alike(const cr_share *a, const cr_share *b)
{
    return a->num_threads == b->num_threads && a->num_nodes == b->num_nodes &&
           a->num_sharers == b->num_sharers && a->is_bound == b->is_bound &&
           a->num_cores == b->num_cores &&
           (b->first_node == a->first_node || b->first_node == a->first_node + a->num_nodes) &&
           strcmp(a->why, b->why) == 0;
}

typedef struct run_of_ranks {
    int from, to;
    char ranks[RANGE], cores[CELL];
    const char *memory;
} run_of_ranks;

/* The ranks from `from` on that have shares like the first of them. */
static run_of_ranks find_run(const cr_topology *t, cr_bind bind, const cr_share *share, int from,
                             int num)
{
    const cr_share *first = &share[from];
    run_of_ranks r = {.from = from, .to = from};

    while (r.to + 1 < num && is_alike(&share[r.to], &share[r.to + 1]))
        r.to++;
    write_range(r.from, r.to, r.ranks);
    write_cores(t, bind, first, &share[r.to], r.to - r.from + 1, r.cores);
    r.memory = first->is_interleaved                  ? "spread"
               : first->is_bound || t->num_nodes == 1 ? "its node"
                                                      : "of each thread";
    return r;
}

void cr_cores_row(const cr_topology *t, const cr_cores_wish *wish, const char *name, int num,
                  cr_buf *out)
{
    cr_share *share = CR_NEW_ARRAY(cr_share, num);
    run_of_ranks r;

    if (num == 0)
        cr_buf_addf(out, "  %-*s %-7s %-7s %-24s %-14s %s\n", NAME_CHARS, "role", "ranks",
                    "threads", "cores", "memory", "why");
    cr_cores_share(t, wish, num, share);
    for (int from = 0; from < num; from = r.to + 1) {
        r = find_run(t, wish->bind, share, from, num);
        cr_buf_addf(out, "  %-*s %-7s %-7d %-24s %-14s %s\n", NAME_CHARS, from ? "" : name, r.ranks,
                    share[from].num_threads, r.cores, r.memory, share[from].why);
    }
    cr_free(share);
}

void cr_cores_json(const cr_topology *t, const cr_cores_wish *wish, const char *name, int num,
                   cr_buf *out)
{
    cr_share *share = CR_NEW_ARRAY(cr_share, num);
    run_of_ranks r;

    cr_cores_share(t, wish, num, share);
    for (int from = 0; from < num; from = r.to + 1) {
        r = find_run(t, wish->bind, share, from, num);
        if (out->num_bytes && out->data[out->num_bytes - 1] == '}') cr_buf_addc(out, ',');
        cr_buf_adds(out, "{\"role\":");
        cr_json_add_string(out, name, strlen(name));
        cr_buf_addf(out,
                    ",\"ranks\":\"%s\",\"threads\":%d,\"cores\":\"%s\",\"memory\":\"%s\","
                    "\"why\":\"%s\"}",
                    r.ranks, share[from].num_threads, r.cores, r.memory, share[from].why);
    }
    cr_free(share);
}
