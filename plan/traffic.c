/* traffic.c -- see traffic.h. */
#include "plan/traffic.h"

#include <math.h>

const char *const cr_flow_names[CR_NUM_FLOWS] = {"gathers", "reductions", "replicas", "exchanges",
                                                 "small"};

/* Above this many comparisons of ranks over all hosts, only the first two hosts and the last one are counted. */
static const double max_work = 1e6;

static cr_flow flow_of(const cr_link_call *call)
{
    switch (call->coll) {
    case CR_COLL_ALL_GATHER:
        return CR_FLOW_GATHERS;
    case CR_COLL_REDUCE_SCATTER:
        return CR_FLOW_REDUCTIONS;
    case CR_COLL_ALL_REDUCE:
        return call->elem_bytes == sizeof(float) ? CR_FLOW_REPLICAS : CR_FLOW_SMALL;
    case CR_COLL_ALL_TO_ALL:
        return CR_FLOW_EXCHANGES;
    default:
        return CR_FLOW_SMALL;
    }
}

/* ---- one call of one group ---- */

typedef struct part { /* of a group: n ranks, m of them on this host */
    double bytes, n, m;
} part;

static double inside(cr_flow flow, part p, double into)
{
    switch (flow) {
    case CR_FLOW_GATHERS:
        return p.m * p.bytes * (p.n - 1) / p.n - into;
    case CR_FLOW_REDUCTIONS:
        return (p.m - 1) * p.bytes;
    case CR_FLOW_REPLICAS:
        return 2 * (p.m - 1) * p.bytes;
    case CR_FLOW_EXCHANGES:
        return p.m * (p.m - 1) * p.bytes / (p.n - 1);
    default:
        return 0;
    }
}

static double into_by_nccl(cr_flow flow, part p)
{
    double once = p.bytes * (p.n - p.m) / p.n, each = p.m * once;

    switch (flow) {
    case CR_FLOW_GATHERS:
        return once;
    case CR_FLOW_REDUCTIONS:
        return each;
    case CR_FLOW_REPLICAS:
        return each + once;
    case CR_FLOW_EXCHANGES:
        return p.m * p.bytes * (p.n - p.m) / (p.n - 1);
    default:
        return 0;
    }
}

typedef struct sums {
    cr_moved *host; /* [num_hosts] */
    const cr_plan_place *place;
    cr_flow flow;
} sums;

static bool is_sampled(const sums *s, int host, int num_ranks)
{
    double work = (double)num_ranks * num_ranks * s->place->num_hosts;

    return work < max_work || host < 2 || host == s->place->num_hosts - 1;
}

/* host_of[n] of the group's ranks; times calls. */
static void add_group(const sums *s, const cr_link_call *call, const int *host_of, int n,
                      double times)
{
    for (int first = 0; first < n; first++) {
        cr_moved *to = &s->host[host_of[first]];
        part p = {.bytes = (double)call->num_bytes, .n = n};
        cr_link_count into;
        bool is_first = true;
        for (int r = 0; r < first && is_first; r++)
            is_first = host_of[r] != host_of[first];
        if (!is_first || !is_sampled(s, host_of[first], n)) continue;
        for (int r = first; r < n; r++)
            p.m += host_of[r] == host_of[first];
        if (s->place->is_nccl && s->flow != CR_FLOW_SMALL) { /* the host's messages: the meeting */
            into = cr_link_into_host(host_of, n, (cr_link_call){.coll = CR_COLL_BARRIER},
                                     host_of[first]);
            into.num_bytes = (int64_t)into_by_nccl(s->flow, p);
        } else {
            into = cr_link_into_host(host_of, n, *call, host_of[first]);
        }
        to->into_bytes += times * (double)into.num_bytes;
        to->num_messages += times * (double)into.num_messages;
        to->inside_bytes += times * inside(s->flow, p, (double)into.num_bytes);
    }
}

/* All groups along the axis of a call. */
static void add_call(const sums *s, const cr_mesh_shape *shape, const cr_plan_call *call,
                     double times)
{
    int n = cr_mesh_axis_ranks(shape, call->axis), *member = CR_NEW_ARRAY(int, 2 * n),
        *host_of = member + n;

    for (int r = 0; r < shape->num_ranks && n > 1; r++) {
        if (cr_mesh_axis_rank(shape, call->axis, r) != 0) continue;
        cr_mesh_members(shape, call->axis, r, member);
        for (int i = 0; i < n; i++)
            host_of[i] = s->place->host_of[member[i]];
        add_group(s, &call->call, host_of, n, times);
    }
    cr_free(member);
}

cr_moved cr_plan_moved(const cr_plan_role *role, const cr_plan_place *place, cr_flow flow,
                       cr_plan_pass pass)
{
    const cr_plan_passes *p = &role->passes;
    sums s = {CR_NEW_ARRAY(cr_moved, place->num_hosts), place, flow};
    cr_moved max = {0};
    int64_t num_calls = 0;

    for (size_t i = 0; i < p->num_calls; i++) {
        const cr_plan_call *c = &p->call[i];
        if (flow_of(&c->call) != flow || c->times[pass] == 0) continue;
        num_calls += c->times[pass];
        add_call(&s, &role->mesh, c, (double)c->times[pass]);
    }
    for (int r = 0; r < role->mesh.num_ranks; r++)
        s.host[place->host_of[r]].ranks_here++;
    for (int h = 0; h < place->num_hosts; h++)
        if (h == 0 || s.host[h].into_bytes > max.into_bytes ||
            (s.host[h].into_bytes >= max.into_bytes && s.host[h].inside_bytes > max.inside_bytes))
            max = s.host[h];
    max.num_calls = num_calls;
    cr_free(s.host);
    return max;
}

/* ---- time ---- */

static double over(double amount, const cr_rate *rate)
{
    return amount > 0 && rate->per_s > 0 ? amount / rate->per_s : 0;
}

static double flow_seconds(const cr_moved *m, const cr_rates *rates)
{
    double calls = m->into_bytes > 0 || m->num_messages > 0 ? (double)m->num_calls : 0,
           network = over(m->into_bytes, &rates->link) + 2 * calls * rates->latency_s,
           near = over(m->inside_bytes / fmax(m->ranks_here, 1), &rates->inside);

    return fmax(network, near);
}

/* One call of a flow, as the others are. */
static double one_of(double seconds, int64_t num_calls)
{
    return num_calls > 0 ? seconds / (double)num_calls : 0;
}

cr_pass_time cr_plan_time(const cr_plan_role *role, const cr_plan_place *place,
                          const cr_rates *rates, cr_plan_pass pass)
{
    const struct cr_plan_work *w = &role->passes.work[pass];
    cr_pass_time t = {.is_compute_known = rates->products.per_s > 0 && rates->attention.per_s > 0 &&
                                          rates->memory.per_s > 0,
                      .is_network_known = true};
    double under, ends = 0;

    t.compute_s = over(w->flops - w->attention_flops, &rates->products) +
                  over(w->attention_flops, &rates->attention) +
                  over(w->moved_bytes, &rates->memory);
    for (cr_flow f = 0; f < CR_NUM_FLOWS; f++) {
        cr_moved *m = &t.moved[f];
        *m = cr_plan_moved(role, place, f, pass);
        t.flow_s[f] = flow_seconds(m, rates);
        if (m->into_bytes > 0 && rates->link.per_s <= 0) t.is_network_known = false;
        if (f == CR_FLOW_GATHERS || f == CR_FLOW_REDUCTIONS)
            ends += one_of(t.flow_s[f], m->num_calls);
    }
    under = t.flow_s[CR_FLOW_GATHERS] + t.flow_s[CR_FLOW_REDUCTIONS];
    t.exposed_s = fmax(under - t.compute_s, ends);
    t.all_s = t.compute_s + t.exposed_s;
    for (cr_flow f = CR_FLOW_REPLICAS; f < CR_NUM_FLOWS; f++)
        t.all_s += t.flow_s[f];
    return t;
}

double cr_plan_step_s(const cr_plan_role *role, const cr_plan_place *place, const cr_rates *rates)
{
    double sum = 0;

    for (cr_plan_pass p = 0; p < CR_PLAN_PASSES; p++) {
        cr_pass_time t = cr_plan_time(role, place, rates, p);
        if (!t.is_compute_known || !t.is_network_known) return 0;
        sum += (double)role->passes.times[p] * t.all_s;
    }
    return sum;
}

double cr_plan_into_bytes(const cr_plan_role *role, const cr_plan_place *place)
{
    double sum = 0;

    for (cr_plan_pass p = 0; p < CR_PLAN_PASSES; p++)
        for (cr_flow f = 0; f < CR_NUM_FLOWS; f++)
            sum += (double)role->passes.times[p] * cr_plan_moved(role, place, f, p).into_bytes;
    return sum;
}

/* ---- weights ---- */

/* What comes to a host: shards over the fsdp axis, and of experts over (ep, efsdp), of which no replica is there. */
static double sync_into(const cr_plan_role *train, const int *host_of, int host)
{
    const cr_mesh_shape *m = &train->mesh;
    const int64_t *bytes = train->sent_bytes;
    const int num_expert = m->num_ep * m->num_efsdp;
    bool *is_here = CR_NEW_ARRAY(bool, m->num_fsdp + num_expert);
    double into = 0;

    for (int r = 0; r < m->num_ranks; r++)
        if (host_of[r] == host)
            is_here[r % m->num_fsdp] = is_here[m->num_fsdp + r % num_expert] = true;
    for (int s = 0; s < m->num_fsdp; s++)
        into += is_here[s] ? 0 : (double)bytes[s];
    for (int s = 0; s < num_expert; s++)
        into += is_here[m->num_fsdp + s] ? 0 : (double)bytes[m->num_fsdp + s / m->num_ep];
    cr_free(is_here);
    return into;
}

cr_sync_moved cr_plan_sync(const cr_plan_role *train, const cr_plan_place *senders,
                           const cr_plan_role *infer, const cr_plan_place *receivers)
{
    cr_sync_moved out = {.engine_bytes = infer->synced.num_bytes};

    for (int h = 0; h < receivers->num_hosts; h++)
        for (int e = 0; e < infer->mesh.num_ranks; e++)
            if (receivers->host_of[e] == h) {
                out.into_bytes = fmax(out.into_bytes, sync_into(train, senders->host_of, h));
                break;
            }
    return out;
}
