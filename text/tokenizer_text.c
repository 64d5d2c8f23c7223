/* tokenizer_text.c -- the way of a text to pre-tokens: added tokens, normalisation, splitting.
 *
 * Patterns are written for Oniguruma and run by PCRE2; where the two differ for what tokenizers use
 * (\s, nested classes), the pattern is translated or refused.
 */
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- pieces ---- */

/* What normalizers may make of a text, beyond what any of a real model does: times as many bytes, and as many more */
enum { MAX_GROWTH = 64, MAX_ADDED = 1 << 20 };

void cri_text_free(cri_text *text)
{
    cr_buf_free(&text->bytes);
    cr_free(text->piece);
    *text = (cri_text){0};
}

static void add_piece(cri_text *text, cri_piece piece)
{
    if (piece.begin == piece.end && piece.id < 0) return;
    text->piece = cr_grow(text->piece, text->num, &text->capacity, sizeof *text->piece);
    text->piece[text->num++] = piece;
}

void cri_text_set(cri_text *text, const char *bytes, size_t num_bytes)
{
    cr_buf_clear(&text->bytes);
    cr_buf_add(&text->bytes, bytes, num_bytes);
    text->num = 0;
    add_piece(text, (cri_piece){0, num_bytes, -1, true});
}

/* Take the pieces of `from` in place of those of `text`. */
static void take_pieces(cri_text *text, cri_text *from)
{
    cri_text old = *text;

    text->piece = from->piece;
    text->num = from->num;
    text->capacity = from->capacity;
    if (from->bytes.data) {
        text->bytes = from->bytes;
        cr_buf_free(&old.bytes);
    }
    cr_free(old.piece);
    *from = (cri_text){0};
}

/* ---- added tokens ---- */

/* The longest added token that text begins with. The list is sorted, so those that share the first k
 * bytes lie together; the range shrinks byte by byte. */
static const cri_added *longest_added(const cri_added_list *list, const char *text,
                                      size_t num_bytes)
{
    size_t low = 0, high = list->num;
    const cri_added *best = NULL;

    for (size_t k = 0; k < num_bytes && low < high; k++) {
        unsigned char want = (unsigned char)text[k];
        size_t a = low, b = high; /* first with byte k >= want; those of k bytes are gone */
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if ((unsigned char)list->added[mid].text[k] < want)
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        b = high;
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if ((unsigned char)list->added[mid].text[k] <= want)
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
        if (low < high && list->added[low].num_bytes == k + 1) best = &list->added[low++];
    }
    return best;
}

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static bool is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200C || c == 0x200D;
    }
}

/* The character before `at`; *begin: where it begins. */
static uint32_t letter_before(const char *text, size_t at, size_t *begin)
{
    uint32_t letter = 0;

    do
        at--;
    while (at && ((unsigned char)text[at] & 0xC0) == 0x80);
    *begin = at;
    cr_utf8_decode(text + at, 4, &letter); /* a buffer ends with NUL */
    return letter;
}

static size_t skip_space(const char *text, size_t at, size_t end)
{
    uint32_t letter;
    int num;

    while (at < end && (num = cr_utf8_decode(text + at, end - at, &letter)) > 0 && is_space(letter))
        at += (size_t)num;
    return at;
}

static size_t skip_space_back(const char *text, size_t begin, size_t at)
{
    size_t before;

    while (at > begin && is_space(letter_before(text, at, &before)))
        at = before;
    return at;
}

/* single_word: neither neighbour may be part of a word. */
static bool is_apart(const char *text, const cri_piece *piece, size_t begin, size_t end)
{
    uint32_t letter = 0;
    size_t before;

    if (begin > piece->begin && is_word(letter_before(text, begin, &before))) return false;
    if (end == piece->end) return true;
    cr_utf8_decode(text + end, piece->end - end, &letter);
    return !is_word(letter);
}

static void cut_piece(const char *text, const cri_piece *piece, const cri_added_list *list,
                      cri_text *out)
{
    size_t done = piece->begin, at = piece->begin;

    while (at < piece->end) {
        const cri_added *added = longest_added(list, text + at, piece->end - at);
        size_t begin = at, end;
        if (!added) {
            at++;
            continue;
        }
        at = end = begin + added->num_bytes;
        if (added->is_single_word && !is_apart(text, piece, begin, end)) continue;
        if (added->strips_left) begin = skip_space_back(text, done < begin ? done : begin, begin);
        if (added->strips_right) end = skip_space(text, end, piece->end);
        if (done < begin)
            add_piece(out, (cri_piece){done, begin, -1, piece->is_first && done == piece->begin});
        add_piece(out, (cri_piece){begin, end, added->id, false});
        done = end;
    }
    if (done < piece->end)
        add_piece(out, (cri_piece){done, piece->end, -1, piece->is_first && done == piece->begin});
}

void cri_text_cut_added(cri_text *text, const cri_added_list *list)
{
    cri_text out = {0};

    if (list->num == 0) return;
    for (size_t i = 0; i < text->num; i++)
        if (text->piece[i].id >= 0)
            add_piece(&out, text->piece[i]);
        else
            cut_piece(text->bytes.data, &text->piece[i], list, &out);
    take_pieces(text, &out);
}

/* ---- steps that rewrite ---- */

static cr_status add_normal_form(cr_buf *out, const char *text, size_t num_bytes, int form,
                                 cr_err *err)
{
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t num;
    size_t i = 0;

    /* Code points under U+0300 are composed already; they begin with bytes under 0xCC. */
    if (form == (UTF8PROC_STABLE | UTF8PROC_COMPOSE))
        while (i < num_bytes && (unsigned char)text[i] < 0xCC)
            i++;
    if (i == num_bytes) {
        cr_buf_add(out, text, num_bytes);
        return CR_OK;
    }
    num = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)num_bytes, &made,
                       (utf8proc_option_t)form);
    if (num < 0)
        return cr_fail(err, CR_EFORMAT, "text cannot be normalised: %s", utf8proc_errmsg(num));
    cr_buf_add(out, made, (size_t)num);
    free(made);
    return CR_OK;
}

static void add_replaced(cr_buf *out, const char *text, size_t num_bytes, const cri_step *s,
                         size_t max)
{
    const char *end = text + num_bytes, *found;

    while (out->num_bytes <= max && /* rewrite_all says it */
           (found = memmem(text, (size_t)(end - text), s->from, s->num_from))) {
        cr_buf_add(out, text, (size_t)(found - text));
        cr_buf_add(out, s->to, s->num_to);
        text = found + s->num_from;
    }
    cr_buf_add(out, text, (size_t)(end - text));
}

/* Byte b becomes the code point of the byte alphabet: those that print as they are, the others in
 * order from U+0100. */
uint32_t cri_byte_to_letter(unsigned char byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xA0) return 0x121u + (byte - 0x7Fu);
    return 0x143;
}

int cri_letter_to_byte(uint32_t c)
{
    if (c < 0x100) return cri_byte_to_letter((unsigned char)c) == c ? (int)c : -1;
    if (c <= 0x120) return (int)c - 0x100;
    if (c <= 0x142) return (int)c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

static void add_letters(cr_buf *out, const char *text, size_t num_bytes)
{
    for (size_t i = 0; i < num_bytes; i++) {
        char letter[4];
        cr_buf_add(out, letter,
                   (size_t)cr_utf8_encode(cri_byte_to_letter((unsigned char)text[i]), letter));
    }
}

static cr_status rewrite(const cri_step *s, const char *text, const cri_piece *piece, cr_buf *out,
                         size_t max, cr_err *err)
{
    size_t begin = piece->begin, end = piece->end;
    bool has_prefix =
        end - begin >= s->num_to && s->num_to && memcmp(text + begin, s->to, s->num_to) == 0;

    if (piece->id >= 0) return CR_OK; /* its text is not looked at again */
    switch (s->kind) {
    case CRI_STEP_FORM:
        return add_normal_form(out, text + begin, end - begin, s->form, err);
    case CRI_STEP_REPLACE:
        add_replaced(out, text + begin, end - begin, s, max);
        return CR_OK;
    case CRI_STEP_BYTES:
        add_letters(out, text + begin, end - begin);
        return CR_OK;
    case CRI_STEP_STRIP:
        if (s->strips_left) begin = skip_space(text, begin, end);
        if (s->strips_right) end = skip_space_back(text, begin, end);
        break;
    case CRI_STEP_PREPEND:
        cr_buf_add(out, s->to, s->num_to);
        break;
    default: /* CRI_STEP_PREFIX */
        if (!has_prefix && (piece->is_first || !s->only_first)) cr_buf_add(out, s->to, s->num_to);
        break;
    }
    cr_buf_add(out, text + begin, end - begin);
    return CR_OK;
}

/* most: bytes that the text may have then. */
static cr_status rewrite_all(const cri_step *s, cri_text *text, size_t max, cr_err *err)
{
    cri_text out = {0};

    cr_buf_reserve(&out.bytes, text->bytes.num_bytes + 16);
    for (size_t i = 0; i < text->num; i++) {
        cri_piece piece = text->piece[i];
        cr_status status;
        size_t begin = out.bytes.num_bytes;
        status = rewrite(s, text->bytes.data, &piece, &out.bytes, max, err);
        if (out.bytes.num_bytes > max)
            status =
                cr_fail(err, CR_EFORMAT,
                        "tokenizer.json: its normalizer makes more than %zu bytes of a text", max);
        if (status != CR_OK) {
            cri_text_free(&out);
            return status;
        }
        add_piece(&out, (cri_piece){begin, out.bytes.num_bytes, piece.id, piece.is_first});
    }
    take_pieces(text, &out);
    return CR_OK;
}

/* ---- splitting ---- */

/* Put a piece, a match or what lies between two, after those of the same text (from `first` on). */
static void put_split(cri_text *out, size_t first, cri_piece piece, bool is_match, cri_split split,
                      bool *was_match)
{
    cri_piece *last = out->num > first ? &out->piece[out->num - 1] : NULL;
    bool joins = false;

    if (piece.begin == piece.end) return;
    if (split == CRI_SPLIT_REMOVED && is_match) return;
    if (split == CRI_SPLIT_PREVIOUS) joins = is_match && !*was_match;
    if (split == CRI_SPLIT_NEXT) joins = !is_match && *was_match;
    if (split == CRI_SPLIT_CONTIGUOUS) joins = is_match == *was_match;
    *was_match = is_match;
    if (joins && last)
        last->end = piece.end;
    else
        add_piece(out, piece);
}

static cr_status split_piece(const cri_step *s, const char *text, const cri_piece *piece,
                             pcre2_match_data *match, cri_text *out, cr_err *err)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    size_t begin = piece->begin, from = begin, first = out->num;
    bool was_match = false;

    while (from <= piece->end) {
        int rc = pcre2_match(s->pattern, (PCRE2_SPTR)text + piece->begin, piece->end - piece->begin,
                             from - piece->begin, PCRE2_NO_UTF_CHECK, match, NULL);
        size_t a, b;
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) return cr_fail(err, CR_EFORMAT, "the pre-tokenizer's pattern failed (%d)", rc);
        a = piece->begin + range[0];
        b = piece->begin + range[1];
        put_split(out, first, (cri_piece){begin, a, -1, piece->is_first && begin == piece->begin},
                  s->is_inverted, s->split, &was_match);
        put_split(out, first, (cri_piece){a, b, -1, piece->is_first && a == piece->begin},
                  !s->is_inverted, s->split, &was_match);
        begin = from = b;
        if (a == b) /* an empty match: go on after the next character */
            do
                from++;
            while (from < piece->end && ((unsigned char)text[from] & 0xC0) == 0x80);
    }
    put_split(out, first,
              (cri_piece){begin, piece->end, -1, piece->is_first && begin == piece->begin},
              s->is_inverted, s->split, &was_match);
    return CR_OK;
}

static cr_status split_all(const cri_step *s, cri_text *text, cr_err *err)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    cr_status status = CR_OK;
    cri_text out = {0};

    CR_CHECK(match, "no memory for a match");
    for (size_t i = 0; i < text->num && status == CR_OK; i++)
        if (text->piece[i].id >= 0)
            add_piece(&out, text->piece[i]);
        else
            status = split_piece(s, text->bytes.data, &text->piece[i], match, &out, err);
    pcre2_match_data_free(match);
    if (status == CR_OK)
        take_pieces(text, &out);
    else
        cri_text_free(&out);
    return status;
}

/* ---- patterns ---- */

#define SPACES                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"

/* Oniguruma to PCRE2. White space is spelled out: PCRE2 counts U+180E to it. */
static cr_status translate(const char *pattern, size_t num_bytes, cr_buf *out, cr_err *err)
{
    bool in_class = false;

    for (size_t i = 0; i < num_bytes; i++) {
        char c = pattern[i], next = i + 1 < num_bytes ? pattern[i + 1] : '\0';
        if (c == '\\') {
            if (next == 's' || (next == 'S' && !in_class))
                cr_buf_addf(out, "%s" SPACES "%s",
                            in_class      ? ""
                            : next == 's' ? "["
                                          : "[^",
                            in_class ? "" : "]");
            else if (next && strchr("hHRXKGSCNOky", next))
                return cr_fail(err, CR_EFORMAT, "\\%c in pattern %.60s is not supported%s", next,
                               pattern, in_class ? " in a class" : "");
            else if (next)
                cr_buf_add(out, pattern + i, 2);
            else
                return cr_fail(err, CR_EFORMAT, "pattern %.60s ends in \\", pattern);
            i++;
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && next == '&')))
            return cr_fail(err, CR_EFORMAT, "classes in classes are not supported: pattern %.60s",
                           pattern);
        cr_buf_addc(out, c);
        if (c == '[' && !in_class) {
            in_class = true;
            if (next == '^') cr_buf_addc(out, pattern[++i]);
            if (i + 1 < num_bytes && pattern[i + 1] == ']')
                return cr_fail(err, CR_EFORMAT, "pattern %.60s has an empty class", pattern);
        } else if (c == ']') {
            in_class = false;
        }
    }
    return CR_OK;
}

cr_status cri_step_set_pattern(cri_step *step, const char *pattern, size_t num_bytes, bool is_plain,
                               cr_err *err)
{
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    cr_status status = CR_OK;
    cr_buf text = {0};
    PCRE2_SIZE where;
    int rc;

    if (is_plain) {
        options = PCRE2_UTF | PCRE2_LITERAL;
        cr_buf_add(&text, pattern, num_bytes);
    } else {
        status = translate(pattern, num_bytes, &text, err);
    }
    if (status == CR_OK && text.num_bytes == 0)
        status = cr_fail(err, CR_EFORMAT, "an empty pattern");
    if (status == CR_OK) {
        step->pattern =
            pcre2_compile((PCRE2_SPTR)text.data, text.num_bytes, options, &rc, &where, NULL);
        if (!step->pattern) {
            char why[120];
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            status = cr_fail(err, CR_EFORMAT, "pattern %.60s: %s", pattern, why);
        } else { /* without JIT (not on every CPU) it is slower, not different */
            (void)pcre2_jit_compile(step->pattern, PCRE2_JIT_COMPLETE);
        }
    }
    cr_buf_free(&text);
    return status;
}

/* ---- the chain ---- */

cri_step *cri_steps_add(cri_steps *steps, cri_step_kind kind)
{
    steps->step = cr_realloc(steps->step, steps->num * sizeof *steps->step,
                             (steps->num + 1) * sizeof *steps->step);
    steps->step[steps->num].kind = kind;
    return &steps->step[steps->num++];
}

void cri_steps_free(cri_steps *steps)
{
    for (size_t i = 0; i < steps->num; i++) {
        cr_free(steps->step[i].from);
        cr_free(steps->step[i].to);
        pcre2_code_free(steps->step[i].pattern);
    }
    cr_free(steps->step);
}

cr_status cri_steps_run(const cri_steps *steps, size_t begin, size_t end,
                        const cri_added_list *normalized, cri_text *text, cr_err *err)
{
    const size_t max = MAX_GROWTH * text->bytes.num_bytes + MAX_ADDED;

    for (size_t i = begin; i < end; i++) {
        const cri_step *s = &steps->step[i];
        if (s->kind == CRI_STEP_ADDED)
            cri_text_cut_added(text, normalized);
        else if (s->kind == CRI_STEP_SPLIT)
            CR_TRY(split_all(s, text, err));
        else
            CR_TRY(rewrite_all(s, text, max, err));
    }
    return CR_OK;
}
