/* roles.h -- which world ranks have which role of a run: consecutive ones, in the order of cr_role. */
#ifndef CR_ROLES_H
#define CR_ROLES_H

#include "configs/configs.h"

typedef struct cr_layout {
    struct cr_role_ranks {
        const char *name;               /* "actor_train", or "sft_train" */
        const cr_worker_config *worker; /* borrowed from the configuration; NULL: not in this run */
        int first, num;                 /* world ranks first .. first + num - 1 */
    } role[CR_NUM_ROLES];
    int num_ranks;
} cr_layout;

void cr_layout_init(cr_layout *layout, const cr_config *config);
/* The role of a world rank; CR_NUM_ROLES: there is no such rank. */
cr_role cr_layout_role(const cr_layout *layout, int world_rank);
/* "actor_train rank 1" of a world rank; text holds 64 bytes. */
const char *cr_layout_name(const cr_layout *layout, int world_rank, char text[64]);
/* system_envs (NAME=VALUE, or NULL) into the environment of this process, before it starts a thread. */
void cr_envs_set(char *const *envs);

#endif
