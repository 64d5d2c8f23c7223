/* memory.h -- for tests: host arrays as device memory, and device memory as host arrays. The devices under
 * test compute on memory that the host can map (cpu, far). */
#ifndef CR_TEST_MEMORY_H
#define CR_TEST_MEMORY_H

#include "kernels/memory.h"

#define MEM(host) cr_mem_of_host((void *)(uintptr_t)(host))
#define F32(mem)  ((float *)cr_mem_to_host(mem))

#endif
