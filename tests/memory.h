/* memory.h -- for tests: arrays of the host on a device and its memory on the host, whichever device it is.
 *
 *     to_device    memory of the device with what an array has, until to_host: the array has then what became of it
 *     downloaded   a copy of the device's memory; refill: from the host to it
 *
 * MEM, HOST and F32 take one for the other, which only devices allow that compute on memory of the host (cpu, far).
 */
#ifndef CR_TEST_MEMORY_H
#define CR_TEST_MEMORY_H

#include "kernels/memory.h"

#include <string.h>

#define MEM(host) cr_mem_of_host((void *)(uintptr_t)(host))
#define HOST(mem) ((char *)cr_host_view(mem))
#define F32(mem)  ((float *)cr_host_view(mem))

/* Owned by the caller. */
static inline void *downloaded(cr_device *dev, const cr_mem *mem, size_t num_bytes)
{
    void *host = cr_alloc(num_bytes);
    cr_err err = {0};

    CR_CHECK(cr_download(dev, host, mem, num_bytes, &err) == CR_OK, "%s", err.msg);
    return host;
}

static inline void refill(cr_device *dev, const cr_mem *mem, const void *host, size_t num_bytes)
{
    cr_err err = {0};

    CR_CHECK(cr_upload(dev, (cr_mem *)(uintptr_t)mem, host, num_bytes, &err) == CR_OK, "%s",
             err.msg);
}

/* Where `part` of the memory `whole` is in a copy of the latter. */
static inline void *in_copy(const void *copy, const cr_mem *whole, const cr_mem *part)
{
    return (char *)(uintptr_t)copy + ((const char *)part - (const char *)whole);
}

/* ---- arrays on a device ---- */

enum { MAX_MOVED = 64 };
typedef struct moved_array {
    cr_device *dev;
    cr_mem *mem;
    const void *host;
    size_t num_bytes;
} moved_array;
static moved_array all_moved[MAX_MOVED];
static int num_moved;

/* An array that is there already is not copied again; NULL stays NULL. */
static inline cr_mem *to_device(cr_device *dev, const void *host, size_t num_bytes)
{
    moved_array *m = &all_moved[num_moved];
    cr_err err = {0};

    for (int i = 0; i < num_moved; i++)
        if (all_moved[i].host == host && all_moved[i].dev == dev) return all_moved[i].mem;
    if (!host) return NULL;
    CR_CHECK(num_moved < MAX_MOVED, "more than %d arrays are on devices", num_moved);
    *m = (moved_array){dev, NULL, host, num_bytes};
    CR_CHECK(cr_device_alloc(dev, num_bytes, &m->mem, &err) == CR_OK, "%s", err.msg);
    refill(dev, m->mem, host, num_bytes);
    num_moved++;
    return m->mem;
}

/* All of them; what did not change may be constant. */
static inline void to_host(void)
{
    for (; num_moved > 0; num_moved--) {
        const moved_array *m = &all_moved[num_moved - 1];
        void *now = downloaded(m->dev, m->mem, m->num_bytes);
        if (memcmp(now, m->host, m->num_bytes) != 0)
            memcpy((void *)(uintptr_t)m->host, now, m->num_bytes);
        cr_free(now);
        cr_device_free(m->dev, m->mem, m->num_bytes);
    }
}

/* An array by its name. */
#define TO_DEVICE(dev, array) to_device((dev), (array), sizeof(array))

#endif
