/* boxes.c -- see boxes.h. */
#include "rewards/vision/boxes.h"
#include "rewards/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const double cri_ious[CRI_NUM_IOUS] = {0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99};

/* ---- reading ---- */

/* `from` becomes `to` wherever it stands, from left to right, in text, which is replaced. */
static void replace(char **text, const char *from, const char *to)
{
    size_t n = strlen(from);
    cr_buf out = {0};
    const char *p = *text, *q;

    cr_buf_adds(&out, "");
    for (; (q = strstr(p, from)); p = q + n) {
        cr_buf_add(&out, p, (size_t)(q - p));
        cr_buf_adds(&out, to);
    }
    cr_buf_adds(&out, p);
    cr_free(*text);
    *text = out.data;
}

/* A list that was cut off ends after its last whole object. */
static void mend_end(char **text)
{
    size_t n = strlen(*text);
    char *last = NULL;

    if (n && (*text)[n - 1] == ']') return;
    for (char *p = *text; (p = strstr(p, "},")); p += 2)
        last = p;
    if (last) *last = 0;
    last = cr_asprintf("%s}]", *text);
    cr_free(*text);
    *text = last;
}

/* The text of a list as models write it, as JSON. Owned by the caller; NULL: it is missing or empty. */
static char *list_of(const char *plain)
{
    const char *start = strstr(plain, "<answer>"),
               *end = start ? strstr(start + 8, "</answer>") : NULL;
    char *inside = end ? cr_strndup(start + 8, (size_t)(end - start - 8)) : NULL, *text;
    size_t n = inside ? strlen(inside) : 0;
    const char *stripped = inside ? cri_text_strip(inside, &n) : NULL;

    if (!n) {
        cr_free(inside);
        return NULL;
    }
    text = cr_strndup(stripped, n);
    cr_free(inside);
    inside = cri_text_lower(text);
    cr_free(text);
    replace(&inside, "[[", "[");
    replace(&inside, "]]", "]");
    mend_end(&inside);
    replace(&inside, "'", "\"");
    replace(&inside, "\\", "");
    return inside;
}

/* false: the item is no box with a label. */
static bool read_box(const json_t *item, cri_box *out)
{
    const json_t *place = json_object_get(item, "bbox_2d");
    double x[4];

    out->label = json_string_value(json_object_get(item, "label"));
    if (!out->label || json_array_size(place) != 4) return false;
    for (size_t i = 0; i < 4; i++) {
        const json_t *v = json_array_get(place, i);
        x[i] = json_number_value(v);
        if (!json_is_number(v) || !(fabs(x[i]) <= CRI_MAX_COORDINATE)) return false;
    }
    out->x1 = x[0], out->y1 = x[1], out->x2 = x[2], out->y2 = x[3];
    return out->x1 <= out->x2 && out->y1 <= out->y2;
}

static bool is_same_place(const cri_box *a, const cri_box *b)
{
    return a->x1 == b->x1 && a->y1 == b->y1 && a->x2 == b->x2 && a->y2 == b->y2;
}

const char *cri_boxes_read(const char *plain, cri_boxes *out)
{
    char *list = list_of(plain);
    cr_err err = {0};

    *out = (cri_boxes){.root = NULL};
    if (!list) return "there is no <answer>..</answer> with a text";
    cr_note(cr_json_parse(list, strlen(list), NULL, &out->root, &err));
    cr_free(list);
    if (!json_is_array(out->root)) return "its <answer> is no list of JSON";
    out->box = CR_NEW_ARRAY(cri_box, CRI_MAX_BOXES);
    for (size_t i = 0; i < json_array_size(out->root) && out->num < CRI_MAX_BOXES; i++) {
        cri_box *box = &out->box[out->num];
        size_t k = 0;
        if (!read_box(json_array_get(out->root, i), box)) continue;
        while (k < out->num && !is_same_place(box, &out->box[k]))
            k++;
        out->num += k == out->num;
    }
    return out->num ? NULL : "no item of its <answer> has a label and a bbox_2d of four numbers";
}

void cri_boxes_free(cri_boxes *boxes)
{
    cr_free(boxes->box);
    json_decref(boxes->root);
    *boxes = (cri_boxes){.root = NULL};
}

void cri_boxes_scale(cri_boxes *boxes, double width, double height)
{
    for (size_t i = 0; i < boxes->num; i++) {
        cri_box *b = &boxes->box[i];
        b->x1 = trunc(b->x1 / width * 1000);
        b->y1 = trunc(b->y1 / height * 1000);
        b->x2 = trunc(b->x2 / width * 1000);
        b->y2 = trunc(b->y2 / height * 1000);
    }
}

/* ---- pairs ---- */

double cri_iou(const cri_box *a, const cri_box *b)
{
    double w = fmin(a->x2, b->x2) - fmax(a->x1, b->x1), h = fmin(a->y2, b->y2) - fmax(a->y1, b->y1);

    if (w <= 0 || h <= 0) return 0;
    return w * h / ((a->x2 - a->x1) * (a->y2 - a->y1) + (b->x2 - b->x1) * (b->y2 - b->y1) - w * h);
}

void cri_pair_labels_first(const cri_boxes *predicted, const cri_boxes *answer,
                           cri_pairs out[CRI_NUM_IOUS])
{
    bool *used = CR_NEW_ARRAY(bool, predicted->num);

    for (size_t t = 0; t < CRI_NUM_IOUS; t++) {
        out[t] = (cri_pairs){.num = 0};
        memset(used, 0, predicted->num * sizeof *used);
        for (size_t g = 0; g < answer->num; g++) {
            size_t best = predicted->num;
            double max = -1;
            for (size_t p = 0; p < predicted->num; p++) {
                double iou;
                if (used[p] || strcmp(predicted->box[p].label, answer->box[g].label) != 0) continue;
                iou = cri_iou(&predicted->box[p], &answer->box[g]);
                if (iou > max) max = iou, best = p;
            }
            if (max < cri_ious[t]) continue;
            used[best] = true;
            out[t].iou += max;
            out[t].num++;
        }
    }
    cr_free(used);
}

typedef struct pair {
    double iou;
    size_t predicted, answer;
} pair;

/* The largest first, of equal ones the first prediction's, then the first answer's. */
static int by_iou(const void *left, const void *right)
{
    const pair *a = left, *b = right;

    if (a->iou != b->iou) return a->iou > b->iou ? -1 : 1;
    if (a->predicted != b->predicted) return a->predicted < b->predicted ? -1 : 1;
    return a->answer < b->answer ? -1 : a->answer > b->answer;
}

void cri_pair_ious_first(const cri_boxes *predicted, const cri_boxes *answer,
                         cri_pairs out[CRI_NUM_IOUS])
{
    pair *all = CR_NEW_ARRAY(pair, predicted->num * answer->num);
    bool *used = CR_NEW_ARRAY(bool, predicted->num), *found = CR_NEW_ARRAY(bool, answer->num);
    size_t num = 0;

    memset(out, 0, CRI_NUM_IOUS * sizeof *out);
    for (size_t p = 0; p < predicted->num; p++)
        for (size_t g = 0; g < answer->num; g++) {
            all[num] = (pair){cri_iou(&predicted->box[p], &answer->box[g]), p, g};
            num += all[num].iou >= cri_ious[0];
        }
    qsort(all, num, sizeof *all, by_iou);
    for (size_t i = 0; i < num; i++) {
        const pair *q = &all[i];
        bool is_same;
        if (used[q->predicted] || found[q->answer]) continue;
        used[q->predicted] = found[q->answer] = true;
        is_same = strcmp(predicted->box[q->predicted].label, answer->box[q->answer].label) == 0;
        for (size_t t = 0; t < CRI_NUM_IOUS && q->iou >= cri_ious[t]; t++) {
            out[t].iou += is_same ? q->iou : 0;
            out[t].num++;
        }
    }
    cr_free(all);
    cr_free(used);
    cr_free(found);
}
