/* mesh.h -- ranks: the world, groups of ranks, and the (ddp, fsdp) mesh of a role.
 *
 * A world is every process of the run. It is opened once, as one of three kinds:
 *     CR_WORLD_LOCAL  one process, MPI is never started (commands without mpirun)
 *     CR_WORLD_MPI    started by mpirun
 *     CR_WORLD_META   one process that plays one rank of a world of any size: moves nothing, counts
 * A group is an ordered set of world ranks that communicate; collectives.h works on it. Each group
 * has its own sequence of collectives, and every rank of the group must call the same ones in the
 * same order: each rank publishes (sequence, kind, name, bytes) before it waits, so
 *     - a rank that does something else is CR_EDIVERGED at once, naming both ranks and both calls;
 *     - a wait past the world's deadline is CR_ETIMEOUT, naming who is missing and what it did last;
 *     - a rank of the same host that has failed, or whose process has ended, is CR_EPEER within 0.1 s.
 * After such a failure the group must not be used again; leave the process with a non-zero exit
 * code (mpirun then ends the others).
 *
 * Ranks of one host communicate through MPI-3 shared windows, ranks of different hosts by non-blocking MPI
 * messages; a group that spans hosts does both. Which one a group uses is chosen when it is made (comm.h) and
 * changes no result: the order of sums is that of the ranks (comm.h), so the same call on the same values gives the same bits.
 * Waiting ranks sleep. Environment: CROLL_TRANSPORT=mpi counts each rank as a host of its own;
 * CROLL_TEST_HOSTS=0,0,1,1 (tests only) makes this machine pretend to be several hosts: rank r is on the host
 * of the r-th digit, from the first one again after the last.
 *
 * Ownership: the world outlives its groups and meshes; a mesh owns its groups. Threads: one thread
 * (the one that opened the world) calls everything here. "Collective" in a comment means: called by
 * every rank named there; everything else is local.
 */
#ifndef CR_MESH_H
#define CR_MESH_H

#include "base/base.h"
#include "kernels/kernels.h"

/* ---- the world ---- */

typedef enum cr_world_kind { CR_WORLD_LOCAL, CR_WORLD_MPI, CR_WORLD_META } cr_world_kind;

typedef struct cr_world_args {
    cr_world_kind kind;
    int meta_rank, meta_num_ranks; /* CR_WORLD_META only: the rank to play, of how many */
    double deadline_s;             /* for every single wait; 0: 300 s */
} cr_world_args;

typedef struct cr_world cr_world;

/* CR_WORLD_MPI if the environment says that mpirun started this process, else CR_WORLD_LOCAL. */
cr_world_kind cr_world_kind_here(void);
/* The rank of this process before the world is open: as mpirun says it; 0 without mpirun. */
int cr_world_rank_here(void);
/* Collective over all processes. Installs the abort hook of base.h. */
CR_MUST cr_status cr_world_open(const cr_world_args *args, cr_world **out, cr_err *err);
/* Collective unless a failure was seen (then MPI is left as it is: exit with a non-zero code). */
void cr_world_close(cr_world *world);
/* Signal to the waiting ranks of this host that this one has failed: they stop waiting with CR_EPEER and
 * its message. Call it before leaving with an error. */
void cr_world_fail(cr_world *world, const cr_err *err);

cr_world_kind cr_world_get_kind(const cr_world *world);
int cr_world_rank(const cr_world *world);
int cr_world_num_ranks(const cr_world *world);
bool cr_world_spans_hosts(const cr_world *world);
/* Is that rank on this host? */
bool cr_world_is_here(const cr_world *world, int world_rank);
/* A number a host: of its lowest rank. */
int cr_world_host_of(const cr_world *world, int world_rank);
double cr_world_deadline_s(const cr_world *world);
void cr_world_set_deadline(cr_world *world, double deadline_s);
/* What this rank is doing ("generate", "step 12 train"), shown in the errors of ranks that wait for
 * it. role: e.g. "actor_train". Either may be NULL: unchanged. Copied. */
void cr_world_set_phase(cr_world *world, const char *role, const char *phase);

/* ---- groups ---- */

typedef struct cr_group cr_group;

/* Collective over the listed world ranks, in the same order everywhere; this rank is among them.
 * dev: whose memory the group's big buffers (cr_gather, cr_reduce) are used by, and on whose streams
 * (collectives.h); borrowed, outlives the group. NULL: a group that exchanges host memory only. name ("fsdp") appears in errors.
 * CR_EABSENT: this build has no transport for the memory of dev. */
CR_MUST cr_status cr_group_create(cr_world *world, cr_device *dev, const char *name,
                                  const int *world_ranks, int num_ranks, cr_group **out,
                                  cr_err *err);
void cr_group_destroy(cr_group *group);   /* collective over the group; accepts NULL */
int cr_group_rank(const cr_group *group); /* this rank's place in the group */
int cr_group_num_ranks(const cr_group *group);
int cr_group_world_rank(const cr_group *group, int rank); /* world rank of a place */
int cr_group_first_here(const cr_group *group); /* the first of its ranks that is on this host */
cr_world *cr_group_world(const cr_group *group);
const char *
cr_group_transport(const cr_group *group); /* "self", "meta", "shared", "mpi", "hosts" */

/* ---- the mesh as arithmetic (pure functions) ----
 *
 * The W ranks of a role, row-major, last axis fastest:
 *     (ddp, fsdp)          ddp = r / F, fsdp = r % F: shard groups are blocks of F, replicas strided
 *     (dp, ulysses)        overlay: dp = r / P, ulysses = r % P; parameters do not know about it
 *     (eddp, efsdp, ep)    experts: ep = r % E, efsdp = r / E % EF, eddp = r / (E * EF)
 */

typedef struct cr_mesh_shape {
    int num_ranks;                   /* W */
    int num_ddp, num_fsdp;           /* R * F = W */
    int num_dp, num_ulysses;         /* D * P = W */
    int num_eddp, num_efsdp, num_ep; /* ED * EF * E = W */
    bool has_straddle; /* F % P != 0: a ulysses group spans two shard groups (slower) */
} cr_mesh_shape;

typedef enum cr_axis {
    CR_AXIS_ALL, /* every rank of the role */
    CR_AXIS_DDP,
    CR_AXIS_FSDP,
    CR_AXIS_DP, /* the ranks with the same ulysses place */
    CR_AXIS_ULYSSES,
    CR_AXIS_EDDP,
    CR_AXIS_EFSDP,
    CR_AXIS_EP,
    CR_NUM_AXES
} cr_axis;

/* fsdp_size <= 1 or >= num_ranks: one flat shard group. ep_size 1: no expert axes; efsdp_size <= 0:
 * num_ranks / ep_size. CR_ECONFIG with the ids M1, M2, M3, M7 of the rules in the message. */
CR_MUST cr_status cr_mesh_shape_init(cr_mesh_shape *shape, int num_ranks, int fsdp_size,
                                     int ulysses_size, int ep_size, int efsdp_size, cr_err *err);
/* M4 and M5: attention heads and key/value heads against ulysses. */
CR_MUST cr_status cr_mesh_check_heads(const cr_mesh_shape *shape, int num_heads, int num_kv_heads,
                                      cr_err *err);
/* M8: experts against ep. */
CR_MUST cr_status cr_mesh_check_experts(const cr_mesh_shape *shape, int num_experts, cr_err *err);
const char *cr_axis_name(cr_axis axis);
int cr_mesh_axis_ranks(const cr_mesh_shape *shape, cr_axis axis);          /* length of the axis */
int cr_mesh_axis_rank(const cr_mesh_shape *shape, cr_axis axis, int rank); /* coordinate */
/* The members, in axis order, of rank's group along axis; returns their number.
 * members: room for cr_mesh_axis_ranks(). */
int cr_mesh_members(const cr_mesh_shape *shape, cr_axis axis, int rank, int *members);

/* ---- the mesh of a role ---- */

typedef struct cr_mesh {
    cr_mesh_shape shape;
    int rank;                     /* this rank's place in the role, 0 .. W-1 */
    cr_group *group[CR_NUM_AXES]; /* owned; never NULL; axes with the same members share one */
} cr_mesh;

/* Collective over the role's ranks. world_ranks[shape->num_ranks] in role order; this rank is among
 * them. dev as in cr_group_create. role is the first word of the groups' names ("actor_train.fsdp"). */
CR_MUST cr_status cr_mesh_create(cr_world *world, cr_device *dev, const char *role,
                                 const int *world_ranks, const cr_mesh_shape *shape, cr_mesh **out,
                                 cr_err *err);
void cr_mesh_destroy(cr_mesh *mesh); /* collective over the role's ranks; accepts NULL */

#endif
