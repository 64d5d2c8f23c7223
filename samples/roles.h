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
/* On how many numbers of device_mapping the GPU of a world rank is divided: those of ranks on its host that leave the same rest by num_gpus,
 * its own among them. Roles with the same number take turns there. 0 GPUs: each number has its own. host_of: [num_ranks] any number for each
 * host, or NULL: all are on one. */
int cr_layout_num_on_gpu(const cr_layout *layout, int world_rank, int num_gpus, const int *host_of);
/* "actor_train rank 1" of a world rank; text holds 64 bytes. */
const char *cr_layout_name(const cr_layout *layout, int world_rank, char text[64]);
/* system_envs (NAME=VALUE, or NULL) into the environment of this process, before it starts a thread. */
void cr_envs_set(char *const *envs);

#endif
