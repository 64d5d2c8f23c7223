/* words.h -- the configuration of a command that makes a run of its own from another run's file (croll eval, croll replay): key=value
 * words, given by the user or made by the command, and the file loaded with them. One thread.
 */
#ifndef CR_START_WORDS_H
#define CR_START_WORDS_H

#include "base/args.h"
#include "configs/configs.h"

typedef struct cr_run_words {
    cr_words words;
    /* those that were made here; owned */
    char **made;
    size_t num_made, capacity;
} cr_run_words;

void cr_run_words_take(cr_run_words *w, char *word); /* from cr_asprintf and its like, taken over */
/* KEY="TEXT", quoted. */
void cr_run_words_add_text(cr_run_words *w, const char *key, const char *text);
/* Errors are printed; notes are not: they are of the other run. On success the caller frees *out. CR_ECONFIG. */
CR_MUST cr_status cr_run_words_load(const cr_run_words *w, const char *file, cr_config *out,
                                    cr_err *err);
void cr_run_words_free(cr_run_words *w);

#endif
