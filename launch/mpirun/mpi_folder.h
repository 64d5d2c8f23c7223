/* mpi_folder.h -- all files that Open MPI makes for one run, in one folder that goes with the run.
 *
 * Left to itself Open MPI puts segments of shared memory into /dev/shm and its session below /tmp, and what
 * is killed leaves them there: memory that is not given back. So each mpirun of croll gets an option to use
 * /dev/shm/croll.XXXXXX, which its launcher removes when the ranks have ended. A launcher that is killed
 * cannot; the next one does it instead. How it knows: a launcher holds a lock (flock) on its folder, and
 * the kernel takes that away with the process, in whatever container it was. Ranks die with their launcher.
 * On the other hosts of a run Open MPI's daemon makes the folder, and leaves it: the first rank there starts a process
 * that holds the lock, waits for the end of the daemon, with which the ranks die, and removes the folder.
 *
 * Windows that ranks share (mesh/window.c) need nothing of this: they have no name once all have them.
 *
 * One thread. Only folders of the same user are looked at. Where /dev/shm is not a tmpfs there is no folder, and
 * Open MPI's own places are used.
 */
#ifndef CR_MPI_FOLDER_H
#define CR_MPI_FOLDER_H

#include "base/base.h"

typedef struct cr_mpi_folder {
    char path[32]; /* "": none */
    int fd;        /* holds the lock */
} cr_mpi_folder;

/* Remove folders that dead launchers left, then make one. */
CR_MUST cr_status cr_mpi_folder_open(cr_mpi_folder *folder, cr_err *err);
/* Accepts what was never opened ({0}). */
void cr_mpi_folder_close(cr_mpi_folder *folder);

/* On a rank, before it has threads: see to the folder on this host. */
void cr_mpi_folder_join(void);
/* On a rank that ends now, because it has no heartbeat from its launcher: the daemon of this host, if it does not end with the
 * rank, is killed after a second, and the other ranks with it. */
void cr_mpi_folder_abandon(void);

#endif
