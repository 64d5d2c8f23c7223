/* opd.c -- on-policy distillation: the teacher's block, its coefficient, and what they exclude (see bind.h). */
#include "configs/bind.h"

/* Blocks of workers by name, instead of a worker's keys. */
static bool is_list_of_teachers(const cr_node *block)
{
    if (!block || block->kind != CR_NODE_MAP || block->num == 0) return false;
    for (size_t i = 0; i < block->num; i++)
        if (block->items[i].value->kind != CR_NODE_MAP ||
            cri_find_key("teacher", block->items[i].key))
            return false;
    return true;
}

void cri_read_teachers(cr_yaml *yaml, cr_diagnostics *d)
{
    const struct cr_item *item = cr_node_item(yaml->root, "teacher");
    const cr_node *block = item ? item->value : NULL;

    if (!is_list_of_teachers(block)) return;
    if (block->num > 1)
        cr_diagnose(d, CR_ERROR, block->items[1].place,
                    "teacher: several teachers (%.60s, %.60s%s) are not available yet (keep one)",
                    block->items[0].key, block->items[1].key, block->num > 2 ? ", .." : "");
    cr_node_set(yaml, yaml->root, "teacher", item->place, block->items[0].value);
}

void cri_bind_opd(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_advantage_config *a = &c->algorithm.advantage;
    const cr_node *block = cr_node_get(root, "teacher");

    a->opd = cri_flag_of(root, "use_opd") ? CR_OPD_MIXED : CR_OPD_NONE;
    a->opd_kl_coef = c->teacher.is_given ? cri_real_of(block, "opd_kl_coef") : 0;
    c->teacher.is_needed = a->opd != CR_OPD_NONE;
    c->is_teacher_reference = c->teacher.is_needed && !c->reference.is_given;
    if (c->teacher.is_needed && !c->teacher.is_given)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "use_opd"),
                    "use_opd needs a teacher: a block with a model and device_mapping, or "
                    "teacher: {service: URL}");
    if (c->teacher.is_given && !c->teacher.is_needed)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "teacher"),
                    "nothing asks the teacher (use_opd: true takes its log-probs into the "
                    "advantages; leave it or the block out)");
}
