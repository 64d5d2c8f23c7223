/* launch_hosts.c -- texts that name hosts (--hosts, hostfiles, what Slurm says), and where the ranks of roles are placed on
 * them: worked examples, and 20,000 random runs in which groups stay together wherever a host can take one. Not covered: names that
 * a resolver knows, and the networks (e2e/hosts_run). */
#include "launch/placement.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

static cr_buf buf_of(const char *text)
{
    cr_buf buf = {0};

    cr_buf_adds(&buf, text);
    return buf;
}

/* "a:8 b:4", or "error: .." */
static const char *show(cr_status status, cr_hosts *hosts, const cr_err *err, char text[600])
{
    size_t at = 0;

    text[0] = 0;
    if (status != CR_OK) {
        assert_null(hosts->host);
        snprintf(text, 600, "error %d: %s", (int)cr_exit_code(status), err->msg);
        return text;
    }
    for (size_t i = 0; i < hosts->num; i++)
        at += (size_t)snprintf(text + at, 600 - at, "%s%s:%d", i ? " " : "", hosts->host[i].name,
                               hosts->host[i].num_ranks);
    cr_hosts_free(hosts);
    return text;
}

static void lists(void **state)
{
    static const struct {
        const char *list, *want;
    } cases[] = {
        {"a", "a:1"},
        {"a:8,b:4", "a:8 b:4"},
        {"n-1.x_y:4096,10.0.0.2:2", "n-1.x_y:4096 10.0.0.2:2"},
        {"a:2,b:1,a:3", "a:5 b:1"},
        {"", "error 2: --hosts: '' is not NAME or"},
        {"a,", "error 2: --hosts: '' is not NAME or"},
        {",a", "error 2: --hosts: '' is not NAME or"},
        {"a:", "error 2: --hosts: 'a:' is not NAME or"},
        {"a:0", "error 2: --hosts: 'a:0' is not NAME or"},
        {"a:4097", "error 2: --hosts: 'a:4097' is not NAME or"},
        {"a:99999999999999999999", "error 2: --hosts: 'a:9999999"},
        {"a:-1", "error 2: --hosts: 'a:-1' is not NAME or"},
        {"a:1:2", "error 2: --hosts: 'a:1:2' is not NAME or"},
        {"a slots=2", "error 2: --hosts: 'a slots=2' is not NAME or"},
        {"b:2,-oProxyCommand=x", "error 2: --hosts: '-oProxyCommand=x' is not NAME or"},
        {"a:4000,a:97", "error 2: --hosts: 'a:97' is not NAME or"},
        {"u@a", "error 2: --hosts: 'u@a' is not NAME or"},
    };
    char text[600];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_hosts hosts = {0};
        cr_err err = {0};
        show(cr_hosts_read(cases[i].list, &hosts, &err), &hosts, &err, text);
        if (strncmp(text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("%s: %s", cases[i].list, text);
    }
}

static void files(void **state)
{
    static const struct {
        const char *file, *want;
    } cases[] = {
        {"a slots=8\nb slots=4\n", "a:8 b:4"},
        {"# two hosts\n\n  a   slots = 8  # the first\r\n\tb:2\r\nc\n\n", "a:8 b:2 c:1"},
        {"a\na\nb\na", "a:3 b:1"}, /* PBS_NODEFILE */
        {"", "error 2: F names no host"},
        {"# none\n\n", "error 2: F names no host"},
        {"a slots=8\nb slots=0\n", "error 2: F:2: 'b slots=0' is not NAME"},
        {"a slots=8 max_slots=9\nb slots=2 max-slots = 2\n", "a:8 b:2"},
        {"a slots=8 max_slots=7\n", "error 2: F:1: 'a slots=8 max_slots=7' is not NAME"},
        {"a max_slots=9\n", "error 2: F:1: 'a max_slots=9' is not NAME"},
        {"a slots=8 max_slots\n", "error 2: F:1: 'a slots=8 max_slots' is not NAME"},
        {"\xef\xbb\xbf a slots=8\n", "a:8"},
        {"a\n\xef\xbb\xbf b\n", "error 2: F:2: "},
        {"a:8 slots=8\n", "error 2: F:1: 'a:8 slots=8' is not NAME"},
        {"\n\na b\n", "error 2: F:3: 'a b' is not NAME"},
        {"a slots\n", "error 2: F:1: 'a slots' is not NAME"},
        {"a slots=\n", "error 2: F:1: 'a slots=' is not NAME"},
        {"^a\n", "error 2: F:1: '^a' is not NAME"},
    };
    char text[600];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_hosts hosts = {0};
        cr_err err = {0};
        cr_buf file = buf_of(cases[i].file);
        show(cr_hosts_read_file(&file, "F", &hosts, &err), &hosts, &err, text);
        if (strncmp(text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("%s: %s", cases[i].file, text);
        cr_buf_free(&file);
    }
}

static void slurm(void **state)
{
    static const struct {
        const char *names, *tasks, *want;
    } cases[] = {
        {"h1\nh2\n", "8(x2)", "h1:8 h2:8"},
        {"h1\nh2\nh3\n", "8(x2),4", "h1:8 h2:8 h3:4"},
        {"h1\nh2\nh3", "1,2,3", "h1:1 h2:2 h3:3"},
        {"h1\n", "8(x2)", "error 2: Slurm names 1 hosts, and"},
        {"h1\nh2\n", "8", "error 2: Slurm names a host 'h2'"},
        {"h1\n", "8,2", "error 2: Slurm names 1 hosts, and"},
        {"", "8", "error 2: Slurm names 0 hosts, and"},
        {"h1\n", "", "error 2: Slurm names a host 'h1'"},
        {"h1\n", "0", "error 2: Slurm names a host 'h1'"},
        {"h1\n", "8(x", "error 2: Slurm names a host 'h1'"},
        {"h1\n", "8(x1", "error 2: Slurm names a host 'h1'"},
        {"h1\n", "8(x0)", "error 2: Slurm names a host 'h1'"},
        {"h1\n", "8x", "error 2: Slurm names a host 'h1'"},
        {"h 1\n", "8", "error 2: Slurm names a host 'h 1'"},
        {"\nh1\n", "8(x2)", "error 2: Slurm names a host ''"},
    };
    char text[600];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_hosts hosts = {0};
        cr_err err = {0};
        cr_buf names = buf_of(cases[i].names);
        show(cr_hosts_read_slurm(&names, cases[i].tasks, &hosts, &err), &hosts, &err, text);
        if (strncmp(text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("%s %s: %s", cases[i].names, cases[i].tasks, text);
        cr_buf_free(&names);
    }
}

/* ---- placement ---- */

static const cr_role roles[] = {CR_ROLE_TRAIN, CR_ROLE_INFER, CR_ROLE_REFERENCE};

typedef struct run {
    cr_worker_config worker[3]; /* trains, generates, computes log-probs */
    cr_layout layout;
    bool has_gpus;
    int64_t max; /* num_gpus_per_node */
} run;

static void make_run(run *r, int train, int fsdp, int ulysses, int infer, int reference)
{
    static const char *const names[] = {"actor_train", "actor_infer", "reference"};
    const int num[] = {train, infer, reference};

    *r = (run){0};
    r->worker[0] =
        (cr_worker_config){.task = CR_TASK_TRAIN, .fsdp_size = fsdp, .ulysses_size = ulysses};
    r->worker[1].task = CR_TASK_GENERATE;
    r->worker[2] = (cr_worker_config){.task = CR_TASK_SCORE, .fsdp_size = 1, .ulysses_size = 1};
    for (int i = 0; i < 3; i++) {
        struct cr_role_ranks *ranks = &r->layout.role[roles[i]];
        ranks->name = names[i];
        ranks->worker = num[i] ? &r->worker[i] : NULL;
        ranks->num = num[i];
    }
    for (int i = 0; i < CR_NUM_ROLES; i++) { /* as cr_layout_init */
        r->layout.role[i].first = r->layout.num_ranks;
        r->layout.num_ranks += r->layout.role[i].num;
    }
}

static void check_places(const char *list, const run *r, const char *train, const char *infer,
                         const char *reference)
{
    cr_hosts hosts = {0};
    cr_err err = {0};
    const char *const want[] = {train, infer, reference};

    assert_int_equal(
        cr_hosts_choose(&(cr_hosts_args){list, NULL}, r->layout.num_ranks, &hosts, &err), CR_OK);
    assert_int_equal(cr_placement_make(&hosts, &r->layout, r->has_gpus, r->max, &err), CR_OK);
    for (int i = 0; i < 3; i++) {
        char *text = cr_placement_text(&hosts, &r->layout, roles[i]);
        assert_string_equal(text, want[i]);
        cr_free(text);
    }
    cr_hosts_free(&hosts);
}

static void roles_are_placed(void **state)
{
    run r;

    (void)state;
    make_run(&r, 2, 2, 1, 2, 0);
    check_places("a:2,b:2", &r, "a 0-1", "b 0-1", "");
    make_run(&r, 8, 4, 1, 4, 0); /* each shard group on one host, engines beside them */
    check_places("a:6,b:6", &r, "a 0-3, b 4-7", "a 0-1, b 2-3", "");
    make_run(&r, 8, 8, 2, 4, 0); /* no host takes the group: those of ulysses stay together */
    check_places("a:5,b:7", &r, "a 0-3, b 4-7", "a 0, b 1-3", "");
    make_run(&r, 8, 4, 1, 8, 4); /* the reference is too large for what b has left of its 8 */
    check_places("a:8,b:6,c:6", &r, "a 0-7", "b 0-1, c 2-7", "b 0-3");
    make_run(&r, 4, 4, 1, 1, 0); /* not on the first host, which is too small */
    check_places("a:1,b:4", &r, "b 0-3", "a 0", "");
    make_run(&r, 3, 3, 1, 1, 0); /* nothing fits as a whole */
    check_places("a:2,b:2", &r, "a 0-1, b 2", "b 0", "");
}

/* device_mapping of each role: neighbours from the given one on, in falling order if is_turned. */
static void map_devices(run *r, int train_from, int infer_from, int reference_from, bool is_turned)
{
    static int device[3][64];
    const int from[] = {train_from, infer_from, reference_from};

    r->has_gpus = true;
    for (int i = 0; i < 3; i++) {
        int num = r->layout.role[roles[i]].num;
        r->worker[i].devices = device[i];
        for (int k = 0; k < num; k++)
            device[i][k] = from[i] + (is_turned ? num - 1 - k : k);
    }
}

static void check_no_place(const char *list, const run *r, const char *text)
{
    cr_hosts hosts = {0};
    cr_err err = {0};

    assert_int_equal(
        cr_hosts_choose(&(cr_hosts_args){list, NULL}, r->layout.num_ranks, &hosts, &err), CR_OK);
    assert_int_equal(cr_placement_make(&hosts, &r->layout, true, r->max, &err), CR_ECONFIG);
    assert_non_null(strstr(err.msg, text));
    cr_hosts_free(&hosts);
}

/* Ranks that share a GPU are on one host; a host has GPUs that are neighbours. */
static void gpus_are_placed(void **state)
{
    run r;

    (void)state;
    make_run(&r, 8, 8, 1, 8, 0);
    map_devices(&r, 0, 0, 0, false);
    check_places("a:8,b:8", &r, "a 0-3, b 4-7", "a 0-3, b 4-7", "");
    check_places("a:9,b:8", &r, "a 0-3, b 4-7", "a 0-3, b 4-7", ""); /* half a device is none */
    check_places("a:16", &r, "a 0-7", "a 0-7", "");
    map_devices(&r, 0, 11, 0, false);
    check_places("a:8,b:8", &r, "a 0-7", "b 0-7", "");
    check_places("a:6,b:10", &r, "a 0-5, b 6-7", "b 0-7", "");
    map_devices(&r, 8, 0, 0, false);
    check_places("a:8,b:8", &r, "b 0-7", "a 0-7", "");
    map_devices(&r, 0, 0, 0, true);
    check_places("a:8,b:8", &r, "b 0-3, a 4-7", "b 0-3, a 4-7", "");
    make_run(&r, 4, 4, 1, 4, 2);
    map_devices(&r, 0, 2, 4, false); /* 1 1 2 2 2 2: devices 0 to 5 */
    check_places("a:4,b:6", &r, "a 0-2, b 3", "a 0, b 1-3", "b 0-1");
    make_run(&r, 8, 8, 1, 8, 0);
    map_devices(&r, 0, 0, 0, false);
    r.max = 4; /* more ranks than for 4 devices: the third host stays empty */
    check_places("a:64,b:64,c:64", &r, "a 0-3, b 4-7", "a 0-3, b 4-7", "");
    r.max = 3;
    check_no_place("a:64,b:64", &r, "device 6 of device_mapping (ranks: 2)");
    r.max = 0;
    check_no_place("a:9,b:7", &r, "device 7 of device_mapping (ranks: 2)");
    check_no_place("a:1,b:15", &r, "device 7 of device_mapping");
}

/* No host has more ranks than room; a shard group is only cut if no host could take it when its turn came, which is
 * certain where the first group fits on a host: it is never cut. */
static void random_runs(void **state)
{
    uint64_t seed = 20260;

    (void)state;
    for (int try = 0; try < 20000; try++) {
        run r;
        cr_hosts hosts = {0};
        cr_err err = {0};
        char list[200];
        int pick[7], used[8] = {0}, num_hosts, room = 0, max = 0;
        size_t at = 0;
        for (int i = 0; i < 7; i++)
            pick[i] = (int)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33);
        num_hosts = 1 + pick[0] % 6;
        make_run(&r, (1 + pick[1] % 4) << pick[2] % 4, 1 << pick[2] % 4, 1, 1 + pick[3] % 8,
                 pick[4] % 5);
        for (int i = 0; i < num_hosts; i++) {
            int num = i + 1 < num_hosts || room >= r.layout.num_ranks ? 1 + (pick[5] >> 3 * i) % 8
                                                                      : r.layout.num_ranks - room;
            at += (size_t)snprintf(list + at, sizeof list - at, "%sn%d:%d", i ? "," : "", i, num);
            room += num;
            if (num > max) max = num;
        }
        assert_int_equal(
            cr_hosts_choose(&(cr_hosts_args){list, NULL}, r.layout.num_ranks, &hosts, &err), CR_OK);
        assert_int_equal(cr_placement_make(&hosts, &r.layout, false, 0, &err), CR_OK);
        for (int i = 0; i < r.layout.num_ranks; i++) {
            assert_true(hosts.host_of[i] >= 0 && hosts.host_of[i] < num_hosts);
            assert_true(++used[hosts.host_of[i]] <= hosts.host[hosts.host_of[i]].num_ranks);
        }
        if (1 << pick[2] % 4 <= max)
            for (int i = 1; i < 1 << pick[2] % 4 && i < r.layout.role[CR_ROLE_TRAIN].num; i++)
                assert_int_equal(hosts.host_of[i], hosts.host_of[0]);
        cr_hosts_free(&hosts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),       cmocka_unit_test(files),
        cmocka_unit_test(slurm),       cmocka_unit_test(roles_are_placed),
        cmocka_unit_test(random_runs), cmocka_unit_test(gpus_are_placed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
