/* choice.c -- see choice.h. */
#include "rewards/choice.h"
#include "rewards/terms/terms.h"
#include "rewards/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

typedef struct verdict {
    uint32_t letter; /* 0: none */
    bool is_right, is_boxed;
} verdict;

/* Content of the last \boxed{..} with at least one byte before the first }; NULL: none. */
static const char *last_box(const char *text, size_t *num_bytes)
{
    const char *best = NULL, *p = text;

    while ((p = strstr(p, "\\boxed{"))) {
        const char *start = p + 7, *end = strchr(start, '}');
        if (!end) break;
        p = end;
        if (end == start) continue;
        best = start;
        *num_bytes = (size_t)(end - start);
    }
    return best;
}

static const char *behind_answer_is(const char *text)
{
    const char *best = text;

    for (const char *p = text; *p; p++)
        if ((*p == 'a' || *p == 'A') && strncasecmp(p, "answer is", 9) == 0) best = p + 9;
    return best;
}

/* The first letter, as a capital: B of "B. two", "(b)". 0: no letter. */
static uint32_t letter_of(const char *gold)
{
    size_t n = strlen(gold);

    for (size_t at = 0; at < n;) {
        uint32_t c = (uint32_t)utf8proc_toupper((int32_t)cri_text_next(gold, n, &at));
        if (cri_is_upper(c)) return c;
    }
    return 0;
}

/* The first capital letter of the box, else of the text after "answer is"; 0: no letter. */
static uint32_t chosen_letter(const char *plain, json_t *explain, bool *is_boxed)
{
    const char *text = cri_text_after_think(plain), *where;
    size_t n = 0, at = 0;

    where = last_box(text, &n);
    *is_boxed = where != NULL;
    if (!where) {
        where = behind_answer_is(text);
        n = strlen(where);
    }
    cr_explain_format(explain, "looked_in", "%s",
                      *is_boxed       ? "the last \\boxed{..}"
                      : where != text ? "what follows \"answer is\""
                                      : "the response");
    while (at < n) {
        size_t start = at;
        uint32_t c = cri_text_next(where, n, &at);
        if (!cri_is_upper(c)) continue;
        cr_explain_found(explain, text, where + start, at - start);
        return c;
    }
    return 0;
}

static void explain_letter(json_t *explain, const char *key, uint32_t letter)
{
    char utf8[4];

    if (letter) cr_explain_text(explain, key, utf8, (size_t)cr_utf8_encode(letter, utf8));
}

static verdict judge(const char *plain, const char *gold, json_t *explain)
{
    verdict v;

    v.letter = chosen_letter(plain, explain, &v.is_boxed);
    v.is_right = v.letter && v.letter == letter_of(gold);
    explain_letter(explain, "letter", v.letter);
    explain_letter(explain, "right_letter", letter_of(gold));
    cr_explain_value(explain, "boxed", json_boolean(v.is_boxed));
    return v;
}

char *cr_choice_answer(const char *response, size_t response_bytes)
{
    char *plain = cri_text_plain(response, response_bytes, CRI_REMOVE_IM_END);
    bool is_boxed;
    uint32_t letter = chosen_letter(plain, NULL, &is_boxed);

    cr_free(plain);
    return letter ? cr_asprintf("%x", letter) : NULL;
}

cr_status cr_choice_check_gold(const char *gold, cr_err *err)
{
    if (letter_of(gold)) return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "the column ground_truth has no letter of a choice, as in \"B\": %.100s", gold);
}

/* The response's plain text, owned by the caller; NULL: the row cannot be judged, out says why. */
static char *prepare(const cr_rule_args *a, const char **gold, cr_rule_result *out)
{
    cr_err err = {0};

    *gold = cr_rule_text(a->row, "ground_truth");
    if (!*gold || !**gold) {
        cr_rule_error(out, "the row has no text ground_truth");
        return NULL;
    }
    if (cr_choice_check_gold(*gold, &err) != CR_OK) {
        cr_rule_error(out, "%.190s", err.msg);
        return NULL;
    }
    return cri_text_plain(a->response, a->response_bytes, CRI_REMOVE_IM_END);
}

static void answer(const verdict *v, bool is_right, double reward, cr_rule_result *out)
{
    *out = (cr_rule_result){.score = is_right, .reward = reward, .outcome = CR_OUTCOME_OK};
    if (!v->letter)
        snprintf(out->detail, sizeof out->detail, CR_NO_ANSWER ": there is no capital letter");
}

void cr_multiple_choice_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold;
    char *plain = prepare(a, &gold, out);
    verdict v;

    if (!plain) return;
    v = judge(plain, gold, a->explain);
    answer(&v, v.is_right && v.is_boxed, v.is_right && v.is_boxed, out);
    cr_free(plain);
}

void cr_crossthink_rule(const cr_rule_args *a, cr_rule_result *out)
{
    static const struct {
        const char *type;
        double value[2][2]; /* [is right][is boxed] */
    } table[] = {{"loose", {{-1, -1}, {1, 1}}},
                 {"soft", {{-1, -0.5}, {0.5, 1}}},
                 {"strict", {{-1, -1}, {-1, 1}}}};
    const char *gold;
    double penalty;
    char *plain;

    if (!cr_short_penalty(a, &penalty, out) || !(plain = prepare(a, &gold, out))) return;
    cr_rule_error(out,
                  "crossthinkqa needs reward_type loose, soft or strict, not %s (set it in a "
                  "domain and score with --config FILE)",
                  a->reward_type ? a->reward_type : "none");
    for (size_t i = 0; a->reward_type && i < CR_COUNT(table); i++)
        if (strcmp(a->reward_type, table[i].type) == 0) {
            verdict v = judge(plain, gold, a->explain);
            double value = table[i].value[v.is_right][v.is_boxed],
                   repetition = cri_text_repetition(plain, 3, -0.5);
            answer(&v, value > 0, value + repetition + penalty, out);
            cr_explain_format(a->explain, "reward", "%g of %s, %g of repetition, %g of the length",
                              value, table[i].type, repetition + 0.0, penalty + 0.0); /* no -0 */
        }
    cr_free(plain);
}

cr_status cr_general_val_check_row(const json_t *row, cr_err *err)
{
    static const char *const tags[] = {"ceval", "race_high", "mmlu_pro", "commonsense_qa"};
    const char *tag = cr_rule_text(row, "tag");

    for (size_t i = 0; tag && i < CR_COUNT(tags); i++)
        if (strcmp(tag, tags[i]) == 0) return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "general_val has the tags ceval, race_high, mmlu_pro and commonsense_qa, "
                   "not %.60s",
                   tag ? tag : "a row without one");
}

void cr_general_val_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold;
    char *plain = prepare(a, &gold, out);
    cr_err err = {0};
    verdict v;

    if (!plain) return;
    v = judge(plain, gold, a->explain);
    if (cr_general_val_check_row(a->row, &err) == CR_OK)
        answer(&v, v.is_right, v.is_right, out);
    else
        cr_rule_error(out, "%.190s", err.msg);
    cr_free(plain);
}
