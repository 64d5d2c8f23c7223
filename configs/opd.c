/* opd.c -- on-policy distillation: the teacher's block, its coefficient, and what they exclude (see bind.h). */
#include "configs/bind.h"

#include <string.h>

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

/* A map NAME: block becomes teacher, teacher_2, .., in its order. */
static void read_teachers(cr_yaml *yaml, cr_diagnostics *d)
{
    const struct cr_item *item = cr_node_item(yaml->root, "teacher");
    const cr_node *block = item ? item->value : NULL;

    if (!is_list_of_teachers(block)) return;
    if (block->num > CR_MAX_TEACHERS)
        cr_diagnose(d, CR_ERROR, block->items[CR_MAX_TEACHERS].place,
                    "teacher: %zu teachers, at most %d are possible", block->num, CR_MAX_TEACHERS);
    for (size_t i = 0; i < block->num && i < CR_MAX_TEACHERS; i++) {
        const struct cr_item *one = &block->items[i];
        const char *key = cr_role_kinds[CR_ROLE_TEACHER + i].name;
        cr_node_set(yaml, yaml->root, key, one->place, one->value);
        if (block->num > 1)
            cr_diagnose(d, CR_NOTE, one->place, "teacher.%.60s is the role %s", one->key, key);
    }
}

/* ROLL's files of the pure form have these instead of actor_train and actor_infer, and no is_pure_opd: its launcher sets
 * it. */
static void read_student(cr_yaml *yaml, const char *student, const char *actor, cr_diagnostics *d)
{
    struct cr_item *item = cr_node_item(yaml->root, student);
    cr_node *flag = cr_node_get(yaml->root, "is_pure_opd");

    if (!item || item->value->kind != CR_NODE_MAP) return;
    if (flag && flag->kind == CR_NODE_BOOL && !flag->flag)
        cr_diagnose(d, CR_ERROR, item->place,
                    "%s is of runs with is_pure_opd: true (leave is_pure_opd out, or call it %s)",
                    student, actor);
    if (cr_node_get(yaml->root, actor))
        cr_diagnose(d, CR_ERROR, item->place, "%s and %s exclude each other", student, actor);
    cr_node_set(yaml, yaml->root, actor, item->place, item->value);
    item = cr_node_item(yaml->root, student);
    item->value = cr_node_new(yaml, CR_NODE_NULL, item->place);
    if (flag && flag->kind != CR_NODE_NULL) return;
    flag = cr_node_new(yaml, CR_NODE_BOOL, item->place);
    flag->flag = true;
    cr_node_set(yaml, yaml->root, "is_pure_opd", item->place, flag);
}

void cri_read_opd(cr_yaml *yaml, cr_diagnostics *d)
{
    read_teachers(yaml, d);
    read_student(yaml, "student_train", "actor_train", d);
    read_student(yaml, "student_infer", "actor_infer", d);
}

void cri_fix_pure_opd(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    static const char *const fixed[][2] = {
        {"adv_estimator", "reinforce"}, {"gamma", "0.0"},
        {"critic_warmup", "0"},         {"use_kl_loss", "false"},
        {"whiten_rewards", "false"},    {"add_token_level_kl", "false"},
        {"reward_clip", "null"},        {"norm_mean_type", "null"},
        {"norm_std_type", "null"}};
    const cr_place nowhere = {c->path, 0, 0};

    for (size_t i = 0; i < CR_COUNT(fixed) && cri_flag_of(root, "is_pure_opd"); i++) {
        const char *key = fixed[i][0];
        cr_node *is = cr_node_get(root, key),
                *want = cr_yaml_parse_value(&c->yaml, fixed[i][1], nowhere, d);
        cr_buf has = {0}, wants = {0};
        cr_node_write_json(is, &has);
        cr_node_write_json(want, &wants);
        if (cri_is_in_file(root, key) && strcmp(has.data, wants.data) != 0)
            cr_diagnose(
                d, CR_NOTE, is->place,
                "%s has no effect (is_pure_opd: advantages are the distance to the teacher)", key);
        cr_node_set(&c->yaml, root, key, nowhere, want);
        cr_buf_free(&has);
        cr_buf_free(&wants);
    }
}

static void bind_teachers(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    const bool is_asked = cri_flag_of(root, "is_pure_opd") || cri_flag_of(root, "use_opd");

    for (int k = 0; k < CR_MAX_TEACHERS; k++) {
        const char *name = cr_role_kinds[CR_ROLE_TEACHER + k].name;
        cr_worker_config *w = cr_role_worker((cr_role)(CR_ROLE_TEACHER + k), c);
        cr_teacher_keys *t = &c->teachers[k];
        if (!w->is_given) continue;
        t->tags = cri_texts_of(cr_node_get(root, name), "tag_included", &t->num_tags);
        t->opd_kl_coef = cri_real_of(cr_node_get(root, name), "opd_kl_coef");
        w->is_needed = is_asked;
        if (k > 0 && !c->teacher.is_given)
            cr_diagnose(d, CR_ERROR, cri_place_of(c, name), "%s: there is no block teacher", name);
    }
}

void cri_bind_opd(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_advantage_config *a = &c->algorithm.advantage;
    bool is_pure = cri_flag_of(root, "is_pure_opd"), is_mixed = cri_flag_of(root, "use_opd");

    a->opd = is_pure ? CR_OPD_PURE : is_mixed ? CR_OPD_MIXED : CR_OPD_NONE;
    bind_teachers(c, root, d);
    a->opd_kl_coef = c->teachers[0].opd_kl_coef;
    c->teacher.is_needed = a->opd != CR_OPD_NONE;
    c->is_teacher_reference = is_pure || (is_mixed && !c->reference.is_given);
    if (is_pure && is_mixed)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "use_opd"),
                    "use_opd and is_pure_opd exclude each other: with rewards, or without");
    if (is_pure && c->reference.is_given)
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "reference"),
            "is_pure_opd: the teacher takes the place of the reference (leave the block out)");
    if (is_pure && c->teacher.is_given && a->opd_kl_coef <= 0 && !c->more_teachers[0].is_given)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "teacher.opd_kl_coef"),
                    "opd_kl_coef is 0: with is_pure_opd every advantage is then 0");
    if (c->teacher.is_needed && !c->teacher.is_given)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, is_pure ? "is_pure_opd" : "use_opd"),
                    "%s needs a teacher: a block with a model and device_mapping, or "
                    "teacher: {service: URL}",
                    is_pure ? "is_pure_opd" : "use_opd");
    if (c->teacher.is_given && !c->teacher.is_needed)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "teacher"),
                    "nothing asks the teacher (use_opd: true takes its log-probs into the "
                    "advantages, is_pure_opd: true nothing else; or leave the block out)");
}
