/* curriculum.h -- which rows of a domain are drawn, by their scores so far (docs/data.md, "Curriculum").
 *
 * Flow 2 of 7. A row that was solved several times in a row leaves; of those that are easy or hard only a share is drawn in each epoch.
 * What is drawn is a function of the seed, the cursor and the scores that were seen before the step: it does not depend on ranks
 * or time, and a checkpoint that has the scores goes on with the same rows.
 *
 * Threads: one. Ownership: a curriculum owns its records and borrows keys and data.
 */
#ifndef CR_CURRICULUM_H
#define CR_CURRICULUM_H

#include "configs/configs.h"
#include "data/data.h"

typedef struct cr_row_record {
    int32_t num_solved; /* groups in a row, up to the last one */
    int32_t num;        /* groups; 0: none was seen */
    double mean;        /* of their mean scores; later ones count for a quarter */
} cr_row_record;

typedef struct cr_curriculum {
    const cr_curriculum_keys *keys;
    const cr_dataset *data;
    cr_row_record *records; /* [data->num_rows] */
    uint64_t seed;
    size_t num_skipped; /* rows that draws have passed over */
} cr_curriculum;

typedef enum cr_row_pool {
    CR_POOL_NORMAL, /* rows that were not seen among them */
    CR_POOL_EASY,
    CR_POOL_HARD,
    CR_POOL_SOLVED, /* it has left */
    CR_NUM_POOLS
} cr_row_pool;

void cr_curriculum_init(cr_curriculum *c, const cr_curriculum_keys *keys, const cr_dataset *data,
                        uint64_t seed);
void cr_curriculum_free(cr_curriculum *c);
/* As cr_order_draw, less the rows that are passed over. Where two epochs have no other row it is taken nevertheless. */
uint32_t cr_curriculum_draw(cr_curriculum *c, cr_order *order, cr_cursor *cursor);
/* The mean score of a group of samples of a row: once its step is over. */
void cr_curriculum_see(cr_curriculum *c, uint32_t row, double score);
/* Rows that have a domain, by pool. */
void cr_curriculum_count(const cr_curriculum *c, size_t num[CR_NUM_POOLS]);
/* The records as a file of a checkpoint. CR_EFORMAT: it is damaged, or of other data. */
CR_MUST cr_status cr_curriculum_write(const cr_curriculum *c, const char *path, cr_err *err);
CR_MUST cr_status cr_curriculum_read(cr_curriculum *c, const char *path, cr_err *err);

#endif
