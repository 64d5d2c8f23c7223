/* group.c -- groups: the choice of the transport, what is asked of a group, and the mesh of a role: one group an axis
 * (see mesh.h). */
#include "mesh/comm.h"

#include <stdio.h>
#include <string.h>

static cr_status check_members(const cr_world *world, const char *name, const int *world_ranks,
                               int num_ranks, int *own, cr_err *err)
{
    *own = -1;
    for (int i = 0; i < num_ranks; i++) {
        if (world_ranks[i] < 0 || world_ranks[i] >= world->num_ranks)
            return cr_fail(err, CR_EARG, "group %s: rank %d is not in the world of %d ranks", name,
                           world_ranks[i], world->num_ranks);
        for (int j = 0; j < i; j++)
            if (world_ranks[i] == world_ranks[j])
                return cr_fail(err, CR_EARG, "group %s lists rank %d twice", name, world_ranks[i]);
        if (world_ranks[i] == world->rank) *own = i;
    }
    if (*own < 0)
        return cr_fail(err, CR_EARG, "group %s does not list this rank %d", name, world->rank);
    return CR_OK;
}

static uint32_t tag_of(const char *name, const int *world_ranks, int num_ranks)
{
    uint32_t h = 2166136261u;

    for (const char *c = name; *c; c++)
        h = (h ^ (uint8_t)*c) * 16777619u;
    for (int i = 0; i < num_ranks; i++)
        h = (h ^ (uint32_t)world_ranks[i]) * 16777619u;
    return h;
}

/* This and open_comm are the only places that know all transports. */
static const cri_comm *choose_base(const cr_group *g)
{
    const cr_world *w = g->world;
    bool has_pair = false, is_one_host = true;

    if (w->kind == CR_WORLD_META) return &cri_comm_meta;
    if (g->num_ranks == 1) return &cri_comm_self;
    for (int i = 1; i < g->num_ranks; i++)
        for (int j = 0; j < i; j++) {
            bool is_pair = w->host_of[g->world_ranks[i]] == w->host_of[g->world_ranks[j]];
            has_pair = has_pair || is_pair;
            is_one_host = is_one_host && is_pair;
        }
    if (is_one_host) return &cri_comm_shared;
    return has_pair ? &cri_comm_hosts : &cri_comm_mpi;
}

static cr_status open_comm(cr_group *g, cr_err *err)
{
    bool is_on_gpu = g->dev && cr_device_is_gpu(g->dev);

    CR_TRY(g->base->open(g, err));
    if (!is_on_gpu)
        g->comm = g->base;
    else if (g->num_ranks == 1 || g->world->kind == CR_WORLD_META)
        g->comm = &cri_comm_device;
    else
        CR_TRY(cri_choose_nccl(g, &g->comm, err));
    return is_on_gpu ? g->comm->open(g, err) : CR_OK;
}

cr_status cr_group_create(cr_world *world, cr_device *dev, const char *name, const int *world_ranks,
                          int num_ranks, cr_group **out, cr_err *err)
{
    cr_group *g;
    char what[160];
    int own;

    *out = NULL;
    CR_TRY(check_members(world, name, world_ranks, num_ranks, &own, err));
    g = CR_NEW(cr_group);
    g->world = world;
    g->dev = dev;
    g->rank = own;
    g->num_ranks = num_ranks;
    g->mpi = MPI_COMM_NULL;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->world_ranks = CR_NEW_ARRAY(int, num_ranks);
    g->parts = CR_NEW_ARRAY(const void *, num_ranks);
    g->merges = CR_NEW_ARRAY(uint8_t, num_ranks);
    cri_tree(num_ranks, NULL, g->merges);
    memcpy(g->world_ranks, world_ranks, sizeof(int) * (size_t)num_ranks);
    g->tag = tag_of(g->name, g->world_ranks, num_ranks);
    g->base = choose_base(g);
    g->next = world->groups;
    world->groups = g;
    snprintf(what, sizeof what,
             "making group %.32s of %d ranks (first %d, last %d; did all of them come?)", name,
             num_ranks, world_ranks[0], world_ranks[num_ranks - 1]);
    cri_guard_begin(world, what);
    cr_note(open_comm(g, err));
    cri_guard_end(world);
    if (err->status != CR_OK) {
        cr_fail_add(err, "group %s", name);
        cr_group_destroy(g);
        return err->status;
    }
    *out = g;
    return CR_OK;
}

void cr_group_destroy(cr_group *group)
{
    cr_group **at;

    if (!group) return;
    cri_guard_begin(group->world, "ending a group (a rank of it has not come to its end)");
    if (group->comm && cri_is_on_gpu(group)) group->comm->close(group);
    group->base->close(group);
    cri_guard_end(group->world);
    for (at = &group->world->groups; *at != group;)
        at = &(*at)->next;
    *at = group->next;
    cr_free(group->world_ranks);
    cr_free(group->parts);
    cr_free(group->merges);
    cr_free(group);
}

int cr_group_rank(const cr_group *group)
{
    return group->rank;
}

int cr_group_num_ranks(const cr_group *group)
{
    return group->num_ranks;
}

int cr_group_world_rank(const cr_group *group, int rank)
{
    return group->world_ranks[rank];
}

int cr_group_first_here(const cr_group *group)
{
    int rank = 0;

    while (!cr_world_is_here(group->world, group->world_ranks[rank]))
        rank++;
    return rank;
}

cr_world *cr_group_world(const cr_group *group)
{
    return group->world;
}

const char *cr_group_transport(const cr_group *group)
{
    return group->comm->name;
}

/* ---- the mesh of a role ---- */

cr_status cr_mesh_create(cr_world *world, cr_device *dev, const char *role, const int *world_ranks,
                         const cr_mesh_shape *shape, cr_mesh **out, cr_err *err)
{
    cr_mesh *m = CR_NEW(cr_mesh);
    int *places = CR_NEW_ARRAY(int, 2 * shape->num_ranks), *members = places + shape->num_ranks;
    char name[CRI_GROUP_BYTES];

    *out = NULL;
    m->shape = *shape;
    CR_TRY_GOTO(out, check_members(world, role, world_ranks, shape->num_ranks, &m->rank, err));
    for (int axis = 0; axis < CR_NUM_AXES; axis++) {
        int num = cr_mesh_members(shape, (cr_axis)axis, m->rank, places);

        for (int i = 0; i < num; i++)
            members[i] = world_ranks[places[i]];
        for (int b = 0; b < axis && !m->group[axis]; b++)
            if (m->group[b]->num_ranks == num &&
                memcmp(m->group[b]->world_ranks, members, sizeof(int) * (size_t)num) == 0)
                m->group[axis] = m->group[b];
        if (m->group[axis]) continue;
        snprintf(name, sizeof name, "%.15s.%s", role, cr_axis_name((cr_axis)axis));
        CR_TRY_GOTO(out, cr_group_create(world, dev, name, members, num, &m->group[axis], err));
    }
    *out = m;
    m = NULL;
out:
    cr_mesh_destroy(m);
    cr_free(places);
    return err->status;
}

void cr_mesh_destroy(cr_mesh *mesh)
{
    if (!mesh) return;
    for (int axis = CR_NUM_AXES - 1; axis >= 0; axis--) {
        bool is_first = true;
        for (int b = 0; b < axis; b++)
            is_first = is_first && mesh->group[b] != mesh->group[axis];
        if (is_first) cr_group_destroy(mesh->group[axis]);
    }
    cr_free(mesh);
}
