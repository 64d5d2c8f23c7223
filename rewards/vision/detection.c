/* detection.c -- see detection.h. */
#include "rewards/vision/detection.h"
#include "configs/configs.h"
#include "rewards/text.h"
#include "rewards/vision/boxes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of each box that is missing or too many. */
#define SIZE_PENALTY 0.6

/* det_reward_ratio: of the terms of the accuracy; completeness is a part of the first two. */
enum { LABEL_FIRST, IOU_FIRST, MAP, MAP50, MAP75, COMPLETENESS, NUM_RATIOS };
static const char *const ratio_names[NUM_RATIOS] = {
    "iou_max_label_first", "iou_max_iou_first", "map", "map50", "map75", "iou_completeness"};

typedef struct terms {
    double ratio[NUM_RATIOS];
    double accuracy_ratio, format_ratio;
    bool is_scaled; /* det_verifier_normalized */
} terms;

/* A member that is a number within 0 .. max; without one, or null, it is `standard`. */
static cr_status read_ratio(const json_t *object, const char *name, double standard, double max,
                            double *out, cr_err *err)
{
    const json_t *v = json_object_get(object, name);

    *out = json_is_number(v) ? json_number_value(v) : standard;
    if ((v && !json_is_number(v) && !json_is_null(v)) || !(*out >= 0 && *out <= max))
        return cr_fail(err, CR_EFORMAT, "the column reward_model: %s is not a number from 0 to %g",
                       name, max);
    return CR_OK;
}

static cr_status read_terms(const json_t *row, terms *out, cr_err *err)
{
    const json_t *model = json_object_get(row, "reward_model"),
                 *verifier = json_object_get(model, "verifier_parm"),
                 *ratios = json_object_get(verifier, "det_reward_ratio");
    double sum = 0;

    if (!json_is_object(ratios))
        return cr_fail(err, CR_EFORMAT,
                       "the column reward_model has no verifier_parm.det_reward_ratio, an object "
                       "of numbers (iou_max_label_first, iou_max_iou_first, iou_completeness, map, "
                       "map50, map75)");
    for (size_t i = 0; i < NUM_RATIOS; i++) {
        CR_TRY(read_ratio(ratios, ratio_names[i], 0, 1, &out->ratio[i], err));
        if (i != COMPLETENESS) sum += out->ratio[i];
    }
    if (!(sum > 0))
        return cr_fail(err, CR_EFORMAT,
                       "the column reward_model: all terms of det_reward_ratio are 0");
    CR_TRY(read_ratio(model, "accuracy_ratio", 1, 1e6, &out->accuracy_ratio, err));
    CR_TRY(read_ratio(model, "format_ratio", 0.1, 1e6, &out->format_ratio, err));
    if (!(out->accuracy_ratio + out->format_ratio > 0))
        return cr_fail(err, CR_EFORMAT,
                       "the column reward_model: accuracy_ratio and format_ratio are 0");
    out->is_scaled = json_is_true(json_object_get(verifier, "det_verifier_normalized"));
    return CR_OK;
}

cr_status cr_detection_check_row(const json_t *row, cr_err *err)
{
    terms ignored;

    return read_terms(row, &ignored, err);
}

/* Boxes that are compared; *why: there are none. */
static cri_boxes boxes_of(const char *text, size_t num_bytes, const char **why)
{
    char *plain = cri_text_plain(text, num_bytes, CRI_REMOVE_IM_END);
    cri_boxes out;

    *why = cri_boxes_read(plain, &out);
    cr_free(plain);
    return out;
}

cr_status cr_detection_check_ground_truth(const char *gold, cr_err *err)
{
    const char *why;
    cri_boxes boxes = boxes_of(gold, strlen(gold), &why);

    if (why)
        cr_fail(err, CR_EFORMAT, "the column ground_truth has no boxes: %s", why);
    else if (boxes.num > CRI_MAX_ANSWER_BOXES)
        cr_fail(err, CR_EFORMAT, "the column ground_truth has more than %d boxes",
                CRI_MAX_ANSWER_BOXES);
    cri_boxes_free(&boxes);
    return err->status;
}

/* Predictions in pixels, as Qwen2.5-VL gives them, against answers in thousandths. */
static cr_status scale(const json_t *row, cri_boxes *predicted, cr_err *err)
{
    const char *model_type = cr_rule_text(row, "model_type");
    const json_t *size = json_array_get(json_object_get(row, "image_sizes"), 0);
    double height = json_number_value(json_array_get(size, 0)),
           width = json_number_value(json_array_get(size, 1));

    if (!model_type)
        return cr_fail(err, CR_EFORMAT,
                       "det_verifier_normalized needs model_type, the name of the model's kind "
                       "(boxes of qwen2_5_vl are in pixels of the resized image)");
    if (strncmp(model_type, "qwen2_5", 7) != 0) return CR_OK;
    if (!(height >= 1 && width >= 1))
        return cr_fail(err, CR_EFORMAT,
                       "det_verifier_normalized with %.40s needs image_sizes, [[height, width]] of "
                       "the image as the model sees it",
                       model_type);
    cri_boxes_scale(predicted, width, height);
    return CR_OK;
}

/* ---- terms ---- */

/* Which threshold: its index, or CRI_NUM_IOUS for the mean over all. */
static cr_status find_threshold(const cr_rule_args *a, size_t *out, cr_err *err)
{
    const cr_reward_terms *t = a->terms;
    const json_t *step = json_object_get(a->row, "step");
    double part;

    *out = CRI_NUM_IOUS;
    if (!t || t->iou_threshold == CR_IOU_AVERAGE) return CR_OK;
    if (t->iou_threshold != CR_IOU_DYNAMIC) {
        *out = (size_t)(t->iou_threshold - CR_IOU_FIRST);
        return CR_OK;
    }
    if (!json_is_integer(step))
        return cr_fail(err, CR_EFORMAT, "det_iou_threshold: dynamic needs the member step");
    part = json_number_value(step) / (double)t->num_steps;
    *out = part <= 0.1 ? 7 : part <= 0.25 ? 9 : 10; /* 0.85, 0.95, 0.99 */
    return CR_OK;
}

static double score_of_pairs(const cri_pairs *at, size_t predicted, size_t answer,
                             double completeness)
{
    double num = (double)at->num, miss = ((double)answer - num) / (double)answer,
           wrong = ((double)predicted - num) / (double)predicted;

    return (1 - completeness) * at->iou / (double)answer + completeness * (1 - (miss + wrong) / 2);
}

static double score_of_all(const cri_pairs at[CRI_NUM_IOUS], size_t predicted, size_t answer,
                           double completeness, size_t threshold)
{
    double sum = 0;

    if (threshold < CRI_NUM_IOUS)
        return score_of_pairs(&at[threshold], predicted, answer, completeness);
    for (size_t t = 0; t < CRI_NUM_IOUS; t++)
        sum += score_of_pairs(&at[t], predicted, answer, completeness);
    return sum / CRI_NUM_IOUS;
}

static double accuracy_of(const cri_boxes *predicted, const cri_boxes *answer, const terms *t,
                          size_t threshold, json_t *explain)
{
    const double difference = fabs((double)predicted->num - (double)answer->num),
                 size = pow(SIZE_PENALTY, difference);
    double term[COMPLETENESS], sum = 0, all = 0;
    cri_pairs pairs[CRI_NUM_IOUS];
    cri_precision precision = cri_average_precision(predicted, answer);

    cri_pair_labels_first(predicted, answer, pairs);
    term[LABEL_FIRST] =
        score_of_all(pairs, predicted->num, answer->num, t->ratio[COMPLETENESS], threshold);
    cri_pair_ious_first(predicted, answer, pairs);
    term[IOU_FIRST] =
        score_of_all(pairs, predicted->num, answer->num, t->ratio[COMPLETENESS], threshold);
    term[MAP] = precision.mean;
    term[MAP50] = precision.at50;
    term[MAP75] = precision.at75;
    cr_explain_format(explain, "boxes", "%zu, wanted %zu: times %.4g", predicted->num, answer->num,
                      size);
    for (size_t i = 0; i < COMPLETENESS; i++) {
        sum += t->ratio[i] * term[i] * size;
        all += t->ratio[i];
        cr_explain_format(explain, ratio_names[i], "%.6g (weight %g)", term[i], t->ratio[i]);
    }
    return sum / all;
}

static size_t count(const char *text, const char *part)
{
    size_t num = 0;

    for (; (text = strstr(text, part)); text += strlen(part))
        num++;
    return num;
}

/* Its boxes are those of the response's list, which is there. */
static bool has_format(const cr_rule_args *a)
{
    char *plain = cri_text_plain(a->response, a->response_bytes, CRI_REMOVE_IM_END);
    bool is_there = strstr(plain, "\n<answer>\n") && count(plain, "\n</answer>") == 1;

    cr_free(plain);
    return is_there;
}

void cr_detection_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold = cr_rule_text(a->row, "ground_truth"), *why = NULL, *none = NULL;
    cri_boxes predicted = {0}, answer = {0};
    double accuracy = 0, format = 0;
    size_t threshold = 0;
    terms t;
    cr_err err = {0};

    if (!gold) cr_fail(&err, CR_EFORMAT, "the row has no text ground_truth");
    if (err.status == CR_OK && read_terms(a->row, &t, &err) == CR_OK &&
        find_threshold(a, &threshold, &err) == CR_OK &&
        cr_detection_check_ground_truth(gold, &err) == CR_OK) {
        answer = boxes_of(gold, strlen(gold), &why);
        predicted = boxes_of(a->response, a->response_bytes, &none);
        if (t.is_scaled && !none) cr_note(scale(a->row, &predicted, &err));
    }
    if (err.status == CR_OK && !none) {
        accuracy = accuracy_of(&predicted, &answer, &t, threshold, a->explain);
        format = has_format(a);
        cr_explain_value(a->explain, "format", json_boolean(format == 1));
    }
    cri_boxes_free(&predicted);
    cri_boxes_free(&answer);
    if (err.status != CR_OK) {
        cr_rule_error(out, "%.190s", err.msg);
        return;
    }
    *out = (cr_rule_result){.score = accuracy,
                            .reward = (accuracy * t.accuracy_ratio + format * t.format_ratio) /
                                      (t.accuracy_ratio + t.format_ratio),
                            .outcome = CR_OUTCOME_OK};
    if (none) snprintf(out->detail, sizeof out->detail, CR_NO_ANSWER ": %s", none);
}
