/* chat.h -- messages to the text that a chat model expects (models.md 5.5, rlvr.md 5.2).
 *
 * The checkpoint's own template (chat_template.jinja, or chat_template of tokenizer_config.json)
 * decides; ROLL's template names stand for fixed forms. A template that croll cannot follow is an
 * error, never a guess. A cr_chat is read-only after opening.
 */
#ifndef CR_CHAT_H
#define CR_CHAT_H

#include "base/json.h"

typedef struct cr_chat cr_chat;

CR_MUST cr_status cr_chat_open(const char *folder, cr_chat **out, cr_err *err);
void cr_chat_close(cr_chat *chat); /* accepts NULL */
/* messages: an array of {"role", "content"}. template_name: NULL or "native": the checkpoint's own. */
CR_MUST cr_status cr_chat_render(const cr_chat *chat, const char *template_name,
                                 const json_t *messages, bool add_generation_prompt, cr_buf *out,
                                 cr_err *err);

#endif
