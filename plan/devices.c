/* devices.c -- see devices.h. */
#include "plan/devices.h"
#include "plan/gpu.h"
#include "samples/roles.h"

#include <string.h>

int64_t cr_plan_work_bytes(const cr_plan *p, const cr_plan_role *r)
{
    return p->is_gpu ? cr_gpu_peak(r) : cr_plan_peak(r);
}

int64_t cr_plan_min_bytes(const cr_plan *p, const cr_plan_role *r)
{
    const bool is_engine = !r->is_train && r->num_units == 0;
    int64_t max = 0;

    for (size_t i = 0; i < r->num_phases; i++) {
        const cr_plan_bytes *b = &r->phase[i].bytes;
        int64_t sum = b->masters + b->gradients + b->moments + b->values +
                      (is_engine ? b->kept - (p->is_gpu ? 0 : r->cache_bytes) : 0);
        if (sum > max) max = sum;
    }
    return max;
}

/* While another role works (phases.h): masters and moments stay where the device's memory is the host's, else they go there. */
static int64_t states_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    const cr_plan_bytes *b = &r->phase[0].bytes;

    if (w->task == CR_TASK_GENERATE) return w->engine.sleep_level > 1 ? 0 : b->values;
    return p->is_gpu ? 0 : b->masters + b->moments + b->values;
}

int64_t cr_plan_idle_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    if (r->is_judge) return cr_plan_work_bytes(p, r);
    return (p->is_gpu ? cr_gpu_idle_bytes(r) : 0) + states_bytes(p, r, w);
}

static bool is_shared(const cr_plan *p, size_t role)
{
    const cr_worker_config *own = p->worker[role];

    for (size_t r = 0; r < p->num_roles; r++)
        for (int i = 0; i < own->num_devices && r != role && !p->role[r].is_judge; i++)
            if (cr_plan_is_on(p->worker[r], own->devices[i])) return true;
    return false;
}

int64_t cr_plan_host_bytes(const cr_plan *p, size_t role)
{
    const cr_plan_role *r = &p->role[role];
    const cr_plan_bytes *b = &r->phase[0].bytes;

    if (!p->is_gpu || r->is_judge || p->worker[role]->task == CR_TASK_GENERATE ||
        !is_shared(p, role))
        return r->host_bytes;
    return r->host_bytes + b->masters + b->moments + b->values;
}

bool cr_plan_is_on(const cr_worker_config *w, int device)
{
    for (int i = 0; i < w->num_devices; i++)
        if (w->devices[i] == device) return true;
    return false;
}

static int num_devices(const cr_plan *p)
{
    int max = 0;

    for (size_t r = 0; r < p->num_roles; r++)
        for (int i = 0; i < p->worker[r]->num_devices; i++)
            if (p->worker[r]->devices[i] >= max) max = p->worker[r]->devices[i] + 1;
    return max;
}

/* The host of each device, judges on the first. Owned by the caller. */
static int *hosts_of_devices(const cr_plan *p, int num)
{
    int *host = CR_NEW_ARRAY(int, num + 1);
    cr_layout layout;

    cr_layout_init(&layout, &p->config);
    for (int r = 0; r < CR_NUM_ROLES && p->hosts.all_hosts; r++)
        for (int i = 0; i < layout.role[r].num; i++)
            host[layout.role[r].worker->devices[i]] = p->hosts.all_hosts[layout.role[r].first + i];
    return host;
}

/* What devices of one GPU have together, for each of them. */
static void add_up_gpus(const cr_plan *p, int64_t *bytes, int num)
{
    int *host = hosts_of_devices(p, num);
    int64_t *alone = CR_NEW_ARRAY(int64_t, num + 1);

    memcpy(alone, bytes, (size_t)num * sizeof *alone);
    for (int i = 0; i < num; i++)
        for (int k = 0; k < num; k++)
            if (k != i && (k - i) % p->num_gpus == 0 && host[k] == host[i]) bytes[i] += alone[k];
    cr_free(alone);
    cr_free(host);
}

/* Bytes of a role at work, and while another one works. */
typedef int64_t count(const cr_plan *p, const cr_plan_role *role, const cr_worker_config *w);

static int64_t work_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    (void)w;
    return cr_plan_work_bytes(p, r);
}

static int64_t min_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    (void)w;
    return cr_plan_min_bytes(p, r);
}

static int64_t min_idle_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    return r->is_judge ? cr_plan_min_bytes(p, r) : states_bytes(p, r, w);
}

static cr_plan_fullest_device fullest(const cr_plan *p, const cr_plan_role *train,
                                      const cr_worker_config *without, count *work, count *idle)
{
    const int num = num_devices(p);
    struct load {
        int64_t kept, extra; /* of the role that adds most when it works */
        size_t working;
    } *load = CR_NEW_ARRAY(struct load, num + 1);
    int64_t *bytes = CR_NEW_ARRAY(int64_t, num + 1);
    cr_plan_fullest_device out = {0, 0, -1, 0};

    for (size_t r = 0; r < p->num_roles; r++) {
        const cr_worker_config *w = p->worker[r];
        const cr_plan_role *role = r == 0 ? train : &p->role[r];
        int64_t kept = idle(p, role, w), extra = work(p, role, w) - kept;
        for (int i = 0; i < w->num_devices && w != without; i++) {
            struct load *at = &load[w->devices[i]];
            at->kept += kept;
            if (extra > at->extra) at->extra = extra, at->working = r;
        }
    }
    for (int i = 0; i < num; i++)
        bytes[i] = load[i].kept + load[i].extra;
    if (p->num_gpus) add_up_gpus(p, bytes, num);
    for (int i = 0; i < num; i++) {
        if (bytes[i] > out.bytes) out = (cr_plan_fullest_device){i, i, bytes[i], load[i].working};
        if (bytes[i] == out.bytes && i == out.last + 1 && load[i].working == out.working)
            out.last = i;
    }
    cr_free(bytes);
    cr_free(load);
    return out;
}

cr_plan_fullest_device cr_plan_fullest(const cr_plan *p, const cr_plan_role *train,
                                       const cr_worker_config *without)
{
    return fullest(p, train, without, work_bytes, cr_plan_idle_bytes);
}

cr_plan_fullest_device cr_plan_fullest_min(const cr_plan *p)
{
    return fullest(p, &p->role[0], NULL, min_bytes, min_idle_bytes);
}
