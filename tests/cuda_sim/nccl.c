/* NCCL of the simulation on 3 processes: right values with delays under every seed, a missing wait between a collective's
 * stream and a kernel's, calls that differ, memory of the host, a rank that dies, and the host that goes on while kernels run. */
#include "tests/check_near.h"
#include "tests/cuda_sim/wrong.h"

#include "tests/cuda_sim/child.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

extern bool cri_sim_is_checked;

enum { RANKS = 3, NUM = 1000, BYTES = NUM * (int)sizeof(float), NUM_SEEDS = 8 };

typedef enum mistake { NONE, NO_WAIT, DIFFERENT_COUNT, HOST_MEMORY, DEATH } mistake;
typedef struct rank_args {
    int rank;
    uint64_t seed;
    mistake mistake;
    ncclUniqueId id;
} rank_args;
typedef struct pipe_line { /* of one rank */
    ncclComm_t comm;
    cudaStream_t gather, compute, reduce;
    cudaEvent_t gathered, computed;
    float *part, *whole, *grad, *shard;
} pipe_line;

#define RIGHT(cond)                                          \
    do {                                                     \
        if (!(cond)) {                                       \
            fprintf(stderr, "line %d: %s", __LINE__, #cond); \
            _exit(1);                                        \
        }                                                    \
    } while (0)

static pipe_line open_rank(const rank_args *a)
{
    pipe_line p = {0};
    float part[NUM];

    cri_sim_seed(a->seed * 31 + (uint64_t)a->rank);
    RIGHT(ncclCommInitRank(&p.comm, RANKS, a->id, a->rank) == ncclSuccess);
    p.gather = new_stream();
    p.compute = new_stream();
    p.reduce = new_stream();
    MUST(cudaEventCreateWithFlags(&p.gathered, cudaEventDisableTiming));
    MUST(cudaEventCreateWithFlags(&p.computed, cudaEventDisableTiming));
    for (int i = 0; i < NUM; i++)
        part[i] = (float)(a->rank * NUM + i);
    p.part = on_device(part, BYTES);
    p.whole = new_memory((size_t)RANKS * BYTES);
    p.grad = new_memory((size_t)RANKS * BYTES);
    p.shard = new_memory(BYTES);
    return p;
}

/* rank r sends its slice q, NUM - q of it, to rank q */
static void exchange(const pipe_line *p, int rank)
{
    float got[RANKS * NUM];

    MUST(cudaStreamWaitEvent(p->gather, p->computed, 0));
    (void)ncclGroupStart();
    for (int q = 0; q < RANKS; q++) {
        (void)ncclSend(p->whole + (ptrdiff_t)q * NUM, (size_t)(NUM - q), ncclFloat32, q, p->comm,
                       p->gather);
        (void)ncclRecv(p->grad + (ptrdiff_t)q * NUM, (size_t)(NUM - rank), ncclFloat32, q, p->comm,
                       p->gather);
    }
    RIGHT(ncclGroupEnd() == ncclSuccess);
    MUST(cudaStreamSynchronize(p->gather));
    MUST(cudaMemcpy(got, p->grad, sizeof got, cudaMemcpyDeviceToHost));
    for (int q = 0; q < RANKS; q++)
        RIGHT(got[q * NUM + 5] == (float)(rank * NUM + 5));
}

/* Four steps as FSDP makes them: gather on one stream, compute on another, reduce-scatter on a third. */
static void run_steps(const void *args)
{
    const rank_args *a = args;
    pipe_line p = open_rank(a);
    float out[NUM] = {0};

    if (a->mistake == HOST_MEMORY) p.part = out;
    for (int i = 0; i < 4; i++) {
        size_t num = a->mistake == DIFFERENT_COUNT && a->rank == 1 && i == 2 ? NUM / 2 : NUM;
        if (i) MUST(cudaStreamWaitEvent(p.gather, p.computed, 0));
        (void)ncclAllGather(p.part, p.whole, num, ncclFloat32, p.comm, p.gather);
        MUST(cudaEventRecord(p.gathered, p.gather));
        if (a->mistake != NO_WAIT) MUST(cudaStreamWaitEvent(p.compute, p.gathered, 0));
        MUST(wrong_add_one(p.whole, p.grad, RANKS * NUM, p.compute));
        MUST(cudaEventRecord(p.computed, p.compute));
        MUST(cudaStreamWaitEvent(p.reduce, p.computed, 0));
        (void)ncclReduceScatter(p.grad, p.shard, NUM, ncclFloat32, ncclSum, p.comm, p.reduce);
        MUST(cudaStreamSynchronize(p.reduce));
        MUST(cudaMemcpy(out, p.shard, BYTES, cudaMemcpyDeviceToHost));
        for (int j = 0; j < NUM; j++)
            RIGHT(out[j] == (float)RANKS * ((float)(a->rank * NUM + j) + 1.0F));
    }
    exchange(&p, a->rank);
}

/* With NCCL a thread runs what is queued while the host does not call: what the host touches in the meantime, in
 * launchers for example, is no access of the kernel. */
static void compute_beside(const void *args)
{
    pipe_line p = open_rank(args);
    float x[NUM] = {1};
    struct timespec from, now;
    double first = 0;

    for (int i = 0; i < 200; i++)
        MUST(wrong_add_one(p.part, p.part, NUM, p.compute));
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        first += (double)right_host_sum(x, NUM);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - from.tv_sec) + (double)(now.tv_nsec - from.tv_nsec) * 1e-9 <
             0.3);
    RIGHT(first > 0);
    MUST(cudaStreamSynchronize(p.compute));
}

/* Five all-reduces; a rank that waits longer than 2 s aborts and exits with 3. */
static void run_until_abort(const void *args)
{
    const rank_args *a = args;
    pipe_line p = open_rank(a);
    ncclResult_t error = ncclSuccess;
    int num_waits = 0;

    for (int i = 0; i < 5; i++)
        (void)ncclAllReduce(p.part, p.part, NUM, ncclFloat32, ncclSum, p.comm, p.gather);
    while (cudaStreamQuery(p.gather) == cudaErrorNotReady) {
        (void)ncclCommGetAsyncError(p.comm, &error);
        if (error != ncclSuccess || num_waits++ > 4000) {
            (void)ncclCommAbort(p.comm);
            MUST(cudaStreamSynchronize(p.gather));
            _exit(3);
        }
        usleep(500);
    }
}

static void on_ranks(void (*run)(const void *), uint64_t seed, mistake m, int codes[RANKS],
                     char said[RANKS][SAID_BYTES])
{
    child children[RANKS];
    rank_args a = {.seed = seed, .mistake = m};

    assert_int_equal(ncclGetUniqueId(&a.id), ncclSuccess);
    for (a.rank = 0; a.rank < RANKS; a.rank++)
        children[a.rank] = start_child(run, &a);
    for (int r = 0; r < RANKS; r++) {
        codes[r] = end_child(&children[r]);
        memcpy(said[r], children[r].said, SAID_BYTES);
    }
}

static int codes[RANKS];
static char said[RANKS][SAID_BYTES];

static void test_values(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        on_ranks(run_steps, seed, NONE, codes, said);
        if (codes[0] || codes[1] || codes[2])
            fail_msg("seed %d: codes %d %d %d, \"%s\" \"%s\" \"%s\"", (int)seed, codes[0], codes[1],
                     codes[2], said[0], said[1], said[2]);
    }
}

static void test_missing_wait(void **state)
{
    int num_seen = 0;

    (void)state;
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        on_ranks(run_steps, seed, NO_WAIT, codes, said);
        num_seen += codes[0] || codes[1] || codes[2];
    }
    if (cri_sim_is_checked)
        assert_int_equal(num_seen, NUM_SEEDS);
    else
        assert_true(num_seen > 0);
}

static void test_different_calls(void **state)
{
    bool is_named = false;

    (void)state;
    on_ranks(run_steps, 1, DIFFERENT_COUNT, codes, said);
    for (int r = 0; r < RANKS; r++)
        is_named = is_named || (codes[r] == SIM_DIED && strstr(said[r], "calls all-gather of 500"));
    assert_true(is_named);
}

static void test_host_memory(void **state)
{
    (void)state;
    on_ranks(run_steps, 1, HOST_MEMORY, codes, said);
    assert_int_equal(codes[1], SIM_DIED);
    assert_non_null(strstr(said[1], "NCCL reads 4000 bytes of host memory"));
}

static void test_host_beside_kernels(void **state)
{
    (void)state;
    on_ranks(compute_beside, 0, NONE, codes, said);
    for (int r = 0; r < RANKS; r++)
        if (codes[r]) fail_msg("rank %d: code %d, \"%s\"", r, codes[r], said[r]);
}

static void test_death(void **state)
{
    (void)state;
    setenv("CROLL_SIM_NCCL_DIE", "1:3", 1);
    on_ranks(run_until_abort, 1, DEATH, codes, said);
    unsetenv("CROLL_SIM_NCCL_DIE");
    assert_int_equal(codes[0], 3);
    assert_int_equal(codes[1], 9);
    assert_int_equal(codes[2], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_missing_wait),
        cmocka_unit_test(test_different_calls), cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_death),           cmocka_unit_test(test_host_beside_kernels),
    };

    setenv("CROLL_SIM_NCCL_DELAY_US", "2000", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
