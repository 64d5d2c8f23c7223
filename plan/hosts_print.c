/* hosts_print.c -- the part of a plan about several hosts, as text and in its JSON object (hosts_print.h). */
#include "plan/hosts_print.h"
#include "base/json.h"
#include "reports/html.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LISTED = 16 };

static const char *const pass_names[CR_PLAN_PASSES] = {"the first micro-batch", "a micro-batch",
                                                       "an update", "a forward for log-probs",
                                                       "a forward with adapters off"};
static const char *const pass_keys[CR_PLAN_PASSES] = {"first_micro_batch", "micro_batch", "update",
                                                      "forward", "base_forward"};

static cr_plan_place place_of(const cr_plan *p, size_t r)
{
    return (cr_plan_place){p->hosts.host_of[r], p->hosts.num, p->is_gpu};
}

static bool spans_hosts(const cr_plan *p, size_t r)
{
    for (int i = 1; i < p->role[r].mesh.num_ranks; i++)
        if (p->hosts.host_of[r][i] != p->hosts.host_of[r][0]) return true;
    return false;
}

/* ---- text ---- */

static void text_rate(const cr_rate *rate, const char *unit, const char *what, const char *else_do,
                      cr_buf *out)
{
    char size[32];

    if (rate->per_s > 0)
        cr_buf_addf(out, "  %-26s %12s  (%s)\n", what, cr_amount_text(rate->per_s, unit, size),
                    rate->source);
    else
        cr_buf_addf(out, "  %-26s %12s  (%s)\n", what, "not known", else_do);
}

static void text_hosts(const cr_plan *p, cr_buf *out)
{
    const cr_plan_hosts *h = &p->hosts;
    const cr_rates *r = &h->rates;
    static const char compute[] = "--device h100, or --rates FILE of croll doctor --measure FILE";

    cr_buf_addf(out, "\nhosts    %d", h->num);
    if (h->num_devices) cr_buf_addf(out, " with %d devices each", h->num_devices);
    if (h->num_idle)
        cr_buf_addf(out, "; %d of them %s no rank: the roles' device_mapping does not reach them",
                    h->num_idle, h->num_idle == 1 ? "has" : "have");
    cr_buf_addf(out, "\n%s", h->num <= MAX_LISTED ? h->table : "");
    text_rate(&r->link, "B/s", "into a host", "--link 400GB/s, or hosts.json of a run", out);
    if (r->latency_s > 0)
        cr_buf_addf(out, "  %-26s %9.0f us\n", "a message between hosts", r->latency_s * 1e6);
    text_rate(&r->inside, "B/s", "into a device, inside", "--device h100: no time is counted", out);
    text_rate(&r->products, "FLOP/s", "products of a device", compute, out);
    if (r->products.per_s <= 0) return;
    text_rate(&r->attention, "FLOP/s", "attention", compute, out);
    text_rate(&r->memory, "B/s", "memory, other operations", compute, out);
}

static const char *seconds_text(double s, bool is_known, char text[32])
{
    if (!is_known) return "?";
    return cr_seconds_text(s, text);
}

static void text_pass(const cr_plan *p, size_t r, cr_plan_pass pass, cr_buf *out)
{
    const cr_plan_place place = place_of(p, r);
    cr_pass_time t = cr_plan_time(&p->role[r], &place, &p->hosts.rates, pass);
    bool is_known = t.is_compute_known && t.is_network_known;
    char a[32], b[32], c[32];

    cr_buf_addf(
        out, "  %s, %lld a step: compute %s, not hidden %s, together %s\n", pass_names[pass],
        (long long)p->role[r].passes.times[pass], seconds_text(t.compute_s, t.is_compute_known, a),
        seconds_text(t.all_s - t.compute_s, is_known, b), seconds_text(t.all_s, is_known, c));
    for (cr_flow f = 0; f < CR_NUM_FLOWS; f++) {
        const cr_moved *m = &t.moved[f];
        if (m->num_calls == 0) continue;
        cr_buf_addf(out,
                    "    %-12s %6lld calls  %12s inside  %12s into a host  %8.0f messages  %9s\n",
                    cr_flow_names[f], (long long)m->num_calls,
                    cr_amount_text(m->inside_bytes, "B", a), cr_amount_text(m->into_bytes, "B", b),
                    m->num_messages, seconds_text(t.flow_s[f], t.is_network_known, c));
    }
}

static void text_role(const cr_plan *p, size_t r, cr_buf *out)
{
    const cr_plan_role *role = &p->role[r];
    const cr_plan_place place = place_of(p, r);
    cr_link_count meeting =
        cr_link_into_host(place.host_of, role->mesh.num_ranks,
                          (cr_link_call){.coll = CR_COLL_BARRIER}, place.host_of[0]);
    int spanned = (int)meeting.num_messages + 1;
    double step_s = cr_plan_step_s(role, &place, &p->hosts.rates);
    char size[32];

    cr_buf_addf(out, "\n%s between hosts: a meeting of all its ranks is %d messages\n", role->name,
                spanned * (spanned - 1));
    for (cr_plan_pass pass = 0; pass < CR_PLAN_PASSES; pass++) {
        /* the first one is like the next ones but for what they keep gathered */
        if (pass == CR_PLAN_FIRST && role->passes.times[CR_PLAN_NEXT] > 0) continue;
        if (role->passes.times[pass] > 0) text_pass(p, r, pass, out);
    }
    if (step_s > 0)
        cr_buf_addf(out, "  a step without generation and rewards: %s\n",
                    cr_seconds_text(step_s, size));
}

static void text_choices(const cr_plan *p, cr_buf *out)
{
    const cr_plan_hosts *h = &p->hosts;
    char a[32], b[32], c[32], d[32];

    if (h->num_choices < 2) return;
    cr_buf_addf(out, "\n%s by fsdp_size (memory of a rank; into a host a step)\n", p->role[0].name);
    for (size_t i = 0; i < h->num_choices; i++) {
        const cr_plan_choice *x = &h->choice[i];
        cr_buf_addf(
            out, "  %6d  %12s  %12s  micro-batch %9s  update %9s  step %9s%s%s%s\n", x->fsdp_size,
            cr_amount_text((double)x->peak_bytes, "B", a), cr_amount_text(x->into_bytes, "B", b),
            seconds_text(x->micro_s, x->step_s > 0, c), seconds_text(x->update_s, x->step_s > 0, d),
            x->step_s > 0 ? cr_seconds_text(x->step_s, (char[32]){0}) : "?",
            x->is_file ? "  <- the file" : "", x->is_best ? "  <- better" : "",
            p->memory && x->peak_bytes > p->memory ? "  (does not fit)" : "");
    }
}

static void text_sync(const cr_plan *p, size_t r, cr_buf *out)
{
    const cr_plan_place from = place_of(p, 0), to = place_of(p, r);
    cr_sync_moved m = cr_plan_sync(&p->role[0], &from, &p->role[r], &to);
    const double rate = p->hosts.rates.link.per_s;
    char a[32], b[32], c[32];

    cr_buf_addf(out, "\nweights to %s, once a step: %s into each, %s into a host, %s\n",
                p->role[r].name, cr_amount_text((double)m.engine_bytes, "B", a),
                cr_amount_text(m.into_bytes, "B", b),
                seconds_text(rate > 0 ? m.into_bytes / rate : 0, rate > 0 || m.into_bytes <= 0, c));
}

void cr_plan_hosts_text(const cr_plan *p, cr_buf *out)
{
    text_hosts(p, out);
    for (size_t r = 0; r < p->num_roles; r++)
        if (p->role[r].passes.num_calls && spans_hosts(p, r)) text_role(p, r, out);
    text_choices(p, out);
    for (size_t r = 0; r < p->num_roles; r++)
        if (p->role[r].synced.num) text_sync(p, r, out);
}

/* ---- JSON ---- */

static void number(cr_buf *out, const char *name, double x)
{
    char last = out->data[out->num_bytes - 1];

    cr_buf_addf(out, "%s\"%s\":%.17g", last == '{' ? "" : ",", name, x);
}

static void json_rate(cr_buf *out, const char *name, const cr_rate *rate)
{
    if (rate->per_s <= 0) return;
    cr_buf_addf(out, "%s\"%s\":{\"per_s\":%.17g,\"source\":",
                out->data[out->num_bytes - 1] == '{' ? "" : ",", name, rate->per_s);
    cr_json_add_string(out, rate->source, strlen(rate->source));
    cr_buf_addc(out, '}');
}

static void json_pass(const cr_plan *p, size_t r, cr_plan_pass pass, cr_buf *out)
{
    const cr_plan_place place = place_of(p, r);
    cr_pass_time t = cr_plan_time(&p->role[r], &place, &p->hosts.rates, pass);
    const struct cr_plan_work *w = &p->role[r].passes.work[pass];

    cr_buf_addf(out, ",\"%s\":{", pass_keys[pass]);
    number(out, "times", (double)p->role[r].passes.times[pass]);
    number(out, "flops", w->flops);
    number(out, "attention_flops", w->attention_flops);
    number(out, "moved_bytes", w->moved_bytes);
    if (t.is_compute_known) number(out, "compute_seconds", t.compute_s);
    if (t.is_compute_known && t.is_network_known) {
        number(out, "not_hidden_seconds", t.all_s - t.compute_s);
        number(out, "seconds", t.all_s);
    }
    for (cr_flow f = 0; f < CR_NUM_FLOWS; f++) {
        const cr_moved *m = &t.moved[f];
        if (m->num_calls == 0) continue;
        cr_buf_addf(out, ",\"%s\":{", cr_flow_names[f]);
        number(out, "calls", (double)m->num_calls);
        number(out, "bytes_inside", m->inside_bytes);
        number(out, "bytes_into_host", m->into_bytes);
        number(out, "messages_into_host", m->num_messages);
        if (t.is_network_known) number(out, "seconds", t.flow_s[f]);
        cr_buf_addc(out, '}');
    }
    cr_buf_addc(out, '}');
}

static void json_role(const cr_plan *p, size_t r, cr_buf *out)
{
    const cr_plan_place place = place_of(p, r);
    const cr_plan_role *role = &p->role[r];
    double step_s = cr_plan_step_s(role, &place, &p->hosts.rates);

    cr_buf_adds(out, "{\"name\":");
    cr_json_add_string(out, role->name, strlen(role->name));
    cr_buf_adds(out, ",\"host_of\":[");
    for (int i = 0; i < role->mesh.num_ranks; i++)
        cr_buf_addf(out, "%s%d", i ? "," : "", place.host_of[i]);
    cr_buf_addc(out, ']');
    for (cr_plan_pass pass = 0; pass < CR_PLAN_PASSES; pass++)
        if (role->passes.times[pass] > 0) json_pass(p, r, pass, out);
    if (step_s > 0) number(out, "step_seconds", step_s);
    if (role->synced.num) {
        const cr_plan_place from = place_of(p, 0);
        cr_sync_moved m = cr_plan_sync(&p->role[0], &from, role, &place);
        number(out, "sync_bytes_into_engine", (double)m.engine_bytes);
        number(out, "sync_bytes_into_host", m.into_bytes);
    }
    cr_buf_addc(out, '}');
}

void cr_plan_hosts_json(const cr_plan *p, cr_buf *out)
{
    const cr_plan_hosts *h = &p->hosts;
    const cr_rates *r = &h->rates;

    cr_buf_addf(out, ",\"hosts\":{\"num\":%d,\"rates\":{", h->num);
    json_rate(out, "link", &r->link);
    json_rate(out, "inside", &r->inside);
    json_rate(out, "products", &r->products);
    json_rate(out, "attention", &r->attention);
    json_rate(out, "memory", &r->memory);
    if (r->latency_s > 0) number(out, "latency_seconds", r->latency_s);
    cr_buf_adds(out, "},\"roles\":[");
    for (size_t i = 0; i < p->num_roles; i++) {
        if (i) cr_buf_addc(out, ',');
        json_role(p, i, out);
    }
    cr_buf_adds(out, "],\"choices\":[");
    for (size_t i = 0; i < h->num_choices; i++) {
        const cr_plan_choice *x = &h->choice[i];
        cr_buf_adds(out, i ? ",{" : "{");
        number(out, "fsdp_size", x->fsdp_size);
        number(out, "peak_bytes", (double)x->peak_bytes);
        number(out, "bytes_into_host", x->into_bytes);
        if (x->step_s > 0) {
            number(out, "micro_batch_seconds", x->micro_s);
            number(out, "update_seconds", x->update_s);
            number(out, "step_seconds", x->step_s);
        }
        cr_buf_addf(out, ",\"is_file\":%s,\"is_best\":%s}", x->is_file ? "true" : "false",
                    x->is_best ? "true" : "false");
    }
    cr_buf_adds(out, "]}");
}
