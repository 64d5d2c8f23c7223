/* mend.h -- a world that has seen a failure, made usable again: only a test may go on after one. */
#ifndef CR_TESTS_MEND_H
#define CR_TESTS_MEND_H

#include "mesh/comm.h"

/* A barrier of MPI outside mesh/, that sleeps. */
static inline void outer_barrier(const cr_world *world)
{
    MPI_Request request;
    int is_done = 0;

    MPI_Ibarrier(world->comm, &request);
    for (; !is_done; cr_sleep_s(0.002))
        MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
}

/* Collective over the world. */
static inline void mend(cr_world *world)
{
    outer_barrier(world);
    world->is_broken = false;
    atomic_store(&world->own_board->has_failed, 0);
    outer_barrier(world);
}

#endif
