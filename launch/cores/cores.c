/* cores.c -- see cores.h. */
#include "launch/cores/cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a caller wants ---- */

static const char *env_of(char *const *envs, const char *name)
{
    size_t n = strlen(name);
    const char *value;

    for (size_t i = 0; envs && envs[i]; i++)
        if (strncmp(envs[i], name, n) == 0 && envs[i][n] == '=') return envs[i] + n + 1;
    value = getenv(name);
    return value && value[0] ? value : NULL;
}

static bool is_bound_by_openmp(char *const *envs)
{
    const char *bind = env_of(envs, "OMP_PROC_BIND");

    if (bind) return strcasecmp(bind, "false") != 0;
    return env_of(envs, "OMP_PLACES") || env_of(envs, "GOMP_CPU_AFFINITY");
}

cr_status cr_cores_wish_read(char *const *envs, cr_cores_wish *out, cr_err *err)
{
    static const char *const binds[] = {"nodes", "none", "cores"};
    const char *threads = env_of(envs, "OMP_NUM_THREADS"), *bind = env_of(envs, "CROLL_BIND");
    char *end;
    size_t i = 0;

    *out = (cr_cores_wish){.bind = is_bound_by_openmp(envs) ? CR_BIND_BY_OPENMP : CR_BIND_NODES};
    if (threads) {
        long num = strtol(threads, &end, 10);
        if ((*end && *end != ',') || num < 1 || num > CPU_SETSIZE) /* "4,2" is of nested loops */
            return cr_fail(err, CR_EUSAGE, "OMP_NUM_THREADS is \"%s\" (use 1 to %d)", threads,
                           CPU_SETSIZE);
        out->num_threads = (int)num;
    }
    if (!bind) return CR_OK;
    while (i < CR_COUNT(binds) && strcmp(binds[i], bind) != 0)
        i++;
    if (i == CR_COUNT(binds))
        return cr_fail(err, CR_EUSAGE, "CROLL_BIND is \"%s\" (use none, nodes or cores)", bind);
    out->bind = (cr_bind)i;
    return CR_OK;
}

/* ---- shares ---- */

typedef struct node {  /* of a topology */
    int first, num;    /* cores */
    int sharers, done; /* ranks that have it; those of them that were looked at */
} node;

static node *make_nodes(const cr_topology *t)
{
    node *nodes = CR_NEW_ARRAY(node, t->num_nodes);

    for (int k = 0; k < t->num_nodes; k++)
        nodes[k].num = cr_topology_node(t, k, &nodes[k].first);
    return nodes;
}

/* The nodes of rank index of num: those whose middle is in its part of the line of cores, or else the one that the middle of
 * its part is in. */
static void find_nodes(const cr_topology *t, const node *nodes, int index, int num, cr_share *s)
{
    int64_t cores = t->num_cores, middle = (2 * (int64_t)index + 1) * cores / (2 * (int64_t)num);
    int around = 0;

    for (int k = 0; k < t->num_nodes; k++) {
        if ((2 * nodes[k].first + nodes[k].num) * (int64_t)num / (2 * cores) == index &&
            s->num_nodes++ == 0)
            s->first_node = k;
        if (nodes[k].first <= middle) around = k;
    }
    if (s->num_nodes) return;
    s->first_node = around;
    s->num_nodes = 1;
}

/* Cores of a node that are a rank's alone, from *first on; 0: more ranks than cores, and it shares that one. */
static int cores_of(const node *n, int *first)
{
    int from = (int)((int64_t)n->done * n->num / n->sharers),
        end = (int)((int64_t)(n->done + 1) * n->num / n->sharers);

    *first = n->first + from;
    return end - from;
}

/* Threads for that many cores. Fewer nodes are enough for few threads. */
static void choose_threads(const node *nodes, int wanted, double quota, int cores, cr_share *s)
{
    int limit = quota > 0 && quota < cores ? (int)quota : cores, needed = 0, first;

    s->num_threads = wanted ? wanted : limit > 1 ? limit : 1;
    for (int have = 0; needed < s->num_nodes && have < s->num_threads;)
        have += cores_of(&nodes[s->first_node + needed++], &first);
    s->num_nodes = needed;
}

static void choose_binding(const cr_topology *t, const node *nodes, cr_bind bind, cr_share *s)
{
    const node *last = &nodes[s->first_node + s->num_nodes - 1];
    int end = last->first + last->num, first;

    s->is_bound = bind == CR_BIND_CORES || (bind == CR_BIND_NODES && s->num_nodes < t->num_nodes);
    s->is_interleaved = (bind == CR_BIND_NODES || bind == CR_BIND_CORES) && s->num_nodes > 1;
    s->first_core = nodes[s->first_node].first;
    if (bind == CR_BIND_CORES) {
        end = cores_of(last, &first);
        end = first + (end ? end : 1);
        cores_of(&nodes[s->first_node], &s->first_core);
    }
    s->num_cores = end - s->first_core;
}

/* cores: of its share; on_node: of its first node. */
static void write_why(const cr_topology *t, const cr_cores_wish *wish, int cores, int on_node,
                      int num, cr_share *s)
{
    static const char *const binds[] = {"", "CROLL_BIND=none", "CROLL_BIND=cores",
                                        "OpenMP binds (OMP_PROC_BIND, OMP_PLACES)"};
    char threads[80];
    const char *bound = t->num_nodes == 1   ? "one node: not bound"
                        : s->num_nodes == 1 ? "memory of its node"
                                            : "fewer ranks than nodes";

    if (wish->num_threads)
        snprintf(threads, sizeof threads, "OMP_NUM_THREADS");
    else if (s->num_threads < cores)
        snprintf(threads, sizeof threads, "CPU time of %.4g cores / %d", t->quota, num);
    else if (s->num_sharers > on_node)
        snprintf(threads, sizeof threads, "more ranks than cores");
    else if (s->num_nodes > 1)
        snprintf(threads, sizeof threads, "all cores of %d nodes", s->num_nodes);
    else if (s->num_sharers > 1)
        snprintf(threads, sizeof threads, "cores of %s / %d",
                 t->num_nodes > 1 ? "a node" : "the host", s->num_sharers);
    else
        snprintf(threads, sizeof threads, "all cores%s", t->num_nodes > 1 ? " of a node" : "");
    snprintf(s->why, sizeof s->why, "%s; %s", threads,
             wish->bind == CR_BIND_NODES ? bound : binds[wish->bind]);
}

void cr_cores_share(const cr_topology *t, const cr_cores_wish *wish, int num, cr_share *out)
{
    node *nodes = make_nodes(t);

    memset(out, 0, (size_t)num * sizeof *out);
    for (int i = 0; i < num; i++) {
        find_nodes(t, nodes, i, num, &out[i]);
        for (int k = 0; k < out[i].num_nodes; k++)
            nodes[out[i].first_node + k].sharers++;
    }
    for (int i = 0; i < num; i++) {
        cr_share *s = &out[i];
        int cores = 0, first, has = s->num_nodes;
        for (int k = 0; k < has; k++)
            cores += cores_of(&nodes[s->first_node + k], &first);
        s->num_sharers = nodes[s->first_node].sharers;
        choose_threads(nodes, wish->num_threads, t->quota / num, cores, s);
        choose_binding(t, nodes, wish->bind, s);
        write_why(t, wish, cores, nodes[s->first_node].num, num, s);
        for (int k = 0; k < has; k++)
            nodes[s->first_node + k].done++;
    }
    cr_free(nodes);
}
