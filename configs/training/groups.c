/* groups.c -- training_args.optim: which optimizer; param_groups: parameters with numbers of their own. */
#include "configs/bind.h"

enum { MAX_GROUPS = 32 }; /* as strategies/optim/optimizer.h */
enum { OPTIM_MUON = 2 };  /* in the words of optim */

static double real_or(const cr_node *map, const char *key, double otherwise)
{
    return cri_is_given(map, key) ? cri_real_of(map, key) : otherwise;
}

static void check_group(const cr_node *n, const cr_param_group *g, const cr_training_args *t,
                        cr_diagnostics *d)
{
    if (!g->params)
        cr_diagnose(d, CR_ERROR, n->place,
                    "param_groups: params is missing (names of parameters or ends of them, or a "
                    "regular expression of whole names)");
    if (g->learning_rate < 0 && g->weight_decay < 0 && !(g->is_adamw && t->muon.is_on))
        cr_diagnose(d, CR_ERROR, n->place,
                    "param_groups: a group needs learning_rate, weight_decay or, with optim: muon, "
                    "optim: adamw_torch, else it has no effect");
    if (g->learning_rate >= 0 && !(t->learning_rate > 0))
        cr_diagnose(d, CR_ERROR, n->place,
                    "param_groups: learning_rate of a group follows the schedule of "
                    "training_args.learning_rate, which is 0");
}

void cri_bind_optimizer(cr_config *c, cr_node *block, cr_training_args *t, cr_diagnostics *d)
{
    const cr_node *n = cr_node_get(block, "muon_args");
    cr_muon_keys *m = &t->muon;

    m->is_on = cri_choice_of("training_args", block, "optim") == OPTIM_MUON;
    if (!m->is_on) {
        if (cri_is_in_file(block, "muon_args"))
            cr_diagnose_unused(d, n->place, "muon_args", "optim is not muon");
        return;
    }
    n = cri_block_of(c, block, "muon_args", "muon", d);
    *m = (cr_muon_keys){.is_on = true,
                        .nesterov = cri_flag_of(n, "nesterov"),
                        .learning_rate = real_or(n, "learning_rate", -1),
                        .weight_decay = real_or(n, "weight_decay", -1),
                        .momentum = cri_real_of(n, "momentum"),
                        .eps = cri_real_of(n, "eps"),
                        .ns_steps = cri_int_of(n, "ns_steps"),
                        .adjust_lr_fn =
                            (cr_choice_adjust_lr)cri_choice_of("muon", n, "adjust_lr_fn")};
    if (m->learning_rate >= 0 && !(t->learning_rate > 0))
        cr_diagnose(d, CR_ERROR, n->place,
                    "muon_args: learning_rate follows the schedule of training_args.learning_rate, "
                    "which is 0");
}

void cri_check_optimizer(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d)
{
    const char *with = cr_is_lora(&w->lora)                ? "adapters (AdamW trains them)"
                       : w->is_offloaded                   ? "offload_policy"
                       : w->master_dtype != CR_CHOICE_FP32 ? "master_dtype: bf16"
                                                           : NULL;

    if (w->training.muon.is_on && with)
        cr_diagnose(d, CR_ERROR, cr_node_at(block, "training_args.optim")->place,
                    "%s: optim: muon is not available with %s", w->name, with);
}

void cri_bind_param_groups(const cr_node *block, cr_training_args *t, cr_diagnostics *d)
{
    const cr_node *list = cr_node_get(block, "param_groups");

    if (!list || list->kind != CR_NODE_LIST || list->num == 0) return;
    if (list->num > MAX_GROUPS) {
        cr_diagnose(d, CR_ERROR, list->place, "param_groups: at most %d groups", MAX_GROUPS);
        return;
    }
    t->param_groups = CR_NEW_ARRAY(cr_param_group, list->num);
    for (size_t i = 0; i < list->num; i++) {
        const cr_node *n = list->items[i].value;
        cr_param_group *g = &t->param_groups[t->num_param_groups];
        if (n->kind != CR_NODE_MAP) continue; /* the schema has refused it */
        *g = (cr_param_group){.params = cri_text_of(n, "params"),
                              .learning_rate = real_or(n, "learning_rate", -1),
                              .weight_decay = real_or(n, "weight_decay", -1),
                              .is_adamw = cri_is_given(n, "optim")};
        t->num_param_groups++;
        check_group(n, g, t, d);
    }
}

void cri_training_free(cr_training_args *t)
{
    for (size_t i = 0; i < t->num_param_groups; i++)
        cr_free(t->param_groups[i].params);
    cr_free(t->param_groups);
}
