/* phases.c -- see phases.h. */
#include "actors/phases.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

bool cr_phase_is_shared(const cr_layout *layout, cr_role role)
{
    const cr_worker_config *mine = layout->role[role].worker, *other;

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        other = layout->role[r].worker;
        if (r == (int)role || !mine || !other) continue;
        for (int i = 0; i < mine->num_devices; i++)
            for (int k = 0; k < other->num_devices; k++)
                if (mine->devices[i] == other->devices[k]) return true;
    }
    return false;
}

unsigned cr_phase_states(const cr_device *dev, unsigned states)
{
    bool is_host = strcmp(cr_device_name(dev), "cpu") == 0;

    return is_host ? states & (CR_STATE_BUFFERS | CR_STATE_GRADS) : states;
}

void cr_phase_trim(cr_device *dev)
{
    cr_device_drop_scratch(dev);
    malloc_trim(0);
}

static const char *const seconds[] = {"total", "onload", "execute", "offload"};
static const char *const places[] = {"start/offload", "start/onload", "end/onload", "end/offload"};

void cr_phase_report(const cr_phase_cycle *p, cr_record *reply)
{
    double end = cr_now_s(), spent[] = {end - p->began_s, p->loaded_s - p->began_s,
                                        p->done_s - p->loaded_s, end - p->done_s};

    for (size_t i = 0; i < CR_COUNT(seconds); i++) {
        cr_record_set_real(reply, seconds[i], spent[i]);
        cr_record_set_int(reply, places[i], p->bytes[i]);
    }
}

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
    char full[96];
    cr_err absent = {0};
    double x;
    int64_t bytes;

    for (size_t i = 0; i < CR_COUNT(seconds); i++) {
        if (!cr_record_has_value(reply, seconds[i]) ||
            cr_record_get_real(reply, seconds[i], &x, &absent) != CR_OK ||
            cr_record_get_int(reply, places[i], &bytes, &absent) != CR_OK)
            return;
        snprintf(full, sizeof full, "time/%s/%s/%s", role, name, seconds[i]);
        put(m, full, x, true);
        snprintf(full, sizeof full, "memory/%s/%s/%s/allocated", role, name, places[i]);
        if (i >= 2 || !cr_metrics_get(m, full)) put(m, full, (double)bytes / 0x1p30, false);
    }
}
