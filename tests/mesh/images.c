/* images.c -- batches with images and videos on several ranks (C39): a rank with text alone beside one with
 * images, images beside images and videos, ranks without a batch, deepstack of two sequences under sequence
 * parallel; towers frozen, trained in float32 among 16-bit modules, projectors trained alone. Gradients against a
 * model without units that is given everything at once; the tower's units meet on every rank, or none.
 * Not covered: what a tower computes (unit/models_vision.c), real images.
 * // ranks: 4
 * // also on far
 * // also on cuda, long
 */
#include "models/vision/vision.h"
#include "tests/memory.h"
#include "tests/mesh/train_files.h"
#include "tests/vl_keys.h"

enum { SEQS = 6, MAX_NUM = 400, PATCHES = 400, PIXELS = 96, IMAGE = 90, VIDEO = 91, START = 92 };

static const char *const families[] = {
    "{\"model_type\":\"qwen2_5_vl\",\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"]," IDS
    ",\"text_config\":{\"model_type\":\"qwen2_5_vl_text\"," TEXT MROPE
    "},\"vision_config\":{\"model_type\":\"qwen2_5_vl_vision\"," VISION
    ",\"window_size\":16,\"fullatt_block_indexes\":[1],\"tokens_per_second\":2}}",
    "{\"model_type\":\"qwen3_vl\",\"architectures\":[\"Qwen3VLForConditionalGeneration\"]," IDS
    ",\"text_config\":{" TEXT MROPE "},\"vision_config\":{" VISION
    ",\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}",
    "{\"model_type\":\"qwen3_vl_moe\",\"architectures\":[\"Qwen3VLMoeForConditionalGeneration\"]"
    "," IDS ",\"text_config\":{" TEXT MROPE ",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_"
    "intermediate_size\":24},\"vision_config\":{" VISION
    ",\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}"};
enum { FAMILIES = 3, DENSE = 2 };

/* ---- batches ---- */

/* What the sequences of a step have, in turn. */
typedef enum content { NOTHING, ONE_IMAGE, TWO_IMAGES, ONE_VIDEO, BOTH } content;

typedef struct batch_vl {
    int32_t ids[MAX_NUM], positions[MAX_NUM], labels[MAX_NUM], cu[SEQS + 1], mrope[3 * MAX_NUM];
    int32_t grid[2 * SEQS][3];
    float second[2 * SEQS];
    float pixels[PATCHES * PIXELS];
    cr_vision_input vision;
    cr_batch b;
} batch_vl;

static void put(batch_vl *x, int32_t id)
{
    int64_t t = x->b.num_tokens++;

    CR_CHECK(t < MAX_NUM, "tokens");
    x->ids[t] = id;
    x->positions[t] = (int32_t)(t - x->cu[x->b.num_seqs]);
    x->labels[t] = -1;
    /* rows of images and what comes after them have labels, too */
    if (x->positions[t] > 1) x->labels[t - 1] = id >= IMAGE ? x->positions[t] % 80 : id;
}

/* Frames of h x w patches; with is_framed each has its own run of placeholders. */
static void put_item(batch_vl *x, int seq, bool is_video, int frames, int h, int w, bool is_framed)
{
    cr_vision_input *v = &x->vision;
    int num = frames * h * w, runs = is_framed ? frames : 1;

    CR_CHECK(v->num_patches + num <= PATCHES, "patches");
    for (int64_t i = 0; i < num * PIXELS; i++)
        x->pixels[v->num_patches * PIXELS + i] =
            (float)cr_rng_normal(9, CR_RNG_TEST, (uint64_t)(seq * 100 + h), (uint64_t)i);
    x->grid[v->num_items][0] = frames;
    x->grid[v->num_items][1] = h;
    x->grid[v->num_items][2] = w;
    x->second[v->num_items++] = (float)is_video;
    v->num_patches += num;
    for (int r = 0; r < runs; r++) {
        put(x, START);
        for (int i = 0; i < num / 4 / runs; i++)
            put(x, is_video ? VIDEO : IMAGE);
        put(x, 93);
    }
}

static void put_sequence(batch_vl *x, const cr_model *model, int seq, content what)
{
    bool is_framed = model->config.vision->tokens_per_second == 0;

    for (int i = 0; i < 3 + seq; i++)
        put(x, (i * 7 + seq * 11) % 80);
    if (what == ONE_IMAGE || what == BOTH) put_item(x, seq, false, 1, 4, 6, is_framed);
    if (what == TWO_IMAGES) {
        put_item(x, seq, false, 1, 4, 4, is_framed);
        put(x, 5);
        put_item(x, seq, false, 1, 6, 2, is_framed);
    }
    put(x, 7);
    if (what == ONE_VIDEO || what == BOTH) put_item(x, seq, true, 2, 4, 4, is_framed);
    for (int i = 0; i < 5; i++)
        put(x, (i * 5 + seq * 3) % 80);
    x->cu[++x->b.num_seqs] = (int32_t)x->b.num_tokens;
    x->labels[x->b.num_tokens - 1] = -1;
}

static void finish(batch_vl *x, const cr_model *model)
{
    cr_vision_input *v = &x->vision;

    v->pixels = x->pixels;
    v->grid = (const int32_t(*)[3])x->grid;
    v->second_per_grid = x->second;
    x->b.ids = x->ids;
    x->b.positions = x->positions;
    x->b.labels = x->labels;
    x->b.cu_seqlens = x->cu;
    x->b.mrope = x->mrope;
    x->b.vision = v->num_items ? v : NULL;
    OK(cr_vision_positions(&model->config, &x->b, x->b.vision, x->mrope, &err));
}

static int num_labels(const batch_vl *x)
{
    int num = 0;

    for (int64_t t = 0; t < x->b.num_tokens; t++)
        num += x->labels[t] >= 0;
    return num;
}

/* ---- gradients ---- */

typedef struct setting {
    const char *name;
    content what[SEQS];
    int ranks, fsdp, ulysses, micro;
    const char *frozen, *stage;
    cr_dtype dtype;
    cr_reshard reshard;
    int reshard_ranks;
    bool is_recomputed, is_reduced_once, is_offloaded;
    double tol; /* 0: grad_tol */
} setting;

typedef struct grads {
    const cr_model *model;
    float *grad; /* in the order of the model's parameters (rank 0) */
    size_t num;
    double norm, of_tower; /* the share of the tower in the norm */
} grads;

typedef struct weighted {
    const batch_vl *x;
    double total;
    int seq, stride; /* the first sequence of the micro-batch, and to the next one */
} weighted;

/* Weights differ from row to row and depend on the sequence, not on who has it. */
static cr_status row_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                          cr_err *e)
{
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    float *grad_entropy = grad->of[CR_ENTROPY];
    const weighted *l = ctx;
    size_t i = 0;

    (void)out;
    (void)e;
    for (int64_t s = 0; s < l->x->b.num_seqs; s++)
        for (int32_t t = l->x->cu[s]; t < l->x->cu[s + 1]; t++) {
            int place = t - l->x->cu[s];
            if (l->x->labels[t] < 0) continue;
            grad_log_prob[i] = (float)(-(1 + 0.25 * (place % 7)) / l->total);
            grad_entropy[i++] = (float)(-0.1 / l->total);
        }
    CR_CHECK(i == num, "%zu labels of %zu", i, num);
    return CR_OK;
}

static cr_status keep(void *ctx, const cr_param *param, const float *grad, cr_err *e)
{
    grads *g = ctx;
    size_t at = 0;

    (void)e;
    g->num = 0;
    for (size_t i = 0; i < g->model->num_params; i++) {
        if (g->model->params[i] == param) at = g->num;
        g->num += g->model->params[i]->is_trainable ? (size_t)g->model->params[i]->num_elems : 0;
    }
    if (!g->grad) g->grad = CR_NEW_ARRAY(float, g->num);
    memcpy(g->grad + at, grad, (size_t)param->num_elems * sizeof(float));
    if (strstr(param->name, ".visual."))
        for (int64_t i = 0; i < param->num_elems; i++)
            g->of_tower += (double)grad[i] * (double)grad[i];
    return CR_OK;
}

static cr_model *open_model(const setting *s, const char *family)
{
    cr_model *model;

    OK(build_model(family, &model, &err));
    OK(s->stage ? cr_model_freeze_stage(model, s->stage, &err)
                : cr_model_freeze(model, s->frozen, &err));
    cr_model_set_precision(model);
    return model;
}

/* All sequences at once, without units. */
static grads at_once(const setting *s, const char *family)
{
    grads g = {0};
    batch_vl *x;
    cr_full_weights full;
    cr_model *model;
    cr_device *dev;
    cr_outputs out, grad;
    cr_pass pass;
    float *rows;
    size_t num;
    weighted l;

    if (me != 0) return g;
    x = CR_NEW(batch_vl);
    model = open_model(s, family);
    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    OK(cr_full_weights_init(&full, model, dev, s->dtype, NULL, 11, &err));
    OK(cr_full_weights_add_grads(&full, model, &err));
    cr_model_mark_trainable(model);
    for (int i = 0; i < SEQS; i++)
        put_sequence(x, model, i, s->what[i]);
    finish(x, model);
    num = (size_t)num_labels(x);
    l = (weighted){.x = x, .total = (double)num};
    rows = CR_NEW_ARRAY(float, 4 * num);
    pass = (cr_pass){.state = cr_pass_state_create(),
                     .dev = dev,
                     .dtype = s->dtype,
                     .tape = cr_stack_create(dev),
                     .scratch = cr_stack_create(dev),
                     .batch = &x->b};
    out = (cr_outputs){{rows, rows + num}};
    grad = (cr_outputs){{rows + 2 * num, rows + 3 * num}};
    OK(cr_model_forward(model, &pass, &out, &err));
    OK(row_loss(&l, &out, num, &grad, &err));
    OK(cr_model_backward(model, &pass, &grad, &err));
    g.model = model;
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *param = model->params[i];
        float *values;
        if (!param->is_trainable) continue;
        values = downloaded(dev, param->grad, (size_t)param->num_elems * sizeof *values);
        OK(keep(&g, param, values, &err));
        cr_free(values);
    }
    cr_stack_destroy(pass.tape);
    cr_stack_destroy(pass.scratch);
    cr_pass_state_destroy(pass.state);
    cr_full_weights_fini(&full);
    cr_model_free(model);
    cr_device_close(dev);
    cr_free(rows);
    cr_free(x);
    return g;
}

/* Sequences are distributed over the data-parallel ranks in turn. */
static grads on_ranks(const setting *s, const char *family)
{
    const cr_fsdp_args args = {.is_train = true,
                               .param_dtype = s->dtype,
                               .reshard = s->reshard,
                               .reshard_ranks = s->reshard_ranks,
                               .is_reduced_once = s->is_reduced_once,
                               .is_offloaded = s->is_offloaded,
                               .should_recompute = s->is_recomputed,
                               .seed = 11};
    int ranks[RANKS] = {0, 1, 2, 3}, micro = s->micro ? s->micro : 1;
    grads g = {0};

    if (me < s->ranks) {
        batch_vl *x = CR_NEW(batch_vl);
        cr_model *model = open_model(s, family);
        weighted l = {.x = x};
        cr_mesh_shape shape;
        cr_device *dev;
        cr_mesh *mesh;
        cr_fsdp *f;
        int64_t max;
        OK(cr_device_open(cr_device_default(), 1, &dev, &err));
        OK(cr_mesh_shape_init(&shape, s->ranks, s->fsdp, s->ulysses ? s->ulysses : 1, 1, 0, &err));
        OK(cr_mesh_create(world, dev, "images", ranks, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        for (int i = 0; i < SEQS; i++)
            put_sequence(x, model, i, s->what[i]);
        l.total = num_labels(x);
        int dp = cr_group_num_ranks(mesh->group[CR_AXIS_DP]),
            next = cr_group_rank(mesh->group[CR_AXIS_DP]);
        OK(cr_fsdp_agree_num(f, ((SEQS - next + dp - 1) / dp + micro - 1) / micro, &max, &err));
        for (int64_t m = 0; m < max; m++) {
            x->b = (cr_batch){0};
            x->vision = (cr_vision_input){0};
            for (int k = 0; k < micro && next < SEQS; k++, next += dp)
                put_sequence(x, model, next, s->what[next]);
            if (x->b.num_seqs) finish(x, model);
            OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, row_loss, &l, &err));
        }
        g.model = model;
        OK(cr_fsdp_visit_grads(f, keep, &g, &g.norm, &err));
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_model_free(model);
        cr_device_close(dev);
        cr_free(x);
    }
    OK(cr_barrier(everyone, s->name, &err));
    return g;
}

/* Distributed in turn: with two ranks the first has what stands at 0, 2, 4. */
#define TEXT_AND_IMAGES   NOTHING, ONE_IMAGE, NOTHING, TWO_IMAGES, NOTHING, ONE_IMAGE
#define IMAGES_AND_VIDEOS ONE_IMAGE, BOTH, TWO_IMAGES, ONE_VIDEO, ONE_IMAGE, BOTH
#define ONE_OF_ALL        NOTHING, NOTHING, NOTHING, NOTHING, BOTH, NOTHING

static void test_c39_images(void)
{
    static const char tower[] = "model.visual", low[] = "model.visual,model.language_model.embed";
    const setting settings[] = {
        {"one rank", {TEXT_AND_IMAGES}, 1, 1, .micro = 2},
        {"text and images", {TEXT_AND_IMAGES}, 2, 2},
        {"images and videos", {IMAGES_AND_VIDEOS}, 2, 2},
        {"one of all", {ONE_OF_ALL}, 4, 4},
        {"text alone", {NOTHING}, 2, 2},
        {"hsdp", {IMAGES_AND_VIDEOS}, 4, 2, .is_recomputed = true},
        {"always", {TEXT_AND_IMAGES}, 4, 4, .reshard = CR_RESHARD_ALWAYS, .is_recomputed = true},
        {"never", {TEXT_AND_IMAGES}, 2, 2, .reshard = CR_RESHARD_NEVER},
        {"to 2 ranks", {ONE_OF_ALL}, 4, 4, .reshard_ranks = 2, .is_recomputed = true},
        {"once", {TEXT_AND_IMAGES}, 4, 2, .is_reduced_once = true},
        {"ulysses", {TEXT_AND_IMAGES}, 2, 2, .ulysses = 2, .micro = 2},
        {"ulysses, all at once", {IMAGES_AND_VIDEOS}, 2, 2, .ulysses = 2, .micro = 6},
        {"ulysses, recompute",
         {IMAGES_AND_VIDEOS},
         4,
         4,
         .ulysses = 2,
         .micro = 2,
         .is_recomputed = true},
        {"ulysses, one of all", {ONE_OF_ALL}, 4, 2, .ulysses = 2},
        {"offload", {TEXT_AND_IMAGES}, 2, 2, .micro = 3, .is_offloaded = true},
        {"offload, one rank", {IMAGES_AND_VIDEOS}, 1, 1, .micro = 6, .is_offloaded = true},
        {"offload, hsdp", {IMAGES_AND_VIDEOS}, 4, 2, .is_offloaded = true, .is_recomputed = true},
        {"offload, ulysses",
         {ONE_OF_ALL},
         4,
         4,
         .ulysses = 2,
         .micro = 3,
         .is_offloaded = true,
         .is_recomputed = true},
        {"ddp", {TEXT_AND_IMAGES}, 4, 1, .micro = 2},
        {"ddp, ulysses", {TEXT_AND_IMAGES}, 4, 1, .ulysses = 2, .micro = 2, .is_recomputed = true},
        {"frozen tower", {TEXT_AND_IMAGES}, 2, 2, .frozen = tower},
        {"frozen below", {TEXT_AND_IMAGES}, 2, 2, .frozen = low},
        {"align", {TEXT_AND_IMAGES}, 2, 2, .stage = "align"},
        {"align, hsdp, ulysses",
         {IMAGES_AND_VIDEOS},
         4,
         2,
         .ulysses = 2,
         .stage = "align",
         .is_recomputed = true},
        {"sandwich", {ONE_OF_ALL}, 4, 4, .stage = "vla-sandwich-train"},
        {"last layer", {TEXT_AND_IMAGES}, 2, 2, .stage = "last-layer-finetune"},
        {"float32 among 16 bits", {TEXT_AND_IMAGES}, 2, 2, .dtype = CR_BF16},
        {"float32 among 16 bits, hsdp",
         {IMAGES_AND_VIDEOS},
         4,
         2,
         .dtype = CR_BF16,
         .is_recomputed = true},
        {"halves", {TEXT_AND_IMAGES}, 4, 4, .dtype = CR_BF16, .stage = "finetune"},
        {"halves, ulysses",
         {TEXT_AND_IMAGES},
         2,
         2,
         .ulysses = 2,
         .micro = 3,
         .dtype = CR_BF16,
         .tol = 2e-2},
    };

    for (size_t i = 0; i < FAMILIES * CR_COUNT(settings); i++) {
        const setting *s = &settings[i / FAMILIES];
        const char *family = families[i % FAMILIES];
        grads want, got;
        if (i % FAMILIES >= DENSE && s->dtype == CR_BF16) continue; /* other experts are chosen */
        want = at_once(s, family);
        got = on_ranks(s, family);
        if (me == 0) {
            double far = distance(got.grad, want.grad, want.num), tol = s->tol ? s->tol : grad_tol;
            CR_CHECK(got.num == want.num && far <= tol, "%s, family %zu: gradient off by %.3g",
                     s->name, i % FAMILIES, far);
            CR_CHECK(fabs(got.of_tower - want.of_tower) <= 2 * tol * (want.of_tower + 1e-30),
                     "%s, family %zu: gradient of the tower", s->name, i % FAMILIES);
        }
        cr_free(want.grad);
        cr_free(got.grad);
    }
}

/* A pass with images gathers the tower's units, each once and in float32; one without gathers none. */
static void check_gathers(const cr_fsdp *f, bool with_images, cr_traffic_count before)
{
    cr_traffic_count now = cr_fsdp_get_stats(f).traffic.gathers;
    int64_t num = 0, num_bytes = 0;

    for (size_t i = 1; i < f->units.num; i++) {
        const cr_unit *u = &f->units.unit[i];
        bool is_tower = strstr(u->name, "visual");
        CR_CHECK(u->trained.is_fp32 == is_tower, "%s: float32 %d", u->name, u->trained.is_fp32);
        if (is_tower && !with_images) continue;
        num++;
        num_bytes += u->trained.padded_elems * (is_tower ? 4 : 2);
    }
    CR_CHECK(now.num - before.num == num && now.num_bytes - before.num_bytes == num_bytes,
             "images %d: %lld gathers of %lld bytes, want %lld of %lld", with_images,
             (long long)(now.num - before.num), (long long)(now.num_bytes - before.num_bytes),
             (long long)num, (long long)num_bytes);
    CR_CHECK(cr_fsdp_get_stats(f).max_units_alive <= 3, "%d units were alive", /* the tower's own */
             cr_fsdp_get_stats(f).max_units_alive);
}

/* Log-probs of fsdp2_infer: the first rank has images, the others text or nothing; then no rank has images. */
static void test_c39_forward(const char *family)
{
    static float first[2][MAX_NUM], log_prob[MAX_NUM], entropy[MAX_NUM];
    const cr_fsdp_args args = {.param_dtype = CR_BF16, .seed = 11};
    const setting s = {.name = "forward"};
    int ranks[RANKS] = {0, 1, 2, 3};

    for (int n = 1; n <= RANKS; n++) {
        if (me < n) {
            batch_vl *x = CR_NEW(batch_vl);
            cr_model *model = open_model(&s, family);
            cr_mesh_shape shape;
            cr_device *dev;
            cr_mesh *mesh;
            cr_fsdp *f;
            OK(cr_device_open(cr_device_default(), 1, &dev, &err));
            OK(cr_mesh_shape_init(&shape, n, n, 1, 1, 0, &err));
            OK(cr_mesh_create(world, dev, "images", ranks, &shape, &mesh, &err));
            OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
            for (int again = 0; again < 4;
                 again++) { /* the order of gathers is known from then on */
                bool with_images = again % 2 == 0;
                x->b = (cr_batch){0};
                x->vision = (cr_vision_input){0};
                put_sequence(x, model, 0, me == 0 && with_images ? BOTH : NOTHING);
                finish(x, model);
                cr_traffic_count before = cr_fsdp_get_stats(f).traffic.gathers;
                OK(cr_fsdp_forward(f, me == n - 1 && n == 4 ? NULL : &x->b,
                                   &(cr_outputs){{log_prob, entropy}}, &err));
                if (n > 1 && again) check_gathers(f, with_images, before);
                if (n == 1) memcpy(first[again % 2], log_prob, sizeof log_prob);
                CR_CHECK(me != 0 || memcmp(first[again % 2], log_prob,
                                           (size_t)num_labels(x) * sizeof(float)) == 0,
                         "log-probs on %d ranks, call %d", n, again);
            }
            cr_fsdp_destroy(f);
            cr_mesh_destroy(mesh);
            cr_model_free(model);
            cr_device_close(dev);
            cr_free(x);
        }
        OK(cr_barrier(everyone, "forward", &err));
    }
}

int main(void)
{
    open_world();
    test_c39_images();
    for (size_t i = 0; i < DENSE; i++)
        test_c39_forward(families[i]);
    close_world();
    return 0;
}
