/* rows.h -- the data rows of the prompts of a step: each travels once, and reward workers look it up by its group.
 *
 * A group's name is the id of its first sample. Errors: those of the exchange; CR_EFORMAT.
 */
#ifndef CR_ROWS_H
#define CR_ROWS_H

#include "exchange/exchange.h"
#include "samples/messages.h"

/* The row of the group that begins with this sample; sent with the next command. */
CR_MUST cr_status cr_rows_put(cr_exchange *x, uint64_t first, const cr_prompt_row *row,
                              cr_err *err);
/* The step is over; with the next command. */
void cr_rows_clear(cr_exchange *x);
/* Is the row of this group in the table? Only others' commands take it out before the step is over. */
CR_MUST cr_status cr_rows_has(cr_exchange *x, uint64_t first, bool *is_there, cr_err *err);

/* Rows that were looked up. {0}: none. Free with cr_rows_free. */
typedef struct cr_rows {
    struct cr_rows_item {
        uint64_t first;
        cr_record record;  /* num_arrays 0: there is no such row (any more) */
        cr_prompt_row row; /* borrows from record */
    } * items;
    size_t num;
} cr_rows;

/* Keep the rows of the samples of these entries and no others; those that are not here yet are asked for in one call. */
CR_MUST cr_status cr_rows_fetch(cr_rows *rows, cr_exchange *x, const cr_entries *entries,
                                cr_err *err);
/* NULL: the table has none, its step is over. Borrowed until the next fetch. */
const cr_prompt_row *cr_rows_find(const cr_rows *rows, const char *sample_name);
void cr_rows_free(cr_rows *rows);

#endif
