/* reply.c -- see reply.h. */
#include "scorers/judge/reply.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN = 100, LABEL_BYTES = 40, NUMBER_BYTES = 24, MAX_BYTES = 64 << 10 };

/* A part of a reply. */
typedef struct piece {
    const char *text;
    size_t num;
} piece;

/* What a part says. */
typedef enum saying { SAYS_NOTHING, SAYS_VERDICT, SAYS_OUT_OF_BOUNDS } saying;

/* ---- words and numbers ---- */

/* Bytes of a mark at the start of a text that may stand around a verdict; 0: it is none. */
static size_t mark_at(const char *text, size_t num)
{
    static const char *const wide[] = {"\u201c", "\u201d", "\u2018", "\u2019", "\u3002", "\uff01"};

    if (num && *text && strchr(" \t\r\n*_`\"'()[]{}.,;!#", *text)) return 1;
    for (size_t i = 0; i < CR_COUNT(wide); i++)
        if (num >= strlen(wide[i]) && memcmp(text, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    return 0;
}

static piece trim(piece p)
{
    for (size_t n; (n = mark_at(p.text, p.num)) > 0 && *p.text != '.'; p.num -= n)
        p.text += n; /* ".5" is a number */
    for (size_t n = 1; n <= 3 && n <= p.num; n++)
        if (mark_at(p.text + p.num - n, n) == n) p.num -= n, n = 0;
    return p;
}

static bool is_word(piece p, const char *word)
{
    return p.num == strlen(word) && strncasecmp(p.text, word, p.num) == 0;
}

static bool is_letter(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

/* Has it the word, in any case of letters? */
static bool has_word(piece p, const char *word)
{
    for (size_t i = 0; i < p.num;) {
        size_t n = 0;
        while (i + n < p.num && is_letter(p.text[i + n]))
            n++;
        if (is_word((piece){p.text + i, n}, word)) return true;
        i += n + !n;
    }
    return false;
}

/* "8", "-0.5", or "8/10" if 10 is the most there is. */
static saying read_number(piece p, const cr_judge_answer *form, double *score)
{
    char text[NUMBER_BYTES + 1], *end;
    double x;

    if (p.num == 0 || p.num > NUMBER_BYTES) return SAYS_NOTHING;
    memcpy(text, p.text, p.num);
    text[p.num] = 0;
    if (strspn(text, "+-.0123456789/") != p.num || !isdigit((unsigned char)text[p.num - 1]))
        return SAYS_NOTHING;
    x = strtod(text, &end);
    if (end == text || (*end && (*end != '/' || strtod(end + 1, &end) != form->max || *end)))
        return SAYS_NOTHING;
    if (!(x >= form->min && x <= form->max)) return SAYS_OUT_OF_BOUNDS;
    *score = (x - form->min) / (form->max - form->min);
    return SAYS_VERDICT;
}

/* All of a trimmed text. */
static saying read_value(piece p, const cr_judge_answer *form, double *score)
{
    if (form->is_number) return read_number(p, form, score);
    *score = is_word(p, "yes");
    return *score == 1 || is_word(p, "no") ? SAYS_VERDICT : SAYS_NOTHING;
}

/* ---- replies in words ---- */

/* A line that is a verdict and nothing else, or "some words: verdict". */
static saying read_line(piece line, const cr_judge_answer *form, double *score)
{
    const char *colon;
    piece label;

    line = trim(line);
    colon = memchr(line.text, ':', line.num);
    if (!colon) return read_value(line, form, score);
    label = (piece){line.text, (size_t)(colon - line.text)};
    for (size_t i = 0; i < label.num; i++)
        if (label.num > LABEL_BYTES ||
            !(isalpha((unsigned char)label.text[i]) || mark_at(label.text + i, label.num - i)))
            return SAYS_NOTHING;
    if (has_word(label, "yes") || has_word(label, "no")) return SAYS_NOTHING;
    return read_value(trim((piece){colon + 1, line.num - label.num - 1}), form, score);
}

/* Does a sentence go on after its first word, or end, rather than say "no doubt" or "yes/no"? */
static bool is_pause(piece rest)
{
    static const char *const pauses[] = {".", ",", ";", ":", "!", "\n", " -", " \u2013", " \u2014"};

    while (rest.num && strchr("*_`\"'", *rest.text) && *rest.text)
        rest.text++, rest.num--;
    for (size_t i = 0; i < CR_COUNT(pauses); i++)
        if (rest.num >= strlen(pauses[i]) && memcmp(rest.text, pauses[i], strlen(pauses[i])) == 0)
            return true;
    return false;
}

/* A reply that begins with the word, then says why, and does not say the other word. */
static saying read_beginning(piece reply, double *score)
{
    static const char *const words[] = {"no", "yes"};
    size_t n = 0;

    for (size_t k; (k = mark_at(reply.text, reply.num)) > 0; reply.num -= k)
        reply.text += k;
    while (n < reply.num && is_letter(reply.text[n]))
        n++;
    for (int i = 0; i < 2; i++) {
        if (!is_word((piece){reply.text, n}, words[i]) || has_word(reply, words[!i])) continue;
        if (!is_pause((piece){reply.text + n, reply.num - n})) continue;
        *score = i;
        return SAYS_VERDICT;
    }
    return SAYS_NOTHING;
}

/* Lines of a reply; a last one that was cut off says nothing by itself. */
static saying read_words(piece reply, bool is_cut, const cr_judge_answer *form, double *score)
{
    saying first = SAYS_NOTHING, last = SAYS_NOTHING;
    bool has_any = false, is_said = false;

    for (size_t at = 0; at < reply.num;) {
        const char *end = memchr(reply.text + at, '\n', reply.num - at);
        piece line = {reply.text + at, end ? (size_t)(end - reply.text) - at : reply.num - at};
        double x = 0;
        at += line.num + 1;
        if (trim(line).num == 0) continue;
        last = is_cut && !end ? SAYS_NOTHING : read_line(line, form, &x);
        if (!has_any) first = last;
        has_any = true;
        if (last == SAYS_OUT_OF_BOUNDS) return last;
        if (last == SAYS_VERDICT && is_said && x != *score) return SAYS_NOTHING;
        if (last == SAYS_VERDICT) *score = x, is_said = true;
    }
    if (last == SAYS_VERDICT) return last;
    if (form->is_number) return first;
    if (first == SAYS_VERDICT && !has_word(reply, *score == 1 ? "no" : "yes")) return first;
    return is_said ? SAYS_NOTHING : read_beginning(reply, score);
}

/* ---- replies by pattern or field ---- */

static saying read_match(const cr_judge_reader *r, piece reply, bool is_cut, double *score)
{
    size_t n;
    const char *text = cr_pattern_group(r->pattern, "score", &n);
    bool is_yes;

    if (r->form->is_number) {
        if (!text || (is_cut && text + n == reply.text + reply.num)) return SAYS_NOTHING;
        return read_number(trim((piece){text, n}), r->form, score);
    }
    is_yes = (text = cr_pattern_group(r->pattern, "yes", &n)) != NULL;
    if (is_yes != !cr_pattern_group(r->pattern, "no", &n)) return SAYS_NOTHING; /* both, none */
    if (!is_yes) text = cr_pattern_group(r->pattern, "no", &n);
    if (is_cut && text + n == reply.text + reply.num) return SAYS_NOTHING;
    *score = is_yes;
    return SAYS_VERDICT;
}

/* All matches say the same. */
static saying read_pattern(const cr_judge_reader *r, piece reply, bool is_cut, double *score)
{
    saying all = SAYS_NOTHING;
    bool is_found;
    cr_err ignored = {0};

    for (size_t at = 0;;) {
        saying one;
        double x = 0;
        if (cr_pattern_next(r->pattern, reply.text, reply.num, &at, &is_found, &ignored) != CR_OK)
            return SAYS_NOTHING;
        if (!is_found) return all;
        one = read_match(r, reply, is_cut, &x);
        if (one != SAYS_VERDICT) return one;
        if (all == SAYS_VERDICT && x != *score) return SAYS_NOTHING;
        all = one;
        *score = x;
    }
}

/* The object in a reply: all of it, or of a fence of three backticks around it. */
static json_t *find_object(piece reply)
{
    static const char fence[] = "```";
    json_t *root = NULL;
    cr_err ignored = {0};

    while (reply.num && isspace((unsigned char)*reply.text))
        reply.text++, reply.num--;
    while (reply.num && isspace((unsigned char)reply.text[reply.num - 1]))
        reply.num--;
    if (reply.num > 6 && memcmp(reply.text, fence, 3) == 0 &&
        memcmp(reply.text + reply.num - 3, fence, 3) == 0) {
        const char *end = memchr(reply.text, '\n', reply.num);
        size_t head = end ? (size_t)(end - reply.text) : 3;
        reply = (piece){reply.text + head, reply.num - head - 3};
    }
    cr_note(cr_json_parse(reply.text, reply.num, NULL, &root, &ignored));
    return root;
}

static saying read_field(const cr_judge_answer *form, piece reply, double *score)
{
    json_t *root = find_object(reply);
    const json_t *value = root;
    saying says = SAYS_NOTHING;

    for (const char *name = form->field; name && value;) {
        size_t n = strcspn(name, ".");
        char *key = cr_strndup(name, n);
        value = json_object_get(value, key);
        cr_free(key);
        name = name[n] ? name + n + 1 : NULL;
    }
    if (json_is_string(value)) {
        says =
            read_value((piece){json_string_value(value), json_string_length(value)}, form, score);
    } else if (json_is_number(value) && form->is_number) {
        double x = json_number_value(value);
        says = x >= form->min && x <= form->max ? SAYS_VERDICT : SAYS_OUT_OF_BOUNDS;
        *score = (x - form->min) / (form->max - form->min);
    } else if (json_is_boolean(value) && !form->is_number) {
        says = SAYS_VERDICT;
        *score = json_is_true(value);
    }
    json_decref(root);
    return says;
}

/* ---- answers ---- */

static saying read_reply(const cr_judge_reader *r, piece reply, bool is_cut, double *score)
{
    if (reply.num > MAX_BYTES) return SAYS_NOTHING;
    if (r->pattern) return read_pattern(r, reply, is_cut, score);
    if (r->form->field) return read_field(r->form, reply, score);
    return read_words(reply, is_cut, r->form, score);
}

/* What comes after the thoughts. */
static piece skip_thoughts(const char *reply)
{
    static const char begin[] = "<think>", end[] = "</think>";

    for (const char *at = reply; (at = strstr(at, end));)
        reply = at += strlen(end);
    return (piece){reply, strstr(reply, begin) ? 0 : strlen(reply)}; /* thoughts that did not end */
}

cr_status cr_judge_reader_open(cr_judge_reader *r, const cr_judge_answer *form, cr_err *err)
{
    *r = (cr_judge_reader){.form = form};
    return form->pattern ? cr_pattern_open(form->pattern, &r->pattern, err) : CR_OK;
}

void cr_judge_reader_close(cr_judge_reader *r)
{
    cr_pattern_close(r->pattern);
    *r = (cr_judge_reader){.form = NULL};
}

void cr_judge_read(const cr_judge_reader *r, const char *body, size_t num_bytes,
                   cr_rule_result *out)
{
    json_t *root = NULL;
    const json_t *choices, *choice, *content;
    const char *reply, *finish;
    double score = 0;
    saying says;
    cr_err ignored = {0};

    *out = (cr_rule_result){.outcome = CR_OUTCOME_OK};
    cr_note(cr_json_parse(body, num_bytes, NULL, &root, &ignored));
    choices = json_object_get(root, "choices");
    choice = json_array_size(choices) == 1 ? json_array_get(choices, 0) : NULL;
    content = json_object_get(json_object_get(choice, "message"), "content");
    reply = json_string_value(content);
    if (reply && strlen(reply) != json_string_length(content)) reply = NULL; /* a NUL */
    finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (!reply) {
        cr_rule_error(out, "the judge's answer is not a chat: %.*s",
                      (int)(num_bytes < SHOWN ? num_bytes : SHOWN), body);
    } else {
        bool is_cut = finish && strcmp(finish, "length") == 0;
        says = read_reply(r, skip_thoughts(reply), is_cut, &score);
        if (says == SAYS_VERDICT) {
            out->score = out->reward = score;
            snprintf(out->detail, sizeof out->detail, "%s", reply);
        } else {
            cr_rule_error(out, "the judge gave no verdict%s: %s",
                          says == SAYS_OUT_OF_BOUNDS ? " within the bounds"
                          : is_cut                   ? " (its reply was cut off)"
                                                     : "",
                          reply);
        }
    }
    json_decref(root);
}
