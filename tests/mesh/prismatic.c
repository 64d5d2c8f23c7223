/* prismatic.c -- a Prismatic model trained by stages on 1, 2 and 4 ranks, rows with an image beside rows without: after an
 * update exactly the tensors of the stage have other bytes in the saved MODEL, by name; norm before the clip and weights
 * are those of one rank, however the batch is cut (20 cuts); towers that are trained compute in float32.
 * Not covered: numbers against PyTorch (unit/models_prismatic.c).
 * // ranks: 4
 * // also on far
 * // also on cuda, long
 */
#include "images/reader.h"
#include "models/vision/vision.h"
#include "tests/mesh/train_files.h"

enum { SEQS = 6, MAX_TOKENS = 200, PATCHES = 9, PIXELS = 156, MAX_ROW = 16 };

static const char config[] =
    "{\"model_type\":\"prismatic\",\"architectures\":[\"PrismaticForConditionalGeneration\"],"
    "\"image_token_id\":95,\"arch_specifier\":\"no-align+fused-gelu-mlp\",\"text_config\":{"
    "\"model_type\":\"llama\",\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":70,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"initializer_range\":0.1},\"vision_towers\":[{\"model_type\":\"dinov2_with_registers\","
    "\"hidden_size\":40,\"mlp_ratio\":2,\"num_hidden_layers\":4,\"num_attention_heads\":2,"
    "\"image_size\":18,\"patch_size\":6,\"num_register_tokens\":2},{\"model_type\":"
    "\"siglip_vision_model\",\"hidden_size\":32,\"intermediate_size\":50,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":2,\"image_size\":12,\"patch_size\":4}]}";

/* ---- batches ---- */

typedef struct rows {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], labels[MAX_TOKENS], cu[SEQS + 1], grid[SEQS][3];
    float pixels[SEQS * PATCHES * PIXELS];
    cr_vision_input vision;
    cr_batch b;
} rows;

static void put_row(rows *x, const cr_model *model, int seq, bool has_image)
{
    int32_t ids[MAX_ROW], labels[MAX_ROW], first = x->cu[x->b.num_seqs], num = 5 + seq;

    for (int i = 0; i < num; i++)
        ids[i] = i == 0 ? 1 : (i * 7 + seq * 11) % 90;
    for (int i = 0; i < num; i++)
        labels[i] = i + 1 < num ? ids[i + 1] : -1;
    if (has_image) {
        int32_t *grid = x->grid[x->vision.num_items];
        float *pixels = x->pixels + x->vision.num_items++ * PATCHES * PIXELS;
        cr_image_insert(model->config.vision->image_id, PATCHES, ids, labels, num, x->ids + first,
                        x->labels + first);
        for (uint64_t i = 0; i < PATCHES * PIXELS; i++)
            pixels[i] = (float)cr_rng_normal(9, CR_RNG_TEST, (uint64_t)seq, i);
        grid[0] = 1, grid[1] = grid[2] = 3;
        x->vision.num_patches += PATCHES;
        num += PATCHES;
    } else {
        memcpy(x->ids + first, ids, sizeof ids);
        memcpy(x->labels + first, labels, sizeof labels);
    }
    for (int i = 0; i < num; i++)
        x->positions[first + i] = i;
    x->cu[++x->b.num_seqs] = first + num;
    x->b = (cr_batch){.ids = x->ids,
                      .positions = x->positions,
                      .labels = x->labels,
                      .cu_seqlens = x->cu,
                      .num_tokens = first + num,
                      .num_seqs = x->b.num_seqs};
    x->vision.pixels = x->pixels;
    x->vision.grid = (const int32_t(*)[3])x->grid;
    if (x->vision.num_items) x->b.vision = &x->vision;
}

static cr_status row_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                          cr_err *e)
{
    const rows *x = ctx;
    size_t i = 0;

    (void)out;
    (void)e;
    for (int64_t t = 0; t < x->b.num_tokens; t++)
        if (x->labels[t] >= 0) grad->of[CR_LOG_PROB][i++] = -0.01F * (float)(1 + x->labels[t] % 5);
    CR_CHECK(i == num, "%zu labels of %zu", i, num);
    return CR_OK;
}

/* ---- one update ---- */

typedef struct setting {
    const char *name, *stage;
    int ranks, fsdp, ulysses, micro;
    cr_dtype dtype;
    cr_reshard reshard;
    int reshard_ranks;
    bool is_recomputed, is_reduced_once, has_text_alone, is_offloaded;
} setting;

/* V: the towers, P: the projector, L: the last layer, l: the rest of the language model. */
static char part_of(const char *name)
{
    if (strncmp(name, "vision_backbone.", 16) == 0) return 'V';
    if (strncmp(name, "projector.", 10) == 0) return 'P';
    return strncmp(name, "language_model.model.layers.2.", 30) == 0 ? 'L' : 'l';
}

static const struct {
    const char *stage, *trained;
} stages[] = {
    {"align", "P"},
    {"finetune", "PLl"},
    {"vla-train", "PLl"},
    {"full-finetune", "VPLl"},
    {"vla-full-train", "VPLl"},
    {"last-layer-finetune", "L"},
    {"vla-sandwich-train", "VPL"},
};

static const char *trained_in(const char *stage)
{
    for (size_t i = 0; i < CR_COUNT(stages); i++)
        if (strcmp(stages[i].stage, stage) == 0) return stages[i].trained;
    return "";
}

static cr_model *open_model(const setting *s)
{
    cr_model *model;

    OK(build_model(config, &model, &err));
    OK(cr_model_freeze_stage(model, s->stage, &err));
    cr_model_set_precision(model);
    return model;
}

static void save(cr_fsdp *f, const char *name)
{
    char *path = path_of(name);
    const cr_save_args args = {.folder = path,
                               .role = "actor_train",
                               .model_source = folder,
                               .save_only_model = true,
                               .is_here = true};
    cr_saved saved;

    OK(cr_fsdp_save_start(f, &args, &err));
    OK(cr_fsdp_save_wait(f, &saved, &err));
    cr_free(path);
}

/* Towers in float32 if they are trained, all else in param_dtype; frozen parameters and trained ones apart. */
static void check_units(const setting *s, const cr_fsdp *f)
{
    const char *trained = trained_in(s->stage);

    for (size_t i = 0; i < f->units.num; i++) {
        const cr_unit *u = &f->units.unit[i];
        const cr_flat *flats[] = {&u->trained, &u->frozen};
        for (int t = 0; t < 2; t++)
            for (size_t k = 0; k < flats[t]->num_params; k++) {
                char part = part_of(flats[t]->params[k]->name);
                CR_CHECK(!!strchr(trained, part) == (t == 0), "%s: %s", s->name,
                         flats[t]->params[k]->name);
                CR_CHECK(flats[t]->is_fp32 == (part == 'V' && strchr(trained, 'V')), "%s: %s",
                         s->name, u->name);
            }
    }
}

/* Norm before the clip; MODELs before and after an update are in NAME-before and NAME-after. */
static double update(const setting *s, const char *name)
{
    const cr_fsdp_args args = {.is_train = true,
                               .param_dtype = s->dtype,
                               .reshard = s->reshard,
                               .reshard_ranks = s->reshard_ranks,
                               .is_reduced_once = s->is_reduced_once,
                               .is_offloaded = s->is_offloaded,
                               .should_recompute = s->is_recomputed,
                               .seed = 11,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-2,
                               .max_grad_norm = 0.05};
    int ranks[RANKS] = {0, 1, 2, 3}, micro = s->micro ? s->micro : 1;
    cr_update done = {0};

    if (me < s->ranks) {
        char *before = cr_asprintf("%s-before", name), *after = cr_asprintf("%s-after", name);
        cr_model *model = open_model(s);
        rows *x = CR_NEW(rows);
        cr_mesh_shape shape;
        cr_device *dev;
        cr_mesh *mesh;
        cr_fsdp *f;
        int64_t max;
        OK(cr_device_open(cr_device_default(), 1, &dev, &err));
        OK(cr_mesh_shape_init(&shape, s->ranks, s->fsdp, s->ulysses ? s->ulysses : 1, 1, 0, &err));
        OK(cr_mesh_create(world, dev, "prismatic", ranks, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        check_units(s, f);
        save(f, before);
        int dp = cr_group_num_ranks(mesh->group[CR_AXIS_DP]),
            next = cr_group_rank(mesh->group[CR_AXIS_DP]);
        OK(cr_fsdp_agree_num(f, ((SEQS - next + dp - 1) / dp + micro - 1) / micro, &max, &err));
        for (int64_t m = 0; m < max; m++) {
            *x = (rows){0};
            for (int k = 0; k < micro && next < SEQS; k++, next += dp)
                put_row(x, model, next, !s->has_text_alone && next % 3);
            OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, row_loss, x, &err));
        }
        OK(cr_fsdp_update(f, 1, &done, &err));
        CR_CHECK(!done.is_skipped && done.grad_norm > 4 * args.max_grad_norm, "%s: a norm of %g",
                 s->name, done.grad_norm);
        save(f, after);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_model_free(model);
        cr_device_close(dev);
        cr_free(x);
        cr_free(before);
        cr_free(after);
    }
    OK(cr_barrier(everyone, s->name, &err));
    return done.grad_norm;
}

/* ---- MODELs by name (rank 0) ---- */

static cr_weights *open_saved(const char *name, const char *when, const cr_model *model)
{
    char *path = cr_asprintf("%s/%s-%s/actor_train", folder, name, when);
    cr_weights *weights;

    OK(cr_weights_open(path, model, &weights, &err));
    cr_free(path);
    return weights;
}

static float *values_of(const cr_weights *w, const cr_param *p)
{
    float *x = CR_NEW_ARRAY(float, p->num_elems);

    OK(cr_weights_read(w, p, 0, p->num_elems, x, &err));
    return x;
}

/* after - before of a MODEL, [num_elems]. */
static float *change_of(const char *name, const cr_model *model, const cr_param *p)
{
    cr_weights *before = open_saved(name, "before", model),
               *after = open_saved(name, "after", model);
    float *x = values_of(before, p), *y = values_of(after, p);

    for (int64_t e = 0; e < p->num_elems; e++)
        y[e] -= x[e];
    cr_weights_close(before);
    cr_weights_close(after);
    cr_free(x);
    return y;
}

static void check_names(const setting *s, const char *name)
{
    cr_model *model = open_model(s);

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        float *change = change_of(name, model, p);
        bool has_changed = false;
        for (int64_t e = 0; e < p->num_elems; e++)
            has_changed = has_changed || change[e] != 0;
        /* of text alone towers and projector learn nothing */
        CR_CHECK(has_changed == (strchr(trained_in(s->stage), part_of(p->name)) &&
                                 !(s->has_text_alone && strchr("VP", part_of(p->name)))),
                 "%s, stage %s: %s has changed: %d", s->name, s->stage, p->name, has_changed);
        cr_free(change);
    }
    cr_model_free(model);
}

/* |got - want| / |want| of all changes. */
static double compare(const setting *s)
{
    cr_model *model = open_model(s);
    double far = 0, size = 0;

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        float *got = change_of("got", model, p), *want = change_of("want", model, p);
        for (int64_t e = 0; e < p->num_elems; e++) {
            far += ((double)got[e] - (double)want[e]) * ((double)got[e] - (double)want[e]);
            size += (double)want[e] * (double)want[e];
        }
        cr_free(got);
        cr_free(want);
    }
    cr_model_free(model);
    return sqrt(far / size);
}

static void remove_saved(const char *name)
{
    static const char *const when[] = {"before", "after"};

    for (size_t i = 0; i < CR_COUNT(when); i++) {
        char *path = cr_asprintf("%s/%s-%s", folder, name, when[i]);
        OK(cr_remove_tree(path, &err));
        cr_free(path);
    }
}

/* A setting against one rank that has all rows in one micro-batch. */
static void check(const setting *s)
{
    const setting alone = {.name = "alone",
                           .stage = s->stage,
                           .ranks = 1,
                           .fsdp = 1,
                           .micro = SEQS,
                           .dtype = s->dtype,
                           .has_text_alone = s->has_text_alone};
    double want = update(&alone, "want"), got = update(s, "got"), far;

    if (me == 0) {
        check_names(&alone, "want");
        check_names(s, "got");
        far = compare(s);
        CR_CHECK(far <= (s->dtype == CR_F32 ? 1e-5 : 6e-2), "%s, stage %s: weights off by %.3g",
                 s->name, s->stage, far);
        CR_CHECK(fabs(got - want) <= (s->dtype == CR_F32 ? 1e-6 : 2e-2) * want,
                 "%s, stage %s: a norm of %.9g, not %.9g", s->name, s->stage, got, want);
        remove_saved("want");
        remove_saved("got");
    }
    OK(cr_barrier(everyone, "compared", &err));
}

/* On cuda, which is simulated, each third one. */
static size_t stride(void)
{
    return strcmp(cr_device_default(), "cuda") == 0 ? 3 : 1;
}

static void test_c40_stages(void)
{
    for (size_t i = 0; i < CR_COUNT(stages); i += stride())
        for (int n = 2; n <= RANKS; n += 2) {
            const setting s = {.name = "stage",
                               .stage = stages[i].stage,
                               .ranks = n,
                               .fsdp = n,
                               .dtype = n == 4 ? CR_BF16 : CR_F32};
            check(&s);
        }
}

static void test_cuts(void)
{
    static const char all[] = "full-finetune", low[] = "finetune", wide[] = "vla-sandwich-train";
    static const setting settings[] = {
        {"one by one", all, 1, 1},
        {"two at once", all, 1, 1, .micro = 2},
        {"recomputed", all, 1, 1, .micro = 3, .is_recomputed = true},
        {"2 ranks", all, 2, 2, .micro = 2},
        {"4 ranks", all, 4, 4},
        {"4 ranks, all at once", all, 4, 4, .micro = 6},
        {"hsdp", all, 4, 2, .is_recomputed = true},
        {"always", all, 4, 4, .reshard = CR_RESHARD_ALWAYS, .is_recomputed = true},
        {"never", all, 2, 2, .reshard = CR_RESHARD_NEVER},
        {"to 2 ranks", all, 4, 4, .reshard_ranks = 2, .is_recomputed = true},
        {"once", all, 4, 2, .is_reduced_once = true},
        {"offloaded", all, 2, 2, .is_offloaded = true},
        {"ulysses", all, 2, 2, .ulysses = 2, .micro = 2},
        {"ulysses, all at once", all, 2, 2, .ulysses = 2, .micro = 6},
        {"ulysses, hsdp", all, 4, 2, .ulysses = 2, .is_recomputed = true},
        {"frozen, never", low, 2, 2, .reshard = CR_RESHARD_NEVER},
        {"frozen, ulysses", low, 4, 4, .ulysses = 2},
        {"frozen, text alone", low, 2, 2, .has_text_alone = true},
        {"text alone", all, 4, 4, .has_text_alone = true},
        {"sandwich, ulysses", wide, 4, 2, .ulysses = 2, .micro = 2, .is_recomputed = true},
    };

    for (size_t i = 0; i < CR_COUNT(settings); i += stride())
        check(&settings[i]);
}

int main(void)
{
    open_world();
    test_c40_stages();
    test_cuts();
    close_world();
    return 0;
}
