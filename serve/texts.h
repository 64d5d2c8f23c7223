/* texts.h -- the strings of tokens in log-probs, as JSON; those of a whole vocabulary are made once, when its model is
 * loaded.
 *
 * A string is the token's piece, with spaces where the vocabulary has other signs; bytes that are not whole characters
 * are "bytes:\xe2\x80", special tokens their names, ids without a token "token_id:N".
 *
 * Read-only once made: any number of threads.
 */
#ifndef CR_SERVE_TEXTS_H
#define CR_SERVE_TEXTS_H

#include "serve/request.h"

typedef struct cr_serve_text {
    const char *json; /* in quotes; borrowed of the model or of scratch */
    size_t num_bytes;
    int64_t num_code_points; /* of the string itself */
    uint64_t hash;           /* of equal strings the same */
} cr_serve_text;

/* Of all ids that the tokenizer has; borrows nothing. */
cr_serve_texts *cr_serve_texts_create(const cr_tokenizer *tokenizer);
void cr_serve_texts_free(cr_serve_texts *texts); /* accepts NULL */

/* scratch: for a string that model->texts does not have; cleared. as_id: "token_id:N" whatever the id is. */
cr_serve_text cr_serve_text_of(const cr_serve_model *model, int32_t id, bool as_id,
                               cr_buf *scratch);

#endif
