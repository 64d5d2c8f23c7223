/* async.cpp -- mbarriers and bulk copies by a tensor map, as the PTX ISA has them, and the order that they make (async.h).
 *
 * A copy arrives when the seed says, at once or only when nothing else can go on; until then its destination is NaN. When all lanes
 * wait and no copy is under way, the block hangs: the sentence says for which mbarrier, and what is missing there.
 */
#include "tests/cuda_sim/gpu/async.h"

#include <cuda.h>
#include <stdio.h>

enum { ROW_BYTES = 128, ATOM_BYTES = 1024, MAX_TX = (1 << 20) - 1 };

namespace
{
struct clocks { /* of warps, then of mbarriers */
    uint32_t at[CRI_SIM_MAX_WARPS + CRI_SIM_MAX_MBARRIERS];
    void join(const clocks &o)
    {
        for (int i = 0; i < CRI_SIM_MAX_WARPS + CRI_SIM_MAX_MBARRIERS; i++)
            if (o.at[i] > at[i]) at[i] = o.at[i];
    }
};
struct mbarrier {
    const void *p;
    uint32_t count, missing, phase; /* phases that are over */
    uint32_t copied, waited; /* phases that copies arrive in, that were waited for: how many */
    int64_t tx;              /* bytes that are expected and have not come */
    unsigned thread;         /* that made it */
    uint32_t fences;         /* of that thread, then */
    clocks coming, done;
};
struct tensor_map { /* the first bytes of a CUtensorMap */
    uint64_t magic, address, cols, rows, stride, box_rows;
};
struct copy {
    unsigned char *tile;
    const void *pc;
    tensor_map map;
    int x, y, mbarrier;
    unsigned thread;
};
} // namespace

static const uint64_t MAGIC = 0x63726f6c6c6d6170ull;
static clocks of_warp[CRI_SIM_MAX_WARPS];
static mbarrier mbarriers[CRI_SIM_MAX_MBARRIERS];
static int num_mbarriers;
static std::vector<copy> copies; /* under way */
static uint32_t fences[CRI_SIM_MAX_THREADS];
static uint32_t registers[CRI_SIM_MAX_WARPS]; /* of a thread, where a warp has set them */

static int this_warp(void)
{
    return (int)cri_sim_here.thread / CRI_SIM_WARP;
}

bool cri_sim_is_acquired(int of, uint32_t time)
{
    return of_warp[this_warp()].at[of] > time;
}

uint32_t cri_sim_clock_of(int warp)
{
    return of_warp[warp].at[warp];
}

uint32_t cri_sim_fences_of(unsigned thread)
{
    return fences[thread];
}

void cri_sim_fence_async(void)
{
    cri_sim_need_sm_90("fence.proxy.async");
    fences[cri_sim_here.thread]++;
}

/* ---- registers ---- */

/* What a thread has from the launch on if the block has a multiprocessor alone: 16384 a partition, which its warps share. */
static uint32_t registers_at_launch(void)
{
    uint32_t warps = (cri_sim_block_dim.x + CRI_SIM_WARP - 1) / CRI_SIM_WARP,
             max = 16384 / CRI_SIM_WARP / ((warps + 3) / 4) / 8 * 8;

    return max < 255 ? max : 255;
}

void cri_sim_set_registers(uint32_t num, bool is_more)
{
    uint32_t *mine = &registers[this_warp()], before = *mine ? *mine : registers_at_launch();

    cri_sim_need_sm_90("setmaxnreg");
    if (num != *mine && (is_more ? num < before : num > before))
        cri_sim_die("setmaxnreg: %u registers are %s than %u", num, is_more ? "fewer" : "more",
                    before);
    *mine = num;
}

/* All warps together have at most what the launch gave them, or some would wait for ever. */
static void end_registers(void)
{
    uint32_t warps = (cri_sim_block_dim.x + CRI_SIM_WARP - 1) / CRI_SIM_WARP, sum = 0;

    for (uint32_t w = 0; w < warps; w++) {
        sum += registers[w] ? registers[w] : registers_at_launch();
        if (registers[w] != registers[w / 4 * 4])
            cri_sim_die("setmaxnreg by some warps of a warpgroup");
    }
    if (sum > warps * registers_at_launch())
        cri_sim_die("setmaxnreg: the warps of a block want %u registers a lane together, and have "
                    "%u: on a GPU this hangs",
                    sum, warps * registers_at_launch());
}

/* ---- blocks ---- */

static long offset_of(const void *p)
{
    return (long)((const unsigned char *)p - cri_sim_shared_arena);
}

void cri_sim_async_new_block(void)
{
    if (num_mbarriers) memset(of_warp, 0, sizeof of_warp);
    num_mbarriers = 0;
    memset(fences, 0, sizeof fences);
    memset(registers, 0, sizeof registers);
    cri_sim_wgmma_new_block();
}

void cri_sim_async_end_block(void)
{
    for (int i = 0; i < num_mbarriers; i++)
        if (mbarriers[i].copied > mbarriers[i].waited)
            cri_sim_die("the block ends, and nothing has waited for a copy by a tensor map to the "
                        "mbarrier at offset %ld",
                        offset_of(mbarriers[i].p));
    end_registers();
    cri_sim_wgmma_end_block();
}

void cri_sim_async_sync_block(void)
{
    clocks all = {};

    if (!num_mbarriers) return;
    for (int w = 0; w < CRI_SIM_MAX_WARPS; w++) {
        of_warp[w].at[w]++;
        all.join(of_warp[w]);
    }
    for (int w = 0; w < CRI_SIM_MAX_WARPS; w++)
        of_warp[w] = all;
}

/* ---- mbarriers ---- */

static void see_access(const void *p, bool is_atomic, const void *pc)
{
    if (!cri_sim_is_checked) return;
    cri_sim_pc = pc;
    cri_sim_check_access(p, 8, true, is_atomic);
}

static mbarrier *find(const void *p, const char *what)
{
    for (int i = 0; i < num_mbarriers; i++)
        if (mbarriers[i].p == p) return &mbarriers[i];
    cri_sim_die("%s of %p, which is no mbarrier: nothing has initialised it", what, p);
}

void cri_sim_mbarrier_init(void *p, uint32_t count)
{
    mbarrier b = {};

    cri_sim_need_sm_90("mbarrier");
    if ((uint64_t)p & 7 || !cri_sim_in_shared(p, 8))
        cri_sim_die("an mbarrier at %p: not 8 aligned bytes of shared memory", p);
    if (num_mbarriers == CRI_SIM_MAX_MBARRIERS)
        cri_sim_die("over %d mbarriers in a block", CRI_SIM_MAX_MBARRIERS);
    if (count == 0 || count > MAX_TX) cri_sim_die("an mbarrier for %u arrivals", count);
    for (int i = 0; i < num_mbarriers; i++)
        if (mbarriers[i].p == p) cri_sim_die("an mbarrier is initialised twice");
    see_access(p, false, __builtin_return_address(0));
    b.p = p;
    b.count = b.missing = count;
    b.thread = cri_sim_here.thread;
    b.fences = fences[b.thread];
    mbarriers[num_mbarriers++] = b;
}

static void end_phase(mbarrier *b)
{
    if (b->tx > MAX_TX || b->tx < -MAX_TX)
        cri_sim_die("an mbarrier expects %ld bytes: more than it counts", (long)b->tx);
    if (b->missing || b->tx) return;
    b->missing = b->count;
    b->phase++;
    b->done.join(b->coming);
    b->done.at[CRI_SIM_MAX_WARPS + (b - mbarriers)] = b->phase;
}

void cri_sim_mbarrier_arrive(void *p, uint32_t num_bytes)
{
    mbarrier *b = find(p, "arrival");
    int w = this_warp();

    see_access(p, true, __builtin_return_address(0));
    if (!b->missing)
        cri_sim_die("an arrival too many at the mbarrier at offset %ld: %u have come in this phase",
                    offset_of(p), b->count);
    of_warp[w].at[w]++;
    b->coming.join(of_warp[w]);
    b->tx += num_bytes;
    b->missing--;
    end_phase(b);
}

static bool is_over(const mbarrier *b, uint32_t parity)
{
    return (b->phase & 1) != parity;
}

void cri_sim_mbarrier_wait(void *p, uint32_t parity)
{
    cri_sim_lane *lane = cri_sim_self.lane;
    mbarrier *b = find(p, "wait");

    if (parity > 1) cri_sim_die("wait for a phase of parity %u", parity);
    see_access(p, true, __builtin_return_address(0));
    while (!is_over(b, parity)) {
        lane->op.row = p;
        lane->op.arg = (int)parity;
        cri_sim_suspend(CRI_SIM_AT_MBARRIER);
    }
    of_warp[this_warp()].join(b->done);
    if (b->phase > b->waited) b->waited = b->phase;
}

/* ---- copies ---- */

static tensor_map *map_in(const CUtensorMap *map)
{
    static_assert(sizeof(tensor_map) <= sizeof(CUtensorMap), "a tensor map");
    tensor_map *m = (tensor_map *)(void *)const_cast<CUtensorMap *>(map);

    if (m->magic != MAGIC) cri_sim_die("a copy by what is no tensor map");
    return m;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType dtype, cuuint32_t rank,
                                void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    const uint64_t max = 1ull << 32;
    tensor_map m = {MAGIC, (uint64_t)address, dims[0], dims[1], strides[0], box[1]};

    if (dtype != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 2 || element_strides[0] != 1 ||
        element_strides[1] != 1 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        cri_sim_die("a tensor map of a kind that has no model");
    if ((uint64_t)address & 15 || strides[0] & 15 || strides[0] >= 1ull << 40 ||
        strides[0] < 2 * dims[0] || !dims[0] || !dims[1] || dims[0] > max || dims[1] > max ||
        !box[1] || box[1] > 256 || box[0] * 2 > ROW_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (box[0] * 2 != ROW_BYTES) cri_sim_die("a tensor map whose box has rows of %u", box[0]);
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

/* Byte `at` of a tile is there: the address's bits 7 to 9 are added to bits 4 to 6. */
static unsigned char *swizzled(unsigned char *tile, long at)
{
    uint32_t a = cri_sim_shared_address(tile + at);

    return cri_sim_shared_start + (a ^ (a >> 7 & 7) << 4);
}

static void load_row(const copy &c, long r)
{
    unsigned char row[ROW_BYTES] = {0};
    int64_t y = (int64_t)c.y + r, some = (int64_t)c.map.cols - c.x, skip = c.x < 0 ? -c.x : 0;
    const unsigned char *from =
        (const unsigned char *)c.map.address + y * (int64_t)c.map.stride + 2 * (int64_t)c.x;

    if (some > ROW_BYTES / 2) some = ROW_BYTES / 2;
    if (y >= 0 && y < (int64_t)c.map.rows && some > skip) {
        if (cri_sim_is_checked)
            cri_sim_check_access(from + 2 * skip, (size_t)(some - skip) * 2, false, false);
        memcpy(row + 2 * skip, from + 2 * skip, (size_t)(some - skip) * 2);
    }
    for (int i = 0; i < ROW_BYTES; i += 16)
        memcpy(swizzled(c.tile, r * ROW_BYTES + i), row + i, 16);
}

static void arrive(size_t i)
{
    const copy c = copies[i];
    size_t num_bytes = c.map.box_rows * ROW_BYTES;
    cri_sim_where here = cri_sim_here;

    copies.erase(copies.begin() + (ptrdiff_t)i);
    cri_sim_here.thread = c.thread;
    cri_sim_pc = c.pc;
    for (long r = 0; r < (long)c.map.box_rows; r++)
        load_row(c, r);
    if (cri_sim_is_checked) cri_sim_check_copy_arrived(c.tile, num_bytes);
    mbarriers[c.mbarrier].tx -= (int64_t)num_bytes;
    end_phase(&mbarriers[c.mbarrier]);
    cri_sim_here = here;
}

void cri_sim_load_box(void *tile, const CUtensorMap *map, int x, int y, void *p)
{
    const void *pc = __builtin_return_address(0);
    const tensor_map *m = map_in(map);
    mbarrier *b = find(p, "a copy that arrives");
    size_t num_bytes = m->box_rows * ROW_BYTES;

    cri_sim_need_sm_90("cp.async.bulk.tensor");
    if (!cri_sim_is_private(map)) cri_sim_die("a tensor map that is no parameter of the kernel");
    if (!cri_sim_in_shared(tile, num_bytes))
        cri_sim_die("a copy of %zu bytes to offset %ld, past shared memory of %zu bytes", num_bytes,
                    offset_of(tile), cri_sim_shared_used);
    if (cri_sim_shared_address(tile) % ATOM_BYTES)
        cri_sim_die("a swizzled tile at address %u, no multiple of %d",
                    cri_sim_shared_address(tile), ATOM_BYTES);
    if (fences[b->thread] == b->fences)
        cri_sim_die("the mbarrier at offset %ld was initialised without a fence.proxy.async after "
                    "it: the copy may not see it",
                    offset_of(p));
    if (cri_sim_is_checked) {
        cri_sim_pc = pc;
        cri_sim_chunks_begin_copy(tile, num_bytes, (int)(b - mbarriers), b->phase);
    }
    memset(tile, 0xff, num_bytes);
    b->copied = b->phase + 1;
    copies.push_back(
        {(unsigned char *)tile, pc, *m, x, y, (int)(b - mbarriers), cri_sim_here.thread});
    if (cri_sim_rng.chance(30)) arrive(copies.size() - 1);
}

/* ---- waiting ---- */

static bool wake(cri_sim_lane *lanes, int num)
{
    bool is_any = false;

    for (int i = 0; i < num; i++) {
        cri_sim_lane *l = &lanes[i];
        if (l->state != CRI_SIM_AT_MBARRIER ||
            !is_over(find(l->op.row, "wait"), (uint32_t)l->op.arg))
            continue;
        l->state = CRI_SIM_READY;
        is_any = true;
    }
    return is_any;
}

/* Every mbarrier that is waited for, with one thread: which of them is to blame, only the program knows. */
[[noreturn]] static void die_of_wait(const cri_sim_lane *lanes, int num)
{
    std::string all;

    for (int m = 0; m < num_mbarriers; m++) {
        const mbarrier *b = &mbarriers[m];
        char text[300];
        int i = 0;
        while (i < num && (lanes[i].state != CRI_SIM_AT_MBARRIER || lanes[i].op.row != b->p))
            i++;
        if (i == num) continue;
        snprintf(
            text, sizeof text,
            "%s thread %d for parity %d of the mbarrier at offset %ld, in phase %u of which %u "
            "arrivals of %u are missing%s",
            all.empty() ? "" : ";", i, lanes[i].op.arg, offset_of(b->p), b->phase, b->missing,
            b->count, b->tx ? "" : " and no bytes");
        all += text;
        if (b->tx > 0) all += " and " + std::to_string(b->tx) + " bytes";
        if (b->tx < 0) all += ", and " + std::to_string(-b->tx) + " bytes came unexpected";
    }
    cri_sim_die("a wait at mbarriers never ends:%s: on a GPU this hangs", all.c_str());
}

bool cri_sim_async_go_on(cri_sim_lane *lanes, int num)
{
    int waiting = -1;

    for (int i = 0; i < num && waiting < 0; i++)
        if (lanes[i].state == CRI_SIM_AT_MBARRIER) waiting = i;
    if (waiting < 0) return false;
    while (!copies.empty() && cri_sim_rng.chance(40))
        arrive(cri_sim_rng.below((unsigned)copies.size()));
    while (!wake(lanes, num)) {
        if (copies.empty()) die_of_wait(lanes, num);
        arrive(cri_sim_rng.below((unsigned)copies.size()));
    }
    return true;
}
