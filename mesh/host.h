/* host.h -- inside the room: the ranks of a group that share a host's memory: their entries, and windows of shared
 * memory with slots that all of them begin and end.
 *
 * An entry is published by the store of `posted`, which also releases all that its rank has written before to
 * windows. A slot's next use begins when every rank has ended the last one.
 */
#ifndef CR_MESH_HOST_H
#define CR_MESH_HOST_H

#include "mesh/comm.h"

enum { CRI_RING = 64 };

typedef struct cri_member { /* one a rank, in the group's first window */
    cri_flag posted, verified;
    cri_flag agreed; /* of the host's first rank: all hosts agree up to here (hosts/comm_hosts.c) */
    cri_entry ring[CRI_RING]; /* entry s at s % CRI_RING */
} cri_member;

typedef struct cri_window cri_window;

typedef struct cri_host {
    cr_group *group;
    int num, own;   /* ranks of the group on this host, and this rank's place among them */
    int num_places; /* most of them on any host: windows have the same size everywhere */
    int *rank;      /* [num] their ranks in the group, ascending */
    MPI_Comm mpi;   /* of them; borrowed */
    cri_member *members;
    uint32_t *seen; /* [num] agreed with that rank up to here */
    uint32_t verified;
    cri_window *stage; /* for small collectives; after that, members */
    uint32_t stage_uses;
    cri_window *channel; /* of transfers; made by the first one */
} cri_host;

/* ---- the control plane inside a host ---- */

/* rank[num] is copied. The members are to be set. */
cri_host *cri_host_create(cr_group *group, const int *rank, int num, int num_places, MPI_Comm mpi);
void cri_host_destroy(cri_host *host); /* accepts NULL */
CR_MUST cr_status cri_host_post(cri_host *host, const cri_entry *entry, cr_err *err);
CR_MUST cr_status cri_host_complete(cri_host *host, uint32_t sequence, cr_err *err);
bool cri_host_is_done(const cri_host *host, uint32_t sequence); /* all ranks have posted it */
/* The entry of this rank; one of the last CRI_RING. */
const cri_entry *cri_host_entry(const cri_host *host, uint32_t sequence);
/* Wait for a flag that member sets. *is_reached false: not until until_s, or member has said that it failed.
 * CR_EDIVERGED: ranks do different things, so it may never come. */
CR_MUST cr_status cri_host_wait_flag(cri_host *host, int member, cri_flag *flag, uint32_t target,
                                     double until_s, bool *is_reached, cr_err *err);

/* ---- windows ---- */

struct cri_window {
    cri_host *host;
    int num_slots;
    MPI_Win win;       /* MPI_WIN_NULL: one rank, private pages */
    size_t num_bytes;  /* of all, flags included */
    char *data;        /* the ranks' common bytes */
    cri_flag *ended;   /* [num_slots][host->num] uses that rank has ended */
    cri_flag *written; /* [num_slots][group->num_ranks] uses that have the part of that rank */
    uint32_t *uses;    /* [num_slots] uses begun here */
};

/* Collective over the host's ranks. num_bytes: of data. */
CR_MUST cr_status cri_window_create(cri_host *host, int num_slots, size_t num_bytes,
                                    cri_window **out, cr_err *err);
void cri_window_destroy(cri_window *window);                 /* accepts NULL */
bool cri_window_is_free(const cri_window *window, int slot); /* begin would not wait */
CR_MUST cr_status cri_window_begin(cri_window *window, int slot, const char *name, uint64_t event,
                                   cr_err *err);
/* The part of `rank` of the group is there. */
void cri_window_write(cri_window *window, int slot, int rank);
/* Wait for the part of `rank`, which member of the host writes. */
CR_MUST cr_status cri_window_wait_written(cri_window *window, int slot, int rank, int member,
                                          const char *name, uint64_t event, cr_err *err);
void cri_window_end(cri_window *window, int slot);

/* transfer.c: pieces between ranks of this host, after cri_transfer_begin. Collective over the group. */
CR_MUST cr_status cri_host_transfer(cri_host *host, const cri_call *call, const cri_pieces *x,
                                    const size_t *sent_bytes, cr_err *err);

/* ---- comm_shared.c, for hosts/comm_hosts.c ---- */

/* The host's first window: slots and bytes for small collectives, then the members. */
CR_MUST cr_status cri_shared_open(cri_host *host, int num_slots, size_t num_bytes, cr_err *err);
void cri_shared_close(cr_group *group);
/* A gather's buffer in the host's window (cri_comm). */
CR_MUST cr_status cri_shared_gather_open(cr_gather *gather, cr_err *err);
void cri_shared_gather_close(cr_gather *gather);
bool cri_shared_gather_is_free(const cr_gather *gather, int slot);
void cri_shared_gather_release(cr_gather *gather, int slot);

#endif
