/* video_r1.c -- see video_r1.h. */
#include "rewards/vision/video_r1.h"
#include "rewards/text.h"
#include "rewards/vision/likeness.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the first <answer>..</answer>, else of the whole text, without white space around it. Owned by the caller. */
static char *answer_of(const char *plain)
{
    const char *start = strstr(plain, "<answer>"),
               *end = start ? strstr(start + 8, "</answer>") : NULL, *text;
    size_t n = end ? (size_t)(end - start - 8) : strlen(plain);

    text = cri_text_strip(end ? start + 8 : plain, &n);
    return cr_strndup(text, n);
}

char *cr_video_r1_answer(const char *response, size_t response_bytes)
{
    char *plain = cri_text_plain(response, response_bytes, CRI_REMOVE_IM_END),
         *answer = answer_of(plain);

    cr_free(plain);
    if (*answer) return answer;
    cr_free(answer);
    return NULL;
}

/* ---- kinds of questions: answers of plain texts, and how much they are worth; false: out of time ---- */

/* The character that is chosen: of the last \boxed{..}, or of the text; 0: none, or it begins a word. */
static uint32_t choice_of(const char *answer)
{
    const char *text = answer;
    size_t n = strlen(answer), at = 0;
    uint32_t c;

    for (const char *p = answer, *end; (p = strstr(p, "\\boxed{")); p = end) {
        end = strchr(p, '}');
        if (!end) break;
        text = p + 7;
        n = (size_t)(end - text);
    }
    text = cri_text_strip(text, &n);
    while (n && *text == '.')
        text++, n--;
    if (!n) return 0;
    c = cri_text_next(text, n, &at);
    return at < n && cri_is_word(cri_text_next(text, n, &at)) ? 0 : c;
}

static bool choice(const char *gold, const char *answer, double deadline_s, double *out)
{
    (void)deadline_s;
    *out = choice_of(answer) && choice_of(answer) == choice_of(gold);
    return true;
}

/* A decimal number; commas are left out. NAN: it is none, or not finite. */
static double number_of(const char *answer)
{
    char text[64], *end;
    size_t n = 0;
    double x;

    for (const char *p = answer; *p && n + 1 < sizeof text; p++)
        if (*p != ',') text[n++] = *p;
    text[n] = 0;
    if (!n || n + 1 == sizeof text || strspn(text, "+-.0123456789eE") != n) return (double)NAN;
    x = strtod(text, &end);
    return *end || !isfinite(x) ? (double)NAN : x;
}

static bool numerical(const char *gold, const char *answer, double deadline_s, double *out)
{
    double x = number_of(gold), y = number_of(answer);
    char a[330], b[330]; /* with two digits, as Python's round */

    (void)deadline_s;
    *out = 0;
    if (isnan(x) || isnan(y) || !strpbrk(gold, ".,") != !strpbrk(answer, ".,")) return true;
    snprintf(a, sizeof a, "%.2f", x);
    snprintf(b, sizeof b, "%.2f", y);
    *out = strtod(a, NULL) == strtod(b, NULL);
    return true;
}

static bool regression(const char *gold, const char *answer, double deadline_s, double *out)
{
    double x = number_of(gold), y = number_of(answer);

    (void)deadline_s;
    *out = isnan(x) || isnan(y) ? 0 : 1 - fmin(1, (fabs(y - x) + 1e-9) / (fabs(x) + 1e-9));
    return true;
}

static bool words(const char *gold, const char *answer, double deadline_s, double *out)
{
    bool is_in_time = cri_word_errors(gold, answer, deadline_s, out);

    *out = 1 - *out;
    return is_in_time;
}

static const struct kind {
    const char *name;
    bool (*score)(const char *gold, const char *answer, double deadline_s, double *out);
} kinds[] = {{"multiple choice", choice},
             {"numerical", numerical},
             {"regression", regression},
             {"OCR", words},
             {"free-form", cri_rouge}};

static const struct kind *kind_of(const json_t *row)
{
    const char *name = cr_rule_text(row, "problem_type");

    if (!name) name = cr_rule_text(row, "reward_model");
    for (size_t i = 0; name && i < CR_COUNT(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

cr_status cr_video_r1_check_row(const json_t *row, cr_err *err)
{
    const char *name = cr_rule_text(row, "problem_type"), *gold = cr_rule_text(row, "ground_truth");
    const struct kind *kind = kind_of(row);
    char *answer = answer_of(gold);

    if (!name) name = cr_rule_text(row, "reward_model");
    if (!kind)
        cr_fail(err, CR_EFORMAT,
                "the column problem_type is %s%.60s (multiple choice, numerical, regression, OCR "
                "and free-form are known)",
                name ? "" : "missing", name ? name : "");
    else if (kind->score == choice && !choice_of(answer))
        cr_fail(err, CR_EFORMAT, "the column ground_truth has no letter of a choice: %.100s", gold);
    else if ((kind->score == numerical || kind->score == regression) && isnan(number_of(answer)))
        cr_fail(err, CR_EFORMAT, "the column ground_truth is not a number: %.100s", gold);
    cr_free(answer);
    return err->status;
}

/* ---- the rule ---- */

/* The whole text is <think>..</think>, white space, <answer>..</answer>. */
static bool has_format(const char *plain)
{
    size_t n = strlen(plain);
    const char *end = plain + n - 9;

    if (n < 9 || strncmp(plain, "<think>", 7) != 0 || strcmp(end, "</answer>") != 0) return false;
    for (const char *p = plain + 7; (p = strstr(p, "</think>"));) {
        p += 8;
        size_t left = strlen(p), at = 0, start = 0;
        while (at < left && cri_is_space(cri_text_next(p, left, &at)))
            start = at;
        if (strncmp(p + start, "<answer>", 8) == 0 && p + start + 8 <= end) return true;
    }
    return false;
}

void cr_video_r1_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold = cr_rule_text(a->row, "ground_truth");
    const struct kind *kind = kind_of(a->row);
    char *plain, *wanted, *answer;
    double score;
    cr_err err = {0};
    bool is_in_time, is_formed;

    if (!gold)
        cr_fail(&err, CR_EFORMAT, "the row has no text ground_truth");
    else
        cr_note(cr_video_r1_check_row(a->row, &err));
    if (err.status != CR_OK || !kind) {
        cr_rule_error(out, "%.190s", err.msg);
        return;
    }
    plain = cri_text_plain(a->response, a->response_bytes, CRI_REMOVE_IM_END);
    answer = answer_of(plain);
    wanted = answer_of(gold);
    is_in_time = kind->score(wanted, answer, a->deadline_s, &score);
    is_formed = has_format(plain);
    cr_explain_text(a->explain, "found", answer, strlen(answer));
    cr_explain_text(a->explain, "wanted", wanted, strlen(wanted));
    cr_explain_value(a->explain, "format", json_boolean(is_formed));
    *out = (cr_rule_result){.score = is_in_time ? score : 0,
                            .reward = is_in_time ? score + is_formed : 0,
                            .outcome = is_in_time ? CR_OUTCOME_OK : CR_OUTCOME_TIMEOUT};
    if (!*answer) snprintf(out->detail, sizeof out->detail, CR_NO_ANSWER ": it is empty");
    if (!is_in_time) snprintf(out->detail, sizeof out->detail, "the texts are too long to compare");
    cr_free(plain);
    cr_free(answer);
    cr_free(wanted);
}
