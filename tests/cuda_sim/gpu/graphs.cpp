/* graphs.cpp -- capture of streams, and graphs.
 *
 * A capture begins on one stream; another stream joins it by waiting for an event that was recorded in it, and has to be waited
 * for in turn before the capture ends. Arguments are frozen at capture, as CUDA freezes them. A launch puts each stream of the
 * capture on a stream of its own again, so that two nodes without an edge run in any order, and check.cpp names what they share.
 *
 * While a thread captures, CUDA prohibits calls that wait or that may (cudaMalloc, cudaFree, cudaMemcpy, synchronisation, questions
 * about events and streams): here all of them are refused, with CUDA's codes, and the capture is lost. Stricter than CUDA: a graph
 * is not destroyed before its launches have run, and a graph inside a capture, or a collective, is not known.
 */
#include "tests/cuda_sim/gpu/impl.h"

#include <stdlib.h>
#include <thread>

typedef std::vector<size_t> counts; /* by branch: its first steps */
namespace
{
struct step {
    enum { WORK, MARK, WAIT } kind;
    int branch;
    size_t mark;
    cri_sim_op op; /* of WORK */
};
} // namespace

struct cri_sim_capture {
    enum cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool is_lost = false, is_over = false;
    std::vector<CUstream_st *> streams; /* by branch, the one that it began on first */
    std::vector<counts> before;         /* by branch: the steps that are ordered before its end */
    std::vector<step> steps;
    std::vector<counts> marks; /* what was before them */
};
struct CUgraph_st {
    std::vector<step> steps;
    size_t num_branches, num_marks;
};
struct CUgraphExec_st { /* stays when it is destroyed, to be named */
    CUgraph_st graph;
    bool is_alive = true;
    std::vector<CUstream_st *> streams; /* of the branches after the first */
    cri_sim_place last;                 /* the end of its last launch */
};

static std::vector<std::shared_ptr<cri_sim_capture>> ongoing;
size_t cri_sim_num_graphs;

/* ---- calls that are prohibited ---- */

static cudaError_t lose(cri_sim_capture *c)
{
    c->is_lost = true;
    return cri_sim_keep_error(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cri_sim_unless_captured(CUstream_st *s)
{
    cudaError_t code = cudaSuccess;

    if (s && s->capture) code = lose(s->capture.get());
    for (auto &c : ongoing)
        if (c->mode == cudaStreamCaptureModeGlobal || c->thread == std::this_thread::get_id())
            code = lose(c.get());
    return code;
}

cudaError_t cri_sim_unless_any_captured(void)
{
    cudaError_t code = cudaSuccess;

    for (auto &c : ongoing)
        code = lose(c.get());
    return code;
}

/* ---- capture ---- */

static void raise(counts &of, size_t branch, size_t to)
{
    if (of.size() <= branch) of.resize(branch + 1);
    if (of[branch] < to) of[branch] = to;
}

static cudaError_t add(CUstream_st *s, step &&what)
{
    cri_sim_capture *c = s->capture.get();
    size_t branch = (size_t)s->branch;

    what.branch = s->branch;
    raise(c->before[branch], branch, 0);
    c->before[branch][branch]++;
    c->steps.push_back(std::move(what));
    return cudaSuccess;
}

static void enter(CUstream_st *s, const std::shared_ptr<cri_sim_capture> &c)
{
    s->capture = c;
    s->branch = (int)c->streams.size();
    c->streams.push_back(s);
    c->before.push_back({});
}

cudaError_t cri_sim_capture_op(CUstream_st *s, cri_sim_op op)
{
    if (op.is_external) cri_sim_die("%s in a graph is not simulated", op.name.c_str());
    op.name += " of a graph";
    return add(s, {step::WORK, 0, 0, std::move(op)});
}

cudaError_t cri_sim_capture_record(CUstream_st *s, CUevent_st *e)
{
    e->capture = s->capture;
    e->mark = s->capture->marks.size();
    add(s, {step::MARK, 0, e->mark, {}});
    s->capture->marks.push_back(s->capture->before[(size_t)s->branch]);
    return cudaSuccess;
}

cudaError_t cri_sim_capture_wait(CUstream_st *s, CUevent_st *e)
{
    std::shared_ptr<cri_sim_capture> c = e->capture;

    if (!c) { /* the event is of a stream outside of the capture */
        if (!e->place) return cudaSuccess;
        s->capture->is_lost = true;
        return cri_sim_keep_error(cudaErrorStreamCaptureIsolation);
    }
    if (c->is_over) return cri_sim_keep_error(cudaErrorCapturedEvent);
    if (!s->capture) enter(s, c);
    if (s->capture != c) {
        c->is_lost = s->capture->is_lost = true;
        return cri_sim_keep_error(cudaErrorStreamCaptureMerge);
    }
    for (size_t b = 0; b < c->marks[e->mark].size(); b++)
        raise(c->before[(size_t)s->branch], b, c->marks[e->mark][b]);
    return add(s, {step::WAIT, 0, e->mark, {}});
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    cri_sim_enter guard;
    auto c = std::make_shared<cri_sim_capture>();

    if (!s) cri_sim_die("a capture of the default stream");
    if (cri_sim_lost) return cri_sim_keep_error(cri_sim_lost);
    if (s->capture) return cri_sim_keep_error(cudaErrorIllegalState);
    c->mode = mode;
    c->thread = std::this_thread::get_id();
    ongoing.push_back(c);
    enter(s, c);
    return cudaSuccess;
}

static bool is_joined(const cri_sim_capture &c)
{
    for (size_t b = 1; b < c.streams.size(); b++)
        if (c.before[0].size() <= b || c.before[0][b] < c.before[b][b]) return false;
    return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    cri_sim_enter guard;
    std::shared_ptr<cri_sim_capture> c = s->capture;

    *out = nullptr;
    if (!c) return cri_sim_keep_error(cudaErrorIllegalState);
    if (c->streams[0] != s) return cri_sim_keep_error(cudaErrorStreamCaptureUnmatched);
    if (c->thread != std::this_thread::get_id())
        return cri_sim_keep_error(cudaErrorStreamCaptureWrongThread);
    c->is_over = true;
    for (CUstream_st *of : c->streams)
        of->capture.reset();
    for (size_t i = 0; i < ongoing.size(); i++)
        if (ongoing[i] == c) ongoing.erase(ongoing.begin() + (ptrdiff_t)i);
    if (c->is_lost) return cri_sim_keep_error(cudaErrorStreamCaptureInvalidated);
    if (!is_joined(*c)) return cri_sim_keep_error(cudaErrorStreamCaptureUnjoined);
    *out = new CUgraph_st{std::move(c->steps), c->streams.size(), c->marks.size()};
    return cudaSuccess;
}

/* ---- graphs ---- */

/* CROLL_SIM_MAX_GRAPHS: one more is out of memory. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    cri_sim_enter guard;
    const char *max = getenv("CROLL_SIM_MAX_GRAPHS");

    *out = nullptr;
    if (!graph) return cri_sim_keep_error(cudaErrorInvalidValue);
    if (max && cri_sim_num_graphs >= strtoull(max, nullptr, 10))
        return cri_sim_keep_error(cudaErrorMemoryAllocation);
    *out = new CUgraphExec_st();
    (*out)->graph = *graph;
    for (size_t b = 1; b < graph->num_branches; b++)
        (*out)->streams.push_back(cri_sim_new_stream());
    cri_sim_num_graphs++;
    return cudaSuccess;
}

/* A graph runs once at a time. Its other streams begin by a wait for the first one, and that waits for them before the end: else there
 * were no graph. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    cri_sim_enter guard;
    std::vector<cri_sim_place> marks(exec->graph.num_marks);

    if (!exec->is_alive) cri_sim_die("a launch of a graph that was destroyed");
    if (!s || !s->is_alive) cri_sim_die("a graph on the default stream, or one that was destroyed");
    if (s->capture) cri_sim_die("a graph in a capture is not simulated");
    if (cri_sim_lost) return cri_sim_keep_error(cri_sim_lost);
    cri_sim_counts.submitted++;
    if (exec->last) cri_sim_wait(s, exec->last);
    for (const step &at : exec->graph.steps) {
        CUstream_st *on = at.branch ? exec->streams[(size_t)at.branch - 1] : s;
        if (at.kind == step::MARK)
            marks[at.mark] = cri_sim_mark(on);
        else if (at.kind == step::WAIT)
            cri_sim_wait(on, marks[at.mark]);
        else
            cri_sim_queue(on, at.op);
    }
    exec->last = cri_sim_mark(s);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cri_sim_enter guard;

    if (!exec->is_alive) cri_sim_die("a graph is destroyed twice");
    if (exec->last && !exec->last->is_over)
        cri_sim_die("a graph is destroyed while a launch of it has not run");
    exec->is_alive = false;
    exec->graph.steps.clear();
    for (CUstream_st *of : exec->streams)
        of->is_alive = false;
    cri_sim_num_graphs--;
    return cudaSuccess;
}
