/* score_line.c -- see score_line.h. */
#include "rewards/score_line.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void cr_score_answer(const json_t *row, const cr_rule_result *r, const char *error, cr_buf *out)
{
    cr_err ignored = {0};
    const json_t *id = json_object_get(row, "id");

    cr_buf_clear(out);
    cr_buf_adds(out, "{\"id\":");
    if (id)
        cr_note(cr_json_add_value(out, id, &ignored));
    else
        cr_buf_adds(out, "null");
    if (error) {
        cr_buf_adds(out, ",\"error\":");
        cr_json_add_string(out, error, strlen(error));
    } else {
        cr_buf_addf(out, ",\"score\":%.9g,\"reward\":%.17g,\"status\":\"%s\",\"detail\":", r->score,
                    r->reward, r->status);
        cr_json_add_string(out, r->detail, strlen(r->detail));
    }
    cr_buf_adds(out, "}\n");
}

/* The half of a surrogate pair at text[0 .. 5], an escape of JSON: 'h'igh, 'l'ow or 0. */
static char half_at(const char *text)
{
    if (text[0] != '\\' || text[1] != 'u' || (text[2] != 'd' && text[2] != 'D')) return 0;
    for (int i = 3; i < 6; i++)
        if (!isxdigit((unsigned char)text[i])) return 0;
    return text[3] < '8' ? 0 : strchr("89abAB", text[3]) ? 'h' : 'l';
}

/* What stands for no character is U+FFFD: half of a surrogate pair, which Python writes as it is, and NUL, at which
   a text would seem to end. */
static void mend_escapes(char *line, size_t n)
{
    for (size_t i = 0; i + 6 <= n; i++) {
        char half;
        if (line[i] != '\\') continue;
        if (memcmp(line + i, "\\u0000", 6) == 0) memcpy(line + i + 2, "fffd", 4);
        half = half_at(line + i);
        if (half == 'h' && i + 12 <= n && half_at(line + i + 6) == 'l')
            i += 11;
        else if (half)
            memcpy(line + i + 2, "fffd", 4);
        else
            i++; /* what is escaped may be a backslash */
    }
}

cr_status cr_score_row(char *line, size_t n, long number, json_t **row, cr_err *err)
{
    char what[40];

    *row = NULL;
    snprintf(what, sizeof what, "line %ld", number);
    mend_escapes(line, n);
    CR_TRY(cr_json_parse(line, n, what, row, err));
    if (!json_is_object(*row))
        return cr_fail(err, CR_EFORMAT, "%s: a row must be a JSON object", what);
    if (!json_is_string(json_object_get(*row, "response")))
        return cr_fail(err, CR_EFORMAT, "%s: the row has no text \"response\"", what);
    if (cr_rule_take_ground_truth(*row, err) == CR_OK) return CR_OK;
    return cr_fail_add(err, "%s", what);
}

bool cr_score_line(cr_rule rule, const cr_rule_args *settings, char *line, size_t n, long number,
                   cr_buf *out)
{
    json_t *row;
    cr_rule_result result = {0};
    cr_err err = {0};

    if (cr_score_row(line, n, number, &row, &err) == CR_OK) {
        const json_t *response = json_object_get(row, "response");
        cr_rule_args a = *settings;
        a.row = row;
        a.response = json_string_value(response);
        a.response_bytes = json_string_length(response);
        a.deadline_s += cr_now_s();
        rule(&a, &result);
    }
    cr_score_answer(row, &result, err.status == CR_OK ? NULL : err.msg, out);
    json_decref(row);
    return err.status == CR_OK;
}
