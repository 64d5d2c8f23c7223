/* reward_model.c -- blocks of rewards with the rule reward_model: a model whose score is the reward (see bind.h). */
#include "configs/bind.h"

#include <string.h>

bool cri_is_reward_model(const char *domain, const char *cls)
{
    const char *last = cls ? strrchr(cls, '.') : NULL;

    for (size_t i = 0; i < cri_num_reward_classes; i++) {
        const cri_reward_class *k = &cri_reward_classes[i];
        if (strcmp(k->rule, CRI_REWARD_MODEL) == 0)
            return strcmp(cls ? (last ? last + 1 : cls) : domain, cls ? k->cls : k->rule) == 0;
    }
    return false;
}

static void check_keys(const cr_node *block, const cr_reward_config *r, cr_diagnostics *d)
{
    const cr_worker_config *w = &r->model;
    const char *missing = !w->model_path  ? "model_args.model_name_or_path"
                          : !w->is_mapped ? "device_mapping"
                                          : NULL;

    if (missing)
        cr_diagnose(d, CR_ERROR, block->place,
                    "rewards.%s.%s is missing: a RewardWorker has a model", r->domain, missing);
    if (w->strategy == CR_STRATEGY_FSDP2_TRAIN)
        cr_diagnose(d, CR_ERROR, block->place,
                    "rewards.%s: a reward model is not trained: strategy_name: fsdp2_infer",
                    r->domain);
    if (w->fsdp_size > 1 || w->ulysses_size > 1 || w->ep_size > 1)
        cr_diagnose(d, CR_ERROR, block->place,
                    "rewards.%s: fsdp_size, ulysses_size and ep_size above 1 are not available yet "
                    "for a reward model: each device has the whole of it",
                    r->domain);
    if (cri_is_in_file(block, "world_size") && w->num_devices > 0 &&
        r->world_size != w->num_devices)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "world_size")->place,
                    "rewards.%s: world_size %lld, and device_mapping has %d devices: a worker for "
                    "each (leave world_size out)",
                    r->domain, (long long)r->world_size, w->num_devices);
}

void cri_bind_reward_model(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    cr_worker_config *w = &r->model;

    w->task = CR_TASK_SCORE;
    w->value_head = CR_VALUE_HEAD_SCORE;
    w->infer_batch_size = cri_int_of(block, "infer_batch_size");
    cri_bind_reward_worker(c, block, r->domain, w, d);
    check_keys(block, r, d);
    w->fsdp_size = w->ulysses_size = w->ep_size = w->efsdp_size = 1;
    if (!cri_is_in_file(block, "world_size") && w->num_devices > 0) {
        r->world_size = w->num_devices;
        cri_set_int(c, block, "world_size", r->world_size);
    }
    if (cri_is_in_file(block, "max_in_flight")) return;
    r->max_in_flight = w->infer_batch_size;
    cri_set_int(c, block, "max_in_flight", r->max_in_flight);
}
