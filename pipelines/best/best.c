/* best.c -- see best.h. */
#include "pipelines/best/best.h"

#include <math.h>

cr_status cr_best_see(cr_best *b, const cr_best_keys *keys, const cr_metrics *m, const char *head,
                      int64_t step, bool is_counted, bool *is_new, cr_err *err)
{
    char *name = cr_asprintf("%s%s", head, keys->metric);
    const double *x = cr_metrics_get(m, name);
    bool is_better;

    *is_new = false;
    cr_free(name);
    if (!x || isnan(*x))
        return cr_fail(
            err, CR_ECONFIG,
            "metric_for_best_model: a validation has no number %s (val_correct/all/mean, "
            "val_score/all/mean, val_pass@2/all, .. are some: metrics.jsonl has all)",
            keys->metric);
    is_better = !b->has_value || (keys->is_greater_better ? *x > b->value : *x < b->value);
    if (is_counted)
        b->num_worse = is_better && (!b->has_value || fabs(*x - b->value) > keys->threshold)
                           ? 0
                           : b->num_worse + 1;
    if (!is_better) return CR_OK;
    *is_new = true;
    b->has_value = true;
    b->value = *x;
    b->step = step;
    return CR_OK;
}

bool cr_best_should_stop(const cr_best *b, const cr_best_keys *keys)
{
    return keys->metric && keys->patience > 0 && b->num_worse >= keys->patience;
}
