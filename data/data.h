/* data.h -- rows of ROLL's data files: load, check, assign to domains, draw in a repeatable order.
 *
 * Flow 2 of 7. A file holds one JSON object a line, one JSON array of objects, or is Parquet (docs/data.md); every
 * column of a row travels with its samples to the reward worker. Rows are read once and stay in memory
 * with their prompt's ids; all problems of a file are reported with FILE:LINE before anything starts.
 * Order: per domain, a permutation keyed by (seed, epoch), so the position of a cursor is all that a
 * checkpoint has to keep.
 *
 * Threads: one caller. A dataset owns its rows.
 */
#ifndef CR_DATA_H
#define CR_DATA_H

#include "base/json.h"

typedef struct cr_row {
    json_t *json; /* the line as it was read */
    char *text;   /* the same as text, for the exchange */
    json_t *
        asked; /* RLVR: the prompt as people read it, in part: its column, or the last message's content */
    int32_t *ids; /* prompt (RLVR), prompt and answer (SFT), or prompt and both answers (pairs) */
    size_t num_ids;
    size_t num_prompt; /* SFT, pairs: label-free ids at the start; RLVR: num_ids */
    size_t num_chosen; /* pairs: of the ids after the prompt; those of the rejected answer follow */
    uint8_t *
        learns; /* SFT on messages: [num_ids], 1 on ids of an assistant; NULL: all after num_prompt */
    /* images, in the order of their placeholders (row_images.h): references, and where their bytes are; owned */
    uint64_t *image_digests;
    int32_t *image_grids;
    json_t *
        image_files; /* [num_images] {"files": an image or a list of frames, "fps": 0 of an image} */
    size_t num_images;
    int domain;       /* index into the caller's domains, -1: unused */
    int32_t *rewards; /* RLVR: blocks of rewards that score its samples, the domain first (owned) */
    size_t num_rewards;
    int line;          /* in its file, or row of its array or Parquet file, from 1 */
    double difficulty; /* the column, if difficulty_loss_weight reads it */
} cr_row;

typedef struct cr_dataset {
    cr_row *rows;
    size_t num_rows, capacity;
    size_t num_dropped;       /* left out by the encoder */
    uint64_t sum;             /* of the bytes of its files, in their order */
    const char *image_folder; /* where paths of its rows' images begin, or NULL; borrowed */
} cr_dataset;

/* Fill ids of a row from its columns. CR_EFORMAT: the row is wrong; leave ids NULL to drop it. */
typedef cr_status (*cr_row_encode)(void *ctx, cr_row *row, cr_err *err);

/* What makes ids of rows, one after the other in their order. look (or NULL) is shown rows before that, many at a time, and may do for
 * all of them what takes long; it changes nothing. */
typedef struct cr_row_coder {
    cr_row_encode encode;
    void (*look)(void *ctx, const cr_row *rows, size_t num);
    void *ctx;
} cr_row_coder;

/* Append the rows of a file, or of the files of a folder, by name. CR_EFORMAT with FILE:LINE (of an array and of Parquet: FILE: row N) and the first problem
 * of each of up to ten bad rows in the log; files of another kind (gzip, UTF-16, ..) are refused
 * with the command that converts them. A byte order mark is skipped. A file that takes long is said to, with the rows so far. */
CR_MUST cr_status cr_dataset_load(cr_dataset *data, const char *path, const cr_row_coder *coder,
                                  cr_err *err);
void cr_dataset_free(cr_dataset *data);
bool cr_dataset_has_images(const cr_dataset *data); /* a row has */
void cr_row_free(cr_row *row);                      /* what it owns */

/* Draws rows of one domain: a permutation an epoch. */
typedef struct cr_cursor {
    int64_t epoch, next; /* next position in the permutation of this epoch */
    double deficit;      /* prompts of its share that were not drawn yet; below 0: drawn early */
} cr_cursor;

typedef struct cr_order {
    uint32_t *index; /* rows of the domain, permuted for `epoch` (owned) */
    size_t num;
    int64_t epoch; /* that index is permuted for, -1: none yet */
    uint64_t seed;
} cr_order;

/* Rows of domain `domain`; num may be 0. */
void cr_order_init(cr_order *order, const cr_dataset *data, int domain, uint64_t seed);
void cr_order_free(cr_order *order);
/* Prompts of a step for each domain, whole ones, `total` together. share[num]: at least 0, 1 together. After
 * any number of steps each domain has had its share to within less than one prompt: cursors keep
 * the difference. */
void cr_cursors_deal(cr_cursor *cursors, const double *share, size_t num, int64_t total,
                     int *num_prompts);
/* Row index at the cursor, which moves on by one. order->num must not be 0. */
uint32_t cr_order_draw(cr_order *order, cr_cursor *cursor);

#endif
