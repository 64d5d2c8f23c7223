/* memory.c -- devices, their memory and stacks (see memory.h). */
#include "base/limits.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

size_t cr_dtype_bytes(cr_dtype dtype)
{
    static const size_t bytes[] = {sizeof(float), 2, 2, 8};

    return bytes[dtype];
}

const char *cr_dtype_name(cr_dtype dtype)
{
    static const char *const name[] = {"fp32", "bf16", "fp16", "fp64"};

    return name[dtype];
}

/* ---- devices ---- */

static const struct cri_device_kind {
    const char *name;
    cr_status (*open)(cr_device *dev, cr_err *err);
    bool is_gpu, has_own_memory; /* of far: as tests are to see it */
} devices[] = {
    {"cpu", cri_cpu_open, false, false},
    {"meta", cri_meta_open, false, true},
    {"cuda", cri_cuda_open, true, true},
    {"far", cri_far_open, false, true},
};

static const struct cri_device_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < CR_COUNT(devices); i++)
        if (strcmp(devices[i].name, name) == 0) return &devices[i];
    return NULL;
}

static void open_streams(cr_device *dev)
{
    dev->streams[0] = dev;
    for (int i = 1; i < CR_NUM_STREAMS; i++)
        dev->streams[i] = CR_NEW(cr_device);
    for (int i = 1; i < CR_NUM_STREAMS; i++) {
        *dev->streams[i] = *dev;
        dev->streams[i]->stream = i;
    }
}

cr_status cr_device_open(const char *name, int num_threads, cr_device **out, cr_err *err)
{
    return cr_device_open_number(name, -1, num_threads, out, err);
}

cr_status cr_device_open_number(const char *name, int number, int num_threads, cr_device **out,
                                cr_err *err)
{
    const struct cri_device_kind *kind = find_kind(name);
    cr_device *dev;

    *out = NULL;
    if (!kind)
        return cr_fail(
            err, CR_EABSENT,
            "no device \"%.40s\" (cpu, cuda, meta and far are known; which GPU: docs/cuda.md)",
            name);
    dev = CR_NEW(cr_device);
    dev->kind = kind;
    dev->number = number;
    dev->num_threads = dev->host_threads = num_threads < 1 ? 1 : num_threads;
    if (kind->open(dev, err) == CR_OK) {
        open_streams(dev);
        *out = dev;
    } else {
        cr_free(dev);
    }
    return err->status;
}

const char *cr_device_or(const char *name)
{
    const char *of_tests = getenv("CROLL_DEVICE");

    return of_tests && of_tests[0] ? of_tests : name;
}

const char *cr_device_default(void)
{
    return cr_device_or("cpu");
}

bool cr_device_name_is_gpu(const char *name)
{
    const struct cri_device_kind *kind = find_kind(name);

    return kind && kind->is_gpu;
}

void cr_device_close(cr_device *dev)
{
    if (!dev) return;
    CR_CHECK(dev->stream == CR_STREAM_COMPUTE, "the handle of a stream was closed, not its device");
    dev->kernels->close(dev);
    for (int i = 1; i < CR_NUM_STREAMS; i++)
        cr_free(dev->streams[i]);
    cr_free(dev);
}

const char *cr_device_name(const cr_device *dev)
{
    return dev->kernels->name;
}

const char *cr_device_variant(const cr_device *dev)
{
    return dev->variant ? dev->variant : "";
}

int cr_device_host_threads(const cr_device *dev)
{
    return dev->host_threads;
}

bool cr_device_is_meta(const cr_device *dev)
{
    return strcmp(dev->kernels->name, "meta") == 0;
}

bool cr_device_is_gpu(const cr_device *dev)
{
    return dev->kind->is_gpu;
}

bool cr_device_has_own_memory(const cr_device *dev)
{
    return dev->kind->has_own_memory;
}

void cr_device_drop_scratch(cr_device *dev)
{
    dev->kernels->drop_scratch(dev);
}

static cr_device_stats *stats_of(const cr_device *dev)
{
    return &dev->streams[0]->stats;
}

cr_status cr_device_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    cr_device_stats *s = stats_of(dev);

    CR_TRY(dev->kernels->alloc(dev, num_bytes, out, err));
    s->bytes_now += num_bytes;
    if (s->bytes_now > s->bytes_peak) s->bytes_peak = s->bytes_now;
    return CR_OK;
}

void cr_device_free(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    if (!mem) return;
    dev->kernels->release(dev, mem, num_bytes);
    stats_of(dev)->bytes_now -= num_bytes;
}

cr_status cr_host_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    CR_TRY(dev->kernels->host_alloc(dev, num_bytes, out, err));
    stats_of(dev)->host_bytes_now += num_bytes;
    return CR_OK;
}

void cr_host_free(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    if (!mem) return;
    dev->kernels->host_release(dev, mem, num_bytes);
    stats_of(dev)->host_bytes_now -= num_bytes;
}

cr_device_stats cr_device_get_stats(const cr_device *dev)
{
    return *stats_of(dev);
}

cr_status cr_device_get_memory(const cr_device *dev, cr_device_memory *out, cr_err *err)
{
    *out = (cr_device_memory){0};
    return dev->kernels->memory(dev, out, err);
}

cr_status cri_host_memory(const cr_device *dev, cr_device_memory *out, cr_err *err)
{
    (void)dev;
    (void)err;
    *out = (cr_device_memory){cr_memory_limit(), cr_memory_left(), 0};
    return CR_OK;
}

cr_status cri_share_as_is(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err)
{
    (void)dev;
    (void)num_bytes;
    (void)err;
    *out = cr_mem_of_host(host);
    return CR_OK;
}

void cri_forget(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    (void)dev;
    (void)mem;
    (void)num_bytes;
}

cr_status cr_device_share(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err)
{
    return dev->kernels->share(dev, host, num_bytes, out, err);
}

void cr_device_unshare(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    dev->kernels->unshare(dev, mem, num_bytes);
}

void *cr_host_view(const cr_mem *mem)
{
    return cri_far_view(mem, /*should_wait=*/true);
}

void *cr_host_address(const cr_mem *mem)
{
    return cri_far_view(mem, /*should_wait=*/false);
}

cr_status cr_host_wrote(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err)
{
    return num_bytes ? dev->kernels->host_wrote(dev, mem, num_bytes, err) : CR_OK;
}

/* ---- streams and events ---- */

cr_device *cr_device_stream(cr_device *dev, cr_stream stream)
{
    return dev->streams[stream];
}

cr_status cr_device_sync(cr_device *dev, cr_err *err)
{
    return dev->kernels->sync(dev, err);
}

cr_status cri_nothing_to_wait(cr_device *dev, cr_err *err)
{
    (void)dev;
    (void)err;
    return CR_OK;
}

cr_status cri_event_over(cr_device *dev, cr_event *event, cr_err *err)
{
    (void)dev;
    (void)event;
    (void)err;
    return CR_OK;
}

cr_status cri_is_over_now(cr_device *dev, const cr_event *event, bool *out, cr_err *err)
{
    (void)event;
    *out = true;
    return cri_nothing_to_wait(dev, err);
}

cr_status cri_wrote_now(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err)
{
    (void)mem;
    (void)num_bytes;
    return cri_nothing_to_wait(dev, err);
}

cr_status cr_event_create(cr_device *dev, cr_event **out, cr_err *err)
{
    (void)dev;
    (void)err;
    *out = CR_NEW(cr_event);
    return CR_OK;
}

void cr_event_destroy(cr_event *event)
{
    cr_free(event);
}

cr_status cr_event_record(cr_event *event, cr_device *dev, cr_err *err)
{
    event->dev = dev;
    return dev->kernels->record(dev, event, err);
}

cr_status cr_event_wait(const cr_event *event, cr_device *dev, cr_err *err)
{
    cr_event now = *event;

    return event->dev && event->dev != dev ? dev->kernels->wait(dev, &now, err) : CR_OK;
}

cr_status cr_event_is_over(const cr_event *event, bool *out, cr_err *err)
{
    *out = true;
    return event->dev ? event->dev->kernels->is_over(event->dev, event, out, err) : CR_OK;
}

cr_status cr_stream_join(cr_device *dev, cr_device *other, cr_err *err)
{
    cr_event now = {0};

    CR_TRY(cr_event_record(&now, other, err));
    return cr_event_wait(&now, dev, err);
}

/* ---- across the border ---- */

cr_status cr_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes, cr_err *err)
{
    return num_bytes ? dev->kernels->upload(dev, dst, src, num_bytes, err) : CR_OK;
}

cr_status cr_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes, cr_err *err)
{
    return num_bytes ? dev->kernels->download(dev, dst, src, num_bytes, err) : CR_OK;
}

cr_status cr_upload_async(cr_device *dev, cr_mem *dst, const cr_mem *host, size_t num_bytes,
                          cr_err *err)
{
    if (num_bytes == 0) return CR_OK;
    return dev->kernels->upload_async(dev, dst, cr_mem_to_host(host), num_bytes, err);
}

cr_status cr_download_async(cr_device *dev, cr_mem *host, const cr_mem *src, size_t num_bytes,
                            cr_err *err)
{
    if (num_bytes == 0) return CR_OK;
    return dev->kernels->download_async(dev, cr_mem_to_host(host), src, num_bytes, err);
}

cr_status cr_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes, cr_err *err)
{
    return dev->kernels->copy(dev, dst, src, num_bytes, err);
}

cr_status cr_move(cr_device *to, cr_mem *dst, cr_device *from, const cr_mem *src, size_t num_bytes,
                  cr_err *err)
{
    bool is_alike = to->kernels == from->kernels,
         is_from_cpu = strcmp(from->kernels->name, "cpu") == 0;

    CR_CHECK(is_alike || is_from_cpu || strcmp(to->kernels->name, "cpu") == 0,
             "memory goes from %s to %s", from->kernels->name, to->kernels->name);
    if (from != to) CR_TRY(cr_device_sync(from, err));
    if (is_alike) return cr_copy(to, dst, src, num_bytes, err);
    if (is_from_cpu) {
        CR_TRY(cr_upload_async(to, dst, src, num_bytes, err));
        return cr_device_sync(to, err);
    }
    CR_TRY(cr_download_async(from, dst, src, num_bytes, err));
    return cr_device_sync(from, err);
}

cr_status cr_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err)
{
    return dev->kernels->zero(dev, dst, num_bytes, err);
}

void cr_cast_host(cr_dtype to, void *dst, cr_dtype from, const void *src, size_t num)
{
    const cr_cast_args a = {to, cr_mem_of_host(dst), from, (const cr_mem *)src, num};
    cr_err err = {0};

    CR_CHECK(cri_cpu_best()->cast(NULL, &a, &err) == CR_OK, "%s", err.msg);
}

/* ---- graphs ---- */

cr_status cri_call_work(cr_device *dev, cr_graph **graph, uint64_t key, cr_work work, void *ctx,
                        cr_err *err)
{
    (void)dev;
    (void)graph;
    (void)key;
    return work(ctx, err);
}

void cri_no_graph(cr_device *dev, cr_graph *graph)
{
    CR_CHECK(!graph, "device %s has no graphs", dev->kernels->name);
}

bool cr_device_has_graphs(const cr_device *dev)
{
    return dev->kernels->graph_run != cri_call_work;
}

cr_status cr_graph_run(cr_device *dev, cr_graph **graph, uint64_t key, cr_work work, void *ctx,
                       cr_err *err)
{
    return dev->kernels->graph_run(dev, graph, key, work, ctx, err);
}

void cr_graph_destroy(cr_device *dev, cr_graph *graph)
{
    if (graph) dev->kernels->graph_destroy(dev, graph);
}

/* ---- stacks ---- */

/* Blocks in a row; a push that does not fit goes to a new block, and when the stack is empty again
 * the blocks become one of their common size, so a warm stack is one reservation. */
enum { MAX_BLOCKS = 64 };

struct cr_stack {
    cr_device *dev;
    struct stack_block {
        cr_mem *data;
        size_t capacity, start; /* start: offset of the block in the whole stack */
    } block[MAX_BLOCKS];
    int num_blocks, current;
    size_t used, peak, high; /* used: offset in the whole stack; high: peak since it was taken */
};

cr_stack *cr_stack_create(cr_device *dev)
{
    cr_stack *s = CR_NEW(cr_stack);

    s->dev = dev;
    return s;
}

static void free_blocks(cr_stack *s)
{
    for (int i = 0; i < s->num_blocks; i++)
        cr_device_free(s->dev, s->block[i].data, s->block[i].capacity);
    s->num_blocks = 0;
    s->current = 0;
}

void cr_stack_destroy(cr_stack *s)
{
    if (!s) return;
    free_blocks(s);
    cr_free(s);
}

static cr_status add_block(cr_stack *s, size_t min, cr_err *err)
{
    size_t start = s->num_blocks
                       ? s->block[s->num_blocks - 1].start + s->block[s->num_blocks - 1].capacity
                       : 0;
    size_t want = start / 2 > min ? start / 2 : min;
    cr_mem *data;

    CR_CHECK(s->num_blocks < MAX_BLOCKS, "a stack of more than %d blocks", MAX_BLOCKS);
    want = (want + 65535) / 65536 * 65536;
    CR_TRY(cr_device_alloc(s->dev, want, &data, err));
    s->block[s->num_blocks++] = (struct stack_block){data, want, start};
    return CR_OK;
}

cr_status cr_stack_push(cr_stack *s, size_t num_bytes, cr_mem **out, cr_err *err)
{
    size_t need = (num_bytes + 63) / 64 * 64;

    if (s->used == 0 && s->num_blocks > 1) { /* empty again: one block of everything */
        size_t all = s->block[s->num_blocks - 1].start + s->block[s->num_blocks - 1].capacity;
        free_blocks(s);
        CR_TRY(add_block(s, all, err));
    }
    if (s->num_blocks == 0) CR_TRY(add_block(s, need, err));
    for (;;) {
        struct stack_block *b = &s->block[s->current];
        if (s->used + need <= b->start + b->capacity) {
            *out = cr_mem_add(b->data, s->used - b->start);
            s->dev->kernels->spoil(s->dev, *out, need);
            s->used += need;
            if (s->used > s->peak) s->peak = s->used;
            if (s->used > s->high) s->high = s->used;
            return CR_OK;
        }
        if (s->current + 1 == s->num_blocks) CR_TRY(add_block(s, need, err));
        s->current++;
        s->used = s->block[s->current].start;
    }
}

cr_status cr_stack_push_copy(cr_stack *s, const void *src, size_t num_bytes, cr_mem **out,
                             cr_err *err)
{
    CR_TRY(cr_stack_push(s, num_bytes, out, err));
    return cr_upload(s->dev, *out, src, num_bytes, err);
}

size_t cr_stack_mark(const cr_stack *s)
{
    return s->used;
}

void cr_stack_release(cr_stack *s, size_t mark)
{
    CR_CHECK(mark <= s->used, "a stack at %zu is released to %zu", s->used, mark);
    for (;;) {
        const struct stack_block *b = &s->block[s->current];
        size_t begin = mark > b->start ? mark : b->start;
        if (s->used > begin)
            s->dev->kernels->spoil(s->dev, cr_mem_add(b->data, begin - b->start), s->used - begin);
        s->used = begin;
        if (s->current == 0 || mark >= b->start) break;
        s->current--;
    }
    /* a mark on the border belongs to the block before it, which is full: push moves on by itself */
}

size_t cr_stack_peak_bytes(const cr_stack *s)
{
    return s->peak;
}

size_t cr_stack_reserved_bytes(const cr_stack *s)
{
    if (s->num_blocks == 0) return 0;
    const struct stack_block *last = &s->block[s->num_blocks - 1];
    return last->start + last->capacity;
}

size_t cr_stack_take_high(cr_stack *s)
{
    size_t high = s->high;

    s->high = s->used;
    return high;
}
