/* traffic.h -- for tests: what one rank of eight sends and computes in a forward and backward, on a world
 * that only counts (meta). */
#ifndef CR_TEST_TRAFFIC_H
#define CR_TEST_TRAFFIC_H

#include "mesh/flight.h"
#include "strategies/strategies.h"
#include "tests/check_near.h"
#include "tests/model_bench.h"

enum { TRAFFIC_MAX_TOKENS = 128 };

typedef struct traffic {
    cr_flight_count sent; /* in all-to-alls */
    double flops;
} traffic;

static cr_status no_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                         cr_err *err)
{
    (void)out;
    (void)grad;
    (void)ctx, (void)num;
    (void)err;
    return CR_OK;
}

/* Two sequences of num_tokens in all (at most TRAFFIC_MAX_TOKENS) through the model of `text`. */
static traffic count_traffic(const char *text, int32_t num_tokens, int ulysses, int ep, int efsdp,
                             const cr_fsdp_args *args)
{
    cr_world_args meta = {.kind = CR_WORLD_META, .meta_rank = 5, .meta_num_ranks = 8};
    int32_t zeros[TRAFFIC_MAX_TOKENS] = {0}, cu[3] = {0, num_tokens / 3, num_tokens};
    cr_batch batch = {zeros, zeros, zeros, cu, num_tokens, 2};
    int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cr_model *model = NULL;
    cr_world *world = NULL;
    cr_mesh *mesh = NULL;
    cr_device *dev = NULL;
    cr_fsdp *f = NULL;
    cr_mesh_shape shape;
    cr_err err = {0};
    traffic t;

    if (build_model(text, &model, &err) != CR_OK || cr_world_open(&meta, &world, &err) != CR_OK ||
        cr_device_open("meta", 1, &dev, &err) != CR_OK ||
        cr_mesh_shape_init(&shape, 8, 8, ulysses, ep, efsdp, &err) != CR_OK ||
        cr_mesh_create(world, dev, "train", ranks, &shape, &mesh, &err) != CR_OK ||
        cr_fsdp_create(model, dev, mesh, args, &f, &err) != CR_OK ||
        cr_fsdp_backward(f, &batch, no_loss, NULL, &err) != CR_OK)
        fail_msg("%s", err.msg);
    t.sent = cr_flight_get_count(world, CR_COLL_ALL_TO_ALL);
    t.flops = cr_device_get_stats(dev).flops;
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_device_close(dev);
    cr_world_close(world);
    cr_model_free(model);
    return t;
}

#endif
