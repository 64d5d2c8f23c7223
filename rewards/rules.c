/* rules.c -- the table of rules (see rules.h). */
#include "rewards/rules.h"
#include "rewards/choice.h"
#include "rewards/code/cases.h"
#include "rewards/ifeval.h"
#include "rewards/math/math.h"
#include "rewards/terms/terms.h"
#include "rewards/vision/detection.h"
#include "rewards/vision/video_r1.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* those of terms last */
const char *const cr_rule_names[] = {"math_rule",    "ifeval",      "multiple_choice_boxed",
                                     "crossthinkqa", "general_val", "detection",
                                     "video_r1",     "format",      "length",
                                     "repetition",   NULL};

static void math_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold = cr_rule_text(a->row, "ground_truth"),
               *prompt = cr_rule_text(a->row, "prompt");

    if (!gold)
        cr_rule_error(out, "the row has no text ground_truth");
    else
        cr_math_rule(prompt ? prompt : "", a->response, a->response_bytes, gold, a->deadline_s,
                     a->explain, out);
}

bool cr_rule_has_ground_truth(cr_rule rule)
{
    return rule != cr_format_rule && rule != cr_length_rule && rule != cr_repetition_rule;
}

cr_rule cr_rule_find(const char *name)
{
    static const cr_rule rules[] = {
        math_rule,           cr_ifeval_rule,    cr_multiple_choice_rule, cr_crossthink_rule,
        cr_general_val_rule, cr_detection_rule, cr_video_r1_rule,        cr_format_rule,
        cr_length_rule,      cr_repetition_rule};

    for (size_t i = 0; cr_rule_names[i]; i++)
        if (strcmp(cr_rule_names[i], name) == 0) return rules[i];
    return NULL;
}

/* The shortest text that reads back as x. */
static json_t *text_of_number(const json_t *number)
{
    double x = json_number_value(number);
    char text[40];

    if (json_is_integer(number)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(number));
        return json_string(text);
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    return json_string(text);
}

/* Rows of ROLL's and verl's files have it in the column reward_model, an object or its JSON text, which becomes one. */
static json_t *ground_truth_of(json_t *row)
{
    json_t *gold = json_object_get(row, "ground_truth"),
           *model = json_object_get(row, "reward_model"), *read = NULL;
    const char *text = json_string_value(model);
    cr_err ignored = {0};

    if (text && text[strspn(text, " \t\r\n")] == '{' &&
        cr_json_parse_integers(text, json_string_length(model), NULL, CR_JSON_EXACT, &read,
                               &ignored) == CR_OK)
        json_object_set_new(row, "reward_model", read);
    model = json_object_get(json_object_get(row, "reward_model"), "ground_truth");
    return model && (!gold || json_is_null(gold)) ? model : gold;
}

cr_status cr_rule_take_ground_truth(json_t *row, cr_err *err)
{
    json_t *gold = ground_truth_of(row);

    if (cr_json_digits(gold)) {
        json_object_set_new(row, "ground_truth", json_string(cr_json_digits(gold)));
        return CR_OK;
    }
    if (json_is_string(gold)) {
        json_object_set(row, "ground_truth", gold);
        return CR_OK;
    }
    if (json_is_number(gold)) {
        json_object_set_new(row, "ground_truth", text_of_number(gold));
        return CR_OK;
    }
    return cr_fail(
        err, CR_EFORMAT,
        "the column ground_truth is %s (it needs the right answer, a text or a number; "
        "reward_model.ground_truth is read, too, and data_args.columns of a run takes it "
        "from another column)",
        !gold                ? "missing"
        : json_is_null(gold) ? "null"
                             : "neither text nor number");
}

cr_status cr_rule_check_row(const char *name, json_t *row, cr_err *err)
{
    const cr_rule rule = cr_rule_find(name);
    const char *gold;

    if (rule && !cr_rule_has_ground_truth(rule)) return CR_OK;
    if (strcmp(name, "reward_model") == 0) return CR_OK; /* it reads token ids alone */
    if (strcmp(name, "code") == 0) return cr_code_check_row(row, err);
    CR_TRY(cr_rule_take_ground_truth(row, err));
    gold = cr_rule_text(row, "ground_truth");
    if (!gold[strspn(gold, " \t\r\n")])
        return cr_fail(err, CR_EFORMAT,
                       "the column ground_truth is empty (it needs the right answer)");
    if (strcmp(name, "ifeval") == 0) return cr_ifeval_check_row(gold, err);
    if (strcmp(name, "llm_judge") == 0 || strcmp(name, "remote") == 0) return CR_OK;
    if (strcmp(name, "detection") == 0) return cr_detection_check_row(row, err);
    if (strcmp(name, "video_r1") == 0) return cr_video_r1_check_row(row, err);
    if (strcmp(name, "math_rule") != 0) CR_TRY(cr_choice_check_gold(gold, err));
    if (strcmp(name, "general_val") == 0) return cr_general_val_check_row(row, err);
    return CR_OK;
}

cr_status cr_rule_can_judge(const char *name, const json_t *row, cr_err *err)
{
    if (strcmp(name, "detection") == 0)
        return cr_detection_check_ground_truth(cr_rule_text(row, "ground_truth"), err);
    if (strcmp(name, "math_rule") != 0) return CR_OK;
    return cr_math_check_ground_truth(cr_rule_text(row, "ground_truth"), err);
}

static char *whole_response(const cr_rule_args *a)
{
    const char *text = a->response;
    size_t n = a->response_bytes;

    while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
        n--;
    while (n && strchr(" \t\r\n", *text) && *text)
        text++, n--;
    return n ? cr_strndup(text, n) : NULL;
}

char *cr_rule_answer(const char *rule, const cr_rule_args *a)
{
    const char *prompt = cr_rule_text(a->row, "prompt");

    if (!rule || (cr_rule_find(rule) && !cr_rule_has_ground_truth(cr_rule_find(rule))))
        return whole_response(a);
    if (strcmp(rule, "math_rule") == 0)
        return cr_math_answer(prompt ? prompt : "", a->response, a->response_bytes, a->deadline_s);
    if (strcmp(rule, "ifeval") == 0 || strcmp(rule, "llm_judge") == 0 ||
        strcmp(rule, "remote") == 0 || strcmp(rule, "code") == 0 ||
        strcmp(rule, "detection") == 0 || strcmp(rule, "reward_model") == 0)
        return whole_response(a);
    if (strcmp(rule, "video_r1") == 0) return cr_video_r1_answer(a->response, a->response_bytes);
    return cr_choice_answer(a->response, a->response_bytes);
}
