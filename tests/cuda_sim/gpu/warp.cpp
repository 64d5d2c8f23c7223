/* warp.cpp -- what the lanes of a warp do together, asynchronous copies to shared memory, and atomics.
 *
 * Every lane of the mask leaves its operands; when the last one has come the operation is computed for all of them.
 */
#include "tests/cuda_sim/gpu/async.h"

/* ---- tensor cores ---- */

/* One FMA chain in float32 by ascending k: NOT the rounding of a tensor core, which adds 8 or 16 products at once. */
static void multiply(const float a[16][16], const float b[16][8], float c[16][8])
{
    for (int i = 0; i < 16; i++)
        cri_sim_fma_row(a[i], b[0], 8, c[i]);
}

/* Fragments as the PTX ISA lays them out: g = lane / 4, t = lane % 4. */
void cri_sim_take_a(float (*a)[16], int lane, const uint32_t *fragment)
{
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 2; e++)
            a[lane / 4 + 8 * (i & 1)][2 * (lane % 4) + e + 8 * (i >> 1)] =
                cri_sim_from_bf16(fragment[i] >> (16 * e) & 0xffff);
}

static void do_mma(cri_sim_lane *w)
{
    float a[16][16], b[16][8], c[16][8];

    for (int l = 0; l < CRI_SIM_WARP; l++) {
        const cri_sim_operands *o = &w[l].op;
        int g = l / 4, t = l % 4;
        cri_sim_take_a(a, l, o->a);
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < 2; e++)
                b[2 * t + e + 8 * i][g] = cri_sim_from_bf16(o->b[i] >> (16 * e) & 0xffff);
        for (int i = 0; i < 4; i++)
            c[g + 8 * (i >> 1)][2 * t + (i & 1)] = o->c[i];
    }
    multiply(a, b, c);
    for (int l = 0; l < CRI_SIM_WARP; l++)
        for (int i = 0; i < 4; i++)
            w[l].op.c[i] = c[l / 4 + 8 * (i >> 1)][2 * (l % 4) + (i & 1)];
    cri_sim_counts.mma++;
}

static void check_row(const cri_sim_lane *lane)
{
    const void *row = lane->op.row;
    cri_sim_where here = cri_sim_here;

    if ((uint64_t)row & 15) cri_sim_die("ldmatrix of a row that is not aligned to 16 bytes");
    if (!cri_sim_in_shared(row, 16)) cri_sim_die("ldmatrix of a row outside of shared memory");
    if (!cri_sim_is_checked) return;
    cri_sim_here.thread = lane->index;
    cri_sim_here.warp_phase = lane->warp_phase;
    cri_sim_pc = lane->op.pc;
    cri_sim_check_access(row, 16, false, false);
    cri_sim_here = here;
}

static void do_ldmatrix(cri_sim_lane *w)
{
    for (int m = 0; m < 4; m++) {
        unsigned used = 0;
        uint16_t tile[8][8];
        for (int r = 0; r < 8; r++) {
            const cri_sim_lane *lane = &w[8 * m + r];
            unsigned bank = 1u << ((uint64_t)lane->op.row >> 4 & 7);
            check_row(lane);
            memcpy(tile[r], lane->op.row, 16);
            cri_sim_counts.ldmatrix_conflicts += (used & bank) != 0;
            used |= bank;
        }
        for (int l = 0; l < CRI_SIM_WARP; l++) {
            int i = l / 4, j = 2 * (l % 4);
            bool is_transposed = w[l].op.is_transposed;
            uint32_t low = is_transposed ? tile[j][i] : tile[i][j];
            uint32_t high = is_transposed ? tile[j + 1][i] : tile[i][j + 1];
            w[l].op.r[m] = low | high << 16;
        }
    }
    cri_sim_counts.ldmatrix++;
}

/* ---- shuffles and votes ---- */

static int source_of(const cri_sim_operands *o, int lane)
{
    int base = lane & ~(o->width - 1), end = base + o->width;

    switch (o->shuffle) {
    case CRI_SIM_SHUFFLE_INDEX:
        return base + (o->arg & (o->width - 1));
    case CRI_SIM_SHUFFLE_UP:
        return lane - o->arg < base ? lane : lane - o->arg;
    case CRI_SIM_SHUFFLE_DOWN:
        return lane + o->arg >= end ? lane : lane + o->arg;
    default:
        return (lane ^ o->arg) >= end ? lane : lane ^ o->arg;
    }
}

static void do_shuffle(cri_sim_lane *w, uint32_t mask)
{
    for (int l = 0; l < CRI_SIM_WARP; l++) {
        int source;
        if (!(mask >> l & 1)) continue;
        source = source_of(&w[l].op, l);
        if (!(mask >> source & 1))
            cri_sim_die("lane %d of a shuffle reads lane %d, which is not in its mask %08x", l,
                        source, mask);
        w[l].op.result = w[source].op.value;
    }
}

static void do_ballot(cri_sim_lane *w, uint32_t mask)
{
    uint32_t votes = 0;

    for (int l = 0; l < CRI_SIM_WARP; l++)
        if (mask >> l & 1 && w[l].op.value) votes |= 1u << l;
    for (int l = 0; l < CRI_SIM_WARP; l++)
        if (mask >> l & 1) w[l].op.result = votes;
}

/* Programs may not rely on which lane it is. */
static void do_elect(cri_sim_lane *w, uint32_t mask)
{
    unsigned n = cri_sim_rng.below((unsigned)__builtin_popcount(mask));

    for (int l = 0; l < CRI_SIM_WARP; l++)
        if (mask >> l & 1) w[l].op.result = n-- == 0;
}

static void perform(cri_sim_lane *w, uint32_t mask, cri_sim_warp_kind kind)
{
    switch (kind) {
    case CRI_SIM_W_SHUFFLE:
        do_shuffle(w, mask);
        break;
    case CRI_SIM_W_BALLOT:
        do_ballot(w, mask);
        break;
    case CRI_SIM_W_MMA:
        do_mma(w);
        break;
    case CRI_SIM_W_LDMATRIX:
        do_ldmatrix(w);
        break;
    case CRI_SIM_W_ELECT:
        do_elect(w, mask);
        break;
    case CRI_SIM_W_WGMMA:
        cri_sim_do_wgmma(w);
        break;
    case CRI_SIM_W_WGMMA_COMMIT:
        cri_sim_do_wgmma_commit(w);
        break;
    case CRI_SIM_W_WGMMA_WAIT:
        cri_sim_do_wgmma_wait(w);
        break;
    case CRI_SIM_W_SYNC:
        for (int l = 0; l < CRI_SIM_WARP; l++)
            if (mask >> l & 1) w[l].warp_phase++;
    }
}

/* ---- the meeting of lanes ---- */

static const char *const kind_names[] = {"__syncwarp", "a shuffle",          "a vote",
                                         "mma",        "ldmatrix",           "elect",
                                         "wgmma",      "wgmma.commit_group", "wgmma.wait_group"};

/* Have all lanes of the mask of lane l come? */
static bool is_full(const cri_sim_lane *w, int n, int l)
{
    uint32_t mask = w[l].mask;

    if (!(mask >> l & 1))
        cri_sim_die("lane %d calls %s with mask %08x, without itself", l, kind_names[w[l].kind],
                    mask);
    for (int j = 0; j < CRI_SIM_WARP; j++) {
        if (!(mask >> j & 1)) continue;
        if (j >= n || w[j].state != CRI_SIM_AT_WARP) return false;
        if (w[j].kind != w[l].kind || w[j].mask != mask)
            cri_sim_die("lanes %d and %d of a warp meet in different operations: %s of mask %08x "
                        "and %s of mask %08x",
                        l, j, kind_names[w[l].kind], mask, kind_names[w[j].kind], w[j].mask);
    }
    return true;
}

[[noreturn]] static void die_of_wait(const cri_sim_lane *w, int n)
{
    uint32_t waiting = 0;
    int missing = 0;

    for (int l = 0; l < n; l++)
        waiting |= w[l].state == CRI_SIM_AT_WARP ? w[l].mask : 0;
    while (!(waiting >> missing & 1) || (missing < n && w[missing].state == CRI_SIM_AT_WARP))
        missing++;
    cri_sim_here.thread = w[0].index;
    cri_sim_die("a warp operation waits for lane %d, which %s: on a GPU this hangs", missing,
                missing >= n || w[missing].state == CRI_SIM_DONE ? "has ended"
                                                                 : "waits at a barrier");
}

bool cri_sim_complete_warp(cri_sim_lane *w, int n)
{
    bool is_any = false, is_waiting = false;

    for (int l = 0; l < n; l++) {
        if (w[l].state != CRI_SIM_AT_WARP) continue;
        is_waiting = true;
        if (!is_full(w, n, l)) continue;
        uint32_t mask = w[l].mask;
        perform(w, mask, w[l].kind);
        for (int j = 0; j < CRI_SIM_WARP; j++)
            if (mask >> j & 1) w[j].state = CRI_SIM_READY;
        is_any = true;
    }
    for (int l = 0; l < n; l++)
        if (w[l].state == CRI_SIM_AT_MBARRIER) return is_any; /* it may come yet */
    if (!is_any && is_waiting) die_of_wait(w, n);
    return is_any;
}

/* The operands' place of the running lane: the caller sets those that its operation has. */
static cri_sim_operands *operands(void)
{
    return &cri_sim_self.lane->op;
}

static uint64_t meet(cri_sim_warp_kind kind, uint32_t mask)
{
    cri_sim_lane *lane = cri_sim_self.lane;

    lane->kind = kind;
    lane->mask = mask;
    cri_sim_suspend(CRI_SIM_AT_WARP);
    return lane->op.result;
}

void cri_sim_sync_warp(uint32_t mask)
{
    meet(CRI_SIM_W_SYNC, mask);
}

uint64_t cri_sim_shuffle(uint32_t mask, uint64_t value, cri_sim_shuffle_kind kind, int arg,
                         int width)
{
    cri_sim_operands *op = operands();

    op->value = value;
    op->shuffle = kind;
    op->arg = arg;
    op->width = width;
    return meet(CRI_SIM_W_SHUFFLE, mask);
}

uint32_t cri_sim_ballot(uint32_t mask, int predicate)
{
    operands()->value = predicate != 0;
    return (uint32_t)meet(CRI_SIM_W_BALLOT, mask);
}

void cri_sim_mma_16816_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    cri_sim_operands *op = operands();

    op->c = c;
    op->a = a;
    op->b = b;
    meet(CRI_SIM_W_MMA, 0xffffffffu);
}

void cri_sim_ldmatrix_x4(uint32_t *r, const void *row, bool is_transposed)
{
    cri_sim_operands *op = operands();

    op->r = r;
    op->row = row;
    op->pc = __builtin_return_address(0);
    op->is_transposed = is_transposed;
    meet(CRI_SIM_W_LDMATRIX, 0xffffffffu);
}

bool cri_sim_elect(void)
{
    return meet(CRI_SIM_W_ELECT, 0xffffffffu);
}

static void meet_wgmma(float *d, int n, uint64_t a_tile, const uint32_t *a, uint64_t b,
                       bool is_b_turned, bool adds, const void *pc)
{
    cri_sim_operands *op = operands();

    op->c = d;
    op->arg = n;
    op->value = a_tile;
    op->a = a;
    op->b_tile = b;
    op->is_transposed = is_b_turned;
    op->adds = adds;
    op->pc = pc;
    meet(CRI_SIM_W_WGMMA, 0xffffffffu);
}

void cri_sim_wgmma(float *d, int n, uint64_t a, uint64_t b, bool adds)
{
    meet_wgmma(d, n, a, nullptr, b, false, adds, __builtin_return_address(0));
}

void cri_sim_wgmma_a(float *d, int n, const uint32_t *a, uint64_t b, bool is_b_turned, bool adds)
{
    meet_wgmma(d, n, 0, a, b, is_b_turned, adds, __builtin_return_address(0));
}

void cri_sim_wgmma_commit(void)
{
    meet(CRI_SIM_W_WGMMA_COMMIT, 0xffffffffu);
}

void cri_sim_wgmma_wait(int num_pending)
{
    operands()->arg = num_pending;
    meet(CRI_SIM_W_WGMMA_WAIT, 0xffffffffu);
}

/* ---- cp.async ---- */

/* A copy arrives at once or only when its group is waited for, by seed: code must be right for both. Until it
 * arrives the destination is NaN. */
static void arrive(cri_sim_copy *c)
{
    if (c->is_done) return;
    c->is_done = true;
    if (cri_sim_is_checked) {
        cri_sim_pc = c->pc;
        if (c->is_valid) cri_sim_check_access(c->src, 16, false, false);
        cri_sim_check_access(c->dst, 16, true, false);
    }
    if (c->is_valid)
        memcpy(c->dst, c->src, 16);
    else
        memset(c->dst, 0, 16);
}

void cri_sim_cp_async16(void *shared, const void *global, bool is_valid)
{
    cri_sim_lane *lane = cri_sim_self.lane;
    const void *pc = __builtin_return_address(0);

    if (((uint64_t)shared | (is_valid ? (uint64_t)global : 0)) & 15)
        cri_sim_die("cp.async of 16 bytes that are not aligned to 16");
    if (!cri_sim_in_shared(shared, 16))
        cri_sim_die("cp.async to an address outside of shared memory");
    if (cri_sim_is_checked) {
        cri_sim_pc = pc;
        cri_sim_check_in_flight(shared, 16);
    }
    memset(shared, 0xff, 16);
    lane->copies.push_back({shared, global, pc, is_valid, false, lane->group});
    if (!cri_sim_is_checked && cri_sim_rng.chance(30)) arrive(&lane->copies.back());
}

void cri_sim_cp_async_commit(void)
{
    cri_sim_self.lane->group++;
}

void cri_sim_cp_async_wait(int num_pending)
{
    cri_sim_lane *lane = cri_sim_self.lane;
    size_t kept = 0;

    for (size_t i = 0; i < lane->copies.size(); i++) {
        cri_sim_copy *c = &lane->copies[i];
        if (c->group < lane->group - num_pending)
            arrive(c);
        else
            lane->copies[kept++] = *c;
    }
    lane->copies.resize(kept);
}

/* ---- atomics ---- */

/* The value before, which op(value) replaces. */
template <class T, class Op> static T change(T *p, const Op &op, const void *pc)
{
    T old;

    if (cri_sim_is_checked) {
        cri_sim_pc = pc;
        cri_sim_check_access(p, sizeof *p, true, true);
    }
    old = *p;
    *p = op(old);
    return old;
}

float atomicAdd(float *p, float v)
{
    return change(
        p, [v](float x) { return x + v; }, __builtin_return_address(0));
}

int atomicAdd(int *p, int v)
{
    return change(
        p, [v](int x) { return x + v; }, __builtin_return_address(0));
}

unsigned atomicAdd(unsigned *p, unsigned v)
{
    return change(
        p, [v](unsigned x) { return x + v; }, __builtin_return_address(0));
}

unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    return change(
        p, [v](unsigned long long x) { return x + v; }, __builtin_return_address(0));
}

int atomicOr(int *p, int v)
{
    return change(
        p, [v](int x) { return x | v; }, __builtin_return_address(0));
}
