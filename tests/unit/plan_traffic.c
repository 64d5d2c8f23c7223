/* plan_traffic.c -- what a plan says that ranks send, against a count of every part of every rank; its times against sums
 * by hand; rates and their files. Not covered: which calls a run makes (tests/mesh/plan.c), formulas of uneven groups
 * (tests/mesh/links.c).
 */
#include "plan/traffic.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

enum { BYTES = 1 << 22, MAX_NUM = 64 };

static cr_plan_role role_of(int ranks, int fsdp, cr_plan_call *call, cr_axis axis, cr_coll coll,
                            size_t elem_bytes)
{
    cr_plan_role r = {.name = "x"};
    cr_err err = {0};

    if (cr_mesh_shape_init(&r.mesh, ranks, fsdp, 1, 1, 0, &err) != CR_OK) fail_msg("%s", err.msg);
    *call = (cr_plan_call){axis, {coll, BYTES, elem_bytes}, {0}};
    call->times[CR_PLAN_NEXT] = 3;
    r.passes.call = call;
    r.passes.num_calls = 1;
    r.passes.times[CR_PLAN_NEXT] = 2;
    return r;
}

/* Does host h get part p of a call only once, by whichever of its ranks? */
typedef enum sending { ONCE_A_HOST, SUMS_OF_HOSTS, EACH_RANK } sending;

/* Every rank wants BYTES / n from every other rank of its group (a gather its part, a reduction the contribution to its
 * own): into[h] what comes from other hosts, near what its ranks have from each other. */
static void count(const cr_plan_role *r, cr_axis axis, const int *host_of, sending rule,
                  double *into, double *near)
{
    int member[MAX_NUM], n = cr_mesh_axis_ranks(&r->mesh, axis);
    double part = (double)BYTES / n;

    for (int me = 0; me < r->mesh.num_ranks; me++) {
        cr_mesh_members(&r->mesh, axis, me, member);
        for (int i = 0; i < n; i++) {
            bool is_here = host_of[member[i]] == host_of[me], is_first = true;
            if (member[i] == me) continue;
            if (rule == ONCE_A_HOST) /* another rank of this host has it already */
                for (int k = 0; k < n; k++)
                    is_first &= member[k] >= me || host_of[member[k]] != host_of[me];
            if (rule == SUMS_OF_HOSTS) /* its host has added it to a sum that comes */
                for (int k = 0; k < i; k++)
                    is_first &= host_of[member[k]] != host_of[member[i]];
            if (!is_here && is_first)
                into[host_of[me]] += part;
            else if (is_here || rule == ONCE_A_HOST)
                near[host_of[me]] += part;
        }
    }
}

static double max_of(const double *x, int num)
{
    double max = 0;

    for (int i = 0; i < num; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static void check(int ranks, int fsdp, int hosts, bool is_nccl)
{
    static const struct {
        cr_axis axis;
        cr_coll coll;
        cr_flow flow;
        sending rule;
    } cases[] = {{CR_AXIS_FSDP, CR_COLL_ALL_GATHER, CR_FLOW_GATHERS, ONCE_A_HOST},
                 {CR_AXIS_FSDP, CR_COLL_REDUCE_SCATTER, CR_FLOW_REDUCTIONS, SUMS_OF_HOSTS},
                 {CR_AXIS_DDP, CR_COLL_ALL_GATHER, CR_FLOW_GATHERS, ONCE_A_HOST}};
    int host_of[MAX_NUM];

    for (int r = 0; r < ranks; r++)
        host_of[r] = r * hosts / ranks;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_plan_call call;
        cr_plan_role r = role_of(ranks, fsdp, &call, cases[i].axis, cases[i].coll, 4);
        const cr_plan_place place = {host_of, hosts, is_nccl};
        cr_moved m = cr_plan_moved(&r, &place, cases[i].flow, CR_PLAN_NEXT);
        double into[MAX_NUM] = {0}, near[MAX_NUM] = {0};
        bool is_sent = is_nccl && cases[i].rule == SUMS_OF_HOSTS;
        count(&r, cases[i].axis, host_of, is_sent ? EACH_RANK : cases[i].rule, into, near);
        check_near(m.into_bytes, 3 * max_of(into, hosts), 1e-6 * BYTES);
        if (cases[i].rule == ONCE_A_HOST)
            check_near(m.inside_bytes, 3 * max_of(near, hosts), 1e-6 * BYTES);
        assert_int_equal(m.num_calls, 3);
        assert_int_equal(cr_plan_moved(&r, &place, cases[i].flow, CR_PLAN_UPDATE).num_calls, 0);
        if (r.mesh.num_fsdp * hosts <= ranks) assert_int_equal(i < 2 ? m.into_bytes : 0, 0);
    }
}

static void bytes_are_those_of_a_count(void **state)
{
    static const int sizes[] = {1, 2, 4, 8, 16};

    (void)state;
    for (int ranks = 4; ranks <= 32; ranks *= 2)
        for (int hosts = 1; hosts <= 4; hosts *= 2)
            for (size_t i = 0; i < CR_COUNT(sizes); i++)
                for (int nccl = 0; nccl < 2 && sizes[i] <= ranks; nccl++)
                    check(ranks, sizes[i], hosts, nccl);
}

static void times_are_sums(void **state)
{
    int host_of[16];
    cr_plan_call call;
    cr_plan_role r = role_of(16, 16, &call, CR_AXIS_FSDP, CR_COLL_ALL_GATHER, 0);
    cr_plan_place place = {host_of, 2, false};
    cr_rates rates = {.products.per_s = 100, .attention.per_s = 10, .memory.per_s = 1000};
    cr_pass_time t;

    (void)state;
    for (int i = 0; i < 16; i++)
        host_of[i] = i / 8;
    r.passes.work[CR_PLAN_NEXT] = (struct cr_plan_work){500, 100, 2000};
    t = cr_plan_time(&r, &place, &rates, CR_PLAN_NEXT);
    check_near(t.compute_s, 4 + 10 + 2, 1e-9);
    assert_true(t.is_compute_known && !t.is_network_known);
    assert_true(cr_plan_step_s(&r, &place, &rates) <= 0);
    rates.link.per_s = BYTES; /* half of each of three calls enters: 0.5 s each */
    t = cr_plan_time(&r, &place, &rates, CR_PLAN_NEXT);
    check_near(t.flow_s[CR_FLOW_GATHERS], 1.5, 1e-9);
    check_near(t.exposed_s, 0.5, 1e-9); /* the first gather */
    check_near(cr_plan_step_s(&r, &place, &rates), 2 * 16.5, 1e-9);
    rates.link.per_s = BYTES / 100.0;
    t = cr_plan_time(&r, &place, &rates, CR_PLAN_NEXT);
    check_near(t.all_s, 150, 1e-9);
    rates.latency_s = 1;
    check_near(cr_plan_time(&r, &place, &rates, CR_PLAN_NEXT).all_s, 156, 1e-9);
    rates.inside.per_s = BYTES / 1000.0; /* a rank has 7/8 B - 7/128 B of each call from its host */
    t = cr_plan_time(&r, &place, &rates, CR_PLAN_NEXT);
    check_near(t.flow_s[CR_FLOW_GATHERS], 3 * 1000 * (15.0 / 16 - 0.5 / 8), 1e-6);
}

static void weights_enter_a_host_once(void **state)
{
    int senders[8], receivers[4] = {0, 0, 0, 2};
    cr_plan_call call;
    cr_plan_role train = role_of(8, 4, &call, CR_AXIS_FSDP, CR_COLL_ALL_GATHER, 0), infer = {0};
    int64_t bytes[6] = {100, 100, 100, 100};
    cr_sync_moved m;

    (void)state;
    train.sent_bytes = bytes;
    train.mesh.num_ep = train.mesh.num_efsdp = 1;
    for (int i = 0; i < 8; i++)
        senders[i] = i / 4;
    infer.mesh.num_ranks = 4;
    infer.synced.num_bytes = 400;
    m = cr_plan_sync(&train, &(cr_plan_place){senders, 2, false}, &infer,
                     &(cr_plan_place){receivers, 3, false});
    assert_int_equal(m.engine_bytes, 400);
    check_near(m.into_bytes, 400, 1e-9); /* host 2; host 0 has a replica */
    receivers[3] = 0;
    m = cr_plan_sync(&train, &(cr_plan_place){senders, 2, false}, &infer,
                     &(cr_plan_place){receivers, 3, false});
    check_near(m.into_bytes, 0, 0);
    senders[3] = 1; /* of shard 3 no replica is on host 0: it comes once, for three engines */
    m = cr_plan_sync(&train, &(cr_plan_place){senders, 2, false}, &infer,
                     &(cr_plan_place){receivers, 3, false});
    check_near(m.into_bytes, 100, 1e-9);
    /* four ranks with the experts of one half each, cut in two: all of host 1 are missing on host 0 */
    train.mesh = (cr_mesh_shape){.num_ranks = 4, .num_fsdp = 4, .num_efsdp = 2, .num_ep = 2};
    memcpy(bytes, (const int64_t[]){10, 20, 30, 40, 1000, 3000}, sizeof bytes);
    m = cr_plan_sync(&train, &(cr_plan_place){(const int[]){0, 1, 0, 1}, 2, false}, &infer,
                     &(cr_plan_place){receivers, 3, false});
    check_near(m.into_bytes, 20 + 40 + 1000 + 3000, 1e-9);
}

static void rates_have_units(void **state)
{
    static const struct {
        const char *text;
        double want;
    } good[] = {{"400GB/s", 400e9},
                {"100Mbit/s", 12.5e6},
                {"3.2Tb/s", 400e9},
                {"1e3B/s", 1000},
                {"12.3gB/s", 12.3e9}};
    static const char *const bad[] = {"",         "400",     "GB/s",   "-1GB/s", "400GB",
                                      "400GiB/s", "400Gbps", "nanB/s", "0.1B/s", "1e30GB/s"};
    double x;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(good); i++) {
        cr_err err = {0};
        if (cr_rate_read(good[i].text, "--link", &x, &err) != CR_OK) fail_msg("%s", err.msg);
        check_near(x, good[i].want, 1e-9 * good[i].want);
    }
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        cr_err err = {0};
        if (cr_rate_read(bad[i], "--link", &x, &err) != CR_EUSAGE) fail_msg("%s is a rate", bad[i]);
    }
}

static void files_of_rates(void **state)
{
    static const char links[] =
        "{\"hosts\":[\"a\",\"b\"],\"links\":[{\"from\":\"a\",\"to\":\"b\",\"bytes_per_s\":2e9,"
        "\"latency_s\":1e-5},{\"from\":\"b\",\"to\":\"a\",\"bytes_per_s\":1e9,\"latency_s\":2e-5}]"
        "}";
    static const char *const bad[] = {"", "[]", "{}", "{\"device\":\"x\",\"memory_bytes_per_s\":0}",
                                      "{\"device\":\"x\",\"product_flops_per_s\":\"9\"}"};
    cr_buf text = {0};
    cr_rates r = {.inside.per_s = 7};
    cr_err err = {0};

    (void)state;
    cr_rates_write("cpu \"x\"", 1e11, 2e10, 3e9, &text);
    if (cr_rates_read(text.data, text.num_bytes, "F", &r, &err) != CR_OK) fail_msg("%s", err.msg);
    check_near(r.products.per_s, 1e11, 1);
    check_near(r.memory.per_s, 3e9, 1);
    check_near(r.inside.per_s, 7, 0); /* as it was */
    assert_non_null(strstr(r.attention.source, "cpu \"x\""));
    if (cr_rates_read_links(links, sizeof links - 1, "L", &r, &err) != CR_OK)
        fail_msg("%s", err.msg);
    check_near(r.link.per_s, 1e9, 1);
    check_near(r.latency_s, 2e-5, 1e-12);
    assert_non_null(strstr(r.link.source, "b to a"));
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        err = (cr_err){0};
        assert_int_not_equal(cr_rates_read(bad[i], strlen(bad[i]), "F", &r, &err), CR_OK);
        err = (cr_err){0};
        assert_int_not_equal(cr_rates_read_links(bad[i], strlen(bad[i]), "F", &r, &err), CR_OK);
    }
    cr_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_a_count), cmocka_unit_test(times_are_sums),
        cmocka_unit_test(weights_enter_a_host_once), cmocka_unit_test(rates_have_units),
        cmocka_unit_test(files_of_rates)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
