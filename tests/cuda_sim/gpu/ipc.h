/* ipc.h -- pages of allocations, of this process or of another one (inside sim/ only). */
#ifndef CR_SIM_IPC_H
#define CR_SIM_IPC_H

#include "tests/cuda_sim/gpu/impl.h"

/* Pages for an allocation, without access: of the file at its start, or (fd -1) of this process. NULL: no address space. */
cri_sim_allocation *cri_sim_new_pages(size_t num_bytes, int fd);
void cri_sim_free_pages(cri_sim_allocation *m);
/* This process's own, in which nothing has been opened elsewhere; false: it is open there. ipc.cpp */
bool cri_sim_is_alone(const cri_sim_allocation *m);
void cri_sim_end_sharing(cri_sim_allocation *m);
int cri_sim_gpu(
    void); /* that of the calling thread; without CROLL_SIM_GPUS no other process has it. runtime.cpp */

#endif
