/* topology.c -- see topology.h. */
#include "launch/cores/topology.h"
#include "base/limits.h"

#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

static void add_core(cr_topology *t, hwloc_const_cpuset_t cpus, int node, int number)
{
    cr_core *core = &t->core[t->num_cores];
    unsigned cpu;
    int num = 0;

    *core = (cr_core){.number = number, .node = node};
    CPU_ZERO(&core->cpus);
    hwloc_bitmap_foreach_begin(cpu, cpus)
    {
        if (cpu < CPU_SETSIZE) {
            CPU_SET(cpu, &core->cpus);
            num++;
        }
    }
    hwloc_bitmap_foreach_end();
    t->num_cpus += num;
    t->num_cores += num > 0;
}

/* hwloc leaves the node out where there is no NUMA; where a core has two (fast memory beside the usual), the first is the usual. */
static int node_of(hwloc_obj_t object)
{
    int node = object->nodeset ? hwloc_bitmap_first(object->nodeset) : 0;

    return node < 0 ? 0 : node;
}

static int by_node(const void *a, const void *b)
{
    const cr_core *x = a, *y = b;

    return x->node != y->node ? (x->node > y->node) - (x->node < y->node)
                              : (x->number > y->number) - (x->number < y->number);
}

/* Where the machine does not report its cores, hardware threads are taken for them. */
static void take_cores(hwloc_topology_t from, cr_topology *t)
{
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(from, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int num = hwloc_get_nbobjs_by_type(from, type), last = -1;

    t->core = CR_NEW_ARRAY(cr_core, num);
    for (int i = 0; i < num; i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(from, type, (unsigned)i);
        add_core(t, object->cpuset, node_of(object), i);
    }
    qsort(t->core, (size_t)t->num_cores, sizeof *t->core, by_node);
    for (int i = 0; i < t->num_cores; i++) {
        t->num_nodes += t->core[i].node != last;
        last = t->core[i].node;
    }
}

/* What this process may not use is left out, and the limit of its cgroup looked up. */
static void restrict_to_process(hwloc_topology_t from, cr_topology *t)
{
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();

    if (bound && hwloc_get_cpubind(from, bound, HWLOC_CPUBIND_PROCESS) == 0)
        (void)hwloc_topology_restrict(from, bound, 0); /* of no core at all: as it was */
    hwloc_bitmap_free(bound);
    t->is_machine = true;
    t->quota = cr_cpu_quota();
}

cr_status cr_topology_read(const char *description, cr_topology *out, cr_err *err)
{
    hwloc_topology_t from;
    bool is_xml = description && cr_file_exists(description);

    *out = (cr_topology){0};
    if (hwloc_topology_init(&from) != 0) return cr_fail(err, CR_EIO, "hwloc: %s", strerror(errno));
    if (description && (is_xml ? hwloc_topology_set_xml(from, description)
                               : hwloc_topology_set_synthetic(from, description)) != 0)
        cr_fail(err, CR_EUSAGE,
                "\"%.200s\" is neither hwloc's synthetic form, as \"numa:8 core:16 pu:2\", nor an "
                "XML file of lstopo",
                description);
    else if (hwloc_topology_load(from) != 0)
        cr_fail(err, CR_EIO, "hwloc cannot read the topology: %s", strerror(errno));
    if (err->status == CR_OK) {
        if (!description && hwloc_topology_is_thissystem(from)) restrict_to_process(from, out);
        take_cores(from, out);
        if (out->num_cores == 0) cr_fail(err, CR_EUSAGE, "hwloc finds no core");
    }
    hwloc_topology_destroy(from);
    return err->status;
}

void cr_topology_free(cr_topology *t)
{
    cr_free(t->core);
    *t = (cr_topology){0};
}

int cr_topology_node(const cr_topology *t, int k, int *first)
{
    int at = 0, end;

    for (;; at = end, k--) {
        for (end = at; end < t->num_cores && t->core[end].node == t->core[at].node;)
            end++;
        if (k == 0 || end == at) break;
    }
    *first = at;
    return end - at;
}

void cr_topology_text(const cr_topology *t, cr_buf *out)
{
    int min = t->num_cores, max = 0, first;

    for (int k = 0; k < t->num_nodes; k++) {
        int num = cr_topology_node(t, k, &first);
        if (num < min) min = num;
        if (num > max) max = num;
    }
    cr_buf_addf(out, "%d core%s", t->num_cores, t->num_cores == 1 ? "" : "s");
    if (t->num_cpus > t->num_cores) cr_buf_addf(out, " (%d hardware threads)", t->num_cpus);
    cr_buf_addf(out, ", %d NUMA node%s", t->num_nodes, t->num_nodes == 1 ? "" : "s");
    if (t->num_nodes > 1 && min == max)
        cr_buf_addf(out, " of %d core%s", max, max == 1 ? "" : "s");
    else if (t->num_nodes > 1)
        cr_buf_addf(out, " of %d to %d cores", min, max);
    if (t->quota > 0) cr_buf_addf(out, ", CPU time for %.4g of them", t->quota);
}
