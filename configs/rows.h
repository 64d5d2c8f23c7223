/* rows.h -- keys of the pipelines whose rows have their answers: sft and dpo. Part of configs.h.
 */
#ifndef CR_ROW_KEYS_H
#define CR_ROW_KEYS_H

#include "base/base.h"

/* Columns of a file, and the order of its rows; texts are owned, NULL: none. */
typedef struct cr_row_keys {
    char *prompt_key, *query_key, *system_key;
    char *response_key;              /* sft */
    char *chosen_key, *rejected_key; /* dpo */
    bool shuffle;
    bool keeps_reference; /* dpo: log-probs of the reference are computed once for each pair */
} cr_row_keys;

#endif
