/* serve_queue.c -- the queue of a service without sockets: turns of tenants by tokens and weight, order inside one, what
 * an idle tenant keeps, bounds in requests, tokens and bytes, places that a greedy tenant loses, Retry-After,
 * estimates of tokens. Not covered: other threads than one that waits (e2e/serve), rounds and samples (e2e/serve_fair). */
#include "serve/server/estimate.h"
#include "serve/server/queue.h"
#include "tests/check_near.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int num_wakes;

static void wake(void *ctx)
{
    (void)ctx;
    num_wakes++;
}

static cr_serve_queue *make(int64_t requests, int64_t tokens, int64_t running_each)
{
    cr_serve_bounds bounds = {requests, tokens, 1000, running_each};

    num_wakes = 0;
    return cr_serve_queue_create(&bounds, wake, NULL);
}

static cr_serve_job *put(cr_serve_queue *q, const char *tenant, double weight, int64_t tokens)
{
    cr_serve_job *job = CR_NEW(cr_serve_job);

    job->estimated_tokens = tokens;
    snprintf(job->id, sizeof job->id, "%s", tenant);
    if (cr_serve_queue_put(q, job, tenant, weight)) return job;
    cr_serve_job_free(job);
    return NULL;
}

static void free_collected(cr_serve_queue *q)
{
    for (cr_serve_job *job = cr_serve_queue_collect(q), *next; job; job = next) {
        next = job->next;
        cr_serve_job_free(job);
    }
}

/* The first letters of the tenants of the next num jobs, one after the other. */
static const char *turns(cr_serve_queue *q, size_t num)
{
    static char text[64];

    memset(text, 0, sizeof text);
    for (size_t i = 0; i < num; i++) {
        cr_serve_job *job = cr_serve_queue_take(q, /*waits=*/false);
        if (!job) break;
        text[i] = job->id[0];
        cr_serve_queue_give(q, job);
    }
    free_collected(q);
    return text;
}

static void turns_by_tokens(void **state)
{
    cr_serve_queue *q = make(100, 100000, 0);

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_non_null(put(q, "long", 1, 800));
    for (int i = 0; i < 12; i++)
        assert_non_null(put(q, "short", 1, 100));
    /* used: l 800, then eight of s; at 800 each the first tenant's turn; then s again */
    assert_string_equal(turns(q, 14), "lsssssssslssss");
    assert_string_equal(turns(q, 9), "ll");
    cr_serve_queue_free(q);
}

static void turns_by_weight(void **state)
{
    cr_serve_queue *q = make(100, 100000, 0);

    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_non_null(put(q, "a", 3, 300));
        assert_non_null(put(q, "b", 1, 300));
    }
    assert_string_equal(turns(q, 8), "abaaabaa"); /* a: 100 a turn, b: 300 */
    cr_serve_queue_free(q);
}

static void order_inside_a_tenant(void **state)
{
    cr_serve_queue *q = make(100, 100000, 0);
    cr_serve_job *jobs[5];

    (void)state;
    for (int i = 0; i < 5; i++)
        jobs[i] = put(q, "a", 1, 500 - 100 * i);
    jobs[2]->is_cancelled = true;
    for (int i = 0; i < 5; i++) {
        if (i == 2) continue; /* comes back without work */
        assert_ptr_equal(cr_serve_queue_take(q, false), jobs[i]);
    }
    assert_null(cr_serve_queue_take(q, false));
    assert_int_equal(num_wakes, 1);
    assert_ptr_equal(cr_serve_queue_collect(q), jobs[2]);
    assert_true(jobs[2]->end_s == 0 && jobs[1]->begin_s > 0);
    for (int i = 0; i < 5; i++)
        cr_serve_job_free(jobs[i]);
    cr_serve_queue_free(q);
}

/* A pause is no credit, and what was used before it is not forgiven. */
static void tenants_that_pause(void **state)
{
    cr_serve_queue *q = make(100, 100000, 0);

    (void)state;
    assert_non_null(put(q, "b", 1, 100));
    assert_string_equal(turns(q, 1), "b");
    for (int i = 0; i < 20; i++)
        assert_non_null(put(q, "a", 1, 100));
    assert_string_equal(turns(q, 10), "aaaaaaaaaa");
    for (int i = 0; i < 6; i++)
        assert_non_null(put(q, "b", 1, 100));
    assert_string_equal(turns(q, 6), "bbabab"); /* from where a was last, not six at once */
    cr_serve_queue_free(q);

    q = make(100, 100000,
             0); /* greedy sends one at a time: it is never waiting when it is answered */
    assert_non_null(put(q, "greedy", 1, 5000));
    for (int i = 0; i < 60; i++)
        assert_non_null(put(q, "small", 1, 100));
    assert_string_equal(turns(q, 2), "gs");
    assert_non_null(put(q, "greedy", 1, 5000));
    assert_string_equal(turns(q, 50), "sssssssssssssssssssssssssssssssssssssssssssssssssg");
    cr_serve_queue_free(q);
}

/* What was used counts, not what was estimated. */
static void corrections(void **state)
{
    cr_serve_queue *q = make(100, 100000, 0);
    cr_serve_job *job;
    cr_tenant_counts counts[2];

    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_non_null(put(q, "a", 1, 100));
        assert_non_null(put(q, "b", 1, 100));
    }
    job = cr_serve_queue_take(q, false);
    job->used_tokens = 350; /* its samples were long */
    cr_serve_queue_give(q, job);
    assert_string_equal(turns(q, 6), "bbbbab");
    assert_int_equal(cr_serve_queue_tenants(q, counts, 2), 2);
    assert_string_equal(counts[0].name, "a");
    assert_int_equal(counts[0].num_tokens, 450);
    assert_int_equal(counts[0].num_waiting, 3);
    assert_int_equal(counts[0].waiting_tokens, 300);
    assert_int_equal(counts[1].num_tokens, 500);
    assert_true(counts[0].queued_s >= 0 && counts[0].num_running == 0);
    cr_serve_queue_free(q);
}

static void places_of_one_tenant(void **state)
{
    cr_serve_queue *q = make(100, 100000, 2);
    cr_serve_job *taken[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_non_null(put(q, "a", 1, 1));
    assert_non_null(put(q, "b", 1, 1000));
    for (int i = 0; i < 3; i++)
        assert_non_null(taken[i] = cr_serve_queue_take(q, false));
    assert_int_equal(taken[1]->id[0] + taken[2]->id[0], 'a' + 'b'); /* two of a, one of b */
    assert_null(cr_serve_queue_take(q, false));
    cr_serve_queue_give(q, taken[0]);
    cr_serve_queue_give(q, taken[1]);
    cr_serve_queue_give(q, taken[2]);
    assert_string_equal(turns(q, 2), "a");
    cr_serve_queue_free(q);
}

static void bounds(void **state)
{
    cr_serve_queue *q = make(3, 1000, 0);
    cr_serve_job *job;
    cr_tenant_counts counts;

    (void)state;
    assert_non_null(put(q, "a", 1, 5000)); /* one fits always */
    assert_null(put(q, "a", 1, 1));
    assert_string_equal(turns(q, 1), "a");
    assert_non_null(put(q, "a", 1, 600));
    assert_null(put(q, "a", 1, 401));
    assert_non_null(put(q, "a", 1, 400));
    assert_non_null(put(q, "a", 1, 0));
    assert_null(put(q, "a", 1, 0)); /* a fourth request */
    assert_int_equal(cr_serve_queue_tenants(q, &counts, 1), 1);
    assert_int_equal(counts.num_refused, 3);
    assert_string_equal(turns(q, 4), "aaa");
    job = CR_NEW(cr_serve_job);
    cr_buf_add(&job->body, "x", 1);
    job->body.num_bytes = 1001; /* of 1000 */
    assert_false(cr_serve_queue_put(q, job, "a", 1));
    job->body.num_bytes = 1;
    assert_true(cr_serve_queue_put(q, job, "a", 1));
    assert_int_equal(cr_serve_queue_load(q).waiting_bytes, 1);
    cr_serve_queue_free(q);
}

/* A full queue of one tenant has place for another's request: its own last ones are refused. */
static void pushed_out(void **state)
{
    cr_serve_queue *q = make(4, 1000, 0);
    cr_serve_job *jobs[4], *b, *got;

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_non_null(jobs[i] = put(q, "a", 1, 100));
    assert_null(put(q, "a", 1, 100));
    assert_int_equal(num_wakes, 0);
    assert_non_null(b = put(q, "b", 1, 100));
    assert_int_equal(num_wakes, 1);
    got = cr_serve_queue_collect(q);
    assert_ptr_equal(got, jobs[3]);
    assert_true(got->is_pushed_out && !got->next && !b->is_pushed_out);
    cr_serve_job_free(got);
    assert_non_null(put(q, "b", 1, 100)); /* two and two */
    free_collected(q);
    assert_null(put(q, "b", 1, 100));
    assert_null(put(q, "c", 1, 900)); /* more than anyone has */
    assert_non_null(put(q, "c", 1, 100));
    assert_int_equal(cr_serve_queue_load(q).num_waiting, 4);
    assert_int_equal(cr_serve_queue_load(q).waiting_tokens, 400);
    free_collected(q);
    cr_serve_queue_free(q);
}

static void end_it(void *queue)
{
    cr_serve_queue_end(*(cr_serve_queue **)queue);
}

/* A job that was cancelled comes back at once, although no other one comes to be taken. */
static void cancelled_while_it_waits(void **state)
{
    cr_serve_bounds limits = {10, 100, 1000, 0};
    cr_serve_queue *q = cr_serve_queue_create(&limits, end_it, &q);
    cr_serve_job *job = put(q, "a", 1, 10);

    (void)state;
    job->is_cancelled = true;
    alarm(10);
    assert_null(cr_serve_queue_take(q, /*waits=*/true));
    alarm(0);
    assert_ptr_equal(cr_serve_queue_collect(q), job);
    cr_serve_job_free(job);
    cr_serve_queue_free(q);
}

static atomic_bool is_taken; /* what put_later has put */

static void *put_later(void *queue)
{
    cr_sleep_s(0.01);
    put(queue, "b", 1, 10);
    while (!atomic_load(&is_taken))
        cr_sleep_s(0.001);
    cr_sleep_s(0.01);
    cr_serve_queue_end(queue);
    return NULL;
}

/* A thread that has just had work looks for the next job, and for the end, without sleeping. */
static void taken_while_it_spins(void **state)
{
    cr_serve_bounds limits = {10, 100, 1000, 0, .spin_s = 100};
    cr_serve_queue *q = cr_serve_queue_create(&limits, wake, NULL);
    cr_serve_job *job;
    pthread_t thread;

    (void)state;
    put(q, "a", 1, 10);
    assert_string_equal(turns(q, 1), "a");
    alarm(20);
    assert_int_equal(pthread_create(&thread, NULL, put_later, q), 0);
    assert_non_null(job = cr_serve_queue_take(q, /*waits=*/true));
    atomic_store(&is_taken, true);
    cr_serve_queue_give(q, job);
    assert_null(cr_serve_queue_take(q, /*waits=*/true));
    free_collected(q);
    pthread_join(thread, NULL);
    alarm(0);
    cr_serve_queue_free(q);
}

static void seconds_to_wait(void **state)
{
    cr_serve_queue *q = make(1000, 10000000, 0);

    (void)state;
    assert_int_equal(cr_serve_queue_drain_s(q), 1); /* nothing is known */
    for (int i = 0; i < 100; i++)
        put(q, "a", 1, 1000);
    for (int i = 0; i < 4; i++) { /* 20,000 tokens a second */
        cr_serve_job *job = cr_serve_queue_take(q, false);
        usleep(50000);
        cr_serve_queue_give(q, job);
    }
    free_collected(q);
    check_near(cr_serve_queue_drain_s(q), 5, 2); /* 96,000 wait */
    for (int i = 0; i < 100; i++)
        put(q, "a", 1, 90000);
    assert_int_equal(cr_serve_queue_drain_s(q), 60);
    cr_serve_queue_free(q);
}

static int64_t estimate(const char *body)
{
    return cr_serve_estimate_tokens(body, strlen(body));
}

static void estimates(void **state)
{
    char *text = cr_alloc(40000);

    (void)state;
    assert_int_equal(estimate(""), 1);
    assert_int_equal(estimate("{\"prompt\":[49, 50, 43]}"), 6);
    assert_int_equal(estimate("{\"max_tokens\": 100,\"n\":3}"), 307);
    assert_int_equal(estimate("{\"max_new_tokens\":5, \"max_tokens\":null}"), 15);
    assert_int_equal(estimate("{\"max_tokens\":99999999999999}"), 8 + (1 << 20));
    memset(text, ' ', 40000); /* the ends are looked at */
    memcpy(text + 100, "\"n\":2", 5);
    memcpy(text + 39000, "\"max_completion_tokens\":7", 25);
    memcpy(text + 20000, "\"max_tokens\":70", 15);
    assert_int_equal(cr_serve_estimate_tokens(text, 40000), 10001 + 14);
    assert_int_equal(cr_serve_estimate_tokens("\"max_tokens\":12", 14), 4 + 1); /* up to its end */
    cr_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns_by_tokens),
                                       cmocka_unit_test(turns_by_weight),
                                       cmocka_unit_test(order_inside_a_tenant),
                                       cmocka_unit_test(tenants_that_pause),
                                       cmocka_unit_test(corrections),
                                       cmocka_unit_test(places_of_one_tenant),
                                       cmocka_unit_test(bounds),
                                       cmocka_unit_test(pushed_out),
                                       cmocka_unit_test(cancelled_while_it_waits),
                                       cmocka_unit_test(taken_while_it_spins),
                                       cmocka_unit_test(seconds_to_wait),
                                       cmocka_unit_test(estimates)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
