/* pattern.c -- see pattern.h. */
#include "base/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MAX_STEPS = 100000, MAX_KIB = 16 << 10 };

struct cr_pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    const char *text; /* of the last match */
};

cr_status cr_pattern_open(const char *text, cr_pattern **out, cr_err *err)
{
    cr_pattern *p = CR_NEW(cr_pattern);
    PCRE2_SIZE where = 0;
    PCRE2_UCHAR why[120];
    int rc;

    *out = NULL;
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &rc, &where, NULL);
    if (!p->code) {
        pcre2_get_error_message(rc, why, sizeof why);
        cr_pattern_close(p);
        return cr_fail(err, CR_EFORMAT, "character %zu: %s", where + 1, (const char *)why);
    }
    p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    p->limits = pcre2_match_context_create(NULL);
    CR_CHECK(p->match && p->limits, "PCRE2 has no memory");
    pcre2_set_match_limit(p->limits, MAX_STEPS);
    pcre2_set_heap_limit(p->limits, MAX_KIB);
    *out = p;
    return CR_OK;
}

void cr_pattern_close(cr_pattern *p)
{
    if (!p) return;
    pcre2_match_context_free(p->limits);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    cr_free(p);
}

bool cr_pattern_has(const cr_pattern *p, const char *name)
{
    return pcre2_substring_number_from_name(p->code, (PCRE2_SPTR)name) >= 0;
}

cr_status cr_pattern_next(cr_pattern *p, const char *text, size_t num_bytes, size_t *at,
                          bool *is_found, cr_err *err)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(p->match);
    PCRE2_UCHAR why[120];
    int rc;

    *is_found = false;
    if (*at > num_bytes) return CR_OK;
    rc = pcre2_match(p->code, (PCRE2_SPTR)text, num_bytes, *at, *at ? PCRE2_NO_UTF_CHECK : 0,
                     p->match, p->limits); /* checked as a whole at 0 */
    p->text = text;
    *is_found = rc >= 0;
    if (rc >= 0) { /* past it, and past a character if it took nothing */
        *at = range[1] > *at ? range[1] : *at + 1;
        while (*at < num_bytes && ((unsigned char)text[*at] & 0xc0) == 0x80)
            ++*at;
    }
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return CR_OK;
    pcre2_get_error_message(rc, why, sizeof why);
    return cr_fail(err, CR_EFORMAT, "%s", (const char *)why);
}

const char *cr_pattern_group(const cr_pattern *p, const char *name, size_t *num_bytes)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(p->match);
    PCRE2_SPTR first, last;
    int size = pcre2_substring_nametable_scan(p->code, (PCRE2_SPTR)name, &first, &last);

    if (size < 0) return NULL;
    for (; first <= last; first += size) { /* (?J) gives one name to several groups */
        size_t group = (size_t)first[0] << 8 | first[1];
        if (group >= pcre2_get_ovector_count(p->match) || range[2 * group] == PCRE2_UNSET ||
            range[2 * group] > range[2 * group + 1])
            continue;
        *num_bytes = range[2 * group + 1] - range[2 * group];
        return p->text + range[2 * group];
    }
    return NULL;
}
