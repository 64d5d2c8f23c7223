/* roles.h -- which world rank plays what: ranks are dealt to roles in the order of this enum. */
#ifndef CR_ROLES_H
#define CR_ROLES_H

#include "configs/configs.h"

typedef enum cr_role { CR_ROLE_TRAIN, CR_ROLE_INFER, CR_ROLE_REFERENCE, CR_NUM_ROLES } cr_role;

typedef struct cr_layout {
    struct cr_role_ranks {
        const char *name;               /* "actor_train", or "sft_train" */
        const cr_worker_config *worker; /* borrowed from the configuration; NULL: not in this run */
        int first, num;                 /* world ranks first .. first + num - 1 */
    } role[CR_NUM_ROLES];
    int num_ranks;
} cr_layout;

void cr_layout_init(cr_layout *layout, const cr_config *config);
/* "actor_train rank 1" of a world rank; text holds 64 bytes. */
const char *cr_layout_name(const cr_layout *layout, int world_rank, char text[64]);
/* system_envs (NAME=VALUE, or NULL) into the environment of this process, before it starts a thread. */
void cr_envs_set(char *const *envs);

#endif
