/* rules.c -- rules that tie a worker's mesh to its devices and its model (fsdp2.md 1.4), told where the
 * YAML breaks them, before anything starts. mesh/ has the same rules for who has no YAML. */
#include "base/json.h"
#include "configs/schema.h"

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

/* 0: the model's config.json does not say (what reads the model tells why). */
static void read_heads(const char *folder, int64_t *heads, int64_t *kv_heads)
{
    char *path = cr_asprintf("%s/config.json", folder ? folder : "");
    cr_buf text = {0};
    json_t *json = NULL;
    const json_t *at;
    cr_err ignored = {0};

    *heads = *kv_heads = 0;
    if (cr_file_read(path, &text, &ignored) == CR_OK &&
        cr_json_parse(text.data, text.num_bytes, path, &json, &ignored) == CR_OK) {
        at = json_object_get(json, "text_config");
        if (!json_is_object(at)) at = json;
        *heads = json_integer_value(json_object_get(at, "num_attention_heads"));
        *kv_heads = json_integer_value(json_object_get(at, "num_key_value_heads"));
        if (*kv_heads < 1) *kv_heads = *heads;
    }
    json_decref(json);
    cr_buf_free(&text);
    cr_free(path);
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
    if (strcmp(w->name, "actor_infer") == 0)
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

void cri_check_mesh(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d)
{
    const cr_node *n = cr_node_at(block, "strategy_args.strategy_config.fsdp_size");
    int64_t devices = w->num_devices, size = w->fsdp_size;
    char divisors[160];

    check_reshard(w, block, d);
    check_ulysses(w, block, d);
    if (!n || devices == 0 || size <= 1 || size >= devices || devices % size == 0) return;
    list_divisors(devices, divisors);
    cr_diagnose(d, CR_ERROR, n->place,
                "M1: fsdp_size %lld does not divide the %lld devices of %s (use %s)",
                (long long)size, (long long)devices, w->name, divisors);
}
