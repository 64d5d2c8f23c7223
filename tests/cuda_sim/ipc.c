/* Memory of the simulated GPU in two processes (CUDA IPC): the second one reads what the first wrote and answers in it; what CUDA does not
 * allow is refused, or ends the process with a sentence. Transfers of croll by it: mesh/comm on one GPU. */
#include "tests/check_near.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

/* after the runtime, whose names it has */
#include "tests/cuda_sim/child.h"

enum { NUM_BYTES = 4096 + 256, PATTERN = 7, ANSWER = 9, WRONG_BYTES = 88 };

static cudaIpcMemHandle_t handle; /* of memory */
static unsigned char *memory;

static void lend(void)
{
    unsigned char bytes[NUM_BYTES];

    memset(bytes, PATTERN, sizeof bytes);
    memory = on_device(bytes, sizeof bytes);
    MUST(cudaIpcGetMemHandle(&handle, memory));
}

static void check(const void *device, int pattern)
{
    unsigned char bytes[NUM_BYTES];

    MUST(cudaMemcpy(bytes, device, sizeof bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < NUM_BYTES; i++)
        if (bytes[i] != pattern) _exit(WRONG_BYTES);
}

/* Opened twice it is there until it is closed twice. */
static void answer(const void *args)
{
    unsigned char bytes[NUM_BYTES];
    void *opened, *again;

    (void)args;
    memset(bytes, ANSWER, sizeof bytes);
    MUST(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    MUST(cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess));
    if (again != opened) _exit(WRONG_BYTES);
    MUST(cudaIpcCloseMemHandle(again));
    check(opened, PATTERN);
    MUST(cudaMemcpy(opened, bytes, sizeof bytes, cudaMemcpyHostToDevice));
    MUST(cudaIpcCloseMemHandle(opened));
}

static void test_two_processes(void **state)
{
    char said[SAID_BYTES];
    int code;

    (void)state;
    lend();
    code = run_child(answer, NULL, said);
    if (code) fail_msg("code %d: %s", code, said);
    check(memory, ANSWER);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

/* ---- what is refused ---- */

static void open_here(const void *args)
{
    void *opened;

    (void)args;
    _exit((int)cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
}

static void open_with_other_flags(const void *args)
{
    void *opened;

    (void)args;
    _exit((int)cudaIpcOpenMemHandle(&opened, handle, 0));
}

/* _exit keeps eight bits. */
static void expect(void (*run)(const void *args), cudaError_t want)
{
    char said[SAID_BYTES];

    assert_int_equal(run_child(run, NULL, said), (int)want & 0xff);
}

static void test_refused(void **state)
{
    cudaIpcMemHandle_t unused;
    char host;
    void *opened;

    (void)state;
    lend();
    assert_int_equal(cudaIpcGetMemHandle(&unused, memory + 256), cudaErrorInvalidValue);
    assert_int_equal(cudaIpcGetMemHandle(&unused, &host), cudaErrorInvalidValue);
    assert_int_equal(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
                     cudaErrorDeviceUninitialized);
    expect(open_with_other_flags, cudaErrorInvalidValue);
    setenv("CROLL_SIM_FAIL", "ipc:1", 1);
    expect(open_here, cudaErrorMapBufferObjectFailed);
    unsetenv("CROLL_SIM_FAIL");
    unsetenv("CROLL_SIM_GPUS"); /* a GPU of its own for each process */
    expect(open_here, cudaErrorMapBufferObjectFailed);
    setenv("CROLL_SIM_GPUS", "1", 1);
    expect(open_here, cudaSuccess);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    assert_int_equal(cudaIpcGetMemHandle(&unused, memory), cudaErrorInvalidValue);
    expect(open_here, cudaErrorInvalidResourceHandle);
}

/* ---- what ends the process ---- */

static void close_unopened(const void *args)
{
    (void)args;
    lend();
    (void)cudaIpcCloseMemHandle(memory);
}

static void free_opened(const void *args)
{
    int said[2], ended[2];
    char byte = 0;

    (void)args;
    lend();
    if (pipe(said) || pipe(ended)) _exit(WRONG_BYTES);
    if (fork() == 0) {
        void *opened;
        close(ended[1]);
        close(STDERR_FILENO);
        MUST(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
        _exit(write(said[1], &byte, 1) == 1 && read(ended[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(said[1]);
    if (read(said[0], &byte, 1) == 1) (void)cudaFree(memory);
}

static void test_ended(void **state)
{
    static const misuse cases[] = {{close_unopened, "which is not open"},
                                   {free_opened, "which another process has open"}};

    (void)state;
    check_misuses(cases, CR_COUNT(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_processes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ended),
    };

    setenv("CROLL_SIM_GPUS", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
