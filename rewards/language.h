/* language.h -- which language is a text in? By its script, its frequent words and its letters.
 *
 * Codes are those of ISO 639-1, Chinese is zh-cn or zh-tw. Meant for a sentence and more; a text
 * of a few words without frequent ones is recognised by its letters alone, which can be wrong.
 */
#ifndef CR_LANGUAGE_H
#define CR_LANGUAGE_H

#include "rewards/rule.h"

/* The code, a constant; "" if nothing speaks for any language (no letters). */
const char *cri_language_of(const char *text);
bool cri_language_is_known(const char *code);
/* `votes`: of the languages with most of them. */
void cri_language_explain(const char *text, json_t *explain);

#endif
