/* ulysses.c -- cutting a batch, and the all-to-all around attention (see ulysses.h).
 *
 * Rows of [t, n, D] go out through one list of row numbers, made once a batch. Heads that divide:
 * x is seen as rows of n / P heads, and part p of row i is number i P + p. Heads that are repeated:
 * rows of one head, and rank p gets number i n + p / (P / n). The pass uploads the lists with its batch.
 */
#include "ulysses/ulysses.h"
#include "kernels/attention.h"

#include <string.h>

struct cr_ulysses {
    cr_group *group;
    int rank, num_ranks;
    int64_t num_kv_heads, head_dim;
    cr_batch whole; /* what was cut; ids, positions, labels are borrowed or in `grown` */
    cr_batch mine;  /* ids, positions, labels point into whole's */
    cr_row_processors processors; /* of `mine`: rows in whole's */
    int32_t *grown;               /* ids, positions, labels of a batch that was too short */
    uint64_t *grown_keys;         /* its drop_keys */
    int32_t *axes;                /* mrope of `mine` */
    size_t capacity_axes;
    int32_t *offsets; /* cu_seqlens of `mine`, then those of a batch that was too short */
    size_t capacity_offsets;
    int32_t *lists; /* [2, P, t] row numbers of heads that divide, and that are repeated */
    size_t capacity_lists;
    size_t *counts;                           /* [P] rows of each rank that have values */
    size_t *send_bytes, *recv_bytes, *places; /* [P], [P], [P + 1] */
    cr_split split;
};

static int64_t first_row(const cr_ulysses *u, int rank)
{
    return u->whole.num_tokens * rank / u->num_ranks;
}

static int64_t num_rows(const cr_ulysses *u, int rank)
{
    return first_row(u, rank + 1) - first_row(u, rank);
}

/* Heads of [t, num_heads, D] that one rank works on. */
static int64_t local_heads(int num_ranks, int64_t num_heads)
{
    return num_heads % num_ranks == 0 ? num_heads / num_ranks : 1;
}

/* ---- the exchanges ---- */

/* Bytes from and to each rank, when `here` bytes an own row go out or (is_back) come in. */
static void set_bytes(cr_ulysses *u, bool is_back, size_t row_bytes)
{
    size_t *own = is_back ? u->recv_bytes : u->send_bytes,
           *other = is_back ? u->send_bytes : u->recv_bytes;

    for (int r = 0; r < u->num_ranks; r++) {
        own[r] = (size_t)num_rows(u, u->rank) * row_bytes;
        other[r] = (size_t)num_rows(u, r) * row_bytes;
    }
}

/* In the memory of the device. */
static const cr_mem *list_of(const cr_ulysses *u, const cr_pass *p, int64_t num_heads)
{
    int64_t num = u->mine.num_tokens * u->num_ranks;

    return cr_mem_add_const(p->index.split_lists,
                            num_heads % u->num_ranks == 0 ? 0 : (size_t)num * sizeof(int32_t));
}

static cr_status to_heads(void *ctx, const char *name, cr_pass *p, const cr_mem *x,
                          int64_t num_heads, cr_mem *y, cr_err *err)
{
    cr_ulysses *u = ctx;
    size_t mark = cr_stack_mark(p->scratch);
    int64_t cols = local_heads(u->num_ranks, num_heads) * u->head_dim,
            rows = u->mine.num_tokens * u->num_ranks;
    size_t row_bytes = (size_t)cols * cr_dtype_bytes(p->dtype);
    const cr_mem *index = list_of(u, p, num_heads);
    cr_mem *send;

    CR_TRY(cr_stack_push(p->scratch, (size_t)rows * row_bytes, &send, err));
    CR_TRY(cr_rows_gather(p->dev, &(cr_rows_move_args){p->dtype, x, index, rows, cols, send}, err));
    set_bytes(u, /*is_back=*/false, row_bytes);
    CR_TRY(cr_all_to_all(u->group, name, send, u->send_bytes, y, u->recv_bytes, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* y = sum over the copies of each head, in rank order. */
static cr_status add_copies(const cr_ulysses *u, cr_pass *p, const cr_mem *copies,
                            int64_t num_heads, cr_mem *y, cr_err *err)
{
    size_t num = (size_t)(u->mine.num_tokens * num_heads * u->head_dim);
    cr_mem *sum = y;

    if (p->dtype != CR_F32) CR_TRY(cr_stack_push(p->scratch, num * sizeof(float), &sum, err));
    CR_TRY(cr_zero(p->dev, sum, num * sizeof(float), err));
    CR_TRY(cr_embedding_grad(p->dev,
                             &(cr_embedding_grad_args){p->dtype, copies, list_of(u, p, num_heads),
                                                       u->mine.num_tokens * u->num_ranks,
                                                       u->head_dim, sum},
                             err));
    return sum == y ? CR_OK : cr_cast(p->dev, &(cr_cast_args){p->dtype, y, CR_F32, sum, num}, err);
}

static cr_status to_rows(void *ctx, const char *name, cr_pass *p, const cr_mem *y,
                         int64_t num_heads, cr_mem *x, cr_err *err)
{
    cr_ulysses *u = ctx;
    size_t mark = cr_stack_mark(p->scratch);
    int64_t cols = local_heads(u->num_ranks, num_heads) * u->head_dim,
            rows = u->mine.num_tokens * u->num_ranks;
    size_t row_bytes = (size_t)cols * cr_dtype_bytes(p->dtype);
    cr_mem *recv;

    CR_TRY(cr_stack_push(p->scratch, (size_t)rows * row_bytes, &recv, err));
    set_bytes(u, /*is_back=*/true, row_bytes);
    CR_TRY(cr_all_to_all(u->group, name, y, u->send_bytes, recv, u->recv_bytes, err));
    if (num_heads % u->num_ranks == 0) {
        CR_TRY(cr_rows_scatter(
            p->dev, &(cr_rows_move_args){p->dtype, recv, list_of(u, p, num_heads), rows, cols, x},
            err));
    } else {
        CR_TRY(add_copies(u, p, recv, num_heads, x, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* ---- cutting ---- */

static void grow(int32_t **array, size_t *capacity, size_t num)
{
    if (num <= *capacity) return;
    *array = cr_realloc(*array, *capacity * sizeof **array, 2 * num * sizeof **array);
    *capacity = 2 * num;
}

/* A batch of fewer tokens than ranks, followed by a sequence of zeros without labels. */
static cr_batch lengthen(cr_ulysses *u, const cr_batch *b)
{
    size_t num = (size_t)u->num_ranks, old = (size_t)b->num_tokens, bytes = old * sizeof(int32_t);
    int32_t *ids = u->grown, *positions = ids + num, *labels = positions + num,
            *offsets = labels + num;

    memset(ids, 0, 2 * num * sizeof(int32_t));
    memset(labels, -1, num * sizeof(int32_t));
    memcpy(ids, b->ids, bytes);
    memcpy(positions, b->positions, bytes);
    if (b->labels) memcpy(labels, b->labels, bytes);
    for (size_t t = old; t < num; t++)
        positions[t] = (int32_t)(t - old);
    /* sequences without tokens are left out: they would not fit */
    memset(offsets, 0, (num + 2) * sizeof(int32_t));
    int64_t seqs = 0;
    for (int64_t s = 0; s < b->num_seqs; s++)
        if (b->cu_seqlens[s + 1] > b->cu_seqlens[s]) offsets[++seqs] = b->cu_seqlens[s + 1];
    offsets[++seqs] = (int32_t)num;
    memset(u->grown_keys, 0, num * sizeof *u->grown_keys);
    if (b->drop_keys) memcpy(u->grown_keys, b->drop_keys, old * sizeof *b->drop_keys);
    return (cr_batch){
        ids,  positions, labels,    offsets,       (int64_t)num,
        seqs, b->mrope,  b->vision, b->processors, b->drop_keys ? u->grown_keys : NULL};
}

/* Where sequences begin and end among rows [first, end). */
static void cut_sequences(cr_ulysses *u, int64_t first, int64_t end)
{
    const cr_batch *b = &u->whole;
    int64_t num = 0;

    grow(&u->offsets, &u->capacity_offsets, (size_t)b->num_seqs + 1);
    u->offsets[0] = 0;
    for (int64_t s = 0; s < b->num_seqs; s++) {
        int64_t stop = b->cu_seqlens[s + 1] < end ? b->cu_seqlens[s + 1] : end;
        if (stop - first > u->offsets[num]) u->offsets[++num] = (int32_t)(stop - first);
    }
    u->mine.cu_seqlens = u->offsets;
    u->mine.num_seqs = num;
}

/* Positions along three axes; what was added to a short batch has its positions thrice. */
static void cut_axes(cr_ulysses *u, const cr_batch *b, int64_t first)
{
    int64_t num = u->mine.num_tokens;

    grow(&u->axes, &u->capacity_axes, 3 * (size_t)num);
    for (int64_t a = 0; a < 3; a++)
        for (int64_t t = 0; t < num; t++)
            u->axes[a * num + t] = first + t < b->num_tokens
                                       ? b->mrope[a * b->num_tokens + first + t]
                                       : u->mine.positions[t];
    u->mine.mrope = u->axes;
}

static void count_labels(cr_ulysses *u)
{
    for (int r = 0; r < u->num_ranks; r++) {
        u->counts[r] = 0;
        for (int64_t t = first_row(u, r); u->whole.labels && t < first_row(u, r + 1); t++)
            u->counts[r] += u->whole.labels[t] >= 0;
    }
}

/* Those of this rank's labelled rows. */
static void cut_processors(cr_ulysses *u, const cr_row_processors *whole)
{
    size_t first, num;

    if (!whole) return;
    cr_ulysses_rows(u, &first, &num);
    u->processors = *whole;
    if (whole->temperatures) u->processors.temperatures += first;
    if (whole->kept_first) {
        u->processors.kept_first += first;
        u->processors.kept_num += first;
    }
    if (whole->seen_list) {
        u->processors.seen_list += first;
        u->processors.seen_until += first;
    }
    u->mine.processors = &u->processors;
}

static void list_rows(cr_ulysses *u)
{
    int64_t tokens = u->mine.num_tokens, kv = u->num_kv_heads, ranks = u->num_ranks;

    grow(&u->lists, &u->capacity_lists, (size_t)(2 * tokens * ranks));
    for (int64_t r = 0; r < ranks; r++)
        for (int64_t t = 0; t < tokens; t++) {
            u->lists[r * tokens + t] = (int32_t)(t * ranks + r);
            u->lists[(ranks + r) * tokens + t] = (int32_t)(t * kv + r * kv / ranks);
        }
    u->split.lists = u->lists;
    u->split.num_in_lists = (kv % ranks == 0 ? 1 : 2) * tokens * ranks;
}

void cr_ulysses_cut(cr_ulysses *u, const cr_batch *whole)
{
    int64_t first, end;

    u->whole = whole->num_tokens < u->num_ranks ? lengthen(u, whole) : *whole;
    first = first_row(u, u->rank);
    end = first_row(u, u->rank + 1);
    u->mine = (cr_batch){.ids = u->whole.ids + first,
                         .positions = u->whole.positions + first,
                         .labels = u->whole.labels ? u->whole.labels + first : NULL,
                         .num_tokens = end - first,
                         .vision = whole->vision,
                         .drop_keys = u->whole.drop_keys ? u->whole.drop_keys + first : NULL};
    if (whole->mrope) cut_axes(u, whole, first);
    cut_sequences(u, first, end);
    count_labels(u);
    cut_processors(u, whole->processors);
    list_rows(u);
    u->split.cu_seqlens = u->whole.cu_seqlens;
    u->split.num_seqs = u->whole.num_seqs;
    u->split.num_tokens = u->whole.num_tokens;
    u->split.first = first;
    u->split.whole = whole;
}

const cr_batch *cr_ulysses_batch(const cr_ulysses *u)
{
    return &u->mine;
}

const cr_split *cr_ulysses_split(const cr_ulysses *u)
{
    return &u->split;
}

void cr_ulysses_rows(const cr_ulysses *u, size_t *first, size_t *num)
{
    *first = 0;
    for (int r = 0; r < u->rank; r++)
        *first += u->counts[r];
    *num = u->counts[u->rank];
}

void cr_ulysses_choose(cr_ulysses *u, const int32_t *rows, int64_t num_rows, int32_t *own)
{
    int64_t i = 0;

    for (int r = 0; r < u->num_ranks; r++) {
        int64_t begin = i;
        for (; i < num_rows && rows[i] < first_row(u, r + 1); i++)
            if (r == u->rank) own[i - begin] = (int32_t)(rows[i] - first_row(u, r));
        u->counts[r] = (size_t)(i - begin);
    }
}

cr_status cr_ulysses_collect(cr_ulysses *u, const char *name, void *values, int64_t num_cols,
                             cr_err *err)
{
    size_t first, num, row_bytes = (size_t)num_cols * 4;
    cr_buf all = {0};

    cr_ulysses_rows(u, &first, &num);
    if (cr_all_gather_bytes(u->group, name, (char *)values + first * row_bytes, num * row_bytes,
                            &all, u->places, err) == CR_OK &&
        u->places[u->rank] == first * row_bytes) /* a meta world has nothing of the others */
        memcpy(values, all.data, all.num_bytes);
    cr_buf_free(&all);
    return err->status;
}

/* ---- life ---- */

cr_status cr_ulysses_create(const cr_mesh *mesh, const cr_model *model, cr_ulysses **out,
                            cr_err *err)
{
    const cr_model_config *c = &model->config;
    cr_ulysses *u;
    size_t num;

    *out = NULL;
    CR_TRY(cr_mesh_check_heads(&mesh->shape, (int)c->num_heads, (int)c->num_kv_heads, err));
    u = CR_NEW(cr_ulysses);
    u->group = mesh->group[CR_AXIS_ULYSSES];
    u->rank = cr_mesh_axis_rank(&mesh->shape, CR_AXIS_ULYSSES, mesh->rank);
    u->num_ranks = mesh->shape.num_ulysses;
    u->num_kv_heads = c->num_kv_heads;
    u->head_dim = c->head_dim;
    num = (size_t)u->num_ranks;
    u->grown = CR_NEW_ARRAY(int32_t, 4 * num + 2);
    u->grown_keys = CR_NEW_ARRAY(uint64_t, num);
    u->counts = CR_NEW_ARRAY(size_t, num);
    u->send_bytes = CR_NEW_ARRAY(size_t, num);
    u->recv_bytes = CR_NEW_ARRAY(size_t, num);
    u->places = CR_NEW_ARRAY(size_t, num + 1);
    u->split = (cr_split){.num_heads = local_heads(u->num_ranks, c->num_heads),
                          .num_kv_heads = local_heads(u->num_ranks, c->num_kv_heads),
                          .to_heads = to_heads,
                          .to_rows = to_rows,
                          .ctx = u};
    *out = u;
    return CR_OK;
}

void cr_ulysses_destroy(cr_ulysses *u)
{
    if (!u) return;
    cr_free(u->grown);
    cr_free(u->grown_keys);
    cr_free(u->axes);
    cr_free(u->offsets);
    cr_free(u->lists);
    cr_free(u->counts);
    cr_free(u->send_bytes);
    cr_free(u->recv_bytes);
    cr_free(u->places);
    cr_free(u);
}
