/* device.c -- the device `cuda`: memory, copies of all sizes, streams, events, stacks, lanes, and what it refuses. On the
 * simulated GPU ctest runs it under four seeds. Ends with 77 where there is no GPU.
 *
 * Not covered: operations (their numbers are in other tests); programs with an error (tests/cuda_sim/device.c).
 */
#include "kernels/kernels.h"
#include "kernels/lanes.h"
#include "tests/check_near.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define OK(call) assert_int_equal((call), CR_OK)

static cr_device *dev;
static cr_err err;

static unsigned char byte_at(size_t i, unsigned salt)
{
    return (unsigned char)((i * 2654435761u >> 7) + salt);
}

static unsigned char *pattern(size_t num_bytes, unsigned salt)
{
    unsigned char *p = cr_alloc(num_bytes);

    for (size_t i = 0; i < num_bytes; i++)
        p[i] = byte_at(i, salt);
    return p;
}

static bool has_pattern(cr_device *on, const cr_mem *mem, size_t num_bytes, unsigned salt)
{
    unsigned char *p = cr_alloc(num_bytes);
    bool is_right = true;

    OK(cr_download(on, p, mem, num_bytes, &err));
    for (size_t i = 0; i < num_bytes; i++)
        is_right = is_right && p[i] == byte_at(i, salt);
    cr_free(p);
    return is_right;
}

static void put(cr_device *on, cr_mem *mem, size_t num_bytes, unsigned salt)
{
    unsigned char *p = pattern(num_bytes, salt);

    OK(cr_upload(on, mem, p, num_bytes, &err));
    memset(p, 0xEE, num_bytes); /* it has been read */
    cr_free(p);
}

/* Sizes around those of the slots that uploads go through, and more than all slots together. */
static void test_uploads(void **state)
{
    static const size_t sizes[] = {1, 7, 4096, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 9 << 20};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(sizes); i++) {
        cr_mem *x;
        OK(cr_device_alloc(dev, sizes[i], &x, &err));
        assert_true((uintptr_t)x % 64 == 0);
        put(dev, x, sizes[i], (unsigned)i);
        assert_true(has_pattern(dev, x, sizes[i], (unsigned)i));
        cr_device_free(dev, x, sizes[i]);
    }
    assert_true(cr_device_get_stats(dev).bytes_now == 0);
}

/* More uploads than slots, of four streams, none waited for. */
static void test_many_uploads(void **state)
{
    enum { NUM = 200, BYTES = 512 };
    cr_mem *x[NUM];

    (void)state;
    for (int i = 0; i < NUM; i++) {
        OK(cr_device_alloc(dev, BYTES, &x[i], &err));
        put(cr_device_stream(dev, (cr_stream)(i % CR_NUM_STREAMS)), x[i], BYTES, (unsigned)i);
    }
    for (int i = 0; i < NUM; i++) {
        cr_device *on = cr_device_stream(dev, (cr_stream)(i % CR_NUM_STREAMS));
        assert_true(has_pattern(on, x[i], BYTES, (unsigned)i));
        cr_device_free(dev, x[i], BYTES);
    }
}

static void test_copies(void **state)
{
    enum { BYTES = 3000 };
    unsigned char got[101];
    cr_mem *x, *y;

    (void)state;
    OK(cr_device_alloc(dev, BYTES, &x, &err));
    OK(cr_device_alloc(dev, BYTES, &y, &err));
    put(dev, x, BYTES, 1);
    OK(cr_copy(dev, y, x, BYTES, &err));
    OK(cr_copy(dev, y, y, BYTES, &err));
    OK(cr_copy(dev, x, y, 0, &err));
    OK(cr_zero(dev, cr_mem_add(x, 16), 100, &err));
    OK(cr_zero(dev, x, 0, &err));
    assert_true(has_pattern(dev, y, BYTES, 1));
    assert_true(has_pattern(dev, x, 16, 1));
    OK(cr_download(dev, got, cr_mem_add(x, 16), sizeof got, &err));
    for (int i = 0; i < 100; i++)
        assert_int_equal(got[i], 0);
    assert_int_equal(got[100], byte_at(116, 1));
    cr_device_free(dev, x, BYTES);
    cr_device_free(dev, y, BYTES);
}

/* ---- streams ---- */

typedef struct bench {
    cr_device *on[CR_NUM_STREAMS];
    cr_mem *x, *y, *pinned;
    unsigned char *host; /* of pinned */
} bench;

enum { BENCH_BYTES = 20000 };

static bench open_bench(void)
{
    bench b;

    for (int s = 0; s < CR_NUM_STREAMS; s++)
        b.on[s] = cr_device_stream(dev, (cr_stream)s);
    OK(cr_device_alloc(dev, BENCH_BYTES, &b.x, &err));
    OK(cr_device_alloc(dev, BENCH_BYTES, &b.y, &err));
    OK(cr_host_alloc(dev, BENCH_BYTES, &b.pinned, &err));
    b.host = cr_mem_to_host(b.pinned);
    return b;
}

static void close_bench(bench *b)
{
    cr_device_free(dev, b->x, BENCH_BYTES);
    cr_device_free(dev, b->y, BENCH_BYTES);
    cr_host_free(dev, b->pinned, BENCH_BYTES);
    assert_true(cr_device_get_stats(dev).bytes_now == 0);
    assert_true(cr_device_get_stats(dev).host_bytes_now == 0);
}

/* x is written on one stream and read on another, and written again when it has been read, many times over: more than an
 * event ring holds. */
static void test_joins(void **state)
{
    enum { ROUNDS = 300 };
    bench b = open_bench();

    (void)state;
    for (unsigned i = 0; i < ROUNDS; i++) {
        cr_device *from = b.on[i % CR_NUM_STREAMS], *to = b.on[(i + 1) % CR_NUM_STREAMS];
        put(from, b.x, 64, i);
        OK(cr_stream_join(to, from, &err));
        OK(cr_copy(to, b.y, b.x, 64, &err));
        if (i % 50 == 0) assert_true(has_pattern(to, b.y, 64, i));
    }
    close_bench(&b);
}

/* An event is the place where it was recorded; recorded again, the new place; never recorded, over. */
static void test_events(void **state)
{
    bench b = open_bench();
    cr_event *event;

    (void)state;
    OK(cr_event_create(dev, &event, &err));
    OK(cr_event_wait(event, dev, &err));
    put(b.on[CR_STREAM_REDUCE], b.x, 256, 1);
    OK(cr_event_record(event, b.on[CR_STREAM_REDUCE], &err));
    OK(cr_event_wait(event, b.on[CR_STREAM_COPY], &err));
    OK(cr_copy(b.on[CR_STREAM_COPY], b.y, b.x, 256, &err));
    assert_true(has_pattern(b.on[CR_STREAM_COPY], b.y, 256, 1));
    OK(cr_event_record(event, b.on[CR_STREAM_COPY], &err));
    OK(cr_event_wait(event, b.on[CR_STREAM_REDUCE], &err));
    put(b.on[CR_STREAM_REDUCE], b.x, 256, 2);
    OK(cr_event_record(event, b.on[CR_STREAM_REDUCE], &err));
    for (int i = 0; i < 1000; i++) /* the ring goes round: the wait is later, not wrong */
        OK(cr_stream_join(b.on[CR_STREAM_GATHER], b.on[CR_STREAM_REDUCE], &err));
    OK(cr_event_wait(event, dev, &err));
    cr_event_destroy(event); /* the wait stays */
    OK(cr_copy(dev, b.y, b.x, 256, &err));
    assert_true(has_pattern(dev, b.y, 256, 2));
    close_bench(&b);
}

static void test_async_copies(void **state)
{
    bench b = open_bench();
    cr_device *copy = b.on[CR_STREAM_COPY];
    unsigned char got[64];
    cr_mem *soon;

    (void)state;
    for (size_t i = 0; i < BENCH_BYTES; i++)
        b.host[i] = byte_at(i, 3);
    OK(cr_upload_async(copy, b.x, b.pinned, BENCH_BYTES, &err));
    OK(cr_stream_join(dev, copy, &err));
    OK(cr_copy(dev, b.y, b.x, BENCH_BYTES, &err));
    OK(cr_zero(dev, b.x, BENCH_BYTES, &err));
    OK(cr_stream_join(copy, dev, &err));
    OK(cr_download_async(copy, b.pinned, b.y, BENCH_BYTES, &err));
    OK(cr_device_sync(copy, &err));
    for (size_t i = 0; i < BENCH_BYTES; i++)
        assert_int_equal(b.host[i], byte_at(i, 3));
    OK(cr_host_alloc(dev, 64, &soon, &err));
    memset(cr_mem_to_host(soon), 7, 64);
    OK(cr_upload_async(copy, b.x, soon, 64, &err));
    cr_host_free(dev, soon, 64); /* when it has been read */
    OK(cr_download(copy, got, b.x, 64, &err));
    for (int i = 0; i < 64; i++)
        assert_int_equal(got[i], 7);
    close_bench(&b);
}

/* Memory of a stack goes from hand to hand in the order of its stream. */
static void test_stack(void **state)
{
    cr_stack *stack = cr_stack_create(dev);
    bench b = open_bench();

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        size_t mark = cr_stack_mark(stack);
        unsigned char *p = pattern(1000, i);
        cr_mem *one;
        OK(cr_stack_push_copy(stack, p, 1000, &one, &err));
        cr_free(p);
        OK(cr_copy(dev, cr_mem_add(b.y, (size_t)i * 1000), one, 1000, &err));
        cr_stack_release(stack, mark);
    }
    for (unsigned i = 0; i < 20; i++)
        assert_true(has_pattern(dev, cr_mem_add(b.y, (size_t)i * 1000), 1000, i));
    cr_stack_destroy(stack);
    close_bench(&b);
}

static cr_status copy_on_lane(void *ctx, int lane, cr_device *one, cr_err *e)
{
    bench *b = ctx;

    (void)lane;
    return cr_copy(one, b->y, b->x, 512, e);
}

static void test_lanes(void **state)
{
    bench b = open_bench();
    cr_lanes *lanes = cr_lanes_create(dev);

    (void)state;
    assert_int_equal(cr_lanes_num(lanes), 1);
    put(dev, b.x, 512, 9);
    OK(cr_lanes_run(lanes, 1, copy_on_lane, &b, &err));
    assert_true(has_pattern(dev, b.y, 512, 9));
    cr_lanes_destroy(lanes);
    put(dev, b.x, 512, 10); /* the device is still there */
    assert_true(has_pattern(dev, b.x, 512, 10));
    close_bench(&b);
}

static void test_two_devices(void **state)
{
    cr_device *other, *cpu;
    cr_mem *x, *y, *host;

    (void)state;
    OK(cr_device_open("cuda", 1, &other, &err));
    OK(cr_device_open("cpu", 1, &cpu, &err));
    OK(cr_device_alloc(dev, 640, &x, &err));
    OK(cr_device_alloc(other, 640, &y, &err));
    OK(cr_host_alloc(other, 640, &host, &err));
    put(dev, x, 640, 4);
    OK(cr_move(other, y, dev, x, 640, &err));
    assert_true(has_pattern(other, y, 640, 4));
    OK(cr_move(cpu, host, other, y, 640, &err));
    assert_true(has_pattern(cpu, host, 640, 4));
    OK(cr_device_sync(other, &err));
    OK(cr_zero(other, y, 640, &err));
    OK(cr_move(other, y, cpu, host, 640, &err));
    assert_true(has_pattern(other, y, 640, 4));
    cr_device_free(dev, x, 640);
    cr_device_free(other, y, 640);
    cr_host_free(other, host, 640);
    cr_device_close(other);
    cr_device_close(cpu);
}

/* ---- what it refuses ---- */

static void test_refusals(void **state)
{
    char host[64];
    cr_mem *x;
    cr_err e = {0};

    (void)state;
    assert_int_equal(cr_device_alloc(dev, (size_t)1 << 50, &x, &e), CR_EIO);
    assert_non_null(strstr(e.msg, "out of GPU memory asking for 1125899906842624 bytes ("));
    assert_null(x);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* the next launch is not refused for it */
    e = (cr_err){0};
    assert_int_equal(cr_device_share(dev, host, sizeof host, &x, &e), CR_EABSENT);
    OK(cr_device_alloc(dev, 64, &x, &err)); /* as if nothing had been */
    put(dev, x, 64, 5);
    assert_true(has_pattern(dev, x, 64, 5));
    cr_device_free(dev, x, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uploads),     cmocka_unit_test(test_many_uploads),
        cmocka_unit_test(test_copies),      cmocka_unit_test(test_joins),
        cmocka_unit_test(test_events),      cmocka_unit_test(test_async_copies),
        cmocka_unit_test(test_stack),       cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_two_devices), cmocka_unit_test(test_refusals),
    };
    int num_failed;

    if (cr_device_open("cuda", 1, &dev, &err) != CR_OK) {
        printf("SKIP: %s\n", err.msg);
        return 77;
    }
    num_failed = cmocka_run_group_tests(tests, NULL, NULL);
    cr_device_close(dev);
    return num_failed ? 1 : 0;
}
