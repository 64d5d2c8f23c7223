/* modes.c -- every mode of fsdp2_train against one rank that does nothing special: gradients, traffic by
 * closed formulas, gathered units alive, offload, loss scale, masters in bf16.
 * Not covered: several hosts; conformance ids are in the names of the tests.
 * // ranks: 4
 * // also on hosts: 0,0,1,1
 * // also on cuda, long
 */
#include "tests/memory.h"
#include "tests/mesh/train.h"
#include "tests/mesh/train_traffic.h"

/* ---- every mode (C7, C8, C10, C14, C16, C52; B5) ---- */

static void test_c7_c8_c10_c14_c16_c52_modes(void)
{
    static const char mixed[] = "model.layers.1.mlp,model.layers.2.self_attn,model.norm",
                      low[] = "model.embed_tokens,model.layers.0.,model.layers.1.mlp";
    const plan plans[] = {
        {"2 ranks", 2, 2, 1},
        {"4 ranks", 4, 4, 1},
        {"hsdp", 4, 2, 1},
        {"3 and 4 micro-batches", 2, 2, 1, 7},
        {"hsdp, 1 and 2 micro-batches", 4, 2, 1, 7},
        {"always", 2, 2, 1, .reshard = CR_RESHARD_ALWAYS},
        {"never", 4, 4, 1, .reshard = CR_RESHARD_NEVER},
        {"never, hsdp", 4, 2, 2, .reshard = CR_RESHARD_NEVER},
        {"to 1 rank", 4, 4, 1, .reshard_ranks = 1},
        {"to 2 ranks", 4, 4, 1, .reshard_ranks = 2},
        {"to 4 ranks", 4, 4, 1, .reshard_ranks = 4},
        {"to 2 ranks, hsdp", 4, 2, 1, .reshard_ranks = 2},
        {"to 2 ranks, mixed", 4, 4, 1, .reshard_ranks = 2, .frozen = mixed},
        {"to 2 ranks, parts", 4, 4, 2, .reshard_ranks = 2, .wrap = parts},
        {"once", 2, 2, 1, .is_reduced_once = true},
        {"once, hsdp", 4, 2, 1, .is_reduced_once = true},
        {"once, never", 4, 4, 1, .is_reduced_once = true, .reshard = CR_RESHARD_NEVER},
        {"once, to 2, frozen", 4, 4, 1, .is_reduced_once = true, .reshard_ranks = 2, .frozen = low},
        {"no recompute", 2, 2, 1, .is_recomputed_off = true},
        {"no recompute, to 2 ranks", 4, 4, 1, .is_recomputed_off = true, .reshard_ranks = 2},
        {"mixed", 2, 2, 1, .frozen = mixed},
        {"mixed, hsdp", 4, 2, 2, .frozen = mixed},
        {"frozen below", 4, 4, 2, .frozen = low},
        {"all but norms", 2, 2, 1,
         .frozen = "model.embed_tokens,model.layers.0.mlp,"
                   "model.layers.0.self_attn,model.layers.1,lm_head"},
        {"parts", 2, 2, 1, .wrap = parts},
        {"model", 4, 4, 1, .wrap = model_only},
        {"by size", 4, 4, 1, .wrap = by_size},
        {"tied", 4, 2, 1, .is_tied = true},
        {"offloaded", 4, 4, 1, .is_offloaded = true},
        {"offloaded, once, hsdp", 4, 2, 1, .is_offloaded = true, .is_reduced_once = true},
        {"scaled", 4, 2, 1, .loss_scale = 4096},
        {"scaled, once", 2, 2, 1, .loss_scale = 4096, .is_reduced_once = true},
    };

    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i], one = usual;
        result got, want;
        int lowest = 0;
        if (p.num_seqs == 0) p.num_seqs = 6;
        p.last = 2;
        p.inf_step = -1;
        one.name = "one";
        one.is_tied = p.is_tied;
        one.frozen = p.frozen;
        one.num_seqs = p.num_seqs;
        one.last = 2;
        want = train(one);
        got = train(p);
        if (p.frozen == low) lowest = 1;
        if (me == 0) {
            double far = distance(got.grad, want.grad, want.num_grad);
            CR_CHECK(got.num_grad == want.num_grad && far <= grad_tol, "%s: gradient off by %.3g",
                     p.name, far);
            CR_CHECK(fabs(got.norm[1] - want.norm[1]) <= 1e-5 * want.norm[1], "%s: norm", p.name);
            check_traffic(&p, &got, lowest);
            if (!p.wrap.is_nested && p.wrap.min_elems == 0 && p.reshard == CR_RESHARD_DEFAULT &&
                p.reshard_ranks != 1)
                CR_CHECK(got.stats.max_units_alive == 2, "%s: %d units were alive", p.name,
                         got.stats.max_units_alive);
        }
        cr_free(got.grad);
        cr_free(want.grad);
    }
}

/* 16 bits on the wire and in compute: bytes, and a gradient off by about their last bit (bf16 has 8 bits,
 * fp16 11; measured 1.1e-3, 1.5e-2 and 1.6e-3). */
static void test_c11_halves(void)
{
    const struct {
        cr_dtype dtype;
        cr_reduce_dtype reduce;
        double scale, min, max;
    } cases[] = {{CR_F32, CR_REDUCE_BF16, 0, 1e-4, 4e-3},
                 {CR_BF16, CR_REDUCE_BF16, 0, 4e-3, 5e-2},
                 {CR_F16, CR_REDUCE_F32, 1024, 1e-4, 4e-3}};
    plan p = usual;
    result one, r;

    p.name = "halves";
    p.last = 1;
    one = train(p);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        p.ranks = 4;
        p.fsdp = 2;
        p.micro = 1;
        p.reduce = cases[i].reduce;
        p.dtype = cases[i].dtype;
        p.loss_scale = cases[i].scale;
        r = train(p);
        if (me == 0) {
            double far = distance(r.grad, one.grad, one.num_grad);
            CR_CHECK(far <= cases[i].max && far >= cases[i].min, "case %zu: off by %.3g", i, far);
            check_traffic(&p, &r, 0);
        }
        cr_free(r.grad);
    }
    cr_free(one.grad);
}

/* A scale too large for fp16: every rank skips and halves it until the gradients fit; only then weights
 * move, and AdamW's t counts those updates. */
static void test_c13_fp16_overflow(void)
{
    plan p = usual;
    double scale = 0x1p21;
    int updates = 0;
    result r;

    p.name = "overflow";
    p.ranks = 4;
    p.fsdp = 2;
    p.last = 6;
    p.dtype = CR_F16;
    p.loss_scale = scale;
    p.save = "overflow";
    r = train(p);
    for (int s = 0; s < 6; s++) {
        if (r.is_skipped[s])
            scale /= 2;
        else if (++updates % 2 == 0)
            scale *= 2;
        CR_CHECK(r.loss_scale[s] == scale, "step %d: scale %g, want %g", s, r.loss_scale[s], scale);
    }
    CR_CHECK(r.is_skipped[0], "the first scale fits");
    CR_CHECK(updates >= 1 && updates <= 4, "%d updates, scale %g", updates, scale);
    cr_free(r.grad);
    p.resume = "overflow";
    p.first = p.last = updates;
    p.save = "again";
    train(p); /* checks the number of updates */
    same_bytes("overflow", "again");
}

/* 256 + 1 - 256 is 1, also where each contribution travels in bf16, over ranks and over calls. */
static void test_c15_sum_in_float32(void)
{
    const float values[RANKS] = {256, 1, -256, 0};
    cr_reduce *reduce;
    float shard[32] = {0};
    cr_mem *data;

    OK(cr_reduce_create(everyone, 1, 32 * RANKS, &reduce, &err));
    for (int i = 0; i < 3 + 1;
         i++) { /* call 3: one value of each rank; before: all ranks the same */
        OK(cr_reduce_begin(reduce, 0, &data, &err));
        for (int k = 0; k < 32 * RANKS; k++)
            F32(data)[k] = i < 3 ? values[i] / 4 : values[me];
        OK(cr_reduce_publish(reduce, 0, "sum", 32, CR_REDUCE_BF16, &err));
        OK(cr_reduce_finish(reduce, 0, MEM(shard), i == 3 ? CR_REDUCE_SET : CR_REDUCE_ADD, &err));
        CR_CHECK(i < 2 || shard[7] == 1, "call %d: the sum is %g", i, (double)shard[7]);
    }
    cr_reduce_destroy(reduce);
}

/* ---- calls (C17, C18) ---- */

static void test_c17_c18_calls(void)
{
    const plan plans[] = {
        {"thrice", 2, 2, 1, .calls = LAYER_THRICE},
        {"thrice, hsdp, to 2", 4, 2, 1, .calls = LAYER_THRICE, .reshard_ranks = 2},
        {"thrice, to 2", 4, 4, 1, .calls = LAYER_THRICE, .reshard_ranks = 2},
        {"thrice, never", 4, 4, 1, .calls = LAYER_THRICE, .reshard = CR_RESHARD_NEVER},
        {"thrice, no recompute", 2, 2, 1, .calls = LAYER_THRICE, .is_recomputed_off = true},
        {"thrice, parts", 2, 2, 1, .calls = LAYER_THRICE, .wrap = parts},
        {"thrice, once", 2, 2, 1, .calls = LAYER_THRICE, .is_reduced_once = true},
        {"branches", 2, 2, 1, .calls = BRANCHES, .wrap = model_only},
        {"branches in turn", 3, 3, 1, .calls = BRANCHES, .wrap = model_only},
        {"branches, once", 2, 2, 1, .calls = BRANCHES, .wrap = model_only, .is_reduced_once = true},
    };

    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i], one = usual;
        result got, want;
        p.num_seqs = 6;
        p.last = 1;
        p.inf_step = -1;
        one.name = "one";
        one.calls = p.calls;
        one.micro = 1;
        one.last = 1;
        want = train(one);
        got = train(p);
        if (me == 0) {
            double far = distance(got.grad, want.grad, want.num_grad);
            CR_CHECK(got.num_grad == want.num_grad && far <= grad_tol, "%s: gradient off by %.3g",
                     p.name, far);
        }
        cr_free(got.grad);
        cr_free(want.grad);
    }
}

/* ---- offload (C20, C45) ---- */

static void test_c20_c45_offload(void)
{
    plan p = usual;
    result r;

    p.name = "offload";
    p.ranks = 4;
    p.fsdp = 2;
    p.micro = 1;
    p.save = "device";
    r = train(p);
    cr_free(r.grad);
    CR_CHECK(me >= 4 || r.stats.host_bytes == 0, "nothing was on the host");
    p.is_offloaded = true;
    p.save = "host";
    r = train(p);
    cr_free(r.grad);
    CR_CHECK(r.stats.host_bytes == r.stats.shard_bytes && r.stats.shard_bytes > 0,
             "%lld of %lld bytes on the host", (long long)r.stats.host_bytes,
             (long long)r.stats.shard_bytes);
    p.is_offloaded = false;
    if (strcmp(cr_device_default(), "cuda") == 0) { /* where shards are, AdamW is: the cpu's */
        p.save = "start";
        p.last = 0;
        train(p);
        p.last = usual.last;
        if (me == 0) {
            double far = update_distance("host", "device", "start");
            CR_CHECK(far > 0 && far <= update_tol, "the host's update is off by %.3g", far);
        }
    } else {
        same_bytes("device", "host");
    }
    p.is_cycled = true;
    p.save = "cycled";
    cr_free(train(p).grad);
    same_bytes("device", "cycled");
    p.is_reduced_once = true; /* another order of sums */
    cr_free(train(p).grad);
    p.is_cycled = false;
    p.save = "once";
    cr_free(train(p).grad);
    same_bytes("once", "cycled");
}

/* A model on two ranks, for what is asked of it directly. */
typedef struct alone {
    cr_model *model;
    cr_device *dev;
    cr_mesh *mesh;
    cr_fsdp *f;
} alone;

static alone open_alone(void)
{
    cr_fsdp_args args = {.is_train = true, .seed = 11};
    int ranks[2] = {0, 1};
    cr_mesh_shape shape;
    alone a;

    OK(cr_device_open(cr_device_default(), 1, &a.dev, &err));
    a.model = make_model(&usual);
    OK(cr_mesh_shape_init(&shape, 2, 2, 1, 1, 0, &err));
    OK(cr_mesh_create(world, a.dev, "actor_train", ranks, &shape, &a.mesh, &err));
    OK(cr_fsdp_create(a.model, a.dev, a.mesh, &args, &a.f, &err));
    return a;
}

static void close_alone(alone *a)
{
    cr_fsdp_destroy(a->f);
    cr_mesh_destroy(a->mesh);
    cr_model_free(a->model);
    cr_device_close(a->dev);
}

/* 100 cycles of each kind of state; what is away is asked for and says so. */
static void test_c45_cycles(void)
{
    static const char *const words[] = {"parameters", "gradients", "moments", "buffers"};

    if (me < 2) {
        alone a = open_alone();
        batch *x = CR_NEW(batch);
        loss_ctx l = {.total = append(x, 0, me)};
        size_t start;
        cr_update update;
        OK(cr_fsdp_backward(a.f, &x->b, loss, &l, &err));
        OK(cr_fsdp_update(a.f, 1e-3, &update, &err));
        cycle(a.f, CR_STATE_ALL);
        OK(cr_fsdp_update(a.f, 1e-3, &update, &err));
        CR_CHECK(update.grad_norm == 0, "a norm of %g before the next backward pass",
                 update.grad_norm);
        start = cr_device_get_stats(a.dev).bytes_now;
        for (int i = 0; i < 100; i++)
            cycle(a.f, i < 80 ? 1u << i % 4 : CR_STATE_ALL);
        CR_CHECK(cr_device_get_stats(a.dev).bytes_now == start, "bytes on the device");
        for (unsigned k = 0; k < 4; k++) {
            OK(cr_fsdp_offload(a.f, 1u << k, &err));
            if (k < 2 || k == 3)
                CR_CHECK(cr_fsdp_backward(a.f, &x->b, loss, &l, &err) == CR_EARG &&
                             strstr(err.msg, words[k]),
                         "backward without %s: %s", words[k], err.msg);
            err = (cr_err){0};
            CR_CHECK(cr_fsdp_update(a.f, 1e-3, &update, &err) == CR_EARG &&
                         strstr(err.msg, words[k]),
                     "update without %s: %s", words[k], err.msg);
            err = (cr_err){0};
            OK(cr_fsdp_load(a.f, 1u << k, &err));
        }
        OK(cr_fsdp_offload(a.f, CR_STATE_ALL, &err));
        CR_CHECK(cr_device_get_stats(a.dev).bytes_now == 0, "%zu bytes stayed on the device",
                 cr_device_get_stats(a.dev).bytes_now);
        close_alone(&a);
        cr_free(x);
    }
    OK(cr_barrier(everyone, "cycles", &err));
}

/* ---- numbers (C12, C13, C22) ---- */

/* A power of two scales exactly: the same bits as without; an overflow skips, halves, clears. */
static void test_c13_c22_loss_scale(void)
{
    static const double want[] = {1024, 512, 512, 1024};
    plan p = usual;
    result r;

    p.name = "loss scale";
    p.ranks = 4;
    p.fsdp = 2;
    p.inf_step = 1;
    p.save = "plain";
    cr_free(train(p).grad);
    p.loss_scale = 1024;
    p.save = "scaled";
    r = train(p);
    same_bytes("plain", "scaled");
    for (int s = 0; s < 4; s++)
        CR_CHECK(r.loss_scale[s] == want[s] && r.is_skipped[s] == (s == 1),
                 "step %d: scale %g, skipped %d", s, r.loss_scale[s], r.is_skipped[s]);
    cr_free(r.grad);
    p.resume = "scaled"; /* 3 updates, at a scale of 1024 and after none at it */
    p.first = 3;
    p.last = 5;
    p.inf_step = -1;
    p.loss_scale = 8;
    r = train(p);
    CR_CHECK(r.loss_scale[3] == 1024 && r.loss_scale[4] == 2048, "scale %g, %g after a resume",
             r.loss_scale[3], r.loss_scale[4]);
    cr_free(r.grad);
}

/* Share of masters that `updates` of this learning rate move. */
static double share_moved(cr_dtype master, double lr)
{
    plan p = usual;
    size_t moved = 0, num = 0;

    p.name = "masters";
    p.master = master;
    p.lr = lr;
    p.last = 0;
    p.save = "before";
    cr_free(train(p).grad);
    p.last = 6;
    p.save = "after";
    cr_free(train(p).grad);
    if (me == 0) {
        cr_buf x = read_state("before", "state/actor_train.master"),
               y = read_state("after", "state/actor_train.master");
        num = x.num_bytes / sizeof(float);
        for (size_t i = 0; i < num; i++) {
            double by =
                fabs((double)((float *)(void *)y.data)[i] - (double)((float *)(void *)x.data)[i]);
            moved += by > 0 && by < 10 * lr; /* AdamW moves by about lr; a rounding by more */
        }
        cr_buf_free(&x);
        cr_buf_free(&y);
    }
    return num ? (double)moved / (double)num : 0;
}

static void test_c12_masters(void)
{
    double fine = share_moved(CR_F32, 1e-6), coarse = share_moved(CR_BF16, 1e-6),
           big = share_moved(CR_BF16, 3e-3);
    plan p = usual;

    if (me == 0)
        CR_CHECK(fine > 0.9 && coarse < 0.01 && big > 0.9, "moved: fp32 %g, bf16 %g, %g", fine,
                 coarse, big);
    p.name = "bf16 masters";
    p.master = CR_BF16;
    p.dtype = CR_BF16;
    p.ranks = 4;
    p.save = "m4";
    cr_free(train(p).grad);
    p.resume = "m4"; /* bf16 to fp32 files and back loses nothing, on any mesh */
    p.first = p.last = 4;
    p.save = "m2";
    p.ranks = 2;
    train(p);
    same_bytes("m4", "m2");
}

int main(void)
{
    open_world();
    test_c7_c8_c10_c14_c16_c52_modes();
    test_c11_halves();
    test_c15_sum_in_float32();
    test_c17_c18_calls();
    test_c20_c45_offload();
    test_c45_cycles();
    test_c13_c22_loss_scale();
    test_c13_fp16_overflow();
    test_c12_masters();
    close_world();
    return 0;
}
