/* order.cpp -- when the operations of the simulated streams run.
 *
 * Nothing runs because it is enqueued. The seed makes a temper: how eagerly operations run when they are enqueued, how
 * many others run while the host waits for one, and which streams starve (run only when the host waits for them). Some
 * seeds run everything at once, some nothing until it is waited for; a missing event therefore shows as
 * wrong numbers under some seeds, the same ones each time, and is named by check.cpp under all.
 */
#include "tests/cuda_sim/gpu/impl.h"

#include <set>
#include <stdlib.h>
#include <thread>

using std::chrono::steady_clock;

cri_sim_random cri_sim_rng;
cri_sim_op *cri_sim_running;
__thread bool cri_sim_runs_here;
std::recursive_mutex cri_sim_lock;
cri_sim_clock cri_sim_host_clock;
cri_sim_stats cri_sim_counts;

static std::vector<CUstream_st *> streams;
static std::vector<const std::string *> names[CRI_SIM_MAX_STREAMS]; /* of the operations, by time */
static struct {
    unsigned eager_percent, extra_percent, starved;
} temper;
static bool has_seed;
static steady_clock::time_point last_call;

void cri_sim_seed(uint64_t seed)
{
    std::lock_guard<std::recursive_mutex> guard(cri_sim_lock);

    has_seed = true;
    cri_sim_rng.state = seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    for (int i = 0; i < 4; i++)
        cri_sim_rng.next();
    switch (seed % 4) {
    case 0:
        temper = {0, 0, 0}; /* only what is waited for */
        break;
    case 1:
        temper = {100, 0, 0}; /* everything at once, as with CUDA_LAUNCH_BLOCKING */
        break;
    case 2:
        temper = {30, 50, 0};
        break;
    default:
        temper = {80, 80, (unsigned)cri_sim_rng.next()};
    }
}

cri_sim_enter::cri_sim_enter()
{
    cri_sim_memory_begin();
    last_call = steady_clock::now();
    if (!has_seed) cri_sim_seed(cri_sim_setting("CROLL_SIM_SEED", 0));
}

CUstream_st *cri_sim_new_stream(void)
{
    CUstream_st *s = nullptr;

    for (CUstream_st *old : streams)
        if (!old->is_alive && !s) s = old; /* its number and clock go on */
    if (!s) {
        if (streams.size() == CRI_SIM_MAX_STREAMS)
            cri_sim_die("over %d streams", CRI_SIM_MAX_STREAMS);
        s = new CUstream_st();
        s->number = (int)streams.size();
        streams.push_back(s);
    }
    s->is_alive = true;
    return s;
}

const std::vector<CUstream_st *> &cri_sim_streams(void)
{
    return streams;
}

static void keep_name(const CUstream_st *s, const std::string &name)
{
    static std::set<std::string> known;
    auto &of = names[s->number];
    uint32_t time = s->clock.at[s->number];

    if (of.size() <= time) of.resize(time + time / 2 + 64);
    of[time] = &*known.insert(name).first;
}

std::string cri_sim_op_name(int stream, uint32_t time)
{
    const auto &of = names[stream];
    const char *name = time < of.size() && of[time] ? of[time]->c_str() : "an operation";

    return std::string(name) + " (stream " + std::to_string(stream) + ")";
}

/* ---- running ---- */

static void begin_op(cri_sim_op *op)
{
    cri_sim_open_memory();
    cri_sim_running = op;
    cri_sim_runs_here = true;
    cri_sim_check_new_op();
}

static void end_op(void)
{
    cri_sim_runs_here = false;
    cri_sim_running = nullptr;
}

/* ready() of an operation with other processes moves data, so it runs as the operation itself. */
static bool is_ready(CUstream_st *s)
{
    cri_sim_op *op;
    bool is;

    if (!s->is_alive || s->queue.empty()) return false;
    op = &s->queue.front();
    if (!op->ready || (cri_sim_lost && op->is_external)) return true;
    if (!op->is_external) return op->ready() || cri_sim_lost;
    begin_op(op);
    is = op->ready();
    end_op();
    return is;
}

static void run_head(CUstream_st *s)
{
    cri_sim_op op = std::move(s->queue.front());

    s->queue.pop_front();
    cri_sim_counts.ops++;
    if (!op.run || cri_sim_lost) return;
    if (cri_sim_fails(CRI_SIM_FAIL_WORK)) {
        cri_sim_lost = cudaErrorECCUncorrectable;
        return;
    }
    begin_op(&op);
    op.run();
    end_op();
}

/* Runs one operation that may run now: of `only` if given, else of a stream the seed picks. */
static bool run_one(CUstream_st *only, bool may_starve)
{
    CUstream_st *can[CRI_SIM_MAX_STREAMS];
    unsigned n = 0;

    if (only) {
        if (!is_ready(only)) return false;
        run_head(only);
        return true;
    }
    for (CUstream_st *s : streams)
        if (!(may_starve && temper.starved >> s->number & 1) && is_ready(s)) can[n++] = s;
    if (!n) return false;
    run_head(can[cri_sim_rng.below(n)]);
    return true;
}

/* The stream that has to go on so that `target` can. */
static CUstream_st *needed_by(CUstream_st *target)
{
    CUstream_st *s = target;

    for (int depth = 0; depth < CRI_SIM_MAX_STREAMS; depth++) {
        if (!s || is_ready(s) || s->queue.empty() || !s->queue.front().waits_for) break;
        s = s->queue.front().waits_for;
    }
    return s;
}

static bool is_any_external(void)
{
    for (CUstream_st *s : streams)
        if (!s->queue.empty() && s->queue.front().is_external) return true;
    return false;
}

/* First what `target` needs, and as much besides as the temper asks for. */
void cri_sim_run_until(const std::function<bool()> &is_done, CUstream_st *target)
{
    int idle = 0;

    while (!is_done()) {
        if (cri_sim_rng.chance(temper.extra_percent)) run_one(nullptr, true);
        if (is_done()) break;
        if (run_one(needed_by(target), false) || run_one(nullptr, false)) {
            idle = 0;
            continue;
        }
        if (!is_any_external())
            cri_sim_die("the host waits, and no operation can run: on a GPU this hangs");
        cri_sim_close_memory();
        cri_sim_lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(idle++ < 100 ? 20 : 500));
        cri_sim_lock.lock();
        last_call = steady_clock::now();
    }
    cri_sim_close_memory();
}

void cri_sim_run_stream(CUstream_st *s)
{
    cri_sim_run_until([s] { return s->queue.empty(); }, s);
}

void cri_sim_run_all(void)
{
    for (size_t i = 0; i < streams.size(); i++)
        cri_sim_run_stream(streams[i]);
}

void cri_sim_run_some(void)
{
    run_one(nullptr, false);
    cri_sim_close_memory();
}

void cri_sim_queue(CUstream_st *s, cri_sim_op op)
{
    op.stream = s;
    if (op.queued) op.queued();
    s->clock.join(cri_sim_host_clock);
    s->clock.at[s->number]++;
    op.clock = s->clock;
    if (cri_sim_is_checked) keep_name(s, op.name);
    s->queue.push_back(std::move(op));
    while (cri_sim_rng.chance(temper.eager_percent) && run_one(nullptr, true)) {
    }
    cri_sim_close_memory();
}

cudaError_t cri_sim_enqueue(CUstream_st *s, cri_sim_op op)
{
    if (!s) cri_sim_die("%s on the default stream: name a stream", op.name.c_str());
    if (!s->is_alive) cri_sim_die("%s on a stream that was destroyed", op.name.c_str());
    if (cri_sim_lost) return cri_sim_keep_error(cri_sim_lost);
    if (s->capture) return cri_sim_capture_op(s, std::move(op));
    cri_sim_counts.submitted += op.is_submitted;
    cri_sim_queue(s, std::move(op));
    return cudaSuccess;
}

cri_sim_place cri_sim_mark(CUstream_st *s)
{
    auto place = std::make_shared<cri_sim_place_st>();
    cri_sim_op op;

    place->stream = s;
    op.name = "event record";
    op.ready = [place] { return place->is_over = true; }; /* as soon as it is the head */
    cri_sim_queue(s, std::move(op));
    place->clock = s->clock;
    return place;
}

void cri_sim_wait(CUstream_st *s, const cri_sim_place &place)
{
    cri_sim_op op;

    op.name = "wait for event";
    op.waits_for = place->stream;
    op.ready = [place] { return place->is_over; };
    s->clock.join(place->clock);
    cri_sim_queue(s, std::move(op));
}

/* A real device goes on while the host waits for other processes: so a thread runs one operation now and then when the
 * host has not called for 5 ms. Only with NCCL, since it makes the order depend on time. */
void cri_sim_want_progress_thread(void)
{
    static bool is_on;

    if (is_on) return;
    is_on = true;
    /* streams end after it: the thread finds the lock taken */
    atexit([] { cri_sim_lock.lock(); });
    std::thread([] {
        for (;;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            std::unique_lock<std::recursive_mutex> lock(cri_sim_lock, std::try_to_lock);
            if (!lock || steady_clock::now() - last_call < std::chrono::milliseconds(5)) continue;
            cri_sim_memory_begin(); /* its stack for faults */
            cri_sim_run_some();
        }
    }).detach();
}
