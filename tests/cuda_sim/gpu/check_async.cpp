/* check_async.cpp -- rules of shared memory that bulk copies and wgmma use, for each 16 bytes of it:
 *   - what a product still reads, or has read by a warp that the writer has not waited for, is not written;
 *   - what threads wrote by ordinary stores is used by copies and products only after fence.proxy.async of the writer.
 * That it is there, and that the reader has waited for it, is the cells' matter (check.cpp). Of several writers of one chunk
 * the last one is kept.
 */
#include "tests/cuda_sim/gpu/async.h"

namespace
{
struct chunk {
    uint32_t readers;             /* warps whose products have read it since it was written */
    uint16_t num_reading, writer; /* products under way; the thread + 1 that wrote it by stores */
    uint32_t fences;              /* of the writer, then */
};
} // namespace

enum { NUM = CRI_SIM_SHARED_MAX / CRI_SIM_CHUNK + 1 };
static chunk chunks[NUM];
static uint32_t read_time[NUM]
                         [CRI_SIM_MAX_WARPS]; /* by the clock of the warp; where readers has it */

void cri_sim_chunks_new_block(void)
{
    memset((void *)chunks, 0, (cri_sim_shared_used / CRI_SIM_CHUNK + 1) * sizeof *chunks);
}

static size_t first_of(const void *p)
{
    return (size_t)((const unsigned char *)p - cri_sim_shared_arena) / CRI_SIM_CHUNK;
}

static size_t last_of(const void *p, size_t n)
{
    return first_of((const unsigned char *)p + n - 1);
}

static void check_free(size_t i)
{
    const chunk *c = &chunks[i];
    int me = (int)cri_sim_here.thread / CRI_SIM_WARP;

    if (c->num_reading)
        cri_sim_die("write of shared memory, offset %zu, that a wgmma under way reads, at %s",
                    i * CRI_SIM_CHUNK, cri_sim_line_of_code().c_str());
    for (uint32_t left = c->readers; left; left &= left - 1) {
        int w = __builtin_ctz(left);
        if (w != me && !cri_sim_is_acquired(w, read_time[i][w]))
            cri_sim_die("write of shared memory, offset %zu, that a wgmma of warp %d has read: no "
                        "barrier orders them, at %s",
                        i * CRI_SIM_CHUNK, w, cri_sim_line_of_code().c_str());
    }
}

void cri_sim_chunks_write(const void *p, size_t n)
{
    for (size_t i = first_of(p); i <= last_of(p, n); i++) {
        chunk *c = &chunks[i];
        if (c->num_reading || c->readers) check_free(i);
        c->readers = 0;
        c->writer = (uint16_t)(cri_sim_here.thread + 1);
        c->fences = cri_sim_fences_of(cri_sim_here.thread);
    }
}

static void check_fence(size_t i, const char *what)
{
    const chunk *c = &chunks[i];

    if (c->writer && cri_sim_fences_of(c->writer - 1u) == c->fences)
        cri_sim_die("%s uses shared memory, offset %zu, that thread %d wrote by a store: no "
                    "fence.proxy.async after it, at %s",
                    what, i * CRI_SIM_CHUNK, c->writer - 1, cri_sim_line_of_code().c_str());
}

void cri_sim_chunk_begin_read(const void *p)
{
    chunk *c = &chunks[first_of(p)];

    /* what a copy has written is all alike */
    cri_sim_check_wgmma_read(p, c->writer ? (size_t)CRI_SIM_CHUNK : (size_t)CRI_SIM_GRANULE);
    check_fence(first_of(p), "wgmma");
    c->num_reading++;
}

void cri_sim_chunk_end_read(const void *p)
{
    int w = (int)cri_sim_here.thread / CRI_SIM_WARP;
    size_t i = first_of(p);

    chunks[i].num_reading--;
    chunks[i].readers |= 1u << w;
    read_time[i][w] = cri_sim_clock_of(w);
}

void cri_sim_chunks_begin_copy(const void *p, size_t n, int mbarrier, uint32_t phase)
{
    for (size_t i = first_of(p); i <= last_of(p, n); i++)
        check_fence(i, "a copy by a tensor map");
    cri_sim_check_access(p, n, true, false);
    cri_sim_check_copy_begins(p, n, mbarrier, phase);
    for (size_t i = first_of(p); i <= last_of(p, n); i++)
        chunks[i].writer = 0;
}
