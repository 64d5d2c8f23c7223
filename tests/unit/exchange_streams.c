/* exchange_streams.c -- the life of a sample over a real redis-server on a private socket: one
 * delivery each, claims, duplicates, a dead consumer, a killed and restarted server; records.
 * Not covered: TCP, passwords, a server that is slow but alive. */
#include "exchange/exchange.h"
#include "exchange/record.h"
#include "tests/check_near.h"

#include <hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static cr_server_plan plan;
static pid_t server;
static char folder[] = "/tmp/croll-test-XXXXXX";

static void start_server(void)
{
    fflush(NULL);
    server = fork();
    if (server == 0) {
        execvp(plan.argv[0], plan.argv);
        _exit(127);
    }
}

/* What another user of the server may do at any time. */
static void flush_scripts(void)
{
    redisContext *c = redisConnectUnix(plan.socket_path);

    freeReplyObject(redisCommand(c, "SCRIPT FLUSH"));
    redisFree(c);
}

static int set_up(void **state)
{
    cr_err err = {0};

    (void)state;
    if (!mkdtemp(folder) || cr_server_plan_make(folder, NULL, &plan, &err) != CR_OK) return -1;
    start_server();
    return 0;
}

static int tear_down(void **state)
{
    cr_err err = {0};

    (void)state;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    cr_server_plan_free(&plan);
    return cr_remove_tree(folder, &err) == CR_OK ? 0 : -1;
}

static cr_exchange *open_fresh(void)
{
    cr_exchange *x;
    cr_err err = {0};

    const cr_exchange_args args = {
        .url = plan.url, .prefix = "t:", .deadline_s = 10, .may_be_starting = true};

    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_OK);
    return x;
}

static const char *const in[] = {"in"};

static void each_entry_is_delivered_once(void **state)
{
    cr_exchange *x = open_fresh(), *y = open_fresh();
    static const cr_stream_message moved[] = {
        {"out", "s0", "done", 4}, {"also", "s0", "more", 4}, {"out", "s1", "done", 4}};
    cr_entries got, other;
    cr_err err = {0};
    bool is_new;
    size_t num_new;

    (void)state;
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "out", "g", &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "out", "g", &err), CR_OK); /* again: nothing happens */
    assert_int_equal(cr_stream_make(x, "also", "g", &err), CR_OK);
    for (int i = 0; i < 10; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%d", i);
        assert_int_equal(cr_stream_put(x, "in", id, "a\0b", 3, &is_new, &err), CR_OK);
        assert_true(is_new);
    }
    assert_int_equal(cr_stream_put(x, "in", "s3", "again", 5, &is_new, &err), CR_OK);
    assert_false(is_new);
    assert_int_equal(cr_stream_take(x, in, 1, "g", "one", 6, 0, 60, &got, &err), CR_OK);
    assert_int_equal(cr_stream_take(y, in, 1, "g", "two", 6, 0, 60, &other, &err), CR_OK);
    assert_int_equal(got.num, 6);
    assert_int_equal(other.num, 4);
    assert_memory_equal(got.items[0].data, "a\0b", 3);
    assert_string_equal(other.items[0].id, "s6");
    assert_int_equal(cr_stream_move(x, &got.items[0], "g", moved, 2, &num_new, &err), CR_OK);
    assert_int_equal(num_new, 2);
    assert_int_equal(cr_stream_move(y, &got.items[0], "g", moved, 3, &num_new, &err), CR_OK);
    assert_int_equal(num_new, 1); /* the second scorer of one sample: what it has more */
    int64_t n;
    assert_int_equal(cr_stream_length(x, "out", &n, &err), CR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(cr_stream_length(x, "also", &n, &err), CR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(cr_stream_length(x, "in", &n, &err), CR_OK);
    assert_int_equal(n, 9);
    cr_entries_free(&got);
    cr_entries_free(&other);
    cr_exchange_close(x);
    cr_exchange_close(y);
}

static void what_a_dead_consumer_left_is_taken_over(void **state)
{
    cr_exchange *x = open_fresh();
    cr_entries got;
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    for (int i = 0; i < 4; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%d", i);
        assert_int_equal(cr_stream_put(x, "in", id, "x", 1, NULL, &err), CR_OK);
    }
    assert_int_equal(cr_stream_take(x, in, 1, "g", "worker-0", 3, 0, 60, &got, &err), CR_OK);
    assert_int_equal(got.num, 3);
    cr_entries_free(&got);
    cr_exchange_close(x); /* worker-0 dies with three entries in its hands */

    x = open_fresh(); /* its successor has its name and gets them at once */
    assert_int_equal(cr_stream_take(x, in, 1, "g", "worker-0", 10, 0, 60, &got, &err), CR_OK);
    assert_int_equal(got.num, 3);
    assert_string_equal(got.items[0].id, "s0");
    cr_entries_free(&got);
    assert_int_equal(cr_stream_take(x, in, 1, "g", "worker-0", 10, 0, 60, &got, &err), CR_OK);
    assert_int_equal(got.num, 1); /* then the new one */
    cr_entries_free(&got);
    cr_exchange_close(x);

    x = open_fresh(); /* a stranger gets them after claim_s */
    assert_int_equal(cr_stream_take(x, in, 1, "g", "worker-9", 10, 0.5, 0.05, &got, &err), CR_OK);
    assert_int_equal(got.num, 4);
    cr_entries_free(&got);
    cr_exchange_close(x);
}

static void a_killed_server_loses_nothing(void **state)
{
    cr_exchange *x = open_fresh();
    cr_entries got;
    cr_err err = {0};
    bool is_new;

    (void)state;
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    for (int i = 0; i < 50; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%d", i);
        assert_int_equal(cr_stream_put(x, "in", id, "x", 1, NULL, &err), CR_OK);
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    start_server();
    assert_int_equal(cr_stream_put(x, "in", "s49", "x", 1, &is_new, &err),
                     CR_OK); /* same connection */
    assert_false(is_new);
    assert_int_equal(cr_stream_take(x, in, 1, "g", "c", 100, 0, 60, &got, &err), CR_OK);
    assert_int_equal(got.num, 50);
    cr_entries_free(&got);
    cr_exchange_close(x);
}

static void a_reply_is_taken_once(void **state)
{
    cr_exchange *x = open_fresh();
    cr_buf got = {0};
    cr_err err = {0};
    bool is_there;

    (void)state;
    assert_int_equal(cr_reply_wait(x, "r1", 0.05, &got, &is_there, &err), CR_OK);
    assert_false(is_there);
    assert_int_equal(cr_reply_put(x, "r1", "a\0b", 3, &err), CR_OK);
    assert_int_equal(cr_reply_wait(x, "r1", 5, &got, &is_there, &err), CR_OK);
    assert_true(is_there && got.num_bytes == 3 && memcmp(got.data, "a\0b", 3) == 0);
    assert_int_equal(cr_reply_wait(x, "r1", 0.05, &got, &is_there, &err), CR_OK);
    assert_false(is_there);
    cr_buf_free(&got);
    cr_exchange_close(x);
}

/* What is sent with the next call comes in order, and a failure of it is that call's. */
static void later_commands_come_first(void **state)
{
    cr_exchange *x = open_fresh();
    cr_entries got;
    cr_err err = {0};
    int64_t n;

    (void)state;
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    for (int i = 0; i < 3; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%d", i);
        cr_stream_put_later(x, "in", id, "a\0b", 3);
    }
    flush_scripts(); /* of a connection that has loaded it */
    cr_stream_put_later(x, "in", "s1", "again", 5);
    assert_int_equal(cr_stream_length(x, "in", &n, &err), CR_OK);
    assert_int_equal(n, 3);
    assert_int_equal(cr_stream_take(x, in, 1, "g", "c", 2, 0, 60, &got, &err), CR_OK);
    assert_int_equal(got.num, 2);
    assert_memory_equal(got.items[1].data, "a\0b", 3);
    cr_stream_done(x, &got.items[0], 1, "g");
    cr_stream_put_later(x, "in", "s8", "x", 1);
    cr_stream_put_later(x, "in", "s9", "x", 1);
    kill(server, SIGKILL); /* lost with the connection, and sent again */
    waitpid(server, NULL, 0);
    start_server();
    assert_int_equal(cr_stream_length(x, "in", &n, &err), CR_OK);
    assert_int_equal(n, 4);
    cr_entries_free(&got);
    cr_stream_clear(x, "in");
    assert_int_equal(cr_stream_length(x, "in", &n, &err), CR_OK);
    assert_int_equal(n, 0);
    assert_int_equal(cr_value_set(x, "s:text", "1", &err), CR_OK);
    cr_stream_put_later(x, "text", "id", "x", 1); /* refused: that key is not a stream */
    assert_int_equal(cr_value_set(x, "other", "1", &err), CR_EIO);
    assert_non_null(strstr(err.msg, "EVAL"));
    cr_exchange_close(x);
}

/* The prefix is matched as it is, and the owner's key is not among the removed. */
static void a_prefix_has_one_owner(void **state)
{
    cr_exchange_args args = {
        .url = plan.url, .prefix = "a*:", .deadline_s = 10, .may_be_starting = true};
    cr_exchange *x, *y;
    cr_buf got = {0};
    cr_err err = {0}, refused = {0};
    const char *key = "hb:step";

    (void)state;
    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_OK);
    args.prefix = "ab:";
    assert_int_equal(cr_exchange_open(&args, &y, &err), CR_OK);
    assert_int_equal(cr_prefix_hold(x, "one", "the first", 0.5, &err), CR_OK);
    assert_int_equal(cr_prefix_hold(x, "one", "resumed", 0.5, &err), CR_OK);
    assert_int_equal(cr_prefix_hold(x, "two", "the second", 0.5, &refused), CR_ECONFIG);
    assert_non_null(strstr(refused.msg, "another run: resumed"));
    assert_int_equal(cr_prefix_hold(y, "two", "the second", 0.5, &err), CR_OK);
    assert_int_equal(cr_value_set(x, "hb:step", "3", &err), CR_OK);
    assert_int_equal(cr_value_set(y, "hb:step", "4", &err), CR_OK);
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_values_get(x, &key, 1, &got, &err), CR_OK);
    assert_int_equal(got.num_bytes, 0);
    assert_int_equal(cr_values_get(y, &key, 1, &got, &err), CR_OK);
    assert_string_equal(got.data, "4");
    refused = (cr_err){0};
    assert_int_equal(cr_prefix_hold(x, "two", "the second", 0.5, &refused), CR_ECONFIG);
    assert_int_equal(cr_prefix_release(x, "two", &err), CR_OK); /* it is not its own */
    refused = (cr_err){0};
    assert_int_equal(cr_prefix_hold(x, "two", "the second", 0.5, &refused), CR_ECONFIG);
    cr_sleep_s(0.6); /* the lease is over */
    assert_int_equal(cr_prefix_hold(x, "two", "the second", 0.5, &err), CR_OK);
    assert_int_equal(cr_prefix_release(x, "two", &err), CR_OK);
    assert_int_equal(cr_prefix_hold(x, "one", "the first", 0.5, &err), CR_OK);
    cr_buf_free(&got);
    cr_exchange_close(x);
    cr_exchange_close(y);
}

/* A wipe leaves what no run has made and the keys of a run with a longer prefix; a key of another type in the place of
   the owner's is no owner's. */
static void a_wipe_leaves_what_others_made(void **state)
{
    static const char *const kept[] = {"users", "run:1:owner", "run:1:s:prompts", "run:1:hb:rank"},
                             *const names[] = {"hb:rank", "reply:1"};
    cr_exchange_args args = {
        .url = plan.url, .prefix = "w:", .deadline_s = 10, .may_be_starting = true};
    cr_exchange *x;
    cr_buf got[4] = {{0}};
    cr_err err = {0}, refused = {0};

    (void)state;
    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(cr_value_set(x, kept[i], "1", &err), CR_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cr_value_set(x, names[i], "1", &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    assert_int_equal(cr_prefix_wipe(x, &err), CR_OK);
    assert_int_equal(cr_values_get(x, kept, 4, got, &err), CR_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(got[i].num_bytes, 1);
        cr_buf_free(&got[i]);
    }
    assert_int_equal(cr_values_get(x, names, 2, got, &err), CR_OK);
    assert_int_equal(got[0].num_bytes + got[1].num_bytes, 0);
    assert_int_equal(cr_stream_make(x, "owner", "g", &err), CR_OK);
    cr_exchange_set_prefix(x, "w:s:"); /* the stream is where the owner's key would be */
    assert_int_equal(cr_prefix_hold(x, "one", "the first", 0.5, &refused), CR_ECONFIG);
    assert_non_null(strstr(refused.msg, "w:s:owner is there and no run made it"));
    cr_exchange_close(x);
}

static void an_absent_server_is_a_deadline(void **state)
{
    cr_exchange_args args = {.url = "unix:/nowhere/redis.sock",
                             .prefix = "t:",
                             .deadline_s = 0.3,
                             .may_be_starting = true};
    cr_exchange *x;
    cr_err err = {0};
    double start = cr_now_s();

    (void)state;
    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_ETIMEOUT);
    assert_null(x);
    assert_true(cr_now_s() - start < 60);
    assert_non_null(strstr(err.msg, "/nowhere/redis.sock"));
    args.may_be_starting = false;
    args.deadline_s = 30;
    err = (cr_err){0};
    start = cr_now_s();
    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_ECONFIG);
    assert_true(cr_now_s() - start < 60);
}

static void records_survive_and_refuse(void **state)
{
    const int32_t ids[] = {1, -2, 3};
    const float x[] = {0.1f, -3e30f};
    cr_record r = {0}, back;
    cr_buf packed = {0};
    cr_err err = {0};
    const void *data;
    size_t num;
    int64_t step;

    (void)state;
    cr_record_set_int(&r, "step", 7);
    cr_record_set_text(&r, "text", "a\0b", 3);
    cr_record_add(&r, "ids", CR_RECORD_INT32, ids, 3);
    cr_record_add(&r, "x", CR_RECORD_FLOAT32, x, 2);
    assert_int_equal(cr_record_pack(&r, &packed, &err), CR_OK);
    assert_int_equal(cr_record_unpack(packed.data, packed.num_bytes, &back, &err), CR_OK);
    assert_int_equal(cr_record_get_int(&back, "step", &step, &err), CR_OK);
    assert_int_equal(step, 7);
    assert_int_equal(cr_record_get(&back, "x", CR_RECORD_FLOAT32, &data, &num, &err), CR_OK);
    assert_int_equal(num, 2);
    assert_memory_equal(data, x, sizeof x);
    assert_int_equal(cr_record_get(&back, "x", CR_RECORD_INT32, &data, &num, &err), CR_EFORMAT);
    cr_record_free(&back);
    for (size_t n = 0; n < packed.num_bytes; n++) { /* every truncation is refused */
        cr_err bad = {0};
        assert_int_equal(cr_record_unpack(packed.data, n, &back, &bad), CR_EFORMAT);
    }
    cr_record_free(&r);
    cr_buf_free(&packed);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as croll does: a lost connection is an error of write */

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_entry_is_delivered_once),
        cmocka_unit_test(what_a_dead_consumer_left_is_taken_over),
        cmocka_unit_test(a_killed_server_loses_nothing),
        cmocka_unit_test(a_reply_is_taken_once),
        cmocka_unit_test(later_commands_come_first),
        cmocka_unit_test(a_prefix_has_one_owner),
        cmocka_unit_test(a_wipe_leaves_what_others_made),
        cmocka_unit_test(an_absent_server_is_a_deadline),
        cmocka_unit_test(records_survive_and_refuse),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
