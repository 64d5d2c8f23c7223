/* tokenizer.h -- text to token ids and back, as a checkpoint's tokenizer.json says.
 *
 * Read: BPE models, byte-level (GPT-2, Qwen, Llama 3, SmolLM2) or with byte fallback (Llama 2);
 * normalisers, pre-tokenizers, post-processors and decoders of these families; added tokens. The ids
 * are those of the `tokenizers` library. A part of the file that is not understood is an error that
 * names it: a tokenizer that is nearly right would train a wrong model.
 *
 * Encoding: added tokens that are not normalised are cut out of the text (leftmost, then longest);
 * each piece between them is normalised, cut again, split by the pre-tokenizer and merged; the
 * post-processor adds its special tokens. Characters without a token and without unk_token vanish, as
 * in the library. tokenizer_config.json (or special_tokens_map.json) names bos, eos, pad and unk.
 *
 * Ownership: a tokenizer owns all it read; texts it returns are borrowed from it.
 * Threads: read-only once open, any number may encode and decode. Errors: CR_EFORMAT names the file.
 */
#ifndef CR_TOKENIZER_H
#define CR_TOKENIZER_H

#include "base/base.h"

typedef struct cr_tokenizer cr_tokenizer;

/* A growing list of ids; {0} is an empty one. */
typedef struct cr_ids {
    int32_t *id; /* owned */
    size_t num, capacity;
} cr_ids;
void cr_ids_add(cr_ids *ids, int32_t id);
void cr_ids_free(cr_ids *ids);

/* folder: a MODEL. *out is NULL after a failure. */
CR_MUST cr_status cr_tokenizer_open(const char *folder, cr_tokenizer **out, cr_err *err);
/* The same from the text of a tokenizer.json; config_json: that of tokenizer_config.json or NULL;
 * what: the name of the first in errors. */
CR_MUST cr_status cr_tokenizer_parse(const char *json, size_t num_bytes, const char *config_json,
                                     const char *what, cr_tokenizer **out, cr_err *err);
void cr_tokenizer_close(cr_tokenizer *tokenizer); /* accepts NULL */

/* ---- encoding ---- */

/* Append the ids of UTF-8 text (NUL bytes are text). add_special: the post-processor's tokens too, as
 * a tokenizer's default call does; texts of chat templates are encoded without. CR_EFORMAT: no UTF-8. */
CR_MUST cr_status cr_tokenizer_encode(const cr_tokenizer *tokenizer, const char *text,
                                      size_t num_bytes, bool add_special, cr_ids *ids, cr_err *err);

/* ---- decoding ---- */

/* Append the text of ids to out; always valid UTF-8 (broken sequences become U+FFFD). Ids without a
 * token have no text. skip_special: leave out added tokens that are marked special. */
void cr_tokenizer_decode(const cr_tokenizer *tokenizer, const int32_t *ids, size_t num,
                         bool skip_special, cr_buf *out);

/* Append the bytes of one token as they are inside a text: with the space that begins it, and maybe a part
 * of a character only. Special tokens are their names; ids without a token have nothing. */
void cr_tokenizer_piece(const cr_tokenizer *tokenizer, int32_t id, cr_buf *out);

/* Decode one id at a time: the pieces put together are the text of cr_tokenizer_decode. Every piece
 * is whole UTF-8; bytes that a later token may complete are held back until cr_token_stream_end. */
typedef struct cr_token_stream {
    const cr_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    bool has_started;   /* a token was pushed */
    int num_to_strip;   /* characters still to be taken off the front */
    unsigned char *run; /* [num_run] bytes held back */
    size_t num_run, capacity_run;
    cr_buf changed; /* a token with other signs */
} cr_token_stream;
void cr_token_stream_init(cr_token_stream *stream, const cr_tokenizer *tokenizer,
                          bool skip_special);
void cr_token_stream_push(cr_token_stream *stream, int32_t id, cr_buf *out);
/* Append what was held back and free the stream's memory. */
void cr_token_stream_end(cr_token_stream *stream, cr_buf *out);

/* ---- the vocabulary ---- */

typedef enum cr_token_role { CR_TOKEN_BOS, CR_TOKEN_EOS, CR_TOKEN_PAD, CR_TOKEN_UNK } cr_token_role;
enum { CR_NUM_TOKEN_ROLES = 4 };

/* One more than the largest id; a model's matrix may have more rows. */
int32_t cr_tokenizer_num_ids(const cr_tokenizer *tokenizer);
/* Its text in the file (bytes mapped, not decoded); NULL: no such id. */
const char *cr_tokenizer_token(const cr_tokenizer *tokenizer, int32_t id, size_t *num_bytes);
int32_t cr_tokenizer_find(const cr_tokenizer *tokenizer, const char *token); /* -1: none */
bool cr_tokenizer_is_special(const cr_tokenizer *tokenizer, int32_t id);
int32_t cr_tokenizer_role(const cr_tokenizer *tokenizer, cr_token_role role); /* -1: none */

#endif
