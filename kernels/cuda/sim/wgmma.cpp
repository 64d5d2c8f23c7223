/* wgmma.cpp -- products of a warpgroup, m64nNk16 of bf16 with float32 sums, A and B in shared memory by descriptors of tiles whose
 * rows lie along k with SWIZZLE_128B, as the PTX ISA has them.
 *
 * Each warp makes its 16 rows: its products wait in order until a wait_group completes their group; by seed they are computed when they
 * are issued or then. Until then the sums are NaN and an access of them is an error, as a product is whose sums were touched
 * since the last wgmma.fence. The warps of a warpgroup make the same products.
 */
#include "kernels/cuda/sim/async.h"

enum { GROUP_WARPS = 4, ROWS = 16, MOST_N = 256, ATOM_BYTES = 1024 };

namespace
{
struct product {
    uint64_t a, b;
    bool adds, is_made;
    int group;
};
struct chain { /* products into the same sums */
    float *d[CRI_SIM_WARP];
    int n;
    std::vector<product> left;
    float c[ROWS][MOST_N];
};
struct issued {
    uint64_t a, b;
    int n;
    bool adds;
};
struct warp {
    std::vector<std::unique_ptr<chain>> chains;
    int group;
    size_t num_issued;
};
struct sums { /* of a lane: where they were the last time */
    const float *d;
    int n;
    bool has_fence, is_touched;
};
} // namespace

static warp warps[CRI_SIM_MAX_WARPS];
static std::vector<issued> of_group[CRI_SIM_MAX_WARPS / GROUP_WARPS];
static sums of_lane[CRI_SIM_MAX_THREADS];
static bool is_used; /* in this block */

void cri_sim_wgmma_new_block(void)
{
    if (!is_used) return;
    is_used = false;
    for (warp &w : warps)
        w = {};
    for (auto &g : of_group)
        g.clear();
    memset(of_lane, 0, sizeof of_lane);
}

void cri_sim_wgmma_end_block(void)
{
    if (!is_used) return;
    for (int w = 0; w < CRI_SIM_MAX_WARPS; w++) {
        if (!warps[w].chains.empty())
            cri_sim_die("warp %d ends while a wgmma is under way: no wgmma.wait_group", w);
        if (warps[w].num_issued != of_group[w / GROUP_WARPS].size())
            cri_sim_die(
                "warp %d made %zu products by wgmma, and another warp of its warpgroup %zu: "
                "on a GPU this hangs",
                w, warps[w].num_issued, of_group[w / GROUP_WARPS].size());
    }
}

uint32_t cri_sim_shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - cri_sim_shared_start);
}

/* ---- operands ---- */

static void check_descriptor(uint64_t d, const char *what)
{
    uint64_t start = (d & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;

    if (d >> 62 != 1 || (d >> 49 & 7) || stride != ATOM_BYTES)
        cri_sim_die(
            "wgmma: the descriptor of %s, %#lx, has no model: swizzle %d, offset %d, 8 rows "
            "in %d bytes",
            what, (unsigned long)d, (int)(d >> 62), (int)(d >> 49 & 7), (int)stride);
    if (start % ATOM_BYTES + 32 > 128)
        cri_sim_die(
            "wgmma: the tile of %s begins at offset %d: 16 of k inside of a row of 128 bytes "
            "from a multiple of %d are wanted",
            what, (int)start, ATOM_BYTES);
}

/* The 8 of k from 8 half on of row r. */
static const unsigned char *chunk_of(uint64_t d, int r, int half)
{
    uint32_t at = (uint32_t)(d & 0x3fff) << 4;

    at += (uint32_t)(r / 8 * ATOM_BYTES + r % 8 * 128 + half * 16);
    return cri_sim_shared_start + (at ^ (at >> 7 & 7) << 4);
}

/* see(chunk) for all that the warp's part of the product reads. */
template <class See> static void each_chunk(const product &p, int n, int first, const See &see)
{
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < ROWS; r++)
            see(chunk_of(p.a, first + r, half));
        for (int r = 0; r < n; r++)
            see(chunk_of(p.b, r, half));
    }
}

static void load(float *x, uint64_t d, int r)
{
    uint16_t bits[16];

    for (int half = 0; half < 2; half++)
        memcpy(bits + 8 * half, chunk_of(d, r, half), 16);
    for (int k = 0; k < 16; k++)
        x[k] = cri_sim_from_bf16(bits[k]);
}

/* One FMA chain in float32 by ascending k, as mma.m16n8k16's (warp.cpp): NOT the rounding of a tensor core. */
static void multiply(const float a[ROWS][16], const float b[16][MOST_N], float c[ROWS][MOST_N],
                     int n)
{
    for (int i = 0; i < ROWS; i++)
        for (int first = 0; first < n; first += 8)
            cri_sim_fma_row(a[i], b[0] + first, MOST_N, c[i] + first);
}

static void make(chain *c, int first)
{
    static float a[ROWS][16], b[16][MOST_N];
    float row[16];

    for (product &p : c->left) {
        if (p.is_made) continue;
        p.is_made = true;
        if (!p.adds) memset(c->c, 0, sizeof c->c);
        for (int r = 0; r < ROWS; r++)
            load(a[r], p.a, first + r);
        for (int r = 0; r < c->n; r++) {
            load(row, p.b, r);
            for (int k = 0; k < 16; k++)
                b[k][r] = row[k];
        }
        multiply(a, b, c->c, c->n);
        cri_sim_counts.wgmma++;
    }
}

/* Of lane l: its i-th sum. */
static float *sum_of(chain *c, int l, int i)
{
    return &c->c[l / 4 + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * (l % 4) + i % 2];
}

/* ---- what the lanes do together ---- */

static void check_lanes(cri_sim_lane *w)
{
    const cri_sim_operands *o = &w[0].op;

    for (int l = 0; l < CRI_SIM_WARP; l++) {
        const cri_sim_operands *other = &w[l].op;
        sums *s = &of_lane[w[l].index];
        cri_sim_here.thread = w[l].index;
        if (other->value != o->value || other->b_tile != o->b_tile || other->arg != o->arg ||
            other->adds != o->adds)
            cri_sim_die("lanes 0 and %d of a warp make different products by wgmma", l);
        if (!s->has_fence || (s->is_touched && s->d == other->c))
            cri_sim_die("wgmma without wgmma.fence %s",
                        s->has_fence ? "after an access of its sums" : "before it");
        s->d = other->c;
        s->n = other->arg / 2;
    }
    cri_sim_here.thread = w[0].index;
}

static void check_group(warp *mine, size_t group, const cri_sim_operands *o)
{
    const issued now = {o->value, o->b_tile, o->arg, o->adds};

    if (mine->num_issued == of_group[group].size()) of_group[group].push_back(now);
    const issued *first = &of_group[group][mine->num_issued++];
    if (first->a != now.a || first->b != now.b || first->n != now.n || first->adds != now.adds)
        cri_sim_die("the warps of a warpgroup make different products by wgmma");
}

static chain *chain_of(warp *mine, cri_sim_lane *w)
{
    const cri_sim_operands *o = &w[0].op;

    for (auto &c : mine->chains) {
        if (c->d[0] == o->c && c->n == o->arg) return c.get();
        if (o->c < c->d[0] + c->n / 2 && c->d[0] < o->c + o->arg / 2)
            cri_sim_die("wgmma into sums that another one of another shape still writes");
    }
    mine->chains.push_back(std::make_unique<chain>());
    chain *c = mine->chains.back().get();
    c->n = o->arg;
    for (int l = 0; l < CRI_SIM_WARP; l++) {
        c->d[l] = w[l].op.c;
        for (int i = 0; i < c->n / 2; i++)
            *sum_of(c, l, i) = c->d[l][i];
        memset(c->d[l], 0xff, (size_t)(c->n / 2) * sizeof(float));
    }
    return c;
}

void cri_sim_do_wgmma(cri_sim_lane *w)
{
    int number = (int)w[0].index / CRI_SIM_WARP, first = number % GROUP_WARPS * ROWS;
    warp *mine = &warps[number];
    const cri_sim_operands *o = &w[0].op;
    cri_sim_where here = cri_sim_here;

    cri_sim_need_sm_90("wgmma");
    is_used = true;
    check_lanes(w);
    check_descriptor(o->value, "A");
    check_descriptor(o->b_tile, "B");
    if (o->arg % 8 || o->arg < 8 || o->arg > MOST_N) cri_sim_die("wgmma of n = %d", o->arg);
    check_group(mine, (size_t)number / GROUP_WARPS, o);
    const product p = {o->value, o->b_tile, o->adds, false, mine->group};
    each_chunk(p, o->arg, first, [](const unsigned char *at) {
        if (!cri_sim_in_shared(at, CRI_SIM_CHUNK))
            cri_sim_die("wgmma of a tile past shared memory of %zu bytes", cri_sim_shared_used);
    });
    cri_sim_pc = o->pc;
    if (cri_sim_is_checked) each_chunk(p, o->arg, first, cri_sim_chunk_begin_read);
    chain *c = chain_of(mine, w);
    c->left.push_back(p);
    if (cri_sim_rng.chance(30)) make(c, first);
    cri_sim_here = here;
}

void cri_sim_do_wgmma_commit(cri_sim_lane *w)
{
    warps[w[0].index / CRI_SIM_WARP].group++;
}

static void finish(chain *c)
{
    for (int l = 0; l < CRI_SIM_WARP; l++)
        for (int i = 0; i < c->n / 2; i++)
            c->d[l][i] = *sum_of(c, l, i);
}

void cri_sim_do_wgmma_wait(cri_sim_lane *w)
{
    int number = (int)w[0].index / CRI_SIM_WARP, first = number % GROUP_WARPS * ROWS;
    warp *mine = &warps[number];
    cri_sim_where here = cri_sim_here;
    size_t kept = 0;

    cri_sim_here.thread = w[0].index;
    for (size_t i = 0; i < mine->chains.size(); i++) {
        chain *c = mine->chains[i].get();
        size_t num_left = 0;
        bool is_due = false;
        for (const product &p : c->left)
            is_due |= p.group < mine->group - w[0].op.arg;
        if (is_due) make(c, first);
        for (const product &p : c->left)
            if (p.group >= mine->group - w[0].op.arg)
                c->left[num_left++] = p;
            else if (cri_sim_is_checked)
                each_chunk(p, c->n, first, cri_sim_chunk_end_read);
        c->left.resize(num_left);
        if (num_left)
            mine->chains[kept++] = std::move(mine->chains[i]);
        else
            finish(c);
    }
    mine->chains.resize(kept);
    cri_sim_here = here;
}

/* ---- of one lane ---- */

void cri_sim_wgmma_fence(void)
{
    sums *s = &of_lane[cri_sim_here.thread];

    is_used = true;
    s->has_fence = true;
    s->is_touched = false;
}

static bool is_in(const void *p, size_t n, const float *d, int num)
{
    return (const char *)p + n > (const char *)d && (const char *)p < (const char *)(d + num);
}

void cri_sim_wgmma_touch(const void *p, size_t n, bool is_write)
{
    sums *s = &of_lane[cri_sim_here.thread];

    if (!is_used) return;
    s->is_touched |= is_in(p, n, s->d, s->n);
    for (const auto &c : warps[cri_sim_here.thread / CRI_SIM_WARP].chains)
        if (is_in(p, n, c->d[cri_sim_here.thread % CRI_SIM_WARP], c->n / 2))
            cri_sim_die("%s of a sum of a wgmma that is under way: no wgmma.wait_group, at %s",
                        is_write ? "write" : "read", cri_sim_line_of_code().c_str());
}
