/* devices.c -- see devices.h. */
#include "plan/devices.h"
#include "plan/gpu.h"

int64_t cr_plan_work_bytes(const cr_plan *p, const cr_plan_role *r)
{
    return p->is_gpu ? cr_gpu_peak(r) : cr_plan_peak(r);
}

/* phases.h, on a device that is the host. */
int64_t cr_plan_idle_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    const cr_plan_bytes *b = &r->phase[0].bytes;
    int64_t own = p->is_gpu ? cr_gpu_idle_bytes(r) : 0;

    if (r->is_judge) return cr_plan_work_bytes(p, r);
    return own + (w->engine.sleep_level > 1 ? 0 : b->masters + b->moments + b->values);
}

bool cr_plan_is_on(const cr_worker_config *w, int device)
{
    for (int i = 0; i < w->num_devices; i++)
        if (w->devices[i] == device) return true;
    return false;
}

static int num_devices(const cr_plan *p)
{
    int most = 0;

    for (size_t r = 0; r < p->num_roles; r++)
        for (int i = 0; i < p->worker[r]->num_devices; i++)
            if (p->worker[r]->devices[i] >= most) most = p->worker[r]->devices[i] + 1;
    return most;
}

cr_plan_fullest_device cr_plan_fullest(const cr_plan *p, const cr_plan_role *train,
                                       const cr_worker_config *without)
{
    const int num = num_devices(p);
    struct load {
        int64_t kept, extra; /* of the role that adds most when it works */
        size_t working;
    } *load = CR_NEW_ARRAY(struct load, num + 1);
    cr_plan_fullest_device out = {0, 0, -1, 0};

    for (size_t r = 0; r < p->num_roles; r++) {
        const cr_worker_config *w = p->worker[r];
        const cr_plan_role *role = r == 0 ? train : &p->role[r];
        int64_t kept = cr_plan_idle_bytes(p, role, w), extra = cr_plan_work_bytes(p, role) - kept;
        for (int i = 0; i < w->num_devices && w != without; i++) {
            struct load *at = &load[w->devices[i]];
            at->kept += kept;
            if (extra > at->extra) at->extra = extra, at->working = r;
        }
    }
    for (int i = 0; i < num; i++) {
        int64_t bytes = load[i].kept + load[i].extra;
        if (bytes > out.bytes) out = (cr_plan_fullest_device){i, i, bytes, load[i].working};
        if (bytes == out.bytes && i == out.last + 1 && load[i].working == out.working) out.last = i;
    }
    cr_free(load);
    return out;
}
