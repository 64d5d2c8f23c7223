/* follow.c -- a reference that follows the policy: its values are alpha x the trainer's + (1 - alpha) x its own, a copy of them with alpha 1
 * to the bit, and what comes to a rank is its shard. Of shards and replicas of both sides that are not as many, of experts on ranks of their own on either side, of
 * offloaded values, frozen parts of the trainer, beside an engine in another dtype whose syncs go on between, and on hosts that pass
 * shards on; saved and read back in the middle.
 * Not covered: whole runs (e2e/run_follow), damaged bytes (unit/strategies_sync).
 * // ranks: 4
 * // also on hosts: 0,0,1,1
 * // also on far
 * // also on cuda
 */
#include "tests/memory.h"
#include "tests/mesh/train_files.h"

static const char *const expert_classes[] = {"Qwen3MoeMLP"};
static const cr_wrap_policy experts = {.expert_classes = expert_classes, .num_expert_classes = 1};
enum { SYNCS = 4 };

typedef struct side {
    int num, fsdp, ep; /* ranks; ep 0: a model without experts */
} side;

typedef struct setting {
    const char *name;
    side sender, reference; /* all other ranks are engines */
    cr_dtype dtype;
    double alpha;
    bool is_offloaded;
    const char *frozen;
} setting;

static cr_model *model_of(const setting *s)
{
    static const char text[] =
        "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":"
        "61,\"hidden_size\":24,\"intermediate_size\":40,\"moe_intermediate_size\":20,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":"
        "8,"
        "\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
        "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"torch_dtype\":\"float32\"}";
    const cr_model_options options = {0};
    const plan p = {.ranks = 1};
    cr_model *model;

    if (!s->sender.ep) return make_model(&p);
    OK(build_model_with(text, &options, &model, &err));
    return model;
}

static float rounded(cr_dtype dtype, float x)
{
    uint16_t stored[2];
    float out = x;

    if (dtype == CR_F32) return x;
    cr_cast_host(dtype, stored, CR_F32, &x, 1);
    cr_cast_host(CR_F32, &out, dtype, stored, 1);
    return out;
}

/* Element of the reference after `num` syncs, the k-th of which was of weights that have had k times what add_some adds. */
static float expected(const setting *s, float first, bool is_frozen, int num)
{
    const float a = (float)s->alpha, b = (float)(1 - s->alpha);
    float policy = first, value = rounded(s->dtype, first);

    for (int k = 0; k < num; k++) {
        float x = rounded(s->dtype, policy);
        value = s->alpha >= 1 ? x : rounded(s->dtype, a * x + b * value);
        if (!is_frozen) policy += 0.25F;
    }
    return value;
}

static void check_values(cr_fsdp *f, const setting *s, const cr_model *trained, int num)
{
    /* a product and a sum may be rounded together or not, and cancel; in bf16 that may be one step */
    const double tolerance = s->alpha >= 1 ? 0 : s->dtype == CR_F32 ? 1e-6 : 0x1p-7;
    cr_weight_map map = {0};

    cri_map_kept(f, /*is_trained=*/true, /*is_written=*/false, &map);
    CR_CHECK(map.num > 0, "%s: a rank has nothing", s->name);
    for (size_t i = 0; i < map.num; i++) {
        const cr_weight_range *r = &map.range[i];
        const cr_param *p = f->model->params[r->param];
        size_t n = (size_t)(r->end - r->begin), bytes = n * (size_t)r->elem_bytes;
        float *want = CR_NEW_ARRAY(float, n), *got = CR_NEW_ARRAY(float, n);
        void *data = downloaded(cri_home(f), cr_mem_add(f->values, (size_t)r->at), bytes);
        cr_param_init(f->model, p, 11, r->begin, r->end, want);
        cr_cast_host(CR_F32, got, s->dtype, data, n);
        for (size_t e = 0; e < n; e++) {
            want[e] = expected(s, want[e], !trained->params[r->param]->is_trainable, num);
            CR_CHECK(fabs(got[e] - want[e]) <= tolerance * (0.5 + fabs(want[e])),
                     "%s: %s[%lld] after %d syncs is %.9g, not %.9g", s->name, p->name,
                     (long long)r->begin + (long long)e, num, (double)got[e], (double)want[e]);
        }
        cr_free(want);
        cr_free(got);
        cr_free(data);
    }
    cr_weight_map_free(&map);
}

static int64_t shard_bytes(const cr_fsdp *f)
{
    cr_weight_map map = {0};
    int64_t num = 0;

    cri_map_kept(f, true, false, &map);
    for (size_t i = 0; i < map.num; i++)
        num += (map.range[i].end - map.range[i].begin) * map.range[i].elem_bytes;
    cr_weight_map_free(&map);
    return num;
}

static void add_some(cr_fsdp *f)
{
    size_t num = (size_t)f->units.trained_shard.elems;
    float *master = downloaded(cri_home(f), f->master, num * sizeof *master);

    for (size_t e = 0; e < num; e++)
        master[e] += 0.25F;
    refill(cri_home(f), f->master, master, num * sizeof *master);
    cri_states_changed(f);
    f->num_updates++;
    cr_free(master);
}

/* Saved, and read by one that began with other weights; the other ranks do nothing meanwhile. */
static cr_fsdp *saved_and_read(cr_fsdp *f, const setting *s, cr_device *dev, cr_mesh *mesh,
                               const cr_fsdp_args *args)
{
    char *path = path_of(s->name);
    const cr_save_args save = {.folder = path,
                               .role = "reference",
                               .model_source = folder,
                               .is_here = true,
                               .was_here = true};
    cr_fsdp_args other = *args;
    cr_model *model = f->model;

    other.seed = 12;
    OK(cr_fsdp_save_start(f, &save, &err));
    OK(cr_fsdp_save_wait(f, NULL, &err));
    cr_fsdp_destroy(f);
    OK(cr_fsdp_create(model, dev, mesh, &other, &f, &err));
    OK(cr_fsdp_resume(f, path, "reference", true, &err));
    CR_CHECK(f->num_updates == 1, "%lld updates were read", (long long)f->num_updates);
    cr_free(path);
    return f;
}

static cr_mesh *mesh_of(cr_device *dev, const char *name, const side *x, int first)
{
    int ranks[RANKS];
    cr_mesh_shape shape;
    cr_mesh *mesh;

    for (int i = 0; i < x->num; i++)
        ranks[i] = first + i;
    OK(cr_mesh_shape_init(&shape, x->num, x->fsdp, 1, x->ep ? x->ep : 1,
                          x->ep > 1 ? x->num / x->ep : 0, &err));
    if (x->fsdp == 1 &&
        x->ep <= 1) { /* a file cannot ask for that: its fsdp_size 1 is one group of shards */
        shape.num_ddp = shape.num_eddp = x->num;
        shape.num_fsdp = shape.num_efsdp = 1;
    }
    OK(cr_mesh_create(world, dev, name, ranks, &shape, &mesh, &err));
    return mesh;
}

static void reference(cr_model *model, cr_device *dev, cr_group *group, const setting *s)
{
    cr_fsdp_args args = {.seed = 11, .param_dtype = s->dtype, .is_offloaded = s->is_offloaded};
    cr_mesh *mesh = mesh_of(dev, "reference", &s->reference, s->sender.num);
    cr_model *trained = model_of(s);
    cr_fsdp *f;
    int64_t num_bytes;

    if (s->reference.ep) args.wrap = experts;
    OK(cr_model_freeze(trained, s->frozen, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    for (int k = 0; k < SYNCS; k++) {
        OK(cr_weight_sync_blend(f, group, s->alpha, &num_bytes, &err));
        CR_CHECK(num_bytes == shard_bytes(f), "%s: %lld bytes have come, its shard has %lld",
                 s->name, (long long)num_bytes, (long long)shard_bytes(f));
        check_values(f, s, trained, k + 1);
        OK(cr_fsdp_check_replicas(f, false, &err));
        if (k == 1) f = saved_and_read(f, s, dev, mesh, &args);
    }
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_model_free(trained);
}

static void trainer(cr_model *model, cr_device *dev, cr_group *group, cr_group *engines,
                    const setting *s)
{
    cr_fsdp_args args = {.is_train = true, .seed = 11};
    cr_mesh *mesh = mesh_of(dev, "actor_train", &s->sender, 0);
    cr_fsdp *f;

    if (s->sender.ep) args.wrap = experts;
    OK(cr_model_freeze(model, s->frozen, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    for (int k = 0; k < SYNCS; k++) {
        if (engines) OK(cr_weight_sync_send(f, engines, CR_BF16, &err));
        OK(cr_weight_sync_send(f, group, s->dtype, &err));
        add_some(f);
    }
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
}

/* Its copy is not disturbed by syncs of the reference between its own. */
static void engine(cr_model *model, cr_device *dev, cr_group *engines)
{
    cr_weight_copy *copy;

    OK(cr_weight_copy_create(model, dev, CR_BF16, &copy, &err));
    for (int k = 0; k < SYNCS; k++) {
        OK(cr_weight_sync_receive(copy, engines, &err));
        for (size_t i = 0; i < model->num_params; i++) {
            const cr_param *p = model->params[i];
            size_t n = (size_t)p->num_elems;
            float *want = CR_NEW_ARRAY(float, n), *got = CR_NEW_ARRAY(float, n);
            void *data = downloaded(dev, p->weight.data, n * sizeof(uint16_t));
            cr_param_init(model, p, 11, 0, p->num_elems, want);
            cr_cast_host(CR_F32, got, CR_BF16, data, n);
            for (size_t e = 0; e < n; e++) {
                for (int u = 0; u < k; u++)
                    want[e] += 0.25F;
                CR_CHECK(got[e] == rounded(CR_BF16, want[e]), "engine: %s after %d", p->name, k);
            }
            cr_free(want);
            cr_free(got);
            cr_free(data);
        }
    }
    cr_weight_copy_destroy(copy);
}

static void check(const setting *s)
{
    int with_reference[RANKS], with_engines[RANKS], num = 0, num_engines = 0,
                                                    before = s->sender.num + s->reference.num;
    cr_model *model = model_of(s);
    cr_device *dev;
    cr_group *group = NULL, *engines = NULL;

    for (int r = 0; r < RANKS; r++) {
        if (r < before) with_reference[num++] = r;
        if (r < s->sender.num || r >= before) with_engines[num_engines++] = r;
    }
    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    if (me < before)
        OK(cr_group_create(world, dev, "reference sync", with_reference, num, &group, &err));
    if (before < RANKS && (me < s->sender.num || me >= before))
        OK(cr_group_create(world, dev, "weight sync", with_engines, num_engines, &engines, &err));
    if (me < s->sender.num)
        trainer(model, dev, group, engines, s);
    else if (me < before)
        reference(model, dev, group, s);
    else
        engine(model, dev, engines);
    OK(cr_barrier(everyone, "sync", &err));
    cr_group_destroy(group);
    cr_group_destroy(engines);
    cr_model_free(model);
    cr_device_close(dev);
}

int main(void)
{
    const setting settings[] = {
        {"three shards of one", {1, 1, 0}, {3, 3, 0}, CR_F32, 0.6},
        {"one of three shards", {3, 3, 0}, {1, 1, 0}, CR_BF16, 0.6},
        {"shards and shards", {2, 2, 0}, {2, 2, 0}, CR_BF16, 0.25},
        {"replicas of shards", {2, 2, 0}, {2, 1, 0}, CR_F32, 0.6},
        {"shards of replicas", {2, 1, 0}, {2, 2, 0}, CR_F32, 1},
        {"offloaded", {2, 2, 0}, {2, 2, 0}, CR_BF16, 0.6, .is_offloaded = true},
        {"frozen parts", {2, 2, 0}, {2, 2, 0}, CR_BF16, 0.6, .frozen = "model.embed_tokens"},
        {"beside an engine", {2, 2, 0}, {1, 1, 0}, CR_F32, 0.6},
        {"experts on two ranks to shards", {2, 1, 2}, {2, 2, 1}, CR_F32, 0.6},
        {"shards to experts on two ranks", {2, 2, 1}, {2, 1, 2}, CR_BF16, 0.6},
    };

    open_world();
    for (size_t i = 0; i < CR_COUNT(settings); i++)
        check(&settings[i]);
    close_world();
    return 0;
}
