/* strategies.c -- a tiny model trained on 1, 2 and 4 ranks: however model and batch are cut, the
 * gradient and the trajectory are the same, repeats are the same bits, and a checkpoint resumes on any
 * mesh. Worlds smaller than 4 are its first ranks; the others wait at the barrier between plans.
 * Over several hosts the files are in CROLL_TESTS_FOLDER. Not covered: models that do not fit one rank, kill -9 in a
 * save (unit test pipelines_checkpoint), parity with torch.
 * // ranks: 4
 * // also on hosts: 0,1
 * // also on far
 * // also on cuda, long
 */
#include "mesh/hosts/links.h"
#include "mesh/mesh_impl.h"
#include "tests/memory.h"
#include "tests/mesh/train_resume.h"

/* ---- tests ---- */

static void test_c5_c6_c26_cuts(void)
{
    const plan plans[] = {
        {.name = "2 ranks", .ranks = 2},
        {.name = "4 ranks", .ranks = 4},
        {.name = "hsdp", .ranks = 4, .fsdp = 2},
        {.name = "micro 1", .ranks = 4, .micro = 1},
        {.name = "micro 6", .ranks = 1, .micro = 6},
        {.name = "reshard", .ranks = 2, .reshard = CR_RESHARD_ALWAYS},
        {.name = "no reshard", .ranks = 4, .reshard = CR_RESHARD_NEVER, .micro = 1},
        {.name = "no recompute", .ranks = 2, .is_recomputed_off = true},
        {.name = "parts", .ranks = 2, .wrap = parts},
        {.name = "parts, no recompute", .ranks = 4, .wrap = parts, .is_recomputed_off = true},
        {.name = "outer", .ranks = 2, .wrap = outer},
    };
    plan one = usual;
    result want;

    one.name = "one rank";
    one.save = "one";
    want = train(one);
    one.name = "start";
    one.save = "start";
    one.last = 0;
    train(one);
    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i];
        result got;
        p.save = "cut";
        p.num_seqs = usual.num_seqs;
        p.last = usual.last;
        p.inf_step = -1;
        if (p.micro == 0) p.micro = usual.micro;
        got = train(p);
        if (me != 0) continue;
        for (int s = 0; s < usual.last; s++)
            CR_CHECK(fabs(got.loss[s] - want.loss[s]) <= 1e-5 * want.loss[s] &&
                         fabs(got.norm[s] - want.norm[s]) <= 1e-5 * want.norm[s],
                     "%s: step %d: loss %.9g, want %.9g, norm %.9g, want %.9g", p.name, s,
                     got.loss[s], want.loss[s], got.norm[s], want.norm[s]);
        double far = distance(got.grad, want.grad, want.num_grad);
        CR_CHECK(got.num_grad == want.num_grad && far <= grad_tol, "%s: gradient off by %.3g",
                 p.name, far);
        if (!p.wrap.is_nested) { /* other units: another order of parameters in the files */
            far = update_distance("cut", "one", "start");
            CR_CHECK(far <= update_tol, "%s: update off by %.3g", p.name, far);
        }
        cr_free(got.grad);
    }
    cr_free(want.grad);
}

static void test_repeat(void)
{
    plan p = usual;

    p.name = "repeat";
    p.ranks = 4;
    p.dtype = CR_BF16;
    p.reduce = CR_REDUCE_BF16;
    p.save = "first";
    cr_free(train(p).grad);
    p.save = "second";
    cr_free(train(p).grad);
    same_bytes("first", "second");
}

/* What p resumes and writes again on this many ranks is "half". 5: 4 ranks as hsdp (2, 2). */
static void again_on(plan p, int ranks)
{
    p.ranks = ranks < 5 ? ranks : 4;
    p.fsdp = ranks < 5 ? 0 : 2;
    p.first = p.last = 2;
    p.save = "again";
    train(p);
    same_bytes("half", "again");
}

/* 4 steps = 2 steps, a checkpoint, 2 steps; and a checkpoint read and written on another mesh. */
static void test_c46_c47_resume(void)
{
    plan p = usual;

    p.name = "resume";
    p.resume = "half";
    resume_half(usual);
    for (int ranks = 1; ranks <= 5; ranks++)
        again_on(p, ranks);
}

/* What a checkpoint was trained to stays when it is frozen from there on, and is in the next one. */
static void test_c46_frozen_later(void)
{
    plan p = usual;

    p.name = "frozen later";
    p.ranks = 4;
    p.first = p.last = 2;
    p.resume = "half";
    p.frozen = "model.embed_tokens,model.layers.1";
    for (int life = 0; life < 2; life++) {
        p.save = life ? "later" : "again";
        p.ranks = life ? 3 : 4;
        train(p);
        CR_CHECK(me != 0 || is_same("half", p.save, "actor_train/model.safetensors"),
                 "life %d: weights that are frozen now are not the checkpoint's", life);
        p.resume = p.save;
    }
}

/* Ranks that do not have the folder: their parts are sent to one that has, or each rank keeps its own; and they come back, on
 * the same ranks or on others. */
static void test_c46_private_folders(void)
{
    plan p = usual;

    p.name = "private folders";
    p.ranks = 4;
    p.is_cycled = true;
    p.first = p.last = 2;
    for (int first = 0; first < 4; first++) { /* also where rank 0 does not have it */
        p.resume = "half";
        p.save = "gathered";
        p.kind = CR_SAVE_GATHERED;
        p.away[0] = first;
        p.away[1] = first == 0 ? 3 : 4;
        train(p);
        same_bytes("half", "gathered");
    }
    p.save = "parts";
    p.kind = CR_SAVE_EACH;
    p.away[0] = 2;
    train(p);
    p.kind = CR_SAVE_GATHERED;
    p.resume = "parts";
    for (int ranks = 3; ranks <= 5; ranks++)
        again_on(p, ranks);
    if (me == 0) {
        char *all = path_of("parts"), *to = path_of("parts/joined");
        bool is_parted;
        cr_err why = {0};
        CR_CHECK(cr_saved_join_model(all, "actor_train", to, &is_parted, &why) == CR_EFORMAT &&
                     is_parted && strstr(why.msg, "is missing: it is on host"),
                 "a model without the parts of a host: %s", why.msg);
        cr_free(all);
        cr_free(to);
    }
}

/* The same where parameters are frozen: they come from MODEL. */
static void test_c46_private_frozen(void)
{
    plan p = usual;

    p.name = "private, frozen";
    p.ranks = 4;
    p.first = p.last = 2;
    p.resume = "parts";
    p.frozen = "model.embed_tokens,model.layers.1";
    p.save = "again";
    p.kind = CR_SAVE_GATHERED;
    p.away[0] = 2;
    p.away[1] = 4;
    for (int life = 0; life < 2; life++) {
        train(p);
        CR_CHECK(me != 0 || is_same("half", "again", "actor_train/model.safetensors"),
                 "life %d: weights that are frozen now are not the checkpoint's", life);
        p.resume = "half";
    }
}

static void test_c49_background_save(void)
{
    plan p = usual;

    p.name = "background";
    p.ranks = 2;
    p.is_async = true;
    cr_free(train(p).grad);
    same_bytes("now", "background");
}

static void test_c22_skip(void)
{
    plan p = usual;
    result r;

    p.name = "skip";
    p.ranks = 2;
    p.inf_step = 1;
    p.last = 3;
    p.save = "skipped";
    r = train(p);
    if (me < 2)
        CR_CHECK(!r.is_skipped[0] && r.is_skipped[1] && !r.is_skipped[2],
                 "rank %d skipped %d %d %d", me, r.is_skipped[0], r.is_skipped[1], r.is_skipped[2]);
    if (me == 0) CR_CHECK(!isfinite(r.norm[1]) && isfinite(r.norm[2]), "norms");
}

/* The first moment of the first step is 0.1 of the clipped gradient, whose norm is max_grad_norm. */
static void test_c21_clip(void)
{
    plan p = usual;
    result r;

    p.name = "clip";
    p.ranks = 4;
    p.last = 1;
    p.save = "clipped";
    r = train(p);
    if (me == 0) {
        cr_buf m = read_state("clipped", "state/actor_train.m");
        const float *x = (const float *)(const void *)m.data;
        double sum = 0;
        for (size_t i = 0; i < m.num_bytes / sizeof(float); i++)
            sum += (double)x[i] * (double)x[i];
        CR_CHECK(r.norm[0] > 1 && fabs(sqrt(sum) - 0.1 * 0.5) <= 1e-6, "norm %.9g, moment %.9g",
                 r.norm[0], sqrt(sum));
        cr_buf_free(&m);
    }
    cr_free(r.grad);
}

/* Log-probs of fsdp2_infer have the same bits on any number of ranks and in any company. */
static void test_forward(cr_dtype dtype)
{
    static float first[MAX_LEN], log_prob[MAX_SEQS * MAX_LEN], entropy[MAX_SEQS * MAX_LEN];
    int ranks[RANKS] = {0, 1, 2, 3};
    cr_fsdp_args args = {.param_dtype = dtype, .seed = 11};

    for (int n = 1; n <= RANKS; n++) {
        batch *x = CR_NEW(batch);
        cr_model *model = make_model(&usual);
        cr_mesh_shape shape;
        cr_device *dev;
        cr_mesh *mesh;
        cr_fsdp *f;
        if (me < n) {
            int num = append(x, 0, 0);
            if (n > 2) append(x, 0, 1);
            OK(cr_device_open(cr_device_default(), 1, &dev, &err));
            OK(cr_mesh_shape_init(&shape, n, n, 1, 1, 0, &err));
            OK(cr_mesh_create(world, dev, "reference", ranks, &shape, &mesh, &err));
            OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
            for (int again = 0; again < 3; again++) /* the order of gathers is known from then on */
                OK(cr_fsdp_forward(f, me == n - 1 && n == 4 ? NULL : &x->b,
                                   &(cr_outputs){{log_prob, entropy}}, &err));
            if (n == 1) memcpy(first, log_prob, sizeof first);
            CR_CHECK(me != 0 || memcmp(first, log_prob, (size_t)num * sizeof(float)) == 0,
                     "log-probs on %d ranks", n);
            cr_fsdp_destroy(f);
            cr_mesh_destroy(mesh);
            cr_device_close(dev);
        }
        cr_model_free(model);
        cr_free(x);
        OK(cr_barrier(everyone, "forward", &err));
    }
}

/* Frozen parameters keep their values, have no gradient, and the others train as without freezing. */
static void test_c16_frozen(void)
{
    plan p = usual;
    result one, two;

    p.name = "frozen";
    p.frozen = "model.embed_tokens,model.layers.0.,model.layers.1.mlp";
    p.save = "frozen-1";
    one = train(p);
    p.ranks = 2;
    p.save = "frozen-2";
    two = train(p);
    if (me == 0)
        CR_CHECK(distance(two.grad, one.grad, one.num_grad) <= grad_tol &&
                     one.num_grad == two.num_grad,
                 "gradients with frozen parameters");
    cr_free(one.grad);
    cr_free(two.grad);
}

/* The base is gathered and not reduced (the traffic of each step is that of the formulas), A and B train as on one rank. */
static void test_adapters(void)
{
    const plan plans[] = {
        {.name = "adapters", .ranks = 1},
        {.name = "adapters, 2 ranks", .ranks = 2},
        {.name = "adapters, hsdp", .ranks = 4, .fsdp = 2, .is_recomputed_off = true},
        {.name = "adapters, parts", .ranks = 4, .wrap = parts},
        {.name = "dropout", .ranks = 1, .dropout = 0.3, .is_recomputed_off = true},
        {.name = "dropout, 2 ranks", .ranks = 2, .dropout = 0.3},
        {.name = "dropout, hsdp", .ranks = 4, .fsdp = 2, .dropout = 0.3},
    };
    enum { DROPPED = 4 };
    result want = {0};

    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i];
        result got;
        p.adapters = "all-linear";
        p.num_seqs = usual.num_seqs;
        p.micro = usual.micro;
        p.last = usual.last;
        p.inf_step = -1;
        got = train(p);
        if (i == DROPPED && me == 0)
            CR_CHECK(distance(got.grad, want.grad, want.num_grad) > 0.05,
                     "dropout changes nothing");
        if (i == DROPPED) cr_free(want.grad);
        if (i == 0 || i == DROPPED) want = got;
        if (me == 0)
            CR_CHECK(got.num_grad == want.num_grad &&
                         distance(got.grad, want.grad, want.num_grad) <= grad_tol,
                     "%s: gradient off by %.3g", p.name,
                     distance(got.grad, want.grad, want.num_grad));
        for (int s = 0; s < usual.last && me == 0; s++)
            CR_CHECK(fabs(got.norm[s] - want.norm[s]) <= 1e-5 * want.norm[s],
                     "%s: step %d: norm %.9g, want %.9g", p.name, s, got.norm[s], want.norm[s]);
        if (i > 0 && i != DROPPED) cr_free(got.grad);
    }
    CR_CHECK(me != 0 || want.num_grad == 3 * 3 * 384, "%zu elements have gradients", want.num_grad);
    cr_free(want.grad);
}

/* More ranks than sequences; then a tied model. */
static void test_c19_c52_few_sequences(void)
{
    plan p = usual;
    result one, four;

    for (int is_tied = 0; is_tied < 2; is_tied++) {
        p.name = "few sequences";
        p.is_tied = is_tied;
        p.num_seqs = 2;
        p.micro = 1;
        p.ranks = 1;
        one = train(p);
        p.ranks = 4;
        four = train(p);
        if (me == 0)
            CR_CHECK(distance(four.grad, one.grad, one.num_grad) <= grad_tol,
                     "tied %d: off by %.3g", is_tied, distance(four.grad, one.grad, one.num_grad));
        cr_free(one.grad);
        cr_free(four.grad);
    }
}

/* 3 layers, the embedding and the root, 3 micro-batches a step on each of 2 ranks: bytes are those of the
 * padded units, by hand. tests/mesh/traffic.c has the other settings. */
static void test_c8_counts(void)
{
    plan p = usual;
    result r;

    p.name = "counts";
    p.ranks = 2;
    p.micro = 1;
    p.dtype = CR_BF16;
    r = train(p);
    cr_free(r.grad);
    if (me == 0) { /* products, then 2 norms of 24 and 2 of 8, each padded to 32; flats to 64 */
        uint64_t layer = 24 * (32 + 16 + 16 + 32 + 3 * 40) + 4 * 32, table = 24 * VOCAB;
        layer = (layer + 63) / 64 * 64;
        uint64_t embed = (table + 63) / 64 * 64,
                 root = ((table + 31) / 32 * 32 + 32 + 63) / 64 * 64;
        CR_CHECK(r.gathers.num == 3 * 2 * 3 + 3 + 1 && r.reduces.num == 5 * 3,
                 "%llu gathers, %llu reductions", (unsigned long long)r.gathers.num,
                 (unsigned long long)r.reduces.num);
        CR_CHECK(r.gathers.num_bytes == 2 * (18 * layer + 3 * embed + root),
                 "%llu bytes gathered, want %llu", (unsigned long long)r.gathers.num_bytes,
                 (unsigned long long)(2 * (18 * layer + 3 * embed + root)));
        CR_CHECK(r.reduces.num_bytes == 3 * 4 * (3 * layer + embed + root), "%llu bytes reduced",
                 (unsigned long long)r.reduces.num_bytes);
    }
}

/* Ranks 0 and 1 train as shards or as replicas, 2 and 3 receive; every value is the master rounded. */
static void test_c44_sync(cr_dtype dtype, int num_ddp, bool is_mixed, bool is_offloaded)
{
    plan p = usual;
    int senders[2] = {0, 1}, all[RANKS] = {0, 1, 2, 3};
    cr_mesh_shape shape;
    cr_device *dev;
    cr_model *model;
    cr_group *group;

    if (is_mixed) p.fp32[0] = "model.layers.1.mlp", p.frozen = "model.layers.1.mlp.up_proj";
    model = make_model(&p);
    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    OK(cr_group_create(world, dev, "weight sync", all, RANKS, &group, &err));
    OK(cr_mesh_shape_init(&shape, 2, 2, 1, 1, 0, &err));
    shape.num_ddp = num_ddp;
    shape.num_fsdp = 2 / num_ddp;
    if (me < 2) {
        cr_fsdp_args args = {.is_train = true, .seed = 11, .is_offloaded = is_offloaded};
        cr_mesh *mesh;
        cr_fsdp *f;
        OK(cr_mesh_create(world, dev, "actor_train", senders, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        OK(cr_weight_sync_send(f, group, dtype, &err));
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
    } else {
        cr_weight_copy *replica;
        OK(cr_weight_copy_create(model, dev, dtype, &replica, &err));
        CR_CHECK(cr_weight_copy_version(replica) == -1, "version");
        OK(cr_weight_sync_receive(replica, group, &err));
        CR_CHECK(cr_weight_copy_version(replica) == 0, "version");
        for (size_t i = 0; i < model->num_params; i++) {
            cr_param *q = model->params[i];
            cr_dtype own = q->is_fp32 ? CR_F32 : dtype;
            size_t n = (size_t)q->num_elems, bytes = cr_dtype_bytes(own);
            float *want = CR_NEW_ARRAY(float, n);
            char *rounded = cr_alloc(n * bytes), *got = downloaded(dev, q->weight.data, n * bytes);
            cr_param_init(model, q, 11, 0, q->num_elems, want);
            cr_cast_host(own, rounded, CR_F32, want, n);
            CR_CHECK(q->weight.dtype == own && memcmp(rounded, got, n * bytes) == 0,
                     "%s arrived otherwise", q->name);
            cr_free(want);
            cr_free(rounded);
            cr_free(got);
        }
        cr_weight_copy_destroy(replica);
    }
    OK(cr_barrier(everyone, "sync", &err));
    cr_group_destroy(group);
    cr_model_free(model);
    cr_device_close(dev);
}

static double of_all(double mine)
{
    OK(cr_all_reduce_f64(everyone, "bytes", CR_OP_SUM, &mine, 1, &err));
    return mine;
}

/* Two receivers on another host than the senders: a shard comes there once, and has the same bits on both. */
static void test_sync_once_a_host(int num_ddp)
{
    static const int one[] = {0, 0, 0, 0}, two[] = {0, 0, 2, 2};
    const cr_link_call sizes = {CR_COLL_GATHER_BYTES, RANKS * 2 * RANKS * 16, 0};
    const cr_link_count exchange = cr_link_into_host(two, RANKS, sizes, 0);
    bool is_nccl = strcmp(cr_device_default(), "cuda") == 0; /* what it brings is not counted */
    double sent[2], received = 0, want;
    int real[RANKS];

    memcpy(real, world->host_of, sizeof real);
    if (cr_world_spans_hosts(world)) return; /* pretended here */
    for (int k = 0; k < 2; k++) {
        cr_flight_count before = cr_flight_get_count(world, CR_COLL_TRANSFER), now;
        memcpy(world->host_of, k ? two : one, sizeof real);
        test_c44_sync(CR_BF16, num_ddp, true, false);
        now = cr_flight_get_count(world, CR_COLL_TRANSFER);
        memcpy(world->host_of, real, sizeof real);
        sent[k] = of_all(me < 2 ? (double)(now.num_bytes - before.num_bytes) : 0);
        received = of_all(me < 2 ? 0 : (double)(now.received_bytes - before.received_bytes));
    }
    CR_CHECK(sent[0] > 10000 && sent[0] == 2 * sent[1], "senders send %g bytes, on one host %g",
             sent[1], sent[0]);
    want = (is_nccl ? 0 : sent[1]) + 2 * (double)exchange.num_bytes;
    CR_CHECK(received == want, "%g bytes come to the receivers' host, want %g", received, want);
}

static uint32_t *moment_bits(const cr_fsdp *f)
{
    return downloaded(f->dev, cr_mem_add_const(f->v, 77 * sizeof(uint32_t)), sizeof(uint32_t));
}

/* One bit of one replica is wrong: it is found and named, and repaired when asked. */
static void test_c43_replicas(void)
{
    cr_fsdp_args args = {.is_train = true, .seed = 11};
    int ranks[RANKS] = {0, 1, 2, 3};
    cr_mesh_shape shape;
    cr_device *dev;
    cr_model *model = make_model(&usual);
    cr_mesh *mesh;
    cr_fsdp *f;
    uint32_t *bits;

    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    OK(cr_mesh_shape_init(&shape, RANKS, 2, 1, 1, 0, &err));
    OK(cr_mesh_create(world, dev, "actor_train", ranks, &shape, &mesh, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    OK(cr_fsdp_check_replicas(f, false, &err));
    bits = moment_bits(f);
    *bits ^= me == 3;
    OK(cr_upload(dev, cr_mem_add(f->v, 77 * sizeof *bits), bits, sizeof *bits, &err));
    cr_free(bits);
    CR_CHECK(cr_fsdp_check_replicas(f, false, &err) == CR_EPEER, "nothing was found");
    CR_CHECK(strstr(err.msg, "second moments of rank 3"), "%s", err.msg);
    err = (cr_err){0};
    OK(cr_fsdp_check_replicas(f, true, &err));
    bits = moment_bits(f);
    CR_CHECK(*bits == 0, "not repaired");
    cr_free(bits);
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_model_free(model);
    cr_device_close(dev);
}

int main(void)
{
    open_world();
    test_c5_c6_c26_cuts();
    test_repeat();
    test_c46_c47_resume();
    test_c46_frozen_later();
    test_c46_private_folders();
    test_c46_private_frozen();
    test_c49_background_save();
    test_c22_skip();
    test_c21_clip();
    test_forward(CR_F32);
    test_forward(CR_BF16);
    test_c16_frozen();
    test_adapters();
    test_c19_c52_few_sequences();
    test_c8_counts();
    for (int num_ddp = 1; num_ddp <= 2; num_ddp++) {
        test_c44_sync(CR_BF16, num_ddp, false, false);
        test_c44_sync(CR_F32, num_ddp, false, false);
        test_c44_sync(CR_BF16, num_ddp, true, false);
        test_c44_sync(CR_BF16, num_ddp, true, true);
    }
    for (int num_ddp = 1; num_ddp <= 2; num_ddp++)
        test_sync_once_a_host(num_ddp);
    test_c43_replicas();
    close_world();
    return 0;
}
