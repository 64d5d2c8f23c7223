/* batch_columns.c -- see batch_columns.h. */
#include "rl/batch_columns.h"

const struct cr_batch_column_row cr_batch_columns[CR_NUM_COLUMNS] = {
#define X(value, name, is_per_sample, travel) {name, is_per_sample, CR_TRAVEL_##travel},
    CR_COLUMN_LIST(X)
#undef X
};
