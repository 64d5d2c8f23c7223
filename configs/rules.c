/* rules.c -- rules that tie a worker's mesh to its devices and its model, and limits of products of counts, reported
 * where the YAML breaks them, before anything starts. mesh/ has the same rules for who has no YAML. */
#include "base/json.h"
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

/* "1, 2, 4 or 8" */
static void list_divisors(int64_t num, char text[160])
{
    text[0] = 0;
    for (int64_t k = 1; k <= num && strlen(text) < 140; k++)
        if (num % k == 0)
            snprintf(text + strlen(text), 160 - strlen(text), "%s%lld",
                     *text ? k == num ? " or " : ", " : "", (long long)k);
}

/* What the model's config.json says of the language model: the file, or its text_config; NULL: nothing
 * (the reader of the model reports why). The caller owns it. */
static json_t *read_config(const char *folder)
{
    char *path = cr_asprintf("%s/config.json", folder ? folder : "");
    cr_buf text = {0};
    json_t *json = NULL, *text_config;
    cr_err ignored = {0};

    if (cr_file_read(path, &text, &ignored) == CR_OK)
        cr_note(cr_json_parse(text.data, text.num_bytes, path, &json, &ignored));
    cr_buf_free(&text);
    cr_free(path);
    text_config = json_object_get(json, "text_config");
    if (!json_is_object(text_config)) return json;
    json_incref(text_config);
    json_decref(json);
    return text_config;
}

/* 0: config.json does not say. */
static void read_heads(const char *folder, int64_t *heads, int64_t *kv_heads)
{
    json_t *json = read_config(folder);

    *heads = json_integer_value(json_object_get(json, "num_attention_heads"));
    *kv_heads = json_integer_value(json_object_get(json, "num_key_value_heads"));
    if (*kv_heads < 1) *kv_heads = *heads;
    json_decref(json);
}

static void check_heads(const cr_worker_config *w, cr_place place, cr_diagnostics *d)
{
    int64_t heads, kv_heads, num = w->ulysses_size;

    read_heads(w->model_path, &heads, &kv_heads);
    if (heads < 1) return;
    if (heads % num != 0)
        cr_diagnose(d, CR_ERROR, place,
                    "M4: ulysses_size %lld does not divide the %lld attention heads of %s (use a "
                    "divisor of both %lld and the devices)",
                    (long long)num, (long long)heads, w->model_path, (long long)heads);
    else if (kv_heads % num != 0 && num % kv_heads != 0)
        cr_diagnose(d, CR_ERROR, place,
                    "M5: ulysses_size %lld and the %lld key/value heads of %s: one must divide the "
                    "other",
                    (long long)num, (long long)kv_heads, w->model_path);
}

static void check_ulysses(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d)
{
    const cr_node *n = cr_node_at(block, "model_args.ulysses_size");
    int64_t num = w->ulysses_size, devices = w->num_devices,
            fsdp = w->fsdp_size <= 1 || w->fsdp_size > devices ? devices : w->fsdp_size;
    char divisors[160];

    if (!n || num <= 1) return;
    list_divisors(devices, divisors);
    if (w->task == CR_TASK_GENERATE)
        cr_diagnose(d, CR_ERROR, n->place,
                    "M11: actor_infer generates, and ulysses_size %lld is for training and "
                    "log-probs only (use 1)",
                    (long long)num);
    else if (devices > 0 && (num > devices || devices % num != 0))
        cr_diagnose(d, CR_ERROR, n->place,
                    "M2: ulysses_size %lld does not divide the %lld devices of %s (use %s)",
                    (long long)num, (long long)devices, w->name, divisors);
    else if (devices > 0 && fsdp < num)
        cr_diagnose(d, CR_ERROR, n->place,
                    "M3: ulysses_size %lld is above fsdp_size %lld (raise fsdp_size to a multiple "
                    "of it, or lower ulysses_size)",
                    (long long)num, (long long)fsdp);
    else
        check_heads(w, n->place, d);
}

static void check_reshard(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d)
{
    const cr_node *n = cr_node_at(block, "strategy_args.strategy_config.reshard_after_forward");
    int64_t W = w->num_devices, F = w->fsdp_size <= 1 || w->fsdp_size >= W ? W : w->fsdp_size;

    if (n && W > 0 && w->reshard_ranks > 1 && F % w->reshard_ranks != 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "U8: reshard_after_forward %d does not divide the %lld ranks of a shard group",
                    w->reshard_ranks, (long long)F);
}

/* What the model's config.json says of experts, 0: nothing. */
static int64_t read_experts(const char *folder)
{
    json_t *json = read_config(folder);
    int64_t num = json_integer_value(json_object_get(json, "num_experts"));

    if (num < 1) num = json_integer_value(json_object_get(json, "num_local_experts"));
    json_decref(json);
    return num;
}

static void check_experts(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d)
{
    const cr_node *n = cr_node_at(block, "strategy_args.strategy_config.ep_size");
    int64_t ep = w->ep_size, efsdp = w->efsdp_size, devices = w->num_devices, experts;

    if (!n || ep <= 1) return;
    experts = read_experts(w->model_path);
    if (devices > 0 && (ep * efsdp > devices || devices % (ep * efsdp) != 0))
        cr_diagnose(d, CR_ERROR, n->place,
                    "M7: ep_size %lld times efsdp_size %lld does not divide the %lld devices of %s",
                    (long long)ep, (long long)efsdp, (long long)devices, w->name);
    else if (w->wrap.num_moe_experts == 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "M9: with ep_size %lld wrap_policy.moe_experts must name the class of the "
                    "experts (Qwen3MoeMLP, or Qwen3MoeExperts for all of a layer)",
                    (long long)ep);
    else if (experts > 0 && experts % ep != 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "M8: ep_size %lld does not divide the %lld experts of %s", (long long)ep,
                    (long long)experts, w->model_path);
}

void cri_check_mesh(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d)
{
    const cr_node *n = cr_node_at(block, "strategy_args.strategy_config.fsdp_size");
    int64_t devices = w->num_devices, size = w->fsdp_size;
    char divisors[160];

    check_reshard(w, block, d);
    check_ulysses(w, block, d);
    check_experts(w, block, d);
    if (!n || devices == 0 || size <= 1 || size >= devices || devices % size == 0) return;
    list_divisors(devices, divisors);
    cr_diagnose(d, CR_ERROR, n->place,
                "M1: fsdp_size %lld does not divide the %lld devices of %s (use %s)",
                (long long)size, (long long)devices, w->name, divisors);
}

void cri_check_sizes(const cr_config *c, cr_diagnostics *d)
{
    enum { BLOCK = 16 }; /* tokens of a block of the KV cache; int32 counts blocks and samples */
    const bool is_rlvr = c->kind == CR_PIPELINE_RLVR;
    char of_train[64];
    const cr_training_args *t = &c->train.training;
    const int64_t mini = cr_worker_batch_samples(&c->train),
                  longest = c->infer.engine.max_model_len ? c->infer.engine.max_model_len
                                                          : c->sequence_length,
                  samples = !is_rlvr ? mini : c->rollout_batch_size * c->group_size;
    const struct {
        const char *key, *what, *factors;
        int64_t a, b, max;
    } limits[] = {{"rollout_batch_size", "samples of a step",
                   "rollout_batch_size x num_return_sequences_in_group", c->rollout_batch_size,
                   !is_rlvr ? 0 : c->group_size, INT32_MAX},
                  {of_train, "samples of an update on one rank",
                   "per_device_train_batch_size x gradient_accumulation_steps",
                   t->per_device_train_batch_size, t->gradient_accumulation_steps, INT32_MAX},
                  {"sequence_length", "tokens of a step", "samples x sequence_length",
                   samples < INT32_MAX ? samples : INT32_MAX, c->sequence_length, (int64_t)1 << 40},
                  {"max_running_requests", "blocks of the KV cache",
                   "max_running_requests x blocks of 16 tokens of max_model_len or sequence_length",
                   c->max_running_requests, !is_rlvr ? 0 : (longest + BLOCK - 1) / BLOCK,
                   INT32_MAX}};

    snprintf(of_train, sizeof of_train, "%s.training_args", c->train.name);
    for (size_t i = 0; i < CR_COUNT(limits); i++)
        if (limits[i].b > 0 && limits[i].a > limits[i].max / limits[i].b)
            cr_diagnose(d, CR_ERROR, cri_place_of(c, limits[i].key),
                        "%lld x %lld %s (%s) are more than the %lld that are possible",
                        (long long)limits[i].a, (long long)limits[i].b, limits[i].what,
                        limits[i].factors, (long long)limits[i].max);
}

void cri_check_positions(const cr_config *c, cr_diagnostics *d)
{
    const char *folder = c->train.model_path;
    const int64_t longest = c->sequence_length;
    json_t *json = read_config(folder);
    int64_t positions = json_integer_value(json_object_get(json, "max_position_embeddings"));

    json_decref(json);
    if (positions < 1 || longest <= positions) return;
    cr_diagnose(d, CR_WARNING, cri_place_of(c, "sequence_length"),
                "sequence_length %lld is more than the %lld positions (max_position_embeddings) "
                "that %s was made for: "
                "tokens after them are likely to be wrong, and rope type dynamic refuses them",
                (long long)longest, (long long)positions, folder);
}
