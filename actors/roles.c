/* roles.c -- see roles.h. */
#include "actors/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cr_layout_init(cr_layout *layout, const cr_config *config)
{
    bool is_sft = config->kind == CR_PIPELINE_SFT;

    *layout = (cr_layout){0};
    layout->role[CR_ROLE_TRAIN] = (struct cr_role_ranks){
        is_sft ? "sft_train" : "actor_train", &config->train, 0, config->train.num_devices};
    layout->role[CR_ROLE_INFER] = (struct cr_role_ranks){
        "actor_infer", is_sft ? NULL : &config->infer, 0, is_sft ? 0 : config->infer.num_devices};
    layout->role[CR_ROLE_REFERENCE] =
        (struct cr_role_ranks){"reference", config->enable_reference ? &config->reference : NULL, 0,
                               config->enable_reference ? config->reference.num_devices : 0};
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        layout->role[r].first = layout->num_ranks;
        layout->num_ranks += layout->role[r].num;
    }
}

const char *cr_layout_name(const cr_layout *layout, int world_rank, char text[64])
{
    snprintf(text, 64, "rank %d", world_rank);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (world_rank >= layout->role[r].first &&
            world_rank < layout->role[r].first + layout->role[r].num)
            snprintf(text, 64, "%s rank %d", layout->role[r].name,
                     world_rank - layout->role[r].first);
    return text;
}

void cr_envs_set(char *const *envs)
{
    for (size_t i = 0; envs && envs[i]; i++) {
        char *name = cr_strdup(envs[i]), *equals = strchr(name, '=');
        *equals = 0;
        CR_CHECK(setenv(name, equals + 1, 1) == 0, "setenv %s", name);
        cr_free(name);
    }
}
