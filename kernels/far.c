/* far.c -- the device `far`, for tests: the cpu's kernels on memory that the host cannot touch.
 *
 * Each block of memory is mapped twice. The address that callers get (cr_mem *) is closed: mprotect lets
 * nothing read or write there, but while a kernel or a copy of this device runs. The other address is always
 * open; cr_host_view gives it to communicators that move data on the host, and to tests. A block ends at a
 * page that is never open, is not used again after it was freed, and holds NaNs (all bits set: also -1 as an
 * integer) until it is written, as does a stack's memory when it is pushed and when it is released.
 *
 * A touch ends the process by SIGSEGV, after a message with the block, the last call of the device and the
 * caller's stack. With CROLL_DEVICE=far whole runs compute on it; they are a few times slower.
 */
#include "kernels/cpu/cpu.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_FRAMES = 24 };
static const size_t reserved_bytes = (size_t)1 << 42;

typedef struct block {
    char *closed, *open;         /* two addresses of the same pages */
    size_t num_bytes;            /* of pages */
    size_t offset, wanted_bytes; /* what the caller has: after `offset` bytes of the first page */
    bool is_host_owned;          /* cr_device_share */
    bool is_live;
} block;

/* One for the process, as the address space is. Blocks are in the order of their addresses. */
static struct {
    pthread_mutex_t lock;
    char *begin, *next; /* of the reserved addresses */
    block *blocks;
    size_t num_blocks, capacity;
    int num_running;  /* calls under way */
    const char *last; /* the last call */
    const cr_kernels *cpu;
} far = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the fault ---- */

static const block *find(const char *address)
{
    for (size_t i = far.num_blocks; i > 0; i--)
        if (address >= far.blocks[i - 1].closed) return &far.blocks[i - 1];
    return NULL;
}

static void describe(const char *address, bool is_write, char *text, size_t capacity)
{
    const block *b = find(address);
    const char *name = far.last ? far.last : "none";

    if (!b)
        snprintf(text, capacity,
                 "croll: the host %s device memory at an address that was never given out",
                 is_write ? "writes" : "reads");
    else
        snprintf(text, capacity,
                 "croll: the host %s device memory outside a kernel or a copy: byte %lld of %s "
                 "block of %zu bytes; the last call of the device was %s; use cr_upload, "
                 "cr_download or a kernel. Called from:\n",
                 is_write ? "writes" : "reads",
                 (long long)(address - b->closed - (ptrdiff_t)b->offset),
                 b->is_live ? "a" : "a freed", b->wanted_bytes, name);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const ucontext_t *u = context;
    const char *address = info->si_addr;
    void *frames[MAX_FRAMES];
    char text[512];

    if (address >= far.begin && address < far.begin + reserved_bytes) {
        describe(address, (u->uc_mcontext.gregs[REG_ERR] & 2) != 0, text, sizeof text);
        if (write(STDERR_FILENO, text, strlen(text)) > 0)
            backtrace_symbols_fd(frames, backtrace(frames, MAX_FRAMES), STDERR_FILENO);
    }
    signal(number, SIG_DFL); /* and the instruction faults again */
}

/* ---- blocks ---- */

static size_t round_up(size_t x, size_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static void protect(const block *b, int access)
{
    CR_CHECK(mprotect(b->closed, b->num_bytes, access) == 0, "mprotect of %zu bytes", b->num_bytes);
}

static void protect_all(int access)
{
    for (size_t i = 0; i < far.num_blocks; i++)
        if (far.blocks[i].is_live) protect(&far.blocks[i], access);
}

/* A second address for b->open, after a page that stays closed. CR_EABSENT: these pages cannot have one. */
static cr_status add_view(block *b, cr_err *err)
{
    char *at = far.next;

    CR_CHECK(at + b->num_bytes + PAGE < far.begin + reserved_bytes,
             "device far is out of addresses");
    if (mremap(b->open, 0, b->num_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
        return cr_fail(err, CR_EABSENT, "device far: %zu bytes have no second address",
                       b->num_bytes);
    b->closed = at;
    b->is_live = true;
    far.next = at + b->num_bytes + PAGE;
    protect(b, far.num_running ? PROT_READ | PROT_WRITE : PROT_NONE);
    far.blocks = cr_grow(far.blocks, far.num_blocks, &far.capacity, sizeof *far.blocks);
    far.blocks[far.num_blocks++] = *b;
    return CR_OK;
}

/* Freed addresses stay reserved. */
static void drop_view(block *b)
{
    CR_CHECK(mmap(b->closed, b->num_bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == b->closed,
             "device far: %zu bytes", b->num_bytes);
    if (!b->is_host_owned) munmap(b->open, b->num_bytes);
    b->is_live = false;
}

static block *block_of(const cr_mem *mem)
{
    block *b = (block *)(uintptr_t)find(cr_mem_to_host(mem));

    CR_CHECK(b && b->is_live, "memory that device far does not have");
    return b;
}

static cr_status far_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    block b = {.wanted_bytes = num_bytes};
    size_t rounded = round_up(num_bytes ? num_bytes : 1, 64);
    cr_status status;

    (void)dev;
    *out = NULL;
    b.num_bytes = round_up(rounded, PAGE);
    b.offset = b.num_bytes - rounded; /* its end is the end of the pages */
    b.open = mmap(NULL, b.num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.open == MAP_FAILED)
        return cr_fail(err, CR_EIO, "out of memory asking for %zu bytes", num_bytes);
    memset(b.open, 0xFF, b.num_bytes);
    pthread_mutex_lock(&far.lock);
    status = add_view(&b, err);
    pthread_mutex_unlock(&far.lock);
    if (status == CR_OK)
        *out = cr_mem_of_host(b.closed + b.offset);
    else
        munmap(b.open, b.num_bytes);
    return status;
}

static void far_release(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    (void)dev;
    (void)num_bytes;
    pthread_mutex_lock(&far.lock);
    drop_view(block_of(mem));
    pthread_mutex_unlock(&far.lock);
}

static cr_status far_share(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err)
{
    size_t offset = (uintptr_t)host % PAGE;
    block b = {.open = (char *)host - offset,
               .offset = offset,
               .wanted_bytes = num_bytes,
               .num_bytes = round_up(offset + num_bytes, PAGE),
               .is_host_owned = true};
    cr_status status;

    (void)dev;
    *out = NULL;
    pthread_mutex_lock(&far.lock);
    status = add_view(&b, err);
    pthread_mutex_unlock(&far.lock);
    if (status == CR_OK) *out = cr_mem_of_host(b.closed + offset);
    return status;
}

void *cri_far_view(const cr_mem *mem)
{
    char *address = cr_mem_to_host(mem);
    const block *b;

    if (!far.begin || address < far.begin || address >= far.begin + reserved_bytes) return address;
    pthread_mutex_lock(&far.lock);
    b = block_of(mem);
    address = b->open + (address - b->closed);
    pthread_mutex_unlock(&far.lock);
    return address;
}

static void far_spoil(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    (void)dev;
    if (num_bytes) memset(cri_far_view(mem), 0xFF, num_bytes);
}

/* ---- calls ---- */

/* Several lanes may run at once. */
static void begin(const char *call)
{
    pthread_mutex_lock(&far.lock);
    if (far.num_running++ == 0) protect_all(PROT_READ | PROT_WRITE);
    far.last = call;
    pthread_mutex_unlock(&far.lock);
}

static cr_status end(cr_status status)
{
    pthread_mutex_lock(&far.lock);
    if (--far.num_running == 0) protect_all(PROT_NONE);
    pthread_mutex_unlock(&far.lock);
    return status;
}

static cr_status far_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                            cr_err *err)
{
    begin("upload");
    return end(far.cpu->upload(dev, dst, src, num_bytes, err));
}

static cr_status far_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                              cr_err *err)
{
    begin("download");
    return end(far.cpu->download(dev, dst, src, num_bytes, err));
}

static cr_status far_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err)
{
    begin("zero");
    return end(far.cpu->zero(dev, dst, num_bytes, err));
}

static cr_status far_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                          cr_err *err)
{
    begin("copy");
    return end(far.cpu->copy(dev, dst, src, num_bytes, err));
}

#define RUN(op, args)                                                     \
    static cr_status far_##op(cr_device *dev, const args *a, cr_err *err) \
    {                                                                     \
        begin(#op);                                                       \
        return end(far.cpu->op(dev, a, err));                             \
    }
CR_OPS(RUN, RUN)

#define ENTRY(op, args) .op = far_##op,
static cr_kernels table = {.name = "far",
                           .alloc = far_alloc,
                           .release = far_release,
                           .share = far_share,
                           .unshare = far_release,
                           .spoil = far_spoil,
                           .upload = far_upload,
                           .download = far_download,
                           .zero = far_zero,
                           .copy = far_copy,
                           CR_OPS(ENTRY, ENTRY)};

/* ---- the device ---- */

static void reserve(void)
{
    void *first[1];

    far.begin =
        mmap(NULL, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CR_CHECK(far.begin != MAP_FAILED, "device far: no %zu bytes of addresses", reserved_bytes);
    far.next = far.begin + PAGE;
    (void)backtrace(first, 1); /* loads what it needs now, not in the handler */
}

cr_status cri_far_open(cr_device *dev, cr_err *err)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

    CR_TRY(cri_cpu_open(dev, err));
    CR_CHECK(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
    pthread_mutex_lock(&far.lock);
    if (!far.begin) reserve();
    far.cpu = dev->kernels;
    table.close = far.cpu->close;
    table.drop_scratch = far.cpu->drop_scratch;
    table.open_lane = far.cpu->open_lane;
    table.sync = far.cpu->sync;
    table.packed_bytes = far.cpu->packed_bytes;
    table.kv_block_bytes = far.cpu->kv_block_bytes;
    pthread_mutex_unlock(&far.lock);
    dev->kernels = &table;
    return CR_OK;
}
