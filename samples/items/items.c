/* items.c -- references of images, and the pipeline's store of their bytes (see items.h). */
#include "samples/items/items.h"
#include "samples/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIDE = 1 << 15 }; /* of a grid */

void cr_item_digest_of(const char hex[CR_DIGEST_TEXT], uint64_t digest[CR_ITEM_DIGEST])
{
    for (int i = 0; i < CR_ITEM_DIGEST; i++) {
        char word[17];
        snprintf(word, sizeof word, "%.16s", hex + 16 * i);
        digest[i] = strtoull(word, NULL, 16);
    }
}

void cr_item_digest_text(const uint64_t digest[CR_ITEM_DIGEST], char hex[CR_DIGEST_TEXT])
{
    for (int i = 0; i < CR_ITEM_DIGEST; i++)
        snprintf(hex + 16 * i, 17, "%016llx", (unsigned long long)digest[i]);
}

cr_status cr_item_refs_make(const void *digests, size_t num_digests, const void *grids,
                            size_t num_grids, cr_item_refs *out, cr_err *err)
{
    size_t num = num_digests / CR_ITEM_DIGEST;

    *out = (cr_item_refs){digests, grids, num};
    if (num_digests % CR_ITEM_DIGEST != 0 || num_grids != CR_ITEM_GRID * num)
        return cr_fail(err, CR_EFORMAT, "images have %zu numbers of digests and %zu of grids",
                       num_digests, num_grids);
    for (size_t i = 0; i < num_grids; i++)
        if (out->grids[i] < 1 || out->grids[i] > MAX_SIDE)
            return cr_fail(err, CR_EFORMAT, "image %zu has a grid with a side of %d",
                           i / CR_ITEM_GRID, out->grids[i]);
    return CR_OK;
}

/* ---- the store ---- */

typedef struct stored {
    uint64_t digest[CR_ITEM_DIGEST];
    int64_t step; /* the last one that needed it, by the store's count */
} stored;

struct cr_item_store {
    stored *items; /* [num] that are in the table */
    size_t num, capacity;
    int64_t step;
};

cr_item_store *cr_item_store_create(void)
{
    return CR_NEW(cr_item_store);
}

void cr_item_store_destroy(cr_item_store *s)
{
    if (!s) return;
    cr_free(s->items);
    cr_free(s);
}

bool cr_item_store_need(cr_item_store *s, const uint64_t digest[CR_ITEM_DIGEST])
{
    for (size_t i = 0; i < s->num; i++)
        if (memcmp(s->items[i].digest, digest, sizeof s->items[i].digest) == 0) {
            s->items[i].step = s->step;
            return true;
        }
    return false;
}

void cr_item_store_put(cr_item_store *s, cr_exchange *x, const uint64_t digest[CR_ITEM_DIGEST],
                       const void *data, size_t num_bytes)
{
    char name[CR_DIGEST_TEXT];

    cr_item_digest_text(digest, name);
    cr_table_put_later(x, CR_TABLE_ITEMS, name, data, num_bytes);
    s->items = cr_grow(s->items, s->num, &s->capacity, sizeof *s->items);
    s->items[s->num].step = s->step;
    memcpy(s->items[s->num++].digest, digest, sizeof s->items->digest);
}

void cr_item_store_end_step(cr_item_store *s, cr_exchange *x)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->num; i++) {
        char name[CR_DIGEST_TEXT];
        if (s->items[i].step >= s->step) {
            s->items[kept++] = s->items[i];
            continue;
        }
        cr_item_digest_text(s->items[i].digest, name);
        cr_table_remove_later(x, CR_TABLE_ITEMS, name);
    }
    s->num = kept;
    s->step++;
}
