/* Streams, events and asynchronous copies of each device; on `far` in both orders (kernels/queue.h), where work without
 * the event that it needs computes on other numbers. */
#include "kernels/kernels.h"
#include "kernels/lanes.h"
#include "tests/check_near.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static cr_err err;

#define OK(call) assert_int_equal((call), CR_OK)

enum { NUM = 300, BYTES = NUM * (int)sizeof(float) };

typedef struct bench {
    cr_device *dev, *stream[CR_NUM_STREAMS];
    cr_mem *x, *y;
    cr_mem *pinned; /* cr_host_alloc */
    float *host;    /* the same */
    bool is_far;
} bench;

/* The devices that compute, and far's orders. */
static const struct {
    const char *name, *order;
} devices[] = {{"cpu", NULL}, {"far", "late"}, {"far", "early"}};

static bench open_bench(size_t k)
{
    bench b = {.is_far = strcmp(devices[k].name, "far") == 0};

    if (devices[k].order) setenv("CROLL_FAR_STREAMS", devices[k].order, 1);
    OK(cr_device_open(devices[k].name, 1, &b.dev, &err));
    for (int s = 0; s < CR_NUM_STREAMS; s++)
        b.stream[s] = cr_device_stream(b.dev, (cr_stream)s);
    assert_ptr_equal(b.stream[CR_STREAM_COMPUTE], b.dev);
    assert_ptr_equal(cr_device_stream(b.stream[CR_STREAM_COPY], CR_STREAM_GATHER),
                     b.stream[CR_STREAM_GATHER]);
    OK(cr_device_alloc(b.dev, BYTES, &b.x, &err));
    OK(cr_device_alloc(b.stream[CR_STREAM_COPY], BYTES, &b.y, &err));
    OK(cr_host_alloc(b.dev, BYTES, &b.pinned, &err));
    b.host = cr_mem_to_host(b.pinned);
    assert_true(cr_device_get_stats(b.dev).bytes_now == 2 * BYTES);
    assert_true(cr_device_get_stats(b.stream[CR_STREAM_REDUCE]).host_bytes_now == BYTES);
    return b;
}

static void close_bench(bench *b)
{
    cr_device_free(b->dev, b->x, BYTES);
    cr_device_free(b->stream[CR_STREAM_GATHER], b->y, BYTES);
    cr_host_free(b->dev, b->pinned, BYTES);
    assert_true(cr_device_get_stats(b->dev).bytes_now == 0);
    assert_true(cr_device_get_stats(b->dev).host_bytes_now == 0);
    cr_device_close(b->dev);
}

static void put(cr_device *dev, cr_mem *mem, float value)
{
    float x[NUM];

    for (int i = 0; i < NUM; i++)
        x[i] = value;
    OK(cr_upload(dev, mem, x, BYTES, &err));
    memset(x, 0, sizeof x); /* it has been read */
}

static void scale(cr_device *dev, cr_mem *mem, float factor)
{
    OK(cr_scale(dev, &(cr_scale_args){.x = mem, .factor = factor, .num = NUM}, &err));
}

static float last(cr_device *dev, const cr_mem *mem)
{
    float x[NUM];

    OK(cr_download(dev, x, mem, BYTES, &err));
    return x[NUM - 1];
}

/* Work of one stream is in order, and the next stream has it after an event, without one not on far (late). */
static void test_after_other(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++)
        for (int is_joined = 0; is_joined < 2; is_joined++) {
            bench b = open_bench(k);
            cr_device *gather = b.stream[CR_STREAM_GATHER];
            float got;
            put(gather, b.x, 3);
            scale(gather, b.x, 2);
            if (is_joined) OK(cr_stream_join(b.dev, gather, &err));
            OK(cr_copy(b.dev, b.y, b.x, BYTES, &err));
            got = last(b.dev, b.y);
            if (is_joined || k != 1)
                assert_true(got == 6);
            else
                assert_true(isnan(got));
            close_bench(&b);
        }
}

/* What compute still reads is not written again before an event; without one it is on far (early). */
static void test_before_other(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++)
        for (int is_joined = 0; is_joined < 2; is_joined++) {
            bench b = open_bench(k);
            cr_device *gather = b.stream[CR_STREAM_GATHER];
            float got;
            put(b.dev, b.x, 1);
            scale(b.dev, b.x, 5);
            OK(cr_device_sync(b.dev, &err));
            OK(cr_copy(b.dev, b.y, b.x, BYTES, &err));
            if (is_joined) OK(cr_stream_join(gather, b.dev, &err));
            put(gather, b.x, 7);
            got = last(b.dev, b.y);
            assert_true(got == (is_joined || k != 2 ? 5 : 7));
            assert_true(last(gather, b.x) == 7);
            close_bench(&b);
        }
}

/* An event is the place where it was recorded, not what is queued later; recorded again, it is the new place. */
static void test_events(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++) {
        bench b = open_bench(k);
        cr_device *reduce = b.stream[CR_STREAM_REDUCE], *copy = b.stream[CR_STREAM_COPY];
        cr_event *event;
        OK(cr_event_create(b.dev, &event, &err));
        OK(cr_event_wait(event, b.dev, &err)); /* never recorded */
        put(reduce, b.x, 2);
        OK(cr_event_record(event, reduce, &err));
        OK(cr_event_wait(event, copy, &err));
        OK(cr_copy(copy, b.y, b.x, BYTES, &err));
        if (k == 1) scale(reduce, b.x, 10); /* late: only what the event stands for runs */
        assert_true(last(copy, b.y) == 2);
        if (k != 1) scale(reduce, b.x, 10);
        OK(cr_event_record(event, reduce, &err));
        OK(cr_event_wait(event, copy, &err));
        cr_event_destroy(event); /* the wait stays */
        OK(cr_copy(copy, b.y, b.x, BYTES, &err));
        OK(cr_stream_join(b.dev, copy, &err)); /* through two streams */
        assert_true(last(b.dev, b.y) == 20);
        close_bench(&b);
    }
}

static void test_async_copies(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++) {
        bench b = open_bench(k);
        cr_device *copy = b.stream[CR_STREAM_COPY];
        for (int i = 0; i < NUM; i++)
            b.host[i] = 4;
        OK(cr_upload_async(copy, b.x, b.pinned, BYTES, &err));
        if (k == 1) b.host[NUM - 1] = 5; /* not allowed: far (late) has not read it yet */
        OK(cr_stream_join(b.dev, copy, &err));
        assert_true(last(b.dev, b.x) == (k == 1 ? 5 : 4));
        scale(b.dev, b.x, 3);
        OK(cr_stream_join(copy, b.dev, &err));
        OK(cr_download_async(copy, b.pinned, b.x, BYTES, &err));
        if (b.is_far) assert_true(b.host[0] == 4);
        OK(cr_device_sync(copy, &err));
        assert_true(b.host[0] == 12);
        close_bench(&b);
    }
}

/* Stacks hand memory out again in the order of their stream; structs that arguments point to have been read. */
static void test_queued_arguments(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++) {
        bench b = open_bench(k);
        cr_stack *stack = cr_stack_create(b.dev);
        cr_weight w = {.data = b.x, .dtype = CR_F32, .num_rows = 1, .num_cols = NUM};
        size_t mark = cr_stack_mark(stack);
        cr_mem *one;
        float got;
        put(b.dev, b.x, 2);
        OK(cr_stack_push(stack, BYTES, &one, &err));
        put(b.dev, one, 1);
        OK(cr_linear(b.dev, &(cr_linear_args){.x = one, .w = &w, .y = b.y, .num_rows = 1}, &err));
        w = (cr_weight){0};
        cr_stack_release(stack, mark);
        OK(cr_download(b.dev, &got, b.y, sizeof got, &err));
        assert_true(got == 2 * NUM);
        cr_stack_destroy(stack);
        close_bench(&b);
    }
}

/* What a communicator has written counts as work of its stream. */
static void test_host_wrote(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++)
        for (int is_joined = 0; is_joined < 2; is_joined++) {
            bench b = open_bench(k);
            cr_device *reduce = b.stream[CR_STREAM_REDUCE];
            float got;
            put(reduce, b.x, 0);
            OK(cr_device_sync(reduce, &err));
            ((float *)cr_host_address(b.x))[NUM - 1] = 8;
            OK(cr_host_wrote(reduce, b.x, BYTES, &err));
            if (is_joined) OK(cr_stream_join(b.dev, reduce, &err));
            OK(cr_copy(b.dev, b.y, b.x, BYTES, &err));
            got = last(b.dev, b.y);
            assert_true(is_joined || k != 1 ? got == 8 : isnan(got));
            assert_true(((float *)cr_host_view(b.x))[NUM - 1] == 8); /* waits for all */
            close_bench(&b);
        }
}

static cr_status scale_lane(void *ctx, int lane, cr_device *one, cr_err *e)
{
    bench *b = ctx;

    return lane ? CR_OK : cr_scale(one, &(cr_scale_args){.x = b->x, .factor = 2, .num = NUM}, e);
}

static void test_lanes(void **state)
{
    (void)state;
    for (size_t k = 0; k < CR_COUNT(devices); k++) {
        bench b = open_bench(k);
        cr_lanes *lanes = cr_lanes_create(b.dev);
        put(b.dev, b.x, 2);
        OK(cr_lanes_run(lanes, 1, scale_lane, &b, &err)); /* after what is queued */
        assert_true(last(b.dev, b.x) == 4);
        cr_lanes_destroy(lanes);
        close_bench(&b);
    }
}

static void test_meta(void **state)
{
    cr_device *dev, *gather;
    cr_mem *x, *host;

    (void)state;
    OK(cr_device_open("meta", 1, &dev, &err));
    gather = cr_device_stream(dev, CR_STREAM_GATHER);
    OK(cr_device_alloc(gather, 640, &x, &err));
    OK(cr_host_alloc(gather, 64, &host, &err));
    OK(cr_upload_async(gather, x, host, 64, &err));
    OK(cr_stream_join(dev, gather, &err));
    scale(gather, x, 2);
    OK(cr_download_async(dev, host, x, 64, &err)); /* touches nothing */
    OK(cr_device_sync(dev, &err));
    assert_true(cr_device_get_stats(dev).flops == NUM);
    assert_true(cr_device_get_stats(dev).bytes_now == 640);
    assert_true(cr_device_get_stats(dev).host_bytes_now == 64);
    cr_device_free(dev, x, 640);
    cr_host_free(dev, host, 64);
    cr_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_other),
        cmocka_unit_test(test_before_other),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_async_copies),
        cmocka_unit_test(test_queued_arguments),
        cmocka_unit_test(test_host_wrote),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_meta),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
