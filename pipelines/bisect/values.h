/* values.h -- where two values of JSON differ first (pipelines/ only). */
#ifndef CR_BISECT_VALUES_H
#define CR_BISECT_VALUES_H

#include "base/json.h"

enum { CRI_TEXT_BYTES = 80 };

/* A place in both values, and what is there: "absent" for what one of them does not have, long texts cut. */
typedef struct cri_difference {
    char path[256], a[CRI_TEXT_BYTES], b[CRI_TEXT_BYTES];
} cri_difference;

/* tolerance: numbers that are not integers may differ by this share of the larger one; 0: not at all. Arrays are compared
 * element by element, objects in the order of a, then what only b has. at->path is appended to, as ".member" and
 * "[index]"; a or b NULL: it is absent. False: they are equal, and *at is as it was. */
bool cri_values_differ(json_t *a, json_t *b, double tolerance, cri_difference *at);
/* Whether two numbers differ by more than the tolerance; NaN and infinity are equal to themselves alone. */
bool cri_numbers_differ(double a, double b, double tolerance);

/* Not clocks, nor what depends on the number of ranks, by what names of metrics begin with. */
bool cri_metric_is_compared(const char *name);

#endif
