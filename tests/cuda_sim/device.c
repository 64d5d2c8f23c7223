/* What the simulated GPU says of programs that use device `cuda` wrongly: a missing join of streams is named under every seed,
 * as are the host's touch of its memory, memory of a stack after its release, and memory that is left allocated. */
#include "kernels/kernels.h"
#include "tests/check_near.h"

#include <cuda_runtime_api.h>

#include "tests/cuda_sim/child.h"

#include <stdbool.h>
#include <stdlib.h>

extern bool cri_sim_is_checked;

enum { BYTES = 4096, NUM_SEEDS = 16 };

static cr_err err;

static void must(cr_status status)
{
    if (status == CR_OK) return;
    fprintf(stderr, "%s", err.msg);
    _exit(87);
}

static cr_device *open_device(void)
{
    cr_device *dev;

    must(cr_device_open("cuda", 1, &dev, &err));
    return dev;
}

static cr_mem *numbers(cr_device *dev)
{
    float host[BYTES / sizeof(float)] = {1};
    cr_mem *x;

    must(cr_device_alloc(dev, BYTES, &x, &err));
    must(cr_upload(dev, x, host, BYTES, &err));
    return x;
}

/* The one gap (0 to 2) that is left out; 3: none. */
typedef struct pass {
    int gap;
    uint64_t seed;
} pass;

/* A buffer goes from gather to compute to reduce and back, twice. */
static void run_streams(const void *args)
{
    const pass *p = args;
    float host[BYTES / sizeof(float)] = {0};
    cr_device *dev, *gather, *reduce;
    cr_mem *x, *y;

    cri_sim_seed(p->seed);
    dev = open_device();
    gather = cr_device_stream(dev, CR_STREAM_GATHER);
    reduce = cr_device_stream(dev, CR_STREAM_REDUCE);
    x = numbers(dev);
    y = numbers(dev);
    must(cr_device_sync(dev, &err));
    for (int i = 0; i < 2; i++) {
        must(cr_upload(gather, x, host, BYTES, &err));
        if (p->gap != 0) must(cr_stream_join(dev, gather, &err));
        must(cr_copy(dev, y, x, BYTES, &err));
        if (p->gap != 1) must(cr_stream_join(reduce, dev, &err));
        must(cr_zero(reduce, y, BYTES, &err));
        if (p->gap != 2) must(cr_stream_join(gather, reduce, &err));
        if (p->gap != 2) must(cr_stream_join(dev, reduce, &err));
    }
    for (int s = 0; s < CR_NUM_STREAMS; s++)
        must(cr_device_sync(cr_device_stream(dev, (cr_stream)s), &err));
    cr_device_free(dev, x, BYTES);
    cr_device_free(dev, y, BYTES);
    cr_device_close(dev);
}

static void test_streams(void **state)
{
    char said[SAID_BYTES];

    (void)state;
    for (int gap = 0; gap <= 3; gap++)
        for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
            const pass p = {gap, seed};
            int code = run_child(run_streams, &p, said);
            bool is_named =
                code == SIM_DIED && strstr(said, "no event or synchronisation orders them");
            if (gap < 3 && cri_sim_is_checked ? !is_named : code != 0)
                fail_msg("gap %d, seed %d: code %d, \"%s\"", gap, (int)seed, code, said);
        }
}

/* ---- memory ---- */

static void host_touch(const void *args)
{
    (void)args;
    *(volatile float *)cr_mem_to_host(numbers(open_device())) = 1;
}

static void host_touch_after_free(const void *args)
{
    cr_device *dev = open_device();
    cr_mem *x = numbers(dev);

    (void)args;
    cr_device_free(dev, x, BYTES);
    *(volatile float *)cr_mem_to_host(x) = 1;
}

static void copy_after_free(const void *args)
{
    cr_device *dev = open_device();
    cr_mem *x = numbers(dev), *y = numbers(dev);

    (void)args;
    cr_device_free(dev, x, BYTES);
    must(cr_copy(dev, y, x, BYTES, &err));
    must(cr_device_sync(dev, &err));
}

static void copy_past_end(const void *args)
{
    cr_device *dev = open_device();
    cr_mem *x = numbers(dev), *y = numbers(dev);

    (void)args;
    must(cr_copy(dev, y, cr_mem_add(x, 256), BYTES, &err));
    must(cr_device_sync(dev, &err));
}

/* Alone it is right. */
static void copy_unwritten(const void *args)
{
    cr_device *dev = open_device();
    cr_mem *x, *y = numbers(dev);
    char host[BYTES];

    must(cr_device_alloc(dev, BYTES, &x, &err));
    must(cr_copy(dev, y, x, BYTES, &err));
    must(cr_device_sync(dev, &err));
    if (args) must(cr_download(dev, host, y, BYTES, &err));
}

static void read_unwritten(const void *args)
{
    (void)args;
    copy_unwritten("and reads the copy");
}

static void read_released(const void *args)
{
    cr_device *dev = open_device();
    cr_stack *stack = cr_stack_create(dev);
    cr_mem *x, *y = numbers(dev);
    char host[BYTES];

    (void)args;
    must(cr_stack_push(stack, BYTES, &x, &err));
    must(cr_copy(dev, x, y, BYTES, &err));
    cr_stack_release(stack, 0);
    must(cr_download(dev, host, x, BYTES, &err));
}

static void leave_allocated(const void *args)
{
    cr_device *dev = open_device();

    (void)args;
    setenv("CROLL_SIM_LEAKS", "1", 1);
    (void)numbers(dev);
    cr_device_close(dev);
    exit(0);
}

static void close_all(const void *args)
{
    cr_device *dev = open_device();
    cr_mem *x = numbers(dev);

    (void)args;
    setenv("CROLL_SIM_LEAKS", "1", 1);
    must(cr_device_sync(dev, &err));
    cr_device_free(dev, x, BYTES);
    cr_device_close(dev);
    exit(0);
}

static void test_memory(void **state)
{
    static const struct {
        void (*run)(const void *args);
        const char *says; /* NULL: it is right */
        bool needs_checked;
    } cases[] = {
        {host_touch, "host code touched device memory: byte 0 of allocation 0 (4096 bytes)", false},
        {host_touch_after_free, "host code touched freed device memory", false},
        {copy_after_free, "copy on device reads freed device memory", false},
        {copy_past_end, "copy on device reads 4096 bytes at", false},
        {copy_unwritten, NULL, false},
        {read_unwritten, "that nothing has written", true},
        {read_released, "that nothing has written", true},
        {leave_allocated, "at exit 4096 bytes of device memory, 0 pinned buffers", false},
        {close_all, NULL, false},
    };
    char said[SAID_BYTES];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        int code;
        if (cases[i].needs_checked && !cri_sim_is_checked) continue;
        code = run_child(cases[i].run, NULL, said);
        if (!cases[i].says ? code != 0 : code != SIM_DIED || !strstr(said, cases[i].says))
            fail_msg("case %zu: code %d, \"%s\" instead of \"%s\"", i, code, said,
                     cases[i].says ? cases[i].says : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
