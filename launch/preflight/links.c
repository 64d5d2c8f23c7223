/* links.c -- what the links between hosts carry, measured by their agents; those that are much worse than the others are findings. */
#include "launch/preflight/preflight_impl.h"

#include <stdio.h>
#include <stdlib.h>

enum { ALL_PAIRS = 8, LINK_FACTOR = 4 };
static const double MEASURE_S = 0.1, LATENCY_LIMIT_S = 1e-3, AGAIN_S = 1, LONG_S = 10e-3,
                    MEASURE_LIMIT_S = 10;

/* Who is paired with i in a round of num - 1 (num even; the circle method). */
static size_t partner(size_t i, size_t round, size_t num)
{
    size_t turns = num - 1, other;

    if (i == turns) return round;
    other = (2 * round + turns - i) % turns;
    return other == i ? turns : other;
}

static void ask_measure(cr_preflight *p, size_t from, size_t to)
{
    cr_agent_peer peer = {.node = (int)from, .port = p->node[from].hello.port};
    cr_agent_request r = {.ask = CR_AGENT_MEASURE, .seconds = MEASURE_S, .to = &peer, .num_to = 1};

    snprintf(peer.address, sizeof peer.address, "%s", p->chosen->address[from]);
    cr_agent_request_write(&r, &p->question[to]);
}

/* The better of what was measured before and now. */
static void read_rate(cr_preflight *p, size_t from, size_t to)
{
    cr_agent_rate *rate = &p->rate[from * p->num + to], now;
    cr_err why = {0};

    if (cri_is_out(p, to)) return;
    if (cr_agent_rate_read(p->agent[to].line.data, p->agent[to].line.num_bytes, &now, &why) !=
        CR_OK) {
        cri_find_fault(p, to, CRI_LINK, true, "the link from %s: %s", p->node[from].name, why.msg);
        return;
    }
    if (rate->latency_s <= 0 || now.latency_s < rate->latency_s) rate->latency_s = now.latency_s;
    if (now.bytes_per_s > rate->bytes_per_s) rate->bytes_per_s = now.bytes_per_s;
}

/* Is it asked in this half of a round? First those with the lower number receive, then the others; on long links, which take
 * longer, both at once. */
static bool is_turn(const cr_preflight *p, size_t i, size_t from, bool is_lower)
{
    bool is_long = p->node[i].round_trip_s > LONG_S || p->node[from].round_trip_s > LONG_S;

    if (cri_is_out(p, i) || cri_is_out(p, from)) return false;
    return is_long ? is_lower : (i < from) == is_lower;
}

/* In a round each host has one partner. */
static void measure_round(cr_preflight *p, size_t round, bool is_lower)
{
    size_t even = p->num + p->num % 2;
    bool *is_asked = CR_NEW_ARRAY(bool, p->num);

    for (size_t i = 0; i < p->num; i++) {
        size_t from = partner(i, round, even);
        is_asked[i] = from < p->num && is_turn(p, i, from, is_lower);
        if (is_asked[i]) ask_measure(p, from, i);
    }
    cri_ask(p, MEASURE_LIMIT_S);
    for (size_t i = 0; i < p->num; i++)
        if (is_asked[i]) read_rate(p, partner(i, round, even), i);
    cr_free(is_asked);
}

/* What the better links have: the better quartile of rates and of latencies, as one bad host of four spoils half of all links. */
static cr_agent_rate usual_rate(const cr_preflight *p)
{
    size_t num = 0, all = p->num * p->num;
    double *rates = CR_NEW_ARRAY(double, all), *latencies = CR_NEW_ARRAY(double, all);
    cr_agent_rate usual;

    for (size_t i = 0; i < all; i++)
        if (p->rate[i].latency_s > 0) {
            latencies[num] = p->rate[i].latency_s;
            rates[num++] = p->rate[i].bytes_per_s;
        }
    if (num == 0) num = 1; /* zeros */
    qsort(rates, num, sizeof *rates, cr_by_double);
    qsort(latencies, num, sizeof *latencies, cr_by_double);
    usual = (cr_agent_rate){latencies[num / 4], rates[num - 1 - num / 4]};
    cr_free(rates);
    cr_free(latencies);
    return usual;
}

static bool is_slow(const cr_preflight *p, size_t from, size_t to, cr_agent_rate usual)
{
    const cr_agent_rate *r = cri_rate(p, from, to);

    return r->latency_s > 0 && LINK_FACTOR * r->bytes_per_s < usual.bytes_per_s;
}

/* Links much worse than the others, each alone and once more: a busy moment is not a bad link. */
static void measure_again(cr_preflight *p, cr_agent_rate usual)
{
    double until_s = cr_now_s() + AGAIN_S;

    for (size_t from = 0; from < p->num; from++)
        for (size_t to = 0; to < p->num && cr_now_s() < until_s; to++) {
            if (!is_slow(p, from, to, usual) ||
                cri_rate(p, from, to)->latency_s > LATENCY_LIMIT_S || cri_is_out(p, from) ||
                cri_is_out(p, to))
                continue;
            ask_measure(p, from, to);
            cri_ask(p, MEASURE_LIMIT_S);
            read_rate(p, from, to);
        }
}

/* Links from and to a host; those that are slow; the fastest of them. */
static size_t count_slow(const cr_preflight *p, size_t i, cr_agent_rate usual, size_t *num_links,
                         cr_agent_rate *fastest)
{
    size_t num = 0;

    *num_links = 0;
    *fastest = (cr_agent_rate){0};
    for (size_t k = 0; k < 2 * p->num; k++) {
        size_t from = k < p->num ? i : k - p->num, to = k < p->num ? k : i;
        const cr_agent_rate *r = cri_rate(p, from, to);
        if (r->latency_s <= 0) continue;
        ++*num_links;
        if (!is_slow(p, from, to, usual)) continue;
        num++;
        if (r->bytes_per_s > fastest->bytes_per_s) *fastest = *r;
    }
    return num;
}

/* One warning for a host whose links are all slow, else one a link. */
static void compare_links(cr_preflight *p, cr_agent_rate usual)
{
    bool *is_said = CR_NEW_ARRAY(bool, p->num);
    char is[CRI_BYTES_TEXT], others[CRI_BYTES_TEXT];

    cri_bytes(usual.bytes_per_s, others);
    for (size_t i = 0; i < p->num; i++) {
        size_t num_links;
        cr_agent_rate fastest;
        is_said[i] = count_slow(p, i, usual, &num_links, &fastest) == num_links && num_links > 2;
        if (is_said[i])
            cri_find_fault(
                p, i, CRI_LINK, false,
                "its links carry %s/s at most, with %.2f ms, others %s/s with %.2f ms: look "
                "at its cable, its duplex and what else uses it",
                cri_bytes(fastest.bytes_per_s, is), 1e3 * fastest.latency_s, others,
                1e3 * usual.latency_s);
    }
    for (size_t k = 0; k < p->num * p->num; k++) {
        size_t from = k / p->num, to = k % p->num;
        const cr_agent_rate *r = cri_rate(p, from, to);
        if (is_slow(p, from, to, usual) && !is_said[from] && !is_said[to])
            cri_find_fault(p, to, CRI_LINK, false,
                           "the link from %s carries %s/s, others %s/s: look at cables, duplex and "
                           "what else uses it",
                           p->node[from].name, cri_bytes(r->bytes_per_s, is), others);
        if (r->latency_s > LINK_FACTOR * usual.latency_s && r->latency_s > LATENCY_LIMIT_S &&
            !is_said[from] && !is_said[to])
            cri_find_fault(p, to, CRI_LINK, false,
                           "the link from %s has a latency of %.1f ms, others %.1f ms",
                           p->node[from].name, 1e3 * r->latency_s, 1e3 * usual.latency_s);
    }
    cr_free(is_said);
}

void cri_measure_links(cr_preflight *p)
{
    size_t turns = p->num + p->num % 2 - 1, num = turns < ALL_PAIRS ? turns : ALL_PAIRS - 1;
    cr_agent_rate usual;

    for (size_t k = 0; k < num; k++) {
        measure_round(p, k * turns / num, true);
        measure_round(p, k * turns / num, false);
    }
    usual = usual_rate(p);
    measure_again(p, usual);
    compare_links(p, usual);
}
