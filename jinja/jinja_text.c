/* jinja_text.c -- Python's operations on str, by code points, over valid UTF-8. */
#include "jinja/jinja_impl.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

bool cri_jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static bool is_lead(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

size_t cri_jinja_num_chars(const char *s, size_t n)
{
    size_t num = 0;
    for (size_t i = 0; i < n; i++)
        num += is_lead(s[i]);
    return num;
}

size_t cri_jinja_char_at(const char *s, size_t n, size_t index)
{
    size_t i = 0;
    for (; i < n; i++)
        if (is_lead(s[i]) && index-- == 0) break;
    return i;
}

const char *cri_jinja_find(const char *s, size_t n, const char *what, size_t num_what)
{
    return memmem(s, n, what, num_what);
}

static bool is_among(const char *s, size_t n, const cri_value *chars)
{
    uint32_t c;
    if (chars) return cri_jinja_find(chars->s, chars->n, s, n) != NULL;
    return cr_utf8_decode(s, n, &c) > 0 && cri_jinja_is_space(c);
}

/* chars NULL: white space. */
void cri_jinja_strip(const char **s, size_t *n, const cri_value *chars, bool left, bool right)
{
    uint32_t c;
    while (left && *n) {
        size_t num = (size_t)cr_utf8_decode(*s, *n, &c);
        if (!is_among(*s, num, chars)) break;
        *s += num;
        *n -= num;
    }
    while (right && *n) {
        size_t start = *n - 1;
        while (start > 0 && !is_lead((*s)[start]))
            start--;
        if (!is_among(*s + start, *n - start, chars)) break;
        *n = start;
    }
}

static cr_status check_size(cri_run *run, const cr_buf *text)
{
    return text->num_bytes > CRI_MAX_BYTES ? cri_jinja_fail(run, "a text is too long") : CR_OK;
}

cr_status cri_jinja_replace(cri_run *run, const cri_value *in, const cri_value *from,
                            const cri_value *to, int64_t max, cri_value *out)
{
    const char *s = in->s, *end = in->s + in->n;
    cr_buf text = {0};
    cr_status status = cri_jinja_spend(run, in->n / 16);

    while (status == CR_OK && max != 0) {
        const char *p = cri_jinja_find(s, (size_t)(end - s), from->s, from->n);
        if (!p) break;
        cr_buf_add(&text, s, (size_t)(p - s));
        cr_buf_add(&text, to->s, to->n);
        s = p + from->n;
        if (from->n == 0) { /* between all characters */
            if (s == end) break;
            cr_buf_addc(&text, *s++);
            while (s < end && !is_lead(*s))
                cr_buf_addc(&text, *s++);
        }
        if (max > 0) max--;
        status = check_size(run, &text);
        if (status == CR_OK) status = cri_jinja_spend(run, 1);
    }
    if (status == CR_OK) {
        cr_buf_add(&text, s, (size_t)(end - s));
        return cri_jinja_string_take(run, &text, out);
    }
    cr_buf_free(&text);
    return status;
}

/* ---- upper and lower case ---- */

/* Characters whose case is several others, or hangs on the word: utf8proc does not do them. */
static bool has_special_case(uint32_t c)
{
    return c == 0xDF || c == 0x130 || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 ||
           c == 0x3A3 || c == 0x587 || (c >= 0x1E96 && c <= 0x1E9A) || c == 0x1E9E ||
           (c >= 0x1F50 && c <= 0x1F56) || (c >= 0x1F80 && c <= 0x1FFC) ||
           (c >= 0xFB00 && c <= 0xFB17);
}

static bool is_letter(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

cr_status cri_jinja_change_case(cri_run *run, const cri_value *in, cri_case to, cri_value *out)
{
    cr_buf text = {0};
    bool starts = true; /* a word */
    uint32_t c;
    size_t num;

    CR_TRY(cri_jinja_spend(run, in->n / 4));
    for (size_t i = 0; i < in->n; i += num) {
        bool upper = to == JC_UPPER || (starts && to != JC_LOWER);
        char made[4];
        num = (size_t)cr_utf8_decode(in->s + i, in->n - i, &c);
        if (has_special_case(c)) {
            cr_buf_free(&text);
            return cri_jinja_fail(run, "the case of U+%04X is not supported", c);
        }
        starts = to == JC_TITLE
                     ? !is_letter(c)
                     : to == JC_FILTER_TITLE &&
                           (cri_jinja_is_space(c) || (c < 128 && c && strchr("-({[<", (int)c)));
        if (upper)
            c = (uint32_t)(to == JC_UPPER || to == JC_FILTER_TITLE
                               ? utf8proc_toupper((utf8proc_int32_t)c)
                               : utf8proc_totitle((utf8proc_int32_t)c));
        else
            c = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        cr_buf_add(&text, made, (size_t)cr_utf8_encode(c, made));
    }
    return cri_jinja_string_take(run, &text, out);
}

/* ---- splitting and joining ---- */

static cr_status add_piece(cri_run *run, cri_jinja_seq *seq, const char *s, size_t n)
{
    cri_value piece;
    CR_TRY(cri_jinja_string_copy(run, s, n, &piece));
    return cri_jinja_seq_add(run, seq, &piece);
}

static void reverse(cri_jinja_seq *seq)
{
    for (size_t i = 0; i < seq->num / 2; i++) {
        cri_value swap = seq->item[i];
        seq->item[i] = seq->item[seq->num - 1 - i];
        seq->item[seq->num - 1 - i] = swap;
    }
}

static cr_status split_space(cri_run *run, const char *s, size_t n, int64_t max, bool from_right,
                             cri_jinja_seq *seq)
{
    for (;;) {
        size_t from = 0, to = 0, next;
        uint32_t c;
        cri_jinja_strip(&s, &n, NULL, !from_right, from_right);
        if (n == 0) break;
        if (max-- == 0) {
            CR_TRY(add_piece(run, seq, s, n));
            break;
        }
        if (from_right) {
            for (from = to = n; from > 0; from = next) {
                next = from - 1;
                while (next > 0 && !is_lead(s[next]))
                    next--;
                if (is_among(s + next, from - next, NULL)) break;
            }
            CR_TRY(add_piece(run, seq, s + from, to - from));
            n = from;
        } else {
            while (to < n && !is_among(s + to, (size_t)cr_utf8_decode(s + to, n - to, &c), NULL))
                to += (size_t)cr_utf8_decode(s + to, n - to, &c);
            CR_TRY(add_piece(run, seq, s, to));
            s += to;
            n -= to;
        }
    }
    if (from_right) reverse(seq);
    return CR_OK;
}

static const char *find_last(const char *s, size_t n, const char *what, size_t num_what)
{
    for (size_t i = n + 1; i-- > 0;)
        if (i + num_what <= n && memcmp(s + i, what, num_what) == 0) return s + i;
    return NULL;
}

/* sep: JV_NONE or JV_ABSENT for white space; max < 0: all. */
cr_status cri_jinja_split(cri_run *run, const cri_value *in, const cri_value *sep, int64_t max,
                          bool from_right, cri_value *out)
{
    const char *s = in->s, *p;
    size_t n = in->n;

    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, 0, out));
    CR_TRY(cri_jinja_spend(run, n / 16));
    if (sep->kind == JV_NONE || sep->kind == JV_ABSENT)
        return split_space(run, s, n, max, from_right, out->seq);
    CR_TRY(cri_jinja_need_string(run, sep, "a separator"));
    if (sep->n == 0) return cri_jinja_fail(run, "an empty separator");
    /* from the right the search is the plain one */
    if (from_right) CR_TRY(cri_jinja_spend(run, n / 64 * (sep->n < 4096 ? sep->n : 4096)));
    for (; max != 0; max -= max > 0) {
        p = from_right ? find_last(s, n, sep->s, sep->n) : cri_jinja_find(s, n, sep->s, sep->n);
        if (!p) break;
        if (from_right) {
            CR_TRY(add_piece(run, out->seq, p + sep->n, (size_t)(s + n - p) - sep->n));
            n = (size_t)(p - s);
        } else {
            CR_TRY(add_piece(run, out->seq, s, (size_t)(p - s)));
            n -= (size_t)(p - s) + sep->n;
            s = p + sep->n;
        }
    }
    CR_TRY(add_piece(run, out->seq, s, n));
    if (from_right) reverse(out->seq);
    return CR_OK;
}

static bool ends_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

cr_status cri_jinja_split_lines(cri_run *run, const cri_value *in, bool keep_ends, cri_value *out)
{
    size_t start = 0, num;
    uint32_t c;

    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, 0, out));
    CR_TRY(cri_jinja_spend(run, in->n / 16));
    for (size_t i = 0; i < in->n; i += num) {
        num = (size_t)cr_utf8_decode(in->s + i, in->n - i, &c);
        if (!ends_line(c)) continue;
        if (c == '\r' && i + 1 < in->n && in->s[i + 1] == '\n') num = 2;
        CR_TRY(add_piece(run, out->seq, in->s + start, i + (keep_ends ? num : 0) - start));
        start = i + num;
    }
    if (start < in->n) CR_TRY(add_piece(run, out->seq, in->s + start, in->n - start));
    return CR_OK;
}

/* is_strict: str.join, all items are strings; otherwise the filter, which takes their text. */
cr_status cri_jinja_join(cri_run *run, const cri_value *sep, const cri_jinja_seq *items,
                         bool is_strict, cri_value *out)
{
    cr_buf text = {0};
    cr_status status = CR_OK;

    for (size_t i = 0; i < items->num && status == CR_OK; i++) {
        cri_value item = items->item[i];
        status = is_strict ? cri_jinja_need_string(run, &item, "an item to join")
                           : cri_jinja_to_text(run, &item, &item);
        if (status != CR_OK) break;
        if (i) cr_buf_add(&text, sep->s, sep->n);
        cr_buf_add(&text, item.s, item.n);
        status = check_size(run, &text);
        if (status == CR_OK) status = cri_jinja_spend(run, 1);
    }
    if (status == CR_OK) return cri_jinja_string_take(run, &text, out);
    cr_buf_free(&text);
    return status;
}

/* "%s" and "%d" alone; all else of printf is an error. */
cr_status cri_jinja_format_percent(cri_run *run, const cri_value *format, const cri_value *args,
                                   size_t num, cri_value *out)
{
    cr_buf text = {0};
    size_t used = 0, i = 0;
    cr_status status = CR_OK;

    for (; i < format->n && status == CR_OK; i++) {
        char c = i + 1 < format->n ? format->s[i + 1] : 0;
        cri_value item;
        if (format->s[i] != '%') {
            cr_buf_addc(&text, format->s[i]);
            continue;
        }
        i++;
        if (c == '%') {
            cr_buf_addc(&text, '%');
        } else if ((c != 's' && c != 'd') || used == num) {
            status = cri_jinja_fail(run, "a format that is not %%s or %%d, or has no value");
        } else if (c == 'd' && args[used].kind != JV_INT) {
            status = cri_jinja_fail(run, "%%d needs a whole number");
        } else {
            status = cri_jinja_to_text(run, &args[used++], &item);
            if (status == CR_OK) cr_buf_add(&text, item.s, item.n);
        }
        if (status == CR_OK) status = check_size(run, &text);
    }
    if (status == CR_OK && used < num) status = cri_jinja_fail(run, "values are left in a format");
    if (status == CR_OK) return cri_jinja_string_take(run, &text, out);
    cr_buf_free(&text);
    return status;
}
