/* math_signs.c -- signs of Unicode as the LaTeX that says the same (see math_impl.h). */
#include "rewards/math/math_impl.h"

#include <string.h>

static const struct {
    uint32_t sign;
    const char *latex;
} signs[] = {{0xBC, "\\frac{1}{4}"},   {0xBD, "\\frac{1}{2}"},
             {0xBE, "\\frac{3}{4}"},   {0x2150, "\\frac{1}{7}"},
             {0x2151, "\\frac{1}{9}"}, {0x2152, "\\frac{1}{10}"},
             {0x2153, "\\frac{1}{3}"}, {0x2154, "\\frac{2}{3}"},
             {0x2155, "\\frac{1}{5}"}, {0x2156, "\\frac{2}{5}"},
             {0x2157, "\\frac{3}{5}"}, {0x2158, "\\frac{4}{5}"},
             {0x2159, "\\frac{1}{6}"}, {0x215A, "\\frac{5}{6}"},
             {0x215B, "\\frac{1}{8}"}, {0x215C, "\\frac{3}{8}"},
             {0x215D, "\\frac{5}{8}"}, {0x215E, "\\frac{7}{8}"},
             {0x221A, "\\sqrt "},      {0x221B, "\\sqrt[3]"},
             {0x221C, "\\sqrt[4]"},    {0x2026, "\\ldots "},
             {0x22EF, "\\cdots "},     {0x27E8, "\\langle "},
             {0x27E9, "\\rangle "},    {0x2032, "'"},
             {0x2033, "''"},           {0x2102, "\\mathbb{C}"},
             {0x2115, "\\mathbb{N}"},  {0x211A, "\\mathbb{Q}"},
             {0x211D, "\\mathbb{R}"},  {0x2124, "\\mathbb{Z}"},
             {0x2261, "\\equiv "},     {0x2212, "-"},
             {0x2223, "\\mid "}};

/* The character that a raised (or lowered) one stands for; 0: it is not one. */
static char plain_of(uint32_t c, bool *is_raised)
{
    *is_raised = true;
    if (c == 0xB2 || c == 0xB3) return (char)('0' + (c - 0xB0));
    if (c == 0xB9) return '1';
    if (c == 0x2070 || (c >= 0x2074 && c <= 0x2079)) return (char)('0' + (c - 0x2070));
    if (c >= 0x207A && c <= 0x207F) return "+-=()n"[c - 0x207A];
    *is_raised = false;
    return c >= 0x2080 && c <= 0x2089 ? (char)('0' + (c - 0x2080)) : 0;
}

static const char *latex_of(uint32_t c)
{
    for (size_t i = 0; i < CR_COUNT(signs); i++)
        if (signs[i].sign == c) return signs[i].latex;
    return NULL;
}

char *cri_math_signs(const char *text)
{
    cr_buf out = {0};
    const char *end = text + strlen(text);
    char open = 0; /* ^ or _ of the group that is not closed yet */

    while (text < end) {
        uint32_t c = 0;
        bool is_raised;
        int n = (unsigned char)*text < 0x80 ? 1 : cr_utf8_decode(text, (size_t)(end - text), &c);
        char small = n > 1 ? plain_of(c, &is_raised) : 0, mark = small && is_raised ? '^' : '_';
        const char *latex = n > 1 && !small ? latex_of(c) : NULL;
        if (open && (!small || mark != open)) cr_buf_addc(&out, '}'), open = 0;
        if (small) {
            if (!open) cr_buf_addf(&out, "%c{", open = mark);
            cr_buf_addc(&out, small);
        } else if (latex) {
            cr_buf_adds(&out, latex);
        } else {
            cr_buf_add(&out, text, n ? (size_t)n : 1);
        }
        text += n ? n : 1;
    }
    cr_buf_adds(&out, open ? "}" : "");
    return out.data;
}

bool cri_math_is_currency(uint32_t c)
{
    return (c >= 0x20A0 && c <= 0x20CF) || c == 0xA3 || c == 0xA5;
}
