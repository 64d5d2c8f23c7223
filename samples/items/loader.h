/* loader.h -- on a rank: from references of images and videos to their patches (samples/items/items.h).
 *
 * Bytes that are not here come from the exchange in one call, are checked against their digest, decoded by confined workers
 * (images/pool.h) and cut by the model folder's processor. What was made is kept, the least recently used goes first.
 *
 * Ownership: patches are the loader's. One thread.
 */
#ifndef CR_ITEM_LOADER_H
#define CR_ITEM_LOADER_H

#include "configs/configs.h"
#include "images/processor.h"
#include "samples/items/items.h"

enum { CR_ITEM_CACHE_BYTES = 1 << 30 }; /* of patches of a rank */

typedef struct cr_item_loader cr_item_loader;

/* Of files, as image_alpha says. */
cr_image_alpha cr_item_alpha(const cr_data_args *data);
/* The processor of a MODEL folder with what data_args say of images, for rows and for ranks. Errors: those of cr_image_processor_read
 * and cr_image_processor_limit. */
CR_MUST cr_status cr_item_processor_read(const char *folder, const cr_data_args *data,
                                         cr_image_processor *out, cr_err *err);
/* Append cr_image_processor_name of it. */
CR_MUST cr_status cr_item_processor_name(const char *folder, const cr_data_args *data, cr_buf *out,
                                         cr_err *err);
/* max_bytes: of patches that are kept beyond those of the last call. */
cr_item_loader *cr_item_loader_create(const cr_image_processor *processor, int64_t max_bytes);
/* With the processor of a role's MODEL folder; CR_ITEM_CACHE_BYTES are kept. Errors: those of cr_item_processor_read. */
CR_MUST cr_status cr_item_loader_open(const char *folder, const cr_config *config,
                                      cr_item_loader **out, cr_err *err);
void cr_item_loader_destroy(cr_item_loader *loader); /* accepts NULL */
/* Images of num prompts. CR_EFORMAT: one is not in the exchange, is not what its reference says, or cannot be decoded: its digest and
 * why. */
CR_MUST cr_status cr_item_loader_load(cr_item_loader *loader, cr_exchange *x,
                                      const cr_item_refs *refs, size_t num, cr_err *err);
/* One of the last load; borrowed until the next one. */
const cr_image_patches *cr_item_loader_get(const cr_item_loader *loader,
                                           const uint64_t digest[CR_ITEM_DIGEST]);
int64_t cr_item_loader_bytes(const cr_item_loader *loader); /* of patches that are kept */

#endif
