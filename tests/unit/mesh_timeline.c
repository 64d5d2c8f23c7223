/* mesh_timeline.c -- records of several ranks merged: what agrees is silent; another name, kind or size, a
 * rank that stopped earlier, one that is missing and a damaged file are named with ranks and units; one
 * clock a host. Records of real ranks are read in tests/e2e/pages.sh.
 * Not covered: rings of ranks that disagree further back than a ring reaches.
 */
#include "mesh/collectives.h"
#include "mesh/timeline.h"
#include "tests/check_near.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CALLS = 6 };

/* Two ranks of actor_train: gathers and reductions of three units, in one group. */
static cr_flight_log *make_logs(size_t num)
{
    cr_flight_log *log = CR_NEW_ARRAY(cr_flight_log, num);

    for (size_t r = 0; r < num; r++) {
        log[r].rank = (int)r;
        log[r].clock = 7;
        log[r].wall_offset_s = 1000 + 0.001 * (double)r;
        snprintf(log[r].role, sizeof log[r].role, "actor_train");
        log[r].event = CR_NEW_ARRAY(cr_flight_event, CALLS);
        log[r].num_events = CALLS;
        for (unsigned i = 0; i < CALLS; i++) {
            cr_flight_event *e = &log[r].event[i];
            *e = (cr_flight_event){.sequence = 10 + i,
                                   .coll = i % 2 ? CR_COLL_REDUCE_SCATTER : CR_COLL_ALL_GATHER,
                                   .num_bytes = 4096,
                                   .begin_s = 5 + i,
                                   .end_s = 5.5 + i,
                                   .group_tag = 99,
                                   .num_ranks = (unsigned)num,
                                   .group = "actor_train.fsdp"};
            snprintf(e->name, sizeof e->name, "model.layers.%u", i / 2);
        }
    }
    return log;
}

static void expect(const cr_timeline *t, const char *text)
{
    if (t->findings.num_bytes && strstr(t->findings.data, text)) return;
    print_error("not said: %s\n%s\n", text, t->findings.num_bytes ? t->findings.data : "nothing");
    fail();
}

static size_t num_findings(const cr_timeline *t)
{
    size_t num = 0;

    for (size_t i = 0; i < t->findings.num_bytes; i++)
        num += t->findings.data[i] == '\n';
    return num;
}

static void agreeing_ranks(void **state)
{
    cr_timeline t;

    (void)state;
    cr_timeline_merge(make_logs(3), 3, &t);
    assert_int_equal(num_findings(&t), 0);
    /* one clock: the offsets, taken at different times, are not mixed */
    assert_true(t.shift_s[0] == 1000 && t.shift_s[2] == 1000 && !t.has_hosts);
    assert_true(t.begin_s == 1005 && t.end_s == 1010.5);
    cr_timeline_free(&t);
}

/* Bytes of gathers are those of all ranks; of byte strings they are one's own. */
static void own_bytes(void **state)
{
    cr_flight_log *log = make_logs(2);
    cr_timeline t;

    (void)state;
    for (int r = 0; r < 2; r++)
        log[r].event[2].coll = CR_COLL_GATHER_BYTES;
    log[1].event[2].num_bytes = 3;
    cr_timeline_merge(log, 2, &t);
    assert_int_equal(num_findings(&t), 0);
    cr_timeline_free(&t);
}

static void other_unit(void **state)
{
    cr_flight_log *log = make_logs(3);
    cr_timeline t;

    (void)state;
    snprintf(log[1].event[2].name, sizeof log[1].event[2].name, "model.layers.7");
    log[1].event[4].num_bytes = 1; /* follows from it: not said */
    cr_timeline_merge(log, 3, &t);
    assert_int_equal(num_findings(&t), 1);
    expect(&t,
           "call 12 of group actor_train.fsdp: rank 0 (actor_train), rank 2 (actor_train) called "
           "all_gather model.layers.1 of 4096 bytes; rank 1 (actor_train) called all_gather "
           "model.layers.7 of 4096 bytes");
    cr_timeline_free(&t);
}

static void other_bytes(void **state)
{
    cr_flight_log *log = make_logs(2);
    cr_timeline t;

    (void)state;
    log[1].event[5].num_bytes = 2048;
    cr_timeline_merge(log, 2, &t);
    assert_int_equal(num_findings(&t), 1);
    expect(&t, "call 15 of group actor_train.fsdp");
    expect(&t, "rank 1 (actor_train) called reduce_scatter model.layers.2 of 2048 bytes");
    cr_timeline_free(&t);
}

static void stopped_rank(void **state)
{
    cr_flight_log *log = make_logs(2);
    cr_timeline t;

    (void)state;
    log[1].num_events = 4;
    log[0].event[4].end_s = 0;
    log[0].num_events = 5;
    cr_timeline_merge(log, 2, &t);
    assert_int_equal(num_findings(&t), 1);
    expect(&t, "rank 1 (actor_train) stopped at call 13 of group actor_train.fsdp, reduce_scatter "
               "model.layers.1 of 4096 bytes; rank 0 (actor_train) went on to call 14, all_gather "
               "model.layers.2 of 4096 bytes, and waited there");
    cr_timeline_free(&t);
}

/* Rank 1 hangs after its third call, the others wait and give up, then it goes on for a moment. */
static void late_rank(void **state)
{
    cr_flight_log *log = make_logs(3);
    cr_timeline t;

    (void)state;
    for (int r = 0; r < 3; r += 2) {
        log[r].num_events = 4;
        log[r].event[3].end_s = 0;
    }
    for (int i = 3; i < CALLS; i++)
        log[1].event[i].begin_s += 30;
    cr_timeline_merge(log, 3, &t);
    assert_int_equal(num_findings(&t), 2);
    expect(&t,
           "rank 1 (actor_train) did nothing for 31.0 s after all_gather model.layers.1 of 4096 "
           "bytes, while others waited for it");
    expect(&t, "rank 1 (actor_train) stopped at call 12 of group actor_train.fsdp, all_gather "
               "model.layers.1 of 4096 bytes; rank 0 (actor_train) went on to call 13");
    cr_timeline_free(&t);
}

/* Groups of one name, as the shard groups of two replicas are, are not mixed. */
static void two_groups(void **state)
{
    cr_flight_log *log = make_logs(2);
    cr_timeline t;

    (void)state;
    for (unsigned i = 0; i < CALLS; i++)
        for (unsigned r = 0; r < 2; r++)
            log[r].event[i].group_tag = 50 + r, log[r].event[i].num_ranks = 1;
    log[1].event[3].num_bytes = 8;
    log[1].num_events = 4;
    log[0].clock = 3;
    cr_timeline_merge(log, 2, &t);
    assert_int_equal(num_findings(&t), 0);
    assert_true(t.has_hosts && t.shift_s[1] == 1000.001);
    cr_timeline_free(&t);
}

/* Two hosts whose clocks are 1000 s apart and drift by 50 us a second: the same moments are the same after merging. */
static void round_trips(void **state)
{
    enum { DRIFTED = 1 };
    const double drift = 50e-6;
    cr_flight_log *log = make_logs(2);
    cr_timeline t;

    (void)state;
    log[0].asked[0] = (cr_flight_clock){5, 5000, 1e-5};
    log[0].asked[1] = (cr_flight_clock){25, 5000, 2e-5};
    log[DRIFTED].clock = 8;
    for (int k = 0; k < 2;
         k++) { /* its clock at second s of the other one is 1000 + s (1 - drift) */
        double s = k ? 25 : 5;
        log[DRIFTED].asked[k] =
            (cr_flight_clock){1000 + s * (1 - drift), 5000 - 1000 + s * drift, 1e-5};
    }
    for (int i = 0; i < CALLS; i++) {
        cr_flight_event *e = &log[DRIFTED].event[i];
        e->begin_s = 1000 + e->begin_s * (1 - drift);
        e->end_s = 1000 + e->end_s * (1 - drift);
    }
    cr_timeline_merge(log, 2, &t);
    assert_true(t.has_hosts && t.error_s == 4e-5);
    for (int i = 0; i < CALLS; i++)
        check_near(t.log[1].event[i].end_s + t.shift_s[1], t.log[0].event[i].end_s + t.shift_s[0],
                   1e-6);
    cr_timeline_free(&t);
}

static void missing_rank(void **state)
{
    cr_flight_log *log = make_logs(3);
    cr_timeline t;

    (void)state;
    cr_flight_log_free(&log[2]);
    cr_timeline_merge(log, 2, &t);
    assert_int_equal(num_findings(&t), 1);
    expect(&t, "has 3 ranks, but only 2 of them have left a record");
    cr_timeline_free(&t);
}

/* Files that a world has written; one of them damaged. */
static void files(void **state)
{
    static const char folder[] = "/tmp/croll-timeline-test";
    cr_world_args args = {.kind = CR_WORLD_LOCAL};
    cr_err err = {0};
    cr_world *world;
    cr_timeline t;
    cr_group *group;
    int zero = 0;

    (void)state;
    assert_int_equal(cr_remove_tree(folder, &err), CR_OK);
    assert_int_equal(cr_timeline_read(folder, &t, &err), CR_EIO);
    err = (cr_err){0};
    assert_int_equal(cr_mkdirs(folder, &err), CR_OK);
    assert_int_equal(cr_world_open(&args, &world, &err), CR_OK);
    assert_int_equal(cr_group_create(world, NULL, "one", &zero, 1, &group, &err), CR_OK);
    assert_int_equal(cr_flight_open(world, "/tmp/croll-timeline-test/rank-00.bin", &err), CR_OK);
    cr_world_set_phase(world, "sft_train", "sft_step");
    for (int i = 0; i < 5000; i++) /* longer than the ring */
        assert_int_equal(cr_barrier(group, "here", &err), CR_OK);
    cr_world_set_phase(world, NULL, "save");
    assert_int_equal(cr_file_write_atomic("/tmp/croll-timeline-test/rank-01.bin", "CRFLT", 5, &err),
                     CR_OK);
    assert_int_equal(cr_timeline_read(folder, &t, &err), CR_OK);
    assert_int_equal(t.num_logs, 1);
    expect(&t, "rank-01.bin: 5 bytes are too few");
    assert_int_equal(t.log[0].count[CR_COLL_BARRIER].num, 5000);
    assert_int_equal(t.log[0].num_phases, 1);
    assert_string_equal(t.log[0].phase[0].name, "sft_step");
    assert_true(t.log[0].phase[0].total_s > 0);
    assert_string_equal(t.log[0].phase_now, "save");
    assert_string_equal(t.log[0].event[t.log[0].num_events - 2].name, "sft_step"); /* once more */
    assert_true(t.log[0].event[t.log[0].num_events - 2].end_s > 0);
    assert_string_equal(cr_timeline_last(&t.log[0])->name, "here");
    cr_timeline_free(&t);
    cr_group_destroy(group);
    cr_world_close(world);
    assert_int_equal(cr_remove_tree(folder, &err), CR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agreeing_ranks), cmocka_unit_test(own_bytes),
        cmocka_unit_test(other_unit),     cmocka_unit_test(other_bytes),
        cmocka_unit_test(stopped_rank),   cmocka_unit_test(two_groups),
        cmocka_unit_test(late_rank),      cmocka_unit_test(round_trips),
        cmocka_unit_test(missing_rank),   cmocka_unit_test(files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
