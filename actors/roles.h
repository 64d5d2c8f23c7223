/* roles.h -- the roles of a run, one row each, and which world rank plays what: ranks are dealt to roles in
 * the order of the enum.
 *
 * Another role: a value here, a row in roles.c (its names, its block of the configuration, how it runs), and
 * the commands that it takes in protocol.c.
 */
#ifndef CR_ROLES_H
#define CR_ROLES_H

#include "configs/configs.h"

typedef enum cr_role { CR_ROLE_TRAIN, CR_ROLE_INFER, CR_ROLE_REFERENCE, CR_NUM_ROLES } cr_role;

typedef struct cr_role_kind {
    const char *name, *sft_name; /* in rlvr and sft runs; NULL: not in one of that kind */
    /* Its block, borrowed from the configuration; NULL: not in this run. */
    const cr_worker_config *(*worker)(const cr_config *config);
    bool is_trained; /* has an optimizer, and the commands of training */
    bool is_engine;  /* generates with copies of actor_train's weights; else a model on a mesh */
} cr_role_kind;
extern const cr_role_kind cr_role_kinds[CR_NUM_ROLES];
/* In a run of this configuration. */
const char *cr_role_name(cr_role role, const cr_config *config);

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
