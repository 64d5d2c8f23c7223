/* train.h -- a tiny model trained on some of the world's first ranks, as a plan says: shared by
 * strategies.c and modes.c. Every rank of the world calls train(); those outside wait at its end. */
#ifndef TRAIN_H
#define TRAIN_H

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
    int reshard_ranks;
    bool is_tied, is_recomputed_off, is_reduced_once, is_offloaded;
    cr_wrap_policy wrap;
    const char *frozen, *resume, *save; /* folders below `folder` */
    int first, last;                    /* steps */
    bool is_async;                      /* save before the last step, in the background */
    int inf_step; /* rank ranks-1 has an infinite gradient there; -1: nowhere */
    cr_dtype master;
    double loss_scale, lr;                       /* lr 0: 2e-3 and 3e-3 in turn */
    enum { ONCE, LAYER_THRICE, BRANCHES } calls; /* which layers run: see choose_layers */
    bool is_cycled; /* between micro-batches and steps all states go to the host and back */
} plan;

/* What the formulas of traffic need to know of a unit. */
typedef struct cr_unit_size {
    int64_t trained, frozen, shard; /* padded elements; of the trained shard */
    bool is_embedding;
    int layer;
} cr_unit_size;

typedef struct result {
    double loss[STEPS], norm[STEPS];
    double loss_scale[STEPS];
    bool is_skipped[STEPS];
    cr_flight_count gathers, reduces; /* of the last step, rank 0 */
    cr_traffic traffic;               /* of the last step */
    cr_fsdp_stats stats;              /* at the end */
    cr_unit_size units[40];           /* rank 0 */
    size_t num_units;
    int64_t num_micro; /* of the last step */
    float *grad;       /* of the first step, in the order of the model's parameters (rank 0) */
    size_t num_grad;
    const cr_model *model;
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

/* LAYER_THRICE: the first layer is called in the place of all. BRANCHES: sequences of even and of odd
 * number go through different layers (micro-batches are one sequence then). */
static void choose_layers(const plan *p, cr_model *model, cr_module *const *layers, int64_t seq)
{
    for (int i = 0; i < 3; i++)
        model->layers[i] = p->calls == ONCE           ? layers[i]
                           : p->calls == LAYER_THRICE ? layers[0]
                                                      : layers[i == 2 ? 2 : seq % 2];
}

static void cycle(cr_fsdp *f, unsigned states)
{
    size_t here = cr_device_get_stats(f->dev).bytes_now,
           there = cr_device_get_stats(f->host).bytes_now;

    OK(cr_fsdp_offload(f, states, &err));
    OK(cr_fsdp_offload(f, states, &err)); /* nothing is left to move */
    OK(cr_fsdp_load(f, states, &err));
    CR_CHECK(cr_device_get_stats(f->dev).bytes_now <= here && /* scratch is made again when used */
                 cr_device_get_stats(f->host).bytes_now == there,
             "%zu bytes of %zu on the device, %zu of %zu on the host",
             cr_device_get_stats(f->dev).bytes_now, here, cr_device_get_stats(f->host).bytes_now,
             there);
}

static void step_grads(const plan *p, cr_fsdp *f, int rank, int step, loss_ctx *l, result *r)
{
    batch *x = CR_NEW(batch);
    int64_t mine = 0, next = rank;
    cr_module *layers[3];

    memcpy(layers, f->model->layers, sizeof layers);
    for (int i = 0; i < p->num_seqs; i++) {
        x->b = (cr_batch){0};
        l->total += append(x, step, i);
    }
    for (int i = rank; i < p->num_seqs; i += p->ranks)
        mine++;
    OK(cr_fsdp_agree_num(f, (mine + p->micro - 1) / p->micro, &r->num_micro, &err));
    for (int64_t m = 0; m < r->num_micro; m++) {
        x->b = (cr_batch){0};
        choose_layers(p, f->model, layers, next);
        for (int k = 0; k < p->micro && next < p->num_seqs; k++, next += p->ranks)
            append(x, step, (int)next);
        if (p->is_cycled && m == 1) cycle(f, CR_STATE_MOMENTS);
        OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, loss, l, &err));
        if (p->is_cycled) cycle(f, p->is_reduced_once ? 15 - CR_STATE_BUFFERS : CR_STATE_ALL);
        if (p->calls != ONCE) { /* a pass without gradient in between changes nothing */
            static float log_prob[MAX_SEQS * MAX_LEN], entropy[MAX_SEQS * MAX_LEN];
            OK(cr_fsdp_forward(f, x->b.num_seqs ? &x->b : NULL, &(cr_model_out){log_prob, entropy},
                               &err));
        }
    }
    memcpy(f->model->layers, layers, sizeof layers);
    cr_free(x);
}

static cr_status keep_grad(void *ctx, const cr_param *param, const float *grad, cr_err *e)
{
    result *r = ctx;
    size_t at = 0;

    (void)e;
    r->num_grad = 0;
    for (size_t i = 0; i < r->model->num_params; i++) {
        const cr_param *p = r->model->params[i];
        if (p == param) at = r->num_grad;
        r->num_grad += p->is_trainable ? (size_t)p->num_elems : 0;
    }
    if (!r->grad) r->grad = CR_NEW_ARRAY(float, r->num_grad);
    memcpy(r->grad + at, grad, (size_t)param->num_elems * sizeof(float));
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

static void subtract(cr_traffic_count *a, const cr_traffic_count *b)
{
    a->num -= b->num;
    a->num_bytes -= b->num_bytes;
}

static void measure_units(const cr_fsdp *f, result *r)
{
    r->num_units = f->units.num;
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_unit *u = &f->units.unit[i];
        r->units[i] =
            (cr_unit_size){u->trained.padded_elems, u->frozen.padded_elems, u->trained.shard_elems,
                           strcmp(u->module->cls, "Embedding") == 0, u->module->layer};
    }
}

static void train_steps(const plan *p, cr_fsdp *f, int rank, result *r)
{
    for (int s = p->first; s < p->last; s++) {
        cr_flight_count gathers = cr_flight_get_count(world, CR_COLL_ALL_GATHER),
                        reduces = cr_flight_get_count(world, CR_COLL_REDUCE_SCATTER);
        loss_ctx l = {.is_inf = s == p->inf_step && rank == p->ranks - 1};
        cr_traffic traffic;
        cr_update update;
        if (p->is_async && s == p->last - 1) {
            char *path = path_of("background");
            save(f, "now");
            OK(cr_fsdp_save_start(f, path, "actor_train", folder, false, &err));
            cr_free(path);
        }
        traffic = cr_fsdp_get_stats(f).traffic;
        step_grads(p, f, rank, s, &l, r);
        OK(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "loss", CR_OP_SUM, &l.sum, 1, &err));
        if (s == p->first && p->first == 0 && p->inf_step < 0) {
            double norm;
            OK(cr_fsdp_visit_grads(f, keep_grad, r, &norm, &err));
        }
        OK(cr_fsdp_update(f, p->lr > 0 ? p->lr : s % 2 ? 3e-3 : 2e-3, &update, &err));
        r->loss_scale[s] = update.loss_scale;
        r->traffic = cr_fsdp_get_stats(f).traffic;
        subtract(&r->traffic.gathers, &traffic.gathers);
        subtract(&r->traffic.reduces, &traffic.reduces);
        subtract(&r->traffic.all_reduces, &traffic.all_reduces);
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
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = p.dtype,
                         .reduce_dtype = p.reduce,
                         .reshard = p.reshard,
                         .reshard_ranks = p.reshard_ranks,
                         .is_reduced_once = p.is_reduced_once,
                         .is_offloaded = p.is_offloaded,
                         .master_dtype = p.master,
                         .loss_scale = p.loss_scale,
                         .loss_scale_interval = 2,
                         .wrap = p.wrap,
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
        r.model = model;
        measure_units(f, &r);
        train_steps(&p, f, me, &r);
        r.stats = cr_fsdp_get_stats(f);
        if (p.master == CR_F32) check_padding(f);
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

static const char *const part_classes[] = {"Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm"};
static const char *const outer_classes[] = {"Qwen3Model", "Qwen3DecoderLayer"};
static const cr_wrap_policy parts = {part_classes, 3, true, true, .is_nested = true},
                            outer = {outer_classes, 2, false, true, .is_nested = true},
                            model_only = {outer_classes, 1, false, false, .is_nested = true},
                            by_size = {.min_elems = 2000};

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

static void open_world(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    int ranks[RANKS] = {0, 1, 2, 3};

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    CR_CHECK(cr_world_num_ranks(world) == RANKS, "needs %d ranks", RANKS);
    OK(cr_group_create(world, "everyone", ranks, RANKS, &everyone, &err));
    make_folder();
}

static void close_world(void)
{
    OK(cr_barrier(everyone, "end", &err));
    if (me == 0) OK(cr_remove_tree(folder, &err));
    if (me == 0) printf("ok\n");
    cr_group_destroy(everyone);
    cr_world_close(world);
}

/* Gradients are sums of about 60 rows; in another order they differ by at most sqrt(60) ulp = 5e-7 of
 * their size (measured 1.3e-7). AdamW divides small gradients by themselves, so an update of 4 steps
 * differs by more (measured 1.5e-6). */
static const double grad_tol = 5e-7, update_tol = 1e-5;

#endif
