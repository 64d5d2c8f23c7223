/* source.h -- the bytes of an image that a row names: a path, base64, a data URI, or an object with one of these.
 *
 * What is read, as Transformers, Hugging Face data sets and OpenAI's messages have it:
 *
 *     "cats/1.jpg"                              a path below the folder (image_folder)
 *     "data:image/png;base64,iVBORw.."          a data URI; base64 of a JPEG, PNG or WebP file alone, too
 *     {"bytes": base64 or null, "path": ..}     what Parquet files of images have; bytes come first
 *     {"url": ..}                               a data URI
 *
 * Nothing is fetched. A path stays below the folder whatever links and dots it has (the kernel sees to it), and leads to a file of at most
 * CR_IMAGE_MAX_BYTES.
 */
#ifndef CR_IMAGE_SOURCE_H
#define CR_IMAGE_SOURCE_H

#include "base/json.h"

enum { CR_IMAGE_MAX_BYTES = 128 << 20 };

/* folder NULL: paths are refused. CR_EFORMAT or CR_EIO: why there are no bytes. */
CR_MUST cr_status cr_image_source_read(const json_t *value, const char *folder, cr_buf *out,
                                       cr_err *err);

/* The path that it names (borrowed); NULL: it has the bytes. */
const char *cr_image_source_path(const json_t *value);

#endif
