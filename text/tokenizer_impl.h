/* tokenizer_impl.h -- parts of a tokenizer, shared by text/tokenizer*.c only.
 *
 * A text on its way is bytes cut into pieces (cri_text); the steps of normaliser and pre-tokenizer
 * (cri_step) rewrite the bytes of pieces or cut them further. A piece that became an added token
 * carries its id and is left alone.
 */
#ifndef CRI_TOKENIZER_IMPL_H
#define CRI_TOKENIZER_IMPL_H

#include "base/json.h"
#include "text/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- vocabulary and merges (tokenizer_bpe.c) ---- */

typedef struct cri_text_token {
    size_t begin; /* in cri_vocab.bytes */
    int32_t num_bytes;
    bool is_used, is_added, is_special;
} cri_text_token;

typedef struct cri_vocab {
    cr_buf bytes;          /* texts of all tokens, each with a NUL after it */
    cri_text_token *token; /* [num_ids] by id */
    int32_t num_ids, capacity;
    int32_t *slot; /* [num_slots] hash table of ids, -1: free; a power of two */
    size_t num_slots, num_used;
} cri_vocab;

typedef struct cri_merge {
    int32_t left, right, rank, merged; /* left -1: free slot */
} cri_merge;

typedef struct cri_bpe {
    cri_vocab vocab; /* of the model, then the added tokens */
    cri_merge *merge;
    size_t num_slots;     /* a power of two */
    int32_t letter[512];  /* id of the token of one code point, -1: none */
    int32_t byte_id[256]; /* of <0xXX>, -1: none */
    int32_t unk;          /* -1: none */
    bool fuses_unk, has_byte_fallback, ignores_merges;
} cri_bpe;

enum { CRI_MAX_IDS = 1 << 24 };

int32_t cri_vocab_find(const cri_vocab *vocab, const char *text, size_t num_bytes);
/* CR_EFORMAT if the id or the text has another partner already. */
CR_MUST cr_status cri_vocab_add(cri_vocab *vocab, const char *text, size_t num_bytes, int64_t id,
                                cr_err *err);
CR_MUST cr_status cri_bpe_read(cri_bpe *bpe, const json_t *model, cr_err *err);
void cri_bpe_free(cri_bpe *bpe);
/* Append the ids of one piece. */
void cri_bpe_encode(const cri_bpe *bpe, const char *text, size_t num_bytes, cr_ids *ids);

/* ---- added tokens and steps (tokenizer_text.c) ---- */

typedef struct cri_added {
    char *text; /* owned; normalised if the token is */
    size_t num_bytes;
    int32_t id;
    bool is_single_word, strips_left, strips_right;
} cri_added;

/* Sorted by text. */
typedef struct cri_added_list {
    cri_added *added;
    size_t num, capacity;
} cri_added_list;

typedef struct cri_piece {
    size_t begin, end; /* in cri_text.bytes */
    int32_t id;        /* of an added token, or -1 */
    bool is_first;     /* it begins where the whole text begins */
} cri_piece;

typedef struct cri_text {
    cr_buf bytes;
    cri_piece *piece;
    size_t num, capacity;
} cri_text;

typedef enum cri_step_kind {
    CRI_STEP_FORM,    /* Unicode normal form */
    CRI_STEP_PREPEND, /* text in front of a text that is not empty */
    CRI_STEP_PREFIX,  /* text in front of what does not begin with it */
    CRI_STEP_REPLACE, /* text by another */
    CRI_STEP_STRIP,   /* white space off */
    CRI_STEP_ADDED,   /* cut out the normalised added tokens */
    CRI_STEP_SPLIT,   /* at the matches of a pattern */
    CRI_STEP_BYTES    /* bytes to the byte alphabet */
} cri_step_kind;

typedef enum cri_split { /* what becomes of a match */
                         CRI_SPLIT_ISOLATED,
                         CRI_SPLIT_REMOVED,
                         CRI_SPLIT_PREVIOUS,
                         CRI_SPLIT_NEXT,
                         CRI_SPLIT_CONTIGUOUS
} cri_split;

typedef struct cri_step {
    cri_step_kind kind;
    int form;                /* options of utf8proc_map */
    char *from, *to;         /* owned */
    size_t num_from, num_to; /* bytes */
    bool only_first;         /* PREFIX: only where the whole text begins */
    bool strips_left, strips_right;
    pcre2_code *pattern; /* owned */
    cri_split split;
    bool is_inverted;
} cri_step;

typedef struct cri_steps {
    cri_step *step;
    size_t num;
} cri_steps;

void cri_text_free(cri_text *text);
void cri_text_set(cri_text *text, const char *bytes, size_t num_bytes);
/* Cut added tokens out of every piece. */
void cri_text_cut_added(cri_text *text, const cri_added_list *list);
/* Run steps [begin, end). */
CR_MUST cr_status cri_steps_run(const cri_steps *steps, size_t begin, size_t end,
                                const cri_added_list *normalized, cri_text *text, cr_err *err);
cri_step *cri_steps_add(cri_steps *steps, cri_step_kind kind);
void cri_steps_free(cri_steps *steps);
/* pattern in Oniguruma's syntax, or plain text. CR_EFORMAT: not understood. */
CR_MUST cr_status cri_step_set_pattern(cri_step *step, const char *pattern, size_t num_bytes,
                                       bool is_plain, cr_err *err);
/* The byte alphabet of GPT-2: code point of a byte, and back (-1: not of the alphabet). */
uint32_t cri_byte_to_letter(unsigned char byte);
int cri_letter_to_byte(uint32_t code_point);

/* ---- post-processor, decoder, the whole (tokenizer.c) ---- */

typedef struct cri_decoder {
    bool is_byte_level, has_byte_fallback, is_metaspace, metaspace_drops_first;
    char *from, *to; /* owned; NULL: nothing is replaced */
    char *strip;     /* owned; one character taken off the front, at most num_strip times */
    int num_strip;
    bool joins_by_space; /* there is no decoder */
} cri_decoder;

struct cr_tokenizer {
    cri_bpe bpe;
    cri_added_list raw, normalized; /* matched before and after normalisation */
    cri_steps steps;
    size_t num_normalizer_steps;
    cr_ids before, after; /* the post-processor's tokens */
    cri_decoder decoder;
    char *role_text[CR_NUM_TOKEN_ROLES];
};

/* Fill in steps, decoder and post-processor from their JSON (tokenizer_read.c). */
CR_MUST cr_status cri_read_steps(cr_tokenizer *tokenizer, const json_t *root, cr_err *err);
CR_MUST cr_status cri_read_post(cr_tokenizer *tokenizer, const json_t *post, cr_err *err);
CR_MUST cr_status cri_read_decoder(cri_decoder *decoder, const json_t *json, cr_err *err);

#endif
