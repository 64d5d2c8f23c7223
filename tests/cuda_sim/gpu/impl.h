/* impl.h -- what the files of sim/ share. One executor at a time: everything below runs under `cri_sim_lock`. */
#ifndef CR_SIM_IMPL_H
#define CR_SIM_IMPL_H

#include "tests/cuda_sim/gpu/include/cuda_sim.h"
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

enum { CRI_SIM_MAX_STREAMS = 32, CRI_SIM_GRANULE = 2, CRI_SIM_SHARED_MAX = 227 * 1024 };

/* xorshift64*: small, and the same everywhere. */
struct cri_sim_random {
    uint64_t state = 88172645463325252ull;
    uint64_t next()
    {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 2685821657736338717ull;
    }
    unsigned below(unsigned n)
    {
        return (unsigned)((next() >> 33) % n);
    }
    bool chance(unsigned percent)
    {
        return below(100) < percent;
    }
};
extern cri_sim_random cri_sim_rng;

/* ---- order.cpp: operations, each with a vector clock of all that is ordered before it ---- */

struct cri_sim_clock {
    uint32_t at[CRI_SIM_MAX_STREAMS] = {0};
    void join(const cri_sim_clock &o)
    {
        for (int i = 0; i < CRI_SIM_MAX_STREAMS; i++)
            if (o.at[i] > at[i]) at[i] = o.at[i];
    }
};
struct cri_sim_op {
    std::string name;
    CUstream_st *stream = nullptr;
    cri_sim_clock clock;         /* itself included */
    std::function<bool()> ready; /* empty: always; may make progress by itself (NCCL) */
    std::function<void()> run;
    std::function<void()> queued;     /* at once, when it is put on a stream; empty: nothing */
    bool is_external = false;         /* ready depends on other processes */
    bool is_submitted = false;        /* a launch or a copy, as cri_sim_stats counts them */
    CUstream_st *waits_for = nullptr; /* the stream whose work would make it ready */
};
/* A place in a stream, which it has when what is before it has run. */
struct cri_sim_place_st {
    CUstream_st *stream;
    cri_sim_clock clock;
    bool is_over;
};
typedef std::shared_ptr<cri_sim_place_st> cri_sim_place;
struct cri_sim_capture; /* graphs.cpp */
struct CUstream_st {
    int number;
    std::deque<cri_sim_op> queue;
    cri_sim_clock clock; /* of all that is enqueued */
    bool is_alive;
    std::shared_ptr<cri_sim_capture> capture; /* that it is in now */
    int branch;                               /* of the capture */
};
struct CUevent_st {      /* stays when it is destroyed: queued work may still name it */
    cri_sim_place place; /* of the last record; none: not recorded */
    std::shared_ptr<cri_sim_capture> capture; /* where that was instead */
    size_t mark;                              /* of the capture */
};
extern cri_sim_op *cri_sim_running; /* NULL: host code runs */
/* This thread of the process runs it; others may be in host code, whose accesses are not the operation's. */
extern __thread bool cri_sim_runs_here;
extern std::recursive_mutex cri_sim_lock;
extern cri_sim_clock cri_sim_host_clock; /* what the host has waited for */
/* Every call of the API begins with it, once. */
struct cri_sim_enter {
    cri_sim_enter();
    std::lock_guard<std::recursive_mutex> guard{cri_sim_lock};
};
CUstream_st *cri_sim_new_stream(void);
/* On the stream, or in its capture. */
cudaError_t cri_sim_enqueue(CUstream_st *stream, cri_sim_op op);
void cri_sim_queue(CUstream_st *stream, cri_sim_op op);
cri_sim_place cri_sim_mark(CUstream_st *stream);
void cri_sim_wait(CUstream_st *stream, const cri_sim_place &place);
void cri_sim_run_until(const std::function<bool()> &is_done, CUstream_st *target);
void cri_sim_run_stream(CUstream_st *stream); /* all of it */
void cri_sim_run_all(void);
void cri_sim_run_some(void); /* one operation of any stream, if one may run */
const std::vector<CUstream_st *> &cri_sim_streams(void);
/* "copy (stream 2)": an earlier operation, for messages. */
std::string cri_sim_op_name(int stream, uint32_t time);
/* From now on a thread runs operations while the host does not call. */
void cri_sim_want_progress_thread(void);

/* ---- memory.cpp ---- */

struct cri_sim_allocation {
    uint64_t base, num_bytes, map_base, map_bytes, number;
    bool is_freed;
    int fd = -1, num_opens = 0; /* ipc.cpp: others may open it; opened here, another one's */
};
uint64_t cri_sim_memory_bytes(void); /* of the GPU: CROLL_SIM_MEMORY_MIB */
extern uint64_t cri_sim_arena, cri_sim_arena_end;
static inline bool cri_sim_in_arena(const void *p)
{
    return (uint64_t)p >= cri_sim_arena && (uint64_t)p < cri_sim_arena_end;
}
void cri_sim_memory_begin(void); /* again: the handler of faults becomes the first one */
/* The allocation whose pages p is in, freed or not; NULL: none. */
const cri_sim_allocation *cri_sim_memory_of(const void *p);
bool cri_sim_is_pinned(const void *p, size_t num_bytes);
void cri_sim_open_memory(void); /* for an operation, until close */
void cri_sim_close_memory(void);
/* A whole range read or written by the running operation (copies, NCCL): bounds, then check.cpp. */
void cri_sim_touch(const void *p, size_t num_bytes, bool is_write);

/* ---- failures.cpp ---- */

enum cri_sim_fail { CRI_SIM_FAIL_ALLOC, CRI_SIM_FAIL_WORK, CRI_SIM_FAIL_NCCL, CRI_SIM_FAIL_IPC };
bool cri_sim_fails(cri_sim_fail kind); /* does this one? Each call counts */
extern cudaError_t cri_sim_lost;       /* what all calls return once the GPU is lost */
/* The whole number in the environment's NAME; anything else there ends the process. */
uint64_t cri_sim_setting(const char *name, uint64_t otherwise);

/* ---- runtime.cpp ---- */

cudaError_t cri_sim_keep_error(cudaError_t e); /* for cudaGetLastError; returns e */
/* The content of mem is undefined from now on in the stream's order. */
extern "C" void cri_sim_spoil(void *mem, size_t num_bytes, cudaStream_t stream);

/* ---- graphs.cpp ---- */
extern size_t cri_sim_num_graphs; /* that can be launched */
/* An error, and the capture is lost, if s (may be NULL) or this thread captures; if any stream is captured. */
cudaError_t cri_sim_unless_captured(CUstream_st *s);
cudaError_t cri_sim_unless_any_captured(void);
/* s is in a capture; or, in a wait, the event is. */
cudaError_t cri_sim_capture_op(CUstream_st *s, cri_sim_op op);
cudaError_t cri_sim_capture_record(CUstream_st *s, CUevent_st *e);
cudaError_t cri_sim_capture_wait(CUstream_st *s, CUevent_st *e);

/* ---- check.cpp: every access of instrumented kernels ---- */

extern bool cri_sim_is_checked; /* some kernel was compiled with -fsanitize=thread */
extern const void *cri_sim_pc;  /* the code that accesses memory, NULL: a copy */
void cri_sim_check_access(const void *p, size_t num_bytes, bool is_write, bool is_atomic);
void cri_sim_check_new_block(void);
void cri_sim_check_new_op(void);
void cri_sim_check_forget(const void *p, size_t num_bytes);    /* they were freed */
void cri_sim_check_unwritten(const void *p, size_t num_bytes); /* their content is undefined now */
/* Offsets of places that nothing has written: they count as written until cri_sim_check_unwritten. */
std::vector<size_t> cri_sim_check_fill_holes(const void *p, size_t num_bytes);
/* The destination of a cp.async until it is waited for: a read of it is a read of nothing. */
void cri_sim_check_in_flight(const void *p, size_t num_bytes);
std::string cri_sim_line_of_code(void); /* of cri_sim_pc */

/* ---- block.cpp, warp.cpp ---- */

struct cri_sim_where { /* of the running thread; phases count barriers */
    bool is_in_kernel;
    uint32_t block, thread, block_phase, warp_phase;
};
extern cri_sim_where cri_sim_here;
extern unsigned char *cri_sim_shared_arena,
    *cri_sim_shared_start; /* of a kernel; addresses count from start */
extern size_t cri_sim_shared_used;
struct cri_sim_body { /* a kernel and its arguments, as bytes */
    void (*invoke)(const void *kernel, const void *args);
    const void *kernel;
    std::vector<unsigned char> args;
};
void cri_sim_run_kernel(dim3 grid, dim3 block, size_t shared, const cri_sim_body &body);
bool cri_sim_is_private(const void *p); /* the running thread's stack and parameters */
static inline bool cri_sim_in_shared(const void *p, size_t num_bytes)
{
    const unsigned char *b = (const unsigned char *)p;
    return b >= cri_sim_shared_arena && b + num_bytes <= cri_sim_shared_arena + cri_sim_shared_used;
}

static inline float cri_sim_from_bf16(uint32_t bits)
{
    return __uint_as_float(bits << 16);
}
static inline uint16_t cri_sim_to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif
