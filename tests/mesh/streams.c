/* streams.c -- the same training on cpu and on `far` in both orders of its streams (kernels/queue.h): a hand-over between
 * streams without its event gives other weights, NaNs, or a gradient that is not finite. On cuda twice: what the simulated
 * GPU's scheduler draws goes on from one to the other.
 * // ranks: 4
 * // also on cuda, long
 */
#include "tests/mesh/train.h"

typedef struct order {
    const char *device, *order, *save;
} order;
static const order on_far[] = {{"cpu", "", "first"},
                               {"far", "late", "late"},
                               {"far", "early", "early"}},
                   on_cuda[] = {{"cuda", "", "first"}, {"cuda", "", "second"}};

static void same_in_all_orders(plan p)
{
    bool is_cuda = strcmp(cr_device_default(), "cuda") == 0;
    const order *orders = is_cuda ? on_cuda : on_far;
    size_t num_orders = is_cuda ? CR_COUNT(on_cuda) : CR_COUNT(on_far);
    double norm[STEPS];

    p.last = 3;
    p.inf_step = -1;
    if (p.num_seqs == 0) p.num_seqs = 6;
    for (size_t i = 0; i < num_orders; i++) {
        result r;
        CR_CHECK(setenv("CROLL_DEVICE", orders[i].device, 1) == 0, "setenv");
        CR_CHECK(setenv("CROLL_FAR_STREAMS", orders[i].order, 1) == 0, "setenv");
        p.save = orders[i].save;
        r = train(p);
        for (int s = 0; s < p.last && me < p.ranks; s++) {
            if (i == 0) norm[s] = r.norm[s];
            CR_CHECK(isfinite(r.norm[s]) && r.norm[s] == norm[s],
                     "%s, %s: step %d: the gradient's norm is %.9g on %s (%s), %.9g before", p.name,
                     p.save, s, r.norm[s], orders[i].device, orders[i].order, norm[s]);
        }
        if (i > 0) same_bytes("first", p.save);
        cr_free(r.grad);
    }
    if (me == 0) printf("%s\n", p.name);
}

int main(void)
{
    const plan plans[] = {
        {"one rank", 1, 1, 2, .dtype = CR_BF16},
        {"one rank, never", 1, 1, 2, .dtype = CR_BF16, .reshard = CR_RESHARD_NEVER},
        {"one rank, never, cycled", 1, 1, 2, .dtype = CR_BF16, .reshard = CR_RESHARD_NEVER,
         .is_cycled = true},
        {"two ranks", 2, 2, 1},
        {"to 2 ranks", 4, 4, 2, .reshard_ranks = 2, .dtype = CR_BF16},
        {"once", 4, 2, 1, .is_reduced_once = true},
        {"offloaded", 4, 2, 1, .is_offloaded = true, .dtype = CR_BF16},
        {"offloaded, one rank", 1, 1, 2, .is_offloaded = true},
        {"cycled", 2, 2, 1, .is_cycled = true},
    };

    open_world();
    for (size_t i = 0; i < CR_COUNT(plans); i++)
        same_in_all_orders(plans[i]);
    close_world();
    return 0;
}
