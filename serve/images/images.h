/* images.h -- images of chats in requests: data URIs, decoded by confined processes (images/reader.h), in any number of threads.
 *
 * What is taken: parts {"type": "image_url", "image_url": {"url": "data:image/..;base64,.."}}. No URL is fetched and no file is read.
 * A chat has at most CR_IMAGES_A_CHAT images of CR_IMAGE_BYTES_A_CHAT bytes, an image CR_IMAGE_MAX_PIXELS pixels, all of
 * them CR_IMAGE_PIXELS_A_CHAT, and as many tokens as the context and CR_SERVE_IMAGE_TOKENS allow. Values of all requests that the
 * service has take at most an eighth of its memory.
 */
#ifndef CR_SERVE_IMAGES_H
#define CR_SERVE_IMAGES_H

#include "engine/prompt_images.h"
#include "models/config.h"

enum {
    CR_SERVE_IMAGE_TOKENS =
        32768 /* of a chat: the values of Qwen2.5-VL's patches are 616 MB then */
};

typedef struct cr_serve_images cr_serve_images;

/* config: of the model, borrowed. */
cr_serve_images *cr_serve_images_create(const cr_image_processor *processor,
                                        const cr_model_config *config);
void cr_serve_images_destroy(cr_serve_images *images); /* accepts NULL; no thread uses it */

/* Is it such a part? Then *url is its data URI, borrowed, or NULL: it has something else. */
bool cr_serve_image_part(const json_t *part, const json_t **url);
/* Images of messages, with values. Free items with cr_image_items_free. */
CR_MUST cr_status cr_serve_images_read(cr_serve_images *images, const json_t *messages,
                                       int64_t max_tokens, cr_image_items *out, cr_err *err);
/* The values of items for a prompt of these ids. CR_EARG: they do not fit it. CR_EABSENT: the service has no memory for
 * them now. Give back with cr_serve_images_drop, also what an engine took over. */
CR_MUST cr_status cr_serve_images_take(const cr_serve_images *images, const cr_image_items *items,
                                       const int32_t *ids, size_t num_ids, cr_prompt_images *out,
                                       int64_t *num_bytes, cr_err *err);
void cr_serve_images_drop(cr_prompt_images *images, int64_t num_bytes);

#endif
