/* wgmma.cpp -- products of a warpgroup, m64nNk16 of bf16 with float32 sums, as the PTX ISA has them: B in shared memory by a descriptor of
 * tiles with SWIZZLE_128B, whose rows lie along k or (turned) are k, A in registers or by a descriptor of tiles along k.
 *
 * Each warp makes its 16 rows: its products wait in order until a wait_group completes their group; by seed they are computed when they
 * are issued or then. Until then the sums are NaN, and an access of them or of A in registers is an error, as a product is whose
 * registers were touched since the last wgmma.fence. The warps of a warpgroup make the same products.
 */
#include "tests/cuda_sim/gpu/async.h"

enum { GROUP_WARPS = 4, ROWS = 16, MAX_N = 256, ATOM_BYTES = 1024, COLUMNS = 64 };

namespace
{
struct operands { /* which a warpgroup's warps have alike */
    uint64_t a, b;
    int n;
    bool is_a_here, is_b_turned, adds; /* here: in registers */
    bool operator!=(const operands &o) const
    {
        return a != o.a || b != o.b || n != o.n || is_a_here != o.is_a_here ||
               is_b_turned != o.is_b_turned || adds != o.adds;
    }
};
struct product {
    operands of;
    const uint32_t *a[CRI_SIM_WARP]; /* in registers */
    bool is_made;
    int group;
};
struct chain { /* products into the same sums */
    float *d[CRI_SIM_WARP];
    int n;
    std::vector<product> left;
    float c[ROWS][MAX_N];
};
struct warp {
    std::vector<std::unique_ptr<chain>> chains;
    int group;
    size_t num_issued;
};
struct place { /* registers that a product had */
    const void *p;
    size_t num_bytes;
    bool is_touched; /* since the last fence */
};
struct registers { /* of a lane */
    bool has_fence;
    std::vector<place> places;
};
} // namespace

static warp warps[CRI_SIM_MAX_WARPS];
static std::vector<operands> of_group[CRI_SIM_MAX_WARPS / GROUP_WARPS];
static registers of_lane[CRI_SIM_MAX_THREADS];
static bool is_used; /* in this block */

void cri_sim_wgmma_new_block(void)
{
    if (!is_used) return;
    is_used = false;
    for (warp &w : warps)
        w = {};
    for (auto &g : of_group)
        g.clear();
    for (registers &l : of_lane)
        l = {};
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

static uint32_t start_of(uint64_t descriptor)
{
    return (uint32_t)(descriptor & 0x3fff) << 4;
}
static uint32_t next_of(uint64_t descriptor) /* of 64 columns of a turned B */
{
    return (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
}

static void check_descriptor(uint64_t d, const char *what)
{
    uint64_t stride = (d >> 32 & 0x3fff) << 4;

    if (d >> 62 != 1 || (d >> 49 & 7) || stride != ATOM_BYTES)
        cri_sim_die(
            "wgmma: the descriptor of %s, %#lx, has no model: swizzle %d, offset %d, 8 rows "
            "in %d bytes",
            what, (unsigned long)d, (int)(d >> 62), (int)(d >> 49 & 7), (int)stride);
}

static void check_tile(uint64_t d, const char *what)
{
    check_descriptor(d, what);
    if (start_of(d) % ATOM_BYTES + 32 > 128)
        cri_sim_die(
            "wgmma: the tile of %s begins at offset %u: 16 of k inside of a row of 128 bytes "
            "from a multiple of %d are wanted",
            what, start_of(d), ATOM_BYTES);
}

static void check_turned_tile(uint64_t d, int n)
{
    check_descriptor(d, "turned B");
    if (start_of(d) % ATOM_BYTES || (n > COLUMNS && (next_of(d) % ATOM_BYTES || !next_of(d))))
        cri_sim_die("wgmma: the tile of turned B begins at offset %u, that of its next %d columns "
                    "%u further: multiples of %d are wanted",
                    start_of(d), COLUMNS, next_of(d), ATOM_BYTES);
}

/* 16 bytes: chunk `chunk` of row r of a tile. */
static const unsigned char *chunk_at(uint32_t start, int r, int chunk)
{
    uint32_t at = start + (uint32_t)(r / 8 * ATOM_BYTES + r % 8 * 128 + chunk * 16);

    return cri_sim_shared_start + (at ^ (at >> 7 & 7) << 4);
}
/* The 8 columns from 8 j on of row k. */
static const unsigned char *turned_chunk(uint64_t d, int k, int j)
{
    return chunk_at(start_of(d) + (uint32_t)(j / 8) * next_of(d), k, j % 8);
}

/* see(chunk) for all that the warp's part of the product reads. */
template <class See> static void each_chunk(const operands &o, int first, const See &see)
{
    for (int half = 0; half < 2; half++) {
        for (int r = 0; !o.is_a_here && r < ROWS; r++)
            see(chunk_at(start_of(o.a), first + r, half));
        for (int r = 0; !o.is_b_turned && r < o.n; r++)
            see(chunk_at(start_of(o.b), r, half));
    }
    for (int i = 0; o.is_b_turned && i < 16 * o.n / 8; i++)
        see(turned_chunk(o.b, i % 16, i / 16));
}

/* The 16 of k of row r. */
static void load(float *x, uint64_t d, int r)
{
    uint16_t bits[16];

    for (int half = 0; half < 2; half++)
        memcpy(bits + 8 * half, chunk_at(start_of(d), r, half), 16);
    for (int k = 0; k < 16; k++)
        x[k] = cri_sim_from_bf16(bits[k]);
}

static void load_b(float (*b)[MAX_N], const operands &o)
{
    uint16_t bits[8];
    float row[16];

    for (int r = 0; !o.is_b_turned && r < o.n; r++) {
        load(row, o.b, r);
        for (int k = 0; k < 16; k++)
            b[k][r] = row[k];
    }
    for (int i = 0; o.is_b_turned && i < 16 * o.n / 8; i++) {
        memcpy(bits, turned_chunk(o.b, i % 16, i / 16), 16);
        for (int e = 0; e < 8; e++)
            b[i % 16][i / 16 * 8 + e] = cri_sim_from_bf16(bits[e]);
    }
}

/* One FMA chain in float32 by ascending k, as mma.m16n8k16's (warp.cpp): NOT the rounding of a tensor core. */
static void multiply(const float a[ROWS][16], const float b[16][MAX_N], float c[ROWS][MAX_N], int n)
{
    for (int i = 0; i < ROWS; i++)
        for (int first = 0; first < n; first += 8)
            cri_sim_fma_row(a[i], b[0] + first, MAX_N, c[i] + first);
}

static void make(chain *c, int first)
{
    static float a[ROWS][16], b[16][MAX_N];

    for (product &p : c->left) {
        if (p.is_made) continue;
        p.is_made = true;
        if (!p.of.adds) memset(c->c, 0, sizeof c->c);
        for (int r = 0; !p.of.is_a_here && r < ROWS; r++)
            load(a[r], p.of.a, first + r);
        for (int l = 0; p.of.is_a_here && l < CRI_SIM_WARP; l++)
            cri_sim_take_a(a, l, p.a[l]);
        load_b(b, p.of);
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

static operands operands_of(const cri_sim_operands &o)
{
    return {o.value, o.b_tile, o.arg, o.a != nullptr, o.is_transposed, o.adds};
}

/* The running thread's registers at p are a product's. */
static void check_fence(const void *p, size_t num_bytes, const char *what)
{
    registers *mine = &of_lane[cri_sim_here.thread];

    if (!mine->has_fence) cri_sim_die("wgmma without wgmma.fence before it");
    for (place &at : mine->places)
        if (at.p == p) {
            if (at.is_touched)
                cri_sim_die("wgmma without wgmma.fence after an access of its %s", what);
            at.num_bytes = num_bytes;
            return;
        }
    mine->places.push_back({p, num_bytes, false});
}

static void check_lanes(cri_sim_lane *w)
{
    const operands o = operands_of(w[0].op);

    for (int l = 0; l < CRI_SIM_WARP; l++) {
        cri_sim_here.thread = w[l].index;
        if (operands_of(w[l].op) != o)
            cri_sim_die("lanes 0 and %d of a warp make different products by wgmma", l);
        check_fence(w[l].op.c, (size_t)(o.n / 2) * sizeof(float), "sums");
        if (o.is_a_here) check_fence(w[l].op.a, 4 * sizeof(uint32_t), "A");
    }
    cri_sim_here.thread = w[0].index;
}

static void check_group(warp *mine, size_t group, const operands &now)
{
    if (mine->num_issued == of_group[group].size()) of_group[group].push_back(now);
    if (of_group[group][mine->num_issued++] != now)
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
    product p = {operands_of(w[0].op), {}, false, mine->group};
    cri_sim_where here = cri_sim_here;

    cri_sim_need_sm_90("wgmma");
    is_used = true;
    check_lanes(w);
    if (p.of.n % 8 || p.of.n < 8 || p.of.n > MAX_N) cri_sim_die("wgmma of n = %d", p.of.n);
    if (!p.of.is_a_here) check_tile(p.of.a, "A");
    if (p.of.is_b_turned)
        check_turned_tile(p.of.b, p.of.n);
    else
        check_tile(p.of.b, "B");
    check_group(mine, (size_t)number / GROUP_WARPS, p.of);
    for (int l = 0; l < CRI_SIM_WARP; l++)
        p.a[l] = w[l].op.a;
    each_chunk(p.of, first, [](const unsigned char *at) {
        if (!cri_sim_in_shared(at, CRI_SIM_CHUNK))
            cri_sim_die("wgmma of a tile past shared memory of %zu bytes", cri_sim_shared_used);
    });
    cri_sim_pc = w[0].op.pc;
    if (cri_sim_is_checked) each_chunk(p.of, first, cri_sim_chunk_begin_read);
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
                each_chunk(p.of, first, cri_sim_chunk_end_read);
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
    registers *mine = &of_lane[cri_sim_here.thread];

    is_used = true;
    mine->has_fence = true;
    for (place &at : mine->places)
        at.is_touched = false;
}

static bool is_in(const void *p, size_t n, const void *of, size_t num_bytes)
{
    return (const char *)p + n > (const char *)of && (const char *)p < (const char *)of + num_bytes;
}

void cri_sim_wgmma_touch(const void *p, size_t n, bool is_write)
{
    unsigned lane = cri_sim_here.thread % CRI_SIM_WARP;
    const char *of = NULL;

    if (!is_used) return;
    for (place &at : of_lane[cri_sim_here.thread].places)
        at.is_touched |= is_in(p, n, at.p, at.num_bytes);
    for (const auto &c : warps[cri_sim_here.thread / CRI_SIM_WARP].chains) {
        if (is_in(p, n, c->d[lane], (size_t)(c->n / 2) * sizeof(float))) of = "a sum";
        for (const product &left : c->left)
            if (left.of.is_a_here && is_in(p, n, left.a[lane], 4 * sizeof(uint32_t))) of = "A";
    }
    if (of)
        cri_sim_die("%s of %s of a wgmma that is under way: no wgmma.wait_group, at %s",
                    is_write ? "write" : "read", of, cri_sim_line_of_code().c_str());
}
