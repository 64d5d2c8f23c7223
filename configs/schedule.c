/* schedule.c -- lr_scheduler_type and lr_scheduler_kwargs of training_args. */
#include "configs/bind.h"

#include <math.h>

static cr_status bind_arg(cr_schedule kind, const struct cr_item *item, cr_schedule_args *args,
                          cr_err *err)
{
    const cr_node *n = item->value;
    const bool is_number = n->kind == CR_NODE_INT || n->kind == CR_NODE_REAL;

    return n->kind == CR_NODE_NULL
               ? CR_OK /* Transformers' None */
               : cr_schedule_set(kind, item->key,
                                 !is_number               ? NAN
                                 : n->kind == CR_NODE_INT ? (double)n->integer
                                                          : n->real,
                                 n->kind == CR_NODE_TEXT ? n->text : NULL, args, err);
}

void cri_bind_schedule(const cr_node *block, cr_training_args *t, cr_diagnostics *d)
{
    const cr_node *kwargs = cr_node_get(block, "lr_scheduler_kwargs");
    cr_lr_schedule s = {.kind =
                            (cr_schedule)cri_choice_of("training_args", block, "lr_scheduler_type"),
                        .learning_rate = t->learning_rate};
    size_t num_wrong = 0;
    cr_err err = {0};

    t->lr_scheduler_type = s.kind;
    if (s.kind >= CR_NUM_SCHEDULES) return; /* the schema has refused it */
    for (size_t i = 0; kwargs && kwargs->kind == CR_NODE_MAP && i < kwargs->num; i++) {
        cr_err wrong = {0};
        if (bind_arg(s.kind, &kwargs->items[i], &s.args, &wrong) == CR_OK) continue;
        num_wrong++;
        cr_diagnose(d, CR_ERROR, kwargs->items[i].place, "lr_scheduler_kwargs: %s", wrong.msg);
    }
    t->lr_scheduler_kwargs = s.args;
    if (num_wrong == 0 && cr_schedule_check(&s, &err) != CR_OK)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "lr_scheduler_type")->place,
                    "lr_scheduler_kwargs: %s", err.msg);
}

int64_t cr_rlvr_num_updates(const cr_config *c, const cr_worker_config *trained)
{
    int64_t epochs = trained == &c->train ? c->algorithm.ppo_epochs : 1,
            num = c->max_steps * c->rollout_batch_size * c->group_size * epochs /
                  (cr_worker_num_batches(trained) * cr_worker_batch_samples(trained));

    return num < 1 ? 1 : num;
}
