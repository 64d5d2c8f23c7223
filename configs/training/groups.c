/* groups.c -- training_args.param_groups: parameters with a learning rate or a weight decay of their own. */
#include "configs/bind.h"

enum { MAX_GROUPS = 32 }; /* as strategies/optimizer.h */

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
    if (g->learning_rate < 0 && g->weight_decay < 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "param_groups: a group needs learning_rate or weight_decay, else it has no "
                    "effect");
    if (g->learning_rate >= 0 && !(t->learning_rate > 0))
        cr_diagnose(d, CR_ERROR, n->place,
                    "param_groups: learning_rate of a group follows the schedule of "
                    "training_args.learning_rate, which is 0");
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
                              .weight_decay = real_or(n, "weight_decay", -1)};
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
