/* far.c -- the device `far`, for tests: the cpu's kernels on memory that the host cannot touch.
 *
 * Each block of memory is mapped twice. The address that callers get (cr_mem *) is closed: mprotect lets
 * nothing read or write there, but while a kernel or a copy of this device runs: the first touch of a block by
 * one is a fault, which opens the block until the call is over. The other address is always
 * open; cr_host_view gives it to communicators that move data on the host, and to tests. A block ends at a
 * page that is never open, is not used again after it was freed, and holds NaNs (all bits set: also -1 as an
 * integer) until it is written, as does a stack's memory when it is pushed and when it is released.
 *
 * With CROLL_FAR_STREAMS=late or early work is queued (queue.h), so that work without the event it needs computes on
 * NaNs or on old numbers; operations that point to host memory run at once, after what their stream has queued. Without
 * it all is finished when a call returns.
 *
 * A touch ends the process by SIGSEGV, after a message with the block, the last call of the device and the
 * caller's stack. With CROLL_DEVICE=far whole runs compute on it; they are a few times slower.
 */
#include "base/isa.h"
#include "kernels/cpu/cpu.h"
#include "kernels/queue.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_FRAMES = 24 };
static const size_t reserved_bytes = (size_t)1 << 42;

typedef struct block {
    char *closed, *open;         /* two addresses of the same pages */
    size_t num_bytes;            /* of pages */
    size_t offset, wanted_bytes; /* what the caller has: after `offset` bytes of the first page */
    bool is_host_owned;          /* cr_device_share */
    bool is_live, is_opened;
    size_t next_opened; /* the number of another block + 1, or 0 */
} block;

/* One for the process, as the address space is. Blocks are in the order of their addresses. */
static struct {
    pthread_mutex_t lock;
    size_t page;        /* 4 KB; on aarch64 also 16 or 64 */
    char *begin, *next; /* of the reserved addresses */
    block *blocks;
    size_t num_blocks, capacity;
    size_t first_opened; /* as next_opened: a list of what calls under way have touched */
    int num_running;     /* calls under way */
    const char *last;    /* the last call */
    const cr_kernels *cpu;
} far = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the fault ---- */

/* The last block that begins at or before the address. */
static block *find(const char *address)
{
    size_t low = 0, high = far.num_blocks;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (address >= far.blocks[middle].closed)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &far.blocks[low - 1] : NULL;
}

static void protect(const block *b, int access)
{
    CR_CHECK(mprotect(b->closed, b->num_bytes, access) == 0, "mprotect of %zu bytes", b->num_bytes);
}

/* A call under way may touch it. In a handler: whoever has the lock touches no closed memory. */
static bool open_touched(const char *address)
{
    block *b;
    bool is_open;

    pthread_mutex_lock(&far.lock);
    b = find(address);
    is_open = far.num_running && b && b->is_live && address < b->closed + b->num_bytes;
    if (is_open && !b->is_opened) { /* or another thread was first */
        protect(b, PROT_READ | PROT_WRITE);
        b->is_opened = true;
        b->next_opened = far.first_opened;
        far.first_opened = (size_t)(b - far.blocks) + 1;
    }
    pthread_mutex_unlock(&far.lock);
    return is_open;
}

static void close_touched(void)
{
    while (far.first_opened) {
        block *b = &far.blocks[far.first_opened - 1];
        if (b->is_live) protect(b, PROT_NONE);
        b->is_opened = false;
        far.first_opened = b->next_opened;
    }
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
    const char *address = info->si_addr;
    void *frames[MAX_FRAMES];
    char text[512];

    if (address >= far.begin && address < far.begin + reserved_bytes) {
        if (open_touched(address)) return; /* and the instruction runs again */
        describe(address, cr_fault_is_write(context), text, sizeof text);
        if (write(STDERR_FILENO, text, strlen(text)) > 0)
            backtrace_symbols_fd(frames, backtrace(frames, MAX_FRAMES), STDERR_FILENO);
    }
    signal(number, SIG_DFL); /* and the instruction faults again */
}

static void take_faults(void)
{
    const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

    CR_CHECK(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
}

/* ---- blocks ---- */

static size_t round_up(size_t x, size_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* A second address for b->open, after a page that stays closed. CR_EABSENT: these pages cannot have one. */
static cr_status add_view(block *b, cr_err *err)
{
    char *at = far.next;

    CR_CHECK(at + b->num_bytes + far.page < far.begin + reserved_bytes,
             "device far is out of addresses");
    if (mremap(b->open, 0, b->num_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
        return cr_fail(err, CR_EABSENT, "device far: %zu bytes have no second address",
                       b->num_bytes);
    b->closed = at;
    b->is_live = true;
    far.next = at + b->num_bytes + far.page;
    protect(b, PROT_NONE);
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
    block *b = find(cr_mem_to_host(mem));

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
    b.num_bytes = round_up(rounded, far.page);
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

/* After all that may use it. */
static void run_all(void)
{
    cr_err err = {0};

    CR_CHECK(cri_queue_run_all(&err) == CR_OK, "%s", err.msg);
}

static void far_release(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    (void)dev;
    (void)num_bytes;
    run_all();
    pthread_mutex_lock(&far.lock);
    drop_view(block_of(mem));
    pthread_mutex_unlock(&far.lock);
}

static cr_status far_share(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err)
{
    size_t offset = (uintptr_t)host % far.page;
    block b = {.open = (char *)host - offset,
               .offset = offset,
               .wanted_bytes = num_bytes,
               .num_bytes = round_up(offset + num_bytes, far.page),
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

void *cri_far_view(const cr_mem *mem, bool should_wait)
{
    char *address = cr_mem_to_host(mem);
    const block *b;

    if (should_wait) run_all(); /* tests have memory of their own that kernels write, too */
    if (!far.begin || address < far.begin || address >= far.begin + reserved_bytes) return address;
    pthread_mutex_lock(&far.lock);
    b = block_of(mem);
    address = b->open + (address - b->closed);
    pthread_mutex_unlock(&far.lock);
    return address;
}

static void far_host_release(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    run_all();
    far.cpu->release(dev, mem, num_bytes);
}

/* ---- calls ---- */

/* Several lanes may run at once. Whoever has taken SIGSEGV since (cmocka, for each test) cannot open a block. */
static void begin(const char *call)
{
    pthread_mutex_lock(&far.lock);
    if (far.num_running++ == 0) take_faults();
    far.last = call;
    pthread_mutex_unlock(&far.lock);
}

static cr_status end(cr_status status)
{
    pthread_mutex_lock(&far.lock);
    if (--far.num_running == 0) close_touched();
    pthread_mutex_unlock(&far.lock);
    return status;
}

/* The arguments of calls of memory.h; of an upload, what it has read comes after them. */
typedef struct move {
    cr_mem *dst;
    const void *src; /* a cr_mem but of upload_async; NULL of upload */
    void *host;      /* of download_async */
    size_t num_bytes;
} move;

static cr_status run_upload(cr_device *dev, const void *args, cr_err *err)
{
    const move *a = args;

    begin("upload");
    return end(far.cpu->upload(dev, a->dst, a->src ? a->src : a + 1, a->num_bytes, err));
}

static cr_status run_download(cr_device *dev, const void *args, cr_err *err)
{
    const move *a = args;

    begin("download");
    return end(far.cpu->download(dev, a->host, a->src, a->num_bytes, err));
}

static cr_status run_zero(cr_device *dev, const void *args, cr_err *err)
{
    const move *a = args;

    begin("zero");
    return end(far.cpu->zero(dev, a->dst, a->num_bytes, err));
}

static cr_status run_copy(cr_device *dev, const void *args, cr_err *err)
{
    const move *a = args;

    begin("copy");
    return end(far.cpu->copy(dev, a->dst, a->src, a->num_bytes, err));
}

static cr_status run_spoil(cr_device *dev, const void *args, cr_err *err)
{
    const move *a = args;

    (void)dev;
    (void)err;
    memset(cri_far_view(a->dst, /*should_wait=*/false), 0xFF, a->num_bytes);
    return CR_OK;
}

/* data: copied, right after the arguments. */
static cr_status queue_move(cr_device *dev, const char *name, cri_work work, const move *a,
                            const void *data, cr_err *err)
{
    size_t num_bytes = data ? a->num_bytes : 0;
    move *kept;

    if (!dev->queues) { /* or a lane */
        move now = *a;
        if (data) now.src = data;
        return work(dev, &now, err);
    }
    far.last = name;
    kept = cr_alloc(sizeof *kept + num_bytes);
    *kept = *a;
    if (data) memcpy(kept + 1, data, num_bytes);
    return cri_queue_add(dev, work, kept, err);
}

/* Compute has run all: stacks are filled at once, since a lane may use that of the device, which is idle then. */
static bool is_idle(cr_device *dev)
{
    return !dev->queues || (dev->stream == CR_STREAM_COMPUTE && cri_queue_is_empty(dev));
}

static cr_status far_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                            cr_err *err)
{
    move a = {.dst = dst, .num_bytes = num_bytes};

    if (!is_idle(dev)) return queue_move(dev, "upload", run_upload, &a, src, err);
    a.src = src;
    return run_upload(dev, &a, err);
}

static cr_status far_upload_async(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                                  cr_err *err)
{
    return queue_move(dev, "upload", run_upload,
                      &(move){.dst = dst, .src = src, .num_bytes = num_bytes}, NULL, err);
}

static cr_status far_download_async(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                                    cr_err *err)
{
    return queue_move(dev, "download", run_download,
                      &(move){.host = dst, .src = src, .num_bytes = num_bytes}, NULL, err);
}

static cr_status far_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err)
{
    return queue_move(dev, "zero", run_zero, &(move){.dst = dst, .num_bytes = num_bytes}, NULL,
                      err);
}

static cr_status far_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                          cr_err *err)
{
    return queue_move(dev, "copy", run_copy,
                      &(move){.dst = dst, .src = src, .num_bytes = num_bytes}, NULL, err);
}

static void far_spoil(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    const move a = {.dst = mem, .num_bytes = num_bytes};
    cr_err err = {0};

    if (num_bytes == 0) return;
    CR_CHECK((is_idle(dev) ? run_spoil(dev, &a, &err)
                           : queue_move(dev, "spoil", run_spoil, &a, NULL, &err)) == CR_OK,
             "%s", err.msg);
}

/* What a communicator has written is there when the stream comes to it, not before. */
static cr_status far_host_wrote(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err)
{
    void *data = cri_far_view(mem, /*should_wait=*/false), *kept;

    if (!dev->queues || data == cr_mem_to_host(mem)) return CR_OK;
    kept = cr_alloc(num_bytes);
    memcpy(kept, data, num_bytes);
    memset(data, 0xFF, num_bytes);
    cr_note(far_upload(dev, mem, kept, num_bytes, err));
    cr_free(kept);
    return err->status;
}

static cr_status far_sync(cr_device *dev, cr_err *err)
{
    return dev->queues ? cri_queue_run(dev, err) : CR_OK;
}

static cr_status far_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                              cr_err *err)
{
    CR_TRY(far_sync(dev, err));
    return run_download(dev, &(move){.host = dst, .src = src, .num_bytes = num_bytes}, err);
}

/* ---- operations ---- */

/* Those that may be queued: in host memory they have their arguments, and at most a cr_weight. */
enum {
#define NUMBER(op, args) NUMBER_OF_##op,
    CR_OPS(NUMBER, NUMBER) NUM_OPS
};
#define PLAIN(op)        [NUMBER_OF_##op] = {#op, -1}
#define WITH_W(op, args) [NUMBER_OF_##op] = {#op, offsetof(args, w)}
static const struct {
    const char *name; /* NULL: not queued */
    long weight_at;   /* byte of the arguments, or -1 */
} how[NUM_OPS] = {
    PLAIN(cast),
    PLAIN(scale),
    PLAIN(sum_parts),
    PLAIN(adamw),
    PLAIN(blend),
    PLAIN(linears),
    PLAIN(adapted_linears),
    PLAIN(adapted_linears_grad),
    PLAIN(rmsnorm),
    PLAIN(rmsnorm_grad),
    PLAIN(rope),
    PLAIN(qk_heads),
    PLAIN(swiglu),
    PLAIN(swiglu_grad),
    PLAIN(embedding_grad),
    PLAIN(rows_gather),
    PLAIN(rows_scatter),
    PLAIN(rows_add),
    PLAIN(attention),
    PLAIN(attention_grad),
    PLAIN(attention_cached),
    PLAIN(rows_combine),
    PLAIN(rows_scale),
    PLAIN(rows_dot),
    PLAIN(rows_drop),
    PLAIN(layernorm),
    PLAIN(layernorm_grad),
    PLAIN(gelu),
    PLAIN(gelu_grad),
    PLAIN(geglu),
    PLAIN(geglu_grad),
    PLAIN(embedding_bag_grad),
    PLAIN(cols_scale),
    PLAIN(cols_scale_grad),
    WITH_W(weight_pack, cr_weight_pack_args),
    WITH_W(linear, cr_linear_args),
    WITH_W(linear_grad, cr_linear_grad_args),
    WITH_W(embedding, cr_embedding_args),
    WITH_W(logits, cr_logits_args),
};

static cr_status submit(cr_device *dev, int op, cri_work work, const void *a, size_t num_bytes,
                        cr_err *err)
{
    size_t room = round_up(num_bytes, 64);
    char *kept;

    if (!dev->queues) return work(dev, a, err); /* or a lane */
    if (!how[op].name) {
        CR_TRY(cri_queue_run(dev, err));
        return work(dev, a, err);
    }
    far.last = how[op].name;
    kept = cr_alloc(room + sizeof(cr_weight));
    memcpy(kept, a, num_bytes);
    if (how[op].weight_at >= 0) {
        const cr_weight **w = (const cr_weight **)(void *)(kept + how[op].weight_at);
        memcpy(kept + room, *w, sizeof **w);
        *w = (const cr_weight *)(const void *)(kept + room);
    }
    return cri_queue_add(dev, work, kept, err);
}

#define RUN(op, args)                                                     \
    static cr_status run_##op(cr_device *dev, const void *a, cr_err *err) \
    {                                                                     \
        begin(#op);                                                       \
        return end(far.cpu->op(dev, a, err));                             \
    }                                                                     \
    static cr_status far_##op(cr_device *dev, const args *a, cr_err *err) \
    {                                                                     \
        return submit(dev, NUMBER_OF_##op, run_##op, a, sizeof *a, err);  \
    }
CR_OPS(RUN, RUN)

static void far_close(cr_device *dev)
{
    if (dev->queues) cri_queues_destroy(dev->queues);
    far.cpu->close(dev);
}

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
                           .close = far_close,
                           .sync = far_sync,
                           .record = cri_queue_record,
                           .wait = cri_queue_wait,
                           .is_over = cri_queue_is_over,
                           .memory = cri_host_memory,
                           .graph_run = cri_call_work,
                           .graph_destroy = cri_no_graph,
                           .host_release = far_host_release,
                           .upload_async = far_upload_async,
                           .download_async = far_download_async,
                           .host_wrote = far_host_wrote,
                           CR_OPS(ENTRY, ENTRY)};

/* ---- the device ---- */

static void reserve(void)
{
    void *first[1];

    far.begin =
        mmap(NULL, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CR_CHECK(far.begin != MAP_FAILED, "device far: no %zu bytes of addresses", reserved_bytes);
    far.page = (size_t)sysconf(_SC_PAGESIZE);
    far.next = far.begin + far.page;
    (void)backtrace(first, 1); /* loads what it needs now, not in the handler */
}

cr_status cri_far_open(cr_device *dev, cr_err *err)
{
    const char *order = getenv("CROLL_FAR_STREAMS");

    CR_TRY(cri_cpu_open(dev, err));
    take_faults();
    pthread_mutex_lock(&far.lock);
    if (!far.begin) reserve();
    far.cpu = dev->kernels;
    table.drop_scratch = far.cpu->drop_scratch;
    table.open_lane = far.cpu->open_lane;
    table.host_alloc = far.cpu->host_alloc;
    table.packed_bytes = far.cpu->packed_bytes;
    table.kv_block_bytes = far.cpu->kv_block_bytes;
    pthread_mutex_unlock(&far.lock);
    dev->kernels = &table;
    return order && order[0] ? cri_queues_create(order, dev, err) : CR_OK;
}
