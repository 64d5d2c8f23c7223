/* worker_keys.c -- see worker_keys.h. */
#include "serve/models/worker_keys.h"
#include "configs/configs.h"

#include <string.h>

#define STRATEGY "strategy_args.strategy_config."

/* One that ends in '.' stands for all keys in that block. */
static const char *const known[] = {
    "device_mapping",
    "data_args.template",
    "model_args.dtype",
    "model_args.ulysses_size",
    "strategy_args.strategy_name",
    STRATEGY "param_dtype",
    STRATEGY "output_dtype",
    STRATEGY "buffer_dtype",
    STRATEGY "fsdp_size",
    STRATEGY "ep_size",
    STRATEGY "efsdp_size",
    STRATEGY "apply_expert_patch",
    STRATEGY "reshard_after_forward",
    STRATEGY "offload_policy",
    STRATEGY "apply_tiled_mlp",
    STRATEGY "tiled_num_shards",
    STRATEGY "wrap_policy.",
    STRATEGY "max_model_len",
};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < CR_COUNT(known); i++) {
        size_t num = strlen(known[i]);
        if (known[i][num - 1] == '.' ? strncmp(key, known[i], num) == 0
                                     : strcmp(key, known[i]) == 0)
            return true;
    }
    return false;
}

/* All keys of a block, in the blocks inside it, too. */
static cr_status check_block(const cr_node *block, const char *name, cr_err *err)
{
    cr_status status = CR_OK;

    for (size_t i = 0; i < block->num && status == CR_OK; i++) {
        const cr_node *value = block->items[i].value;
        char *key = cr_asprintf("%s%s%s", name, *name ? "." : "", block->items[i].key);
        if (value->kind == CR_NODE_MAP)
            status = check_block(value, key, err);
        else if (!is_known(key))
            status = cr_fail(err, CR_EUSAGE,
                             "%.80s has no effect in a service: it reads device_mapping, "
                             "data_args.template, model_args.dtype and ulysses_size, and "
                             "strategy_args (docs/serve.md)",
                             key);
        cr_free(key);
    }
    return status;
}

cr_status cr_serve_keys_check(const cr_words *words, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_yaml yaml = {0};
    cr_status status = CR_OK;

    cr_yaml_load(&yaml, NULL, NULL, words->word + 1, words->num - 1, &d);
    if (d.num_errors == 0) status = check_block(yaml.root, "", err);
    cr_yaml_free(&yaml);
    cr_diagnostics_free(&d);
    return status;
}
