/* The simulated GPU ends a program with one error by a sentence that names it, and the right twin does not. Each case is a
 * child process; streams under many seeds. Not covered: errors of resources and of the memory order of real GPUs. */
#include "tests/check_near.h"
#include "tests/cuda_sim/wrong.h"

#include "tests/cuda_sim/child.h"

#include <stdbool.h>
#include <stdlib.h>

extern bool cri_sim_is_checked; /* this build's kernels are instrumented */

enum { NUM_SEEDS = 24 };

/* ---- kernels ---- */

static const struct kernel_case {
    wrong_kind kind;
    const char *says;   /* NULL: it is right */
    bool needs_checked; /* else only numbers can show it */
} kernel_cases[] = {
    {WRONG_NO_BARRIER, "shared memory", true}, /* a race, or a read too early: by seed */
    {RIGHT_BARRIER, NULL, false},
    {WRONG_NO_SYNCWARP, "shared memory", true},
    {RIGHT_SYNCWARP, NULL, false},
    {WRONG_PAST_END, "outside of every allocation", true},
    {WRONG_SHARED_PAST_END, "shared memory of 128 bytes: access at offset 128", true},
    {WRONG_BLOCKS_RACE, "race in device memory", true},
    {RIGHT_ATOMICS, NULL, false},
    {WRONG_HALF_BARRIER, "16 threads wait at __syncthreads", false},
    {WRONG_TWO_BARRIERS, "wait at different __syncthreads", false},
    {WRONG_PARTIAL_SHUFFLE, "waits for lane 20, which has ended", false},
    {WRONG_ENDED_LANE, "reads lane 8, which is not in its mask 000000ff", false},
    {WRONG_DIFFERENT_OPERATIONS, "meet in different operations", false},
    {WRONG_MISALIGNED, "not aligned to", true},
    {WRONG_NO_WAIT, "read of shared memory that nothing has written", true},
    {RIGHT_WAIT, NULL, false},
    {WRONG_UNINITIALISED, "that nothing has written", true},
    {WRONG_UNINITIALISED_SHARED, "read of shared memory that nothing has written", true},
    {WRONG_HOST_MEMORY, "writes host memory", true},
    {WRONG_TOO_MUCH_SHARED, "invalid configuration", false},
};

static void run_kernel(const void *args)
{
    const struct kernel_case *k = args;
    float ones[128];
    cudaStream_t s = new_stream();
    float *x, *y;

    for (int i = 0; i < 128; i++)
        ones[i] = 1.0F;
    x = on_device(ones, (k->kind == WRONG_PAST_END ? 64 : 128) * sizeof(float));
    y = new_memory(sizeof ones);
    MUST(wrong_run(k->kind, x, y, s));
    MUST(cudaStreamSynchronize(s));
}

static void test_kernels(void **state)
{
    char said[SAID_BYTES];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(kernel_cases); i++) {
        const struct kernel_case *k = &kernel_cases[i];
        int code;
        if (k->needs_checked && !cri_sim_is_checked) continue;
        code = run_child(run_kernel, k, said);
        if (!k->says ? code != 0 : code == 0 || !strstr(said, k->says))
            fail_msg("case %zu: code %d, \"%s\" instead of \"%s\"", i, code, said,
                     k->says ? k->says : "");
    }
}

/* A message names the line of the code that made the access. */
static void test_lines(void **state)
{
    static const struct kernel_case k = {WRONG_PAST_END, NULL, true};
    char said[SAID_BYTES];

    (void)state;
    if (!cri_sim_is_checked) skip();
    assert_int_equal(run_child(run_kernel, &k, said), SIM_DIED);
    assert_non_null(strstr(said, "at wrong.cu:"));
    assert_non_null(strstr(said, "(kernel past_end, block 0, thread "));
}

/* ---- streams ---- */

typedef enum gap { NONE, NO_WAIT, NO_WAIT_BACK, NO_SYNC } gap;
typedef struct pipeline {
    gap gap; /* what is left out */
    uint64_t seed;
} pipeline;

/* A producer on one stream, a consumer on another, six rounds, results back to the host. Exits with 1 if they are wrong. */
static void run_pipeline(const void *args)
{
    enum { NUM = 256, ROUNDS = 6, BYTES = NUM * (int)sizeof(float) };
    const pipeline *p = args;
    cudaStream_t a, b;
    cudaEvent_t done, used;
    float zeros[NUM] = {0}, *x, *y, *host;

    cri_sim_seed(p->seed);
    a = new_stream();
    b = new_stream();
    x = on_device(zeros, BYTES);
    y = on_device(zeros, BYTES);
    MUST(cudaMallocHost((void **)&host, (size_t)ROUNDS * BYTES));
    MUST(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    MUST(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
    for (int i = 0; i < ROUNDS; i++) {
        if (p->gap != NO_WAIT_BACK) MUST(cudaStreamWaitEvent(a, used, 0));
        MUST(wrong_fill(x, (float)i, NUM, a));
        MUST(cudaEventRecord(done, a));
        if (p->gap != NO_WAIT) MUST(cudaStreamWaitEvent(b, done, 0));
        MUST(wrong_add_one(x, y, NUM, b));
        MUST(cudaEventRecord(used, b));
        MUST(cudaMemcpyAsync(host + (ptrdiff_t)i * NUM, y, BYTES, cudaMemcpyDeviceToHost, b));
    }
    if (p->gap != NO_SYNC) {
        MUST(cudaStreamSynchronize(b));
        MUST(cudaStreamSynchronize(a));
    }
    for (int j = 0; j < ROUNDS * NUM; j++)
        if (host[j] != (float)(j / NUM + j % NUM + 1)) _exit(1);
}

static void test_streams(void **state)
{
    static const struct {
        gap gap;
        const char *says;
    } cases[] = {
        {NONE, NULL},
        {NO_WAIT, "no event or synchronisation orders them"},
        {NO_WAIT_BACK, "no event or synchronisation orders them"},
        {NO_SYNC, NULL}, /* the host reads memory of its own: numbers alone show it */
    };
    char said[SAID_BYTES];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        int num_wrong = 0, num_named = 0;
        for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
            const pipeline p = {cases[i].gap, seed};
            int code = run_child(run_pipeline, &p, said);
            assert_true(code == 0 || code == 1 || code == SIM_DIED);
            num_wrong += code == 1;
            num_named += code == SIM_DIED;
            if (code == SIM_DIED && (!cases[i].says || !strstr(said, cases[i].says)))
                fail_msg("case %zu, seed %d: \"%s\"", i, (int)seed, said);
        }
        if (cases[i].gap == NONE)
            assert_true(num_wrong == 0 && num_named == 0);
        else if (cri_sim_is_checked && cases[i].says)
            assert_int_equal(num_named, NUM_SEEDS);
        else
            assert_true(num_wrong > 0); /* under some seeds */
    }
}

/* The same seed, the same order. */
static void test_seeds(void **state)
{
    char said[SAID_BYTES];
    int codes[2][NUM_SEEDS], num_wrong = 0;

    (void)state;
    for (int k = 0; k < 2; k++)
        for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
            const pipeline p = {NO_SYNC, seed};
            codes[k][seed] = run_child(run_pipeline, &p, said);
            num_wrong += codes[k][seed] == 1;
        }
    assert_memory_equal(codes[0], codes[1], sizeof codes[0]);
    assert_true(num_wrong > 0 && num_wrong < 2 * NUM_SEEDS);
}

/* ---- the host ---- */

static void touch(const void *args)
{
    volatile float *x = new_memory(400);

    (void)args;
    x[7] = 1.0F;
}

static void use_after_free(const void *args)
{
    float *x = new_memory(400);
    cudaStream_t s = new_stream();

    (void)args;
    MUST(wrong_fill(x, 1, 100, s));
    MUST(cudaFree(x));
    MUST(wrong_fill(x, 1, 100, s));
    MUST(cudaStreamSynchronize(s));
}

static void copy_to_stack(const void *args)
{
    float *x = new_memory(400), host[100];

    (void)args;
    MUST(cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDeviceToHost, new_stream()));
}

static void copy_past_end(const void *args)
{
    float *x = new_memory(400), host[101] = {0};

    (void)args;
    MUST(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice));
}

static void copy_overlapping(const void *args)
{
    float *x = new_memory(400);

    (void)args;
    MUST(cudaMemcpyAsync(x + 1, x, 396, cudaMemcpyDeviceToDevice, new_stream()));
}

static void use_default_stream(const void *args)
{
    (void)args;
    MUST(wrong_fill(new_memory(400), 1, 100, NULL));
}

static void free_twice(const void *args)
{
    void *x = new_memory(400);

    (void)args;
    MUST(cudaFree(x));
    MUST(cudaFree(x));
}

static void copy_wrong_way(const void *args)
{
    float *x = new_memory(400), host[100];

    (void)args;
    MUST(cudaMemcpy(host, x, sizeof host, cudaMemcpyHostToDevice));
}

static void free_pinned_early(const void *args)
{
    float *x = new_memory(400), *host;

    (void)args;
    cri_sim_seed(0);
    MUST(cudaMallocHost((void **)&host, 400));
    MUST(cudaMemcpyAsync(x, host, 400, cudaMemcpyHostToDevice, new_stream()));
    MUST(cudaFreeHost(host));
}

static void leak(const void *args)
{
    (void)args;
    setenv("CROLL_SIM_LEAKS", "1", 1);
    (void)new_memory(400);
    exit(0);
}

static void test_host(void **state)
{
    static const misuse cases[] = {
        {touch, "host code touched device memory: byte 28 of allocation 0 (400 bytes)"},
        {use_after_free, "freed device memory"},
        {copy_to_stack, "to pageable host memory would block"},
        {copy_past_end, "404 bytes at"},
        {copy_overlapping, "they overlap"},
        {use_default_stream, "fill on the default stream"},
        {free_twice, "which is freed"},
        {copy_wrong_way, "the direction is wrong"},
        {free_pinned_early, "cudaFreeHost while operations are queued"},
        {leak, "at exit 400 bytes of device memory"},
    };

    (void)state;
    check_misuses(cases, CR_COUNT(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels), cmocka_unit_test(test_lines),
        cmocka_unit_test(test_streams), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
