/* math_units.c -- amounts: 2 million, 25 percent, 2 hours 30 minutes (see math_impl.h). */
#include "rewards/math/math_impl.h"

#include <ctype.h>
#include <string.h>

enum { MAX_PARTS = 6 };

/* ---- words of size ---- */

static const struct {
    const char *word, *latex;
} sizes[] = {{"hundred", "\\times 10^{2}"},   {"thousand", "\\times 10^{3}"},
             {"million", "\\times 10^{6}"},   {"billion", "\\times 10^{9}"},
             {"trillion", "\\times 10^{12}"}, {"percent", "\\%"}};

size_t cri_math_size_word(const char *s, const char **latex)
{
    for (size_t i = 0; i < CR_COUNT(sizes); i++) {
        size_t n = strlen(sizes[i].word);
        if (strncmp(s, sizes[i].word, n) != 0 || isalpha((unsigned char)s[n])) continue;
        *latex = sizes[i].latex;
        return n;
    }
    return 0;
}

/* ---- amounts in several units ---- */

static const struct unit {
    const char *name, *dimension;
    int64_t scale; /* of the smallest unit of the dimension */
} units[] = {{"second", "time", 1},     {"sec", "time", 1},
             {"s", "time", 1},          {"minute", "time", 60},
             {"min", "time", 60},       {"hour", "time", 3600},
             {"hr", "time", 3600},      {"h", "time", 3600},
             {"day", "time", 86400},    {"week", "time", 604800},
             {"inch", "feet", 1},       {"inche", "feet", 1},
             {"in", "feet", 1},         {"foot", "feet", 12},
             {"feet", "feet", 12},      {"ft", "feet", 12},
             {"yard", "feet", 36},      {"mile", "feet", 63360},
             {"mm", "length", 1},       {"millimeter", "length", 1},
             {"cm", "length", 10},      {"centimeter", "length", 10},
             {"m", "length", 1000},     {"meter", "length", 1000},
             {"km", "length", 1000000}, {"kilometer", "length", 1000000},
             {"oz", "weight", 1},       {"ounce", "weight", 1},
             {"lb", "weight", 16},      {"pound", "weight", 16},
             {"g", "mass", 1},          {"gram", "mass", 1},
             {"kg", "mass", 1000},      {"kilogram", "mass", 1000},
             {"cent", "money", 1},      {"dollar", "money", 100}};

static const struct unit *unit_of(const char *s, size_t n)
{
    for (size_t i = 0; i < CR_COUNT(units); i++) {
        size_t m = strlen(units[i].name);
        if (strncmp(s, units[i].name, m) != 0) continue;
        if (n == m || (n == m + 1 && m > 1 && s[m] == 's')) return &units[i];
    }
    return NULL;
}

/* Past blanks, commas, the word "and" and the marks around words. */
static const char *skip_filler(const char *s)
{
    static const char *const marks[] = {"\\text{", "\\mathrm{", "\\textrm{", "\\mbox{", "\\quad",
                                        "\\,",     "\\ ",       "\\;",       "\\:",     "and "};

    for (;;) {
        size_t n = strspn(s, " \t\n~,$}");
        for (size_t i = 0; i < CR_COUNT(marks) && !n; i++)
            if (strncmp(s, marks[i], strlen(marks[i])) == 0) n = strlen(marks[i]);
        if (!n) return s;
        s += n;
    }
}

cri_math *cri_math_amount(cri_question *q, const char *text)
{
    const struct unit *unit = NULL;
    const char *s = skip_filler(text);
    cr_buf sum = {0};
    cri_math *value = NULL, *scale = NULL;
    int num = 0;

    for (; *s && !(*s == '.' && !s[1]); num++) {
        size_t digits = strspn(s, "0123456789."), letters = 0;
        const char *name = skip_filler(s + digits);
        const struct unit *before = unit;
        while (isalpha((unsigned char)name[letters]))
            letters++;
        unit = digits && digits < 16 ? unit_of(name, letters) : NULL;
        if (!unit || num == MAX_PARTS ||
            (before &&
             (strcmp(before->dimension, unit->dimension) != 0 || before->scale <= unit->scale)))
            break;
        cr_buf_addf(&sum, "%s%.*s*%lld", num ? "+" : "(", (int)digits, s, (long long)unit->scale);
        s = skip_filler(name + letters);
    }
    if (num && unit && (!*s || !s[1])) {
        char *one = cr_asprintf("%lld", (long long)unit->scale);
        cr_buf_addf(&sum, ")/%s", one);
        value = cri_math_parse(q, sum.data);
        scale = value ? cri_math_parse(q, one) : NULL;
        cr_free(one);
    }
    cr_buf_free(&sum);
    value = scale ? cri_math_node(q, CRI_UNIT, 2, value, scale) : NULL;
    if (value) value->text = unit->dimension;
    return value;
}
