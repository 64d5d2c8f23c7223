/* words.c -- see words.h. */
#include "pipelines/start/words.h"
#include "base/json.h"

#include <string.h>

void cr_run_words_take(cr_run_words *w, char *word)
{
    w->made = cr_grow(w->made, w->num_made, &w->capacity, sizeof *w->made);
    w->made[w->num_made++] = word;
    cr_words_add(&w->words, word);
}

void cr_run_words_add_text(cr_run_words *w, const char *key, const char *text)
{
    cr_buf word = {0};

    cr_buf_addf(&word, "%s=", key);
    cr_json_add_string(&word, text, strlen(text));
    cr_run_words_take(w, word.data);
}

cr_status cr_run_words_load(const cr_run_words *w, const char *file, cr_config *out, cr_err *err)
{
    cr_diagnostics d = {0};

    cr_note(cr_config_load(file, w->words.word, w->words.num, out, &d, err));
    if (err->status != CR_OK) cr_diagnostics_print(&d);
    cr_diagnostics_free(&d);
    return err->status;
}

void cr_run_words_free(cr_run_words *w)
{
    for (size_t i = 0; i < w->num_made; i++)
        cr_free(w->made[i]);
    cr_free(w->made);
    cr_words_free(&w->words);
    *w = (cr_run_words){0};
}
