/* score_line.c -- see score_line.h. */
#include "scorers/score_line.h"
#include "samples/outcome.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- paragraphs ---- */

/* A text in one line; control characters, which a terminal would obey, as U+FFFD. */
static void add_visible(cr_buf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int k = cr_utf8_decode(text + i, n - i, &c);
        if (text[i] == '\n')
            cr_buf_adds(out, "\u23ce");
        else if (k == 0 || c < 0x20 || (c >= 0x7f && c < 0xa0))
            cr_buf_adds(out, "\ufffd");
        else
            cr_buf_add(out, text + i, (size_t)k);
        i += k ? (size_t)k : 1;
    }
}

static void add_words(cr_buf *out, const json_t *value)
{
    cr_err ignored = {0};
    cr_buf text = {0};
    const char *key;
    json_t *v;
    size_t i;

    if (json_is_string(value)) {
        add_visible(out, json_string_value(value), json_string_length(value));
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, v)
        {
            add_visible(out, key, strlen(key));
            cr_buf_addc(out, ' ');
            add_words(out, v);
            cr_buf_adds(out, "   ");
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, v)
        {
            cr_buf_adds(out, json_is_object(v) ? "\n      " : i ? ", " : "");
            add_words(out, v);
        }
    } else if (json_is_real(value)) {
        cr_buf_addf(out, "%.4g", json_real_value(value));
    } else {
        cr_note(cr_json_add_value(&text, value, &ignored));
        cr_buf_adds(out, text.data ? text.data : "");
        cr_buf_free(&text);
    }
}

/* id 7: right (score 1, reward 1), and a line for each member of explain. */
static void add_paragraph(const json_t *row, const cr_rule_result *r, const json_t *explain,
                          const char *error, cr_buf *out)
{
    const json_t *id = json_object_get(row, "id");
    const char *why = error ? error : r->detail, *key;
    json_t *value;

    cr_buf_adds(out, "id ");
    if (id) add_words(out, id);
    if (error || r->outcome != CR_OUTCOME_OK)
        cr_buf_addf(out, ": %s", error ? "error" : cr_outcome_name(r->outcome));
    else
        cr_buf_addf(out, ": %s (score %.6g, reward %.6g)",
                    r->score == 1   ? "right"
                    : r->score == 0 ? "wrong"
                                    : "in part",
                    r->score, r->reward);
    cr_buf_addc(out, '\n');
    if (*why) {
        cr_buf_adds(out, "  detail         ");
        add_visible(out, why, strlen(why));
        cr_buf_addc(out, '\n');
    }
    json_object_foreach((json_t *)(uintptr_t)explain, key, value)
    {
        cr_buf name = {0};
        cr_buf_adds(&name, key);
        for (char *p = name.data; *p; p++)
            if (*p == '_') *p = ' ';
        cr_buf_addf(out, "  %-14s ", name.data);
        add_words(out, value);
        while (out->data[out->num_bytes - 1] == ' ')
            out->data[--out->num_bytes] = 0;
        cr_buf_addc(out, '\n');
        cr_buf_free(&name);
    }
}

/* ---- lines ---- */

void cr_score_answer(const json_t *row, const cr_rule_result *r, const json_t *explain,
                     cr_score_form form, const char *error, cr_buf *out)
{
    cr_err ignored = {0};
    const json_t *id = json_object_get(row, "id");

    cr_buf_clear(out);
    if (form == CR_SCORE_PARAGRAPH) {
        add_paragraph(row, r, explain, error, out);
        return;
    }
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
                    r->reward, cr_outcome_name(r->outcome));
        cr_json_add_string(out, r->detail, strlen(r->detail));
        if (form == CR_SCORE_EXPLAINED) {
            cr_buf_adds(out, ",\"explain\":");
            if (explain)
                cr_note(cr_json_add_value(out, explain, &ignored));
            else
                cr_buf_adds(out, "{}");
        }
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

/* What stands for no character is U+FFFD: half of a surrogate pair, which Python writes as it is, and, unless it is kept, NUL, at
   which a text would seem to end. */
static void mend_escapes(char *line, size_t n, bool keeps_nul)
{
    for (size_t i = 0; i + 6 <= n; i++) {
        char half;
        if (line[i] != '\\') continue;
        if (!keeps_nul && memcmp(line + i, "\\u0000", 6) == 0) memcpy(line + i + 2, "fffd", 4);
        half = half_at(line + i);
        if (half == 'h' && i + 12 <= n && half_at(line + i + 6) == 'l')
            i += 11;
        else if (half)
            memcpy(line + i + 2, "fffd", 4);
        else
            i++; /* what is escaped may be a backslash */
    }
}

static cr_status read_row(char *line, size_t n, long number, bool has_ground_truth, json_t **row,
                          cr_err *err)
{
    char what[40];

    *row = NULL;
    snprintf(what, sizeof what, "line %ld", number);
    mend_escapes(line, n, /*keeps_nul=*/!has_ground_truth);
    CR_TRY(cr_json_parse_integers(line, n, what, CR_JSON_EXACT, row, err));
    if (!json_is_object(*row))
        return cr_fail(err, CR_EFORMAT, "%s: a row must be a JSON object", what);
    if (!json_is_string(json_object_get(*row, "response")))
        return cr_fail(err, CR_EFORMAT, "%s: the row has no text \"response\"", what);
    if (!has_ground_truth || cr_rule_take_ground_truth(*row, err) == CR_OK) return CR_OK;
    return cr_fail_add(err, "%s", what);
}

cr_status cr_score_row(char *line, size_t n, long number, json_t **row, cr_err *err)
{
    return read_row(line, n, number, /*has_ground_truth=*/true, row, err);
}

cr_status cr_score_row_any(char *line, size_t n, long number, json_t **row, cr_err *err)
{
    return read_row(line, n, number, /*has_ground_truth=*/false, row, err);
}

bool cr_score_line(cr_rule rule, const cr_rule_args *settings, cr_score_form form, char *line,
                   size_t n, long number, cr_buf *out)
{
    json_t *explain = form == CR_SCORE_PLAIN ? NULL : json_object();
    json_t *row;
    cr_rule_result result = {0};
    cr_err err = {0};

    if (read_row(line, n, number, cr_rule_has_ground_truth(rule), &row, &err) == CR_OK) {
        const json_t *response = json_object_get(row, "response");
        cr_rule_args a = *settings;
        a.row = row;
        a.response = json_string_value(response);
        a.response_bytes = json_string_length(response);
        a.deadline_s += cr_now_s();
        a.explain = explain;
        rule(&a, &result);
    }
    cr_score_answer(row, &result, explain, form, err.status == CR_OK ? NULL : err.msg, out);
    json_decref(row);
    json_decref(explain);
    return err.status == CR_OK;
}
