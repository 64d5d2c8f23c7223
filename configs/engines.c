/* engines.c -- as_fsdp2: strategy blocks of Megatron-Core and DeepSpeed as fsdp2 (docs/config.md, "Files of other engines").
 *
 * An update keeps its samples. Megatron has ranks / (tensor x pipeline x context) data-parallel ranks, fsdp2 has
 * ranks / ulysses_size: with m = tensor x pipeline and a mini-batch of B samples a rank,
 *
 *     g = gcd(B, m)     ulysses_size = context x m / g     B' = B / g
 *
 * The tree of the file is changed before the schema sees it, so all rules of fsdp2 hold for what came out.
 */
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

#define MEGATRON  "megatron_" /* train, infer */
#define DEEPSPEED "deepspeed_"

/* ---- what the keys become ---- */

typedef struct meaning {
    const char *key;  /* or the beginning of several */
    const char *why;  /* the note */
    bool is_for_many; /* of a number: above 1 only */
} meaning;

#define CUT                                                                                   \
    "fsdp2 cuts every parameter over all devices of the role, which become data-parallel or " \
    "ulysses ranks"
#define OPTIMIZER "fsdp2 always cuts the optimizer and reduces gradients under the backward pass"
#define EXPERTS   "croll has one way to compute experts"
#define PIPELINE  "there is no pipeline"
#define RECOMPUTE "layers are recomputed as a whole"
#define DTYPE     "model_args.dtype is that of compute, and masters are fp32"
#define DERIVED   "training_args and the run say it"
#define OTHERS    "fsdp2 has nothing of the kind"

static const meaning megatron[] = {
    {"tensor_model_parallel_size", CUT, true},
    {"pipeline_model_parallel_size", CUT, true},
    {"context_parallel_size", NULL, false}, /* ulysses_size */
    {"expert_model_parallel_size",
     "experts are cut over all devices as every parameter is; ep_size and wrap_policy.moe_experts "
     "place them on ranks",
     true},
    {"expert_tensor_parallel_size", CUT, true},
    {"sequence_parallel", "it belongs to tensor parallelism; ulysses_size cuts sequences", false},
    {"use_distributed_optimizer", OPTIMIZER, false},
    {"distrib_optim_", OPTIMIZER, false},
    {"overlap_", OPTIMIZER, false},
    {"virtual_pipeline_model_parallel_size", PIPELINE, true},
    {"pipeline_model_parallel_layout", PIPELINE, false},
    {"account_for_", PIPELINE, false},
    {"recompute_granularity", NULL, false}, /* disable_gradient_checkpointing: false */
    {"recompute_", RECOMPUTE, false},
    {"moe_layer_recompute", RECOMPUTE, false},
    {"moe_aux_loss_coeff", NULL, false}, /* model_args.moe_aux_loss_coef */
    {"moe_", EXPERTS, false},
    {"bf16", DTYPE, false},
    {"fp16", DTYPE, false},
    {"max_grad_norm", DERIVED, false},
};

static const meaning deepspeed[] = {
    {"zero_optimization", NULL, false}, /* its keys are below */
    {"stage", NULL, false},             /* reshard_after_forward */
    {"offload_", NULL, false},          /* offload_policy */
    {"zero_", "every optimizer is cut, and AdamW is croll's own", false},
    {"bf16", DTYPE, false},
    {"fp16", DTYPE, false},
    {"gradient_clipping", DERIVED, false},
    {"gradient_accumulation_steps", DERIVED, false},
    {"train_", DERIVED, false},
    {"optimizer", DERIVED, false},
    {"scheduler", DERIVED, false},
};

static const meaning *meaning_of(const meaning *list, size_t num, const char *key)
{
    static const meaning other = {"", OTHERS, false};

    for (size_t i = 0; i < num; i++) {
        size_t n = strlen(list[i].key);
        if (strncmp(list[i].key, key, n) == 0 && (!key[n] || list[i].key[n - 1] == '_'))
            return &list[i];
    }
    return &other;
}

/* A note for each key that loses its meaning. */
static void note_keys(const meaning *list, size_t num, const cr_node *map, cr_diagnostics *d)
{
    for (size_t i = 0; map && map->kind == CR_NODE_MAP && i < map->num; i++) {
        const struct cr_item *item = &map->items[i];
        const meaning *m = meaning_of(list, num, item->key);
        bool is_one = item->value->kind == CR_NODE_INT && item->value->integer == 1;
        if (m->why && item->value->kind != CR_NODE_NULL && !(m->is_for_many && is_one))
            cr_diagnose_unused(d, item->place, item->key, "%s", m->why);
    }
}

/* ---- values ---- */

/* A whole number from 1; `otherwise` if the key is not given. */
static int64_t count_of(const cr_node *map, const char *key, int64_t otherwise, cr_diagnostics *d)
{
    const cr_node *n = cr_node_get(map, key);

    if (!n || n->kind == CR_NODE_NULL) return otherwise;
    if (n->kind == CR_NODE_INT && n->integer >= 1 && n->integer <= INT32_MAX / 2) return n->integer;
    cr_diagnose(d, CR_ERROR, n->place, "%s: a whole number of at least 1 is expected", key);
    return otherwise;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* A map of the block, made if it is not there. NULL: it is no map, which the schema says. */
static cr_node *map_of(cr_yaml *yaml, cr_node *block, const char *key)
{
    cr_node *n = cr_node_get(block, key);

    if (n && n->kind != CR_NODE_NULL) return n->kind == CR_NODE_MAP ? n : NULL;
    n = cr_node_new(yaml, CR_NODE_MAP, block->place);
    cr_node_set(yaml, block, key, block->place, n);
    return n;
}

static int num_devices(const cr_node *block)
{
    const cr_node *n = cr_node_get(block, "device_mapping");
    int *devices = NULL, num = 0;
    cr_buf text = {0};
    cr_err none = {0};

    if (n && n->kind == CR_NODE_TEXT)
        cr_buf_adds(&text, n->text);
    else if (n)
        cr_node_write_json(n, &text);
    cr_note(
        cr_device_mapping(text.data ? text.data : "", &devices, &num, &none)); /* reported later */
    cr_free(devices);
    cr_buf_free(&text);
    return num;
}

/* ---- a block ---- */

typedef struct mapping {
    cr_config *c;
    cr_node *block, *from, *to; /* to: the new strategy_config */
    bool is_train;
    cr_diagnostics *d;
    cr_buf said; /* what became of what, for the note */
} mapping;

/* The mini-batch of a rank, divided by `by`; by divides it. */
static void divide_batch(mapping *m, cr_node *training, int64_t steps, int64_t samples, int64_t by)
{
    int64_t of_steps = gcd(steps, by), of_samples = by / of_steps;

    if (by == 1) return;
    cri_set_int(m->c, training, "gradient_accumulation_steps", steps / of_steps);
    cri_set_int(m->c, training, "per_device_train_batch_size", samples / of_samples);
    cr_buf_addf(&m->said,
                "; per_device_train_batch_size %lld x gradient_accumulation_steps %lld become "
                "%lld x %lld, so that an update has the same samples",
                (long long)samples, (long long)steps, (long long)(samples / of_samples),
                (long long)(steps / of_steps));
}

static void map_parallel(mapping *m)
{
    const cr_node *from = m->from;
    int64_t model = count_of(from, "tensor_model_parallel_size", 1, m->d) *
                    count_of(from, "pipeline_model_parallel_size", 1, m->d),
            ulysses = count_of(from, "context_parallel_size", 1, m->d), steps, samples, by;
    cr_node *args = map_of(&m->c->yaml, m->block, "model_args"),
            *training = m->is_train ? map_of(&m->c->yaml, m->block, "training_args") : NULL;

    if (training) {
        steps = count_of(training, "gradient_accumulation_steps", 1, m->d);
        samples = count_of(training, "per_device_train_batch_size", 8, m->d);
        by = gcd(steps * samples, model);
        ulysses *= model / by;
        divide_batch(m, training, steps, samples, by);
    }
    if (!args || ulysses == 1) return;
    cri_set_int(m->c, args, "ulysses_size", ulysses);
    cr_buf_addf(&m->said, "; ulysses_size is %lld", (long long)ulysses);
}

static void map_megatron(mapping *m)
{
    const cr_node *recompute = cr_node_get(m->from, "recompute_granularity"),
                  *loss = cr_node_get(m->from, "moe_aux_loss_coeff");
    cr_node *args = map_of(&m->c->yaml, m->block, "model_args");

    note_keys(megatron, CR_COUNT(megatron), m->from, m->d);
    map_parallel(m);
    if (args && m->is_train && recompute && recompute->kind == CR_NODE_TEXT) {
        cri_set_flag(m->c, args, "disable_gradient_checkpointing", false);
        cr_buf_adds(&m->said, "; layers are recomputed");
    }
    if (args && loss && loss->kind != CR_NODE_NULL && !cr_node_get(args, "moe_aux_loss_coef"))
        cr_node_set(&m->c->yaml, args, "moe_aux_loss_coef", loss->place,
                    (cr_node *)(uintptr_t)loss);
}

static bool is_on_cpu(const cr_node *zero, const char *key)
{
    const cr_node *device = cr_node_get(cr_node_get(zero, key), "device");

    return device && device->kind == CR_NODE_TEXT && strcmp(device->text, "none") != 0;
}

static void map_deepspeed(mapping *m)
{
    const cr_node *zero = cr_node_get(m->from, "zero_optimization");
    const cr_node *stage = cr_node_get(zero, "stage");

    note_keys(deepspeed, CR_COUNT(deepspeed), m->from, m->d);
    note_keys(deepspeed, CR_COUNT(deepspeed), zero, m->d);
    if (stage && stage->kind == CR_NODE_INT && stage->integer < 3) {
        cri_set_flag(m->c, m->to, "reshard_after_forward", false);
        cr_buf_addf(&m->said, "; reshard_after_forward is false (stage %lld)",
                    (long long)stage->integer);
    }
    if (is_on_cpu(zero, "offload_optimizer") || is_on_cpu(zero, "offload_param")) {
        cri_set_flag(m->c, m->to, "offload_policy", true);
        cr_buf_adds(&m->said, "; offload_policy is true");
    }
}

bool cri_is_mappable(const char *name)
{
    return strncmp(name, MEGATRON, strlen(MEGATRON)) == 0 ||
           strncmp(name, DEEPSPEED, strlen(DEEPSPEED)) == 0;
}

static void map_block(cr_config *c, const char *role, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(c->yaml.root, role),
            *strategy = cr_node_get(block, "strategy_args"),
            *name = cr_node_get(strategy, "strategy_name");
    mapping m = {.c = c, .block = block, .from = cr_node_get(strategy, "strategy_config"), .d = d};
    int num;

    if (!name || name->kind != CR_NODE_TEXT || !cri_is_mappable(name->text)) return;
    m.is_train = strcmp(strchr(name->text, '_'), "_train") == 0;
    m.to = cr_node_new(&c->yaml, CR_NODE_MAP, m.from ? m.from->place : name->place);
    if ((num = num_devices(block)) > 1) cri_set_int(c, m.to, "fsdp_size", num);
    if (strncmp(name->text, MEGATRON, strlen(MEGATRON)) == 0)
        map_megatron(&m);
    else
        map_deepspeed(&m);
    cr_diagnose(d, CR_NOTE, name->place, "%s: %s becomes %s with fsdp_size %d%s", role, name->text,
                m.is_train ? "fsdp2_train" : "fsdp2_infer", num > 1 ? num : 1,
                m.said.data ? m.said.data : "");
    cri_set_text(c, strategy, "strategy_name", m.is_train ? "fsdp2_train" : "fsdp2_infer");
    cr_node_set(&c->yaml, strategy, "strategy_config", m.to->place, m.to);
    cr_buf_free(&m.said);
}

void cri_map_engines(cr_config *c, cr_diagnostics *d)
{
    const cr_node *is_asked = cr_node_get(c->yaml.root, "as_fsdp2");

    if (!is_asked || is_asked->kind != CR_NODE_BOOL || !is_asked->flag) return;
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        if (cr_role_kinds[r].task == CR_TASK_GENERATE) continue;
        map_block(c, cr_role_kinds[r].name, d);
        if (cr_role_kinds[r].sft_name) map_block(c, cr_role_kinds[r].sft_name, d);
        if (cr_role_kinds[r].task == CR_TASK_TRAIN) map_block(c, cr_role_kinds[r].distill_name, d);
    }
}
