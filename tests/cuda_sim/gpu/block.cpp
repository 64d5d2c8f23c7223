/* block.cpp -- runs one kernel: blocks one after another, each thread of a block a fiber.
 *
 * A fiber's stack is a worker: it runs threads one after another until one of them stops at a barrier or a
 * warp operation; that thread keeps the stack and the next worker goes on. So a kernel without barriers
 * costs a call a thread, and one with barriers two switches a thread and barrier.
 */
#include "tests/cuda_sim/gpu/async.h"

#include <numeric>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SHIFT = 1024,
    STACK_BYTES = 64 * 1024,
    PAGE = 4096,
    MAX_WARPS = CRI_SIM_MAX_THREADS / CRI_SIM_WARP
};

cri_sim_self_t cri_sim_self;
cri_sim_uint3 cri_sim_block_idx;
dim3 cri_sim_block_dim, cri_sim_grid_dim;
cri_sim_where cri_sim_here;
unsigned char *cri_sim_shared_arena, *cri_sim_shared_start;
size_t cri_sim_shared_used;

static cri_sim_lane lanes[CRI_SIM_MAX_THREADS];
static int num_lanes, order[CRI_SIM_MAX_THREADS], warp_order[MAX_WARPS];
static std::vector<unsigned char *> stacks;
static void *scheduler_sp;
static cri_sim_lane *to_start;
static const cri_sim_body *body_now;
static unsigned char params[4096] __attribute__((aligned(128))); /* a tensor map's */
static uint64_t block_count; /* of all kernels: shared sites see by it that a block is new */
static size_t dynamic_bytes;
static int pass_at, pass_end; /* the first pass over a warp: order[pass_at ..] are not begun */
static cri_sim_lane *again[CRI_SIM_WARP]; /* a later one: again[again_at ..] are left */
static int again_at, again_end;

void cri_sim_die(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fprintf(stderr, "sim: ");
    vfprintf(stderr, format, ap);
    if (cri_sim_here.is_in_kernel)
        fprintf(stderr, " (kernel %s, block %u, thread %u)", cri_sim_running->name.c_str(),
                cri_sim_here.block, cri_sim_here.thread);
    fprintf(stderr, "\n");
    va_end(ap);
    fflush(stderr);
    _exit(86);
}

/* ---- switching ---- */

#ifndef __x86_64__
#error "cri_sim_switch is written for x86-64; another machine needs ten lines here (or ucontext)"
#endif
extern "C" void cri_sim_switch(void **save_sp, void *load_sp);
asm(".text\n.globl cri_sim_switch\n.type cri_sim_switch,@function\ncri_sim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void set_self(cri_sim_lane *lane)
{
    cri_sim_self = {lane->tid, lane};
    cri_sim_here.thread = lane->index;
    cri_sim_here.warp_phase = lane->warp_phase;
}

static void worker(void)
{
    for (;;) {
        cri_sim_lane *lane = to_start;
        void *unused;

        set_self(lane);
        body_now->invoke(body_now->kernel, params);
        lane =
            cri_sim_self.lane; /* the stack may have been handed on: it is this thread that ended */
        lane->state = CRI_SIM_DONE;
        if (pass_at < pass_end) { /* nothing to switch for: begin the next thread here */
            cri_sim_lane *next = &lanes[order[pass_at++]];
            next->stack = lane->stack;
            lane->stack = nullptr;
            to_start = next;
            continue;
        }
        stacks.push_back(lane->stack);
        lane->stack = nullptr;
        cri_sim_switch(&unused, scheduler_sp);
    }
}

static unsigned char *new_stack(void)
{
    void *s =
        mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (s == MAP_FAILED) cri_sim_die("no memory for the stack of a thread");
    mprotect(s, PAGE,
             PROT_NONE); /* a kernel with a deep stack dies, instead of writing over another */
    return (unsigned char *)s;
}

static void start(cri_sim_lane *lane)
{
    static unsigned
        colour; /* stacks that begin at one place of a page fight for the same cache lines */
    uint64_t *sp;

    if (stacks.empty()) stacks.push_back(new_stack());
    lane->stack = stacks.back();
    stacks.pop_back();
    colour = (colour + 832) % 16384;
    sp = (uint64_t *)(lane->stack + STACK_BYTES - colour / 16 * 16) - 1; /* as after a call */
    *--sp = (uint64_t)worker;
    sp -= 6; /* the popped registers */
    to_start = lane;
    cri_sim_counts.switches++;
    cri_sim_switch(&scheduler_sp, sp);
}

/* The next lane of the warp that may go on, NULL: none in this pass. */
static cri_sim_lane *next_ready(void)
{
    while (again_at < again_end) {
        cri_sim_lane *lane = again[again_at++];
        if (lane->state == CRI_SIM_READY) {
            set_self(lane);
            cri_sim_counts.switches++;
            return lane;
        }
    }
    return nullptr;
}

/* A lane that stops goes over to the next one, the last of a pass to the scheduler. */
void cri_sim_suspend(cri_sim_state state)
{
    cri_sim_lane *lane = cri_sim_self.lane, *next;

    lane->state = state;
    next = next_ready();
    cri_sim_switch(&lane->sp, next ? next->sp : scheduler_sp);
}

void cri_sim_sync_block(int line)
{
    cri_sim_self.lane->line = line;
    cri_sim_suspend(CRI_SIM_AT_BLOCK);
}

/* Ascending and descending find most; else an odd stride from a random place. n a power of two: all once. */
static void shuffle_order(int *v, int n)
{
    unsigned r = (unsigned)(cri_sim_rng.next() >> 32), kind = r & 3, stride = (r >> 2 & 31) | 1;
    unsigned first = r >> 8 & 31;

    for (int i = 0; i < n; i++)
        if (kind > 1 && !(n & (n - 1)))
            v[i] = (int)((first + (unsigned)i * stride) & (unsigned)(n - 1));
        else
            v[i] = kind & 1 ? n - 1 - i : i;
}

static void run_warp(int warp)
{
    cri_sim_lane *w = &lanes[warp * CRI_SIM_WARP];
    int left = num_lanes - warp * CRI_SIM_WARP, n = left < CRI_SIM_WARP ? left : CRI_SIM_WARP;
    int mine[CRI_SIM_WARP];
    cri_sim_lane *first;

    if (w[0].state == CRI_SIM_NEW) {
        shuffle_order(order, n);
        for (int i = 0; i < n; i++)
            order[i] += warp * CRI_SIM_WARP;
        pass_at = 0;
        pass_end = n;
        while (pass_at < pass_end)
            start(&lanes[order[pass_at++]]);
    }
    do {
        shuffle_order(mine, n);
        for (int i = 0; i < n; i++)
            again[i] = &w[mine[i]];
        again_at = 0;
        again_end = n;
        while ((first = next_ready()) != nullptr)
            cri_sim_switch(&scheduler_sp, first->sp);
    } while (cri_sim_complete_warp(w, n));
}

/* ---- shared memory ---- */

void *cri_sim_shared(cri_sim_site *site, size_t num_bytes, size_t align)
{
    if (site->block != block_count) {
        cri_sim_shared_used = (cri_sim_shared_used + align - 1) / align * align;
        site->data = cri_sim_shared_arena + cri_sim_shared_used;
        cri_sim_shared_used += num_bytes;
        if (cri_sim_shared_used - dynamic_bytes > 48 * 1024)
            cri_sim_die("over 48 KiB of static shared memory");
        memset(site->data, 0xff, num_bytes);
        site->block = block_count;
    }
    return site->data;
}

void *cri_sim_shared_dynamic(void)
{
    return cri_sim_shared_arena;
}

static void make_shared_arena(void)
{
    size_t pages = (CRI_SIM_SHARED_MAX + SHIFT + PAGE - 1) / PAGE * PAGE;
    void *at =
        mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED) cri_sim_die("no memory for shared memory");
    cri_sim_shared_start = (unsigned char *)at;
    mprotect(cri_sim_shared_start + pages, PAGE, PROT_NONE);
}

/* ---- blocks ---- */

static void begin_block(dim3 block)
{
    cri_sim_uint3 tid = {0, 0, 0};

    block_count++;
    if (cri_sim_is_checked) cri_sim_check_new_block(); /* forgets what the last block has used */
    cri_sim_async_new_block();
    cri_sim_shared_used = dynamic_bytes;
    memset(cri_sim_shared_arena, 0xff, dynamic_bytes);
    cri_sim_here.block_phase = 0;
    for (int i = 0; i < num_lanes; i++) {
        cri_sim_lane *l = &lanes[i];
        l->tid = tid;
        if (++tid.x == block.x) {
            tid.x = 0;
            if (++tid.y == block.y) {
                tid.y = 0;
                tid.z++;
            }
        }
        l->index = (uint32_t)i;
        l->state = CRI_SIM_NEW;
        l->warp_phase = 0;
        l->group = 0;
        l->copies.clear();
    }
}

/* All threads have come to one barrier, or all have ended: true. */
static bool is_over(void)
{
    int num_done = 0, waiting = -1;

    for (int i = 0; i < num_lanes; i++) {
        num_done += lanes[i].state == CRI_SIM_DONE;
        if (lanes[i].state == CRI_SIM_AT_BLOCK) waiting = i;
    }
    if (num_done == num_lanes) return true;
    cri_sim_here.thread = (uint32_t)waiting;
    if (num_done)
        cri_sim_die("%d threads wait at __syncthreads (line %d) and %d have ended",
                    num_lanes - num_done, lanes[waiting].line, num_done);
    for (int i = 0; i < num_lanes; i++) {
        if (lanes[i].line != lanes[waiting].line)
            cri_sim_die("threads %d and %d wait at different __syncthreads: lines %d and %d", i,
                        waiting, lanes[i].line, lanes[waiting].line);
        lanes[i].state = CRI_SIM_READY;
    }
    cri_sim_here.block_phase++;
    cri_sim_async_sync_block();
    return false;
}

static void run_block(dim3 block)
{
    int num_warps = (num_lanes + CRI_SIM_WARP - 1) / CRI_SIM_WARP;

    begin_block(block);
    do {
        do {
            shuffle_order(warp_order, num_warps);
            for (int i = 0; i < num_warps; i++)
                run_warp(warp_order[i]);
        } while (cri_sim_async_go_on(lanes, num_lanes));
    } while (!is_over());
    cri_sim_async_end_block();
}

void cri_sim_run_kernel(dim3 grid, dim3 block, size_t shared, const cri_sim_body &body)
{
    uint64_t num_blocks = (uint64_t)grid.x * grid.y * grid.z, stride = 1, first = 0;

    if (!cri_sim_shared_start) make_shared_arena();
    /* aligned to 16 bytes, as it is declared, and no more */
    cri_sim_shared_arena = cri_sim_shared_start + 16 * cri_sim_rng.below(SHIFT / 16);
    body_now = &body;
    memcpy(params, body.args.data(), body.args.size());
    cri_sim_grid_dim = grid;
    cri_sim_block_dim = block;
    dynamic_bytes = shared;
    num_lanes = (int)(block.x * block.y * block.z);
    cri_sim_here.is_in_kernel = true;
    /* An order that visits each block once: i -> (first + i * stride) mod n, stride prime to n. */
    if (num_blocks > 1 && cri_sim_rng.chance(70)) {
        first = cri_sim_rng.next() % num_blocks;
        do
            stride = 1 + cri_sim_rng.next() % (num_blocks - 1);
        while (std::gcd(stride, num_blocks) != 1);
    }
    for (uint64_t i = 0; i < num_blocks; i++) {
        uint64_t b = (uint64_t)((first + (unsigned __int128)i * stride) % num_blocks);
        cri_sim_here.block = (uint32_t)b;
        cri_sim_block_idx = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                             (unsigned)(b / grid.x / grid.y)};
        run_block(block);
    }
    cri_sim_here.is_in_kernel = false;
    cri_sim_self.lane = nullptr;
    cri_sim_counts.launches++;
    cri_sim_counts.blocks += num_blocks;
    cri_sim_counts.threads += num_blocks * (uint64_t)num_lanes;
}

bool cri_sim_is_private(const void *p)
{
    const unsigned char *b = (const unsigned char *)p;
    const cri_sim_lane *lane = cri_sim_self.lane;

    if (b >= params && b < params + sizeof params) return true;
    return lane && b >= lane->stack && b < lane->stack + STACK_BYTES;
}
