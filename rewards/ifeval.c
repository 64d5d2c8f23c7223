/* ifeval.c -- see ifeval.h. One function an instruction, in the order of the reference; texts are
 * compared as Python would (Unicode letters, banker's rounding). Arguments that an instruction does
 * not know are ignored, as ROLL does; one that it needs and lacks is an error.
 */
#include "rewards/ifeval.h"
#include "rewards/language.h"
#include "rewards/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct check {
    const char *text; /* the response after its thinking */
    size_t num_bytes;
    const json_t *arguments;
    bool is_missing; /* an argument lacks or has the wrong kind */
    json_t *explain;
} check;

/* What was counted; true: it is what is wanted. */
static bool is_number(check *c, long n, long wanted, const char *what)
{
    cr_explain_format(c->explain, "found", "%ld %s, wanted %ld", n, what, wanted);
    return n == wanted;
}

/* ---- text ---- */

static size_t count_text(const char *text, const char *part)
{
    size_t n = 0, k = strlen(part);

    if (k == 0) return 0;
    for (const char *p = text; (p = strstr(p, part)); p += k)
        n++;
    return n;
}

/* ---- arguments ---- */

static const char *text_argument(check *c, const char *name)
{
    const json_t *v = json_object_get(c->arguments, name);

    if (!json_is_string(v)) c->is_missing = true;
    return json_is_string(v) ? json_string_value(v) : "";
}

static long number_argument(check *c, const char *name)
{
    const json_t *v = json_object_get(c->arguments, name);

    double x = json_number_value(v);
    char *end;

    if (json_is_string(v)) {
        x = strtod(json_string_value(v), &end);
        if (end == json_string_value(v) || *end) c->is_missing = true;
    } else if (!json_is_number(v)) {
        c->is_missing = true;
    }
    if (!(fabs(x) < 1e15)) c->is_missing = true;
    return c->is_missing ? 0 : (long)x;
}

static bool compare(check *c, long n, double slack, const char *what)
{
    long N = number_argument(c, "N");
    const char *how = text_argument(c, "quantifier");

    cr_explain_format(c->explain, "found", "%ld %s, wanted %s %ld", n, what, how, N);
    if (strcmp(how, "at least") == 0) return n >= N;
    if (strcmp(how, "at most") == 0) return n <= N;
    return strcmp(how, "around") == 0 && labs(n - N) <= (long)slack;
}

/* ---- the instructions ---- */

static bool has_words(check *c, const char *list, bool wants_all)
{
    const json_t *words = json_object_get(c->arguments, list);
    char *text = cri_text_lower(c->text);
    size_t i;
    json_t *w;
    bool result = wants_all;

    if (!json_is_array(words)) c->is_missing = true;
    json_array_foreach(words, i, w)
    {
        if (!json_is_string(w)) c->is_missing = true;
        char *word = cri_text_lower(json_is_string(w) ? json_string_value(w) : "");
        bool is_there = strstr(text, word) != NULL;
        if (is_there != wants_all)
            cr_explain_format(c->explain, "found", "%s \"%s\"", wants_all ? "no" : "there is",
                              word);
        if (wants_all && !is_there) result = false;
        if (!wants_all && is_there) result = true;
        cr_free(word);
    }
    cr_free(text);
    return result;
}

static bool keywords(check *c)
{
    return has_words(c, "keyword_list", true);
}

static bool forbidden_words(check *c)
{
    return !has_words(c, "forbidden_words", false);
}

/* Does a word character stand right before at? */
static bool is_inside_word(const char *text, const char *at)
{
    const char *p = at;
    size_t i = 0;

    if (p == text) return false;
    do
        p--;
    while (p > text && ((unsigned char)*p & 0xC0) == 0x80);
    return cri_is_word(cri_text_next(p, (size_t)(at - p), &i));
}

/* How often the word or phrase occurs in the text, not as a part of a longer word. */
static long count_word(const char *text, const char *word)
{
    size_t k = strlen(word), n = strlen(text), first = 0;
    bool is_open = cri_is_word(cri_text_next(word, k, &first)), /* ends that letters may prolong */
        is_shut = is_inside_word(word, word + k);
    long count = 0;

    for (const char *p = text; (p = strstr(p, word));) {
        size_t end = (size_t)(p - text) + k;
        bool is_cut = (is_open && is_inside_word(text, p)) ||
                      (is_shut && end < n && cri_is_word(cri_text_next(text, n, &end)));
        count += !is_cut;
        p += is_cut ? 1 : k;
    }
    return count;
}

static bool keyword_frequency(check *c)
{
    char *text = cri_text_lower(c->text), *word = cri_text_lower(text_argument(c, "word"));
    bool result;

    if (!*word) c->is_missing = true;
    result = *word && is_number(c, count_word(text, word), number_argument(c, "N"), word);
    cr_free(text);
    cr_free(word);
    return result;
}

static bool letter_frequency(check *c)
{
    const char *letter = text_argument(c, "letter");
    size_t at = 0, n = strlen(letter);

    if (n == 0 || (cri_text_next(letter, n, &at), at) != n) c->is_missing = true; /* one letter */
    return is_number(c, (long)count_text(c->text, letter), number_argument(c, "N"), letter);
}

/* Pieces between separators; how many are blank. */
static long count_pieces(const char *text, const char *separator, long *num_blank)
{
    long n = 1;
    size_t k = strlen(separator);

    *num_blank = 0;
    for (const char *p = text;; n++) {
        const char *end = k ? strstr(p, separator) : NULL;
        size_t length = end ? (size_t)(end - p) : strlen(p);
        cri_text_strip(p, &length);
        *num_blank += length == 0;
        if (!end) return n;
        p = end + k;
    }
}

static bool paragraph_count(check *c)
{
    long blank, n = count_pieces(c->text, "* * *", &blank);

    if (blank) cr_explain_format(c->explain, "blank_paragraphs", "%ld", blank);
    return is_number(c, n, number_argument(c, "N"), "paragraphs between * * *") && blank == 0;
}

static bool word_constraint(check *c)
{
    long n = 0;
    bool is_in = false;

    for (size_t i = 0; i < c->num_bytes;) {
        bool is_part = !cri_is_space(cri_text_next(c->text, c->num_bytes, &i));
        n += is_part && !is_in;
        is_in = is_part;
    }
    return compare(c, n, fmax(rint(0.1 * (double)number_argument(c, "N")), 1), "words");
}

/* White space after . or ? ends a sentence, but not after "U.S." or "Mr.". */
static bool sentence_constraint(check *c)
{
    const char *t = c->text;
    long n = 1;

    for (size_t i = 1; i < c->num_bytes; i++) {
        bool is_initials, is_title;
        if (!strchr(" \t\n\r\f\v", t[i]) || (t[i - 1] != '.' && t[i - 1] != '?')) continue;
        is_initials = i >= 4 && cri_is_word((unsigned char)t[i - 4]) && t[i - 3] == '.' &&
                      cri_is_word((unsigned char)t[i - 2]);
        is_title = i >= 3 && t[i - 1] == '.' && t[i - 3] >= 'A' && t[i - 3] <= 'Z' &&
                   t[i - 2] >= 'a' && t[i - 2] <= 'z';
        n += !is_initials && !is_title;
    }
    return compare(c, n, 1, "sentences");
}

static bool paragraphs(check *c)
{
    const char *first = text_argument(c, "first_word"), *p = c->text, *end;
    long N = number_argument(c, "N"), wanted = number_argument(c, "i"), n = 1;
    bool is_found = false;

    for (;; n++) {
        size_t length;
        end = strstr(p, "\n\n");
        length = end ? (size_t)(end - p) : strlen(p);
        if (n == wanted) {
            const char *s = cri_text_strip(p, &length);
            cr_explain_text(c->explain, "paragraph", s, length);
            is_found = strlen(first) <= length && strncmp(s, first, strlen(first)) == 0;
        }
        if (!end) break;
        p = end + 2;
    }
    return is_number(c, n, N, "paragraphs") && is_found;
}

static bool postscript(check *c)
{
    const char *marker = text_argument(c, "postscript_marker"), *at = strstr(c->text, marker);
    size_t n = at ? strlen(at) : 0;

    cr_explain_format(c->explain, "found", "%s %s", at ? "there is" : "no", marker);
    if (!at) return false;
    cri_text_strip(at, &n);
    return n > strlen(marker);
}

/* Pieces from `open` to the next `shut` on one line. */
static long count_marked(const char *text, char open, char shut)
{
    const char *start = NULL;
    long n = 0;

    for (const char *p = text; *p; p++) {
        if (*p == '\n') {
            start = NULL;
        } else if (start && *p == shut) {
            start = NULL;
            n++;
        } else if (!start && *p == open) {
            start = p;
        }
    }
    return n;
}

static bool is_at_least(check *c, long n, const char *what)
{
    long N = number_argument(c, "N");

    cr_explain_format(c->explain, "found", "%ld %s, wanted at least %ld", n, what, N);
    return n >= N;
}

static bool placeholders(check *c)
{
    return is_at_least(c, count_marked(c->text, '[', ']'), "in square brackets");
}

static bool highlighted_sections(check *c)
{
    return is_at_least(c, count_marked(c->text, '*', '*'), "between stars");
}

static bool bullet_points(check *c)
{
    long n = 0;

    for (const char *p = c->text;;) {
        size_t length = strcspn(p, "\n"), k = length;
        const char *s = cri_text_strip(p, &k);
        n += k && (*s == '*' || *s == '-');
        if (!p[length]) break;
        p += length + 1;
    }
    return is_number(c, n, number_argument(c, "N"), "bullet points");
}

static bool title(check *c)
{
    const char *start = NULL;

    for (const char *p = c->text; *p; p++) {
        if (*p == '\n')
            start = NULL;
        else if (!start && p[0] == '<' && p[1] == '<')
            start = p++;
        else if (start && p[0] == '>' && p[1] == '>')
            return true;
    }
    return false;
}

/* The text is an option or a part of one. The empty text is not an option, though it is a part of each. */
static bool choice(check *c)
{
    const json_t *options = json_object_get(c->arguments, "options");
    size_t i, n = c->num_bytes;
    json_t *o;
    bool result = false;

    cri_text_strip(c->text, &n);
    if (!json_is_array(options)) c->is_missing = true;
    json_array_foreach(options, i, o)
    {
        if (!json_is_string(o))
            c->is_missing = true;
        else if (n && strstr(json_string_value(o), c->text))
            result = true;
    }
    return result;
}

static bool sections(check *c)
{
    const char *splitter = text_argument(c, "section_splitter");
    long blank, n = count_pieces(c->text, splitter, &blank);

    if (!*splitter) c->is_missing = true;
    if (strncmp(c->text, splitter, strlen(splitter)) == 0) n--; /* an empty part leads */
    return is_number(c, n, number_argument(c, "N"), "sections");
}

static bool json_format(check *c)
{
    json_error_t why;
    json_t *v = json_loadb(c->text, c->num_bytes,
                           JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);

    if (!v) cr_explain_format(c->explain, "found", "line %d: %s", why.line, why.text);
    json_decref(v);
    return v != NULL;
}

static bool repeat_prompt(check *c)
{
    const char *prompt = text_argument(c, "original_prompt");

    return strncmp(c->text, prompt, strlen(prompt)) == 0;
}

static bool two_responses(check *c)
{
    const char *at = strstr(c->text, "******"), *a = c->text, *b;
    size_t na, nb;

    if (!is_number(c, (long)count_text(c->text, "******"), 1, "lines of ******")) return false;
    b = at + 6;
    na = (size_t)(at - a);
    nb = strlen(b);
    a = cri_text_strip(a, &na);
    b = cri_text_strip(b, &nb);
    return na != nb || memcmp(a, b, na) != 0;
}

static bool is_mapped(check *c, cri_map_char map)
{
    char *mapped = cri_text_map(c->text, c->num_bytes, map);
    bool result = strcmp(mapped, c->text) == 0;

    cr_free(mapped);
    return result;
}

static bool uppercase(check *c)
{
    return is_mapped(c, utf8proc_toupper);
}

static bool lowercase(check *c)
{
    return is_mapped(c, utf8proc_tolower);
}

/* Runs of word characters that are capital letters from A to Z, all of them. */
static bool capital_words(check *c)
{
    bool is_in = false, is_capital = true;
    long n = 0;

    for (size_t i = 0; i < c->num_bytes;) {
        uint32_t letter = cri_text_next(c->text, c->num_bytes, &i);
        bool is_part = cri_is_word(letter);
        if (!is_part) n += is_in && is_capital;
        if (is_part && !is_in) is_capital = true;
        if (is_part) is_capital = is_capital && letter >= 'A' && letter <= 'Z';
        is_in = is_part;
    }
    return compare(c, n + (is_in && is_capital), 0, "words in capital letters");
}

static bool end_phrase(check *c)
{
    const char *phrase = text_argument(c, "end_phrase");
    size_t n = strlen(phrase);

    return c->num_bytes >= n && strcmp(c->text + c->num_bytes - n, phrase) == 0;
}

static bool quotation(check *c)
{
    return c->num_bytes && c->text[0] == '"' && c->text[c->num_bytes - 1] == '"';
}

static bool no_commas(check *c)
{
    return !strchr(c->text, ',');
}

static bool response_language(check *c)
{
    const char *language = text_argument(c, "language");

    if (!cri_language_is_known(language)) c->is_missing = true;
    cri_language_explain(c->text, c->explain);
    return strcmp(cri_language_of(c->text), language) == 0;
}

static const struct {
    const char *name;
    bool (*check)(check *c);
} instructions[] = {
    {"verify_keywords", keywords},
    {"verify_keyword_frequency", keyword_frequency},
    {"validate_forbidden_words", forbidden_words},
    {"verify_letter_frequency", letter_frequency},
    {"validate_response_language", response_language},
    {"verify_paragraph_count", paragraph_count},
    {"validate_word_constraint", word_constraint},
    {"verify_sentence_constraint", sentence_constraint},
    {"validate_paragraphs", paragraphs},
    {"verify_postscript", postscript},
    {"validate_placeholders", placeholders},
    {"verify_bullet_points", bullet_points},
    {"validate_title", title},
    {"validate_choice", choice},
    {"validate_highlighted_sections", highlighted_sections},
    {"validate_sections", sections},
    {"validate_json_format", json_format},
    {"validate_repeat_prompt", repeat_prompt},
    {"validate_two_responses", two_responses},
    {"validate_uppercase", uppercase},
    {"validate_lowercase", lowercase},
    {"validate_frequency_capital_words", capital_words},
    {"validate_end", end_phrase},
    {"validate_quotation", quotation},
    {"validate_no_commas", no_commas},
};

/* ---- the rule ---- */

/* The arguments of a row's check, and which of the instructions it is. */
static cr_status read_gold(const char *gold, json_t **root, size_t *which, cr_err *err)
{
    const char *name;

    if (cr_json_parse(gold, strlen(gold), "ground_truth", root, err) != CR_OK) return err->status;
    name = json_string_value(json_object_get(*root, "func_name"));
    for (*which = 0; name && *which < CR_COUNT(instructions); ++*which)
        if (strcmp(instructions[*which].name, name) == 0) return CR_OK;
    cr_fail(err, CR_EFORMAT, "ground_truth is not an object with a func_name of ifeval: %.60s",
            name ? name : "(none)");
    json_decref(*root);
    *root = NULL;
    return err->status;
}

cr_status cr_ifeval_check_row(const char *gold, cr_err *err)
{
    json_t *root = NULL;
    size_t which;

    CR_TRY(read_gold(gold, &root, &which, err));
    json_decref(root);
    return CR_OK;
}

void cr_ifeval_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold = cr_rule_text(a->row, "ground_truth"), *after;
    char *text;
    json_t *root = NULL;
    cr_err err = {0};
    size_t which;
    double repetition;
    bool holds;
    check c;

    if (!gold) {
        cr_rule_error(out, "the row has no text ground_truth");
        return;
    }
    if (read_gold(gold, &root, &which, &err) != CR_OK) {
        cr_rule_error(out, "%.190s", err.msg);
        return;
    }
    text = cri_text_plain(a->response, a->response_bytes, CRI_REMOVE_IM_END);
    after = cri_text_after_think(text);
    c = (check){after, strlen(after), root, false, a->explain};
    cr_explain_format(a->explain, "instruction", "%s", instructions[which].name);
    cr_explain_value(a->explain, "arguments", json_deep_copy(root));
    holds = instructions[which].check(&c);
    repetition = cri_text_repetition(text, 3, -0.5);
    cr_explain_value(a->explain, "holds", json_boolean(holds));
    cr_explain_format(a->explain, "reward", "%d of the instruction, %g of repetition", holds,
                      repetition + 0.0); /* no -0 */
    if (c.is_missing)
        cr_rule_error(out, "%s: an argument is missing or has the wrong kind",
                      instructions[which].name);
    else
        *out = (cr_rule_result){
            .score = holds, .reward = holds + repetition, .outcome = CR_OUTCOME_OK};
    json_decref(root);
    cr_free(text);
}
