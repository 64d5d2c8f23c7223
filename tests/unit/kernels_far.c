/* The device `far`: kernels, copies and views work on memory that the host cannot touch, and each way to touch
 * it ends the process with a message that names the block and the last call. */
#include "kernels/kernels.h"
#include "kernels/lanes.h"
#include "tests/check_near.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static cr_device *dev;
static cr_err err;

#define OK(call) assert_int_equal((call), CR_OK)

enum { NUM = 1000, BYTES = NUM * (int)sizeof(float) };

static cr_mem *numbers(float first)
{
    float x[NUM];
    cr_mem *mem;

    for (int i = 0; i < NUM; i++)
        x[i] = first + (float)i;
    OK(cr_device_alloc(dev, BYTES, &mem, &err));
    OK(cr_upload(dev, mem, x, BYTES, &err));
    return mem;
}

static float at(const cr_mem *mem, int i)
{
    float x;

    OK(cr_download(dev, &x, cr_at_const(CR_F32, mem, i), sizeof x, &err));
    return x;
}

/* ---- what works ---- */

static void test_calls(void **state)
{
    cr_mem *x = numbers(1), *y = numbers(0);
    double sum;

    (void)state;
    OK(cr_scale(dev, &(cr_scale_args){.x = x, .factor = 2, .num = NUM}, &err));
    OK(cr_copy(dev, y, x, BYTES, &err));
    assert_true(at(y, 0) == 2 && at(y, NUM - 1) == 2 * NUM);
    OK(cr_zero(dev, y, BYTES / 2, &err));
    OK(cr_square_sum(dev, &(cr_square_sum_args){.x = y, .num = NUM / 2 + 1, .out = &sum}, &err));
    assert_true(sum == (double)(NUM + 2) * (NUM + 2));
    cr_device_free(dev, x, BYTES);
    cr_device_free(dev, y, BYTES);
}

static void test_views(void **state)
{
    cr_mem *x = numbers(5);
    float host;

    (void)state;
    assert_true(*(float *)cr_host_view(cr_at(CR_F32, x, 7)) == 12);
    *(float *)cr_host_view(cr_at(CR_F32, x, 7)) = -1;
    assert_true(at(x, 7) == -1);
    assert_ptr_equal(cr_host_view(cr_mem_of_host(&host)), &host); /* no memory of this device */
    cr_device_free(dev, x, BYTES);
}

/* Memory that nothing has written is NaN, and so is what a stack gives and what it took back. */
static void test_undefined(void **state)
{
    cr_stack *stack = cr_stack_create(dev);
    cr_mem *x, *y;
    size_t mark;

    (void)state;
    OK(cr_device_alloc(dev, BYTES, &x, &err));
    assert_true(isnan(at(x, 0)) && isnan(at(x, NUM - 1)));
    cr_device_free(dev, x, BYTES);
    mark = cr_stack_mark(stack);
    OK(cr_stack_push(stack, BYTES, &y, &err));
    OK(cr_zero(dev, y, BYTES, &err));
    assert_true(at(y, 3) == 0);
    cr_stack_release(stack, mark);
    assert_true(isnan(at(y, 3)));
    OK(cr_stack_push(stack, BYTES, &x, &err));
    assert_true(x == y && isnan(at(x, 3)));
    cr_stack_destroy(stack);
}

static cr_status scale_lane(void *ctx, int lane, cr_device *one, cr_err *e)
{
    cr_mem **x = ctx;

    for (int i = 0; i < 200; i++)
        CR_TRY(cr_scale(one, &(cr_scale_args){.x = x[lane], .factor = i % 2 ? 2 : 0.5F, .num = NUM},
                        e));
    return CR_OK;
}

static void test_lanes(void **state)
{
    cr_device *two;
    cr_lanes *lanes;
    cr_mem *x[2] = {numbers(1), numbers(2)};

    (void)state;
    OK(cr_device_open("far", 2, &two, &err));
    lanes = cr_lanes_create(two);
    OK(cr_lanes_run(lanes, 2, scale_lane, x, &err));
    assert_true(at(x[0], 0) == 1 && at(x[1], 0) == 2);
    cr_lanes_destroy(lanes);
    cr_device_close(two);
    for (int i = 0; i < 2; i++)
        cr_device_free(dev, x[i], BYTES);
}

/* ---- what ends the process ---- */

static volatile float sink;

static void read_it(cr_mem *x)
{
    sink = *(const volatile float *)cr_mem_to_host(x);
}

static void write_it(cr_mem *x)
{
    *(volatile float *)cr_mem_to_host(cr_at(CR_F32, x, 2)) = 1;
}

static void copy_it(cr_mem *x)
{
    float y[NUM];

    memcpy(y, cr_mem_to_host(x), BYTES);
    sink = y[NUM - 1];
}

static void read_after(cr_mem *x)
{
    sink = *(const volatile float *)cr_mem_to_host(cr_at(CR_F32, x, BYTES / 4 + 16));
}

static void read_freed(cr_mem *x)
{
    cr_device_free(dev, x, BYTES);
    read_it(x);
}

static void upload_too_much(cr_mem *x)
{
    char more[BYTES + 64] = {0};

    cr_note(cr_upload(dev, x, more, sizeof more, &err)); /* a kernel may not pass the end either */
    cr_note(cr_device_sync(dev, &err));
}

static const struct {
    void (*touch)(cr_mem *x);
    const char *says;
} touches[] = {
    {read_it, "the host reads device memory outside a kernel or a copy: byte 0 of a block of 4000 "
              "bytes; the last call "
              "of the device was scale"},
    {write_it, "the host writes device memory outside a kernel or a copy: byte 8 of a block of "
               "4000 bytes; the last "
               "call of the device was scale"},
    {copy_it, "the host reads device memory outside a kernel or a copy: byte "},
    {read_after, "byte 4064 of a block of 4000 bytes"},
    {read_freed, "byte 0 of a freed block of 4000 bytes"},
    {upload_too_much, "of a block of 4000 bytes; the last call of the device was upload"},
};

static void test_touches(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(touches); i++) {
        char text[4096] = "";
        size_t size = 0;
        ssize_t num;
        int ends[2], status;
        pid_t child;

        assert_int_equal(pipe(ends), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct rlimit no_core = {0, 0};
            cr_mem *x;
            OK(cr_device_open("far", 1, &dev, &err)); /* its handler instead of cmocka's */
            x = numbers(1);
            setrlimit(RLIMIT_CORE, &no_core);
            dup2(ends[1], STDERR_FILENO);
            if (cr_scale(dev, &(cr_scale_args){.x = x, .factor = 2, .num = NUM}, &err) == CR_OK)
                touches[i].touch(x);
            _exit(0);
        }
        close(ends[1]);
        while ((num = read(ends[0], text + size, sizeof text - 1 - size)) > 0)
            size += (size_t)num;
        close(ends[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
            fail_msg("touch %zu: status %d", i, status);
        if (!strstr(text, touches[i].says))
            fail_msg("touch %zu: \"%s\" does not say \"%s\"", i, text, touches[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),   cmocka_unit_test(test_views),
        cmocka_unit_test(test_lanes),   cmocka_unit_test(test_undefined),
        cmocka_unit_test(test_touches),
    };
    int num_failed;

    if (cr_device_open("far", 1, &dev, &err) != CR_OK) return 1;
    num_failed = cmocka_run_group_tests(tests, NULL, NULL);
    cr_device_close(dev);
    return num_failed;
}
