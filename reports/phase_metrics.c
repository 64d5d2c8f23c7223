/* phase_metrics.c -- see phase_metrics.h. */
#include "reports/phase_metrics.h"

#include <stdio.h>
#include <string.h>

static void put(cr_metrics *m, const char *name, double value, bool is_added)
{
    for (size_t i = 0; i < m->num; i++)
        if (strcmp(m->items[i].name, name) == 0) {
            m->items[i].value = is_added ? m->items[i].value + value : value;
            return;
        }
    cr_metrics_set(m, value, "%s", name);
}

void cr_phase_metrics(cr_metrics *m, const char *role, const char *name, const cr_record *reply)
{
    double seconds[CR_PHASE_PARTS];
    int64_t bytes[CR_PHASE_PARTS];
    char full[96];

    if (!cr_phase_read(reply, seconds, bytes)) return;
    for (int i = 0; i < CR_PHASE_PARTS; i++) {
        snprintf(full, sizeof full, "time/%s/%s/%s", role, name, cr_phase_seconds[i]);
        put(m, full, seconds[i], true);
        snprintf(full, sizeof full, "memory/%s/%s/%s/allocated", role, name, cr_phase_bytes[i]);
        if (i >= 2 || !cr_metrics_get(m, full)) put(m, full, (double)bytes[i] / 0x1p30, false);
    }
}
