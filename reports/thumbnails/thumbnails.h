/* thumbnails.h -- small pictures of the images that samples were asked about, for the pages of a run.
 *
 * Rows in a run's files have references of images, {"sha256", "num_bytes", "path"} (data/row_images.h). Their pictures are WebP files
 * `thumbnails/SHA256.webp` in the run's folder, made by croll of the pixels (a stranger's file is never part of a page, nor what it says
 * of its camera), and in a page as data URIs. A picture is at most 128 pixels wide and high, a page has at most 48 different ones, at
 * most 6 a sample and 512 KiB together. An image without one is shown as its path, or the first digits of its SHA-256.
 *
 * Threads: one. Never fails.
 */
#ifndef CR_THUMBNAILS_H
#define CR_THUMBNAILS_H

#include "base/json.h"
#include "images/image.h"

/* Where files of images are found. {0}: nowhere; only pictures that were made before are shown. */
typedef struct cr_image_files {
    /* The file with this digest; a failure: it is not there any more. */
    cr_status (*read)(void *context, const char *sha256, cr_buf *out, cr_err *err);
    void *context;
    cr_image_alpha alpha;
} cr_image_files;

typedef struct cr_thumbnails cr_thumbnails;
/* folder: of the run; borrowed, as what files has. */
cr_thumbnails *cr_thumbnails_open(const char *folder, const cr_image_files *files);
void cr_thumbnails_close(cr_thumbnails *t); /* accepts NULL */
/* The pictures of all references in a row; nothing, and false, where it has none or is NULL. */
bool cr_thumbnails_add(cr_thumbnails *t, const json_t *row, cr_buf *out);
/* The references, a list; a new reference. */
json_t *cr_thumbnails_references(const json_t *row);
/* Their digests, one after the other; the caller's. */
char *cr_thumbnails_digests(const json_t *row);

#endif
