/* follow.c -- sync_ref_model: a reference that follows the policy. */
#include "configs/bind.h"

/* Why there is no reference whose weights could be others; NULL: there is one. */
static const char *obstacle(const cr_config *c)
{
    const cr_worker_config *w = &c->reference;

    if (c->is_teacher_reference) return "the teacher is the reference, and stays as it is";
    if (!w->is_needed)
        return "there is no reference (init_kl_coef, use_kl_loss or enable_reference asks for one)";
    if (w->service.url)
        return "the reference is a service, whose weights are its own (give the block "
               "device_mapping)";
    if (cr_is_lora(&c->train.lora))
        return "actor_train has adapters (LoRA): a reference follows weights that are trained in "
               "full";
    return NULL;
}

static void note_unused(const cr_node *root, const char *key, cr_diagnostics *d)
{
    if (cri_is_in_file(root, key))
        cr_diagnose_unused(d, cr_node_get(root, key)->place, key, "sync_ref_model is false");
}

void cri_bind_follow(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    const int64_t steps = cri_int_of(root, "ref_model_sync_steps");
    const char *why = obstacle(c);

    if (!cri_flag_of(root, "sync_ref_model")) {
        note_unused(root, "ref_model_sync_steps", d);
        note_unused(root, "ref_model_mixup_alpha", d);
        return;
    }
    if (why) {
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sync_ref_model"), "sync_ref_model: %s", why);
        return;
    }
    c->follow = (cr_follow_keys){steps, cri_real_of(root, "ref_model_mixup_alpha")};
    c->reference.task = CR_TASK_FOLLOW;
    if (c->rows.keeps_reference) {
        c->rows.keeps_reference = false;
        cri_set_flag(c, root, "cache_reference_log_probs", false);
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "cache_reference_log_probs"),
                    "cache_reference_log_probs is false here: with sync_ref_model log-probs of the "
                    "reference change");
    }
    if (steps > c->max_steps)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "ref_model_sync_steps"),
                    "ref_model_sync_steps is %lld and max_steps %lld: the reference stays as it is",
                    (long long)steps, (long long)c->max_steps);
    if (c->follow.alpha < 1 && c->reference.dtype != CR_CHOICE_FP32)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "reference"),
                    "reference: after each sync its weights are rounded to the dtype of its "
                    "model_args, and smaller changes are lost (dtype: fp32 keeps them)");
}
