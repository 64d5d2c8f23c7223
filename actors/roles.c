/* roles.c -- see roles.h. */
#include "actors/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cr_worker_config *train_of(const cr_config *c)
{
    return &c->train;
}

static const cr_worker_config *infer_of(const cr_config *c)
{
    return &c->infer;
}

static const cr_worker_config *reference_of(const cr_config *c)
{
    return c->enable_reference ? &c->reference : NULL;
}

const cr_role_kind cr_role_kinds[CR_NUM_ROLES] = {
    [CR_ROLE_TRAIN] = {"actor_train", "sft_train", train_of, .is_trained = true},
    [CR_ROLE_INFER] = {"actor_infer", NULL, infer_of, .is_engine = true},
    [CR_ROLE_REFERENCE] = {"reference", NULL, reference_of},
};

const char *cr_role_name(cr_role role, const cr_config *config)
{
    const cr_role_kind *kind = &cr_role_kinds[role];

    return config->kind == CR_PIPELINE_SFT && kind->sft_name ? kind->sft_name : kind->name;
}

void cr_layout_init(cr_layout *layout, const cr_config *config)
{
    *layout = (cr_layout){0};
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_role_kind *kind = &cr_role_kinds[r];
        struct cr_role_ranks *ranks = &layout->role[r];
        ranks->name = cr_role_name((cr_role)r, config);
        if (config->kind != CR_PIPELINE_SFT || kind->sft_name) ranks->worker = kind->worker(config);
        ranks->first = layout->num_ranks;
        ranks->num = ranks->worker ? ranks->worker->num_devices : 0;
        layout->num_ranks += ranks->num;
    }
}

cr_role cr_layout_role(const cr_layout *layout, int world_rank)
{
    int r = 0;

    while (r < CR_NUM_ROLES && (world_rank < layout->role[r].first ||
                                world_rank >= layout->role[r].first + layout->role[r].num))
        r++;
    return (cr_role)r;
}

const char *cr_layout_name(const cr_layout *layout, int world_rank, char text[64])
{
    cr_role role = cr_layout_role(layout, world_rank);

    if (role == CR_NUM_ROLES)
        snprintf(text, 64, "rank %d", world_rank);
    else
        snprintf(text, 64, "%s rank %d", layout->role[role].name,
                 world_rank - layout->role[role].first);
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
