/* samples_protocol.c -- roles and the commands they take: names are found by their roles only, ranks are assigned in
 * order, runs of either kind. Not covered: what commands do (e2e). */
#include "samples/protocol.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

static void test_commands_are_found_by_their_roles_only(void **state)
{
    static const cr_worker_config train = {.name = "actor_train", .task = CR_TASK_TRAIN},
                                  infer = {.name = "actor_infer", .task = CR_TASK_GENERATE},
                                  reference = {.name = "reference", .task = CR_TASK_SCORE},
                                  follower = {.name = "reference", .task = CR_TASK_FOLLOW},
                                  critic = {.name = "critic", .task = CR_TASK_VALUE},
                                  *const all[] = {&train, &infer, &reference, &follower, &critic};
    int num = 0;

    (void)state;
    for (int a = 0; a < CR_NUM_ASKS; a++)
        for (size_t r = 0; r < CR_COUNT(all); r++) {
            cr_err err = {0};
            cr_ask found = CR_NUM_ASKS;
            cr_status status = cr_ask_find(cr_ask_name((cr_ask)a), all[r], &found, &err);
            if (cr_ask_is_for((cr_ask)a, all[r])) {
                assert_int_equal(status, CR_OK);
                assert_int_equal(found, a);
                num++;
            } else {
                assert_int_equal(status, CR_EFORMAT);
                assert_non_null(strstr(err.msg, cr_ask_name((cr_ask)a)));
            }
        }
    assert_int_equal(num, 32);
    assert_true(cr_ask_is_for(CR_ASK_VALUES, &critic));
    assert_true(cr_ask_is_for(CR_ASK_RESUME, &critic));
    assert_false(cr_ask_is_for(CR_ASK_SYNC, &critic)); /* engines have actor_train's */
    assert_true(cr_ask_is_for(CR_ASK_LOG_PROBS, &reference));
    assert_false(cr_ask_is_for(CR_ASK_SAVE, &reference));
    assert_true(cr_ask_is_for(CR_ASK_SAVE, &follower));
    assert_false(cr_ask_is_for(CR_ASK_SYNC_REFERENCE, &reference));
    assert_true(cr_ask_is_for(CR_ASK_SYNC_REFERENCE, &train));
    assert_false(cr_ask_is_for(CR_ASK_TRAIN_STEP, &follower));
    assert_false(cr_ask_is_for(CR_ASK_GENERATE, &train));
    assert_false(cr_ask_is_for(CR_ASK_STOP, NULL)); /* not in the run */
}

static void test_unknown_commands(void **state)
{
    static const cr_worker_config worker = {.name = "actor_train", .task = CR_TASK_TRAIN};
    cr_err err = {0};
    cr_ask found;

    (void)state;
    assert_int_equal(cr_ask_find("train", &worker, &found, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "actor_train does not know the command train"));
}

static void check_ranks(const cr_config *config, const char *const names[CR_NUM_ROLES],
                        const int nums[CR_NUM_ROLES])
{
    cr_layout layout;
    char text[64], want[64];
    int first = 0;

    cr_layout_init(&layout, config);
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        assert_string_equal(layout.role[r].name, names[r]);
        assert_int_equal(layout.role[r].num, nums[r]);
        assert_int_equal(layout.role[r].worker != NULL, nums[r] > 0);
        for (int i = 0; i < nums[r]; i++) {
            snprintf(want, sizeof want, "%s rank %d", names[r], i);
            assert_int_equal(cr_layout_role(&layout, first + i), r);
            assert_string_equal(cr_layout_name(&layout, first + i, text), want);
        }
        first += nums[r];
    }
    snprintf(want, sizeof want, "rank %d", first);
    assert_int_equal(layout.num_ranks, first);
    assert_int_equal(cr_layout_role(&layout, first), CR_NUM_ROLES);
    assert_string_equal(cr_layout_name(&layout, first, text), want);
}

static void test_ranks_are_assigned_in_order(void **state)
{
    static const char *const names[] = {"actor_train", "actor_infer", "reference", "teacher",
                                        "teacher_2",   "teacher_3",   "teacher_4", "critic"};
    cr_config c = {.kind = CR_PIPELINE_RLVR,
                   .reference.is_needed = true,
                   .teacher.is_needed = true,
                   .critic.is_needed = true};

    (void)state;
    c.train.num_devices = 2;
    c.infer.num_devices = 3;
    c.reference.num_devices = 1;
    c.teacher.num_devices = 2;
    c.critic.num_devices = 4;
    check_ranks(&c, names, (const int[]){2, 3, 1, 2, 0, 0, 0, 4});
    c.reference.is_needed = false;
    check_ranks(&c, names, (const int[]){2, 3, 0, 2, 0, 0, 0, 4});
    c.critic.is_needed = false; /* another estimator than gae */
    check_ranks(&c, names, (const int[]){2, 3, 0, 2, 0, 0, 0, 0});
    c.kind = CR_PIPELINE_SFT;
    check_ranks(&c,
                (const char *const[]){"sft_train", "actor_infer", "reference", "teacher",
                                      "teacher_2", "teacher_3", "teacher_4", "critic"},
                (const int[]){2, 0, 0, 0, 0, 0, 0, 0});
    c.kind = CR_PIPELINE_DPO;
    c.reference.is_needed = true, c.teacher.is_needed = false;
    check_ranks(&c, names, (const int[]){2, 0, 1, 0, 0, 0, 0, 0});
    c.kind = CR_PIPELINE_DISTILL;
    c.teacher.is_needed = true;
    check_ranks(&c,
                (const char *const[]){"student", "actor_infer", "reference", "teacher", "teacher_2",
                                      "teacher_3", "teacher_4", "critic"},
                (const int[]){2, 0, 0, 2, 0, 0, 0, 0});
}

/* Numbers with the same rest on the same host share a GPU; roles with the same number count once. */
static void test_numbers_on_a_gpu(void **state)
{
    int train[] = {0, 1, 2, 3}, infer[] = {0, 4, 5};
    const int host_of[] = {0, 0, 1, 1, 0, 0, 1}; /* of ranks: those of actor_train first */
    cr_config c = {.kind = CR_PIPELINE_RLVR};
    cr_layout layout;

    (void)state;
    c.train.devices = train, c.train.num_devices = 4;
    c.infer.devices = infer, c.infer.num_devices = 3;
    cr_layout_init(&layout, &c);
    for (int r = 0; r < 7; r++) {
        assert_int_equal(cr_layout_num_on_gpu(&layout, r, 0, NULL), 1);
        assert_int_equal(cr_layout_num_on_gpu(&layout, r, 1, NULL), 6);
        assert_int_equal(cr_layout_num_on_gpu(&layout, r, 8, NULL), 1);
        assert_int_equal(cr_layout_num_on_gpu(&layout, r, 1, host_of), 3);
    }
    assert_int_equal(cr_layout_num_on_gpu(&layout, 0, 4, NULL), 2); /* 0 and 4 */
    assert_int_equal(cr_layout_num_on_gpu(&layout, 5, 4, NULL), 2);
    assert_int_equal(cr_layout_num_on_gpu(&layout, 2, 4, NULL), 1);
    assert_int_equal(cr_layout_num_on_gpu(&layout, 6, 4, host_of), 1); /* 1 is on the other host */
    assert_int_equal(cr_layout_num_on_gpu(&layout, 6, 2, host_of), 2); /* 5 and 3 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_are_found_by_their_roles_only),
        cmocka_unit_test(test_unknown_commands),
        cmocka_unit_test(test_ranks_are_assigned_in_order),
        cmocka_unit_test(test_numbers_on_a_gpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
