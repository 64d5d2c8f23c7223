/* metrics.h -- the numbers of one step: a list of (name, value). Names are ROLL's; adding one twice is a broken
 * invariant. tracker.h writes them.
 */
#ifndef CR_METRICS_H
#define CR_METRICS_H

#include "base/base.h"

typedef struct cr_metrics {
    struct cr_metric {
        char name[160];
        double value;
    } * items; /* owned */
    size_t num, capacity;
} cr_metrics;

void cr_metrics_set(cr_metrics *m, double value, const char *name_fmt, ...) CR_PRINTF(3, 4);
const double *cr_metrics_get(const cr_metrics *m, const char *name); /* NULL: none */
/* NAME/mean, NAME/max, NAME/min of num values; nothing when num is 0. */
void cr_metrics_set_summary(cr_metrics *m, const char *name, const double *values, size_t num);
void cr_metrics_clear(cr_metrics *m);
void cr_metrics_free(cr_metrics *m);

#endif
