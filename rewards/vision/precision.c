/* precision.c -- average precision as COCO's evaluation has it, of one image (see boxes.h). */
#include "rewards/vision/boxes.h"

#include <string.h>

/* Predictions of one label that COCO looks at, its thresholds, and its points of recall. */
enum { MAX_PREDICTED = 100, NUM_IOUS = 10, NUM_RECALLS = 101 };

/* The boxes of one label in their order. */
typedef struct labelled {
    const cri_box **predicted, **answer;
    size_t num_predicted, num_answer;
} labelled;

static void take_label(const cri_boxes *predicted, const cri_boxes *answer, const char *label,
                       labelled *out)
{
    out->num_predicted = out->num_answer = 0;
    for (size_t i = 0; i < predicted->num && out->num_predicted < MAX_PREDICTED; i++)
        if (strcmp(predicted->box[i].label, label) == 0)
            out->predicted[out->num_predicted++] = &predicted->box[i];
    for (size_t i = 0; i < answer->num; i++)
        if (strcmp(answer->box[i].label, label) == 0)
            out->answer[out->num_answer++] = &answer->box[i];
}

/* is_right[i]: prediction i has an answer of its own: of those that it covers best the last one. */
static void find_right(const labelled *l, double threshold, bool *is_found, bool *is_right)
{
    memset(is_found, 0, l->num_answer * sizeof *is_found);
    for (size_t p = 0; p < l->num_predicted; p++) {
        size_t best = l->num_answer;
        double max = threshold;
        for (size_t g = 0; g < l->num_answer; g++) {
            double iou = is_found[g] ? -1 : cri_iou(l->predicted[p], l->answer[g]);
            if (iou >= max) max = iou, best = g;
        }
        is_right[p] = best < l->num_answer;
        if (is_right[p]) is_found[best] = true;
    }
}

/* The mean over points of recall of the largest precision at this recall or a higher one. */
static double precision_at(const bool *is_right, size_t num_predicted, size_t num_answer)
{
    double precision[MAX_PREDICTED], recall[MAX_PREDICTED], sum = 0;
    size_t right = 0, at = 0;

    for (size_t p = 0; p < num_predicted; p++) {
        right += is_right[p];
        precision[p] = (double)right / (double)(p + 1);
        recall[p] = (double)right / (double)num_answer;
    }
    for (size_t p = num_predicted; p-- > 1;)
        if (precision[p] > precision[p - 1]) precision[p - 1] = precision[p];
    for (size_t r = 0; r < NUM_RECALLS; r++) {
        while (at < num_predicted && recall[at] < (double)r * 0.01) /* as numpy.linspace */
            at++;
        sum += at < num_predicted ? precision[at] : 0;
    }
    return sum / NUM_RECALLS;
}

static bool is_first_of_label(const cri_boxes *boxes, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(boxes->box[k].label, boxes->box[i].label) == 0) return false;
    return true;
}

cri_precision cri_average_precision(const cri_boxes *predicted, const cri_boxes *answer)
{
    labelled l = {.predicted = CR_NEW_ARRAY(const cri_box *, MAX_PREDICTED),
                  .answer = CR_NEW_ARRAY(const cri_box *, answer->num)};
    bool is_right[MAX_PREDICTED], *is_found = CR_NEW_ARRAY(bool, answer->num);
    double sum[NUM_IOUS] = {0}, num_labels = 0, all = 0;

    for (size_t i = 0; i < answer->num; i++) {
        if (!is_first_of_label(answer, i)) continue;
        take_label(predicted, answer, answer->box[i].label, &l);
        num_labels++;
        for (size_t t = 0; t < NUM_IOUS; t++) {
            find_right(&l, cri_ious[t], is_found, is_right);
            sum[t] += precision_at(is_right, l.num_predicted, l.num_answer);
        }
    }
    cr_free(l.predicted);
    cr_free(l.answer);
    cr_free(is_found);
    for (size_t t = 0; t < NUM_IOUS; t++)
        all += sum[t];
    return (cri_precision){all / (NUM_IOUS * num_labels), sum[0] / num_labels, sum[5] / num_labels};
}
