/* critic.c -- the critic of adv_estimator gae: its block, its head and the keys that only it reads (see bind.h). */
#include "configs/bind.h"

void cri_bind_value_head(const cr_node *model, cr_worker_config *w, cr_diagnostics *d)
{
    static const char key[] = "model_type";
    const cr_choice_value_head head = (cr_choice_value_head)cri_choice_of("model_args", model, key);

    if (w->value_head == CR_VALUE_HEAD_SCORE) {
        if (head != CR_VALUE_HEAD_NONE && head != CR_VALUE_HEAD_SCORE)
            cr_diagnose(d, CR_ERROR, cr_node_get(model, key)->place,
                        "rewards.%s: model_type: auto_sequence_classification is there for a "
                        "reward model, no other is",
                        w->name);
        return;
    }
    if (w->task != CR_TASK_VALUE) {
        if (cri_is_in_file(model, key))
            cr_diagnose_unused(d, cr_node_get(model, key)->place, key,
                               "config.json says what the model is, and it is no critic");
        return;
    }
    if (head == CR_VALUE_HEAD_SCORE)
        cr_diagnose(d, CR_ERROR, cr_node_get(model, key)->place,
                    "model_type: auto_sequence_classification is a reward model (docs/rewards.md); "
                    "a critic is trl or auto_token_classification");
    w->value_head = head;
    if (w->value_head == CR_VALUE_HEAD_NONE) w->value_head = CR_VALUE_HEAD_TOKENS;
}

/* Without it nothing reads these. */
static void note_without_critic(const cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    static const char *const keys[] = {"lambd", "value_clip", "reward_pretrain"};

    for (size_t i = 0; i < CR_COUNT(keys); i++)
        if (cri_is_in_file(root, keys[i]))
            cr_diagnose_unused(d, cr_node_get(root, keys[i])->place, keys[i],
                               "there is no critic: only adv_estimator gae reads it");
    if (c->critic.is_given)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "critic"),
                    "critic has no effect (only adv_estimator: gae asks for values)");
}

void cri_bind_critic(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_worker_config *w = &c->critic;

    c->algorithm.advantage.lambd = cri_real_of(root, "lambd");
    c->algorithm.value_clip = cri_real_of(root, "value_clip");
    w->is_needed = c->algorithm.advantage.adv_estimator == CR_ADV_GAE;
    if (!w->is_needed)
        note_without_critic(c, root, d);
    else if (!w->is_given && !c->val_only)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "adv_estimator"),
                    "adv_estimator: gae, which is ROLL's default, needs a critic: a block critic "
                    "with a device_mapping (or adv_estimator: grpo or reinforce, without one)");
}
