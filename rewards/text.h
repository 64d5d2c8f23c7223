/* text.h -- what the rules share about a response's text.
 *
 * Texts are compared as Python would: code points of Unicode, its white space and word characters.
 * Text that is returned as char * is owned by the caller. Threads: any.
 */
#ifndef CR_RULES_TEXT_H
#define CR_RULES_TEXT_H

#include "base/base.h"

typedef enum cri_tokens { CRI_KEEP_IM_END, CRI_REMOVE_IM_END } cri_tokens;

/* Without <|endoftext|>, <pad> and, if asked, <|im_end|>; a NUL byte becomes U+FFFD. */
char *cri_text_plain(const char *response, size_t num_bytes, cri_tokens tokens);
/* After the last </think> and its newlines; all of it if there is no such mark. Borrowed from text. */
const char *cri_text_after_think(const char *text);
/* The text without white space at both ends; *num_bytes becomes its length. Borrowed from text. */
const char *cri_text_strip(const char *text, size_t *num_bytes);
/* 0 to max_penalty as words come in the same n-grams again and again: its share of those that are not new. */
double cri_text_repetition(const char *text, size_t n, double max_penalty);

bool cri_is_space(uint32_t code_point);
bool cri_is_word(uint32_t code_point);
bool cri_is_upper(uint32_t code_point);
/* The code point at *at, which moves on; malformed bytes count as U+FFFD. */
uint32_t cri_text_next(const char *text, size_t num_bytes, size_t *at);
typedef int32_t (*cri_map_char)(int32_t code_point);
char *cri_text_map(const char *text, size_t num_bytes, cri_map_char map);
char *cri_text_lower(const char *text);

#endif
