/* mesh_shape.c -- the tables of meshes (C1) and their errors (C2), without ranks; the meta world's
 * groups, buffers and counters. Not covered: anything that communicates (tests/mesh).
 * // also on cuda */
#include "mesh/collectives.h"
#include "mesh/flight.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

static cr_mesh_shape shape_of(int w, int f, int p, int e, int ef)
{
    cr_mesh_shape s;
    cr_err err = {0};

    if (cr_mesh_shape_init(&s, w, f, p, e, ef, &err) != CR_OK) fail_msg("%s", err.msg);
    return s;
}

/* C1: the worked example W=8, F=4, P=2, coordinate by coordinate. */
static void c1_worked_example(void **state)
{
    static const int ddp[] = {0, 0, 0, 0, 1, 1, 1, 1}, fsdp[] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const int sp[] = {0, 1, 0, 1, 0, 1, 0, 1}, dp[] = {0, 0, 1, 1, 2, 2, 3, 3};
    cr_mesh_shape s = shape_of(8, 4, 2, 1, 0);
    int members[8];

    (void)state;
    for (int r = 0; r < 8; r++) {
        assert_int_equal(cr_mesh_axis_rank(&s, CR_AXIS_DDP, r), ddp[r]);
        assert_int_equal(cr_mesh_axis_rank(&s, CR_AXIS_FSDP, r), fsdp[r]);
        assert_int_equal(cr_mesh_axis_rank(&s, CR_AXIS_ULYSSES, r), sp[r]);
        assert_int_equal(cr_mesh_axis_rank(&s, CR_AXIS_DP, r), dp[r]);
        assert_int_equal(cr_mesh_members(&s, CR_AXIS_DDP, r, members), 2);
        assert_int_equal(members[0], r % 4);
        assert_int_equal(members[1], r % 4 + 4);
        assert_int_equal(cr_mesh_members(&s, CR_AXIS_FSDP, r, members), 4);
        assert_int_equal(members[0], r / 4 * 4);
        assert_int_equal(members[3], r / 4 * 4 + 3);
    }
}

/* C1: every group contains its rank at its coordinate and is listed the same by each member. */
static void c1_groups_partition(void **state)
{
    static const int sizes[] = {1, 4, 8, 16}, ulysses[] = {1, 2, 4};
    int members[8], again[8];

    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 3; j++) {
            cr_mesh_shape s = shape_of(8, sizes[i], ulysses[j], 2, 2);
            assert_int_equal(s.num_fsdp, sizes[i] == 4 ? 4 : 8);
            assert_int_equal(s.num_ddp * s.num_fsdp, 8);
            assert_int_equal(s.num_eddp, 2);
            for (int axis = 0; axis < CR_NUM_AXES; axis++)
                for (int r = 0; r < 8; r++) {
                    int n = cr_mesh_members(&s, (cr_axis)axis, r, members);
                    assert_int_equal(n, cr_mesh_axis_ranks(&s, (cr_axis)axis));
                    assert_int_equal(members[cr_mesh_axis_rank(&s, (cr_axis)axis, r)], r);
                    for (int m = 0; m < n; m++) {
                        cr_mesh_members(&s, (cr_axis)axis, members[m], again);
                        assert_memory_equal(members, again, sizeof(int) * (size_t)n);
                    }
                }
        }
}

static void c1_experts(void **state)
{
    cr_mesh_shape s = shape_of(8, 8, 1, 2, 2); /* (eddp, efsdp, ep) = (2, 2, 2) */
    int members[2];

    (void)state;
    cr_mesh_members(&s, CR_AXIS_EP, 5, members);
    assert_int_equal(members[0], 4);
    cr_mesh_members(&s, CR_AXIS_EFSDP, 5, members);
    assert_int_equal(members[1], 7);
    cr_mesh_members(&s, CR_AXIS_EDDP, 5, members);
    assert_int_equal(members[0], 1);
}

static void expect_id(cr_status status, const cr_err *err, const char *id)
{
    if (status != CR_ECONFIG || strncmp(err->msg, id, strlen(id)) != 0)
        fail_msg("wanted %s, got %d: %s", id, (int)status, err->msg);
}

/* C2 */
static void c2_errors(void **state)
{
    static const struct {
        int w, f, p, e, ef;
        const char *id;
    } bad[] = {{8, 3, 1, 1, 0, "M1:"}, {8, 8, 3, 1, 0, "M2:"},  {8, 8, 16, 1, 0, "M2:"},
               {8, 8, 0, 1, 0, "M2:"}, {8, 2, 4, 1, 0, "M3:"},  {8, 8, 1, 3, 2, "M7:"},
               {8, 8, 1, 2, 3, "M7:"}, {8, 8, 1, 16, 0, "M7:"}, {8, 8, 1, 4, 4, "M7:"}};
    cr_mesh_shape s;
    cr_err err;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        err = (cr_err){0};
        expect_id(cr_mesh_shape_init(&s, bad[i].w, bad[i].f, bad[i].p, bad[i].e, bad[i].ef, &err),
                  &err, bad[i].id);
    }
    s = shape_of(8, 1, 4, 1, 0); /* fsdp_size 1 is pure FSDP: M3 must not reject it */
    err = (cr_err){0};
    expect_id(cr_mesh_check_heads(&s, 6, 2, &err), &err, "M4:");
    s = shape_of(8, 8, 2, 2, 0);
    err = (cr_err){0};
    expect_id(cr_mesh_check_heads(&s, 6, 3, &err), &err, "M5:");
    err = (cr_err){0};
    expect_id(cr_mesh_check_experts(&s, 5, &err), &err, "M8:");
    err = (cr_err){0};
    assert_int_equal(cr_mesh_check_heads(&s, 6, 1, &err), CR_OK); /* 2 % 1 == 0: repeated */
}

/* A meta world of 4096 ranks: same calls, nothing moved, exact counts, no memory. */
static void meta_counts(void **state)
{
    cr_world_args args = {.kind = CR_WORLD_META, .meta_rank = 5, .meta_num_ranks = 4096};
    size_t huge = (size_t)1 << 40;
    int *ranks = CR_NEW_ARRAY(int, 4096);
    cr_err err = {0};
    cr_mesh_shape s = shape_of(4096, 256, 2, 1, 0);
    cr_world *world;
    cr_mesh *mesh;
    cr_gather *gather;
    cr_reduce *reduce;
    const cr_mem *whole;
    cr_mem *part;
    cr_mem *data;
    double x[2] = {1, 2};

    (void)state;
    for (int i = 0; i < 4096; i++)
        ranks[i] = i;
    assert_int_equal(cr_world_open(&args, &world, &err), CR_OK);
    assert_int_equal(cr_mesh_create(world, NULL, "actor_train", ranks, &s, &mesh, &err), CR_OK);
    assert_int_equal(cr_group_num_ranks(mesh->group[CR_AXIS_DDP]), 16);
    assert_int_equal(cr_gather_create(mesh->group[CR_AXIS_FSDP], 2, huge, &gather, &err), CR_OK);
    assert_int_equal(cr_reduce_create(mesh->group[CR_AXIS_FSDP], 1, huge / 4, &reduce, &err),
                     CR_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cr_gather_announce(gather, i % 2, "unit", huge / 256, &err), CR_OK);
        assert_int_equal(cr_gather_begin(gather, i % 2, &part, &err), CR_OK);
        assert_int_equal(cr_gather_publish(gather, i % 2, &err), CR_OK);
        assert_int_equal(cr_gather_wait(gather, i % 2, &whole, &err), CR_OK);
        assert_true(part == cr_mem_add_const(whole, 5 * (huge / 256)));
        assert_int_equal(cr_gather_release(gather, i % 2, &err), CR_OK);
    }
    assert_int_equal(cr_reduce_begin(reduce, 0, &data, &err), CR_OK);
    assert_int_equal(cr_reduce_publish(reduce, 0, "unit", huge / 4 / 256, CR_REDUCE_BF16, &err),
                     CR_OK);
    assert_int_equal(cr_reduce_finish(reduce, 0, NULL, CR_REDUCE_SET, &err), CR_OK);
    assert_int_equal(cr_all_reduce_f64(mesh->group[CR_AXIS_ALL], "n", CR_OP_SUM, x, 2, &err),
                     CR_OK);
    assert_true(x[0] == 1 && x[1] == 2);
    assert_int_equal(cr_flight_get_count(world, CR_COLL_ALL_GATHER).num, 3);
    assert_true(cr_flight_get_count(world, CR_COLL_ALL_GATHER).num_bytes == 3 * huge);
    assert_true(cr_flight_get_count(world, CR_COLL_REDUCE_SCATTER).num_bytes == huge / 2);
    assert_true(cr_flight_get_count(world, CR_COLL_ALL_REDUCE).num_bytes == 16);
    cr_reduce_destroy(reduce);
    cr_gather_destroy(gather);
    cr_mesh_destroy(mesh);
    cr_world_close(world);
    cr_free(ranks);
}

/* The same calls with memory of the device ($CROLL_DEVICE): buffers are made, and
 * nothing waits for ranks that there are not. */
static void meta_on_a_device(void **state)
{
    enum { RANKS = 4, PART = 32, BYTES = RANKS * PART };
    cr_world_args args = {.kind = CR_WORLD_META, .meta_rank = 2, .meta_num_ranks = RANKS};
    const size_t each[RANKS] = {16, 32, 48, 32}, other[RANKS] = {8, 24, 48, 48};
    const cr_piece send = {1, 0, 16}, receive = {3, 64, 32};
    const int ranks[RANKS] = {0, 1, 2, 3};
    cr_gather *gather;
    const cr_mem *whole;
    cr_mem *part, *mem;
    cr_err err = {0};
    cr_world *world;
    cr_group *group;
    cr_device *dev;

    (void)state;
    assert_int_equal(cr_world_open(&args, &world, &err), CR_OK);
    assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
    assert_int_equal(cr_group_create(world, dev, "fsdp", ranks, RANKS, &group, &err), CR_OK);
    assert_int_equal(cr_gather_create(group, 1, BYTES, &gather, &err), CR_OK);
    assert_int_equal(cr_gather_announce(gather, 0, "unit", PART, &err), CR_OK);
    assert_int_equal(cr_gather_begin(gather, 0, &part, &err), CR_OK);
    assert_int_equal(cr_gather_publish(gather, 0, &err), CR_OK);
    assert_int_equal(cr_gather_wait(gather, 0, &whole, &err), CR_OK);
    assert_true(part == cr_mem_add_const(whole, 2 * PART));
    assert_int_equal(cr_device_alloc(dev, BYTES, &mem, &err), CR_OK);
    assert_int_equal(cr_all_to_all(group, "rows", mem, each, mem, other, &err), CR_OK);
    assert_int_equal(cr_transfer(group, "weights", mem, &send, 1, mem, &receive, 1, &err), CR_OK);
    assert_int_equal(cr_gather_release(gather, 0, &err), CR_OK);
    cr_device_free(dev, mem, BYTES);
    cr_gather_destroy(gather);
    cr_group_destroy(group);
    cr_device_close(dev);
    cr_world_close(world);
}

/* The ring in a file: read back, wrapped around; a damaged file is refused. */
static void flight_file(void **state)
{
    static const char path[] = "/tmp/croll-flight-test.bin";
    cr_world_args args = {.kind = CR_WORLD_LOCAL};
    cr_err err = {0};
    cr_flight_log log;
    cr_world *world;
    cr_group *group;
    cr_buf file = {0};
    char name[32];
    int zero = 0;

    (void)state;
    assert_int_equal(cr_world_open(&args, &world, &err), CR_OK);
    assert_int_equal(cr_group_create(world, NULL, "one", &zero, 1, &group, &err), CR_OK);
    cr_world_set_phase(world, "actor_train", "start");
    assert_int_equal(cr_flight_open(world, path, &err), CR_OK);
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "b%d", i);
        assert_int_equal(cr_barrier(group, name, &err), CR_OK);
    }
    assert_int_equal(cr_flight_read(path, &log, &err), CR_OK);
    assert_int_equal(log.num_events, 4095); /* the oldest may be torn */
    assert_string_equal(log.event[4094].name, "b4999");
    assert_string_equal(log.event[0].name, "b905");
    assert_int_equal(log.event[4094].sequence, 5000);
    assert_string_equal(log.role, "actor_train");
    cr_flight_log_free(&log);
    assert_int_equal(cr_file_read(path, &file, &err), CR_OK);
    file.data[file.num_bytes - 1] = 'x';
    memset(file.data + file.num_bytes - 64, 'x', 64);
    assert_int_equal(cr_file_write_atomic(path, file.data, file.num_bytes, &err), CR_OK);
    assert_int_equal(cr_flight_read(path, &log, &err), CR_EFORMAT);
    cr_buf_free(&file);
    cr_group_destroy(group);
    cr_world_close(world);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c1_worked_example), cmocka_unit_test(c1_groups_partition),
        cmocka_unit_test(c1_experts),        cmocka_unit_test(c2_errors),
        cmocka_unit_test(meta_counts),       cmocka_unit_test(meta_on_a_device),
        cmocka_unit_test(flight_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
