/* prompts_impl.h -- what the encoders of rows share (data/ only; see prompts.h). */
#ifndef CR_PROMPTS_IMPL_H
#define CR_PROMPTS_IMPL_H

#include "data/prompts.h"

/* The column is a text. key: what names it, " (prompt_key)", or "". CR_EFORMAT. */
CR_MUST cr_status cri_prompt_check_text(const json_t *column, const char *name, const char *key,
                                        cr_err *err);
const char *cri_prompt_template(const cr_prompt_maker *m);
/* Ids of a rendered text, or of a part of it, in which placeholders become as many as the row's images have tokens; from the image
 * m->images.next on. */
CR_MUST cr_status cri_prompt_encode(cr_prompt_maker *m, const char *text, size_t num_bytes,
                                    bool add_special, cr_row *row, cr_err *err);
/* Images of a chat, and what of it the template sees (m->images.items.messages). */
CR_MUST cr_status cri_prompt_read_images(cr_prompt_maker *m, const cr_row *row,
                                         const json_t *messages, bool *is_dropped, cr_err *err);
/* All of the row's text was encoded: each image had its placeholder. */
CR_MUST cr_status cri_prompt_end_images(const cr_prompt_maker *m, cr_err *err);
/* Placeholders that are not in the text, after the first of the row's ids. */
CR_MUST cr_status cri_prompt_insert_image(cr_prompt_maker *m, cr_row *row, cr_err *err);
/* Images alone are longer than a row may be, which is counted. */
bool cri_prompt_are_too_long(cr_prompt_maker *m, int64_t max_tokens, size_t *count);
/* Of the images that have placeholders among the row's ids, all of these are there. */
bool cri_prompt_has_all_places(const cr_prompt_maker *m, const cr_row *row);
/* The system and user messages of a prompt's columns; a new reference. */
json_t *cri_prompt_messages(const cr_config *c, const cr_row *row, json_t *prompt);
void cri_prompt_add_message(json_t *list, const char *role, const json_t *content);

#endif
