/* roles.c -- the roles of a run (see configs.h). */
#include "configs/configs.h"

#include <stddef.h>

const char *const cr_pipeline_names[] = {"rlvr", "sft", "dpo", "distill"};

const cr_role_kind cr_role_kinds[CR_NUM_ROLES] = {
    [CR_ROLE_TRAIN] = {"actor_train", "sft_train", "student", CR_TASK_TRAIN,
                       offsetof(cr_config, train)},
    [CR_ROLE_INFER] = {"actor_infer", NULL, NULL, CR_TASK_GENERATE, offsetof(cr_config, infer)},
    [CR_ROLE_REFERENCE] = {"reference", NULL, NULL, CR_TASK_SCORE, offsetof(cr_config, reference)},
    [CR_ROLE_TEACHER] = {"teacher", NULL, "teacher", CR_TASK_SCORE, offsetof(cr_config, teacher)},
    [CR_ROLE_TEACHER_2] = {"teacher_2", NULL, NULL, CR_TASK_SCORE,
                           offsetof(cr_config, more_teachers[0])},
    [CR_ROLE_TEACHER_3] = {"teacher_3", NULL, NULL, CR_TASK_SCORE,
                           offsetof(cr_config, more_teachers[1])},
    [CR_ROLE_TEACHER_4] = {"teacher_4", NULL, NULL, CR_TASK_SCORE,
                           offsetof(cr_config, more_teachers[2])},
    [CR_ROLE_CRITIC] = {"critic", NULL, NULL, CR_TASK_VALUE, offsetof(cr_config, critic)},
};

const char *cr_role_name(cr_role role, const cr_config *config)
{
    const cr_role_kind *kind = &cr_role_kinds[role];

    return config->kind == CR_PIPELINE_SFT && kind->sft_name           ? kind->sft_name
           : config->kind == CR_PIPELINE_DISTILL && kind->distill_name ? kind->distill_name
                                                                       : kind->name;
}

cr_worker_config *cr_role_worker(cr_role role, cr_config *config)
{
    return (cr_worker_config *)(void *)((char *)config + cr_role_kinds[role].worker);
}

const cr_worker_config *cr_role_in_run(cr_role role, const cr_config *config)
{
    const cr_role_kind *kind = &cr_role_kinds[role];
    const cr_worker_config *w =
        (const cr_worker_config *)(const void *)((const char *)config + kind->worker);

    if (config->kind == CR_PIPELINE_SFT) return kind->sft_name ? w : NULL;
    if (config->kind == CR_PIPELINE_DISTILL) return kind->distill_name ? w : NULL;
    if (config->kind == CR_PIPELINE_DPO && kind->task == CR_TASK_GENERATE) return NULL;
    if (config->val_only) return kind->task == CR_TASK_GENERATE ? w : NULL;
    if (config->rollouts_from && kind->task == CR_TASK_GENERATE) return NULL;
    if (kind->task == CR_TASK_TRAIN || kind->task == CR_TASK_GENERATE) return w;
    return w->is_needed && !w->service.url && !w->is_of_trainer ? w : NULL;
}
