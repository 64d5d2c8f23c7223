/* encoder.h -- prompts and messages of JSONL lines to token ids, for the commands that take them.
 *
 * A text is encoded as the tokenizer's default call does, messages through the chat template with the
 * generation prompt and without further special tokens. Ownership: cr_encoder_close frees all.
 */
#ifndef CR_ENCODER_H
#define CR_ENCODER_H

#include "images/reader.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct cr_encoder {
    char *folder; /* of MODEL */
    cr_tokenizer *tokenizer;
    cr_chat *chat;       /* opened with the first messages */
    bool has_no_special; /* texts without the tokens that the tokenizer adds */
    cr_buf text;         /* what was encoded last, rendered if it were messages */
    bool
        reads_images; /* in messages, if MODEL has a processor; else they are the template's affair */
    bool keeps_values;        /* of images */
    const char *image_folder; /* borrowed, or NULL */
    cr_image_alpha image_alpha;
    int64_t max_image_tokens; /* of a chat whose values are kept; 0: any number */
    cr_image_reader *images;  /* opened with the first messages */
    cr_image_items items;     /* of the messages that were encoded last */
} cr_encoder;

/* Open the tokenizer of a MODEL folder. Nothing is done if it is open. */
CR_MUST cr_status cr_encoder_open(cr_encoder *e, const char *folder, cr_err *err);
void cr_encoder_close(cr_encoder *e); /* {0} is fine */
/* Ids of a ready text. *ids is the caller's (cr_free), never NULL if all went well. */
CR_MUST cr_status cr_encode_text(const cr_tokenizer *tokenizer, const char *text, size_t num_bytes,
                                 bool add_special, int32_t **ids, size_t *num, cr_err *err);
/* text: a JSON string, or a list of messages. *ids is the caller's (cr_free). */
CR_MUST cr_status cr_encoder_encode(cr_encoder *e, const json_t *text, bool is_messages,
                                    int32_t **ids, size_t *num, cr_err *err);

#endif
