/* loader.c -- fetched, checked, decoded, cut and kept (see loader.h). */
#include "samples/items/loader.h"
#include "images/pool.h"
#include "images/videos/clip.h"
#include "images/videos/frames.h"
#include "samples/protocol.h"

#include <string.h>

typedef struct kept {
    uint64_t digest[CR_ITEM_DIGEST];
    cr_image_patches patches; /* values NULL: not made yet */
    int32_t grid[CR_ITEM_GRID];
    uint64_t used; /* number of the load that asked for it last */
} kept;

struct cr_item_loader {
    cr_image_processor processor;
    cr_image_pool *pool;
    size_t at_once;
    kept *items;
    size_t num, capacity;
    int64_t num_bytes, max_bytes;
    uint64_t loads;
};

cr_item_loader *cr_item_loader_create(const cr_image_processor *processor, int64_t max_bytes)
{
    cr_item_loader *l = CR_NEW(cr_item_loader);

    l->processor = *processor;
    l->max_bytes = max_bytes;
    l->pool = cr_image_pool_open(processor->alpha, &l->at_once);
    return l;
}

cr_image_alpha cr_item_alpha(const cr_data_args *data)
{
    return data->has_white_alpha ? CR_ALPHA_WHITE : CR_ALPHA_DROP;
}

cr_status cr_item_processor_read(const char *folder, const cr_data_args *data,
                                 cr_image_processor *out, cr_err *err)
{
    CR_TRY(cr_image_processor_read(folder, out, err));
    out->alpha = cr_item_alpha(data);
    if (data->video_fps > 0) out->video.fps = data->video_fps;
    CR_TRY(cr_image_processor_limit(out, data->image_min_pixels, data->image_max_pixels, err));
    return cr_video_processor_limit(out, data->video_min_pixels, data->video_max_pixels, err);
}

cr_status cr_item_processor_name(const char *folder, const cr_data_args *data, cr_buf *out,
                                 cr_err *err)
{
    cr_image_processor processor;

    CR_TRY(cr_item_processor_read(folder, data, &processor, err));
    cr_image_processor_name(&processor, out);
    return CR_OK;
}

cr_status cr_item_loader_open(const char *folder, const cr_config *config, cr_item_loader **out,
                              cr_err *err)
{
    cr_image_processor processor;

    *out = NULL;
    CR_TRY(cr_item_processor_read(folder, &config->train.data, &processor, err));
    *out = cr_item_loader_create(&processor, CR_ITEM_CACHE_BYTES);
    return CR_OK;
}

void cr_item_loader_destroy(cr_item_loader *l)
{
    if (!l) return;
    cr_image_pool_destroy(l->pool);
    for (size_t i = 0; i < l->num; i++)
        cr_image_patches_free(&l->items[i].patches);
    cr_free(l->items);
    cr_free(l);
}

static int64_t bytes_of(const cr_image_patches *p)
{
    return p->num_patches * p->patch_dim * (int64_t)sizeof *p->values;
}

static kept *find(const cr_item_loader *l, const uint64_t digest[CR_ITEM_DIGEST])
{
    for (size_t i = 0; i < l->num; i++)
        if (memcmp(l->items[i].digest, digest, sizeof l->items[i].digest) == 0) return &l->items[i];
    return NULL;
}

static cr_status of_item(const kept *item, cr_err *err)
{
    char name[CR_DIGEST_TEXT];

    cr_item_digest_text(item->digest, name);
    return cr_fail_add(err, "image %.12s", name);
}

/* ---- a load ---- */

/* Images of the references are in the list, those that are here marked as used. */
static cr_status list(cr_item_loader *l, const cr_item_refs *refs, cr_err *err)
{
    for (size_t i = 0; i < refs->num; i++) {
        const uint64_t *digest = refs->digests + CR_ITEM_DIGEST * i;
        const int32_t *grid = refs->grids + CR_ITEM_GRID * i;
        kept *item = find(l, digest);
        if (!item) {
            l->items = cr_grow(l->items, l->num, &l->capacity, sizeof *l->items);
            item = &l->items[l->num++];
            *item = (kept){0};
            memcpy(item->digest, digest, sizeof item->digest);
            memcpy(item->grid, grid, sizeof item->grid);
        }
        item->used = l->loads;
        if (memcmp(item->grid, grid, sizeof item->grid) == 0) continue;
        cr_fail(err, CR_EFORMAT, "it is %d x %d x %d patches here and %d x %d x %d there", grid[0],
                grid[1], grid[2], item->grid[0], item->grid[1], item->grid[2]);
        return of_item(item, err);
    }
    return CR_OK;
}

/* Items that a load lacks, their files and, one after another, the frames of each. */
typedef struct work {
    kept **items;
    cr_frames *frames;       /* [num] */
    size_t num, item, frame; /* the next frame */
    cr_clip clip;            /* of the item whose frames come */
} work;

/* The file of an item, as it came. */
static cr_status take_file(const kept *item, const cr_buf *file, cr_frames *out, cr_err *err)
{
    char hex[CR_DIGEST_TEXT];
    uint64_t digest[CR_ITEM_DIGEST];

    if (!file->num_bytes)
        return cr_fail(err, CR_EFORMAT, "it is not in the exchange (is its step over?)");
    CR_TRY(cr_frames_get(file->data, file->num_bytes, out, err));
    cr_frames_digest(out, hex);
    cr_item_digest_of(hex, digest);
    if (memcmp(digest, item->digest, sizeof digest) == 0) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the exchange has other bytes under its name");
}

/* The clip is whole. */
static cr_status take_clip(cr_item_loader *l, cr_clip *clip, kept *item, cr_err *err)
{
    CR_TRY(cr_clip_cut(clip, &item->patches, err));
    l->num_bytes += bytes_of(&item->patches);
    if (memcmp(item->patches.grid, item->grid, sizeof item->grid) == 0) return CR_OK;
    cr_fail(err, CR_EFORMAT,
            "it becomes %d x %d x %d patches, its prompt counts on %d x %d x %d (another processor "
            "in this model's folder?)",
            item->patches.grid[0], item->patches.grid[1], item->patches.grid[2], item->grid[0],
            item->grid[1], item->grid[2]);
    l->num_bytes -= bytes_of(&item->patches);
    cr_image_patches_free(&item->patches);
    return err->status;
}

static cr_status take_job(cr_item_loader *l, work *w, cr_image_job *job, cr_err *err)
{
    const cr_frames *f = &w->frames[w->item];
    kept *item = w->items[w->item];

    if (job->err.status) return cr_fail(err, CR_EFORMAT, "%s", job->err.msg);
    if (w->frame == 0) cr_clip_begin(&w->clip, &l->processor, f->num, f->fps);
    CR_TRY(cr_clip_add(&w->clip, &job->image, err));
    if (++w->frame < f->num) return CR_OK;
    w->item++;
    w->frame = 0;
    return take_clip(l, &w->clip, item, err);
}

/* The next frames, at most at_once. */
static cr_status decode_some(cr_item_loader *l, work *w, cr_err *err)
{
    cr_image_job jobs[CR_IMAGE_MAX_WORKERS] = {0};
    size_t num = 0;

    for (size_t i = w->item, k = w->frame; i < w->num && num < l->at_once; i++, k = 0)
        for (; k < w->frames[i].num && num < l->at_once; k++)
            jobs[num++] = (cr_image_job){.data = w->frames[i].data[k],
                                         .num_bytes = w->frames[i].num_bytes[k]};
    CR_TRY(cr_image_pool_decode(l->pool, jobs, num, err));
    for (size_t i = 0; i < num; i++) {
        const kept *item = err->status ? NULL : w->items[w->item];
        if (item && take_job(l, w, &jobs[i], err) != CR_OK) of_item(item, err);
        cr_image_free(&jobs[i].image);
    }
    return err->status;
}

/* files: [num] of items, as they came. */
static cr_status decode(cr_item_loader *l, kept **items, const cr_buf *files, size_t num,
                        cr_err *err)
{
    work w = {.items = items, .frames = CR_NEW_ARRAY(cr_frames, num), .num = num};

    for (size_t i = 0; i < num && !err->status; i++)
        if (take_file(items[i], &files[i], &w.frames[i], err) != CR_OK) of_item(items[i], err);
    while (w.item < num && !err->status)
        cr_note(decode_some(l, &w, err));
    for (size_t i = 0; i < num; i++)
        cr_frames_free(&w.frames[i]);
    cr_clip_free(&w.clip);
    cr_free(w.frames);
    return err->status;
}

static cr_status fetch(cr_item_loader *l, cr_exchange *x, kept **items, size_t num, cr_err *err)
{
    char(*text)[CR_DIGEST_TEXT] = cr_alloc(num * sizeof *text);
    const char **names = CR_NEW_ARRAY(const char *, num);
    cr_buf *files = CR_NEW_ARRAY(cr_buf, num);

    for (size_t i = 0; i < num; i++) {
        cr_item_digest_text(items[i]->digest, text[i]);
        names[i] = text[i];
    }
    CR_TRY_GOTO(out, cr_table_get(x, CR_TABLE_ITEMS, names, num, files, err));
    cr_note(decode(l, items, files, num, err));
out:
    for (size_t i = 0; i < num; i++)
        cr_buf_free(&files[i]);
    cr_free(files);
    cr_free(names);
    cr_free(text);
    return err->status;
}

/* What was not made, and, beyond max_bytes, what was not asked for lately. */
static void drop(cr_item_loader *l)
{
    for (;;) {
        kept *oldest = NULL;
        for (size_t i = 0; i < l->num; i++) {
            kept *item = &l->items[i];
            bool is_old = item->used < l->loads && l->num_bytes > l->max_bytes;
            if (item->patches.values && !is_old) continue;
            if (!oldest || item->used < oldest->used) oldest = item;
        }
        if (!oldest) return;
        l->num_bytes -= bytes_of(&oldest->patches);
        cr_image_patches_free(&oldest->patches);
        *oldest = l->items[--l->num];
    }
}

cr_status cr_item_loader_load(cr_item_loader *l, cr_exchange *x, const cr_item_refs *refs,
                              size_t num, cr_err *err)
{
    kept **lacking;
    size_t num_lacking = 0;

    l->loads++;
    for (size_t i = 0; i < num && !err->status; i++)
        cr_note(list(l, &refs[i], err));
    lacking = CR_NEW_ARRAY(kept *, l->num + 1);
    for (size_t i = 0; i < l->num; i++)
        if (!l->items[i].patches.values) lacking[num_lacking++] = &l->items[i];
    if (!err->status && num_lacking) cr_note(fetch(l, x, lacking, num_lacking, err));
    cr_free(lacking);
    drop(l);
    return err->status;
}

const cr_image_patches *cr_item_loader_get(const cr_item_loader *l,
                                           const uint64_t digest[CR_ITEM_DIGEST])
{
    const kept *item = find(l, digest);

    return item ? &item->patches : NULL;
}

int64_t cr_item_loader_bytes(const cr_item_loader *l)
{
    return l->num_bytes;
}
