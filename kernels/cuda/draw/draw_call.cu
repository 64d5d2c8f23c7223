/* draw_call.cu -- the call of a draw: its rows go to the device in one pinned block, its results come back in another, and the host waits
 * once. The logits stay on the device; kept ids of a row beyond the first CRI_DRAW_KEPT are fetched after that. In parts (cr_draw_part) it
 * is the same: where the blocks are, and their sizes, follow from the rows each time.
 */
#include "kernels/cuda/draw/draw.h"

extern "C" {
#include "base/rng.h"
}

/* The ids of the lists that processors of this row need. */
static void lists_of(const cr_draw_row *row, const int32_t **ids, size_t *num)
{
    const cr_token_processors *e = &row->processors;
    bool has_counts = row->penalty != 1 || e->presence != 0 || e->frequency != 0;
    const int32_t *lists[NUM_LISTS] = {row->history[0], row->history[1], e->allowed, e->banned,
                                       e->biased};
    const size_t nums[NUM_LISTS] = {row->penalty != 1 ? row->num_history[0] : 0,
                                    has_counts ? row->num_history[1] : 0, e->num_allowed,
                                    e->num_banned, e->num_biased};

    memcpy(ids, lists, sizeof lists);
    memcpy(num, nums, sizeof nums);
}

/* The block for the device; its bytes. */
static size_t lay_out_in(draw_rows *d, char *base, size_t num_ids)
{
    size_t at = 0;

    carve(base, &at, &d->rows, d->num);
    carve(base, &at, &d->temperatures, d->num);
    carve(base, &at, &d->flags, d->num);
    carve(base, &at, &d->ids, (int64_t)num_ids);
    return at;
}

/* The block for the host. */
static size_t lay_out_out(draw_rows *d, char *base)
{
    size_t at = 0;

    carve(base, &at, &d->all, d->num);
    carve(base, &at, &d->log_prob, d->num);
    carve(base, &at, &d->rank, d->has_rank ? d->num : 0);
    carve(base, &at, &d->top_ids, d->num * d->num_top);
    carve(base, &at, &d->top_log_probs, d->num * d->num_top);
    carve(base, &at, &d->kept, d->has_list ? d->num * CRI_DRAW_KEPT : 0);
    return at;
}

/* The rest of the scratch, from `at` on. */
static size_t lay_out_scratch(draw_rows *d, char *base, size_t at)
{
    int64_t pieces = d->num * d->num_pieces, tokens = d->num * d->vocab_size;
    cri_log_prob_rows numbers = cri_cuda_draw_numbers(d);
    char *tiles;

    carve(base, &at, &d->limits, d->num);
    carve(base, &at, &d->labels, d->num);
    carve(base, &at, &d->max_piece, pieces);
    carve(base, &at, &d->piece_id, pieces);
    carve(base, &at, &d->piece_found, pieces);
    carve(base, &at, &d->piece_mass, pieces);
    carve(base, &at, &d->bins, d->has_filter ? d->num * CRI_DRAW_BINS : 0);
    carve(base, &at, &d->edited, d->has_processor ? tokens : 0);
    carve(base, &at, &d->tokens, d->has_processor || d->has_filter ? tokens : 0);
    carve(base, &at, &tiles, (int64_t)cri_cuda_log_probs_tiles(&numbers));
    d->tiles = tiles;
    return at;
}

/* What the rows ask for; the number of ids of all lists, as elements of 4 bytes; a bias is one, too. */
static size_t look_at_rows(const cr_draw_args *a, draw_rows *d)
{
    size_t num_ids = 0;

    for (int64_t r = 0; r < a->num_rows; r++) {
        const cr_draw_row *row = &a->rows[r];
        const int32_t *ids[NUM_LISTS];
        size_t num[NUM_LISTS];
        bool has_filter = cri_draw_has_filter(row, a->vocab_size);
        d->has_rank |= row->has_rank;
        d->num_top = d->num_top > row->num_top ? d->num_top : row->num_top;
        d->has_draw |= row->temperature > 0;
        d->has_filter |= has_filter;
        d->has_list |= has_filter && a->out[r].kept;
        if (!cri_draw_has_processor(row)) continue;
        d->has_processor = true;
        lists_of(row, ids, num);
        for (int list = 0; list < NUM_LISTS; list++)
            num_ids += num[list] * (list == BIASED ? 2 : 1);
    }
    return num_ids;
}

static int64_t put_ids(int32_t *ids, size_t *at, const void *from, size_t num)
{
    int64_t first = (int64_t)*at;

    if (num) memcpy(ids + first, from, num * 4);
    *at += num;
    return first;
}

/* host: the block for the device, laid out by lay_out_in. */
static void fill_rows(const cr_draw_args *a, const draw_rows *host)
{
    size_t at = 0;

    for (int64_t r = 0; r < a->num_rows; r++) {
        const cr_draw_row *row = &a->rows[r];
        const cr_token_processors *e = &row->processors;
        const int32_t *ids[NUM_LISTS];
        size_t num[NUM_LISTS];
        draw_row d = {};
        d.temperature = row->temperature == 0 ? 1 : row->temperature;
        d.penalty = row->penalty, d.presence = e->presence, d.frequency = e->frequency;
        d.top_p = row->top_p, d.min_p = row->min_p, d.u = row->u;
        d.top_k = row->top_k < a->vocab_size ? row->top_k : 0;
        d.is_greedy = row->temperature == 0;
        d.is_raw = row->is_raw || d.is_greedy;
        d.has_filter = cri_draw_has_filter(row, a->vocab_size);
        d.is_listed = d.has_filter && a->out[r].kept;
        d.has_processor = cri_draw_has_processor(row);
        if (d.has_processor) {
            lists_of(row, ids, num);
            for (int list = 0; list < NUM_LISTS; list++) {
                d.num_ids[list] = (int64_t)num[list];
                d.first_id[list] = put_ids(host->ids, &at, ids[list], num[list]);
            }
            d.first_bias = put_ids(host->ids, &at, e->bias, e->num_biased);
        }
        host->rows[r] = d;
        host->flags[r] = d.has_processor && !d.is_raw;
        host->temperatures[r] = d.is_raw ? 1 : d.temperature;
    }
}

static void put_row(const cr_draw_row *row, const draw_rows *host, int64_t r, cr_drawn *out)
{
    const chosen *got = &host->all[r];
    size_t num_top = (size_t)row->num_top;

    out->id = got->id;
    out->log_prob = host->log_prob[r];
    out->rank = row->has_rank ? host->rank[r] : 0;
    if (out->id < 0) return;
    out->log_mass = got->log_mass;
    out->num_kept = (size_t)got->num_kept;
    if (num_top == 0) return;
    memcpy(out->top_ids, host->top_ids + r * host->num_top, num_top * sizeof *out->top_ids);
    for (size_t i = 0; i < num_top; i++) {
        float x = host->top_log_probs[(size_t)(r * host->num_top) + i];
        out->top_log_probs[i] = x < CRI_MAX_BANNED ? -INFINITY : x;
    }
}

static cr_status put_kept(cr_device *dev, const draw_rows *d, const draw_rows *host, int64_t r,
                          cr_drawn *out, cr_err *err)
{
    size_t num = out->id < 0 || !out->kept ? 0 : out->num_kept;
    int32_t *all;
    cr_status status;

    if (num == 0) return CR_OK;
    if (num <= CRI_DRAW_KEPT) {
        cr_buf_add(out->kept, host->kept + r * CRI_DRAW_KEPT, num * sizeof *all);
        return CR_OK;
    }
    all = (int32_t *)cr_alloc(num * sizeof *all);
    status = dev->kernels->download(dev, all, cr_mem_of_host(d->tokens + r * d->vocab_size),
                                    num * sizeof *all, err);
    if (status == CR_OK) cr_buf_add(out->kept, all, num * sizeof *all);
    cr_free(all);
    return status;
}

/* What one call works with. */
struct draw_call {
    draw_rows d, host; /* on the device, once scratch is known; in the pinned blocks */
    size_t num_ids, in_bytes, out_bytes;
    void *to_device, *to_host;
};

/* Sizes and pinned blocks. Room for lists of ids comes in powers of 2: histories grow, and graphs keep. */
static cr_status describe(cr_device *dev, const cr_draw_args *a, draw_call *c, cr_err *err)
{
    draw_rows *d = &c->d;
    size_t num_ids = look_at_rows(a, d);

    for (c->num_ids = num_ids ? 64 : 0; c->num_ids < num_ids;)
        c->num_ids *= 2;
    d->num = a->num_rows;
    d->vocab_size = a->vocab_size;
    d->num_pieces = cri_cuda_draw_pieces(a->vocab_size);
    d->logits = in<float>(a->logits);
    c->in_bytes = lay_out_in(d, NULL, c->num_ids);
    c->out_bytes = lay_out_out(d, NULL);
    CR_TRY(cri_cuda_pinned(dev, CRI_TO_DEVICE, c->in_bytes, &c->to_device, err));
    CR_TRY(cri_cuda_pinned(dev, CRI_TO_HOST, c->out_bytes, &c->to_host, err));
    c->host = *d;
    (void)lay_out_in(&c->host, (char *)c->to_device, c->num_ids);
    (void)lay_out_out(&c->host, (char *)c->to_host);
    return CR_OK;
}

/* Of all that queue has as arguments. Scratch is where it was, or graphs are dropped. */
static uint64_t key_of(const draw_call *c)
{
    const draw_rows *d = &c->d;
    const uint64_t all[] = {(uint64_t)d->num,
                            (uint64_t)d->vocab_size,
                            (uint64_t)d->num_top,
                            d->has_processor,
                            d->has_draw,
                            d->has_filter,
                            d->has_list,
                            d->has_rank,
                            c->num_ids,
                            (uintptr_t)c->to_host,
                            (uintptr_t)c->to_device};

    return cr_hash64(all, sizeof all);
}

/* The arrays on the device, in the scratch at mem. */
static size_t lay_out(draw_call *c, void *mem)
{
    char *base = (char *)mem;

    (void)lay_out_in(&c->d, base, c->num_ids);
    (void)lay_out_out(&c->d, base ? base + c->in_bytes : NULL);
    return lay_out_scratch(&c->d, base, c->in_bytes + c->out_bytes);
}

static cudaError_t copy_and_draw(const draw_call *c, cudaStream_t stream)
{
    const draw_rows *d = &c->d;
    cudaError_t code =
        cudaMemcpyAsync(d->rows, c->to_device, c->in_bytes, cudaMemcpyHostToDevice, stream);

    /* places of ids that are not kept, too, are copied to the host */
    if (code == cudaSuccess) code = cudaMemsetAsync(d->all, 0, c->out_bytes, stream);
    if (code == cudaSuccess) code = cri_cuda_draw_queue(d, stream);
    if (code != cudaSuccess) return code;
    return cudaMemcpyAsync(c->to_host, d->all, c->out_bytes, cudaMemcpyDeviceToHost, stream);
}

static cr_status queue(cr_device *dev, draw_call *c, cr_err *err)
{
    void *mem;

    CR_TRY(cri_cuda_scratch(dev, lay_out(c, NULL), &mem, err));
    (void)lay_out(c, mem);
    return launched("draw", copy_and_draw(c, cri_cuda_stream(dev)), err);
}

static cr_status take(cr_device *dev, const cr_draw_args *a, draw_call *c, cr_err *err)
{
    (void)lay_out(c, cri_cuda_scratch_now(dev));
    CR_TRY(dev->kernels->sync(dev, err));
    for (int64_t r = 0; r < a->num_rows; r++) {
        put_row(&a->rows[r], &c->host, r, &a->out[r]);
        CR_TRY(put_kept(dev, &c->d, &c->host, r, &a->out[r], err));
    }
    return CR_OK;
}

cr_status cri_cuda_draw(cr_device *dev, const cr_draw_args *a, cr_err *err)
{
    bool is_all = a->part == CR_DRAW_ALL;
    draw_call c = {};

    if (a->num_rows <= 0) return CR_OK;
    CR_TRY(describe(dev, a, &c, err));
    if (is_all || a->part == CR_DRAW_PUT) fill_rows(a, &c.host);
    if (a->key) *a->key = key_of(&c);
    if (is_all || a->part == CR_DRAW_QUEUE) CR_TRY(queue(dev, &c, err));
    return is_all || a->part == CR_DRAW_TAKE ? take(dev, a, &c, err) : CR_OK;
}
