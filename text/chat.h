/* chat.h -- messages to the text that a chat model expects.
 *
 * The checkpoint's own template (chat_template.jinja, or chat_template of tokenizer_config.json, one
 * or several by name) decides; jinja.h interprets it. The text is that of Transformers'
 * apply_chat_template. ROLL's template names stand for:
 *
 *     native, qwen2_5, qwen2-vl   the checkpoint's own
 *     qwen3               the same with enable_thinking true; native_nonthinking: false
 *     longcot_V3          the same, then "<think>" and a newline
 *     chatml, empty       ChatML turns with no default system turn; empty: exactly one user turn
 *
 * A template that croll cannot follow is an error, never a guess; one that refuses the messages
 * (raise_exception) is an error with its words. What is wrong with a template itself comes with the
 * first rendering that needs it. A cr_chat is read-only after opening, any number of threads may
 * render.
 */
#ifndef CR_CHAT_H
#define CR_CHAT_H

#include "base/json.h"

typedef struct cr_chat cr_chat;

CR_MUST cr_status cr_chat_open(const char *folder, cr_chat **out, cr_err *err);
void cr_chat_close(cr_chat *chat); /* accepts NULL */
/* messages: an array of {"role", "content"}. template_name: NULL: native. */
CR_MUST cr_status cr_chat_render(const cr_chat *chat, const char *template_name,
                                 const json_t *messages, bool add_generation_prompt, cr_buf *out,
                                 cr_err *err);
/* The same with more variables for the template: an object, e.g. tools, documents, enable_thinking;
 * NULL: none. With tools a checkpoint's template named tool_use is taken, if there is one. */
CR_MUST cr_status cr_chat_render_with(const cr_chat *chat, const char *template_name,
                                      const json_t *messages, const json_t *vars,
                                      bool add_generation_prompt, cr_buf *out, cr_err *err);
/* Do variables reach it? Not those of the fixed forms, chatml and empty. template_name: NULL: native. */
bool cr_chat_has_vars(const char *template_name);

#endif
