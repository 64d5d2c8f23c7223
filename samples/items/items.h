/* items.h -- images of prompts on their way from the pipeline to ranks: records have references, a table of the exchange has the bytes of
 * files under their SHA-256, each once. samples/items/loader.h makes patches of them.
 *
 * A reference is the digest of a file, or of a video's frames, whose bytes are one item of the table (images/videos/frames.h), and the grid of patches that the pipeline has counted its placeholders by. Those of a prompt are in
 * the order of its placeholders.
 *
 * The pipeline's side is a store: what a step's prompts need is kept until the end of the next one, so a rollout may be one step ahead.
 */
#ifndef CR_ITEMS_H
#define CR_ITEMS_H

#include "base/digest.h"
#include "exchange/exchange.h"
#include "exchange/record.h"

enum { CR_ITEM_DIGEST = 4, CR_ITEM_GRID = 3 };

/* References; arrays are borrowed. {0}: none. */
typedef struct cr_item_refs {
    const uint64_t *digests; /* [num, CR_ITEM_DIGEST] SHA-256, big-endian numbers */
    const int32_t *grids;    /* [num, CR_ITEM_GRID] t, h, w */
    size_t num;
} cr_item_refs;

/* From and to the text of base/digest.h. */
void cr_item_digest_of(const char hex[CR_DIGEST_TEXT], uint64_t digest[CR_ITEM_DIGEST]);
void cr_item_digest_text(const uint64_t digest[CR_ITEM_DIGEST], char hex[CR_DIGEST_TEXT]);
/* Arrays of a record as references: as many grids as digests, sides in range. CR_EFORMAT. */
CR_MUST cr_status cr_item_refs_make(const void *digests, size_t num_digests, const void *grids,
                                    size_t num_grids, cr_item_refs *out, cr_err *err);

/* ---- the pipeline's side ---- */

typedef struct cr_item_store cr_item_store;

cr_item_store *cr_item_store_create(void);
void cr_item_store_destroy(cr_item_store *store); /* accepts NULL */
/* The step that runs needs it. false: its bytes are not in the table, put them. */
bool cr_item_store_need(cr_item_store *store, const uint64_t digest[CR_ITEM_DIGEST]);
/* The bytes of its file as they are stored; sent with the next command. */
void cr_item_store_put(cr_item_store *store, cr_exchange *x, const uint64_t digest[CR_ITEM_DIGEST],
                       const void *data, size_t num_bytes);
/* The step is over: what was not needed since the call before this one is dropped, with the next command. */
void cr_item_store_end_step(cr_item_store *store, cr_exchange *x);

#endif
