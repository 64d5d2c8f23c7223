/* prefix.h -- full blocks of the cache by what they hold, so that another request with the same beginning need not
 * compute it; inside engine/ only.
 *
 * A block is found by its ids and by what is before it, its chain: a number that the salt and the adapter of the request begin and that
 * each kept block has one of. Ids are compared, not only their hash. Blocks that no sample uses are idle; the one that
 * was given up first is the first to be taken for something else. A sample gives up its blocks from the last to the
 * first, so the end of a prefix goes before its beginning.
 */
#ifndef CR_PREFIX_H
#define CR_PREFIX_H

#include "kernels/attention.h"

typedef struct cri_prefixes cri_prefixes;

cri_prefixes *cri_prefixes_create(int64_t num_blocks);
void cri_prefixes_destroy(cri_prefixes *p); /* accepts NULL */

/* The chain of the first block: with another adapter the same ids give another block. */
uint64_t cri_prefix_root(uint64_t salt, int adapter);
/* The chain before a block whose ids do not say all that it holds: key is of the rest. */
uint64_t cri_prefix_with(uint64_t chain, uint64_t key);
/* The block that holds ids [CR_KV_BLOCK] after *chain, which becomes that of what follows; -1: none. */
int32_t cri_prefix_find(const cri_prefixes *p, uint64_t *chain, const int32_t *ids);
/* block, in use, holds ids after *chain, which becomes that of what follows: it is kept, unless it is already, or another
 * block with the same is. */
void cri_prefix_keep(cri_prefixes *p, uint64_t *chain, const int32_t *ids, int32_t block);

/* No sample uses it any more: true if it is kept, and idle from now on. */
bool cri_prefix_leave(cri_prefixes *p, int32_t block);
/* A sample uses an idle block again. */
void cri_prefix_use(cri_prefixes *p, int32_t block);
/* The block that has been idle for longest, which is not kept any more; -1: none is idle. */
int32_t cri_prefix_take(cri_prefixes *p);

#endif
