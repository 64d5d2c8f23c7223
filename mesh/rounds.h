/* rounds.h -- inside the room: entries by MPI messages between the first ranks of a group's hosts, and what else needs
 * MPI requests with a deadline.
 *
 * A round is one sequence number: each rank sends its entry to each other one and compares all that come.
 */
#ifndef CR_MESH_ROUNDS_H
#define CR_MESH_ROUNDS_H

#include "mesh/comm.h"

enum { CRI_ROUNDS = 16 };
/* MPI's tags; parts and sums (hosts/between.c) have all from theirs on */
enum { CRI_ENTRY_TAG = 1, CRI_TRANSFER_TAG, CRI_HELLO_TAG, CRI_PART_TAG };

typedef struct cri_message {
    cri_entry entry;
    uint32_t
        failure_status; /* 0, or the cr_status of a rank that has failed; the entry is then empty */
    char failure[CRI_FAILURE_BYTES];
} cri_message;

typedef struct cri_round {
    cri_message mine, *theirs; /* theirs[num] */
    MPI_Request *requests;     /* [2 * num]: receives, then sends */
} cri_round;

typedef struct cri_rounds {
    cr_group *group;
    int num, own;
    int *rank;       /* [num] ranks in the group */
    double patience; /* a wait lasts this many deadlines */
    uint32_t posted, verified;
    cri_round round[CRI_ROUNDS]; /* number s at s % CRI_ROUNDS */
    cri_message failure_notice;
} cri_rounds;

/* rank[num] is copied. */
cri_rounds *cri_rounds_create(cr_group *group, const int *rank, int num, double patience);
void cri_rounds_destroy(cri_rounds *rounds); /* accepts NULL */
/* At most CRI_ROUNDS posted ones may be incomplete; numbers follow each other from 1. */
CR_MUST cr_status cri_rounds_post(cri_rounds *rounds, const cri_entry *entry, cr_err *err);
CR_MUST cr_status cri_rounds_complete(cri_rounds *rounds, uint32_t sequence, cr_err *err);
/* In place of the next entry: the other ranks fail with this rank's message. */
void cri_rounds_abort(cri_rounds *rounds, const cr_err *failure);

/* Wait with the deadline for the data of `what`. */
CR_MUST cr_status cri_wait_requests(cr_group *group, MPI_Request *requests, int num_requests,
                                    const char *what, uint64_t event, cr_err *err);
/* count and datatype for num_bytes. CR_EARG past what MPI's int can say. */
CR_MUST cr_status cri_mpi_count(size_t num_bytes, int *count, MPI_Datatype *type, cr_err *err);

#endif
