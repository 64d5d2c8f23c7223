/* sync.c -- weight sync of a model with adapters: an engine gets the base once, then the adapters and what is trained in full beside them
 * alone, to the byte, and no originals; base and adapters are those of the trainer by bits, and a plan's bytes are those that come. Of shards and replicas that are not as many as the
 * engines, of experts on ranks of their own, of offloaded states, on hosts that pass shards on, after the engine has given its copy up,
 * and after the trainer has read another base. Not covered: damaged bytes (unit/strategies_sync), whole runs (e2e/run_lora).
 * // ranks: 4
 * // also on hosts: 0,0,1,1
 * // also on far
 * // also on cuda
 */
#include "tests/memory.h"
#include "tests/mesh/train_files.h"

static const char *const part_classes[] = {"Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm"},
                         *const expert_classes[] = {"Qwen3MoeMLP"};
static const cr_wrap_policy parts = {part_classes, 3, true, true, .is_nested = true},
                            experts = {.expert_classes = expert_classes, .num_expert_classes = 1};

typedef struct setting {
    const char *name;
    int num_senders, num_ddp;
    cr_dtype dtype;
    bool is_offloaded;
    cr_wrap_policy wrap;
    int num_ep; /* 0: a model without experts */
} setting;

/* The base as it was made, and the adapters after `update` updates, each of which adds 1 to A and B. */
static void check_weights(cr_model *model, cr_device *dev, cr_dtype dtype, int update)
{
    for (size_t i = 0; i < model->num_params; i++) {
        cr_param *q = model->params[i];
        size_t n = (size_t)q->num_elems, num_bytes = n * cr_dtype_bytes(dtype);
        float *want = CR_NEW_ARRAY(float, n);
        char *rounded = cr_alloc(num_bytes), *got = downloaded(dev, q->weight.data, num_bytes);
        cr_param_init(model, q, 11, 0, q->num_elems, want);
        for (size_t e = 0; e < n && q->is_adapter; e++)
            for (int u = 0; u < update; u++)
                want[e] += 1;
        cr_cast_host(dtype, rounded, CR_F32, want, n);
        CR_CHECK(memcmp(rounded, got, num_bytes) == 0, "%s is another one after update %d", q->name,
                 update);
        cr_free(want);
        cr_free(rounded);
        cr_free(got);
    }
}

static int64_t bytes_of(const cr_model *model, bool are_adapters, cr_dtype dtype)
{
    int64_t num = 0;

    for (size_t i = 0; i < model->num_params; i++)
        num += model->params[i]->is_adapter == are_adapters ? model->params[i]->num_elems : 0;
    return num * (int64_t)cr_dtype_bytes(dtype);
}

/* Sums of what all senders have sent, and of what all engines say that has come, since the last call. */
static void check_traffic(int64_t mine)
{
    static int64_t before;
    int64_t now = cr_flight_get_count(world, CR_COLL_TRANSFER).num_bytes;
    double sum[2] = {(double)(now - before), (double)mine};

    before = now;
    OK(cr_all_reduce_f64(everyone, "bytes", CR_OP_SUM, sum, 2, &err));
    CR_CHECK(sum[0] == sum[1], "%g bytes have moved, %g have come", sum[0], sum[1]);
}

/* One sync: what comes is the adapters, and the base where it is due. */
static void receive(cr_weight_copy *copy, cr_group *group, bool is_first, const cr_model *model,
                    const setting *s)
{
    int64_t due = cr_weight_copy_sync_bytes(copy, is_first),
            adapters = bytes_of(model, true, s->dtype),
            base = is_first ? bytes_of(model, false, s->dtype) : 0, got;

    OK(cr_weight_sync_receive(copy, group, &err));
    got = cr_weight_copy_synced_bytes(copy);
    CR_CHECK(due == adapters + base && got == due,
             "%s: %lld bytes have come, planned %lld, adapters %lld and base %lld", s->name,
             (long long)got, (long long)due, (long long)adapters, (long long)base);
    check_traffic(got);
}

static void engine(cr_model *model, cr_device *dev, cr_group *group, const setting *s)
{
    cr_weight_copy *copy;

    OK(cr_weight_copy_create(model, dev, s->dtype, &copy, &err));
    for (int update = 0; update < 5; update++) {
        if (update == 3) { /* sleep_level 2 */
            cr_weight_copy_destroy(copy);
            OK(cr_weight_copy_create(model, dev, s->dtype, &copy, &err));
        }
        receive(copy, group, /*is_first=*/update == 0 || update >= 3, model, s);
        check_weights(model, dev, s->dtype, update);
    }
    cr_weight_copy_destroy(copy);
}

static void add_one(cr_fsdp *f)
{
    size_t num = (size_t)f->units.trained_shard.elems;
    float *master = downloaded(cri_home(f), f->master, num * sizeof *master);

    for (size_t e = 0; e < num; e++)
        master[e] += 1;
    refill(cri_home(f), f->master, master, num * sizeof *master);
    cri_states_changed(f);
    f->num_updates++;
    cr_free(master);
}

static void trainer(cr_model *model, cr_device *dev, cr_group *group, const cr_mesh_shape *shape,
                    const setting *s)
{
    cr_fsdp_args args = {
        .is_train = true, .seed = 11, .is_offloaded = s->is_offloaded, .wrap = s->wrap};
    int ranks[RANKS] = {0, 1, 2, 3};
    cr_mesh *mesh;
    cr_fsdp *f;

    OK(cr_mesh_create(world, dev, "actor_train", ranks, shape, &mesh, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    for (int update = 0; update < 5; update++) {
        if (update == 4) f->frozen_version++; /* as after cri_shards_read_model */
        OK(cr_weight_sync_send(f, group, s->dtype, &err));
        check_traffic(0);
        add_one(f);
    }
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
}

/* Sizes of whole lines of 32 elements: parameters lie one after another, and travel together where they may. */
static cr_model *sparse_model(bool is_trainer)
{
    static const char text[] =
        "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":"
        "64,"
        "\"hidden_size\":32,\"intermediate_size\":64,\"moe_intermediate_size\":32,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":"
        "32,"
        "\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
        "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"torch_dtype\":\"float32\"}";
    const cr_model_options options = {.adapters = {"q_proj,o_proj,embed_tokens", 4, 8, false,
                                                   .saved = "lm_head,norm",
                                                   .keeps_originals = is_trainer}};
    cr_model *model;

    OK(build_model_with(text, &options, &model, &err));
    return model;
}

static void check(const setting *s)
{
    const plan p = {.adapters = "all-linear", .ranks = s->num_senders};
    int all[RANKS] = {0, 1, 2, 3};
    cr_model *model = s->num_ep ? sparse_model(me < s->num_senders) : make_model(&p);
    cr_mesh_shape shape;
    cr_device *dev;
    cr_group *group;

    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    OK(cr_group_create(world, dev, "weight sync", all, RANKS, &group, &err));
    OK(cr_mesh_shape_init(&shape, s->num_senders, s->num_senders / s->num_ddp, 1,
                          s->num_ep ? s->num_ep : 1, s->num_ep > 1 ? s->num_senders / s->num_ep : 0,
                          &err));
    if (me < s->num_senders)
        trainer(model, dev, group, &shape, s);
    else
        engine(model, dev, group, s);
    OK(cr_barrier(everyone, "sync", &err));
    cr_group_destroy(group);
    cr_model_free(model);
    cr_device_close(dev);
}

int main(void)
{
    const setting settings[] = {
        {"one trainer", 1, 1, CR_BF16, false, {0}},
        {"shards", 2, 1, CR_BF16, false, {0}},
        {"replicas", 2, 2, CR_F32, false, {0}},
        {"three shards for one engine", 3, 1, CR_BF16, false, parts},
        {"offloaded", 2, 1, CR_BF16, true, {0}},
        {"experts of one trainer", 1, 1, CR_BF16, false, {0}, 1},
        {"shards of experts", 2, 1, CR_F32, false, experts, 1},
        {"experts on two ranks", 2, 1, CR_BF16, false, experts, 2},
        {"experts of replicas", 2, 2, CR_F32, false, experts, 2},
    };

    open_world();
    for (size_t i = 0; i < CR_COUNT(settings); i++)
        check(&settings[i]);
    close_world();
    return 0;
}
