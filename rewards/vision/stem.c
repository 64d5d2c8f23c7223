/* stem.c -- Porter's algorithm (1980) with the extensions of NLTK, which ROUGE's reference program uses. */
#include "rewards/vision/likeness.h"

#include <string.h>

enum { MAX_WORD = 100 }; /* longer ones stay as they are */

/* A word and its length, changed in place; a stem is its first n letters. */
typedef struct word {
    char *text;
    int num;
} word;

static bool is_consonant(const word *w, int i)
{
    bool is_one = true; /* of the letters so far: y after a consonant is a vowel */

    for (int k = 0; k <= i; k++)
        is_one = w->text[k] == 'y' ? k == 0 || !is_one : !strchr("aeiou", w->text[k]);
    return is_one;
}

/* How often consonants follow vowels in a stem. */
static int measure(const word *w, int n)
{
    int num = 0;

    for (int i = 1; i < n; i++)
        num += is_consonant(w, i) && !is_consonant(w, i - 1);
    return num;
}

static bool has_vowel(const word *w, int n)
{
    for (int i = 0; i < n; i++)
        if (!is_consonant(w, i)) return true;
    return false;
}

/* The stem ends with a consonant, a vowel and a consonant other than w, x and y. */
static bool ends_short(const word *w, int n)
{
    if (n == 2) return !is_consonant(w, 0) && is_consonant(w, 1);
    return n >= 3 && is_consonant(w, n - 3) && !is_consonant(w, n - 2) && is_consonant(w, n - 1) &&
           !strchr("wxy", w->text[n - 1]);
}

/* True: this is the suffix; *n is the length of the rest. */
static bool ends_with(const word *w, const char *suffix, int *n)
{
    int k = (int)strlen(suffix);

    *n = w->num - k;
    return *n >= 0 && memcmp(w->text + *n, suffix, (size_t)k) == 0;
}

static void put_end(word *w, int n, const char *end)
{
    memcpy(w->text + n, end, strlen(end) + 1); /* a word never grows beyond what it was */
    w->num = n + (int)strlen(end);
}

typedef struct ending {
    const char *from, *to;
} ending;

/* The first ending that the word has becomes the other if its stem measures more than `min`. False: it has none. */
static bool change(word *w, const ending *endings, size_t num, int min)
{
    int n;

    for (size_t i = 0; i < num; i++) {
        if (!ends_with(w, endings[i].from, &n)) continue;
        if (measure(w, n) > min) put_end(w, n, endings[i].to);
        return true;
    }
    return false;
}

/* ---- steps ---- */

static void plurals(word *w)
{
    int n;

    if (ends_with(w, "ies", &n) && w->num == 4)
        put_end(w, n, "ie");
    else if (ends_with(w, "sses", &n))
        put_end(w, n, "ss");
    else if (ends_with(w, "ies", &n))
        put_end(w, n, "i");
    else if (!ends_with(w, "ss", &n) && ends_with(w, "s", &n))
        put_end(w, n, "");
}

/* What is left of a word without its -ed or -ing. */
static void mend(word *w)
{
    static const ending with_e[] = {{"at", "ate"}, {"bl", "ble"}, {"iz", "ize"}};
    int n = w->num;

    for (size_t i = 0; i < CR_COUNT(with_e); i++)
        if (ends_with(w, with_e[i].from, &n)) {
            put_end(w, n, with_e[i].to);
            return;
        }
    n = w->num;
    if (n >= 2 && w->text[n - 1] == w->text[n - 2] && is_consonant(w, n - 1)) {
        if (!strchr("lsz", w->text[n - 1])) put_end(w, n - 1, "");
    } else if (measure(w, n) == 1 && ends_short(w, n)) {
        put_end(w, n, "e");
    }
}

static void pasts(word *w)
{
    int n;

    if (ends_with(w, "ied", &n)) {
        put_end(w, n, w->num == 4 ? "ie" : "i");
    } else if (ends_with(w, "eed", &n)) {
        if (measure(w, n) > 0) put_end(w, n, "ee");
    } else if ((ends_with(w, "ed", &n) || ends_with(w, "ing", &n)) && has_vowel(w, n)) {
        put_end(w, n, "");
        mend(w);
    }
}

static void last_y(word *w)
{
    int n;

    if (ends_with(w, "y", &n) && n > 1 && is_consonant(w, n - 1)) put_end(w, n, "i");
}

static void double_endings(word *w)
{
    static const ending endings[] = {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},
                                     {"anci", "ance"},   {"izer", "ize"},    {"bli", "ble"},
                                     {"alli", "al"},     {"entli", "ent"},   {"eli", "e"},
                                     {"ousli", "ous"},   {"ization", "ize"}, {"ation", "ate"},
                                     {"ator", "ate"},    {"alism", "al"},    {"iveness", "ive"},
                                     {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"},
                                     {"iviti", "ive"},   {"biliti", "ble"},  {"fulli", "ful"}};
    int n;

    while (ends_with(w, "alli", &n) && measure(w, n) > 0)
        put_end(w, n, "al");
    if (change(w, endings, CR_COUNT(endings), 0)) return;
    if (ends_with(w, "logi", &n) && measure(w, n + 1) > 0) put_end(w, n, "log");
}

static void other_endings(word *w)
{
    static const ending endings[] = {{"icate", "ic"}, {"ative", ""},  {"alize", "al"},
                                     {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""},
                                     {"ness", ""}};

    change(w, endings, CR_COUNT(endings), 0);
}

static void long_endings(word *w)
{
    static const ending before[] = {{"al", ""},    {"ance", ""}, {"ence", ""}, {"er", ""},
                                    {"ic", ""},    {"able", ""}, {"ible", ""}, {"ant", ""},
                                    {"ement", ""}, {"ment", ""}, {"ent", ""}},
                        after[] = {{"ou", ""},  {"ism", ""}, {"ate", ""}, {"iti", ""},
                                   {"ous", ""}, {"ive", ""}, {"ize", ""}};
    int n;

    if (change(w, before, CR_COUNT(before), 1)) return;
    if (ends_with(w, "ion", &n)) {
        if (measure(w, n) > 1 && strchr("st", w->text[n - 1])) put_end(w, n, "");
        return;
    }
    change(w, after, CR_COUNT(after), 1);
}

static void last_e_and_l(word *w)
{
    int n;

    if (ends_with(w, "e", &n) && (measure(w, n) > 1 || (measure(w, n) == 1 && !ends_short(w, n))))
        put_end(w, n, "");
    if (ends_with(w, "ll", &n) && measure(w, w->num - 1) > 1) put_end(w, w->num - 1, "");
}

/* Words that are no case of the rules. */
static bool is_special(word *w)
{
    static const ending words[] = {
        {"skies", "sky"},      {"sky", "sky"},          {"dying", "die"},
        {"lying", "lie"},      {"tying", "tie"},        {"news", "news"},
        {"innings", "inning"}, {"inning", "inning"},    {"outings", "outing"},
        {"outing", "outing"},  {"cannings", "canning"}, {"canning", "canning"},
        {"howe", "howe"},      {"proceed", "proceed"},  {"exceed", "exceed"},
        {"succeed", "succeed"}};

    for (size_t i = 0; i < CR_COUNT(words); i++)
        if (strcmp(w->text, words[i].from) == 0) {
            put_end(w, 0, words[i].to);
            return true;
        }
    return false;
}

void cri_stem(char *text)
{
    size_t num = strlen(text);
    word w = {text, (int)num};

    if (num <= 2 || num > MAX_WORD || is_special(&w)) return;
    plurals(&w);
    pasts(&w);
    last_y(&w);
    double_endings(&w);
    other_endings(&w);
    long_endings(&w);
    last_e_and_l(&w);
}
