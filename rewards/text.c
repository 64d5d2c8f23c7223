/* text.c -- see text.h. */
#include "rewards/text.h"

#include <string.h>
#include <utf8proc.h>

bool cri_is_space(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 ||
           k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

bool cri_is_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

bool cri_is_upper(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } others[] = {/* Other_Uppercase: Roman numerals, letters in circles and squares */
                  {0x2160, 0x216F},
                  {0x24B6, 0x24CF},
                  {0x1F130, 0x1F149},
                  {0x1F150, 0x1F169},
                  {0x1F170, 0x1F189}};

    for (size_t i = 0; i < CR_COUNT(others); i++)
        if (c >= others[i].first && c <= others[i].last) return true;
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU;
}

uint32_t cri_text_next(const char *text, size_t n, size_t *at)
{
    uint32_t c;
    int k = cr_utf8_decode(text + *at, n - *at, &c);

    *at += (size_t)(k ? k : 1);
    return k ? c : 0xFFFD;
}

char *cri_text_map(const char *text, size_t n, cri_map_char map)
{
    cr_buf out = {0};

    cr_buf_reserve(&out, n + 1);
    cr_buf_adds(&out, "");
    for (size_t i = 0; i < n;) {
        char utf8[4];
        uint32_t c = (uint32_t)map((int32_t)cri_text_next(text, n, &i));
        cr_buf_add(&out, utf8, (size_t)cr_utf8_encode(c, utf8));
    }
    return out.data;
}

char *cri_text_lower(const char *text)
{
    return cri_text_map(text, strlen(text), utf8proc_tolower);
}

/* Like Python's replace: from left to right, what a removal joins is not looked at again. */
static void remove_all(char *text, const char *part)
{
    size_t n = strlen(part);
    char *to = strstr(text, part), *from = to;

    while (from) {
        char *end;
        from += n;
        end = strstr(from, part);
        size_t k = end ? (size_t)(end - from) : strlen(from);
        memmove(to, from, k);
        to += k;
        *to = end ? *to : 0;
        from = end;
    }
}

char *cri_text_plain(const char *response, size_t num_bytes, cri_tokens tokens)
{
    cr_buf out = {0};

    cr_buf_reserve(&out, num_bytes + 1);
    cr_buf_adds(&out, "");
    for (size_t i = 0; i < num_bytes; i++) {
        size_t n = strnlen(response + i, num_bytes - i);
        cr_buf_add(&out, response + i, n);
        i += n;
        if (i < num_bytes) cr_buf_adds(&out, "\xEF\xBF\xBD");
    }
    remove_all(out.data, "<|endoftext|>");
    remove_all(out.data, "<pad>");
    if (tokens == CRI_REMOVE_IM_END) remove_all(out.data, "<|im_end|>");
    return out.data;
}

const char *cri_text_after_think(const char *text)
{
    const char *after = NULL;

    for (const char *p = text; (p = strstr(p, "</think>"));)
        after = p += 8;
    if (!after) return text;
    return after + strspn(after, "\n");
}

const char *cri_text_strip(const char *text, size_t *n)
{
    size_t start = *n, end = *n; /* of the text without white space around it */

    for (size_t i = 0; i < *n;) {
        size_t at = i;
        if (cri_is_space(cri_text_next(text, *n, &i))) continue;
        if (start == *n) start = at;
        end = i;
    }
    *n = end - start;
    return text + start;
}

double cri_text_repetition(const char *text, size_t n, double max_penalty)
{
    char *low = cri_text_lower(text);
    size_t num_bytes = strlen(low), num = 0, distinct = 0, capacity = 64;
    uint64_t *word = CR_NEW_ARRAY(uint64_t, num_bytes / 2 + 2), *seen; /* hashes */

    for (size_t i = 0; i < num_bytes;) {
        size_t at = i, end = i;
        if (cri_is_space(cri_text_next(low, num_bytes, &i))) continue;
        for (end = i; i < num_bytes && !cri_is_space(cri_text_next(low, num_bytes, &i));)
            end = i;
        word[num] = 0xCBF29CE484222325u;
        for (size_t b = at; b < end; b++)
            word[num] = (word[num] ^ (unsigned char)low[b]) * 0x100000001B3u;
        num++;
    }
    while (capacity < 2 * num)
        capacity *= 2;
    seen = CR_NEW_ARRAY(uint64_t, capacity);
    for (size_t i = 0; i + n <= num; i++) {
        uint64_t h = 1;
        for (size_t k = i; k < i + n; k++) {
            h = (h ^ word[k]) * 0xFF51AFD7ED558CCDu;
            h ^= h >> 32;
        }
        h += h == 0; /* 0: an empty slot */
        size_t slot = h & (capacity - 1);
        while (seen[slot] && seen[slot] != h)
            slot = (slot + 1) & (capacity - 1);
        distinct += seen[slot] == 0;
        seen[slot] = h;
    }
    cr_free(low);
    cr_free(word);
    cr_free(seen);
    return num < n ? 0 : max_penalty * (1 - (double)distinct / (double)(num - n + 1));
}
