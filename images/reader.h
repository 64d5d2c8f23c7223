/* reader.h -- the images and videos of a chat: found in its messages, read, checked, and counted in tokens.
 *
 * A place for an image is a part of a message, {"type": "image", ..} or {"type": "image_url", ..}, which has the image (image, image_url, path,
 * url, base64) or takes the next one of the column `images`; with such a column the text <image> is one, too (ROLL's rows). Images
 * of the column and places must be equally many. The chat template then sees parts without data; each placeholder that it
 * writes becomes as many as its image has tokens. A model of one size of image (Prismatic) has one image or none in a chat, and
 * the template sees nothing of it: its placeholders go after the first id of the sequence.
 *
 * A video is a list of frames, each of which is what an image is: a part {"type": "video", "video": [..]}, or the text <video> where
 * there is a column `videos`. It may say its frames a second (sample_fps, fps). Its placeholder is CR_VIDEO_PLACEHOLDER; of Qwen3-VL each patch
 * of frames has placeholders of its own, and its time stands before them.
 *
 * Images are decoded by workers (images/pool.h). Of an image that was seen before, by the digest of its bytes, the size is known. A reader is
 * opened for one of two uses: grids alone, or values (cr_image_reader_keep_values).
 *
 * Ownership: items are the caller's. One thread.
 */
#ifndef CR_IMAGE_READER_H
#define CR_IMAGE_READER_H

#include "base/digest.h"
#include "base/json.h"
#include "images/processor.h"

#define CR_IMAGE_PLACEHOLDER "<|image_pad|>" /* of Qwen's templates, as the next */
#define CR_VIDEO_PLACEHOLDER "<|video_pad|>"
#define CR_IMAGE_TAG         "<image>" /* of ROLL's rows, and the next */
#define CR_VIDEO_TAG         "<video>"
#define CR_MIN_FPS           0.01
#define CR_MAX_FPS           1000.0

enum {
    CR_IMAGES_A_CHAT = 512,
    CR_FRAMES_A_CHAT = 1024, /* of videos, and images */
    CR_IMAGE_BYTES_A_CHAT = 256 << 20,
    CR_IMAGE_PIXELS_A_CHAT = 1 << 30 /* decoded: seconds of work */
};

typedef struct cr_image_reader cr_image_reader;

/* An image, or a video. */
typedef struct cr_image_item {
    char digest[CR_DIGEST_TEXT]; /* of its file, or of a video's frames (images/videos/frames.h) */
    size_t num_bytes;            /* of its file, or files */
    const json_t *
        value; /* where the messages or the column have it, of a video its list; borrowed from them */
    double fps;        /* of a video; 0: an image */
    size_t num_frames; /* 1: an image, too */
    int width, height; /* upright */
    int32_t grid[3];   /* of patches, after resizing */
    int64_t num_tokens;
    cr_image_patches patches; /* if the reader keeps values, else zero */
} cr_image_item;

typedef struct cr_image_items {
    cr_image_item *item; /* [num] in the order of places */
    size_t num;
    json_t *messages; /* for the template */
    bool has_times;   /* in the text, of a video's patches of frames */
    int temporal_patch_size;
    bool is_inserted; /* the image's placeholders are no text: cr_image_items_insert */
    int32_t placeholder;
} cr_image_items;

/* Columns of a row: a list or one image, a list of videos; NULL: none. */
typedef struct cr_image_columns {
    const json_t *images, *videos;
} cr_image_columns;

/* folder: image_folder, or NULL; borrowed. */
cr_image_reader *cr_image_reader_create(const cr_image_processor *processor, const char *folder);
/* Items have their values from now on. A chat's images may have at most max_tokens together (0: any number), which bounds
 * the memory of values. */
void cr_image_reader_keep_values(cr_image_reader *reader, int64_t max_tokens);
void cr_image_reader_destroy(cr_image_reader *reader); /* accepts NULL */
/* A chat that will be read, of a reader without values: cr_image_reader_look decodes its images beside those of all others that were added
 * (images/ahead.h). Neither changes what a read says. */
void cr_image_reader_add(cr_image_reader *reader, const json_t *messages,
                         const cr_image_columns *columns);
void cr_image_reader_look(cr_image_reader *reader);
/* columns NULL: none. CR_EFORMAT, CR_EIO, CR_EARG: "message 2, image 3: why". */
CR_MUST cr_status cr_image_reader_read(cr_image_reader *reader, const json_t *messages,
                                       const cr_image_columns *columns, cr_image_items *out,
                                       cr_err *err);
void cr_image_items_free(cr_image_items *items);
/* Placeholders of an image that is inserted: after the first of num ids (at least one); arrays of num + num_tokens elements. labels may be
 * NULL: what the rows of a batch give; the first id's goes to the last placeholder, and what comes before has none (-1). */
void cr_image_insert(int32_t placeholder, int64_t num_tokens, const int32_t *ids,
                     const int32_t *labels, int64_t num, int32_t *out_ids, int32_t *out_labels);
/* The same with ids that were allocated; learns (may be NULL, or point to NULL) are 0 there. Returns how many came in: 0 if there is
 * no image that is inserted. CR_EFORMAT: there is no first id. */
CR_MUST cr_status cr_image_items_insert(const cr_image_items *items, int32_t **ids,
                                        uint8_t **learns, size_t *num, size_t *num_inserted,
                                        cr_err *err);
/* Append a part of the text, whose first placeholder is that of item *next, with its placeholders repeated; *next goes on. CR_EFORMAT:
 * there are more of them than images. */
CR_MUST cr_status cr_image_items_expand_part(const cr_image_items *items, const char *text,
                                             size_t num_bytes, size_t *next, cr_buf *out,
                                             cr_err *err);
/* CR_EFORMAT: the placeholders of the text that ended were not as many as the images. */
CR_MUST cr_status cr_image_items_end(const cr_image_items *items, size_t next, cr_err *err);
/* The whole text, likewise. */
CR_MUST cr_status cr_image_items_expand(const cr_image_items *items, const char *text,
                                        size_t num_bytes, cr_buf *out, cr_err *err);

#endif
