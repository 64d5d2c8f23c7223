/* hooks.cpp -- replaces the library of `-fsanitize=thread`: kernels compiled with it call the __tsan_* functions
 * before each load and store. Of `-fsanitize=alignment`, too: a float4 that is loaded in parts is misaligned all the
 * same. */
#include "tests/cuda_sim/gpu/impl.h"

/* Launchers are in the same files as kernels. */
static bool is_in_kernel(void)
{
    return cri_sim_runs_here && cri_sim_here.is_in_kernel;
}

static void see(void *p, size_t n, bool is_write, const void *pc)
{
    if (!is_in_kernel()) return;
    cri_sim_pc = pc;
    if (n > 1 && (n & (n - 1)) == 0 && ((uint64_t)p & (n - 1)) && !cri_sim_is_private(p))
        cri_sim_die("%s of %zu bytes at %p, which is not aligned to them, at %s",
                    is_write ? "write" : "read", n, p, cri_sim_line_of_code().c_str());
    cri_sim_check_access(p, n, is_write, false);
    cri_sim_pc = nullptr;
}

extern "C" {

struct ubsan_place {
    const char *file;
    uint32_t line, column;
};

void __ubsan_handle_type_mismatch_v1(ubsan_place *at, void *p)
{
    if (p && is_in_kernel())
        cri_sim_die("access at %p, which is not aligned to its type, at %s:%u", p, at->file,
                    at->line);
}

void __ubsan_handle_type_mismatch_v1_abort(ubsan_place *at, void *p)
{
    __ubsan_handle_type_mismatch_v1(at, p);
}

void __tsan_init(void)
{
    cri_sim_is_checked = true;
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit(void)
{
}

#define BOTH(kind, size)                                  \
    void __tsan_##kind##read##size(void *p)               \
    {                                                     \
        see(p, size, false, __builtin_return_address(0)); \
    }                                                     \
    void __tsan_##kind##write##size(void *p)              \
    {                                                     \
        see(p, size, true, __builtin_return_address(0));  \
    }
BOTH(, 1)
BOTH(, 2)
BOTH(, 4)
BOTH(, 8)
BOTH(, 16)
BOTH(unaligned_, 2)
BOTH(unaligned_, 4)
BOTH(unaligned_, 8)
BOTH(unaligned_, 16)

void __tsan_read_range(void *p, size_t n)
{
    see(p, n, false, __builtin_return_address(0));
}

void __tsan_write_range(void *p, size_t n)
{
    see(p, n, true, __builtin_return_address(0));
}

void __tsan_vptr_update(void **, void *)
{
}

void __tsan_vptr_read(void **)
{
}
}
