/* boxes.h -- bounding boxes of a text, and the scores by which two sets of them are compared.
 *
 * Scores are those of ROLL's DetectionRewardWorker (docs/rewards.md says where they differ); prediction and answer are
 * of one image. Threads: any.
 */
#ifndef CR_BOXES_H
#define CR_BOXES_H

#include "base/json.h"

/* Boxes read of one text: what is beyond makes every score 0 (0.6 to the power of a thousand). */
enum { CRI_MAX_BOXES = 2000, CRI_MAX_ANSWER_BOXES = 1000 };
/* A coordinate beyond is none. */
#define CRI_MAX_COORDINATE 1e9

typedef struct cri_box {
    double x1, y1, x2, y2;
    const char *label; /* of the list's root */
} cri_box;

typedef struct cri_boxes {
    cri_box *box;
    size_t num;
    json_t *root;
} cri_boxes;

/* The first <answer>..</answer> of a plain text (rewards/text.h): its boxes, each place once, labels in lower case.
 * Owned by the caller. NULL, or why it has no boxes. */
const char *cri_boxes_read(const char *plain, cri_boxes *out);
void cri_boxes_free(cri_boxes *boxes);
/* Whole pixels of an image of this size become thousandths of its sides, cut to whole ones. */
void cri_boxes_scale(cri_boxes *boxes, double width, double height);

double cri_iou(const cri_box *a, const cri_box *b);

/* The thresholds of an intersection over union that a pair needs: 0.50, 0.55 .. 0.95, 0.99. */
enum { CRI_NUM_IOUS = 11 };
extern const double cri_ious[CRI_NUM_IOUS];

/* At each threshold: the pairs and the sum of their intersections over unions, with 0 where labels differ. */
typedef struct cri_pairs {
    double iou;
    size_t num;
} cri_pairs;

/* Answers in their order: each takes the unused prediction of its label that covers it best. */
void cri_pair_labels_first(const cri_boxes *predicted, const cri_boxes *answer,
                           cri_pairs out[CRI_NUM_IOUS]);
/* The pair that covers each other best of all that are left, again and again, whatever its labels. */
void cri_pair_ious_first(const cri_boxes *predicted, const cri_boxes *answer,
                         cri_pairs out[CRI_NUM_IOUS]);

/* COCO's average precision with score 1 for each prediction, mean over the answer's labels. */
typedef struct cri_precision {
    double mean, at50, at75; /* over 0.50 .. 0.95 */
} cri_precision;
cri_precision cri_average_precision(const cri_boxes *predicted, const cri_boxes *answer);

#endif
