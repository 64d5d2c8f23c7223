/* loader.c -- fetched, checked, decoded, cut and kept (see loader.h). */
#include "samples/items/loader.h"
#include "images/pool.h"
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

cr_status cr_item_processor_read(const char *folder, const cr_data_args *data,
                                 cr_image_processor *out, cr_err *err)
{
    CR_TRY(cr_image_processor_read(folder, out, err));
    if (data->has_white_alpha) out->alpha = CR_ALPHA_WHITE;
    return cr_image_processor_limit(out, data->image_min_pixels, data->image_max_pixels, err);
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

/* The file of an item, as it came. */
static cr_status check_file(const kept *item, const cr_buf *file, cr_err *err)
{
    char hex[CR_DIGEST_TEXT];
    uint64_t digest[CR_ITEM_DIGEST];

    if (!file->num_bytes)
        return cr_fail(err, CR_EFORMAT, "it is not in the exchange (is its step over?)");
    cr_digest_bytes(file->data, file->num_bytes, hex);
    cr_item_digest_of(hex, digest);
    if (memcmp(digest, item->digest, sizeof digest) == 0) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the exchange has other bytes under its name");
}

static cr_status take_job(cr_item_loader *l, cr_image_job *job, kept *item, cr_err *err)
{
    if (job->err.status) return cr_fail(err, CR_EFORMAT, "%s", job->err.msg);
    CR_TRY(cr_image_cut(&l->processor, &job->image, 1, &item->patches, err));
    l->num_bytes += bytes_of(&item->patches);
    if (memcmp(item->patches.grid, item->grid, sizeof item->grid) == 0) return CR_OK;
    cr_fail(err, CR_EFORMAT,
            "it becomes %d x %d patches, its prompt counts on %d x %d (another processor in this "
            "model's folder?)",
            item->patches.grid[1], item->patches.grid[2], item->grid[1], item->grid[2]);
    l->num_bytes -= bytes_of(&item->patches);
    cr_image_patches_free(&item->patches);
    return err->status;
}

/* Some of them, at most at_once. */
static cr_status decode_some(cr_item_loader *l, kept **items, const cr_buf *files, size_t num,
                             cr_err *err)
{
    cr_image_job jobs[CR_IMAGE_MAX_WORKERS] = {0};

    for (size_t i = 0; i < num; i++) {
        if (check_file(items[i], &files[i], err) != CR_OK) return of_item(items[i], err);
        jobs[i] = (cr_image_job){.data = files[i].data, .num_bytes = files[i].num_bytes};
    }
    CR_TRY(cr_image_pool_decode(l->pool, jobs, num, err));
    for (size_t i = 0; i < num; i++) {
        if (!err->status && take_job(l, &jobs[i], items[i], err) != CR_OK) of_item(items[i], err);
        cr_image_free(&jobs[i].image);
    }
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
    for (size_t i = 0; i < num && !err->status; i += l->at_once)
        cr_note(
            decode_some(l, items + i, files + i, num - i < l->at_once ? num - i : l->at_once, err));
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
