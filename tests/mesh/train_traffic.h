/* train_traffic.h -- what a step of a plan moves, by closed formulas (see train.h). */
#ifndef TRAIN_TRAFFIC_H
#define TRAIN_TRAFFIC_H

#include "tests/mesh/train.h"

/* Bytes of a step by the formulas in strategies.h. `lowest`: the first layer with a backward. */
static cr_traffic formula(const plan *p, const result *r, int lowest)
{
    int64_t m = r->num_micro, reductions = p->is_reduced_once ? 1 : m;
    bool is_never = p->reshard == CR_RESHARD_NEVER || p->reshard_ranks == 1;
    int64_t shards = 0, largest = 0;
    cr_traffic t = {0};

    for (size_t i = 0; i < r->num_units; i++) {
        const cr_unit_size *u = &r->units[i];
        bool has_backward = u->layer < 0 ? !u->is_embedding : u->layer >= lowest;
        int64_t bytes = u->is_fp32 ? 4 : (int64_t)cr_dtype_bytes(p->dtype),
                reduce_bytes = p->reduce == CR_REDUCE_BF16 && !u->is_fp32 ? 2 : 4;
        int64_t uses = is_never ? 1 : has_backward ? 2 * m : m;
        if (i == 0) uses = p->reshard == CR_RESHARD_ALWAYS ? m : 1;
        if (p->fsdp > 1) {
            t.gathers.num += uses * ((u->trained > 0) + (u->frozen > 0));
            t.gathers.num_bytes += uses * bytes * (u->trained + u->frozen);
            t.reduces.num += reductions * (u->trained > 0);
            t.reduces.num_bytes += reductions * reduce_bytes * u->trained;
        }
        shards += u->shard;
        largest = u->shard > largest ? u->shard : largest;
    }
    if (p->fsdp < p->ranks) { /* from the host they come in parts of the largest shard */
        t.all_reduces.num = p->is_offloaded ? (shards + largest - 1) / largest : 1;
        t.all_reduces.num_bytes = (int64_t)sizeof(float) * shards;
    }
    return t;
}

static bool is_equal(const char *name, const char *kind, cr_traffic_count got,
                     cr_traffic_count want)
{
    if (got.num == want.num && got.num_bytes == want.num_bytes) return true;
    printf("%s: %s: %lld of %lld bytes, want %lld of %lld\n", name, kind, (long long)got.num,
           (long long)got.num_bytes, (long long)want.num, (long long)want.num_bytes);
    return false;
}

static cr_traffic_count recorded(cr_flight_count c)
{
    return (cr_traffic_count){(int64_t)c.num, (int64_t)c.num_bytes};
}

static void check_traffic(const plan *p, const result *r, int lowest)
{
    cr_traffic want = formula(p, r, lowest), got = r->traffic;
    int num_small = p->last == 1 ? 4 : 3;

    CR_CHECK(is_equal(p->name, "gathers", got.gathers, want.gathers) &&
                 is_equal(p->name, "reduce-scatters", got.reduces, want.reduces) &&
                 is_equal(p->name, "all-reduces", got.all_reduces, want.all_reduces),
             "%s: traffic", p->name);
    /* the recorder of mesh/ counted the same, and all-reduces of one double: number of micro-batches, loss,
     * norm, and the norm of the gradient that the first step shows */
    want.all_reduces.num += num_small;
    want.all_reduces.num_bytes += 8 * num_small;
    CR_CHECK(is_equal(p->name, "gathers of the recorder", recorded(r->gathers), want.gathers) &&
                 is_equal(p->name, "reduce-scatters of the recorder", recorded(r->reduces),
                          want.reduces) &&
                 is_equal(p->name, "all-reduces of the recorder", recorded(r->all_reduces),
                          want.all_reduces),
             "%s: recorder", p->name);
}

#endif
