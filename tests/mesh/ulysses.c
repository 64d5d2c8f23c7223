/* ulysses.c -- sequence parallel on 2 and 4 ranks against one rank: log-probs have the same bits, and
 * gradients are those of one rank (C37), with every way to deal key/value heads, ragged packing, with
 * and without recompute, under FSDP and HSDP; the layout of both exchanges element by element (C36);
 * batches shorter than the group; heads that cannot be distributed (M4, M5).
 * Not covered: several hosts, images.
 * // ranks: 4
 * // also on far
 * // also on cuda, long
 */
#include "tests/memory.h"
#include "tests/mesh/cut.h"

static void check_bits(const cut_result *got, const cut_result *want, const char *what)
{
    for (int i = 0; i < MAX_LABELS; i++)
        if (!isnan(got->log_prob[i]))
            CR_CHECK(got->log_prob[i] == want->log_prob[i] && got->entropy[i] == want->entropy[i],
                     "%s: label %d has log-prob %.9g, on one rank %.9g", what, i,
                     (double)got->log_prob[i], (double)want->log_prob[i]);
}

/* Gradients are sums of about 80 rows in another order: sqrt(80) ulp = 5e-7 of their size. */
static void check(cut c, double allowed)
{
    char what[160];
    cut alone = c;
    cut_result got, want;

    snprintf(what, sizeof what, "%d ranks, fsdp %d, ulysses %d, heads %d/%d, micro %d%s%s%s",
             c.ranks, c.fsdp, c.ulysses, c.heads, c.kv_heads, c.micro,
             c.is_recomputed ? ", recompute" : "", c.has_bias ? ", bias" : "",
             c.dtype == CR_BF16 ? ", bf16" : "");
    alone.ranks = alone.ulysses = 1;
    alone.fsdp = 0;
    alone.micro = NUM_SEQS;
    alone.is_recomputed = false;
    alone.pad_left = alone.pad_right = 0;
    want = cut_run(&alone, me);
    got = cut_run(&c, 0);
    if (me < c.ranks) check_bits(&got, &want, what);
    if (me == 0) {
        double far = cut_distance(&got, &want);
        CR_CHECK(far <= allowed, "%s: gradient off by %.3g", what, far);
        CR_CHECK(fabs(got.loss - want.loss) <= 1e-6 * fabs(want.loss), "%s: loss %.9g, %.9g", what,
                 got.loss, want.loss);
        printf("%s: gradient %.2g\n", what, far);
    }
    cr_free(got.grad);
    cr_free(want.grad);
    OK(cr_barrier(everyone, what, &err));
}

/* Left and right padding, packing, positions from 1: the rows that count have the bits of one rank
 * without padding, wherever the cut between ranks falls. */
static void test_c37_c38_padding_and_positions(void)
{
    const cut usual = {
        .ranks = 4, .ulysses = 2, .micro = 3, .heads = 4, .kv_heads = 2, .shortest = 3};

    for (int size = 2; size <= 4; size += 2)
        for (int way = 0; way < 4; way++) {
            cut c = usual;
            c.ulysses = size;
            c.pad_left = way == 1 ? 5 : way == 3 ? 3 : 0;
            c.pad_right = way == 2 ? 7 : way == 3 ? 2 : 0;
            c.start = way == 0 ? 1 : 0;
            c.micro = way == 3 ? NUM_SEQS : 2;
            check(c, 1e-6);
        }
}

static void test_c37_gradients(void)
{
    const cut usual = {
        .ranks = 4, .ulysses = 2, .micro = 3, .heads = 4, .kv_heads = 2, .shortest = 3};
    cut c = usual;

    check(c, 1e-6);
    for (int size = 2; size <= 4; size += 2)
        for (int kv = 1; kv <= 4; kv *= 2) {
            c = usual;
            c.ranks = c.ulysses = size; /* one long stream over all ranks */
            c.kv_heads = kv;
            c.micro = NUM_SEQS;
            c.is_recomputed = kv == 2;
            c.has_bias = kv == 4;
            check(c, 1e-6);
        }
    c = usual;
    c.fsdp = 2; /* HSDP */
    c.micro = 2;
    c.is_recomputed = true;
    check(c, 1e-6);
    c.fsdp = 0;
    c.reshard = CR_RESHARD_NEVER;
    c.micro = 1; /* some ranks have no batch left */
    check(c, 1e-6);
    c = usual;
    c.ulysses = 4;
    c.shortest = 1; /* sequences of 1 token, batches shorter than the group */
    c.micro = 1;
    check(c, 1e-6);
    c = usual;
    c.ulysses = 4;
    c.dtype = CR_BF16; /* gradients of copies are added after rounding: 2^-8 a value */
    check(c, 1e-2);
}

/* ---- the exchanges ---- */

/* Element d of head h of row t. */
static float code(int64_t t, int64_t h, int64_t d)
{
    return (float)((t * 16 + h) * 8 + d);
}

static void check_layout(int size, int kv_heads, int64_t tokens)
{
    int32_t *zeros = CR_NEW_ARRAY(int32_t, tokens),
            cu[3] = {0, (int32_t)tokens / 3, (int32_t)tokens};
    cut c = {.heads = 8, .kv_heads = kv_heads};
    uint64_t *keys = CR_NEW_ARRAY(uint64_t, tokens);
    cr_batch batch = {zeros, zeros, NULL, cu, tokens, 2, .drop_keys = keys};
    int ranks[4] = {0, 1, 2, 3};
    cr_pass pass = {.dtype = CR_F32};
    cr_mesh_shape shape;
    const cr_split *split;
    cr_ulysses *u;
    cr_mesh *mesh;
    int64_t first = tokens * me / size, mine = tokens * (me + 1) / size - first,
            here = kv_heads > size ? kv_heads / size : 1;
    size_t rows_bytes = (size_t)(mine * kv_heads * 8) * sizeof(float),
           heads_bytes = (size_t)(tokens * here * 8) * sizeof(float), lists_bytes;
    float *x = cr_alloc(rows_bytes + 1), *y;
    cr_mem *rows, *heads, *lists;
    cr_model *model = cut_model(&c);

    OK(cr_device_open(cr_device_default(), 1, &pass.dev, &err));
    pass.scratch = cr_stack_create(pass.dev);
    OK(cr_mesh_shape_init(&shape, size, size, size, 1, 0, &err));
    OK(cr_mesh_create(world, pass.dev, "layout", ranks, &shape, &mesh, &err));
    OK(cr_ulysses_create(mesh, model, &u, &err));
    for (int64_t t = 0; t < tokens; t++)
        keys[t] = (uint64_t)t + 7;
    cr_ulysses_cut(u, &batch);
    for (int64_t t = 0; t < mine; t++)
        CR_CHECK(cr_ulysses_batch(u)->drop_keys[t] == (uint64_t)(first + t) + 7,
                 "dropout's key of row %lld", (long long)t);
    split = cr_ulysses_split(u);
    CR_CHECK(cr_ulysses_batch(u)->num_tokens == mine && split->num_tokens == tokens &&
                 split->num_heads == 8 / size && split->num_kv_heads == here,
             "the cut of %lld tokens", (long long)tokens);
    OK(cr_device_alloc(pass.dev, rows_bytes, &rows, &err));
    OK(cr_device_alloc(pass.dev, heads_bytes, &heads, &err));
    lists_bytes = (size_t)split->num_in_lists * sizeof *split->lists;
    OK(cr_device_alloc(pass.dev, lists_bytes, &lists, &err));
    OK(cr_upload(pass.dev, lists, split->lists, lists_bytes, &err));
    pass.index.split_lists = lists;
    for (int64_t i = 0; i < mine * kv_heads * 8; i++)
        x[i] = code(first + i / (kv_heads * 8), i / 8 % kv_heads, i % 8);
    OK(cr_upload(pass.dev, rows, x, rows_bytes, &err));
    OK(split->to_heads(split->ctx, "there", &pass, rows, kv_heads, heads, &err));
    y = downloaded(pass.dev, heads, heads_bytes);
    for (int64_t i = 0; i < tokens * here * 8; i++) {
        int64_t head = me * kv_heads / size + i / 8 % here;
        CR_CHECK(y[i] == code(i / (here * 8), head, i % 8), "element %lld of rank %d", (long long)i,
                 me);
    }
    OK(split->to_rows(split->ctx, "back", &pass, heads, kv_heads, rows, &err));
    OK(cr_download(pass.dev, x, rows, rows_bytes, &err));
    for (int64_t i = 0; i < mine * kv_heads * 8; i++) {
        float copies = kv_heads < size ? (float)(size / kv_heads) : 1;
        CR_CHECK(x[i] == copies * code(first + i / (kv_heads * 8), i / 8 % kv_heads, i % 8),
                 "element %lld of rank %d on the way back", (long long)i, me);
    }
    cr_device_free(pass.dev, rows, rows_bytes);
    cr_device_free(pass.dev, heads, heads_bytes);
    cr_device_free(pass.dev, lists, lists_bytes);
    cr_ulysses_destroy(u);
    cr_mesh_destroy(mesh);
    cr_stack_destroy(pass.scratch);
    cr_device_close(pass.dev);
    cr_model_free(model);
    cr_free(x);
    cr_free(y);
    cr_free(zeros);
    cr_free(keys);
}

static void test_c36_layout(void)
{
    for (int size = 2; size <= 4; size += 2)
        for (int kv = 1; kv <= 8; kv *= 2)
            for (int64_t tokens = 4; tokens <= 39; tokens += 5) {
                if (me < size) check_layout(size, kv, tokens);
                OK(cr_barrier(everyone, "layout", &err));
            }
}

static void expect_heads_error(int heads, int kv_heads, const char *id)
{
    cut c = {.heads = heads, .kv_heads = kv_heads};
    cr_mesh mesh = {0};
    cr_model *model = cut_model(&c);
    cr_ulysses *u;
    cr_err e = {0};

    OK(cr_mesh_shape_init(&mesh.shape, 4, 4, 4, 1, 0, &err));
    CR_CHECK(cr_ulysses_create(&mesh, model, &u, &e) == CR_ECONFIG && strstr(e.msg, id),
             "%d heads and %d on 4 ranks: %s", heads, kv_heads, e.msg);
    cr_model_free(model);
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    int ranks[4] = {0, 1, 2, 3};

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    OK(cr_group_create(world, NULL, "everyone", ranks, 4, &everyone, &err));
    expect_heads_error(6, 2, "M4");
    expect_heads_error(12, 3, "M5");
    test_c36_layout();
    test_c37_gradients();
    test_c37_c38_padding_and_positions();
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
