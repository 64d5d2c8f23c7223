/* Captures and graphs on the simulated GPU: what CUDA refuses while a stream is captured is refused with its codes; a missing edge, a
 * stale address, a graph that is gone are named; memory that runs out for graphs is no error of croll. And how many graphs an
 * engine keeps, and what they save. Not covered: the kernels of a step (tests/cuda/engine_graphs.c). */
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "models/weights.h"
#include "tests/check_near.h"
#include "tests/cuda_sim/wrong.h"
#include "tests/model_bench.h"

#include "tests/cuda_sim/child.h"

#include <pthread.h>
#include <stdlib.h>

extern bool cri_sim_is_checked;
extern size_t cri_sim_num_graphs;

enum { NUM_SEEDS = 12, NUM = 64, BYTES = NUM * (int)sizeof(float) };

/* In a child: ends it with a sentence. */
static void expect(const char *what, cudaError_t got, cudaError_t want)
{
    if (got == want) return;
    fprintf(stderr, "%s: %s instead of %s", what, cudaGetErrorName(got), cudaGetErrorName(want));
    _exit(88);
}
#define EXPECT(call, want) expect(#call, (call), (want))

static cudaEvent_t new_event(void)
{
    cudaEvent_t e;

    MUST(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static void begin(cudaStream_t s)
{
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
}

static cudaGraphExec_t end(cudaStream_t s)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    MUST(cudaStreamEndCapture(s, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return exec;
}

static void check_values(const float *x, float first, cudaStream_t s)
{
    float got[NUM];

    MUST(cudaStreamSynchronize(s));
    MUST(cudaMemcpy(got, x, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < NUM; i++)
        if (got[i] != first + (float)i) _exit(1);
}

/* ---- graphs ---- */

/* Arguments are those of the capture. */
static void replay(const void *args)
{
    float *x = new_memory(BYTES), value = 5;
    cudaStream_t s = new_stream();
    cudaGraphExec_t exec;

    (void)args;
    begin(s);
    MUST(wrong_fill(x, value, NUM, s));
    value = 100;
    MUST(wrong_add_one(x, x, NUM, s));
    exec = end(s);
    for (int i = 0; i < 2; i++) {
        MUST(cudaGraphLaunch(exec, s));
        check_values(x, 6, s);
        MUST(wrong_fill(x, value, NUM, s));
    }
    MUST(cudaStreamSynchronize(s));
    MUST(cudaGraphExecDestroy(exec));
}

/* A copy reads what is in pinned memory when the graph runs. */
static void copy_from_host(const void *args)
{
    float *x = new_memory(BYTES), *host;
    cudaStream_t s = new_stream();
    cudaGraphExec_t exec;

    (void)args;
    MUST(cudaMallocHost((void **)&host, BYTES));
    begin(s);
    MUST(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, s));
    exec = end(s);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < NUM; i++)
            host[i] = (float)(turn + i);
        MUST(cudaGraphLaunch(exec, s));
        check_values(x, (float)turn, s);
    }
}

typedef enum gap { NONE, NO_FORK, NO_JOIN, NO_EDGE, NO_WAIT_AFTER } gap;
typedef struct fork_case {
    gap gap; /* what is left out */
    uint64_t seed;
} fork_case;

/* s fills x, t makes y of it; s adds one to y into z; u reads z after the graph. Exits with 1 if z is wrong. */
static void run_fork(const void *args)
{
    const fork_case *f = args;
    float *x = new_memory(BYTES), *y = new_memory(BYTES), *z = new_memory(BYTES),
          *w = new_memory(BYTES);
    cudaStream_t s, t, u;
    cudaEvent_t fork, join, done;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    cri_sim_seed(f->seed);
    s = new_stream();
    t = new_stream();
    u = new_stream();
    fork = new_event();
    join = new_event();
    done = new_event();
    begin(s);
    MUST(wrong_fill(x, 1, NUM, s));
    MUST(cudaEventRecord(fork, s));
    if (f->gap != NO_FORK) MUST(cudaStreamWaitEvent(t, fork, 0));
    if (f->gap == NO_FORK)
        MUST(wrong_fill(y, 2, NUM, t)); /* at once: it is in no capture */
    else
        MUST(wrong_add_one(x, y, NUM, t));
    MUST(cudaEventRecord(join, t));
    if (f->gap == NO_EDGE) MUST(wrong_add_one(y, z, NUM, s)); /* too early */
    if (f->gap == NO_JOIN) EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureUnjoined);
    if (f->gap == NO_JOIN) return;
    EXPECT(cudaStreamWaitEvent(s, join, 0),
           f->gap == NO_FORK ? cudaErrorStreamCaptureIsolation : cudaSuccess);
    if (f->gap == NO_FORK)
        EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    if (f->gap == NO_FORK) return;
    if (f->gap != NO_EDGE) MUST(wrong_add_one(y, z, NUM, s));
    exec = end(s);
    for (int i = 0; i < 3; i++) {
        MUST(cudaGraphLaunch(exec, s));
        MUST(cudaEventRecord(done, s));
        if (f->gap != NO_WAIT_AFTER) MUST(cudaStreamWaitEvent(u, done, 0));
        MUST(wrong_add_one(z, w, NUM, u));
        check_values(w, 4, u);
        check_values(z, 3, s);
    }
    MUST(cudaGraphExecDestroy(exec));
}

static void test_forks(void **state)
{
    static const struct {
        gap gap;
        bool is_named; /* where accesses are checked */
    } cases[] = {
        {NONE, false}, {NO_FORK, false}, {NO_JOIN, false}, {NO_EDGE, true}, {NO_WAIT_AFTER, true}};
    char said[SAID_BYTES];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        int num_wrong = 0;
        for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
            const fork_case f = {cases[i].gap, seed};
            int code = run_child(run_fork, &f, said);
            bool is_named = strstr(said, "orders them") || strstr(said, "nothing has written");
            num_wrong += code != 0;
            if (cases[i].is_named && cri_sim_is_checked ? code != SIM_DIED || !is_named
                                                        : code != 0 && !cases[i].is_named)
                fail_msg("case %zu, seed %d: code %d, \"%s\"", i, (int)seed, code, said);
        }
        assert_true(cases[i].is_named == (num_wrong > 0));
    }
}

/* ---- what is refused ---- */

static cudaStream_t other;
static cudaEvent_t event;
static void *device_memory, *host_memory;

static cudaError_t call_malloc(cudaStream_t s)
{
    void *p;

    (void)s;
    return cudaMalloc(&p, 8);
}
static cudaError_t call_free(cudaStream_t s)
{
    (void)s;
    return cudaFree(device_memory);
}
static cudaError_t call_malloc_host(cudaStream_t s)
{
    void *p;

    (void)s;
    return cudaMallocHost(&p, 8);
}
static cudaError_t call_free_host(cudaStream_t s)
{
    (void)s;
    return cudaFreeHost(host_memory);
}
static cudaError_t call_copy(cudaStream_t s)
{
    (void)s;
    return cudaMemcpy(device_memory, host_memory, 8, cudaMemcpyHostToDevice);
}
static cudaError_t call_wait_other(cudaStream_t s)
{
    (void)s;
    return cudaStreamSynchronize(other);
}
static cudaError_t call_wait_device(cudaStream_t s)
{
    (void)s;
    return cudaDeviceSynchronize();
}
static cudaError_t call_wait_event(cudaStream_t s)
{
    (void)s;
    return cudaEventSynchronize(event);
}
static cudaError_t call_ask_event(cudaStream_t s)
{
    (void)s;
    return cudaEventQuery(event);
}

/* Each call fails, and so does the end of the capture; the stream goes on as if there had been none. */
static void refuse(const void *args)
{
    static cudaError_t (*const calls[])(cudaStream_t s) = {
        call_malloc,    call_free,       call_malloc_host,      call_free_host,
        call_copy,      call_wait_other, call_wait_device,      call_wait_event,
        call_ask_event, cudaStreamQuery, cudaStreamSynchronize,
    };
    float *x = new_memory(BYTES);
    cudaStream_t s = new_stream();
    cudaGraph_t graph;

    (void)args;
    other = new_stream();
    event = new_event();
    device_memory = new_memory(8);
    MUST(cudaMallocHost(&host_memory, 8));
    MUST(wrong_fill(x, 1, NUM, s));
    for (size_t i = 0; i < CR_COUNT(calls); i++) {
        begin(s);
        MUST(wrong_fill(x, 2, NUM, s));
        EXPECT(calls[i](s), cudaErrorStreamCaptureUnsupported);
        EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
        if (graph) _exit(1);
        (void)cudaGetLastError();
        check_values(x, 1, s);
    }
}

static void *end_elsewhere(void *s)
{
    cudaGraph_t graph;

    EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureWrongThread);
    EXPECT(cudaStreamSynchronize(other),
           cudaSuccess); /* another thread may wait for another stream */
    return NULL;
}

static void break_rules(const void *args)
{
    cudaStream_t s = new_stream(), t = new_stream(), u;
    cudaEvent_t in_s = new_event(), in_t = new_event(), in_u = new_event();
    cudaGraph_t graph;
    pthread_t thread;

    (void)args;
    u = other = new_stream();
    EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorIllegalState);
    begin(s);
    EXPECT(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
    MUST(cudaEventRecord(in_s, s));
    MUST(cudaStreamWaitEvent(t, in_s, 0));
    EXPECT(cudaStreamEndCapture(t, &graph), cudaErrorStreamCaptureUnmatched);
    MUST(cudaEventRecord(in_t, t));
    MUST(cudaStreamWaitEvent(s, in_t, 0));
    if (pthread_create(&thread, NULL, end_elsewhere, s) != 0) _exit(1);
    pthread_join(thread, NULL);
    (void)end(s);
    EXPECT(cudaEventQuery(in_s), cudaErrorCapturedEvent);
    EXPECT(cudaEventSynchronize(in_s), cudaErrorCapturedEvent);
    EXPECT(cudaStreamWaitEvent(s, in_s, 0), cudaErrorCapturedEvent);
    begin(s);
    begin(u);
    MUST(cudaEventRecord(in_u, u));
    EXPECT(cudaStreamWaitEvent(s, in_u, 0), cudaErrorStreamCaptureMerge);
    EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT(cudaStreamEndCapture(u, &graph), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
    MUST(cudaEventRecord(in_u, u)); /* of a stream again */
    MUST(cudaEventSynchronize(in_u));
}

static void capture_default_stream(const void *args)
{
    float *x = new_memory(BYTES);

    (void)args;
    begin(new_stream());
    MUST(wrong_fill(x, 1, NUM, NULL));
}

typedef struct made {
    cudaStream_t s;
    float *x;
    cudaGraphExec_t exec;
} made;

static made make_graph(void)
{
    made m = {new_stream(), new_memory(BYTES), NULL};

    cri_sim_seed(0); /* nothing runs until it is waited for */
    begin(m.s);
    MUST(wrong_fill(m.x, 1, NUM, m.s));
    m.exec = end(m.s);
    return m;
}

static void stale_address(const void *args)
{
    made m = make_graph();

    (void)args;
    MUST(cudaFree(m.x));
    MUST(cudaGraphLaunch(m.exec, m.s));
    MUST(cudaStreamSynchronize(m.s));
}

static void stale_copy(const void *args)
{
    float *x = new_memory(BYTES), *y = new_memory(BYTES);
    cudaStream_t s = new_stream();
    cudaGraphExec_t exec;

    (void)args;
    MUST(wrong_fill(x, 1, NUM, s));
    begin(s);
    MUST(cudaMemcpyAsync(y, x, BYTES, cudaMemcpyDeviceToDevice, s));
    exec = end(s);
    MUST(cudaFree(x));
    MUST(cudaGraphLaunch(exec, s));
    MUST(cudaStreamSynchronize(s));
}

static void destroy_early(const void *args)
{
    made m = make_graph();

    (void)args;
    MUST(cudaGraphLaunch(m.exec, m.s));
    MUST(cudaGraphExecDestroy(m.exec));
}

static void launch_destroyed(const void *args)
{
    made m = make_graph();

    (void)args;
    MUST(cudaGraphExecDestroy(m.exec));
    MUST(cudaGraphLaunch(m.exec, m.s));
}

static void destroy_twice(const void *args)
{
    made m = make_graph();

    (void)args;
    MUST(cudaGraphExecDestroy(m.exec));
    MUST(cudaGraphExecDestroy(m.exec));
}

static void leave_graph(const void *args)
{
    made m = make_graph();

    (void)args;
    MUST(cudaFree(m.x));
    setenv("CROLL_SIM_LEAKS", "1", 1);
    exit(0);
}

/* ---- croll's graphs ---- */

static cr_device *dev;
static cr_err err;

static void must(cr_status status)
{
    if (status == CR_OK) return;
    fprintf(stderr, "%s", err.msg);
    _exit(89);
}

typedef struct doubling {
    cr_device *on;
    cr_mem *x; /* NUM */
} doubling;

static cr_status twice(void *ctx, cr_err *e)
{
    const doubling *d = ctx;

    return cr_scale(d->on, &(cr_scale_args){d->x, 2, NUM}, e);
}

static doubling new_doubling(void)
{
    doubling d;
    float ones[NUM];

    for (int i = 0; i < NUM; i++)
        ones[i] = 1;
    must(cr_device_open("cuda", 1, &dev, &err));
    must(cr_device_alloc(dev, BYTES, &d.x, &err));
    must(cr_upload(dev, d.x, ones, sizeof ones, &err));
    d.on = dev;
    return d;
}

static void check_all(const doubling *d, float want)
{
    float got[NUM];

    must(cr_download(dev, got, d->x, sizeof got, &err));
    for (int i = 0; i < NUM; i++)
        if (got[i] != want) _exit(1);
}

/* There is memory for one graph: the second graph calls, and the first goes on. Two warnings are said: it is tried again after
 * memory was freed. */
static void little_memory(const void *args)
{
    doubling d = new_doubling();
    cr_graph *r[2] = {NULL, NULL};
    cr_mem *other_memory;

    (void)args;
    setenv("CROLL_SIM_MAX_GRAPHS", "1", 1);
    setenv("CROLL_SIM_LEAKS", "1", 1);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            must(cr_graph_run(dev, &r[k], 1, twice, &d, &err));
    check_all(&d, 256);
    if (cr_device_get_stats(dev).num_graph_launches != 3) _exit(1);
    must(cr_device_alloc(dev, 8, &other_memory, &err));
    cr_device_free(dev, other_memory, 8);
    for (int i = 0; i < 3; i++)
        for (int k = 1; k >= 0; k--)
            must(cr_graph_run(dev, &r[k], 1, twice, &d, &err));
    check_all(&d, 256 * 64);
    for (int k = 0; k < 2; k++)
        cr_graph_destroy(dev, r[k]);
    cr_device_free(dev, d.x, BYTES);
    cr_device_close(dev);
    exit(0);
}

static void second_stream(const void *args)
{
    doubling d = new_doubling();
    cr_graph *r = NULL;

    (void)args;
    must(cr_graph_run(dev, &r, 1, twice, &d, &err));
    d.on = cr_device_stream(dev, CR_STREAM_COPY);
    must(cr_graph_run(dev, &r, 1, twice, &d, &err));
}

static void *download(void *ctx)
{
    const doubling *d = ctx;
    cr_err e = {0};
    float got[NUM];

    if (cr_download(dev, got, d->x, sizeof got, &e) == CR_OK) return NULL;
    fprintf(stderr, "%s", e.msg);
    _exit(89);
}

static pthread_t downloader;

/* Begins a download and gives it time to come into the way. */
static cr_status download_and_double(void *ctx, cr_err *e)
{
    if (pthread_create(&downloader, NULL, download, ctx) != 0) _exit(1);
    usleep(20000);
    return twice(ctx, e);
}

/* Downloads come from any thread, also while this one records: they wait until it has. */
static void download_meanwhile(const void *args)
{
    doubling d = new_doubling();
    cr_graph *r = NULL;

    (void)args;
    for (int i = 0; i < 2; i++) {
        must(cr_graph_run(dev, &r, 1, download_and_double, &d, &err));
        pthread_join(downloader, NULL);
    }
    check_all(&d, 4);
}

static void test_cases(void **state)
{
    static const struct {
        void (*run)(const void *args);
        int code;
        const char *says;
    } cases[] = {
        {replay, 0, ""},
        {copy_from_host, 0, ""},
        {refuse, 0, ""},
        {break_rules, 0, ""},
        {capture_default_stream, SIM_DIED, "fill on the default stream"},
        {stale_address, SIM_DIED, "fill of a graph"},
        {stale_copy, SIM_DIED, "copy on device of a graph reads freed device memory"},
        {destroy_early, SIM_DIED, "a graph is destroyed while a launch of it has not run"},
        {launch_destroyed, SIM_DIED, "a launch of a graph that was destroyed"},
        {destroy_twice, SIM_DIED, "a graph is destroyed twice"},
        {leave_graph, SIM_DIED, "at exit 0 bytes of device memory, 0 pinned buffers and 1 graphs"},
        {little_memory, 0, "no GPU memory is left for a graph"},
        {second_stream, 1, "a second stream is used while one is captured"},
        {download_meanwhile, 0, ""},
    };
    char said[SAID_BYTES];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        int code = run_child(cases[i].run, NULL, said);
        if (code != cases[i].code || !strstr(said, cases[i].says))
            fail_msg("case %zu: code %d, \"%s\" instead of \"%s\"", i, code, said, cases[i].says);
    }
}

/* ---- the engine ---- */

static cr_model *model;
static cr_full_weights full;
static cr_engine *engine;

static void open_engine(const char *config, cr_dtype dtype, const cr_engine_limits *limits)
{
    if (!dev) must(cr_device_open("cuda", 1, &dev, &err));
    must(build_model(config, &model, &err));
    must(cr_full_weights_init(&full, model, dev, dtype, NULL, 11, &err));
    must(cr_engine_create(model, dev, limits, &engine, &err));
    must(cr_engine_set_weights(engine, &err));
}

static void close_engine(void)
{
    cr_engine_destroy(engine);
    cr_full_weights_fini(&full);
    cr_model_free(model);
    assert_int_equal(cri_sim_num_graphs, 0);
}

static void submit(uint64_t id, size_t num_prompt, int64_t num_new)
{
    const int32_t prompt[129] = {1};
    const cr_generating how = {
        .top_p = 1, .repetition_penalty = 1, .max_new_tokens = num_new, .ignores_eos = true};

    must(cr_engine_submit(engine, prompt, num_prompt, &id, 1, &how, NULL, &err));
}

static void run_all(void)
{
    cr_generated g;

    while (!cr_engine_is_idle(engine))
        must(cr_engine_step(engine, &err));
    while (cr_engine_poll(engine, &g))
        cr_generated_free(&g);
}

/* 72 to 1 rows, 12 numbers of them, with tables of 1, 2 and 4 blocks, each for two steps: 32 graphs are kept. */
static void test_max_kept(void **state)
{
    enum { MAX_NUM = 71 };

    (void)state;
    open_engine(
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_key_value_heads\":1,"
        "\"num_attention_heads\":1,\"head_dim\":4,\"hidden_size\":4,\"intermediate_size\":4,"
        "\"vocab_size\":8,\"rms_norm_eps\":1e-5,\"rope_theta\":100,\"eos_token_id\":[3],"
        "\"max_position_embeddings\":256}",
        CR_F32, &(cr_engine_limits){.max_running = MAX_NUM + 1});
    for (size_t blocks = 1; blocks <= 3; blocks++) {
        for (uint64_t i = 0; i < MAX_NUM; i++) /* 8 end at a time, then 4, 2 and 1 */
            submit(i, 1, i < 64 ? 3 + 2 * (int64_t)(i / 8) : i < 68 ? 19 : i < 70 ? 21 : 23);
        submit(MAX_NUM, (blocks - 1) * CR_KV_BLOCK + 1, 27);
        run_all();
        assert_int_equal(cri_sim_num_graphs, blocks < 3 ? 12 * blocks : 32);
    }
    close_engine();
}

/* In a step of one sample with all 28 layers of Qwen3 0.6B, which its widths do not change: calls that queue work, and waits of the host; recorded,
 * from the copies of its arrays to those of its results, it is one launch and one wait. With products of few rows one by one, and with q, k and v, gate
 * and up as one, where cuBLASLt has the bits of few.cu. */
static void test_launches(void **state)
{
    cri_sim_stats of[4], before;
    char config[512];

    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool eager = i % 2;
        if (i > 1) setenv("CROLL_SIM_CUBLASLT", "chain", 1);
        snprintf(config, sizeof config,
                 "{\"model_type\":\"qwen3\",\"num_hidden_layers\":28,\"num_key_value_heads\":1,"
                 "\"num_attention_heads\":2,\"head_dim\":16,\"hidden_size\":%d,"
                 "\"intermediate_size\":48,\"vocab_size\":60,\"rms_norm_eps\":1e-5,"
                 "\"rope_theta\":100,\"eos_token_id\":[3],\"tie_word_embeddings\":true,"
                 "\"max_position_embeddings\":64}",
                 i > 1 ? 64 : 32); /* sizes that the device has not met */
        open_engine(config, CR_BF16, &(cr_engine_limits){.max_running = 1, .is_eager = eager});
        submit(0, 1, 6);
        for (int step = 0; step < 5; step++) {
            before = cri_sim_counts;
            must(cr_engine_step(engine, &err));
        }
        of[i] = cri_sim_counts;
        of[i].submitted -= before.submitted;
        of[i].host_waits -= before.host_waits;
        run_all();
        close_engine();
    }
    unsetenv("CROLL_SIM_CUBLASLT");
    for (int i = 0; i < 4; i += 2)
        printf("a step of 28 layers%s: %d launches and copies, %d waits; recorded %d and %d\n",
               i ? " with products together" : "", (int)of[i + 1].submitted,
               (int)of[i + 1].host_waits, (int)of[i].submitted, (int)of[i].host_waits);
    for (int i = 0; i < 4; i += 2)
        assert_true(of[i].submitted == 1 && of[i].host_waits == 1);
    assert_true(of[1].submitted > 28 * 12);
    assert_true(of[3].submitted == of[1].submitted - 28 * 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_max_kept),
        cmocka_unit_test(test_launches),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
