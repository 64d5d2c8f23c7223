/* prefix.c -- see prefix.h. */
#include "engine/prefix.h"
#include "base/rng.h"

#include <string.h>

enum { NONE = -1 };

/* Of a block. */
typedef struct entry {
    uint64_t chain;  /* of what follows; 0: not kept */
    uint64_t before; /* chain that it follows */
    int32_t next;    /* in its bucket */
    int32_t older, newer;
} entry;

struct cri_prefixes {
    entry *entries; /* [num_blocks] */
    int32_t *ids;   /* [num_blocks, CR_KV_BLOCK] */
    int32_t *buckets;
    uint64_t mask; /* buckets - 1 */
    uint64_t last_chain;
    int32_t oldest, newest; /* of the idle ones */
};

cri_prefixes *cri_prefixes_create(int64_t num_blocks)
{
    cri_prefixes *p = CR_NEW(cri_prefixes);

    p->mask = 63;
    while ((int64_t)p->mask < num_blocks)
        p->mask = 2 * p->mask + 1;
    p->entries = CR_NEW_ARRAY(entry, num_blocks);
    p->ids = CR_NEW_ARRAY(int32_t, num_blocks * CR_KV_BLOCK);
    p->buckets = CR_NEW_ARRAY(int32_t, p->mask + 1);
    for (uint64_t i = 0; i <= p->mask; i++)
        p->buckets[i] = NONE;
    p->oldest = p->newest = NONE;
    return p;
}

void cri_prefixes_destroy(cri_prefixes *p)
{
    if (!p) return;
    cr_free(p->entries);
    cr_free(p->ids);
    cr_free(p->buckets);
    cr_free(p);
}

uint64_t cri_prefix_root(uint64_t salt, int adapter)
{
    const uint64_t both[2] = {salt, (uint64_t)adapter};

    return cr_hash64(both, sizeof both) | UINT64_C(1) << 63; /* chains of blocks count from 1 */
}

uint64_t cri_prefix_with(uint64_t chain, uint64_t key)
{
    const uint64_t both[2] = {chain, key};

    return cr_hash64(both, sizeof both) | UINT64_C(1) << 63;
}

static int32_t *bucket_of(const cri_prefixes *p, uint64_t before, const int32_t *ids)
{
    uint64_t both[2] = {before, cr_hash64(ids, CR_KV_BLOCK * sizeof *ids)};

    return &p->buckets[cr_hash64(both, sizeof both) & p->mask];
}

int32_t cri_prefix_find(const cri_prefixes *p, uint64_t *chain, const int32_t *ids)
{
    for (int32_t b = *bucket_of(p, *chain, ids); b != NONE; b = p->entries[b].next) {
        if (p->entries[b].before != *chain ||
            memcmp(p->ids + (int64_t)b * CR_KV_BLOCK, ids, CR_KV_BLOCK * sizeof *ids) != 0)
            continue;
        *chain = p->entries[b].chain;
        return b;
    }
    return NONE;
}

void cri_prefix_keep(cri_prefixes *p, uint64_t *chain, const int32_t *ids, int32_t block)
{
    entry *e = &p->entries[block];
    int32_t *bucket;

    if (e->chain) *chain = e->chain;
    if (e->chain || cri_prefix_find(p, chain, ids) != NONE) return;
    bucket = bucket_of(p, *chain, ids);
    *e = (entry){
        .chain = ++p->last_chain, .before = *chain, .next = *bucket, .older = NONE, .newer = NONE};
    memcpy(p->ids + (int64_t)block * CR_KV_BLOCK, ids, CR_KV_BLOCK * sizeof *ids);
    *bucket = block;
    *chain = e->chain;
}

bool cri_prefix_leave(cri_prefixes *p, int32_t block)
{
    entry *e = &p->entries[block];

    if (e->chain == 0) return false;
    e->older = p->newest;
    e->newer = NONE;
    *(p->newest == NONE ? &p->oldest : &p->entries[p->newest].newer) = block;
    p->newest = block;
    return true;
}

void cri_prefix_use(cri_prefixes *p, int32_t block)
{
    entry *e = &p->entries[block];

    *(e->older == NONE ? &p->oldest : &p->entries[e->older].newer) = e->newer;
    *(e->newer == NONE ? &p->newest : &p->entries[e->newer].older) = e->older;
}

int32_t cri_prefix_take(cri_prefixes *p)
{
    int32_t block = p->oldest, *at;
    entry *e;

    if (block == NONE) return NONE;
    e = &p->entries[block];
    cri_prefix_use(p, block);
    for (at = bucket_of(p, e->before, p->ids + (int64_t)block * CR_KV_BLOCK); *at != block;)
        at = &p->entries[*at].next;
    *at = e->next;
    e->chain = 0;
    return block;
}
