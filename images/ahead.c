/* ahead.c -- see ahead.h. */
#include "images/ahead.h"
#include "images/source.h"

#include <string.h>

typedef struct entry {
    json_t *value; /* owned */
    cr_image_look look;
    enum {
        NOT_SEEN,
        READ,
        SEEN
    } state; /* READ: what becomes of it, another one with its digest says */
} entry;

/* A file on its way. */
typedef struct slot {
    cr_image_job job;
    cr_buf file;
    entry *of; /* NULL: free */
} slot;

struct cr_image_ahead {
    cr_image_pool *pool;
    const char *folder;
    json_t *sizes; /* digest to [width, height] of what was decoded before */
    entry *entries;
    size_t num, capacity;
    size_t num_looked; /* of the entries; those after them were added since */
    size_t next;       /* in a look to be read, after it to be found */
    int64_t left_pixels;
    slot slots[CR_IMAGE_MAX_WORKERS];
};

cr_image_ahead *cr_image_ahead_create(cr_image_pool *pool, const char *folder)
{
    cr_image_ahead *a = CR_NEW(cr_image_ahead);

    a->pool = pool;
    a->folder = folder;
    a->sizes = json_object();
    return a;
}

/* Entries of the last look go. */
static void forget(cr_image_ahead *a)
{
    for (size_t i = 0; i < a->num_looked; i++)
        json_decref(a->entries[i].value);
    a->num -= a->num_looked;
    if (a->num) memmove(a->entries, a->entries + a->num_looked, a->num * sizeof *a->entries);
    a->num_looked = 0;
}

void cr_image_ahead_destroy(cr_image_ahead *a)
{
    if (!a) return;
    a->num_looked = a->num;
    forget(a);
    json_decref(a->sizes);
    cr_free(a->entries);
    cr_free(a);
}

void cr_image_ahead_add(cr_image_ahead *a, const json_t *value)
{
    a->entries = cr_grow(a->entries, a->num, &a->capacity, sizeof *a->entries);
    a->entries[a->num++] = (entry){.value = json_incref((json_t *)(uintptr_t)value)};
}

/* ---- a look ---- */

static bool find_size(const cr_image_ahead *a, cr_image_look *look)
{
    const json_t *size = json_object_get(a->sizes, look->digest);

    look->width = (int)json_integer_value(json_array_get(size, 0));
    look->height = (int)json_integer_value(json_array_get(size, 1));
    return size != NULL;
}

static bool is_decoding(const cr_image_ahead *a, const char *digest)
{
    for (size_t i = 0; i < CR_COUNT(a->slots); i++)
        if (a->slots[i].of && strcmp(a->slots[i].of->look.digest, digest) == 0) return true;
    return false;
}

/* The file of an entry; false: there is nothing to decode. */
static bool read_entry(const cr_image_ahead *a, entry *e, cr_buf *file)
{
    e->state = SEEN;
    if (cr_image_source_read(e->value, a->folder, file, &e->look.err) != CR_OK) return false;
    cr_digest_bytes(file->data ? file->data : "", file->num_bytes, e->look.digest);
    e->look.num_bytes = file->num_bytes;
    if (find_size(a, &e->look)) return false;
    e->state = READ;
    return !is_decoding(a, e->look.digest);
}

static cr_image_job *next_job(void *ctx)
{
    cr_image_ahead *a = ctx;
    slot *s = a->slots;

    while (s->of)
        s++;
    while (a->next < a->num_looked && a->left_pixels >= 0) {
        entry *e = &a->entries[a->next++];
        if (read_entry(a, e, &s->file)) {
            s->of = e;
            s->job = (cr_image_job){
                .data = s->file.data, .num_bytes = s->file.num_bytes, .size_only = true};
            return &s->job;
        }
        cr_buf_free(&s->file);
    }
    return NULL;
}

static void end_job(void *ctx, cr_image_job *job)
{
    cr_image_ahead *a = ctx;
    slot *s = a->slots;
    cr_image_look *look;

    while (&s->job != job)
        s++;
    s->of->state = SEEN;
    look = &s->of->look;
    look->err = job->err;
    look->width = job->image.width;
    look->height = job->image.height;
    look->is_decoded = true;
    a->left_pixels -= (int64_t)look->width * look->height;
    if (!look->err.status)
        json_object_set_new(a->sizes, look->digest, json_pack("[i,i]", look->width, look->height));
    cr_buf_free(&s->file);
    s->of = NULL;
}

cr_status cr_image_ahead_look(cr_image_ahead *a, int64_t max_pixels, cr_err *err)
{
    const cr_image_jobs jobs = {next_job, end_job, a};

    forget(a);
    a->num_looked = a->num;
    a->left_pixels = max_pixels;
    a->next = 0;
    cr_note(cr_image_pool_run(a->pool, &jobs, err));
    for (size_t i = 0; i < CR_COUNT(a->slots); i++) { /* of a job without a worker */
        cr_buf_free(&a->slots[i].file);
        a->slots[i].of = NULL;
    }
    a->next = 0;
    return err->status;
}

/* ---- after it ---- */

/* Of two with the same digest one was decoded. */
static void settle(cr_image_ahead *a, entry *e)
{
    for (size_t i = 0; i < a->num_looked && e->state == READ; i++) {
        const entry *other = &a->entries[i];
        if (other->state != SEEN || strcmp(other->look.digest, e->look.digest) != 0) continue;
        e->look = other->look;
        e->look.is_decoded = false;
        e->state = SEEN;
    }
}

const cr_image_look *cr_image_ahead_find(cr_image_ahead *a, const json_t *value)
{
    for (size_t k = 0; k < a->num_looked; k++) {
        size_t i = (a->next + k) % a->num_looked;
        entry *e = &a->entries[i];
        if (e->value != value && !json_equal(e->value, value)) continue;
        a->next = i + 1;
        if (e->state == READ) settle(a, e);
        return e->state == SEEN ? &e->look : NULL;
    }
    return NULL;
}
