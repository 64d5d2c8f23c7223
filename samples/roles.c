/* roles.c -- see roles.h. */
#include "samples/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cr_layout_init(cr_layout *layout, const cr_config *config)
{
    *layout = (cr_layout){0};
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        struct cr_role_ranks *ranks = &layout->role[r];
        ranks->name = cr_role_name((cr_role)r, config);
        ranks->worker = cr_role_in_run((cr_role)r, config);
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

/* That of device_mapping. */
static int device_of(const cr_layout *layout, int world_rank)
{
    const struct cr_role_ranks *role = &layout->role[cr_layout_role(layout, world_rank)];

    return role->worker->devices[world_rank - role->first];
}

int cr_layout_num_on_gpu(const cr_layout *layout, int world_rank, int num_gpus, const int *host_of)
{
    int own = device_of(layout, world_rank), num = 0;
    int *found; /* numbers */

    if (num_gpus < 1) return 1;
    found = CR_NEW_ARRAY(int, layout->num_ranks);
    for (int r = 0; r < layout->num_ranks; r++) {
        int device = device_of(layout, r), i = 0;
        if (device % num_gpus != own % num_gpus) continue;
        if (host_of && host_of[r] != host_of[world_rank]) continue;
        while (i < num && found[i] != device)
            i++;
        if (i == num) found[num++] = device;
    }
    cr_free(found);
    return num;
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
