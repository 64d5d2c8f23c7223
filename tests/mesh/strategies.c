/* strategies.c -- a tiny model trained on 1, 2 and 4 ranks: however model and batch are cut, the
 * gradient and the trajectory are the same, repeats are the same bits, and a checkpoint resumes on any
 * mesh. Worlds smaller than 4 are its first ranks; the others wait at the barrier between plans.
 * Not covered: several hosts, devices other than cpu, models that do not fit one rank, kill -9 in a
 * save (unit test actors_checkpoint), parity with torch (accept/training.py).
 * // ranks: 4
 */
#include "base/rng.h"
#include "mesh/flight.h"
#include "strategies/fsdp_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)

enum { RANKS = 4, MAX_SEQS = 8, MAX_LEN = 17, VOCAB = 61, STEPS = 6 };

static cr_err err;
static cr_world *world;
static cr_group *everyone;
static int me;
static char folder[64];

/* ---- one training ---- */

typedef struct plan {
    const char *name;
    int ranks, fsdp, micro, num_seqs;
    cr_dtype dtype;
    cr_reduce_dtype reduce;
    cr_reshard reshard;
    bool is_tied, is_recomputed_off, has_units_of_parts, has_outer_units;
    const char *frozen, *resume, *save; /* folders below `folder` */
    int first, last;                    /* steps */
    bool is_async;                      /* save before the last step, in the background */
    int inf_step; /* rank ranks-1 has an infinite gradient there; -1: nowhere */
} plan;

typedef struct result {
    double loss[STEPS], norm[STEPS];
    bool is_skipped[STEPS];
    cr_flight_count gathers, reduces; /* of the last step, rank 0 */
    float *grad; /* of the first step, all parameters one after another (rank 0) */
    size_t num_grad;
} result;

static const plan usual = {.ranks = 1, .micro = 2, .num_seqs = 6, .last = 4, .inf_step = -1};

static cr_model *make_model(const plan *p)
{
    char text[700];
    json_t *json;
    cr_model *model;

    snprintf(text, sizeof text,
             "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":%d,"
             "\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":3,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
             "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
             "\"initializer_range\":0.1,\"tie_word_embeddings\":%s,\"torch_dtype\":\"float32\"}",
             VOCAB, p->is_tied ? "true" : "false");
    OK(cr_json_parse(text, strlen(text), "config", &json, &err));
    OK(cr_model_build(json, NULL, &model, &err));
    json_decref(json);
    OK(cr_model_freeze(model, p->frozen, &err));
    return model;
}

typedef struct batch {
    int32_t ids[MAX_SEQS * MAX_LEN], positions[MAX_SEQS * MAX_LEN], labels[MAX_SEQS * MAX_LEN],
        cu[MAX_SEQS + 1];
    cr_batch b;
} batch;

/* Sequence `seq` of a step is a function of both; its first 2 rows have no label. Returns labels. */
static int append(batch *x, int step, int seq)
{
    uint32_t w[4];
    int num, n = (int)x->b.num_tokens, labels = 0;

    cr_rng_philox(5, CR_RNG_TEST, (uint64_t)step, (uint64_t)seq * 1000, w);
    num = 3 + (int)(w[0] % (MAX_LEN - 2));
    for (int t = 0; t < num; t++) {
        cr_rng_philox(5, CR_RNG_TEST, (uint64_t)step, (uint64_t)(seq * 1000 + t + 1), w);
        x->ids[n + t] = (int32_t)(w[0] % VOCAB);
        x->positions[n + t] = t;
        x->labels[n + t] = -1;
        if (t > 2) x->labels[n + t - 1] = x->ids[n + t], labels++;
    }
    x->cu[0] = 0;
    x->cu[x->b.num_seqs + 1] = n + num;
    x->b = (cr_batch){x->ids, x->positions, x->labels, x->cu, n + num, x->b.num_seqs + 1};
    return labels;
}

typedef struct loss_ctx {
    double sum, total; /* total: labels of all ranks */
    bool is_inf;
} loss_ctx;

/* Cross entropy and a little entropy, so that both gradients are there. */
static cr_status loss(void *ctx, const float *log_prob, const float *entropy, size_t num,
                      float *grad_log_prob, float *grad_entropy, cr_err *e)
{
    loss_ctx *l = ctx;

    (void)e;
    for (size_t i = 0; i < num; i++) {
        l->sum -= ((double)log_prob[i] + 0.1 * (double)entropy[i]) / l->total;
        grad_log_prob[i] = l->is_inf ? INFINITY : (float)(-1 / l->total);
        grad_entropy[i] = (float)(-0.1 / l->total);
    }
    return CR_OK;
}

static void step_grads(const plan *p, cr_fsdp *f, int rank, int step, loss_ctx *l)
{
    batch *x = CR_NEW(batch);
    int64_t mine = 0, most, next = rank;

    for (int i = 0; i < p->num_seqs; i++) {
        x->b = (cr_batch){0};
        l->total += append(x, step, i);
    }
    for (int i = rank; i < p->num_seqs; i += p->ranks)
        mine++;
    OK(cr_fsdp_agree_num(f, (mine + p->micro - 1) / p->micro, &most, &err));
    for (int64_t m = 0; m < most; m++) {
        x->b = (cr_batch){0};
        for (int k = 0; k < p->micro && next < p->num_seqs; k++, next += p->ranks)
            append(x, step, (int)next);
        OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, loss, l, &err));
    }
    cr_free(x);
}

static cr_status keep_grad(void *ctx, const cr_param *param, const float *grad, cr_err *e)
{
    result *r = ctx;
    size_t old = r->num_grad * sizeof(float), bytes = (size_t)param->num_elems * sizeof(float);

    (void)e;
    r->grad = cr_realloc(r->grad, old, old + bytes);
    memcpy(r->grad + r->num_grad, grad, bytes);
    r->num_grad += (size_t)param->num_elems;
    return CR_OK;
}

static void check_padding(const cr_fsdp *f)
{
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].trained;
        bool *is_used = CR_NEW_ARRAY(bool, flat->shard_elems);
        int64_t begin, end, at;
        for (size_t k = 0; k < flat->num_params; k++)
            if (cri_shard_range(flat, k, cri_rank(f), &begin, &end, &at))
                memset(is_used + at, 1, (size_t)(end - begin));
        for (int64_t e = 0; e < flat->shard_elems; e++)
            CR_CHECK(is_used[e] ||
                         (((float *)f->master)[flat->first + e] == 0 &&
                          ((float *)f->m)[flat->first + e] == 0 &&
                          ((float *)f->v)[flat->first + e] == 0 && f->grad[flat->first + e] == 0),
                     "padding of %s is not zero", f->units.unit[i].name);
        cr_free(is_used);
    }
}

static char *path_of(const char *name)
{
    return cr_asprintf("%s/%s", folder, name);
}

static void save(cr_fsdp *f, const char *name)
{
    char *path = path_of(name);

    OK(cr_fsdp_save(f, path, "actor_train", folder, false, &err));
    cr_free(path);
}

static void train_steps(const plan *p, cr_fsdp *f, int rank, result *r)
{
    for (int s = p->first; s < p->last; s++) {
        cr_flight_count gathers = cr_flight_get_count(world, CR_COLL_ALL_GATHER),
                        reduces = cr_flight_get_count(world, CR_COLL_REDUCE_SCATTER);
        loss_ctx l = {.is_inf = s == p->inf_step && rank == p->ranks - 1};
        cr_update update;
        if (p->is_async && s == p->last - 1) {
            char *path = path_of("background");
            save(f, "now");
            OK(cr_fsdp_save_start(f, path, "actor_train", folder, false, &err));
            cr_free(path);
        }
        step_grads(p, f, rank, s, &l);
        OK(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "loss", CR_OP_SUM, &l.sum, 1, &err));
        if (s == p->first && p->first == 0 && p->inf_step < 0) {
            double norm;
            OK(cr_fsdp_visit_grads(f, keep_grad, r, &norm, &err));
        }
        OK(cr_fsdp_update(f, s % 2 ? 3e-3 : 2e-3, &update, &err));
        r->loss[s] = l.sum;
        r->norm[s] = update.grad_norm;
        r->is_skipped[s] = update.is_skipped;
        r->gathers = cr_flight_get_count(world, CR_COLL_ALL_GATHER);
        r->reduces = cr_flight_get_count(world, CR_COLL_REDUCE_SCATTER);
        r->gathers.num -= gathers.num;
        r->gathers.num_bytes -= gathers.num_bytes;
        r->reduces.num -= reduces.num;
        r->reduces.num_bytes -= reduces.num_bytes;
    }
}

static result train(plan p)
{
    static const char *const parts[] = {"Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm"};
    static const char *const outer[] = {"Qwen3Model", "Qwen3DecoderLayer"};
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = p.dtype,
                         .reduce_dtype = p.reduce,
                         .reshard = p.reshard,
                         .should_recompute = !p.is_recomputed_off,
                         .seed = 11,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .max_grad_norm = 0.5};
    int ranks[RANKS] = {0, 1, 2, 3};
    cr_model *model = NULL;
    cr_device *dev = NULL;
    cr_mesh *mesh = NULL;
    cr_mesh_shape shape;
    cr_fsdp *f = NULL;
    result r = {0};

    if (p.fsdp == 0) p.fsdp = p.ranks;
    if (p.has_units_of_parts)
        args.wrap =
            (cr_wrap_policy){parts, 3, /*embeddings*/ true, /*lm_output*/ true, .is_nested = true};
    if (p.has_outer_units) args.wrap = (cr_wrap_policy){outer, 2, false, true, .is_nested = true};
    if (me < p.ranks) {
        OK(cr_device_open("cpu", 1, &dev, &err));
        model = make_model(&p);
        OK(cr_mesh_shape_init(&shape, p.ranks, p.fsdp, 1, 1, 0, &err));
        OK(cr_mesh_create(world, "actor_train", ranks, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        if (p.resume) {
            char *path = path_of(p.resume);
            OK(cr_fsdp_resume(f, path, "actor_train", &err));
            CR_CHECK(cr_fsdp_num_updates(f) == p.first, "%lld updates",
                     (long long)cr_fsdp_num_updates(f));
            cr_free(path);
        }
        train_steps(&p, f, me, &r);
        check_padding(f);
        if (p.is_async) OK(cr_fsdp_save_wait(f, &err));
        if (p.save) save(f, p.save);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_model_free(model);
        cr_device_close(dev);
    }
    OK(cr_barrier(everyone, p.name, &err));
    return r;
}

/* ---- comparing (rank 0) ---- */

static cr_buf read_state(const char *name, const char *file)
{
    char *path = cr_asprintf("%s/%s/%s", folder, name, file);
    cr_buf data = {0};

    OK(cr_file_read(path, &data, &err));
    cr_free(path);
    return data;
}

static void same_bytes(const char *a, const char *b)
{
    static const char *const files[] = {"state/actor_train.master", "state/actor_train.m",
                                        "state/actor_train.v", "state/actor_train.json",
                                        "actor_train/model.safetensors"};

    for (size_t i = 0; i < CR_COUNT(files) && me == 0; i++) {
        cr_buf x = read_state(a, files[i]), y = read_state(b, files[i]);
        CR_CHECK(x.num_bytes == y.num_bytes && memcmp(x.data, y.data, x.num_bytes) == 0,
                 "%s of %s and of %s differ", files[i], a, b);
        cr_buf_free(&x);
        cr_buf_free(&y);
    }
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, size_t num)
{
    double far = 0, size = 0;

    for (size_t i = 0; i < num; i++) {
        far += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(far / size);
}

/* Masters of a and b against the update that b made from `start`. */
static double update_distance(const char *a, const char *b, const char *start)
{
    cr_buf x = read_state(a, "state/actor_train.master"),
           y = read_state(b, "state/actor_train.master"),
           z = read_state(start, "state/actor_train.master");
    size_t num = x.num_bytes / sizeof(float);
    float *px = (float *)(void *)x.data, *py = (float *)(void *)y.data,
          *pz = (float *)(void *)z.data;
    double d;

    CR_CHECK(x.num_bytes == y.num_bytes && y.num_bytes == z.num_bytes, "sizes");
    for (size_t i = 0; i < num; i++)
        px[i] -= pz[i], py[i] -= pz[i];
    d = distance(px, py, num);
    cr_buf_free(&x);
    cr_buf_free(&y);
    cr_buf_free(&z);
    return d;
}

/* ---- tests ---- */

/* Gradients are sums of about 60 rows; in another order they differ by at most sqrt(60) ulp = 5e-7 of
 * their size (measured 1.3e-7). AdamW divides small gradients by themselves, so an update of 4 steps
 * differs by more (measured 1.5e-6). */
static const double grad_tol = 5e-7, update_tol = 1e-5;

static void test_cuts(void)
{
    plan plans[] = {
        {.name = "2 ranks", .ranks = 2},
        {.name = "4 ranks", .ranks = 4},
        {.name = "hsdp", .ranks = 4, .fsdp = 2},
        {.name = "micro 1", .ranks = 4, .micro = 1},
        {.name = "micro 6", .ranks = 1, .micro = 6},
        {.name = "reshard", .ranks = 2, .reshard = CR_RESHARD_ALWAYS},
        {.name = "no reshard", .ranks = 4, .reshard = CR_RESHARD_NEVER, .micro = 1},
        {.name = "no recompute", .ranks = 2, .is_recomputed_off = true},
        {.name = "parts", .ranks = 2, .has_units_of_parts = true},
        {.name = "parts, no recompute",
         .ranks = 4,
         .has_units_of_parts = true,
         .is_recomputed_off = true},
        {.name = "outer", .ranks = 2, .has_outer_units = true},
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
        /* other units are another order of parameters: their gradients are compared by the norm */
        if (got.num_grad && !p.has_units_of_parts && !p.has_outer_units) {
            double far = distance(got.grad, want.grad, want.num_grad);
            CR_CHECK(got.num_grad == want.num_grad && far <= grad_tol, "%s: gradient off by %.3g",
                     p.name, far);
        }
        if (!p.has_units_of_parts && !p.has_outer_units) {
            double far = update_distance("cut", "one", "start");
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

/* 4 steps = 2 steps, a checkpoint, 2 steps; and a checkpoint read and written on another mesh. */
static void test_resume(void)
{
    plan p = usual;

    p.name = "resume";
    p.ranks = 4;
    p.save = "whole";
    cr_free(train(p).grad);
    p.last = 2;
    p.save = "half";
    cr_free(train(p).grad);
    p.resume = "half";
    p.first = 2;
    p.last = 4;
    p.save = "rest";
    train(p);
    same_bytes("whole", "rest");
    for (int ranks = 1; ranks <= 4; ranks++) {
        p.ranks = ranks;
        p.fsdp = ranks == 3 ? 2 : 0; /* hsdp (2, 2) in the place of 3 */
        if (ranks == 3) p.ranks = 4;
        p.first = p.last = 2;
        p.save = "again";
        train(p);
        same_bytes("half", "again");
    }
}

static void test_background_save(void)
{
    plan p = usual;

    p.name = "background";
    p.ranks = 2;
    p.is_async = true;
    cr_free(train(p).grad);
    same_bytes("now", "background");
}

static void test_skip(void)
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
static void test_clip(void)
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
            OK(cr_device_open("cpu", 1, &dev, &err));
            OK(cr_mesh_shape_init(&shape, n, n, 1, 1, 0, &err));
            OK(cr_mesh_create(world, "reference", ranks, &shape, &mesh, &err));
            OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
            for (int again = 0; again < 3; again++) /* the order of gathers is known from then on */
                OK(cr_fsdp_forward(f, me == n - 1 && n == 4 ? NULL : &x->b,
                                   &(cr_model_out){log_prob, entropy}, &err));
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
static void test_frozen(void)
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

/* More ranks than sequences; then a tied model. */
static void test_few_sequences(void)
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
static void test_counts(void)
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

/* Ranks 0 and 1 train, 2 and 3 receive; every value is the master rounded. */
static void test_sync(cr_dtype dtype)
{
    int senders[2] = {0, 1}, receivers[2] = {2, 3};
    cr_wrap_policy policy = {0};
    cr_model *model = make_model(&usual);
    cr_mesh_shape shape;
    cr_device *dev;

    OK(cr_device_open("cpu", 1, &dev, &err));
    OK(cr_mesh_shape_init(&shape, 2, 2, 1, 1, 0, &err));
    if (me < 2) {
        cr_fsdp_args args = {.is_train = true, .seed = 11};
        cr_mesh *mesh;
        cr_fsdp *f;
        OK(cr_mesh_create(world, "actor_train", senders, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        OK(cr_weight_sync_send(f, world, receivers, 2, dtype, &err));
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
    } else {
        cr_replica *replica;
        OK(cr_replica_create(model, dev, &policy, 2, dtype, &replica, &err));
        CR_CHECK(cr_replica_version(replica) == -1, "version");
        OK(cr_weight_sync_receive(replica, world, senders, &shape, me - 2, &err));
        CR_CHECK(cr_replica_version(replica) == 0, "version");
        for (size_t i = 0; i < model->num_params; i++) {
            cr_param *p = model->params[i];
            size_t n = (size_t)p->num_elems, bytes = cr_dtype_bytes(dtype);
            float *want = CR_NEW_ARRAY(float, n);
            char *rounded = cr_alloc(n * bytes);
            cr_param_init(model, p, 11, 0, p->num_elems, want);
            OK(cr_cast(dev, dtype, rounded, CR_F32, want, n, &err));
            CR_CHECK(memcmp(rounded, p->weight.data, n * bytes) == 0, "%s arrived otherwise",
                     p->name);
            cr_free(want);
            cr_free(rounded);
        }
        cr_replica_destroy(replica);
    }
    OK(cr_barrier(everyone, "sync", &err));
    cr_model_free(model);
    cr_device_close(dev);
}

static void make_folder(void)
{
    char *config = NULL;

    snprintf(folder, sizeof folder, "/tmp/croll-strategies-XXXXXX");
    if (me == 0) CR_CHECK(mkdtemp(folder), "mkdtemp");
    OK(cr_broadcast(everyone, "folder", 0, folder, sizeof folder, &err));
    config = path_of("config.json");
    if (me == 0) OK(cr_file_write_atomic(config, "{\"torch_dtype\": \"float32\"}", 26, &err));
    cr_free(config);
    OK(cr_barrier(everyone, "folder", &err));
}

int main(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    int ranks[RANKS] = {0, 1, 2, 3};

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    CR_CHECK(cr_world_num_ranks(world) == RANKS, "needs %d ranks", RANKS);
    OK(cr_group_create(world, "everyone", ranks, RANKS, &everyone, &err));
    make_folder();
    test_cuts();
    test_repeat();
    test_resume();
    test_background_save();
    test_skip();
    test_clip();
    test_forward(CR_F32);
    test_forward(CR_BF16);
    test_frozen();
    test_few_sequences();
    test_counts();
    test_sync(CR_BF16);
    test_sync(CR_F32);
    OK(cr_barrier(everyone, "end", &err));
    if (me == 0) OK(cr_remove_tree(folder, &err));
    if (me == 0) printf("ok\n");
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
