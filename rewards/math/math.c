/* math.c -- see math.h. */
#include "rewards/math/math.h"
#include "rewards/math/math_impl.h"
#include "rewards/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define UNREADABLE "the ground truth cannot be read as mathematics"

/* Where the answer is looked for; NULL: the think tags are not as they should be. */
static char *region_of(const char *text, const char *prompt, json_t *explain)
{
    static const char open[] = "<think>", close[] = "</think>";
    size_t n = strlen(prompt), k;
    const char *tag = strstr(text, close), *start = text, *p;
    char *out;

    while (n && prompt[n - 1] == '\n')
        n--;
    bool is_thinking = n >= 7 && memcmp(prompt + n - 7, open, 7) == 0;
    if (tag && strstr(tag + 1, close)) return NULL;
    if (strstr(!is_thinking && strncmp(text, open, 7) == 0 ? text + 7 : text, open)) return NULL;
    if (tag) start = tag + 8;
    for (p = start; !tag && (p = strstr(p, "\n\n")); p++)
        start = p + 2;
    cr_explain_format(explain, "looked_in", "%s",
                      tag             ? "what comes after </think>"
                      : start == text ? "the response"
                                      : "the last paragraph");
    while (isspace((unsigned char)*start))
        start++;
    k = strlen(start);
    while (k && isspace((unsigned char)start[k - 1]))
        k--;
    out = cr_strndup(start, k);
    return out;
}

/* LaTeX as a whole, else a formula in it: of what cannot be read no number is taken. */
static cri_math *read_answer(cri_question *q, const char *text)
{
    char *clean;
    cri_math *m = NULL;

    if (strlen(text) > CRI_MATH_MAX_BYTES) {
        q->trouble = "the answer is too long";
        return NULL;
    }
    clean = cri_math_clean(text);
    if (*clean) m = cri_math_amount(q, text);
    if (*clean && !m) m = cri_math_parse(q, clean);
    if (*clean && !m && !q->trouble) m = cri_math_find(q, text, /*formulas_only=*/true);
    cr_free(clean);
    return m;
}

/* Past spaces; those between two letters or digits count as one character, a space. */
static char next_character(const char *start, const char **at)
{
    const char *s = *at + strspn(*at, " ");
    const bool is_gap =
        s > *at && *at > start && isalnum((unsigned char)(*at)[-1]) && isalnum((unsigned char)*s);

    *at = is_gap || !*s ? s : s + 1;
    return is_gap ? ' ' : *s;
}

static bool is_same_text(const char *a, const char *b)
{
    const char *p = a, *q = b;
    char c;

    do {
        c = next_character(a, &p);
        if (c != next_character(b, &q)) return false;
    } while (c);
    return true;
}

/* A box as it is found: its content may be that of several in a row. */
static void explain_box(json_t *explain, const char *region, const char *box)
{
    const char *at = NULL;

    for (const char *p = region; explain && (p = strstr(p, "\\boxed")); p++)
        at = p;
    if (at) at = strstr(at, box);
    if (at)
        cr_explain_found(explain, region, at, strlen(box));
    else
        cr_explain_text(explain, "found", box, strlen(box));
    cr_explain_format(explain, "by", "the last \\boxed{..}");
}

/* Of "x = 5" the 5. */
static const cri_math *right_side(const cri_math *m)
{
    bool is_assigned = m && m->kind == CRI_REL && m->num_args == 2 && strcmp(m->text, "=") == 0 &&
                       m->arg[0]->kind == CRI_SYM;

    return is_assigned ? m->arg[1] : m;
}

/* Both sides as they are read; looking at them has no part in the verdict. */
static void explain_sides(const cri_question *q, const cri_math *answer, const cri_math *right,
                          json_t *explain)
{
    enum { MAX_S = 1 };
    cri_question other = {.arena = q->arena, .deadline_s = cr_now_s() + MAX_S};

    if (!explain) return;
    if (answer) cri_math_explain(&other, answer, right_side(answer), "answer", explain);
    if (right) cri_math_explain(&other, right, right_side(right), "ground_truth", explain);
}

static void judge(cri_question *q, const char *region, const char *gold, json_t *explain,
                  cr_rule_result *out)
{
    char *box = cri_math_last_box(region);
    cri_math *answer, *right;

    *out = (cr_rule_result){.outcome = CR_OUTCOME_OK};
    if (box) explain_box(explain, region, box);
    if (box && is_same_text(box, gold) && *gold) {
        out->score = out->reward = 1;
        cr_explain_format(explain, "compared", "as text: they are the same");
        cr_free(box);
        return;
    }
    q->explain = explain;
    answer = box       ? read_answer(q, box)
             : *region ? cri_math_find(q, region, /*formulas_only=*/false)
                       : NULL;
    q->explain = NULL;
    right = read_answer(q, gold);
    if (!right && !q->trouble && !q->is_late)
        cr_rule_error(out, UNREADABLE ": %.100s", gold);
    else if (!answer && box)
        snprintf(out->detail, sizeof out->detail,
                 "the answer in \\boxed cannot be read as mathematics: %.100s", box);
    else if (!answer)
        snprintf(out->detail, sizeof out->detail, CR_NO_ANSWER " was found in the response");
    else if ((cri_math_equal(q, right, answer) || cri_math_equal_renamed(q, right, answer)) &&
             !q->trouble && !q->is_late)
        out->score = out->reward = 1;
    explain_sides(q, answer, right, explain);
    cr_free(box);
}

void cr_math_rule(const char *prompt, const char *response, size_t response_bytes,
                  const char *ground_truth, double deadline_s, json_t *explain, cr_rule_result *out)
{
    cri_question q = {.deadline_s = deadline_s};
    char *text = cri_text_plain(response, response_bytes, CRI_KEEP_IM_END);
    char *region = region_of(text, prompt, explain);

    if (!region) {
        *out = (cr_rule_result){.outcome = CR_OUTCOME_OK};
        snprintf(out->detail, sizeof out->detail, "think tags are not in their place");
    } else {
        q.arena = cr_arena_create(1 << 16);
        judge(&q, region, ground_truth, explain, out);
        if (q.is_late) {
            cr_rule_error(out, "the deadline passed while the answer was judged");
            out->outcome = CR_OUTCOME_TIMEOUT;
        } else if (q.trouble) {
            cr_rule_error(out, "%s", q.trouble);
        }
        cr_arena_destroy(q.arena);
    }
    cr_free(region);
    cr_free(text);
}

cr_status cr_math_check_ground_truth(const char *ground_truth, cr_err *err)
{
    enum { MAX_S = 5 };
    cri_question q = {.deadline_s = cr_now_s() + MAX_S, .arena = cr_arena_create(1 << 14)};
    const cri_math *m = read_answer(&q, ground_truth);

    if (!m || q.trouble)
        cr_fail(err, CR_EFORMAT, "%s: %.100s", q.trouble ? q.trouble : UNREADABLE, ground_truth);
    cr_arena_destroy(q.arena);
    return err->status;
}

char *cr_math_answer(const char *prompt, const char *response, size_t response_bytes,
                     double deadline_s)
{
    cri_question q = {.deadline_s = deadline_s, .arena = cr_arena_create(1 << 16)};
    char *text = cri_text_plain(response, response_bytes, CRI_KEEP_IM_END),
         *region = region_of(text, prompt, NULL), *box = region ? cri_math_last_box(region) : NULL,
         *out = NULL;
    const cri_math *m = box      ? read_answer(&q, box)
                        : region ? cri_math_find(&q, region, /*formulas_only=*/false)
                                 : NULL;

    m = right_side(m);
    if (m && cri_math_is_expression(m)) {
        cri_math_value v = cri_math_eval(&q, m, 1);
        if (v.has_field && !v.is_undefined)
            out = cr_asprintf("=%016llx%016llx", (unsigned long long)v.field[0],
                              (unsigned long long)v.field[1]);
    }
    if (!out && box && strlen(box) <= CRI_MATH_MAX_BYTES) {
        char *to = out = cri_math_clean(box);
        for (const char *from = out; *from; from++)
            if (*from != ' ') *to++ = *from;
        *to = 0;
    }
    cr_free(box);
    cr_free(region);
    cr_free(text);
    cr_arena_destroy(q.arena);
    return out;
}
