/* metrics.c -- see metrics.h. */
#include "reports/metrics.h"

#include <stdio.h>
#include <string.h>

void cr_metrics_set(cr_metrics *m, double value, const char *name_fmt, ...)
{
    struct cr_metric item = {.value = value};
    va_list ap;

    va_start(ap, name_fmt);
    vsnprintf(item.name, sizeof item.name, name_fmt, ap);
    va_end(ap);
    CR_CHECK(!cr_metrics_get(m, item.name), "metric %s is set twice", item.name);
    m->items = cr_grow(m->items, m->num, &m->capacity, sizeof *m->items);
    m->items[m->num++] = item;
}

const double *cr_metrics_get(const cr_metrics *m, const char *name)
{
    for (size_t i = 0; i < m->num; i++)
        if (strcmp(m->items[i].name, name) == 0) return &m->items[i].value;
    return NULL;
}

void cr_metrics_set_summary(cr_metrics *m, const char *name, const double *values, size_t num)
{
    double sum = 0, max, min;

    if (num == 0) return;
    max = min = values[0];
    for (size_t i = 0; i < num; i++) {
        sum += values[i];
        if (values[i] > max) max = values[i];
        if (values[i] < min) min = values[i];
    }
    cr_metrics_set(m, sum / (double)num, "%s/mean", name);
    cr_metrics_set(m, max, "%s/max", name);
    cr_metrics_set(m, min, "%s/min", name);
}

void cr_metrics_clear(cr_metrics *m)
{
    m->num = 0;
}

void cr_metrics_free(cr_metrics *m)
{
    cr_free(m->items);
    *m = (cr_metrics){0};
}
