/* memory.h -- for tests: host arrays as device memory (MEM), and where the host reads and writes device memory
 * (HOST, F32): only where the device is one that computes on memory of the host (cpu, far). `downloaded` is for any. */
#ifndef CR_TEST_MEMORY_H
#define CR_TEST_MEMORY_H

#include "kernels/memory.h"

#define MEM(host) cr_mem_of_host((void *)(uintptr_t)(host))
#define HOST(mem) ((char *)cr_host_view(mem))
#define F32(mem)  ((float *)cr_host_view(mem))

/* A copy on the host; owned by the caller. */
static inline void *downloaded(cr_device *dev, const cr_mem *mem, size_t num_bytes)
{
    void *host = cr_alloc(num_bytes);
    cr_err err = {0};

    CR_CHECK(cr_download(dev, host, mem, num_bytes, &err) == CR_OK, "%s", err.msg);
    return host;
}

#endif
