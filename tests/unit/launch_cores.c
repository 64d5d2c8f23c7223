/* Threads and cores of ranks: machines of 2 to 128 cores and 1 to 8 NUMA nodes as hwloc describes them, uneven ones, limits and
 * overrides; and what binding does to this process. Not covered: a machine with several nodes (memory is looked up on all that
 * this one has). */
#include "launch/cores/cores.h"
#include "tests/check_near.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NUM = 256 };

static cr_topology machine(const char *description)
{
    cr_topology t;
    cr_err err = {0};

    assert_int_equal(cr_topology_read(description, &t, &err), CR_OK);
    assert_false(t.is_machine);
    return t;
}

static cr_topology cores_by_node(const int *num, int num_nodes)
{
    cr_topology t = {.core = CR_NEW_ARRAY(cr_core, MAX_NUM), .num_nodes = num_nodes};

    for (int k = 0; k < num_nodes; k++)
        for (int i = 0; i < num[k]; i++)
            t.core[t.num_cores++] = (cr_core){.number = t.num_cores, .node = 2 * k + 1};
    t.num_cpus = t.num_cores;
    return t;
}

static int node_of(const cr_topology *t, int core)
{
    return t->core[core].node;
}

/* On every machine and for any number of ranks: threads for all cores of the nodes and no more, as long as there are cores; and
 * with CROLL_BIND=cores each core has one rank. */
static void check_all(const cr_topology *t, int num)
{
    const cr_cores_wish nodes = {0}, cores = {.bind = CR_BIND_CORES};
    cr_share s[MAX_NUM];
    int threads = 0, owner[MAX_NUM], first;

    cr_cores_share(t, &nodes, num, s);
    for (int i = 0; i < num; i++) {
        threads += s[i].num_threads;
        assert_true(s[i].num_threads >= 1 && s[i].num_nodes >= 1);
        assert_true(s[i].is_bound == (s[i].num_nodes < t->num_nodes));
        assert_true(s[i].is_interleaved == (s[i].num_nodes > 1));
        assert_int_equal(cr_topology_node(t, s[i].first_node, &first) > 0, 1);
        assert_int_equal(s[i].first_core, first);
        if (s[i].num_nodes == 1)
            for (int k = 0; k < s[i].num_cores; k++)
                assert_int_equal(node_of(t, first + k), node_of(t, first));
        assert_true(i == 0 || s[i].first_node >= s[i - 1].first_node);
    }
    if (num <= t->num_cores) assert_int_equal(threads, t->num_cores);
    cr_cores_share(t, &cores, num, s);
    for (int k = 0; k < t->num_cores; k++)
        owner[k] = -1;
    for (int i = 0; i < num; i++) {
        assert_true(s[i].is_bound && s[i].num_cores >= 1);
        for (int k = 0; k < s[i].num_cores && num <= t->num_cores; k++) {
            assert_int_equal(owner[s[i].first_core + k], -1);
            owner[s[i].first_core + k] = i;
        }
    }
}

static void every_core_has_a_thread(void **state)
{
    static const char *const machines[] = {"core:2 pu:1",         "core:16 pu:1",
                                           "numa:2 core:8 pu:1",  "core:64 pu:2",
                                           "numa:2 core:32 pu:2", "numa:8 core:8 pu:2",
                                           "core:128 pu:1",       "numa:2 core:64 pu:2",
                                           "numa:8 core:16 pu:2", "pack:2 numa:4 core:16 pu:2"};

    (void)state;
    for (size_t m = 0; m < CR_COUNT(machines); m++) {
        cr_topology t = machine(machines[m]);
        for (int num = 1; num <= t.num_cores + 3; num++) {
            if (t.num_cores % t.num_nodes == 0 &&
                (num % t.num_nodes == 0 || t.num_nodes % num == 0 || t.num_nodes == 1))
                check_all(&t, num);
        }
        cr_topology_free(&t);
    }
}

static void check_row(const cr_topology *t, const cr_cores_wish *wish, int num, const char *want)
{
    cr_buf out = {0};

    cr_cores_row(t, wish, "r", num, &out);
    assert_string_equal(out.data, want);
    cr_buf_free(&out);
}

/* Nodes of a process that has a part of the machine (taskset) are uneven: ranks go where cores are. */
static void uneven_nodes(void **state)
{
    static const int parts[][4] = {{6, 2, 0, 0}, {1, 14, 1, 0}, {40, 1, 1, 1}, {1, 1, 30, 0}};
    static const int num_nodes[] = {2, 3, 4, 3};
    const cr_cores_wish wish = {0};
    cr_share s[MAX_NUM];

    (void)state;
    for (size_t m = 0; m < CR_COUNT(parts); m++)
        for (int num = 1; num <= 8; num++) {
            cr_topology t = cores_by_node(parts[m], num_nodes[m]);
            int on[4] = {0};
            cr_cores_share(&t, &wish, num, s);
            for (int i = 0; i < num; i++) {
                assert_true(s[i].first_node + s[i].num_nodes <= t.num_nodes);
                if (s[i].num_nodes == 1) on[s[i].first_node] += s[i].num_threads;
            }
            for (int k = 0; k < t.num_nodes && num < 4; k++)
                assert_true(on[k] <= parts[m][k]);
            cr_topology_free(&t);
        }
    cr_topology_free(&(cr_topology){0});
}

static void limits_and_wishes(void **state)
{
    cr_topology t = machine("numa:8 core:8 pu:2");
    cr_cores_wish wish = {0};

    (void)state;
    t.quota = 4; /* CPU time of four cores: one node is enough */
    check_row(&t, &wish, 1,
              "  r                0       4       node 0                   its node       CPU time "
              "of 4 cores / 1; memory of its node\n");
    check_row(&t, &wish, 2,
              "  r                0       2       node 0                   its node       CPU time "
              "of 4 cores / 2; memory of its node\n"
              "                   1       2       node 4                   its node       CPU time "
              "of 4 cores / 2; memory of its node\n");
    t.quota = 12;
    check_row(&t, &wish, 1,
              "  r                0       12      nodes 0-1                spread         CPU time "
              "of 12 cores / 1; fewer ranks than nodes\n");
    t.quota = 0;
    wish.num_threads = 3;
    check_row(&t, &wish, 8,
              "  r                0-7     3       nodes 0-7, 1 rank each   its node       "
              "OMP_NUM_THREADS; memory of its node\n");
    wish = (cr_cores_wish){.bind = CR_BIND_CORES};
    check_row(&t, &wish, 16,
              "  r                0-15    4       cores 0-63, 4 each       its node       cores of "
              "a node / 2; CROLL_BIND=cores\n");
    wish.bind = CR_BIND_NONE;
    check_row(
        &t, &wish, 8,
        "  r                0-7     8       all                      of each thread all cores "
        "of a node; CROLL_BIND=none\n");
    cr_topology_free(&t);
    t = machine("core:2 pu:1");
    check_row(&t, &(cr_cores_wish){0}, 4,
              "  r                0-3     1       all                      its node       more "
              "ranks than cores; one node: not bound\n");
    cr_topology_free(&t);
}

static void wishes_are_read(void **state)
{
    static char threads[] = "OMP_NUM_THREADS=6", bind[] = "CROLL_BIND=none";
    static const char *const wrong[] = {"0", "-1", "x", "4x", "2000"};
    char *const envs[] = {threads, bind, NULL};
    cr_cores_wish wish;
    cr_err err = {0};

    (void)state;
    unsetenv("OMP_NUM_THREADS");
    unsetenv("CROLL_BIND");
    unsetenv("OMP_PROC_BIND");
    unsetenv("OMP_PLACES");
    assert_int_equal(cr_cores_wish_read(NULL, &wish, &err), CR_OK);
    assert_true(wish.num_threads == 0 && wish.bind == CR_BIND_NODES);
    setenv("OMP_NUM_THREADS", "4,2", 1);
    setenv("CROLL_BIND", "cores", 1);
    assert_int_equal(cr_cores_wish_read(NULL, &wish, &err), CR_OK);
    assert_true(wish.num_threads == 4 && wish.bind == CR_BIND_CORES);
    assert_int_equal(cr_cores_wish_read(envs, &wish, &err), CR_OK);
    assert_true(wish.num_threads == 6 && wish.bind == CR_BIND_NONE);
    unsetenv("CROLL_BIND");
    setenv("OMP_PLACES", "cores", 1);
    assert_int_equal(cr_cores_wish_read(NULL, &wish, &err), CR_OK);
    assert_int_equal(wish.bind, CR_BIND_BY_OPENMP);
    setenv("OMP_PROC_BIND", "false", 1);
    assert_int_equal(cr_cores_wish_read(NULL, &wish, &err), CR_OK);
    assert_int_equal(wish.bind, CR_BIND_NODES);
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        setenv("OMP_NUM_THREADS", wrong[i], 1);
        assert_int_equal(cr_cores_wish_read(NULL, &wish, &err), CR_EUSAGE);
        err = (cr_err){0};
    }
    unsetenv("OMP_NUM_THREADS");
    setenv("CROLL_BIND", "node", 1);
    assert_int_equal(cr_cores_wish_read(NULL, &wish, &err), CR_EUSAGE);
    assert_string_equal(err.msg, "CROLL_BIND is \"node\" (use none, nodes or cores)");
    unsetenv("CROLL_BIND");
}

static void wrong_descriptions(void **state)
{
    static const char *const wrong[] = {
        "", "core", "core:2", "numa:0 core:1 pu:1", "/no/such.xml", "tests/README.md"};
    cr_topology t;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        cr_err err = {0};
        assert_int_equal(cr_topology_read(wrong[i], &t, &err), CR_EUSAGE);
        assert_non_null(strstr(err.msg, "neither hwloc's synthetic form"));
        cr_topology_free(&t);
    }
}

static void *affinity_of_thread(void *set)
{
    sched_getaffinity(0, sizeof(cpu_set_t), set);
    return NULL;
}

/* In a thread of its own: each node of this machine in turn, and what is written then is in its memory. */
static void *bind_here(void *failed)
{
    enum { BYTES = 1 << 22 };
    cr_topology t;
    cr_cores_wish wish = {.bind = CR_BIND_CORES};
    cr_share s[MAX_NUM];
    cr_err err = {0};
    int num;

    if (cr_topology_read(NULL, &t, &err) != CR_OK || !t.is_machine) return failed;
    num = t.num_cores < MAX_NUM ? t.num_cores : MAX_NUM;
    cr_cores_share(&t, &wish, num, s);
    for (int i = 0; i < num; i++) {
        pthread_t thread;
        cpu_set_t set;
        int node = -1;
        char *memory =
            mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (cr_cores_bind(&t, &s[i], &err) != CR_OK) return failed;
        memset(memory, 1, BYTES);
        pthread_create(&thread, NULL, affinity_of_thread, &set);
        pthread_join(thread, NULL);
        if (!CPU_EQUAL(&set, &t.core[s[i].first_core].cpus)) return failed;
        if (syscall(SYS_get_mempolicy, &node, NULL, 0, memory, MPOL_F_NODE | MPOL_F_ADDR) == 0 &&
            node != t.core[s[i].first_core].node)
            return failed;
        munmap(memory, BYTES);
    }
    wish.bind = CR_BIND_NODES;
    cr_cores_share(&t, &wish, 1, s);
    s[0].is_interleaved = true;
    num = -1;
    if (cr_cores_bind(&t, &s[0], &err) == CR_OK) /* a container may not allow it */
        syscall(SYS_get_mempolicy, &num, NULL, 0, NULL, 0);
    else
        print_message("memory is not spread here: %s\n", err.msg);
    cr_topology_free(&t);
    return num == -1 || num == MPOL_INTERLEAVE ? NULL : failed;
}

static void binding(void **state)
{
    static int failed;
    pthread_t thread;
    void *how = &failed;

    (void)state;
    pthread_create(&thread, NULL, bind_here, &failed);
    pthread_join(thread, &how);
    assert_null(how);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_core_has_a_thread), cmocka_unit_test(uneven_nodes),
        cmocka_unit_test(limits_and_wishes),       cmocka_unit_test(wishes_are_read),
        cmocka_unit_test(wrong_descriptions),      cmocka_unit_test(binding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
