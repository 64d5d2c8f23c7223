/* row_images.h -- images of data rows: found and counted when rows are read, their bytes put on the exchange when a step needs them.
 *
 * Flow 2 of 7. Images are those of the columns `images` or `image`, videos those of `videos` or `video`, and both of parts of messages (images/reader.h). A row keeps references and
 * where the bytes are: a path, or what the row itself had. What travels to reward workers and into files of a run has
 * {"sha256", "num_bytes"} in their place, with "path" where it was one; and, unless the row has them, what rewards of boxes need
 * (docs/rewards.md): `model_type`, and `image_sizes`, [[height, width], ..] as the model sees the images.
 */
#ifndef CR_ROW_IMAGES_H
#define CR_ROW_IMAGES_H

#include "configs/configs.h"
#include "data/data.h"
#include "images/reader.h"
#include "samples/items/items.h"

/* The images of the row at hand, and what was counted so far. {0}; cr_row_images_close frees what it owns. */
typedef struct cr_row_images {
    cr_image_reader
        *reader; /* NULL: the model folder has no processor, its model takes text only */
    bool is_open;
    bool
        is_looking; /* images are only looked at: a read adds them to the reader's next look, and says that the row is dropped */
    char *model_type; /* of its config.json, owned, or NULL */
    int patch_size;
    cr_image_items items; /* of the row */
    size_t next;          /* of these, the one whose placeholder comes next */
    size_t num_broken;    /* rows left out */
    char first_broken[300];
} cr_row_images;

void cr_row_images_close(cr_row_images *r);
/* Read those of a row; messages for the template are r->items.messages. *is_dropped: the row is left out (broken_image: drop).
 * model_folder may be NULL. CR_EFORMAT, CR_EIO, CR_EARG. */
CR_MUST cr_status cri_row_images_read(cr_row_images *r, const char *model_folder,
                                      const cr_data_args *from, const cr_row *row,
                                      const json_t *messages, bool *is_dropped, cr_err *err);
size_t cri_row_images_column(const json_t *row);       /* images of the row's column */
int64_t cri_row_images_tokens(const cr_row_images *r); /* of all of them */
/* The row has references of those whose placeholders have come, and its JSON no bytes. messages: as they were given to read, of the column (NULL: of none). */
CR_MUST cr_status cri_row_images_keep(const cr_row_images *r, const json_t *messages,
                                      const char *column, cr_row *row, cr_err *err);
/* CR_EFORMAT: the messages have parts that are no text, where `whose`, "an answer is", text only. */
CR_MUST cr_status cri_messages_text_only(const json_t *messages, const char *whose, cr_err *err);

cr_item_refs cr_row_items(const cr_row *row);
/* The bytes of its images, unless they are there. folder: image_folder, or NULL. CR_EIO: a file has changed since it was read. */
CR_MUST cr_status cr_row_images_put(const cr_row *row, const char *folder, cr_item_store *store,
                                    cr_exchange *x, cr_err *err);
/* The file of an image of some row, or the first frame of a video, by the text of its digest. CR_EABSENT: no row has it; else as cr_row_images_put. */
CR_MUST cr_status cr_row_images_find(const cr_dataset *data, const char *sha256, cr_buf *out,
                                     cr_err *err);

#endif
