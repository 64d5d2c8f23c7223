/* terms.c -- see terms.h. */
#include "rewards/terms/terms.h"
#include "base/pattern.h"
#include "rewards/text.h"

#include <math.h>
#include <string.h>

static void answer(bool is_fine, double reward, cr_rule_result *out)
{
    *out = (cr_rule_result){.score = is_fine, .reward = reward, .outcome = CR_OUTCOME_OK};
}

/* ---- format ---- */

/* The text after one tag: blanks, <name>, anything, </name>. NULL: it is not there, or a mark stands twice. */
static const char *after_tag(const char *text, const char *name)
{
    char *open = cr_asprintf("<%s>", name), *close = cr_asprintf("</%s>", name);
    const char *p = text + strspn(text, " \t\r\n"), *end = NULL;

    if (strncmp(p, open, strlen(open)) == 0) {
        p += strlen(open);
        end = strstr(p, close);
        if (end && (strstr(p, open) || strstr(end + 1, close))) end = NULL;
        if (end) end += strlen(close);
    }
    cr_free(open);
    cr_free(close);
    return end;
}

static bool has_tags(const char *text, const cr_reward_terms *t, json_t *explain)
{
    for (size_t i = 0; i < t->num_format_tags; i++) {
        text = after_tag(text, t->format_tags[i]);
        if (text) continue;
        cr_explain_format(explain, "format", "no <%s>..</%s> in its place, or not once",
                          t->format_tags[i], t->format_tags[i]);
        return false;
    }
    if (!text[strspn(text, " \t\r\n")]) return true;
    cr_explain_format(explain, "format", "text after </%s>",
                      t->format_tags[t->num_format_tags - 1]);
    return false;
}

static cr_status matches(const char *text, const char *format, json_t *explain, bool *is_found,
                         cr_err *err)
{
    char *whole = cr_asprintf(CR_FORMAT_WHOLE, format);
    cr_pattern *pattern = NULL;
    size_t at = 0;

    if (cr_pattern_open(whole, &pattern, err) == CR_OK)
        cr_note(cr_pattern_next(pattern, text, strlen(text), &at, is_found, err));
    cr_explain_format(explain, "format", "%s %s", *is_found ? "matched" : "not matched:", format);
    cr_pattern_close(pattern);
    cr_free(whole);
    return err->status;
}

void cr_format_rule(const cr_rule_args *a, cr_rule_result *out)
{
    static const char of_roll[] = "^<think>.*?</think>.*?<answer>.*?</answer>$";
    const cr_reward_terms *t = a->terms;
    const char *pattern = t && t->format_pattern ? t->format_pattern : of_roll;
    char *plain = cri_text_plain(a->response, a->response_bytes, CRI_REMOVE_IM_END);
    bool is_found = false;
    cr_err err = {0};

    if (t && t->num_format_tags)
        is_found = has_tags(plain, t, a->explain);
    else
        cr_note(matches(plain, pattern, a->explain, &is_found, &err));
    if (err.status == CR_OK)
        answer(is_found, is_found, out);
    else
        cr_rule_error(out, "format_pattern: %.170s", err.msg);
    cr_free(plain);
}

/* ---- length ---- */

static bool num_tokens(const cr_rule_args *a, const char *key, double *num, cr_rule_result *out)
{
    const json_t *tokens = json_object_get(a->row, "response_tokens");

    *num = json_number_value(tokens);
    if (json_is_integer(tokens)) return true;
    cr_rule_error(out, "%s needs the column response_tokens, the number of the response's tokens%s",
                  key, strcmp(key, "overlong_buffer") == 0 ? "" : " (or set it to 0)");
    return false;
}

bool cr_short_penalty(const cr_rule_args *a, double *penalty, cr_rule_result *out)
{
    double n;

    *penalty = 0;
    if (a->length_coef == 0) return true;
    if (!num_tokens(a, "response_length_penalty_coef", &n, out)) return false;
    *penalty = a->length_coef * (n < 100 ? -0.5 : n > 400 ? 0 : -0.5 * (400 - n) / 300);
    return true;
}

void cr_length_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const cr_reward_terms *t = a->terms;
    double reward, n, over;

    if (!cr_short_penalty(a, &reward, out)) return;
    if (t && t->overlong_tokens) {
        if (!num_tokens(a, "overlong_buffer", &n, out)) return;
        over = n - (double)(t->max_response_tokens - t->overlong_tokens);
        cr_explain_format(a->explain, "length", "%g tokens, %g of %lld from where it costs", n,
                          fmax(over, 0), (long long)t->overlong_tokens);
        reward -= t->overlong_factor * fmin(fmax(over / (double)t->overlong_tokens, 0), 1);
    } else if (a->length_coef == 0) {
        cr_rule_error(
            out,
            "length needs overlong_buffer or response_length_penalty_coef (set them in a domain "
            "and score with --config FILE)");
        return;
    }
    answer(reward == 0, reward, out);
}

/* ---- repetition ---- */

void cr_repetition_rule(const cr_rule_args *a, cr_rule_result *out)
{
    char *plain = cri_text_plain(a->response, a->response_bytes, CRI_REMOVE_IM_END);
    size_t n = a->terms ? (size_t)a->terms->repetition_n_grams : 3;
    double max = a->terms ? a->terms->repetition_max_penalty : -1,
           repeated = cri_text_repetition(plain, n, 1), reward = max * repeated + 0.0; /* no -0 */

    cr_explain_format(a->explain, "repetition", "%.4g of the %zu-grams have occurred before",
                      repeated, n);

    answer(reward == 0, reward, out);
    cr_free(plain);
}
